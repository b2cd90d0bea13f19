"""Images that stay on disk: the same rows, splits and results as in memory, within a bound of memory."""

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from camri.data import DataSet, hold_out, load, make_test
from camri.data.describe import describe
from camri.data.rows import Rows, Stored
from camri.engine import Pool, Training, Trial, train
from camri.errors import InputError
from camri.methods import setting
from tests.engine.conftest import same as same_outcome

from .pictures import picture, write_folder, write_picture
from .test_shards import write_shard


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    write_folder(tmp_path / "pets", {"cat": 30, "dog": 40}, height=8, width=8)
    return tmp_path / "pets"


def assert_same(streamed: DataSet, resident: DataSet) -> None:
    assert (streamed.fingerprint, streamed.classes) == (resident.fingerprint, resident.classes)
    assert streamed.provenance == resident.provenance
    for part, split in resident.splits.items():
        ours = streamed.splits[part]
        assert isinstance(ours.inputs, Rows)
        assert isinstance(split.inputs, torch.Tensor)
        assert np.array_equal(ours.inputs.numpy(), split.inputs.numpy())
        assert ours.labels.equal(split.labels)


@pytest.mark.parametrize("first", ["0", None])
def test_the_data_set_is_the_same(pets: Path, first: str | None) -> None:
    load(pets, resident=first)  # the cache is made one way and read both ways
    streamed, resident = load(pets, resident="4 KB"), load(pets)
    assert_same(streamed, resident)
    assert_same(hold_out(make_test(streamed)), hold_out(make_test(resident)))
    on_disk, tensor = streamed.splits["train"].inputs, torch.as_tensor(resident.splits["train"].inputs)
    keys = (3, -1, slice(5, 2), slice(1, None, 3), torch.tensor([4, 4, 5, 6, 0]), torch.tensor([], dtype=torch.int64))
    assert all(on_disk[key].equal(tensor[key]) for key in keys)


def test_reads_that_bring_less_than_asked_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv
    monkeypatch.setattr("os.preadv", lambda file, parts, at: whole(file, [parts[0][:5]], at))
    (tmp_path / "rows").write_bytes(b"_" + bytes(range(48)))
    rows = Rows(Stored(tmp_path / "rows", 1, (4, 12)))
    assert rows[torch.tensor([2, 3, 0])].flatten().tolist() == [*range(24, 48), *range(12)]


def test_blocks_are_decoded_one_after_another(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pets / "cat" / "005.png").write_bytes(b"no image")
    write_picture(pets / "dog" / "000.png", picture(99, 8, 8, 1))
    resident = load(pets, skip_bad=True, cache=False)
    monkeypatch.setattr("camri.data.decode.BLOCK_BYTES", 3 * 8 * 8 * 3)
    assert_same(load(pets, skip_bad=True, resident=0), resident)


def test_arrays_are_streamed_from_their_cache(tmp_path: Path) -> None:
    images = np.stack([picture(seed, 8, 8) for seed in range(20)])
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    assert_same(load(tmp_path / "a.npz", resident="1KiB"), load(tmp_path / "a.npz"))


@pytest.mark.parametrize("workers", [1, 2])
def test_outcomes_agree_to_the_bit(pets: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(model="small", model_options=(("width", 4),), epochs=2, batch_size=16, flip=True)
    trials = [Trial(setting("ce"), seed) for seed in range(2)]
    if workers == 1:
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))  # decoded on the fly
    with Pool() as pool:
        outcomes = [
            train(trials, hold_out(make_test(load(pets, resident=limit))), "cpu", training=training, workers=workers,
                  pool=pool, keep_weights=True, keep_logits=True, important=[0])
            for limit in (None, 0)
        ]  # fmt: skip
    assert all(same_outcome(mine, its) for mine, its in zip(*outcomes, strict=True))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    return monkeypatch


def write_parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [{"bytes": file.read_bytes(), "path": None} for file in sorted(folder.rglob("*.png"))]
    pq.write_table(
        pa.table({"image": images, "label": ["ab"[k % 2] for k in range(len(images))]}), folder / "t.parquet"
    )
    return folder / "t.parquet"


