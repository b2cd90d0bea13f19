"""Worker processes are killed: that costs time, never the answer.

`make attacks` also runs the tests marked long.
"""

import contextlib
import dataclasses
import functools
import random
import signal

import pytest
from typer.testing import CliRunner

import camri
from camri.cli import app
from camri.engine import Job, Trial, cpu, train
from camri.errors import InputError, last_line
from camri.fitting import handover, trainer
from camri.methods import setting
from camri.study import runner
from camri.study.finalists import find_finalists
from camri.study.runner import LocalExecutor, Result
from camri.study.store import open_run
from tests.engine.conftest import same
from tests.fitting.conftest import facts, weights_of
from tests.study.test_cli import EXAMPLE
from tests.study.test_runner import Pretender, assert_same_table

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}
FIT = {"num_trials": 16, "epochs": 4, "device": "cpu"}


class Poisoned(Trial):
    """A trial that ends every process it is sent to."""

    def __reduce__(self):
        return signal.raise_signal, (self.seed,)


@pytest.fixture(scope="module")
def pool():
    """One pool for all tests: a process takes two seconds to start."""
    with cpu.Pool() as pool:
        yield pool


@pytest.fixture(scope="module")
def started(pool):
    """The processes that the pool starts, in order."""
    processes, take = [], pool.take

    def listen(busy):
        process = take(busy)
        if process not in processes:
            processes.append(process)
        return process

    pool.take = listen
    return processes


def killing(started, times, seed=0):
    """A hook for progress that kills a random worker that many times in all, at the latest every third time."""
    drawn, killed = random.Random(seed), []
    wait = drawn.randrange(3)

    def kill(progress):
        nonlocal wait
        living = [process for process in started if process.poll() is None]
        if len(killed) < times and living:
            if wait == 0:
                killed.append(drawn.choice(living))
                killed[-1].kill()
            wait = (wait or drawn.randrange(1, 4)) - 1

    return kill, killed


def test_a_trial_whose_process_dies_is_trained_again_with_the_same_bits(
    pool, started, tmp_path, trials, data, training
):
    longer = training.with_(epochs=20)
    kill, killed = killing(started, 1)
    outcomes = train(trials[:2], data, "cpu", training=longer, workers=2, on_progress=kill, checkpoints=tmp_path,
                     checkpoint_every_s=0.0, pool=pool, **KEEP)  # fmt: skip
    assert killed
    alone = train(trials[:2], data, "cpu", training=longer, workers=1, **KEEP)
    assert all(same(outcome, undisturbed) for outcome, undisturbed in zip(outcomes, alone, strict=True))


def test_a_trial_whose_process_always_dies_fails_and_no_other(pool, started, monkeypatch, trials, data, training):
    busy, lose = [], cpu._Call._lose

    def note(call, place, code):
        busy.append(len(call.at_work))
        lose(call, place, code)

    monkeypatch.setattr(cpu._Call, "_lose", note)
    monkeypatch.setattr(cpu, "RETRIES", 1)
    poisoned = Poisoned(setting("ce"), int(signal.SIGSEGV))
    longer = training.with_(epochs=9)
    outcomes = train([trials[0], poisoned, *trials[1:4]], data, "cpu", training=longer, workers=2, pool=pool)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done", "done", "done"]
    assert "3 times, at last alone and by SIGSEGV (a crash in compiled code)" in outcomes[1].error
    assert sum(process.poll() == -signal.SIGSEGV for process in started) == 3
    assert len(busy) == 3
    assert busy[-1] == 1  # the last time it had the machine for itself


CRASH = """
from camri.engine import cpu
from signal import SIGSEGV, raise_signal
def crash(trial, *more, train=cpu.train_one):
    return raise_signal(SIGSEGV) if trial.setting.method == "l2softmax" else train(trial, *more)
cpu.train_one = crash
cpu.work()
"""


def test_a_method_that_crashes_ends_neither_the_command_nor_other_trials_with_one_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "START", cpu.START.replace("\nwork()", CRASH))
    monkeypatch.setattr(cpu, "RETRIES", 0)
    words = f"study run {EXAMPLE} --out {tmp_path} --device cpu --workers 1 --num-seeds 1 --methods ce,l2softmax"
    ended = CliRunner().invoke(app, words.split())
    assert ended.exit_code == 3
    assert "1 done" in ended.stdout
    with open_run(tmp_path) as run:
        (failed,) = run.rows(status="failed")
        assert "by SIGSEGV (a crash in compiled code)" in failed.error


