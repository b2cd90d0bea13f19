"""Augmentation of training images as batched tensor functions: random draws for each image, and their application.

Draws come from a trial's own generator on the CPU, so they do not depend on the device or on other trials. The result
for an image depends only on its own draws; under mixup also on the image before it.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def draw_flips(num_images: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """Which images to mirror, each with probability 0.5: bool (B,)."""
    return torch.rand(num_images, generator=generator, device=device) < 0.5


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images left to right where the mask (B,) is set.

    >>> flip(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), torch.tensor([True, False])).flatten()
    tensor([2, 1, 3, 4])
    """
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def draw_shifts(
    num_images: int, max_shift_px: int, generator: torch.Generator, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """(dx, dy) in whole pixels, uniform from -max_shift_px to +max_shift_px: two int64 (B,)."""
    shifts = torch.randint(-max_shift_px, max_shift_px + 1, (2, num_images), generator=generator, device=device)
    return shifts[0], shifts[1]


def translate(images: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Move each image right by dx and down by dy pixels (B,); uncovered pixels become 0.

    >>> translate(torch.tensor([[[[1, 2, 3]]]]), torch.tensor([1]), torch.tensor([0])).flatten()
    tensor([0, 1, 2])
    """
    num_images, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) - dy[:, None]
    columns = torch.arange(width, device=images.device) - dx[:, None]
    image = torch.arange(num_images, device=images.device)[:, None, None]
    # (B, H, W, C), permuted back: a gather of whole pixels that keeps channels_last.
    moved = images.permute(0, 2, 3, 1)[
        image, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    ].permute(0, 3, 1, 2)
    inside_rows = ((rows >= 0) & (rows < height))[:, None, :, None]
    inside_columns = ((columns >= 0) & (columns < width))[:, None, None, :]
    return moved.masked_fill_(~(inside_rows & inside_columns), 0)  # in place: out of place it loses channels_last


def draw_boxes(num_images: int, smallest: float, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """Crops of at least `smallest` of the area, 3:4 to 4:3: (B, 4) top, left, height, width as shares of the image."""
    draws = torch.rand(4, num_images, generator=generator, device=device)
    area = smallest + (1 - smallest) * draws[0]
    ratio = torch.exp((2 * draws[1] - 1) * torch.log(torch.tensor(4 / 3)))
    height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    return torch.stack([draws[2] * (1 - height), draws[3] * (1 - width), height, width], dim=1)


def crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Cut the boxes (B, 4) out of the images (B, C, H, W) and enlarge them to the images' size, bilinearly.

    >>> crop(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), torch.tensor([[0.0, 0.5, 1.0, 0.5]])).flatten()
    tensor([2.7500, 3.2500, 3.7500, 4.0000])
    """
    top, left, height, width = boxes.unbind(dim=1)
    zero = torch.zeros_like(top)
    return _warp(images, [width, zero, 2 * left + width - 1], [zero, height, 2 * top + height - 1], "border")


def _warp(images: Tensor, x: list[Tensor], y: list[Tensor], padding: str) -> Tensor:
    """Resample bilinearly: a pixel at (u, v), both in [-1, 1], comes from x[0] u + x[1] v + x[2] and the same of y."""
    theta = torch.stack([torch.stack(x, dim=1), torch.stack(y, dim=1)], dim=1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)


# The operations of TrivialAugment with the ranges of RandAugment. Strengths are -1 to 1. The sign is the direction; for
# brightness, colour, contrast and sharpness it means less or more of the effect.
OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate",
    "brightness", "colour", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
SHEAR, TRANSLATE, ROTATE_RAD, ENHANCE, MOST_BITS_LOST = 0.3, 0.3, math.radians(30), 0.9, 4
GREY = (0.299, 0.587, 0.114)


def draw_operations(num_images: int, generator: torch.Generator) -> Tensor:
    """One of `OPERATIONS` and a strength for each image: float (B, 2)."""
    numbers = torch.randint(len(OPERATIONS), (num_images,), generator=generator)
    return torch.stack([numbers.float(), 2 * torch.rand(num_images, generator=generator) - 1], dim=1)


def trivial_augment(images: Tensor, drawn: Tensor) -> Tensor:
    """Apply to each image the operation drawn for it: (B, C, H, W) in [0, 1], (B, 2) -> (B, C, H, W).

    Uncovered pixels become 0. Every operation is computed for the whole batch and kept where it was drawn, so there is
    no loop over images and a CUDA graph can capture it.

    >>> images = torch.tensor([[[[0.25, 0.5]]], [[[0.25, 0.5]]]])
    >>> brightness = [OPERATIONS.index("brightness"), 1.0]
    >>> trivial_augment(images, torch.tensor([[0.0, 1.0], brightness])).flatten()
    tensor([0.2500, 0.5000, 0.4750, 0.9500])
    """
    operation, strength = drawn[:, 0].long(), drawn[:, 1].to(images.dtype)[:, None, None, None]

    def where(name: str, changed: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where((operation == OPERATIONS.index(name))[:, None, None, None], changed, otherwise)

    grey = _grey(images)
    other = where("colour", grey.expand_as(images), torch.zeros_like(images))
    other = where("contrast", grey.mean((2, 3), keepdim=True).expand_as(images), other)
    other = where("sharpness", _smooth(images), other)
    mixed = (other + (1 + ENHANCE * strength) * (images - other)).clamp(0, 1)
    lost = torch.exp2((strength.abs() * MOST_BITS_LOST).round())  # how many levels become one
    posterized = ((images * 255 + 1e-3).floor() / lost).floor() * lost / 255
    result = images
    for name in ("brightness", "colour", "contrast", "sharpness"):
        result = where(name, mixed, result)
    result = where("posterize", posterized, result)
    result = where("solarize", torch.where(images >= 1 - strength.abs(), 1 - images, images), result)
    result = where("autocontrast", _autocontrast(images), result)
    result = where("equalize", _equalize(images), result)
    moves = (operation >= OPERATIONS.index("shear_x")) & (operation <= OPERATIONS.index("rotate"))
    return torch.where(moves[:, None, None, None], _move(images, operation, strength[:, 0, 0, 0]), result)


def _grey(images: Tensor) -> Tensor:
    """Brightness: (B, C, H, W) -> (B, 1, H, W)."""
    if images.shape[1] != len(GREY):
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def _smooth(images: Tensor) -> Tensor:
    """Average each inner pixel (weight 5) with its eight neighbours (weight 1); the border stays as it is."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    inner = 4 * images[:, :, 1:-1, 1:-1]
    for row in range(3):
        for column in range(3):
            inner = inner + images[:, :, row : height - 2 + row, column : width - 2 + column]
    inside = images.new_zeros(height, width, dtype=torch.bool)
    inside[1:-1, 1:-1] = True
    return torch.where(inside, F.pad(inner / 13, (1, 1, 1, 1)), images)


def _autocontrast(images: Tensor) -> Tensor:
    """Stretch each colour of each image to [0, 1]; a constant one stays as it is."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (images - low) / torch.where(span > 0, span, 1.0), images)


def _equalize(images: Tensor) -> Tensor:
    """Equalise the histogram of each colour of each image over 256 levels, as Pillow does."""
    levels = (images * 255).round().clamp(0, 255).long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    table = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    even = table.clamp(max=255).gather(2, levels).view(images.shape).to(images.dtype) / 255
    return torch.where(step[..., None] > 0, even, images)


def _move(images: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Shear, translate or rotate each image about its centre, bilinearly; uncovered pixels become 0."""
    height, width = images.shape[2:]

    def when(name: str, value: Tensor) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), value, 0.0)

    angle = when("rotate", ROTATE_RAD * strength)
    cos, sin = angle.cos(), angle.sin()
    x = [cos, (sin + when("shear_x", SHEAR * strength)) * height / width, when("translate_x", 2 * TRANSLATE * strength)]
    y = [(when("shear_y", SHEAR * strength) - sin) * width / height, cos, when("translate_y", 2 * TRANSLATE * strength)]
    return _warp(images, x, y, "zeros")


def draw_shares(num_images: int, alpha: float, generator: torch.Generator) -> Tensor:
    """Share of itself that each image keeps under mixup, from Beta(alpha, alpha): float (B,)."""
    seed = int(torch.randint(2**62, (), generator=generator))  # torch draws no Beta from a generator
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, num_images)).float()


def mixup(inputs: Tensor, shares: Tensor) -> Tensor:
    """Mix each row, with weight `share`, with the one before it: (B, ...), (B,) -> (B, ...).

    The loss mixes the labels the same way: `criterion(outputs, labels, shares)`.

    >>> mixup(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 0.75]))
    tensor([[0.0000],
            [0.7500]])
    """
    own = shares.to(inputs.dtype).view(-1, *[1] * (inputs.dim() - 1))
    return own * inputs + (1 - own) * inputs.roll(1, 0)
