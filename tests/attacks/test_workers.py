"""Worker processes are killed: that costs time, never the answer."""

import random
import signal

import pytest

from camri.engine import Job, Trial, cpu, train
from camri.methods import setting
from tests.engine.conftest import same

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


class Poisoned(Trial):
    """A trial that ends every process it is sent to."""

    def __reduce__(self):
        return signal.raise_signal, (self.seed,)


def killing(started, times, seed=0):
    """A hook for progress that kills a random worker that many times in all."""
    drawn, killed = random.Random(seed), []

    def kill(progress):
        living = [process for process in started if process.poll() is None]
        if len(killed) < times and living and drawn.random() < 0.3:
            killed.append(drawn.choice(living))
            killed[-1].kill()

    return kill, killed


def test_a_trial_whose_process_dies_is_trained_again_with_the_same_bits(started, tmp_path, trials, data, training):
    longer = training.with_(epochs=30)
    kill, killed = killing(started, 2)
    outcomes = train(trials[:3], data, "cpu", training=longer, workers=2, on_progress=kill, checkpoints=tmp_path,
                     checkpoint_every_s=0.0, **KEEP)  # fmt: skip
    assert len(killed) == 2
    alone = train(trials[:3], data, "cpu", training=longer, workers=1, **KEEP)
    assert all(same(outcome, undisturbed) for outcome, undisturbed in zip(outcomes, alone, strict=True))


def test_a_trial_whose_process_always_dies_fails_and_no_other(started, monkeypatch, trials, data, training):
    busy, lose = [], cpu._Call._lose

    def note(call, place, code):
        busy.append(len(call.at_work))
        lose(call, place, code)

    monkeypatch.setattr(cpu._Call, "_lose", note)
    poisoned = Poisoned(setting("ce"), int(signal.SIGSEGV))
    outcomes = train([trials[0], poisoned, *trials[1:4]], data, "cpu", training=training.with_(epochs=9), workers=2)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done", "done", "done"]
    assert "4 times, at last alone and by SIGSEGV (a crash in compiled code)" in outcomes[1].error
    assert sum(process.poll() == -signal.SIGSEGV for process in started) == 4
    assert len(busy) == 4
    assert busy[-1] == 1  # the last time it had the machine for itself


@pytest.mark.parametrize(
    ("code", "said"), [(-9, "by SIGKILL (perhaps out of memory)"), (1, "by exit code 1 (its messages may say why)")]
)
def test_how_a_process_ended_is_told(trials, data, training, code, said):
    outcome = cpu.lost(trials[0], Job(training, data), 4, code)
    assert said in outcome.error
    assert outcome.environment["ended_by"] == ("SIGKILL" if code < 0 else "exit code 1")
