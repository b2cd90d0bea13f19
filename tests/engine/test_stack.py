"""Kernels for several models in one launch, against plain PyTorch; on the CPU by Triton's interpreter, where it is."""
# ruff: noqa: E402

import os

import pytest
import torch
import torch.nn.functional as F

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton.tools.tensor_descriptor", exc_type=ImportError)

from triton.tools.tensor_descriptor import TensorDescriptor

from camri.data import DataSet, Split
from camri.engine import Job, Training, Trial, cuda_replica, stack
from camri.engine.fused_optimizer import Tables
from camri.engine.kernels import convolution, layers
from camri.engine.outcome import Record
from camri.engine.replica import make
from camri.methods import setting
from camri.models import Dropout, PaperCNN, seed_dropout

DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32  # the interpreter multiplies no bfloat16
R, N = 2, 2


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def planes(x):
    return x.float().permute(0, 3, 1, 2)


def near(mine, want):
    error = (mine.float() - want).norm() / want.norm()
    assert error < (1e-2 if GPU else 1e-5), error


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize(("before", "after"), [(16, 32), (32, 16)])
def test_convolutions_are_pytorchs(side, before, after):
    x, dz = drawn(R, N, side, side, before, dtype=DTYPE), drawn(R, N, side, side, after, dtype=DTYPE, seed=1)
    size = 9 * before * after
    flat = drawn(R, size + 128, dtype=DTYPE, seed=2) / 10  # a weight is a part of a longer row
    w, bias, turned = flat[:, :size], flat[:, -after:], torch.empty(R, size, dtype=DTYPE, device=DEVICE)
    convolution.turn[(2, 9, R)](w, turned, w.stride(0), before, after, 16)
    for rows in (64, 128):
        blocks, tile = N * side * side // rows, (rows, 16, 16, 2)
        y, part = torch.empty_like(dz), torch.zeros(R, blocks, 2, after, device=DEVICE)
        convolution.convolve[(R * blocks * after // 16,)](
            x, w, y, bias, y, part, part, part, w.stride(0), bias.stride(0), N, side, side, before, after,
            "statistics", *tile,
        )  # fmt: skip
        dx, sums = torch.empty_like(x), torch.zeros(R, blocks, before, device=DEVICE)
        convolution.convolve[(R * blocks * before // 16,)](
            dz, turned, dx, bias, x, part, part, sums, turned.stride(0), bias.stride(0), N, side, side, after, before,
            "mask", *tile,
        )  # fmt: skip
        for r in range(R):
            kernel = planes(w[r].unflatten(0, (after, 3, 3, before)))
            want = F.conv2d(planes(x[r]), kernel, bias[r].float(), padding=1).relu().permute(0, 2, 3, 1)
            near(y[r], want)
            near(part[r, :, 0].mean(0), want.mean((0, 1, 2)))
            near(part[r, :, 1], want.reshape(blocks, rows, after).var(1, unbiased=False) * rows)
            want = torch.nn.grad.conv2d_input(planes(x[r]).shape, kernel, planes(dz[r]), padding=1)
            want = (want * (planes(x[r]) > 0)).permute(0, 2, 3, 1)
            near(dx[r], want)
            near(sums[r].sum(0), want.sum((0, 1, 2)))


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize(("taps", "split"), [(1, 1), (3, 2)])
def test_gradients_of_weights_are_pytorchs(side, taps, split):
    x, dz = drawn(R, N, side, side, 16, dtype=DTYPE), drawn(R, N, side, side, 32, dtype=DTYPE, seed=1)
    size = 9 * 16 * 32
    flat = torch.zeros(R, size + 64, device=DEVICE)  # the kernel writes into the middle of a longer row
    target = flat[:, 64:] if split == 1 else torch.zeros(split * R, size, device=DEVICE)
    depth = 32
    convolution.weight_gradient[(2 * (9 // taps) * split * R,)](
        TensorDescriptor.from_tensor(dz.flatten(0, 3), [depth, 16]),
        TensorDescriptor.from_tensor(x.flatten(0, 1), [1, depth // side, side, 16]),
        target, target.stride(0), R, N, side, side, 16, 32, split, taps, 16, 16, depth, 2,
    )  # fmt: skip
    if split > 1:
        convolution.add_parts[(-(-size // 1024), R)](target, flat[:, 64:], flat.stride(0), size, R, split, 1024)
    assert (flat[:, :64] == 0).all()
    for r in range(R):
        want = torch.nn.grad.conv2d_weight(planes(x[r]), (32, 16, 3, 3), planes(dz[r]), padding=1)
        near(flat[r, 64:], want.permute(0, 2, 3, 1).flatten())


@pytest.mark.parametrize("p", [0.0, 0.25, 0.6])
def test_pooling_and_dropout_are_pytorchs_to_the_bit(p):
    x = drawn(R, N, 8, 8, 16).relu().round(decimals=1)  # with ties
    step = torch.tensor([5], device=DEVICE)
    drops = [Dropout(p).to(DEVICE) for _ in range(R)]
    for seed, drop in enumerate(drops):
        seed_dropout(drop, seed)
        drop.calls.fill_(5)
    seeds = torch.stack([drop.seeds for drop in drops])
    pooled, slope = torch.empty(R, N, 4, 4, 16, device=DEVICE), drawn(R, N, 4, 4, 16, seed=1)
    given = (seeds, step, 1 / (1 - p), N * 16, 4, 16, round((p - 0.5) * 2**32), p > 0)
    layers.pool[(1, R)](x, pooled, *given, 1024)
    dz, part = torch.empty_like(x), torch.zeros(R, 2, 16, device=DEVICE)
    layers.pool_back[(2, 1, R)](slope, x, dz, part, *given, 16, 16)
    for r, drop in enumerate(drops):
        before = planes(x[r]).contiguous(memory_format=torch.channels_last).requires_grad_()
        want = drop.train()(F.max_pool2d(before.relu(), 2))
        assert (pooled[r] == want.permute(0, 2, 3, 1)).all()
        want.backward(planes(slope[r]))
        assert (dz[r] == before.grad.permute(0, 2, 3, 1)).all()
        near(part[r].sum(0), dz[r].sum((0, 1, 2)))


@pytest.fixture
def small(monkeypatch):
    """A function that makes replicas of a short version of the authors' CNN on made-up images."""
    monkeypatch.setattr(PaperCNN, "LAYERS", (16, 16, "norm", 16, "pool", "drop", 32))
    for module in (cuda_replica, stack):
        monkeypatch.setattr(module, "LOW", DTYPE)
    rows = torch.Generator().manual_seed(0)

    def split(num):
        images = torch.randint(0, 256, (num, 16, 16, 3), dtype=torch.uint8, generator=rows)
        return Split(images.to(DEVICE), torch.randint(0, 4, (num,), generator=rows).to(DEVICE), None)

    data = DataSet("made-up", tuple("abcd"), {"train": split(4), "val": split(4)}, "made-up", {})
    options = {"model": "paper", "model_options": (("num_features", 16),), "flip": True, "translate_px": 1}
    training = Training(epochs=1, batch_size=2, optimizer="sgd", weight_decay=0.01, average=0.9, **options)
    job = Job(training, data)

    def replicas(*strengths):
        """One for each strength of the margin, which is also its seed."""
        tables = Tables(training, job.num_steps, DEVICE)
        made = []
        for number in strengths:
            trial = Trial(setting("camri", 1, m=number / 10, s=8), number)
            made.append(cuda_replica.Replica(trial, job, make(trial, job), data.splits, tables, Record(trial, job, {})))
            made[-1].draw(0)
        return made

    return replicas


def same_state(mine, other):
    return all((tensor == other.state()[name]).all() for name, tensor in mine.state().items())


@pytest.mark.skipif(GPU, reason="in bfloat16 tests/engine/test_gpu.py compares what is learned")
def test_a_step_of_a_stack_is_that_of_its_replicas(small):
    plain, mine = small(1, 2), small(1, 2)
    stacked = stack.Stack(mine)
    for _ in range(2):
        stacked.advance()
        for replica in plain:
            replica.advance(cuda_replica.run_trunk)
    for replica, other in zip(plain, mine, strict=True):
        assert other.step.item() == other.place.item() == 2
        for name, tensor in replica.state().items():
            if not tensor.is_floating_point():
                continue
            error = (other.state()[name] - tensor).norm() / tensor.norm()
            assert not error > 1e-4, (name, error)  # not a number for the second moments, which SGD has not


def test_a_replica_has_the_same_bits_in_other_company_and_beside_one_that_diverged(small):
    alone, beside, broken = small(1), small(3, 1), small(1, 3)
    stacks = [stack.Stack(replicas) for replicas in (alone, beside, broken)]
    broken[1].flats[0].weight.fill_(float("nan"))
    for stacked in stacks:
        stacked.advance()
    assert same_state(alone[0], beside[1])
    assert same_state(alone[0], broken[0])
    assert not torch.isfinite(broken[1].loss_sum)


def test_a_check_finds_kernels_that_are_wrong_and_leaves_the_replicas_as_they_were(small, monkeypatch):
    plain, mine = small(1, 2), small(1, 2)
    stacked = stack.Stack(mine)
    assert stacked.is_right()
    assert all(same_state(replica, other) for replica, other in zip(plain, mine, strict=True))
    convolve = stack.Layer._convolve

    def convolve_wrongly(layer, x, weight, out, *rest):
        blocks = convolve(layer, x, weight, out, *rest)
        if x is layer.dz:
            out.mul_(1.02)
        return blocks

    monkeypatch.setattr(stack.Layer, "_convolve", convolve_wrongly)
    assert not stacked.is_right()


@pytest.mark.skipif(GPU, reason="in bfloat16 the two differ by rounding")
def test_replicas_released_from_a_stack_train_as_branches(small):
    plain, mine = small(1, 2), small(1, 2)
    stack.Stack(mine).release()
    for replica, other in zip(plain, mine, strict=True):
        for one in (replica, other):
            one.advance(cuda_replica.run_trunk)
        assert same_state(replica, other)
