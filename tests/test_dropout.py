"""Dropout: torch's own without a seed; with one, masks that follow from it and the number of the call alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from camri.errors import InputError
from camri.heads import CosineHead
from camri.models import Classifier, Dropout, build, resume_dropout, seed_dropout


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_dropout_without_a_seed_is_that_of_torch():
    x = torch.randn(50, 8, generator=seeded())
    drop = Dropout(0.3)
    torch.manual_seed(1)
    wanted = F.dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(drop(x), wanted)
    assert torch.equal(drop.eval()(x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_with_a_seed_depends_on_it_and_the_call_alone(dtype):
    drop = Dropout(0.25)
    seed_dropout(drop, 4)
    x = torch.ones(200, 100, dtype=dtype)
    before = torch.get_rng_state()
    one, two = drop(x), drop(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drop.eval()(x), x)
    drop.train()
    seed_dropout(drop, 4)
    drop.calls.fill_(1)
    assert torch.equal(drop(x), two)  # resumed at the second call
    seed_dropout(drop, 5)
    assert not torch.equal(drop(x), one)
    assert not torch.equal(one, two)
    assert one.dtype == dtype
    assert set(one.unique().tolist()) == {0.0, torch.tensor(1 / 0.75, dtype=dtype).item()}
    assert "calls" not in drop.state_dict()


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_dropout_masks_look_random(p):
    drop = Dropout(p)
    seed_dropout(drop, 11)
    masks = torch.stack([drop(torch.ones(32, 16, 8, 8)) != 0 for _ in range(12)]).flatten(1).double()
    n = masks.shape[1]
    sd = (p * (1 - p)) ** 0.5
    assert masks.mean().item() == pytest.approx(1 - p, abs=4 * sd / (12 * n) ** 0.5)
    centred = (masks - masks.mean()) / sd
    between_calls = (centred @ centred.T / n).fill_diagonal_(0).abs().max().item()
    assert between_calls < 4.5 / n**0.5
    for lag in (1, 2, 16, 64, 1024):  # neighbours in memory, channels, rows, images
        assert abs((centred[:, lag:] * centred[:, :-lag]).mean().item()) < 4.5 / (12 * n) ** 0.5


def test_two_layers_of_one_seed_have_different_masks():
    model = nn.Sequential(Dropout(0.5), nn.Identity(), Dropout(0.5))
    seed_dropout(model, 3)
    assert not torch.equal(model[0](torch.ones(100)), model[2](torch.ones(100)))


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_masks_the_gradient_as_it_masked_the_value(compiled):
    drop = Dropout(0.5)
    seed_dropout(drop, 0)
    run = torch.compile(drop, fullgraph=True, backend="aot_eager") if compiled else drop
    for _ in range(2):
        x = torch.ones(40, requires_grad=True)
        out = run(x)
        out.sum().backward()
        assert torch.equal(x.grad, out.detach())


def test_dropout_does_not_depend_on_the_memory_format():
    drop = Dropout(0.5)
    x = torch.rand(2, 3, 4, 5, generator=seeded())
    results = []
    for y in (x, x.to(memory_format=torch.channels_last)):
        seed_dropout(drop, 1)
        results.append(drop(y))
    assert torch.equal(*results)


def test_one_call_seeds_every_dropout():
    model = Classifier(build("paper", (3, 8, 8), seeded(), num_features=16), CosineHead(16, 3, seeded()))
    x = torch.rand(5, 3, 8, 8, generator=seeded(1))
    outputs = []
    for seed in (1, 1, 2):
        twin = copy.deepcopy(model)
        seed_dropout(twin, seed)
        outputs.append(twin(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    for p in (-0.1, 1.0):
        with pytest.raises(InputError, match=f"p={p}"):
            Dropout(p)


@pytest.mark.parametrize("num_calls", [2, torch.tensor(2)])
def test_resumed_masks_resume_where_they_were(num_calls):
    masks = []
    model = nn.Sequential(Dropout(0.5), nn.Flatten(), Dropout(0.5))
    seed_dropout(model, 3)
    for _ in range(4):
        masks.append(model(torch.ones(4, 50)))
    seed_dropout(model, 3)
    resume_dropout(model, num_calls)
    assert torch.equal(model(torch.ones(4, 50)), masks[2])
    assert torch.equal(model(torch.ones(4, 50)), masks[3])
    assert not torch.equal(masks[2], masks[3])
