"""MNIST: the four idx files, gzipped or not."""

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from camri.data.listing import Found, Listing, Part
from camri.errors import InputError

PREFIXES = {"train": "train", "test": "t10k"}
# md5 of the files when unpacked, so that the check does not depend on who gzipped them.
OFFICIAL_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def find(path: Path, verify: bool) -> Found | None:
    """MNIST at path, path/raw or path/MNIST/raw; None where its train images are not there."""
    for folder in (path, path / "raw", path / "MNIST" / "raw"):
        if _locate(folder, "train-images-idx3-ubyte"):
            return _find(folder, verify)
    return None


def _find(folder: Path, verify: bool) -> Found:
    files = {}
    for name in OFFICIAL_MD5:
        file = _locate(folder, name)
        if file is None:
            raise InputError(f"{folder} has MNIST's train images but not {name}(.gz); get it beside them")
        files[name] = str(file)
    return Found("mnist idx", list(files.values()), lambda scratch: _read(files, verify))


def _locate(folder: Path, name: str) -> Path | None:
    for spelling in (name, name.replace("-idx", ".idx")):
        for file in (folder / f"{spelling}.gz", folder / spelling):
            if file.is_file():
                return file
    return None


def _read(files: dict[str, str], verify: bool) -> Listing:
    parts = {}
    for part, prefix in PREFIXES.items():
        arrays = [
            read_idx(files[name], OFFICIAL_MD5[name] if verify else None)
            for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
        ]
        images, labels = arrays
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise InputError(
                f"MNIST's {part} files do not fit together (images {images.shape}, labels {labels.shape}); "
                "get them again"
            )
        parts[part] = Part(images[..., None], labels.astype(np.int64))
    return Listing(tuple(map(str, range(10))), parts, facts={"verified": verify})


def read_idx(file: str, md5: str | None = None) -> np.ndarray:
    """The array of unsigned bytes in an idx file, gzipped or not; its md5 is checked where one is given."""
    try:
        content = Path(file).read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be unpacked ({error}); get it again") from None
    zeros, kind, num_axes = struct.unpack(">HBB", content[:4].ljust(4, b"\xff"))
    shape = struct.unpack(f">{num_axes}I", content[4 : 4 + 4 * num_axes].ljust(4 * num_axes, b"\x00"))
    if zeros != 0 or kind != 8 or len(content) != 4 + 4 * num_axes + math.prod(shape):
        raise InputError(f"{file} is not a whole idx file of unsigned bytes; get it again")
    if md5 and hashlib.md5(content).hexdigest() != md5:
        raise InputError(
            f"{file} differs from the official file (md5 of its content is not {md5}); get it again, or pass "
            "verify=False (--no-verify) if it is meant to differ"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * num_axes).reshape(shape)
