"""The cache: used only if complete, keyed by content and options; its failures are not fatal."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from camri import files
from camri.data import cache, decode, load
from camri.data.dataset import DataSet
from camri.errors import InputError

from .pictures import picture, write_picture


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every image that is decoded while the test runs (in this process: small sets are)."""
    seen: list[str] = []
    original = decode.to_array

    def counting(source: str, *rest: object) -> np.ndarray:
        seen.append(str(source))
        return original(source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "to_array", counting)
    return iter([seen])


def same(one: DataSet, other: DataSet) -> bool:
    return (
        (one.name, one.classes, one.fingerprint, one.provenance)
        == (other.name, other.classes, other.fingerprint, other.provenance)
        and list(one.splits) == list(other.splits)
        and all(
            one.splits[part].inputs.equal(other.splits[part].inputs)
            and one.splits[part].labels.equal(other.splits[part].labels)
            for part in one.splits
        )
    )


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.data"))


def test_decoded_once(pets: Path, decodings: Iterator[list[str]], own_cache: Path) -> None:
    seen = next(decodings)
    first, second = load(pets), load(pets)
    assert len(seen) == 6
    assert same(first, second)
    assert len(data_files(own_cache)) == 1


def test_reading_is_memory_mapped_and_writing_to_it_leaves_the_file_alone(pets: Path, own_cache: Path) -> None:
    load(pets)
    (file,) = data_files(own_cache)
    before = hashlib.sha256(file.read_bytes()).digest()
    data = load(pets)
    told = cache.read_cache(file)
    assert told is not None
    base = told[1]["train/inputs"]
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    data.splits["train"].inputs.fill_(0)
    assert hashlib.sha256(file.read_bytes()).digest() == before


def test_other_options_are_another_entry(pets: Path, own_cache: Path) -> None:
    assert load(pets).input_shape == (6, 5, 3)
    small = load(pets, size=4)
    assert small.input_shape == (4, 4, 3)
    assert same(load(pets, size=4), small)
    assert load(pets).input_shape == (6, 5, 3)
    assert len(data_files(own_cache)) == 2


@pytest.mark.parametrize("settled", [True, False])
def test_changed_content_is_seen_even_with_size_and_time_kept(
    pets: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    if settled:
        monkeypatch.setattr(cache, "SETTLED_AFTER_NS", -1)  # remember the hash at once
    for name in ("a", "b"):
        write_picture(pets / "cat" / f"{name}.bmp", picture(1))
    first = load(pets)
    file = pets / "cat" / "a.bmp"
    stat = file.stat()
    write_picture(file, picture(77))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    second = load(pets)
    assert first.fingerprint != second.fingerprint
    assert np.array_equal(second.splits["train"].inputs[3].numpy(), picture(77))


def test_the_content_hash_is_remembered_for_settled_files(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SETTLED_AFTER_NS", -1)
    first = load(pets)
    monkeypatch.setattr(cache, "hash_file", lambda *_: pytest.fail("an unchanged file was read again"))
    assert same(load(pets), first)


def test_fresh_files_are_not_remembered(pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SETTLED_AFTER_NS", 3_600_000_000_000)  # they are seconds old on a busy machine
    load(pets)
    assert list(own_cache.glob("*.files")) == []


def test_a_copy_of_the_data_is_not_decoded_again(pets: Path, tmp_path: Path, decodings: Iterator[list[str]]) -> None:
    import shutil

    seen = next(decodings)
    load(pets)
    shutil.copytree(pets, tmp_path / "elsewhere" / "pets")
    load(tmp_path / "elsewhere" / "pets")
    assert len(seen) == 6


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "header", "length", "magic"])
def test_a_damaged_file_is_not_used(pets: Path, own_cache: Path, damage: str) -> None:
    whole = load(pets)
    (file,) = data_files(own_cache)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[:-1]
    elif damage == "longer":
        content += b"\x00"
    elif damage == "empty":
        content = bytearray()
    else:
        content[{"header": 100, "length": 14, "magic": 0}[damage]] ^= 0x41
    file.write_bytes(content)
    assert cache.read_cache(file) is None
    assert same(load(pets), whole)
    assert cache.read_cache(file) is not None


def test_a_kill_in_the_middle_leaves_no_valid_entry(pets: Path, own_cache: Path) -> None:
    """The process is killed between writing and renaming, where the file is complete but has no name yet."""
    script = (
        "import os, signal, camri.data.cache as cache\n"
        "cache.os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from camri.data import load\n"
        f"load({str(pets)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert data_files(own_cache) == []
    (leftover,) = own_cache.glob(".part-*")
    os.utime(leftover, (time.time() - 90_000,) * 2)
    assert load(pets).class_counts("train").tolist() == [3, 3]
    assert list(own_cache.glob(".part-*")) == []
    assert len(data_files(own_cache)) == 1


def test_an_unwritable_cache_is_a_warning(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match=r"cannot be cached in .*file/cache"):
        data = load(pets, cache=tmp_path / "file" / "cache")
    assert data.class_counts("train").tolist() == [3, 3]


def test_a_full_disk_is_a_warning_and_leaves_nothing(
    pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        load(pets)
    assert list(own_cache.iterdir()) == []


def test_no_cache_on_request(pets: Path, own_cache: Path) -> None:
    assert same(load(pets, cache=False), load(pets, cache=False))
    assert list(own_cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAMRI_CACHE", "/somewhere")
    assert files.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("CAMRI_CACHE")
    monkeypatch.setattr(files.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "camri"
    monkeypatch.setattr(files.sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "Library" / "Caches" / "camri"


def test_arrays_of_all_kinds_come_back(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(7, dtype=np.int64),
        "b": np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32),
        "c": np.zeros((0, 4), np.uint8),
        "d": np.arange(12, dtype=np.uint8).reshape(3, 4).T,  # not contiguous
    }
    cache.write_cache(tmp_path / "x.data", {"é": [1, None]}, arrays)
    told = cache.read_cache(tmp_path / "x.data")
    assert told is not None
    assert told[0] == {"é": [1, None]}
    for name, array in arrays.items():
        assert told[1][name].dtype == array.dtype
        assert np.array_equal(told[1][name], array)


def test_the_fingerprint_follows_pixels_labels_and_names(tmp_path: Path) -> None:
    def fingerprint(pixels: list, labels: list, classes: list) -> str:
        np.savez(
            tmp_path / "a.npz", images=np.array(pixels, np.uint8).reshape(2, 1, 1, 1), labels=labels, classes=classes
        )
        return load(tmp_path / "a.npz", cache=False).fingerprint

    base = fingerprint([1, 2], [0, 1], ["a", "b"])
    assert base == fingerprint([1, 2], [0, 1], ["a", "b"])
    others = {
        fingerprint([1, 3], [0, 1], ["a", "b"]),
        fingerprint([1, 2], [1, 0], ["a", "b"]),
        fingerprint([1, 2], [0, 1], ["a", "c"]),
    }
    assert len({base} | others) == 4


def test_a_refusal_is_not_cached(pets: Path) -> None:
    (pets / "cat" / "x.png").write_bytes(b"no")
    for _ in range(2):
        with pytest.raises(InputError, match=r"cat/x\.png"):
            load(pets)
