"""The engine on the CPU, to the bit: neighbours, order, pauses, failures."""

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from camri.data import dataset
from camri.engine import Stopped, Training, Trial, cpu, train
from camri.engine.loop import ADAM_EPS
from camri.engine.replica import make
from camri.engine.spec import generator
from camri.engine.training import stop_on_signals
from camri.errors import InputError
from camri.heads import CosineHead, LinearHead
from camri.methods import setting
from camri.models import Classifier, build
from tests.engine.conftest import same

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


@pytest.fixture(scope="module")
def crowd(trials, data, training):
    return train(trials, data, "cpu", training=training, workers=1, **KEEP)


def test_a_trial_alone_ends_as_in_company(trials, data, training, crowd):
    for place in (1, 4):
        (alone,) = train([trials[place]], data, "cpu", training=training, workers=1, **KEEP)
        assert same(alone, crowd[place])


def test_the_place_among_others_does_not_matter(trials, data, training, crowd):
    for outcome, before in zip(
        train(trials[::-1], data, "cpu", training=training, workers=1, **KEEP), crowd[::-1], strict=True
    ):
        assert same(outcome, before)


def test_worker_processes_end_with_the_same_bits(trials, data, training, crowd):
    heard = []
    outcomes = train(trials, data, "cpu", training=training, workers=2, on_outcome=heard.append, **KEEP)
    for outcome, before in zip(outcomes, crowd, strict=True):
        assert same(outcome, before)
    assert sorted(o.trial.key for o in heard) == sorted(t.key for t in trials)


def test_there_are_no_more_processes_than_cores_that_may_be_used(monkeypatch, trials, data, training):
    """A job scheduler or `taskset` gives a program some of a machine's many cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    monkeypatch.setattr(cpu, "Pool", lambda *_: pytest.fail("a process for every core of the machine"))
    assert len(train(trials[:2], data, "cpu", training=training)) == 2


def test_a_signal_between_the_handlers_and_the_list_of_listeners_is_not_lost(monkeypatch):
    def install_and_send(number, handler, real=signal.signal):
        before = real(number, handler)
        if number == signal.SIGTERM:
            monkeypatch.undo()  # the handler before, which is put back at the end, must not hear of it
            os.kill(os.getpid(), number)
        return before

    monkeypatch.setattr(signal, "signal", install_and_send)
    with stop_on_signals() as told:
        assert told.is_set()


def test_the_global_generator_and_the_thread_count_are_left_alone(trials, data, training):
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(trials[:1], data, "cpu", training=training, workers=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_mixed_methods_equal_a_plain_loop(trials, data):
    """The loop a user would write, with the engine's seeds: the same weights to the bit."""
    training = Training(
        model="small", model_options=(("width", 4),), epochs=2, batch_size=32, hold=0.5, ramp=(0.0, 0.5)
    )
    outcomes = train(trials, data, "cpu", training=training, workers=1, **KEEP)
    torch.set_num_threads(1)
    inputs, labels = data.splits["train"].inputs, data.splits["train"].labels
    for trial, outcome in zip(trials, outcomes, strict=True):
        drawn = generator(trial.seed, "init")
        trunk = build("small", (1, 8, 8), generator=drawn, width=4)
        head = {"cosine": CosineHead, "linear": LinearHead}[trial.setting.head](64, 3, generator=drawn)
        model = Classifier(trunk, head).train()
        steps = 200 // 32
        for norm in model.modules():
            if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
                norm.momentum = 1 - 1e-6 ** (1 / (2 * steps))  # of the initial statistics a millionth is left
        loss_of = trial.setting.criterion(3, ramp=(0, steps))
        optimise = torch.optim.Adam(model.parameters(), lr=1e-3, eps=ADAM_EPS, fused=True)
        for step in range(2 * steps):
            epoch, place = divmod(step, steps)
            rows = dataset.epoch_order(200, generator(trial.seed, "order", epoch), "cpu")[place * 32 : place * 32 + 32]
            x = inputs[rows].permute(0, 3, 1, 2).float() / 255
            for group in optimise.param_groups:
                group["lr"] = np.float32(min(1.0, (2 * steps - step) / steps) * 1e-3).item()
            loss = loss_of(model(x), labels[rows])
            optimise.zero_grad()
            loss.backward()
            optimise.step()
        for name, tensor in model.state_dict().items():
            assert (tensor.numpy() == outcome.weights[name]).all(), (trial.setting.method, name)


def stop_after(num_calls):
    calls = iter(range(num_calls))
    return lambda: next(calls, None) is None


