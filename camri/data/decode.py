"""Image files -> one uint8 array: 8 bits, upright, RGB (or grey if all images are), one size."""

import functools
import io
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from camri.backbones import frame, resampling
from camri.data.cache import Draft
from camri.data.listing import Encoded, EncodedImages, Part, Slice
from camri.data.parallel import Progress, for_each, num_cores, shared_array
from camri.data.rows import BLOCK_BYTES, Rows, row_hash
from camri.errors import InputError
from camri.files import why_not_read

# Pillow's other formats stay closed: an EPS file named x.png would run Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 89_478_485  # a quarter of a gigabyte of RGB, where Pillow begins to warn
DEFAULT_SIDE_PX = 64  # the largest default size: the paper's largest
DARK = 64  # 16-bit images that stay below this after scaling to 8 bits get a note
LANCZOS = "lanczos"  # stretch to the size with Pillow's filter of this name
BAD_SHOWN = 5  # unreadable images that an error names
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")


def decode_parts(
    parts: Mapping[str, Part],
    size: tuple[int, int] | None,
    skip_bad: bool,
    progress: Progress | None = None,
    resize: str = LANCZOS,
    draft_for: Callable[[tuple[int, ...]], Draft | str | None] = lambda shape: None,
) -> tuple[dict[str, Part], dict[str, Any]]:
    """Decode all images to uint8 (N, H, W, C); return the parts with them and facts for the provenance.

    Unreadable images are refused by name, or with `skip_bad` left out and listed in the facts. draft_for: called with
    the shape (N, H, W, C) of all images. It returns a file to write them to, None to keep them in memory, or the reason
    why they have to be decoded on the fly.
    """
    images = join(parts)
    names, num_images = images.names, len(images.sources)
    probed = shared_array((num_images, 4), np.int32)

    def probe(row: int) -> None:
        probed[row] = _probe(images.sources[row])

    bad = for_each(num_images, probe, progress)
    good = np.setdiff1d(np.arange(num_images), list(bad))
    if not len(good):
        _refuse_bad(bad, names, skip_bad)
    shape, facts = _choose_shape(probed[good], size, cropped=images.boxes is not None)
    extent = probed[good, :2]
    facts["original_sizes"] = {"smallest": extent.min(axis=0).tolist(), "largest": extent.max(axis=0).tolist()}
    draft = draft_for((num_images, *shape))
    block_rows = num_images if draft is None else min(num_images, max(1, BLOCK_BYTES // math.prod(shape)))
    pixels = shared_array((block_rows, *shape), np.uint8)
    brightest, hashes = -1, list[bytes]()
    for first in range(0, num_images, block_rows):
        rows = range(first, min(first + block_rows, num_images))

        def read(place: int, first: int = first) -> None:
            if first + place not in bad:
                pixels[place] = _decode(images, first + place, shape, resize)

        def report(done: int, _: int, first: int = first) -> None:
            if progress is not None:
                progress(first + done, num_images)

        # Also after bad headers: one error names all bad images.
        bad.update((first + place, why) for place, why in for_each(len(rows), read, report).items())
        deep = [row - first for row in rows if probed[row, 3] and row not in bad]
        brightest = max(brightest, int(pixels[deep].max())) if deep else brightest
        if isinstance(draft, Draft):
            draft.write(pixels[: len(rows)].data)
        elif draft is not None:
            hashes += map(row_hash, pixels[: len(rows)])
    _refuse_bad(bad, names, skip_bad)
    if bad:
        facts["skipped"] = [{"file": names[row], "why": why} for row, why in sorted(bad.items())]
        facts["skipped_note"] = f"{len(bad)} unreadable images were skipped"
    if 0 <= brightest < DARK:
        facts["depth_note"] = (
            f"the brightest pixel of the 16-bit images is {brightest} of 255 after scaling (12-bit values?); stretch "
            "them to the full 16 bits to keep more grey levels"
        )
    held: np.ndarray | Rows = pixels
    if isinstance(draft, Draft):
        held = draft.rows((num_images, *shape))
    elif draft is not None:
        held = Rows(Decoder(images, (num_images, *shape), resize, draft, hashes))
    decoded, start = {}, 0
    for part_name, part in parts.items():
        good = np.array([row for row in range(len(part.labels)) if start + row not in bad], dtype=np.int64)
        whole = len(good) == len(part.labels)
        chosen = slice(start, start + len(good)) if whole else start + good  # a slice copies nothing
        decoded[part_name] = replace(
            part,
            inputs=held.take(chosen) if isinstance(held, Rows) else held[chosen],
            labels=part.labels[good],
            groups=None if part.groups is None else part.groups[good],
            names=[names[start + row] for row in good],
        )
        start += len(part.labels)
    return decoded, facts


def join(parts: Mapping[str, Part]) -> EncodedImages:
    """The images of all parts in turn. Either all of them have boxes, or none has."""
    groups = [part.inputs for part in parts.values() if isinstance(part.inputs, EncodedImages)]
    boxes = [group.boxes for group in groups if group.boxes is not None]
    return EncodedImages(
        [source for group in groups for source in group.sources],
        [name for group in groups for name in group.names],
        np.concatenate(boxes) if boxes else None,
    )


def _decode(images: EncodedImages, row: int, shape: tuple[int, ...], resize: str) -> np.ndarray:
    return to_array(images.sources[row], shape, None if images.boxes is None else images.boxes[row], resize)


class Decoder:
    """Images that are decoded on all cores whenever they are read; none is kept. `why` they are not cached."""

    def __init__(
        self, images: EncodedImages, shape: tuple[int, ...], resize: str, why: str, hashes: list[bytes] | None = None
    ):
        self.images, self.shape, self.resize, self.why = images, shape, resize, why
        self.hashes: Sequence[bytes] | None = hashes
        self.how = f"decoded on the fly ({why})"
        self.threads = ThreadPoolExecutor(num_cores())

    def __reduce__(self) -> tuple[Any, ...]:
        portable = [bytes(source) if isinstance(source, memoryview) else source for source in self.images.sources]
        return Decoder, (replace(self.images, sources=portable), self.shape, self.resize, self.why)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        pixels = out.reshape(-1, *self.shape[1:])

        def decode(place: int) -> None:
            try:
                pixels[place] = _decode(self.images, rows[place], self.shape[1:], self.resize)
            except Exception as error:  # image libraries raise anything on broken files
                source = self.images.sources[rows[place]]
                where = source if isinstance(source, str) else getattr(source, "file", f"row {rows[place]}")
                raise InputError(f"{where} has changed while it was in use: {error}") from None

        list(self.threads.map(decode, range(len(pixels))))


def resize_array(images: np.ndarray | Rows, size: tuple[int, int], resize: str = LANCZOS) -> np.ndarray | Rows:
    """Resize uint8 images (N, H, W, C) to (height, width); features (N, D) and images on disk stay as they are."""
    if isinstance(images, Rows) or images.ndim != 4 or images.shape[1:3] == size:
        return images
    resized = [_resized(to_image(pixels), size, resize) for pixels in images]
    return np.stack([np.asarray(image) for image in resized]).reshape(-1, *size, images.shape[-1])


def to_image(pixels: np.ndarray) -> Image.Image:
    """A Pillow image of uint8 (H, W, 1 or 3)."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _refuse_bad(bad: Mapping[int, str], names: Sequence[str], skip_bad: bool) -> None:
    if bad and len(bad) == len(names):
        raise InputError(f"none of the {len(names):,} images can be read; the first, {names[0]}: {bad[0]}")
    if not bad or skip_bad:
        return
    entries = [(names[row], why) for row, why in sorted(bad.items())]
    if len(entries) == 1:
        message = f"image {entries[0][0]} cannot be read: {entries[0][1]}; repair or remove it"
    else:
        shown = ", ".join(f"{name} ({why})" for name, why in entries[:BAD_SHOWN])
        more = ", …" if len(entries) > BAD_SHOWN else ""
        message = f"{len(entries):,} of {len(names):,} images cannot be read: {shown}{more}; repair or remove them"
    raise InputError(f"{message}, or skip them with skip_bad=True", argument="skip_bad")


def _choose_shape(
    probed: np.ndarray, size: tuple[int, int] | None, cropped: bool
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """(H, W, C) for all images, and a note if the size is the default one."""
    channels = 1 if probed[:, 2].all() else 3
    if size is not None:
        return (*size, channels), {}
    heights, widths = probed[:, 0], probed[:, 1]
    smallest, largest = (heights.min(), widths.min()), (heights.max(), widths.max())
    if smallest == largest and max(largest) <= DEFAULT_SIDE_PX and not cropped:
        return (int(largest[0]), int(largest[1]), channels), {}
    median = float(np.median(np.maximum(heights, widths)))
    side = min(DEFAULT_SIDE_PX, max(8, 8 * round(median / 8)))
    sizes = dict.fromkeys(f"{width}x{height}" for height, width in (smallest, largest))
    note = (
        f"images of {' to '.join(sizes)} pixels (width x height) are resized to {side}x{side}; for another size give "
        "size= (--size)"
    )
    return (side, side, channels), {"size_note": note}


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # a build of Pillow may lack some


def image_suffixes() -> set[str]:
    """File name endings of the image formats that can be read, in lower case with the dot."""
    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}


def _open(source: Encoded) -> Image.Image:
    if isinstance(source, str) and (why := why_not_read(source)):
        raise ValueError(f"it {why}")
    try:
        if isinstance(source, Slice):
            with open(source.file, "rb") as shard:
                shard.seek(source.offset)
                source = memoryview(shard.read(source.size))
        image = Image.open(source if isinstance(source, str) else io.BytesIO(source), formats=_formats())
    except UnidentifiedImageError:
        raise ValueError("it is not an image of a known kind") from None
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except PermissionError:
        raise ValueError("permission denied") from None
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width}x{image.height} pixels are more than {MAX_PIXELS:,} (a decompression bomb?)")
    return image


def is_image(file: str) -> bool:
    """Whether the file's content, not its name, is that of a known image format."""
    try:
        with _open(file):
            return True
    except (ValueError, OSError):
        return False


def _probe(source: Encoded) -> tuple[int, int, bool, bool]:
    """(height, width, is grey, has 16 bits) from the file's header; height and width after EXIF rotation."""
    with _open(source) as image:
        width, height = image.size
        # Only if the header shows EXIF data: asking a PNG for it decodes the whole image.
        if "exif" in image.info and image.getexif().get(0x0112, 1) in (5, 6, 7, 8):
            width, height = height, width
        return height, width, image.mode in GREY_MODES, image.mode == "I" or image.mode.startswith("I;16")


def to_array(source: Encoded, shape: tuple[int, ...], box: np.ndarray | None, resize: str = LANCZOS) -> np.ndarray:
    """Decode one image to uint8 (H, W, C).

    box: left, top, right, bottom as fractions of the image, to crop to; None for the whole image. resize: as in
    `camri.backbones.Preprocessing`.
    """
    height, width, channels = shape
    with _open(source) as opened:
        ImageOps.exif_transpose(opened, in_place=True)
        image = _to_eight_bits(opened, "L" if channels == 1 else "RGB")
        if box is not None:
            edges = (box * (image.width, image.height, image.width, image.height)).tolist()
            if resize == LANCZOS:
                image = image.resize((width, height), Image.Resampling.LANCZOS, box=tuple(edges))
            else:
                image = _resized(image.crop(tuple(map(round, edges))), (height, width), resize)
        else:
            image = _resized(image, (height, width), resize)
        return np.asarray(image).reshape(shape)


def _resized(image: Image.Image, size: tuple[int, int], resize: str) -> Image.Image:
    """Stretch the image to (height, width), or scale and crop it; pixels beyond its edge are 0."""
    if image.size == size[::-1] and len(resize.split()) == 1:
        return image
    height, width, top, left = frame(image.height, image.width, size, resize)
    scaled = image.resize((width, height), Image.Resampling(resampling(resize)))
    return scaled.crop((left, top, left + size[1], top + size[0]))


def _to_eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """Convert to mode L or RGB: 16 bits are scaled down, transparent pixels put on white."""
    if image.mode == "F":
        raise ValueError("its pixels are floats; save it with 8 or 16 bits per channel")
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are 32-bit numbers; save it with 8 or 16 bits per channel")
        image = Image.fromarray((values.astype(np.uint16) >> 8).astype(np.uint8))  # convert("L") would clip
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
