"""The CUDA twins of the engine's tests. Run on a GPU: python -m pytest tests/engine -m gpu"""

import copy
import os
from dataclasses import replace

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first matrix product: determinism needs it

import numpy as np
import pytest
import torch
from torch import nn

from camri.data import DataSet, Split
from camri.engine import Job, Stopped, Training, Trial, train
from camri.engine.loop import ADAM_EPS
from camri.engine.replica import make
from camri.methods import setting
from tests.engine.conftest import same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


@pytest.fixture(scope="module", params=["branches", "stacks"])
def case(request, data, training):
    """Data and training: a small CNN, each replica a branch of the graph; the authors', which Hopper runs in stacks."""
    if request.param == "branches":
        return data, training
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("stacks are for Hopper")
    drawn = torch.Generator().manual_seed(0)

    def pictures(split):
        images = torch.nn.functional.interpolate(split.inputs.permute(0, 3, 1, 2).float(), scale_factor=2)
        images = images.permute(0, 2, 3, 1) + torch.randint(0, 60, (*images.shape[2:], 3), generator=drawn)
        return Split(images.to(torch.uint8), split.labels, None)

    larger = DataSet("larger", data.classes, {k: pictures(v) for k, v in data.splits.items()}, "larger", {})
    training = training.with_(model="paper", model_options=(("num_features", 16),), epochs=2)
    job = Job(training, larger)
    from camri.engine import stack

    assert stack.fits(make(Trial(setting("ce"), 0), job)[0].trunk, job)
    return larger, training


@pytest.fixture(scope="module")
def crowd(trials, case):
    data, training = case
    return train(trials, data, "cuda", training=training, deterministic=True, **KEEP)


def test_alone_and_in_another_place_to_the_bit(trials, case, crowd):
    data, training = case
    (alone,) = train([trials[1]], data, "cuda", training=training, deterministic=True, **KEEP)
    assert same(alone, crowd[1])
    turned = train(trials[::-1], data, "cuda", training=training, deterministic=True, pack_size=2, **KEEP)
    for outcome, before in zip(turned, crowd[::-1], strict=True):
        assert same(outcome, before)


def test_without_determinism_the_noise_is_that_of_the_kernels(trials, case, crowd):
    data, training = case
    loose = train(trials, data, "cuda", training=training, **KEEP)
    for outcome, before in zip(loose, crowd, strict=True):
        gap = np.abs(outcome.logits["test"].astype(np.float32) - before.logits["test"].astype(np.float32)).max()
        print(f"{outcome.trial.setting}: largest difference of a logit {gap:.4f}")
        assert (outcome.confusion["test"] != before.confusion["test"]).sum() <= 12


@pytest.mark.parametrize("num_rows", [0, 60])  # on the device: none of the splits, or val and no other
def test_streamed_images_give_the_same_bits(trials, case, crowd, num_rows, monkeypatch):
    data, training = case
    resident = data.splits["val"].inputs[:num_rows].numel()
    monkeypatch.setattr("camri.engine.feed.DEPTHS", (3, 4))
    streamed = train(trials, replace(data, resident=resident), "cuda", training=training, deterministic=True, **KEEP)
    assert all(same(outcome, before) for outcome, before in zip(streamed, crowd, strict=True))