@pytest.mark.parametrize("num_steps", [1, 5, 6, 7, 13])
def test_a_stopped_trial_resumes_to_the_same_bits(tmp_path, trials, data, training, crowd, num_steps):
    """Stopped inside and at the end of an epoch, with averaging, dropout, augmentation and a ramp going on."""
    two = trials[1:3]
    with pytest.raises(Stopped) as stopped:
        train(
            two,
            data,
            "cpu",
            training=training,
            workers=1,
            checkpoints=tmp_path,
            should_stop=stop_after(num_steps),
            **KEEP,
        )
    assert stopped.value.outcomes == []
    assert len(list(tmp_path.iterdir())) == 1
    outcomes = train(two, data, "cpu", training=training, workers=1, checkpoints=tmp_path, **KEEP)
    assert same(outcomes[0], crowd[1])
    assert same(outcomes[1], crowd[2])
    assert list(tmp_path.iterdir()) == []


def test_workers_stop_and_resume(tmp_path, trials, data, training, crowd):
    heard = []
    with pytest.raises(Stopped) as stopped:
        train(trials, data, "cpu", training=training, workers=2, checkpoints=tmp_path, on_outcome=heard.append,
              should_stop=lambda: len(heard) >= 2, **KEEP)  # fmt: skip
    assert 2 <= len(stopped.value.outcomes) < 5
    for outcome, before in zip(
        train(trials, data, "cpu", training=training, workers=2, checkpoints=tmp_path, **KEEP), crowd, strict=True
    ):
        assert same(outcome, before)


def test_a_trial_that_diverges_fails_alone(trials, data, training, crowd):
    broken = Trial(setting("wce", 1, w=1e38), 0)
    outcomes = train([trials[0], broken, trials[1]], data, "cpu", training=training, workers=1, **KEEP)
    assert same(outcomes[0], crowd[0])
    assert same(outcomes[2], crowd[1])
    assert outcomes[1].status == "failed"
    assert "the loss became inf in epoch 1, step 1 of 6" in outcomes[1].error
    assert outcomes[1].confusion == {}


def test_a_late_divergence_keeps_what_was_reached(monkeypatch, trials, data, training):
    def make_and_break(trial, job):
        model, criterion = make(trial, job)
        criterion.register_forward_hook(lambda module, args, loss: loss * math.nan if module.step == 9 else loss)
        return model, criterion

    monkeypatch.setattr("camri.engine.loop.make", make_and_break)
    (outcome,) = train(trials[:1], data, "cpu", training=training, workers=1)
    assert outcome.status == "failed"
    assert "nan in epoch 2, step 3 of 6; last finite mean loss" in outcome.error
    assert outcome.epochs_done == 1
    assert outcome.curves["train_loss"].shape == (1,)


def test_a_trial_that_breaks_leaves_its_traceback(monkeypatch, trials, data, training, crowd):
    def make_or_break(trial, job):
        if trial.seed == 1:
            raise RuntimeError("a bug")
        return make(trial, job)

    monkeypatch.setattr("camri.engine.loop.make", make_or_break)
    outcomes = train(trials[1:3], data, "cpu", training=training, workers=1, **KEEP)
    assert same(outcomes[0], crowd[1])
    assert outcomes[1].status == "failed"
    assert "RuntimeError: a bug" in outcomes[1].error


SCRIPT = """
import sys
from tests.engine.conftest import made_images
from camri.data import DataSet
from camri.engine import Stopped, Training, Trial, train
from camri.methods import setting
data = DataSet("made", ("row", "column", "corner"), {"train": made_images(200, 1), "val": made_images(60, 2)}, "f", {})
trials = [Trial(setting("ce"), 0), Trial(setting("camri", 1, m=0.3, s=8), 0)]
training = Training(model="small", epochs=int(sys.argv[2]), batch_size=32)
try:
    train(trials, data, "cpu", training=training, workers=int(sys.argv[3]), checkpoints=sys.argv[1],
          on_progress=lambda p: print(p.running, flush=True))
except Stopped:
    sys.exit(75)
"""  # deliberately without a __main__ guard: users' scripts have none


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_signal_checkpoints_and_stops(tmp_path, number, workers):
    folder, script = tmp_path / "checkpoints", tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(script), str(folder), "100000", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            while (line := process.stdout.readline()) != f"{workers}\n":  # a second worker may take long to start
                assert line, "it ended by itself"
            process.send_signal(number)
            process.communicate(timeout=120)  # it does not wait for 100,000 epochs
        finally:
            process.kill()
        assert process.returncode == 75
    assert len(list(folder.glob("*.safetensors"))) == workers
    assert not list(folder.glob("*.part"))


