"""Named arrays as one compact blob: the bytes of an .npz file, never a pickle, the same bits back."""

import io
import zipfile
import zlib
from collections.abc import Collection, Mapping

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


def unpack(blob: bytes, names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of a blob, or those of some names; ValueError where its bytes are damaged."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"the stored arrays are damaged ({error})") from error