FAULTS = """
import ctypes, os, sys
from signal import SIGABRT, raise_signal
from camri.engine import cpu, loop
def deep(): return deep()
def wrong(error): raise error
FAULTS = [
    lambda loss: wrong(ValueError("of the method's own")), lambda loss: wrong(MemoryError()), lambda loss: deep(),
    lambda loss: loss * float("nan"), lambda loss: loss.repeat(3), lambda loss: sys.exit(), lambda loss: os._exit(0),
    lambda loss: ctypes.string_at(0), lambda loss: raise_signal(SIGABRT),
]
def make(trial, job, real=loop.make):
    model, criterion = real(trial, job)
    if trial.setting.method == "wce":
        fault, forward = FAULTS[int(dict(trial.setting.knobs)["w"][0]) - 2], criterion.forward
        criterion.forward = lambda *given: fault(forward(*given))
    return model, criterion
loop.make = make
cpu.work()
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_with_nine_faults(tally, monkeypatch, data, small, tmp_path, workers):
    monkeypatch.setattr(cpu, "START", cpu.START.replace("\nwork()", FAULTS))
    monkeypatch.setattr(cpu, "RETRIES", 0)
    faulty = small.with_(methods={"ce": {}, "wce": {"w": list(range(2, 11))}}, seeds=[0])
    result = runner.run(faulty, tmp_path, LocalExecutor("cpu", isolates=True, workers=workers), data=data)
    assert (result.finished, result.done, result.failed) == (True, 1, 9)
    with open_run(tmp_path) as run:
        said = {int(row.setting["knobs"]["w"][0]): last_line(row.error) for row in run.rows(status="failed")}
    expected = "of the method's own, MemoryError, recursion, nan, Scalar, SystemExit, exit code 0, SIGSEGV, SIGABRT"
    for place, words in enumerate(expected.split(", "), 2):
        assert words in said[place], said[place]
    tally("a method with nine faults", "only that trial fails, with its reason", 9)
    tally("a method with nine faults", "trial beside them done")


@pytest.mark.parametrize(
    ("code", "said"), [(-9, "by SIGKILL (perhaps out of memory)"), (1, "by exit code 1 (its messages may say why)")]
)
def test_how_a_process_ended_is_reported(trials, data, training, code, said):
    outcome = cpu.lost(trials[0], Job(training, data), 4, code)
    assert said in outcome.error
    assert outcome.environment["ended_by"] == ("SIGKILL" if code < 0 else "exit code 1")


class Losing(Pretender):
    """An executor that loses the trials of some seeds, as the engine reports them when their process always died."""

    def train(self, trials, job, hooks):
        def end(outcome):
            lost = dataclasses.replace(outcome, environment={"ended_by": "SIGKILL"})
            hooks.on_outcome(lost if outcome.status == "failed" else outcome)

        return super().train(trials, job, dataclasses.replace(hooks, on_outcome=end))


def columns_of(folder):
    with open_run(folder) as run:
        return run.columns()


def test_the_worst_class_is_not_decided_from_fewer_trials(data, small, tmp_path):
    sought = small.with_(important="worst", seeds=[0, 1, 2])
    for _ in range(2):
        with pytest.raises(InputError, match="1 trial was lost, so worst cannot be decided; ce seed 1"):
            runner.run(sought, tmp_path / "a", Losing(fails=[1]), data=data)
        assert columns_of(tmp_path / "a") == []
    assert runner.run(sought, tmp_path / "a", Pretender(), data=data).failed == 0  # the same command trains it again
    runner.run(sought, tmp_path / "b", Pretender(), data=data)
    assert columns_of(tmp_path / "a") == columns_of(tmp_path / "b")


def test_what_was_decided_without_failed_trials_is_undone_by_retrying_them(data, small, tmp_path):
    def decided(fails, folder, **options):
        runner.run(small.with_(important="worst", seeds=range(6)), folder, Pretender(fails), data=data, **options)
        (column,) = columns_of(folder)
        return column.names

    right = decided((), tmp_path / "right")
    others = [(seeds, tmp_path / str(number)) for number, seeds in enumerate([(0, 1, 2, 3), (2, 3, 4, 5), (0, 2, 4)])]
    with pytest.warns(UserWarning, match=r"worst is found without . of 6 cross-entropy trials, which failed"):
        wrong = [folder for seeds, folder in others if decided(seeds, folder) != right]
    assert wrong  # else this test shows nothing
    for folder in wrong:
        assert decided((), folder, retry_failed=True) == right
        with open_run(folder) as run:
            assert {planned.setting["important"][0] for planned in run.plan() if planned.method == "camri"} == set(
                run.columns()[0].indices
            )


def test_finalists_are_not_chosen_while_trials_are_lost(data, small, tmp_path):
    result = runner.run(small, tmp_path, Losing(fails=[1]), data=data)
    assert (result.failed, len(result.lost)) == (3, 3)
    with open_run(tmp_path) as run, pytest.raises(InputError, match="3 trials were lost, so the finalists cannot be"):
        find_finalists(run)


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (2, 3)])
def test_a_run_with_failed_trials_says_so_last_and_exits_with_3(monkeypatch, data, tmp_path, failed, code):
    monkeypatch.setattr("camri.study.run_folder.load_data", lambda *_: data)
    monkeypatch.setattr("camri.study.runner.run", lambda *_, **__: Result(True, 5, failed, 0, 5, "ce seed 0: no"))
    ended = CliRunner().invoke(app, ["study", "run", "digits", "--out", str(tmp_path), "--device", "cpu"])
    assert ended.exit_code == code
    last = ended.stdout.splitlines()[-1]
    assert (last == "2 trials failed; --retry-failed trains them again") == (failed > 0)


# Seeds of random kills: one in every run, all of them with `make attacks`.
KILLS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))]


@pytest.fixture(scope="module")
def unkilled(data, small, tmp_path_factory):
    """The same studies without kills."""

    @functools.cache
    def folder_of(important):
        folder = tmp_path_factory.mktemp(important)
        runner.run(longer(small, important), folder, LocalExecutor("cpu", workers=1), data=data)
        return folder

    return folder_of


def longer(small, important):
    return small.with_(important=important, training=small.training.with_(epochs=12))


@pytest.mark.parametrize("important", ["worst", pytest.param("column", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", KILLS)
def test_a_study_with_killed_workers_is_the_same_study(
    tally, pool, started, data, small, tmp_path, unkilled, important, seed
):
    kill, killed = killing(started, 2, seed)
    executor = LocalExecutor("cpu", pool, workers=2)
    result = runner.run(longer(small, important), tmp_path, executor, data=data, on_progress=kill)
    assert killed
    assert (result.finished, result.failed) == (True, 0)
    assert columns_of(tmp_path) == columns_of(unkilled(important))
    assert_same_table(tmp_path, unkilled(important))
    tally(f"study, worker killed, class {'worst' if important == 'worst' else 'named'}", "the same table")


@pytest.fixture(scope="module")
def alone(rows, tmp_path_factory):
    """The same fit without kills."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "workers", 1)
        patch.setattr(handover, "write_page", lambda folder: folder)
        patch.setattr("camri.export.onnx_file.is_installed", lambda: False)
        return camri.fit(rows, "storm", tmp_path_factory.mktemp("fit") / "alone", **FIT)


@pytest.mark.parametrize("seed", KILLS)
def test_a_fit_with_killed_workers_is_the_same_fit(
    tally, pool, started, monkeypatch, rows, without_files, alone, tmp_path, seed
):
    monkeypatch.setattr(trainer.Trainer, "workers", 2)
    monkeypatch.setattr("camri.fitting.job.Pool", lambda: contextlib.nullcontext(pool))
    kill, killed = killing(started, 2, seed)
    fitted = camri.fit(rows, "storm", tmp_path / "killed", on_progress=kill, **FIT)
    assert killed
    assert facts(fitted) == facts(alone)
    assert weights_of(fitted) == weights_of(alone)
    tally("fit, worker killed", "the same weights")
