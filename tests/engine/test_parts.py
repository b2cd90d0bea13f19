"""The engine's parts: schedules, specs, evaluation, checkpoints, packs."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from camri import augment
from camri.data import DataSet, Split, dataset
from camri.engine import FAST, PAPER, Hooks, Training, Trial, replica, spec
from camri.engine.loop import optimizer, rate_factors
from camri.engine.outcome import Record, Tracker
from camri.engine.replica import Job, angles, draw_epoch, evaluate, in_packs, judged, prepare, settle_statistics
from camri.engine.spec import generator, identity
from camri.errors import InputError
from camri.heads import CosineHead, LinearHead
from camri.methods import setting
from camri.models import MLP, Classifier
from tests.engine.stand_in import gpu_engine


def test_the_papers_rate_is_constant_and_the_fast_one_is_held_then_falls_to_zero():
    assert spec.learning_rates(PAPER, 1000).tolist() == pytest.approx([1e-3] * 1000)
    rates = spec.learning_rates(FAST, 1000)
    assert rates[:501].tolist() == pytest.approx([1e-3] * 501)
    assert rates[750].item() == pytest.approx(0.5e-3)
    assert rates[999].item() == pytest.approx(1e-3 * 1 / 500)


def test_the_papers_settings():
    assert (PAPER.epochs, PAPER.batch_size, PAPER.optimizer, PAPER.learning_rate) == (300, 64, "adam", 1e-3)
    assert (PAPER.ramp, PAPER.average, PAPER.flip, PAPER.weight_decay) == ((0.0, 0.0), 0.0, False, 0.0)
    assert PAPER.beyond_pi == "paper"


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("adam", torch.optim.Adam, {"eps": 1e-7}),
        ("adamw", torch.optim.AdamW, {"eps": 1e-7}),
        ("sgd", torch.optim.SGD, {"momentum": 0.8}),
    ],
)
def test_optimisers_are_pytorchs_and_decay_the_trunks_matrices_alone(name, kind, told):
    model = Classifier(MLP(4, num_features=2), CosineHead(2, 3))
    made = optimizer(model, Training(optimizer=name, learning_rate=0.02, momentum=0.8, weight_decay=0.1))
    assert type(made) is kind
    names = {id(p): name for name, p in model.named_parameters()}
    trunk = {name for name, p in model.trunk.named_parameters(prefix="trunk") if p.dim() > 1}
    some, rest = ({names[id(p)] for p in group["params"]} for group in made.param_groups)
    assert (some, rest) == (trunk, set(names.values()) - trunk)
    assert [group["weight_decay"] for group in made.param_groups] == [0.1, 0.0]
    assert all(group["lr"] == 0.02 and told.items() <= group.items() for group in made.param_groups)


def test_average_decays_grow_to_the_asked_one():
    decays = spec.average_decays(Training(average=0.99), 2000)
    assert decays[0].item() == pytest.approx(0.1)
    assert decays[10].item() == pytest.approx(11 / 20)
    assert decays[-1].item() == pytest.approx(0.99)


def test_steps_leave_the_last_part_of_a_batch_out_and_a_small_set_is_one_batch():
    assert spec.steps_per_epoch(Training(batch_size=64), 200) == 3
    assert spec.steps_per_epoch(Training(batch_size=64), 50) == 1
    assert spec.batch_size(Training(batch_size=64), 50) == 50


def test_keys_are_the_same_for_ever_and_differ_where_training_differs():
    """Stores and checkpoints on disk hold these."""
    assert FAST.key == "28c3e6f7166520d0"
    assert Trial(setting("camri", 3, m=math.pi / 16, s=16), 7).key == "2f00906babdc2f89"
    assert identity(Trial(setting("ce"), 0), FAST, "data") == "7f579844d4a5e2dfc0b36175c2bc6218"
    assert len({t.key for t in (FAST, PAPER, FAST.with_(epochs=19), FAST.with_(flip=True))}) == 4
    assert Trial(setting("arcface", m=0.0, s=8), 0).key == Trial(setting("camri", 3, m=0.0, s=8), 0).key
    assert Trial(setting("ce"), 0).key != Trial(setting("ce"), 1).key


def test_a_training_survives_json():
    training = Training(model="mlp", model_options=(("hidden", (32, 16)),), ramp=(0.1, 0.2))
    assert Training.from_json(json.loads(json.dumps(training.to_json()))) == training


def test_generators_differ_by_purpose_seed_and_epoch_and_repeat():
    def first(*what):
        return torch.rand(1, generator=generator(*what)).item()

    values = [first(*what) for what in [(0, "order", 0), (0, "order", 1), (1, "order", 0), (0, "flip", 0)]]
    assert len(set(values)) == 4
    assert first(0, "order", 0) == values[0]


def test_angles_are_those_of_float64_down_to_tiny_ones():
    drawn = torch.Generator().manual_seed(0)
    u = torch.randn(500, 64, generator=drawn)
    v = u + torch.logspace(-5, 1, 500)[:, None] * torch.randn(500, 64, generator=drawn)
    u64, v64 = nn.functional.normalize(u.double()), nn.functional.normalize(v.double())
    want = 2 * torch.asin(((u64 - v64).norm(dim=1) / 2).clamp(max=1))
    torch.testing.assert_close(angles(u, v).double(), want, rtol=2e-2, atol=1e-7)
    wide = want > 0.01
    torch.testing.assert_close(angles(u, v).double()[wide], want[wide], rtol=1e-5, atol=1e-6)
    assert angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 0.0]])).item() == pytest.approx(math.pi)


@pytest.mark.parametrize("kind", [CosineHead, LinearHead])
def test_evaluation_counts_and_measures_what_a_float64_computation_does(kind):
    drawn = torch.Generator().manual_seed(1)
    features, labels = torch.randn(101, 6, generator=drawn), torch.arange(101) % 3
    head = kind(6, 4, generator=drawn)  # class 3 has no rows
    result = evaluate(
        lambda rows: rows, head, lambda outputs: 8 * outputs, Split(features, labels, None), batch_size=10
    )
    w = head.weight.detach().double()
    unit = nn.functional.normalize
    outputs = (
        unit(features.double()) @ unit(w).T if kind is CosineHead else features.double() @ w.T
    )  # the bias is zero at first
    np.testing.assert_allclose(result.logits, 8 * outputs.numpy(), atol=1e-5)
    predicted = outputs.argmax(dim=1)
    for true in range(4):
        for guess in range(4):
            assert result.confusion[true, guess] == ((labels == true) & (predicted == guess)).sum()
    theta = torch.acos((unit(features.double()) * unit(w)[labels]).sum(dim=1))
    for index in range(3):
        assert result.angle_mean[index] == pytest.approx(theta[labels == index].mean().item(), abs=1e-6)
        assert result.angle_sd[index] == pytest.approx(theta[labels == index].std(correction=0).item(), abs=1e-6)
    assert np.isnan(result.angle_mean[3])


@pytest.mark.parametrize(
    ("num_rows", "num_judged"), [(10_000, 10_000), (10_001, 5001), (20_000, 10_000), (20_001, 6667)]
)
def test_of_a_large_train_split_ten_thousand_rows_at_most_are_judged(num_rows, num_judged):
    split = Split(torch.arange(num_rows)[:, None], torch.arange(num_rows), None)
    found = judged({"train": split, "test": split}, "train")
    assert len(found) == num_judged
    assert found.inputs[:, 0].equal(found.labels)
    assert len(judged({"train": split, "test": split}, "test")) == num_rows


def test_rows_are_mirrored_and_moved_as_the_trials_own_seed_draws(data, trials):
    job = Job(Training(model="small", batch_size=32, flip=True, translate_px=2), data)
    trial = trials[2]
    epoch = draw_epoch(trial, job, 4)
    assert {name: draws.shape for name, draws in epoch.items()} == {
        "order": (6, 32),
        "mirrored": (6, 32),
        "shifts": (6, 32, 2),
    }
    order = dataset.epoch_order(200, generator(trial.seed, "order", 4), "cpu")
    flips = augment.draw_flips(192, generator(trial.seed, "flip", 4), "cpu")
    dx, dy = augment.draw_shifts(192, 2, generator(trial.seed, "translate", 4), "cpu")
    assert epoch["order"].flatten().equal(order[:192])
    for step in (0, 5):
        here = {name: draws[step] for name, draws in epoch.items()}
        x = prepare(data.splits["train"].inputs[here["order"]], torch.float32, here)
        for place in range(32):
            at = 32 * step + place
            image = data.splits["train"].inputs[order[at], :, :, 0].float() / 255
            image = image.flip(1) if flips[at] else image
            moved = torch.zeros(12, 12)  # two pixels around it
            moved[2 + dy[at] : 10 + dy[at], 2 + dx[at] : 10 + dx[at]] = image
            assert x[place, 0].equal(moved[2:10, 2:10])


def test_what_is_not_asked_for_is_not_drawn(data, trials):
    plain = draw_epoch(trials[0], Job(Training(model="small", flip=False), data), 0)
    assert plain.keys() == {"order"}
    assert plain["order"].shape == (3, 64)
    moved = draw_epoch(trials[0], Job(Training(model="small", flip=False, translate_px=1), data), 0)
    assert moved.keys() == {"order", "shifts"}
    assert set(moved["shifts"].unique().tolist()) == {-1, 0, 1}
    rows = data.splits["train"].inputs[:2]
    assert prepare(rows, torch.bfloat16).dtype == torch.bfloat16
    assert prepare(rows, torch.float32).equal(rows.permute(0, 3, 1, 2) / 255)


def test_a_job_refuses_what_it_cannot_train_on(data):
    def features(num_rows, **training):
        split = Split(torch.zeros(num_rows, 4), torch.arange(num_rows) % 2, None)
        Job(Training(model="mlp", **training), DataSet("few", ("a", "b"), {"train": split}, "", {})).check()

    features(2)
    with pytest.raises(InputError, match="few has 1 rows to train on; batch norm needs at least 2"):
        features(1)
    for augmented in ({"flip": True}, {"translate_px": 1}, {"trivial_augment": True}):
        with pytest.raises(InputError, match="for images, but the data set holds"):
            features(8, **{"flip": False, **augmented})
    with pytest.raises(InputError, match="made has no train split; its splits: val, test"):
        Job(FAST, dataclasses.replace(data, splits={name: data.splits[name] for name in ("val", "test")})).check()
    for important in ((-1,), (3,)):
        with pytest.raises(InputError, match=f"important class {important[0]} is not a class; made has 3"):
            Job(FAST, data, important).check()
    Job(FAST, data, (0, 2)).check()


def test_a_job_keeps_what_it_is_given_and_checkpoints_by_identity(data, trials, tmp_path):
    job = Job(FAST, data)
    assert (job.keep_logits, job.keep_weights, job.checkpoint_of(trials[0])) == (False, False, None)
    path = Job(FAST, data, checkpoints=tmp_path).checkpoint_of(trials[0])
    assert path == tmp_path / f"{identity(trials[0], FAST, 'made-fingerprint')}.safetensors"
    assert (job.steps_per_epoch, job.num_steps, job.batch_size) == (3, 3 * FAST.epochs, 64)


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "trial.safetensors"
    replica.write_checkpoint(path, {"a": torch.arange(3), "b": torch.tensor(0.5)}, {"epoch": 2, "engine": "cpu"})
    tensors, notes = replica.read_checkpoint(path, engine="cpu")
    assert tensors["a"].tolist() == [0, 1, 2]
    assert tensors["b"].item() == 0.5
    assert notes["epoch"] == 2
    assert replica.read_checkpoint(path, engine="cuda") is None
    assert replica.read_checkpoint(tmp_path / "none", engine="cpu") is None
    with pytest.raises(TypeError):
        replica.write_checkpoint(path, {"a": torch.zeros(1)}, {"bad": object()})
    assert replica.read_checkpoint(path, engine="cpu")[1]["epoch"] == 2  # the old one is still there
    assert [p.name for p in path.parent.iterdir()] == ["trial.safetensors"]


def test_a_full_disk_is_a_warning_and_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "trial.safetensors"
    assert replica.write_checkpoint(path, {"a": torch.zeros(1)}, {"epoch": 1, "engine": "cpu"})

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert not replica.write_checkpoint(path, {"a": torch.ones(1)}, {"epoch": 2, "engine": "cpu"})
    assert replica.read_checkpoint(path, engine="cpu")[1]["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["trial.safetensors"]


def test_a_pack_that_does_not_fit_is_halved_and_says_so():
    tried, trained = [], []

    def train_pack(pack):
        tried.append(list(pack))
        if len(pack) > 2:
            raise torch.cuda.OutOfMemoryError("full")
        trained.extend(pack)
        return True

    with pytest.warns(UserWarning, match="5 models side by side do not fit"):
        assert in_packs(list(range(7)), 5, train_pack)
    assert trained == list(range(7))
    assert tried == [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1], [2], [3, 4], [5, 6]]


class Clock:
    """Seconds as the test has them, and a tracker's last words."""

    def __init__(self, monkeypatch, data, total, side_by_side):
        self.now, self.told = 100.0, []
        monkeypatch.setattr("camri.engine.outcome.time.perf_counter", lambda: self.now)
        self.job = Job(Training(epochs=10, batch_size=50), data)  # 200 rows an epoch
        self.tracker = Tracker(self.job, total, Hooks(on_progress=self.told.append), side_by_side, lambda: False)

    def hear(self, second, **epochs):
        """(images/s, seconds left) told at that second, when trials `t0`, `t1` … had ended so many epochs."""
        self.now = 100.0 + second
        records = {int(name[1:]): Record(TRIAL, self.job, {}) for name in epochs}
        for record, epoch in zip(records.values(), epochs.values(), strict=True):
            record.epoch = epoch
        self.tracker.epochs(records)
        return self.told[-1].images_per_s, self.told[-1].left_s