def test_images_on_disk_give_the_same_bits(trials, case, crowd, tmp_path):
    from camri.data.rows import Rows, Stored

    data, training = case
    splits = {}
    for name, split in data.splits.items():
        (tmp_path / name).write_bytes(split.inputs.numpy().tobytes())
        splits[name] = replace(split, inputs=Rows(Stored(tmp_path / name, 0, tuple(split.inputs.shape))))
    for resident in (0, None):
        on_disk = replace(data, splits=splits, resident=resident)
        streamed = train(trials, on_disk, "cuda", training=training, deterministic=True, **KEEP)
        assert all(same(outcome, before) for outcome, before in zip(streamed, crowd, strict=True))


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_stopped_pack_resumes_to_the_same_bits(tmp_path, monkeypatch, trials, case, crowd, num_steps):
    data, training = case
    monkeypatch.setattr("camri.engine.cuda.RUN_AHEAD", 4)
    calls = iter(range(num_steps))
    with pytest.raises(Stopped):
        train(trials, data, "cuda", training=training, deterministic=True, checkpoints=tmp_path,
              should_stop=lambda: next(calls, None) is None, **KEEP)  # fmt: skip
    assert len(list(tmp_path.glob("*.safetensors"))) == len(trials)
    outcomes = train(trials, data, "cuda", training=training, deterministic=True, checkpoints=tmp_path, **KEEP)
    for outcome, before in zip(outcomes, crowd, strict=True):
        assert same(outcome, before)
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_diverges_fails_alone(trials, case, crowd):
    data, training = case
    broken = Trial(setting("wce", 1, w=1e38), 0)
    outcomes = train([trials[0], broken, trials[1]], data, "cuda", training=training, deterministic=True, **KEEP)
    assert same(outcomes[0], crowd[0])
    assert same(outcomes[2], crowd[1])
    assert outcomes[1].status == "failed"
    assert "the loss stopped being finite in epoch 1" in outcomes[1].error


def test_branches_take_over_from_stacks_that_are_wrong(trials, case, monkeypatch):
    data, training = case
    if training.model != "paper":
        pytest.skip("branches already")
    from camri.engine import stack

    short = training.with_(epochs=1)
    monkeypatch.setenv("CAMRI_STACKS", "0")
    branches = train(trials[:2], data, "cuda", training=short, deterministic=True, **KEEP)
    monkeypatch.delenv("CAMRI_STACKS")
    monkeypatch.setattr(stack, "WRONG", 0.0)
    with pytest.warns(UserWarning, match="wrong with this version of Triton"):
        instead = train(trials[:2], data, "cuda", training=short, deterministic=True, **KEEP)
    assert all(same(outcome, before) for outcome, before in zip(instead, branches, strict=True))


def test_a_divergence_in_the_last_epoch_leaves_the_neighbours_their_end(trials, case):
    data, training = case
    broken = Trial(setting("wce", 1, w=1e38), 0)
    short = training.with_(epochs=1)
    alone = train([trials[0]], data, "cuda", training=short, deterministic=True, **KEEP)
    beside = train([trials[0], broken], data, "cuda", training=short, deterministic=True, **KEEP)
    assert same(beside[0], alone[0])
    assert beside[1].status == "failed"


def test_the_curve_ends_at_the_outcomes_own_counts(crowd):
    for outcome in crowd:
        assert outcome.curves["val_hits"][-1].tolist() == outcome.confusion["val"].diagonal().tolist()


def test_it_learns_what_the_cpu_learns(data):
    training = Training(model="small", epochs=30, batch_size=32)
    pair = [Trial(setting("ce"), 0), Trial(setting("camri", 1, m=0.3, s=8), 0)]
    for gpu, cpu in zip(
        train(pair, data, "cuda", training=training), train(pair, data, "cpu", training=training), strict=True
    ):
        assert gpu.accuracy() > 0.9
        assert gpu.accuracy() == pytest.approx(cpu.accuracy(), abs=0.06)
        assert gpu.curves["train_loss"][0] == pytest.approx(cpu.curves["train_loss"][0], rel=0.02)


def test_its_first_losses_and_changes_are_those_of_the_cpu(trials, case):
    """At a tiny rate: at the usual one rounding alone moves the first epoch's loss of the authors' CNN by 4 %."""
    data, training = case
    training = training.with_(epochs=1, optimizer="sgd", average=0.0, learning_rate=1e-6)
    gpu, cpu = (train(trials[:2], data, device, training=training, **KEEP) for device in ("cuda", "cpu"))
    for mine, plain in zip(gpu, cpu, strict=True):
        assert mine.curves["train_loss"][0] == pytest.approx(plain.curves["train_loss"][0], rel=0.02)
        start = make(mine.trial, Job(training, data))[0].state_dict()
        moved, want = (np.concatenate([(one.weights[name] - start[name].numpy()).ravel() for name in start
                                       if name.endswith("weight")]) for one in (mine, plain))  # fmt: skip
        assert moved @ want > 0.8 * np.linalg.norm(moved) * np.linalg.norm(want)


