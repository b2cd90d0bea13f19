"""CIFAR-10 as it is published: the python (pickled) and the binary batches."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from camri.data.identity import md5
from camri.data.listing import Found, Listing, Part
from camri.errors import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PICKLED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
# sha256 of the decoded uint8 (N, 32, 32, 3) arrays, whichever layout they came in.
OFFICIAL_SHA256 = {
    "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
}
PIXELS = 3 * 32 * 32
Reader = Callable[[Path], tuple[np.ndarray, np.ndarray]]  # (pixels, labels) of one batch


def find(path: Path, verify: bool) -> Found | None:
    """The batches in path or in the folder that the official archive makes there; None where there are none."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if (folder / "data_batch_1").is_file():
            return _find("cifar10 python", folder, PICKLED_MD5, _read_pickled, verify)
        if (folder / "data_batch_1.bin").is_file():
            return _find("cifar10 binary", folder, BINARY_MD5, _read_binary, verify)
    return None


def _find(layout: str, folder: Path, checksums: dict[str, str], reader: Reader, verify: bool) -> Found:
    files = {name: folder / name for name in checksums}
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"{folder} has no {name}; CIFAR-10 needs {', '.join(checksums)}")

    def read(scratch: str) -> Listing:
        if verify:
            _verify(files, checksums)
        return _join({name: reader(file) for name, file in files.items()}, verify)

    return Found(layout, [str(file) for file in files.values()], read)


def _verify(files: dict[str, Path], checksums: dict[str, str]) -> None:
    for name, file in files.items():
        if md5(str(file)) != checksums[name]:
            raise InputError(
                f"{file} differs from the official file (its md5 is not {checksums[name]}); get it again, or pass "
                "verify=False (--no-verify) if it is meant to differ"
            )


def _join(batches: dict[str, tuple[np.ndarray, np.ndarray]], verified: bool) -> Listing:
    parts = {}
    for part, start in (("train", "data_batch"), ("test", "test_batch")):
        chosen = [batch for name, batch in batches.items() if name.startswith(start)]
        planes = np.concatenate([pixels for pixels, _ in chosen]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([labels for _, labels in chosen]).astype(np.int64)
        parts[part] = Part(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
    return Listing(CLASSES, parts, facts={"verified": verified})


def _read_binary(file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(file, dtype=np.uint8)
    if not len(content) or len(content) % (1 + PIXELS):
        raise InputError(f"{file} has {len(content)} bytes, not a multiple of {1 + PIXELS}; get it again")
    rows = content.reshape(-1, 1 + PIXELS)
    return _checked(rows[:, 1:], rows[:, 0], file)


def _read_pickled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = PlainUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
    except InputError as error:
        raise InputError(f"{file} {error}") from None
    except Exception as error:  # a damaged pickle fails in whatever way its bytes lead to
        raise InputError(f"{file} is not a CIFAR-10 batch ({type(error).__name__}); get it again") from None
    return _checked(pixels, labels, file)


def _checked(pixels: np.ndarray, labels: np.ndarray, file: Path) -> tuple[np.ndarray, np.ndarray]:
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS) or labels.dtype.kind not in "iu":
        raise InputError(f"{file} holds {pixels.dtype} {pixels.shape}, not uint8 rows of {PIXELS}; get it again")
    if len(labels) and (labels.min() < 0 or labels.max() > 9):
        raise InputError(f"{file} holds label {labels.max()}; CIFAR-10 has 0 to 9")
    return pixels, labels


class PlainUnpickler(pickle.Unpickler):
    """Reads arrays, lists, dicts, strings and numbers; anything else in the pickle is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _new_array
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module == "_codecs" and name == "encode":
            return _encode_latin1
        raise InputError(f"asks for {module}.{name}, which plain data does not need; it was not opened further")


def _new_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise InputError("builds something that is no plain array; it was not opened further")
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")
