"""Image files of any kind -> one uint8 array: 8 bits, upright, RGB (or grey where all are), one size."""

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from camri.data.listing import EncodedImages, Part
from camri.data.parallel import Progress, for_each, shared_array
from camri.errors import InputError

MAX_PIXELS = 89_478_485  # a quarter of a gigabyte of RGB, where Pillow begins to warn
DEFAULT_SIDE_PX = 64  # the largest size that is chosen unasked: the paper's largest
DARK = 64  # 8-bit values below which images of 16 bits are said to use too few of them
BAD_SHOWN = 5  # unreadable images that a refusal names
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")


def decode_parts(
    parts: Mapping[str, Part],
    size: tuple[int, int] | None,
    skip_bad: bool,
    progress: Progress | None = None,
) -> tuple[dict[str, Part], dict[str, Any]]:
    """The parts with their images as uint8 (N, H, W, C), and what there is to tell about it.

    Unreadable images are refused by name, or with `skip_bad` left out, counted and listed.
    """
    images = [part.inputs for part in parts.values() if isinstance(part.inputs, EncodedImages)]
    sources = [source for group in images for source in group.sources]
    names = [name for group in images for name in group.names]
    boxes = [box for group in images for box in (group.boxes if group.boxes is not None else [None] * len(group))]

    probed = shared_array((len(sources), 4), np.int32)

    def look(row: int) -> None:
        probed[row] = _probe(sources[row])

    bad = for_each(len(sources), look, progress)
    good = np.setdiff1d(np.arange(len(sources)), list(bad))
    if not len(good):
        _refuse_bad(bad, names, skip_bad)
    shape, notes = _choose_shape(probed[good], size, cropped=any(box is not None for box in boxes))
    extent = probed[good, :2]
    notes["original_sizes"] = {"smallest": extent.min(axis=0).tolist(), "largest": extent.max(axis=0).tolist()}
    out = shared_array((len(sources), *shape), np.uint8)

    def read(row: int) -> None:
        if row not in bad:
            out[row] = to_array(sources[row], shape, boxes[row])

    bad |= for_each(len(sources), read, progress)  # also where a header was bad already: all are told at once
    _refuse_bad(bad, names, skip_bad)
    if bad:
        notes["skipped"] = [{"file": names[row], "why": why} for row, why in sorted(bad.items())]
    deep = [row for row in np.flatnonzero(probed[:, 3]).tolist() if row not in bad]
    if deep and (brightest := int(out[deep].max())) < DARK:
        notes["depth_note"] = (
            f"no 16-bit image goes beyond {brightest} of 255 after scaling (do they hold 12 bits?); "
            "stretch them to the full 16 bits for finer steps of grey"
        )
    return _divide(parts, out, bad), notes


def resize_arrays(parts: Mapping[str, Part], size: tuple[int, int] | None) -> dict[str, Part]:
    """The parts with ready-made images in another size; as they are for features, or where no size is asked."""
    return {
        name: part
        if size is None or not isinstance(part.inputs, np.ndarray) or part.inputs.ndim != 4
        else replace(part, inputs=np.stack([_resize(pixels, size) for pixels in part.inputs]))
        for name, part in parts.items()
    }


def _resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    resized = image.resize((size[1], size[0]), Image.Resampling.LANCZOS)
    return np.asarray(resized).reshape(*size, pixels.shape[-1])


def _divide(parts: Mapping[str, Part], pixels: np.ndarray, bad: Mapping[int, str]) -> dict[str, Part]:
    """The parts with their stretch of the pixels, bad rows left out."""
    divided, start = {}, 0
    for name, part in parts.items():
        assert isinstance(part.inputs, EncodedImages)
        rows = np.arange(len(part.labels))
        good = rows[~np.isin(rows + start, list(bad))] if bad else slice(None)
        divided[name] = replace(
            part,
            inputs=pixels[start : start + len(rows)][good],
            labels=part.labels[good],
            groups=None if part.groups is None else part.groups[good],
            names=[name for row, name in enumerate(part.inputs.names) if row + start not in bad],
        )
        start += len(rows)
    return divided