@pytest.mark.parametrize("kind", ["files", "shards", "parquet"])
def test_without_room_on_the_disk_images_are_decoded_on_the_fly(
    pets: Path, full_disk: pytest.MonkeyPatch, own_cache: Path, kind: str
) -> None:
    source = pets
    if kind == "shards":
        files = [
            {f"{k}.png": file.read_bytes(), f"{k}.cls": b"%d" % (k % 2)} for k, file in enumerate(pets.rglob("*.png"))
        ]
        source = write_shard(pets / "a.tar", {name: content for pair in files for name, content in pair.items()})
    elif kind == "parquet":
        source = write_parquet(pets)
    else:
        (pets / "cat" / "005.png").write_bytes(b"no image")
    skip = {"skip_bad": True} if kind == "files" else {}
    resident = load(source, cache=False, **skip)
    streamed = load(source, resident=0, **skip)
    assert_same(streamed, resident)
    assert "decoded on the fly (the cache's disk has 0.0 GiB left), " in describe(streamed)["memory"]
    assert_same(load(source, resident=0, cache=False, **skip), resident)
    assert not list(own_cache.glob("*.pixels"))
    with full_disk.context() as patch:
        patch.setattr("camri.data.decode.to_array", lambda *_: pytest.fail("the second load decodes nothing"))
        again = load(source, resident=0, **skip)
    assert_same(again, resident)
    assert np.array_equal(
        pickle.loads(pickle.dumps(again.splits["train"].inputs)).numpy(), again.splits["train"].inputs.numpy()
    )
    full_disk.undo()
    kept = load(source, resident=0, cache=own_cache, **skip)
    assert describe(kept)["memory"].startswith("streamed from the cache")
    assert_same(kept, resident)


def test_a_disk_that_fills_up_while_images_are_decoded(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("camri.data.cache.Draft.write", full)
    streamed = load(pets, resident=0)
    assert "decoded on the fly (no room in the cache)" in describe(streamed)["memory"]
    assert_same(streamed, load(pets, cache=False))


def test_what_cannot_be_decoded_on_the_fly(pets: Path, tmp_path: Path, full_disk: pytest.MonkeyPatch) -> None:
    import shutil

    archive = shutil.make_archive(str(tmp_path / "pets"), "zip", pets)
    with pytest.raises(InputError, match="unpack it and give the folder, or set CAMRI_CACHE"):
        load(archive, resident=0)
    data = load(pets, resident=0)
    (pets / "cat" / "000.png").unlink()
    with pytest.raises(InputError, match=r"000\.png has changed while it was in use: there is no such file"):
        data.splits["train"].inputs[:]


@pytest.mark.parametrize("file", ["*.pixels", "*.data"])
def test_damage_is_seen(pets: Path, own_cache: Path, file: str) -> None:
    load(pets, resident=0)
    (cached,) = own_cache.glob(file)
    content = bytearray(cached.read_bytes())
    content[-1] ^= 1
    cached.write_bytes(content)
    if file == "*.data":
        assert_same(load(pets, resident=0), load(pets, cache=False))
        return
    with pytest.warns(UserWarning, match="is damaged"):
        data = load(pets, resident=0)
    cached.write_bytes(b"")
    with pytest.raises(InputError, match="was cut short"):
        data.splits["train"].inputs[:]


@pytest.mark.parametrize("size", ["2 gigs", "-1", "", "1.5iB", True, "GiB"])
def test_a_size_that_is_none(pets: Path, size: object) -> None:
    with pytest.raises(InputError, match="is not a size; for example 2GiB"):
        load(pets, resident=size)  # type: ignore[arg-type]


MEASURED = """
import re, sys
from dataclasses import replace
from pathlib import Path
import torch
from camri.data import hold_out, load, make_test
from camri.engine import Training, Trial, train
from camri.methods import setting

def most_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

torch.set_num_threads(1)
folder, side, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3]
train([Trial(setting("ce"), 0)], load("digits"), "cpu", training=Training(model="small", epochs=1), workers=1)
before = most_mib()
for _ in range(2):  # decoded, then from the cache
    data = hold_out(make_test(load(folder, size=side, resize="box", resident=limit)))
for batch in torch.randperm(len(data.splits["train"])).split(64):
    data.splits["train"].inputs[batch]
few = {part: split.rows(list(range(8))) for part, split in data.splits.items()}  # a network takes memory too
training = Training(model="small", model_options=(("width", 1),), epochs=1, batch_size=8)
(outcome,) = train([Trial(setting("ce"), 0)], replace(data, splits=few), "cpu", training=training, workers=1)
assert outcome.status == "done", outcome.error
print(most_mib() - before)
"""


def grown_mib(folder: Path, num: int, side: int, limit: str) -> float:
    """MiB by which a process grows that reads this many images of this side."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
    for number in range(num):
        pixels = np.frombuffer(number.to_bytes(4, "big") * 12, np.uint8).reshape(4, 4, 3)
        (folder / ("cat", "dog")[number % 2] / f"{number}.ppm").write_bytes(b"P6 4 4 255\n" + pixels.tobytes())
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder), str(side), limit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_600_mib_of_images_take_less_than_200(tmp_path: Path) -> None:
    assert 2270 * 304 * 304 * 3 > 600 * 2**20
    assert grown_mib(tmp_path / "pets", 2270, 304, "100MiB") < 200


@pytest.mark.long
def test_6_gib_of_images_take_less_than_one(tmp_path: Path) -> None:
    assert 34_000 * 256 * 256 * 3 > 6 * 2**30
    assert grown_mib(tmp_path / "pets", 34_000, 256, "500MiB") < 1024
