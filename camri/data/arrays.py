"""NumPy archives (.npz): images or features with labels, under the usual names."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from camri.data.listing import SPLIT_ALIASES, Listing, Part, Source, encode
from camri.data.tables import to_features
from camri.errors import InputError

INPUTS = ("inputs", "images", "features", "x", "data")
LABELS = ("labels", "label", "y", "target", "targets")
CLASS_NAMES = ("classes", "class_names", "names")
GROUPS = ("groups", "group")


def find_arrays(path: Path) -> Source | None:
    """The .npz file at path; None for anything else."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    return Source("npz", [str(path)], lambda scratch: _read(path))


def _read(path: Path) -> Listing:
    arrays = {name.lower(): array for name, array in read_npz(path).items()}
    inputs, labels, groups = (_by_part(arrays, words) for words in (INPUTS, LABELS, GROUPS))
    if not inputs or inputs.keys() != labels.keys():
        raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}; name the arrays x_train, y_train and so on")
    names = next((arrays[name].astype(str).tolist() for name in CLASS_NAMES if name in arrays), None)
    classes, codes = encode(labels, str(path), names)
    parts = {}
    for part, values in inputs.items():
        where = f"{path}, {part} part"
        values = _as_inputs(values, where)
        if len(values) != len(codes[part]):
            raise InputError(f"{where}: {len(values)} inputs but {len(codes[part])} labels; give one label per input")
        group = groups.get(part)
        if group is not None and (group.dtype.kind not in "iu" or group.shape != codes[part].shape):
            raise InputError(f"{where}: groups are {group.dtype} {group.shape}; give one integer per row")
        parts[part] = Part(values, codes[part], None if group is None else group.astype(np.int64))
    return Listing(classes, parts)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        remedy = "save it with numpy.savez, text as str, not object"
        raise InputError(f"{path} cannot be read as plain arrays: {error}; {remedy}") from None


def _by_part(arrays: dict[str, np.ndarray], words: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of one kind by split: x_train, train_images, or images alone (train)."""
    by_part = {
        part: arrays[name]
        for spelling, part in SPLIT_ALIASES.items()
        for word in words
        for name in (f"{word}_{spelling}", f"{spelling}_{word}")
        if name in arrays
    }
    alone = next((arrays[word] for word in words if word in arrays), None)
    return by_part or ({} if alone is None else {"train": alone})


def _as_inputs(values: np.ndarray, where: str) -> np.ndarray:
    """uint8 (N, H, W, C) images or float32 (N, D) features."""
    if values.ndim == 2 and values.dtype.kind in "fiub":
        return to_features(values, where)
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[..., None]
    if values.dtype == np.uint8 and values.ndim == 4:
        if values.shape[3] not in (1, 3) and values.shape[1] in (1, 3):
            values = np.ascontiguousarray(values.transpose(0, 2, 3, 1))
        if values.shape[3] in (1, 3):
            return values
    wanted = "images as uint8 (N, H, W, 1 or 3) or features as numbers (N, D)"
    raise InputError(f"{where}: inputs are {values.dtype} {values.shape}; give {wanted}")
