"""Bits flip and files are cut: that is reported or made anew, and never another answer."""

import numpy as np
import pytest

from camri.data import load
from camri.data.cache import read_cache
from tests.data.pictures import write_folder


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_data_cache_with_a_flipped_bit_is_made_anew(tmp_path):
    write_folder(tmp_path / "pets", {"cat": 3, "dog": 3})
    first = load(tmp_path / "pets", cache=tmp_path)
    (cached,) = tmp_path.glob("*.data")
    content = cached.read_bytes()
    place = content.index(first.splits["train"].inputs.numpy().tobytes())
    flip(cached, place + 7, bit=3)
    with pytest.warns(UserWarning, match="its checksum differs"):
        again = load(tmp_path / "pets", cache=tmp_path)
    assert np.array_equal(again.splits["train"].inputs, first.splits["train"].inputs)
    assert cached.read_bytes() == content
    assert read_cache(cached) is not None
