"""Batches against plain loops, their randomness, and their memory layout."""

import pytest
import torch

from camri import augment
from camri.data import dataset


@pytest.fixture
def images() -> torch.Tensor:
    return torch.arange(4 * 3 * 5 * 6, dtype=torch.float32).reshape(4, 3, 5, 6) + 1


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved_by_loop(images: torch.Tensor, dx: list[int], dy: list[int]) -> torch.Tensor:
    out = torch.zeros_like(images)
    num_images, _, height, width = images.shape
    for b in range(num_images):
        for y in range(height):
            for x in range(width):
                from_y, from_x = y - dy[b], x - dx[b]
                if 0 <= from_y < height and 0 <= from_x < width:
                    out[b, :, y, x] = images[b, :, from_y, from_x]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
def test_translate_equals_a_loop(images: torch.Tensor, dtype: torch.dtype) -> None:
    images = (images % 200).to(dtype)
    dx, dy = [0, 2, -1, 7], [0, -3, 1, 0]
    moved = augment.translate(images, torch.tensor(dx), torch.tensor(dy))
    assert moved.equal(moved_by_loop(images, dx, dy))
    assert moved.dtype == dtype


def test_flip_mirrors_the_marked_images_only(images: torch.Tensor) -> None:
    flipped = augment.flip(images, torch.tensor([True, False, False, True]))
    assert flipped[0, 1, 2].tolist() == images[0, 1, 2].tolist()[::-1]
    assert flipped[1:3].equal(images[1:3])
    assert flipped[3].equal(images[3].flip(-1))


def test_draws_use_the_given_generator_only() -> None:
    state = torch.random.get_rng_state()
    first = [augment.draw_flips(50, seeded(), "cpu"), *augment.draw_shifts(50, 2, seeded(5), "cpu")]
    again = [augment.draw_flips(50, seeded(), "cpu"), *augment.draw_shifts(50, 2, seeded(5), "cpu")]
    assert all(one.equal(other) for one, other in zip(first, again, strict=True))
    dataset.epoch_order(10, seeded(), "cpu")
    assert torch.random.get_rng_state().equal(state)


def test_draws_cover_their_range_evenly() -> None:
    flips = augment.draw_flips(20_000, seeded(), "cpu")
    assert abs(flips.float().mean().item() - 0.5) < 0.02
    dx, dy = augment.draw_shifts(20_000, 2, seeded(), "cpu")
    for shifts in (dx, dy):
        counts = torch.bincount(shifts + 2)
        assert counts.shape == (5,)
        assert (counts - 4000).abs().max() < 250
    assert not dx.equal(dy)


def test_epoch_order_is_a_permutation_that_changes() -> None:
    generator = seeded()
    first, second = (dataset.epoch_order(1000, generator, "cpu") for _ in range(2))
    assert first.sort().values.equal(torch.arange(1000))
    assert not first.equal(second)
    assert first.equal(dataset.epoch_order(1000, seeded(), "cpu"))


def test_to_float_scales_and_moves_channels_without_a_copy_of_the_layout() -> None:
    pixels = torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8, generator=seeded())
    images = dataset.to_float(pixels)
    assert images.shape == (2, 3, 4, 5)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for value in (images[1, 2, 3, 4].item() * 255, pixels[1, 3, 4, 2].item()):
        assert value == pytest.approx(pixels[1, 3, 4, 2].item())
    assert dataset.to_float(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item() == 1.0


def test_augmented_images_stay_channels_last() -> None:
    images = dataset.to_float(torch.zeros(2, 4, 5, 3, dtype=torch.uint8))
    ones = torch.ones(2, dtype=torch.int64)
    for changed in (augment.flip(images, ones.bool()), augment.translate(images, ones, ones)):
        assert changed.is_contiguous(memory_format=torch.channels_last)


def test_features_pass_through() -> None:
    features = torch.randn(3, 7)
    assert dataset.to_float(features) is features


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_graph_replays_with_new_draws(images: torch.Tensor) -> None:
    images = images.cuda()
    mask = torch.zeros(4, dtype=torch.bool, device="cuda")
    dx, dy = (torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2))
    augment.translate(augment.flip(images, mask), dx, dy)  # warm up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment.translate(augment.flip(images, mask), dx, dy)
    mask.fill_(True)
    dx.fill_(2)
    graph.replay()
    assert out.equal(augment.translate(images.flip(-1), dx, dy))