TRIAL = Trial(setting("ce"), 0)


def test_of_a_pack_the_compiling_does_not_count_and_all_its_trials_do(monkeypatch, data):
    clock = Clock(monkeypatch, data, total=8, side_by_side=4)
    assert clock.hear(60, t0=1, t1=1, t2=1, t3=1) == (0.0, math.inf)  # a minute until here, two seconds of it trained
    assert clock.hear(62, t0=2, t1=2, t2=2, t3=2) == (400.0, 36.0)
    assert clock.hear(64, t0=3, t1=3, t2=3, t3=3) == (400.0, 34.0)


def test_of_processes_the_start_does_not_count_and_every_epoch_after_it_does(monkeypatch, data):
    clock = Clock(monkeypatch, data, total=4, side_by_side=2)
    assert clock.hear(5, t0=1) == (0.0, math.inf)
    assert clock.hear(6, t1=1) == (0.0, math.inf)  # trained before the clock began, for the most part
    assert clock.hear(9, t0=2) == (0.0, math.inf)
    assert clock.hear(10, t1=2) == (pytest.approx(2 * 200 / 5), pytest.approx(36 * 5 / 2))
    assert clock.hear(13, t0=3) == (pytest.approx(3 * 200 / 8), pytest.approx(35 * 8 / 3))