@pytest.mark.parametrize("model", ["paper", "small"])
def test_the_compiled_trunks_gradients_are_those_of_the_plain_one(model, monkeypatch):
    """Through dropout too: its masks were once those of the next step in a compiled backward pass."""
    from camri.models import build, seed_dropout

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # with it 0.14 is noise
    trunk = build(model, (3, 32, 32), torch.Generator().manual_seed(0)).cuda().train()
    seed_dropout(trunk, 5)
    twin = copy.deepcopy(trunk)
    images = torch.rand(64, 3, 32, 32, device="cuda")
    for one, forward in ((trunk, torch.compile(trunk, fullgraph=True, dynamic=False)), (twin, twin)):
        for _ in range(2):
            one.zero_grad()
            features = forward(images)
            features.backward(torch.linspace(-1, 1, features.numel(), device="cuda").view_as(features))
    for (name, mine), plain in zip(trunk.named_parameters(), twin.parameters(), strict=True):
        if mine.dim() > 1:  # a bias before a norm has no gradient but rounding
            assert (mine.grad - plain.grad).norm() < 0.02 * plain.grad.norm(), name  # wrong masks: 1.15, right: 0.0035


def test_the_trained_weights_give_the_outcomes_scores_on_the_cpu(data, training):
    from camri.data import dataset

    trial = Trial(setting("camri", 1, m=0.3, s=8), 0)
    (outcome,) = train([trial], data, "cuda", training=training.with_(epochs=10), **KEEP)
    model, criterion = make(trial, Job(training, data))
    weights = {name: torch.as_tensor(value) for name, value in outcome.weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert all("num_batches_tracked" in name for name in missing)
    logits = criterion.logits(model.eval()(dataset.to_float(data.splits["test"].inputs))).detach().numpy()
    assert np.abs(logits - outcome.logits["test"]).max() < 0.15  # bfloat16 in the trunk there, float32 here
    assert (logits.argmax(1) == outcome.logits["test"].argmax(1)).mean() > 0.97


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_the_fused_update_is_that_of_torch(kind, average):
    from camri.engine import spec
    from camri.engine.fused_optimizer import Flat, Tables

    torch.manual_seed(0)
    training = Training(optimizer=kind, weight_decay=0.1, learning_rate=0.01, hold=0.5, average=average)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(7, 3)).cuda()
    twin = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(7, 3)).cuda()
    twin.load_state_dict(model.state_dict())
    averaged = [p.detach().clone() for p in twin.parameters()]
    num_steps = 20
    device = torch.device("cuda")
    places = [(module, name) for module in model for name, _ in module.named_parameters()]
    decaying = {id(p) for p in model.parameters() if p.dim() > 1}
    flat = Flat(places, torch.bfloat16, Tables(training, num_steps, device), average > 0, decaying)
    matrices, biases = [p for p in twin.parameters() if p.dim() > 1], [p for p in twin.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    theirs = (
        torch.optim.SGD(groups, lr=0.01, momentum=0.9)
        if kind == "sgd"
        else {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups, lr=0.01, eps=ADAM_EPS)
    )
    rates, decays = spec.learning_rates(training, num_steps), spec.average_decays(training, num_steps)
    step = torch.zeros(1, dtype=torch.int64, device=device)
    of_twin = dict(zip([id(p) for p in model.parameters()], twin.parameters(), strict=True))
    for number in range(num_steps):
        gradients = [torch.randn(p.shape, device=device).to(torch.bfloat16) for p in flat.parameters]
        for parameter, gradient in zip(flat.parameters, gradients, strict=True):
            of_twin[id(parameter)].grad = gradient.float()
        for group in theirs.param_groups:
            group["lr"] = rates[number].item()
        flat.update(gradients, step)
        theirs.step()
        step += 1
        for mine, its in zip(averaged, twin.parameters(), strict=True):
            mine.lerp_(its.detach(), 1 - decays[number].item())
    full = dict(zip([id(p) for p in flat.parameters], flat.full_precision(), strict=True))
    wanted = averaged if average else [p.detach() for p in twin.parameters()]
    for mine, want in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(full[id(mine)], want, rtol=1e-5, atol=1e-6)
        if not average:
            torch.testing.assert_close(mine.detach(), want.to(torch.bfloat16), rtol=1e-2, atol=1e-3)
