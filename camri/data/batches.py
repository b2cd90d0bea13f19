"""Batches on the training device: pure tensor functions that take their random draws as arguments.

Drawing and applying are separate (`draw_flips`, then `flip`), so that the second can be part of a captured CUDA
graph. Images are (B, C, H, W).
"""

import torch


def epoch_order(num_rows: int, generator: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """A random order of the rows for one epoch: int64 (num_rows,) on the device."""
    return torch.randperm(num_rows, generator=generator, device=device)


def to_float(inputs: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 (B, H, W, C) -> float (B, C, H, W) in [0, 1]; float features are returned unchanged.

    The axes are permuted as a view, so the result is in channels_last memory format.

    >>> to_float(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)).flatten()
    tensor([0.0000, 0.2000, 1.0000])
    """
    if inputs.dtype != torch.uint8:
        return inputs
    return inputs.permute(0, 3, 1, 2).to(dtype).div_(255)


def draw_flips(num_images: int, generator: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """Which images to mirror, each with probability 0.5: bool (B,)."""
    return torch.rand(num_images, generator=generator, device=device) < 0.5


def flip(images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mirror the images left to right where the mask (B,) is set.

    >>> flip(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), torch.tensor([True, False])).flatten()
    tensor([2, 1, 3, 4])
    """
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def draw_shifts(
    num_images: int, max_shift_px: int, generator: torch.Generator, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx, dy) in whole pixels, uniform from -max_shift_px to +max_shift_px: two int64 (B,)."""
    shifts = torch.randint(-max_shift_px, max_shift_px + 1, (2, num_images), generator=generator, device=device)
    return shifts[0], shifts[1]


def translate(images: torch.Tensor, dx: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
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