def test_what_was_trained_in_an_earlier_call_or_not_at_all_is_no_speed(monkeypatch, data):
    clock = Clock(monkeypatch, data, total=4, side_by_side=1)
    assert clock.hear(5, t0=7) == (0.0, math.inf)
    assert clock.hear(7, t0=8) == (100.0, 64.0)
    broken = Record(TRIAL, clock.job, {}).failed("before the end of its first epoch")
    clock.tracker.end(0, dataclasses.replace(broken, epochs_done=8))
    clock.tracker.end(1, broken)
    assert clock.hear(9, t2=6) == (100.0, pytest.approx(14 * 2.0))
    assert (clock.told[-1].done, clock.told[-1].failed, clock.told[-1].part) == (0, 2, (10 + 10 + 6) / 40)


def test_one_model_that_does_not_fit_is_an_error_and_a_stop_stops():
    def full(pack):
        raise torch.cuda.OutOfMemoryError("full")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        in_packs([0], 5, full)
    tries = iter([True, False])  # a second try is worth it, a third is not
    with pytest.warns(UserWarning, match="trying gradient checkpointing"), pytest.raises(torch.cuda.OutOfMemoryError):
        in_packs([0], 5, full, lambda: next(tries))
    assert list(tries) == []
    seen = []
    assert not in_packs([0, 1, 2], 1, lambda pack: seen.append(pack) is None and len(seen) < 2)
    assert seen == [[0], [1]]


