"""Named arrays as one compact blob: the bytes of an .npz file, never a pickle, the same bits back."""

import io
import zipfile
from collections.abc import Mapping

import numpy as np

from camri.metrics import Array


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a compressed .npz file; `numpy.load(io.BytesIO(blob))` reads it anywhere.

    >>> unpack(pack({"hits": np.array([1, 2])}))["hits"].tolist()
    [1, 2]
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"{name} holds Python objects; only plain arrays are stored")
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpack(blob: bytes) -> dict[str, Array]:
    """The arrays of a blob; ValueError where its bytes are damaged."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, KeyError, OSError) as error:
        raise ValueError(f"the stored arrays are damaged ({error})") from error
