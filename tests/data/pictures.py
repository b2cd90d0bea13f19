"""Small pictures that the tests write themselves."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, height: int = 6, width: int = 5, channels: int = 3) -> np.ndarray:
    """Random pixels: uint8 (H, W, C)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def write_picture(path: Path, pixels: np.ndarray, **options: object) -> Path:
    """The path, after the pixels were saved there in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path, **options)
    return path


def write_folder(root: Path, counts: dict[str, int], first_seed: int = 0, **shape: int) -> dict[str, np.ndarray]:
    """{file name: pixels} of an image folder with this many PNG files per class folder."""
    written = {}
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            name = f"{folder}/{number:03d}.png"
            written[name] = picture(first_seed + len(written), **shape)
            write_picture(root / name, written[name])
    return written