@pytest.fixture
def PaddedConv2d(monkeypatch):
    return gpu_engine(monkeypatch).replica.PaddedConv2d


@pytest.mark.parametrize(("channels", "kernel", "padding"), [(3, 3, 1), (1, 5, 0), (2, (3, 2), (0, 1)), (3, 3, "same")])
def test_a_padded_convolution_is_the_convolution(PaddedConv2d, channels, kernel, padding):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 7, kernel, padding=padding, dtype=torch.float64)
    x = torch.randn(4, channels, 9, 8, dtype=torch.float64)
    wanted = layer(x)
    upstream = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, list(layer.parameters()), upstream)
    assert PaddedConv2d.fits(layer)
    layer.__class__ = PaddedConv2d
    torch.testing.assert_close(layer(x), wanted)
    for mine, its in zip(torch.autograd.grad(layer(x), list(layer.parameters()), upstream), gradients, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 2),
        nn.Conv2d(64, 64, 3),
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_other_layers_are_left_as_they_are(PaddedConv2d, layer):
    assert not PaddedConv2d.fits(layer)


def test_a_checkpoint_is_consistent_though_another_replaces_it(tmp_path, monkeypatch):
    """A killed run's worker writes its last checkpoint after the next run has begun to read."""
    path = tmp_path / "trial.safetensors"
    replica.write_checkpoint(path, {"a": torch.tensor([4.0])}, {"engine": "cpu", "epoch": 4})
    real = replica.safe_open

    def open_then_replace(*arguments, **options):
        opened = real(*arguments, **options)
        replica.write_checkpoint(path, {"a": torch.tensor([5.0])}, {"engine": "cpu", "epoch": 5})
        return opened

    monkeypatch.setattr(replica, "safe_open", open_then_replace)
    tensors, notes = replica.read_checkpoint(path, "cpu")
    assert (tensors["a"].item(), notes["epoch"]) == (4.0, 4)