def _refuse_bad(bad: Mapping[int, str], names: list[str], skip_bad: bool) -> None:
    if bad and len(bad) == len(names):
        raise InputError(f"none of the {len(names):,} images can be read; the first, {names[0]}: {bad[0]}")
    if not bad or skip_bad:
        return
    told = [(names[row], why) for row, why in sorted(bad.items())]
    if len(told) == 1:
        ((name, why),) = told
        said = f"image {name} cannot be read: {why}; repair or remove it"
    else:
        shown = ", ".join(f"{name} ({why})" for name, why in told[:BAD_SHOWN])
        more = ", …" if len(told) > BAD_SHOWN else ""
        said = f"{len(told):,} of {len(names):,} images cannot be read: {shown}{more}; repair or remove them"
    raise InputError(f"{said}, or leave out unreadable images with skip_bad=True (--skip-bad)")


def _choose_shape(
    probed: np.ndarray, size: tuple[int, int] | None, cropped: bool
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """(H, W, C) for all images, and a note where the size was chosen for the user."""
    channels = 1 if probed[:, 2].all() else 3
    if size is not None:
        return (*size, channels), {}
    heights, widths = probed[:, 0], probed[:, 1]
    smallest, largest = (heights.min(), widths.min()), (heights.max(), widths.max())
    if smallest == largest and max(largest) <= DEFAULT_SIDE_PX and not cropped:
        return (int(largest[0]), int(largest[1]), channels), {}
    median = float(np.median(np.maximum(heights, widths)))
    side = min(DEFAULT_SIDE_PX, max(8, 8 * round(median / 8)))
    note = (
        f"images are {smallest[1]}x{smallest[0]} to {largest[1]}x{largest[0]} pixels (width x height); resized "
        f"to {side}x{side}, the median side up to {DEFAULT_SIDE_PX}; choose another with size= (--size)"
    )
    return (side, side, channels), {"size_note": note}


def _open(source: str | memoryview) -> Image.Image:
    if isinstance(source, str) and os.path.exists(source) and not stat.S_ISREG(os.stat(source).st_mode):
        raise ValueError("it is not a file but a folder, pipe or device")  # to open a pipe would be to wait for ever
    try:
        image = Image.open(source if isinstance(source, str) else io.BytesIO(source))
    except UnidentifiedImageError:
        raise ValueError("it is not an image of a known kind") from None
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except PermissionError:
        raise ValueError("this user may not read it") from None
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,} (a decompression bomb?)")
    return image


def is_image(file: str) -> bool:
    """Whether the file begins as an image of a known kind does, whatever it is called."""
    try:
        with _open(file):
            return True
    except (ValueError, OSError):
        return False


def _probe(source: str | memoryview) -> tuple[int, int, bool, bool]:
    """(height, width, is grey, has 16 bits) from the file's header, as the image will stand upright."""
    with _open(source) as image:
        width, height = image.size
        if _orientation(image) in (5, 6, 7, 8):
            width, height = height, width
        return height, width, image.mode in GREY_MODES, image.mode == "I" or image.mode.startswith("I;16")


def _orientation(image: Image.Image) -> int:
    # Only where the header has shown EXIF data: asking a PNG for it decodes the whole image.
    return image.getexif().get(0x0112, 1) if "exif" in image.info else 1


def to_array(source: str | memoryview, shape: tuple[int, int, int], box: np.ndarray | None) -> np.ndarray:
    """One image as uint8 (H, W, C)."""
    height, width, channels = shape
    with _open(source) as opened:
        ImageOps.exif_transpose(opened, in_place=True)
        image = _to_eight_bits(opened, "L" if channels == 1 else "RGB")
        if box is not None:
            edges = (box * (image.width, image.height, image.width, image.height)).tolist()
            image = image.resize((width, height), Image.Resampling.LANCZOS, box=tuple(edges))
        elif image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(image).reshape(shape)


def _to_eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """The image in mode L or RGB: 16 bits scaled down, transparency laid on white."""
    if image.mode == "F":
        raise ValueError("its pixels are floats; save it with 8 or 16 bits a channel")
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are 32-bit numbers; save it with 8 or 16 bits a channel")
        image = Image.fromarray((values.astype(np.uint16) >> 8).astype(np.uint8))  # convert("L") would clip
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