def test_a_full_temporary_folder_is_named_with_a_way_around_it(trials, data, training, tmp_path, monkeypatch):
    def full(path, array):  # as numpy says it
        path.write_bytes(b"0")
        raise OSError("881 requested and 496 written")

    monkeypatch.setattr("camri.engine.cpu.np.save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match=rf"{tmp_path} .*881 requested.*, or set TMPDIR to"):
        train(trials[:2], data, "cpu", training=training, workers=2)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_epochs_and_knows_the_end(trials, data, training):
    told = []
    train(trials[:2], data, "cpu", training=training, important=[1], workers=1, on_progress=told.append)
    last = told[-1]
    assert (last.done, last.running, last.total, last.part, last.left_s) == (2, 0, 2, 1.0, 0.0)
    assert told[0].part == pytest.approx(1 / 6)
    assert 0 <= told[0].accuracy <= 1
    assert 0 <= told[0].recall <= 1


def test_an_outcome_says_how_it_was_made(crowd, data, training):
    outcome = crowd[1]
    assert outcome.epochs_done == 3
    assert outcome.fingerprint == data.fingerprint
    assert outcome.training == training
    assert outcome.environment["torch"] == torch.__version__
    assert outcome.environment["device"] == "cpu"
    assert 0 < outcome.device_s <= outcome.wall_s * 1.001
    assert outcome.curves["train_loss"].shape == (3,)
    assert outcome.curves["val_hits"].shape == (3, 3)
    # The last point of the curve is the outcome's own confusion.
    assert outcome.curves["val_hits"][-1].tolist() == outcome.confusion["val"].diagonal().tolist()
    assert outcome.recall(1) == outcome.confusion["test"][1, 1] / outcome.confusion["test"][1].sum()


def test_it_learns(data):
    training = Training(model="small", epochs=30, batch_size=32)
    outcomes = train(
        [Trial(setting("ce"), 0), Trial(setting("camri", 1, m=0.3, s=8), 0)], data, "cpu", training=training, workers=1
    )
    assert all(outcome.accuracy() > 0.9 for outcome in outcomes)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: train([], d, "gpu"), "device='gpu'"),
        (lambda d: train([], d, "mps"), "cannot train here"),
        (
            lambda d: train([Trial(setting("ce"), 0)], d, "cpu", training=Training(model="small"), important=[3]),
            "important class 3",
        ),
        (
            lambda d: train([Trial(setting("camri", 5, m=0.3, s=8), 0)], d, "cpu", training=Training(model="small")),
            "important class 5",
        ),
        (
            lambda d: train([Trial(setting("camri", 1, m=9.0, s=8), 0)], d, "cpu", training=Training(model="small")),
            "0 to π",
        ),
        (
            lambda d: train(
                [Trial(setting("ce"), 0)], d, "cpu", training=Training(model="small", model_options=(("depth", 3),))
            ),
            "no option 'depth'",
        ),
        (
            lambda d: train([], d, "cpu", training=Training(model="small"), important=[0, 1, 2]),
            "all 3 classes are important",
        ),
        (lambda d: Training(model="pape"), "did you mean 'paper'"),
        (lambda d: Training(optimizer="lion"), "optimizer='lion'"),
        (lambda d: Training().with_(epoch=3), "did you mean 'epochs'"),
    ],
)
def test_wrong_input_is_refused(data, call, words):
    with pytest.raises(InputError, match=words):
        call(data)


def test_angles_of_the_training_images_are_kept_too(data, training, trials):
    from camri.data import dataset
    from camri.engine.replica import Job, angles, make

    (outcome,) = train([trials[1]], data, "cpu", training=training, keep_weights=True, workers=1)
    model, _ = make(trials[1], Job(training, data))
    model.load_state_dict({name: torch.as_tensor(value) for name, value in outcome.weights.items()})
    split = data.splits["train"]
    with torch.no_grad():
        features = model.eval().trunk(dataset.to_float(split.inputs))
        turned = angles(features, model.head.weight[split.labels]).double()
    wanted = [turned[split.labels == index].std(correction=0).item() for index in range(3)]
    assert outcome.angle_sd["train"] == pytest.approx(wanted, rel=1e-5)
    assert outcome.angle_sd["train"].tolist() != outcome.angle_sd["test"].tolist()
    assert set(outcome.confusion) == {"val", "test"}