def test_the_step_of_a_checkpoint_is_read_without_its_tensors(tmp_path):
    path = tmp_path / "trial.safetensors"
    replica.write_checkpoint(path, {"a": torch.ones(2)}, {"engine": "cuda", "epoch": 4})
    assert replica.read_notes(path, "cuda") == {"engine": "cuda", "epoch": 4}
    assert replica.read_notes(path, "cpu") is None
    assert replica.read_notes(tmp_path / "none", "cuda") is None


@pytest.mark.parametrize(
    ("field", "fit", "wrong"),
    [
        ("epochs", [1], [0, 2.5, True]),
        ("batch_size", [1], [0, 2.5, True]),
        ("translate_px", [0], [-1, 0.5, True]),
        ("learning_rate", [1e-9], [0.0, 100.0, math.nan]),
        ("momentum", [0.0], [-0.1, 1.0]),
        ("label_smoothing", [0.0], [-0.1, 1.0]),
        ("average", [0.0], [-0.1, 1.0]),
        ("weight_decay", [0.0], [-1e-9, 100.0, math.nan]),
        ("hold", [0.0, 1.0], [-0.1, 1.1]),
        ("ramp", [(0.0, 0.0), (1.0, 1.0)], [(-0.1, 0.5), (0.5, 0.2), (0.5, 1.1)]),
    ],
)
def test_a_training_takes_what_makes_sense_and_refuses_the_rest_by_name(field, fit, wrong):
    for value in fit:
        assert getattr(Training(**{field: value}), field) == value
    for value in wrong:
        with pytest.raises(InputError, match=re.escape(f"{field}={value!r} is not allowed; give ")):
            Training(**{field: value})


