"""The GPU's engine, run by a stand-in on the CPU in float32: what it trains is what the plain loop trains."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import camri.engine
from camri.data import DataSet, Split
from camri.engine import Hooks, Job, Training, Trial, train
from camri.engine.outcome import Tracker
from camri.methods import setting
from camri.models import MODELS, Trunk
from tests.engine.conftest import same
from tests.engine.stand_in import MODULES as MODULES_ON_GPU
from tests.engine.stand_in import gpu_engine

KEEP = {"important": (1,), "keep_logits": True, "keep_weights": True}
# A bias before a batch norm has no gradient but rounding, of which Adam makes full steps; the norm's mean follows it.
NOISE = ("trunk.dense.bias", "trunk.norm.running_mean")


@pytest.fixture
def gpu(monkeypatch):
    engine = gpu_engine(monkeypatch)
    monkeypatch.setattr(engine.replica, "LOW", torch.float32)
    monkeypatch.setattr(engine.cuda, "compiled", lambda signature: engine.replica.run_trunk)
    return engine


def test_the_stand_in_cleans_up():
    def found():
        names = [f"camri.engine.{name}" for name in MODULES_ON_GPU]
        return [sys.modules.get(name) for name in names], [vars(camri.engine).get(name) for name in MODULES_ON_GPU]

    before = found()
    with pytest.MonkeyPatch.context() as patch:
        gpu_engine(patch)
        assert found() != before
    assert found() == before


def run_on(engine, trials, job, on_outcome=lambda outcome: None, should_stop=lambda: False):
    """The outcomes by place, in the order in which they came."""
    ended = {}

    def keep(outcome):
        ended[trials.index(outcome.trial)] = outcome
        on_outcome(outcome)

    tracker = Tracker(job, len(trials), Hooks(keep, should_stop=should_stop), 8, lambda: False)
    engine.cuda.run(trials, job, torch.device("cpu"), tracker)
    return ended


def run(engine, trials, data, training, *, should_stop=lambda: False, **options):
    ended = run_on(engine, trials, Job(training, data, **KEEP, deterministic=True, **options), should_stop=should_stop)
    return [ended[place] for place in sorted(ended)]


def assert_trained_alike(mine, plain, within):
    assert mine.status == plain.status == "done"
    np.testing.assert_allclose(mine.curves["train_loss"], plain.curves["train_loss"], rtol=1e-5)
    assert mine.weights.keys() == {name for name in plain.weights if "num_batches" not in name}
    for name in mine.weights.keys() - NOISE:
        np.testing.assert_allclose(mine.weights[name], plain.weights[name], rtol=0, atol=within, err_msg=name)


@pytest.mark.parametrize("average", [0.9, 0.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_it_trains_what_the_plain_loop_trains(gpu, trials, data, training, optimizer, average):
    training = training.with_(optimizer=optimizer, average=average, weight_decay=0.05, learning_rate=0.003)
    plain = train(trials, data, "cpu", training=training, workers=1, **KEEP)
    for mine, its in zip(run(gpu, trials, data, training), plain, strict=True):
        assert_trained_alike(mine, its, within=2e-6 if optimizer == "sgd" else 2e-4)
        if optimizer == "sgd":
            assert (mine.curves["val_hits"] == its.curves["val_hits"]).all()
            assert (mine.confusion["test"] == its.confusion["test"]).all()


@pytest.mark.parametrize("model", ["small", "linear"])
def test_fine_tuning_trains_what_the_plain_loop_trains(gpu, trials, data, training, model):
    """Warm-up, cosine, a slower trunk, layer decay and augmentation; and a trunk without weights of its own."""
    options = {"optimizer": "adamw", "weight_decay": 0.05, "average": 0.9, "warmup": 0.2, "cosine": True}
    options |= {"trunk_rate": 0.2, "layer_decay": 0.7, "crop": 0.5, "flip": True, "trivial_augment": True, "mixup": 0.4}
    training = training.with_(model=model, model_options=(), **options)
    plain = train(trials[:2], data, "cpu", training=training, workers=1, **KEEP)
    for mine, its in zip(run(gpu, trials[:2], data, training), plain, strict=True):
        assert_trained_alike(mine, its, within=2e-4)


def test_compiled_with_a_backward_pass_that_recomputes_part_of_the_forward_pass(gpu, trials, data, training):
    def compiled(signature):  # torch.compile as it is, but for the C++
        return torch.compile(gpu.replica.run_trunk, fullgraph=True, dynamic=False, backend="aot_eager_decomp_partition")

    gpu.cuda.compiled = compiled
    training = training.with_(optimizer="sgd", epochs=1, trivial_augment=True, mixup=0.4)
    plain = train(trials[:2], data, "cpu", training=training, workers=1, **KEEP)
    for mine, its in zip(run(gpu, trials[:2], data, training), plain, strict=True):
        assert_trained_alike(mine, its, within=2e-6)


def test_stopped_in_an_epoch_and_in_other_company_it_resumes_to_the_same_bits(
    gpu, trials, data, training, tmp_path, monkeypatch
):
    monkeypatch.setattr(gpu.cuda, "RUN_AHEAD", 4)
    calls = iter(range(3))  # it is asked twice an epoch: after the fourth step, and at the end
    whole = run(gpu, trials, data, training)
    ended = run(gpu, trials, data, training, checkpoints=tmp_path, should_stop=lambda: next(calls, None) is None)
    assert (ended, len(list(tmp_path.iterdir()))) == ([], len(trials))
    for mine, before in zip(run(gpu, trials, data, training, checkpoints=tmp_path, pack_size=2), whole, strict=True):
        assert same(mine, before)


def test_a_trial_that_diverges_leaves_its_neighbours_their_bits(gpu, trials, data, training):
    broken = Trial(setting("wce", 1, w=1e38), 0)
    alone = run(gpu, trials[:2], data, training)
    first, failed, last = run(gpu, [trials[0], broken, trials[1]], data, training)
    assert failed.status == "failed"
    assert same(first, alone[0])
    assert same(last, alone[1])


def test_a_pack_that_is_halved_after_a_divergence_resumes_to_the_same_bits(
    gpu, trials, data, training, tmp_path, monkeypatch
):
    """What had failed stays so; tried again it would start at another epoch than its neighbours."""
    broken = Trial(setting("wce", 1, w=1e38), 0)
    alone = run(gpu, trials[:2], data, training)
    packs = []

    class Pack(gpu.cuda.Pack):
        def run(self, num_steps, should_stop):
            packs.append([replica.trial.setting.method for replica in self.replicas])
            if len(packs) == 2:
                raise torch.cuda.OutOfMemoryError("full")
            return super().run(num_steps, should_stop)

    monkeypatch.setattr(gpu.cuda, "Pack", Pack)
    job = Job(training, data, **KEEP, deterministic=True, checkpoints=tmp_path, checkpoint_every_s=0.0)
    with pytest.warns(UserWarning, match="3 models side by side do not fit"):
        ended = run_on(gpu, [broken, *trials[:2]], job)
    assert packs == [["wce", "ce", "camri"], ["ce", "camri"], ["ce"], ["ce"], ["camri"], ["camri"]]
    assert [(place, outcome.status) for place, outcome in ended.items()] == [(0, "failed"), (1, "done"), (2, "done")]
    for mine, before in zip(list(ended.values())[1:], alone, strict=True):
        assert same(mine, before)


def test_ready_made_features_are_not_rounded(gpu, monkeypatch):
    """In bfloat16 a year is a multiple of eight."""
    monkeypatch.setattr(gpu.replica, "LOW", torch.bfloat16)
    drawn = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    years = 2000 + labels[:, None] + 0.1 * torch.randn(60, 2, generator=drawn)
    splits = {name: Split(years, labels, None) for name in ("train", "val", "test")}
    data = DataSet("years", ("a", "b", "c"), splits, "years", {})
    training = Training(model="features", model_options=(("hidden", ()),), epochs=3, batch_size=20, optimizer="sgd")
    trial = Trial(setting("camri", 1, m=0.3, s=8), 0)
    (mine,), (plain,) = run(gpu, [trial], data, training), train([trial], data, "cpu", training=training, **KEEP)
    # Such features are nearly parallel: with two threads the order of a sum makes 0.007, rounded features make 0.3.
    np.testing.assert_allclose(mine.curves["train_loss"], plain.curves["train_loss"], rtol=0.05)


class Tokens(Trunk):
    """What transformers have and our own trunks do not: an embedding of its own, and layer norm."""

    def __init__(self, in_channels, generator=None):
        super().__init__()
        self.num_features = 8
        self.patches = nn.Conv2d(in_channels, 8, 4, 4)
        self.place = nn.Parameter(torch.linspace(-1, 1, 32).view(1, 4, 8))
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        for number, layer in enumerate((self.patches, self.mix)):
            layer.weight.data = torch.sin(torch.arange(layer.weight.numel()) + number).view_as(layer.weight) / 3
            layer.bias.data.zero_()

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return (tokens + self.mix(self.norm(tokens))).mean(1)


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
def test_a_trunk_with_embeddings_and_layer_norms_trains_as_on_the_cpu(gpu, data, monkeypatch, low):
    monkeypatch.setitem(MODELS, "tokens", Tokens)
    monkeypatch.setattr(gpu.replica, "LOW", low)
    trial = Trial(setting("ce"), 0)
    training = Training(model="tokens", epochs=1, batch_size=32, optimizer="sgd", learning_rate=0.01, weight_decay=1.0)
    (mine,), (plain,) = run(gpu, [trial], data, training), train([trial], data, "cpu", training=training, **KEEP)
    within = 1e-6 if low == torch.float32 else 3e-3
    np.testing.assert_allclose(mine.weights["trunk.place"], plain.weights["trunk.place"], rtol=0, atol=within)
    np.testing.assert_allclose(mine.curves["train_loss"], plain.curves["train_loss"], rtol=10 * within)


@pytest.mark.parametrize("resident", [0, 90 * 64])  # none of the splits, or val and no other
def test_streamed_images_give_the_same_bits(gpu, trials, data, training, resident, monkeypatch):
    monkeypatch.setattr("camri.engine.feed.DEPTHS", (3, 4))
    monkeypatch.setattr("camri.engine.feed.PART_BYTES", 500)  # a step is gathered in parts
    monkeypatch.setattr("camri.engine.feed.num_cores", lambda: 3)
    broken = Trial(setting("wce", 1, w=1e38), 3)
    mine, its = (
        run(gpu, [*trials, broken], replace(data, resident=limit), training, pack_size=4) for limit in (resident, None)
    )
    assert all(same(one, other) for one, other in zip(mine[:-1], its[:-1], strict=True))
    assert mine[-1].status == its[-1].status == "failed"


def test_streamed_images_resume_to_the_same_bits(gpu, trials, data, training, tmp_path, monkeypatch):
    monkeypatch.setattr("camri.engine.cuda.RUN_AHEAD", 4)
    streamed = replace(data, resident=0)
    calls = iter(range(2))
    stopped = run(gpu, trials, streamed, training, checkpoints=tmp_path, should_stop=lambda: next(calls, None) is None)
    assert stopped == []
    resumed = run(gpu, trials, streamed, training, checkpoints=tmp_path)
    assert all(same(one, other) for one, other in zip(resumed, run(gpu, trials, data, training), strict=True))