def test_the_time_of_a_device_is_shared_by_its_replicas(monkeypatch):
    clock = iter([10.0, 16.0, 19.0])
    monkeypatch.setattr("camri.engine.outcome.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    record = Record(Trial(setting("ce"), 0), None, {})
    record.tick(replicas=3)
    record.tick()
    assert (record.wall_s, record.device_s) == (9.0, 5.0)


def test_the_rate_falls_with_the_distance_from_the_head():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Linear(2, 2, bias=False)
            self.stages = nn.ModuleList([nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2, bias=False)] * 1)})])
            self.layer = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, bias=False)])
            self.norm = nn.LayerNorm(2, bias=False)

    model = Classifier(Net(), nn.Linear(2, 3, bias=False))
    factors = rate_factors(model, Training(trunk_rate=0.1, layer_decay=0.5))
    found = [factors[id(p)] for p in model.parameters()]
    assert found == pytest.approx([0.0125, 0.025, 0.05, 0.05, 0.1, 0.1, 1.0])
    groups = optimizer(model, Training(trunk_rate=0.1, layer_decay=0.5, weight_decay=0.1)).param_groups
    assert sum(len(group["params"]) for group in groups) == len(found)
    assert {(group["weight_decay"], group["factor"]) for group in groups} >= {(0.1, 0.0125), (0.0, 1.0), (0.0, 0.1)}


def test_crops_are_within_the_image_and_of_the_asked_size():
    boxes = augment.draw_boxes(2000, 0.25, torch.Generator().manual_seed(0), "cpu")
    top, left, height, width = boxes.T
    assert float(boxes.min()) >= 0
    assert float((top + height).max()) <= 1 + 1e-6
    assert float((left + width).max()) <= 1 + 1e-6
    area = height * width
    assert 0.2 < float(area.min()) < 0.27 < 0.55 < float(area.mean()) < 0.65
    images = torch.rand(3, 2, 6, 8)
    torch.testing.assert_close(augment.crop(images, torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 3)), images)
    half = augment.crop(images, torch.tensor([[0.5, 0.0, 0.5, 1.0]] * 3))
    assert torch.allclose(half[:, :, -1], images[:, :, -1])


def test_fields_that_came_later_do_not_change_stored_hashes():
    assert "cosine" not in Training().to_json()
    changed = Training(cosine=True, warmup=0.1, trunk_rate=0.5, layer_decay=0.7, crop=0.3, mixup=0.2)
    changed = changed.with_(trivial_augment=True)
    assert Training.from_json(changed.to_json()) == changed
    assert changed.key != Training().key
    for field, value in (("warmup", 0.6), ("trunk_rate", 0), ("layer_decay", 1.1), ("crop", -1), ("mixup", -1)):
        with pytest.raises(InputError, match=f"{field}={value}"):
            Training(**{field: value})


@pytest.mark.parametrize(("num_steps", "momentum"), [(1, 1.0), (40, 0.292), (131, 0.1), (10_000, 0.1)])
def test_momentum_of_batch_norms_is_raised_for_short_trainings(num_steps, momentum):
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None))
    settle_statistics(model, num_steps)
    assert model[0].momentum == pytest.approx(momentum, abs=6e-4)
    assert (1 - model[0].momentum) ** num_steps <= 1.1e-6
    assert model[2].momentum is None  # a plain mean needs no help
