"""Tar shards in WebDataset's layout: the same data set as its files, read where they lie; bad ones are refused."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camri.data import load
from camri.data.rows import Rows
from camri.errors import InputError
from camri.export.inputs import Images, Problem, find_inputs

from .pictures import picture


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(seed)).save(out, "PNG")
    return out.getvalue()


def write_shard(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as shard:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def samples(first: int, num: int) -> dict[str, bytes]:
    files = {}
    for number in range(first, first + num):
        files |= {f"{number:06d}.png": png(number), f"{number:06d}.cls": b"%d\n" % (number % 3)}
    return files


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shard(tmp_path / "signs" / "train-000.tar", {"./.hidden": b"", **samples(0, 9), "000000.json": b"{}"})
    write_shard(tmp_path / "signs" / "train-001.tar", samples(9, 6))
    write_shard(tmp_path / "signs" / "test-000.tar", samples(100, 6))
    return tmp_path / "signs"


def test_the_images_and_labels_of_a_folder_of_shards(shards: Path) -> None:
    data = load(shards)
    assert (data.name, data.classes, data.provenance["layout"]) == ("signs", ("0", "1", "2"), "tar shards")
    assert {part: len(split) for part, split in data.splits.items()} == {"train": 15, "test": 6}
    assert data.splits["train"].labels.tolist() == [number % 3 for number in range(15)]
    for number, image in enumerate(data.splits["train"].inputs):
        assert np.array_equal(image.numpy(), picture(number))
    (shards / "classes.txt").write_text("stop\nyield\nleft\n")
    assert load(shards).classes == ("stop", "yield", "left")


def test_patterns_split_folders_and_single_shards(shards: Path, tmp_path: Path) -> None:
    whole = load(shards)
    train = load(f"{shards}/train-*.tar")
    assert train.name == "train"
    assert train.splits["train"].inputs.equal(whole.splits["train"].inputs)
    for part in ("train", "test"):
        for file in shards.glob(f"{part}-*"):
            write_shard(tmp_path / "sorted" / part / file.name, {})
            (tmp_path / "sorted" / part / file.name).write_bytes(file.read_bytes())
    assert load(tmp_path / "sorted").fingerprint == whole.fingerprint
    assert len(load(shards / "train-001.tar").splits["train"]) == 6


def test_shards_are_streamed_too(shards: Path) -> None:
    streamed, resident = load(shards, resident=0), load(shards)
    assert isinstance(streamed.splits["train"].inputs, Rows)
    assert streamed.fingerprint == resident.fingerprint


def test_a_tar_archive_of_class_folders_is_an_archive_still(tmp_path: Path) -> None:
    write_shard(tmp_path / "pets.tar", {f"{name}/{k}.png": png(k) for k, name in enumerate(("cat", "dog") * 2)})
    assert load(tmp_path / "pets.tar").provenance["layout"] == "image folder, in an archive"


def link(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"7.png": png(7)}, "'7.png' has no label; add 7.cls beside it"),
        ({"7.cls": b"1"}, "'7.cls' has no image beside it"),
        ({"7.cls": b" ", "7.png": png(7)}, "'7.cls' holds no label"),
        ({"7.cls": b"x" * 2000, "7.png": png(7)}, "'7.cls' holds no label"),
        ({"7.cls": b"\xff\xfe", "7.png": png(7)}, "is not UTF-8"),
        ({"7.cls": b"1", "7.png": png(7), "7.jpg": png(8)}, "'7.png' and '7.jpg' are two images of one sample"),
        ({"7.cls": b"1", "7.png": b"%!PS-Adobe-3.0 EPSF-3.0"}, "a.tar/7.png cannot be read: it is not an image"),
    ],
)
def test_bad_shards_are_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    shard = write_shard(tmp_path / "a.tar", {**samples(0, 6), **files})
    with pytest.raises(InputError, match=message):
        load(shard)


def test_links_huge_images_and_damaged_shards_are_refused(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = write_shard(tmp_path / "a.tar", samples(0, 6))
    with tarfile.open(shard, "a") as opened:
        opened.addfile(link("7.png"))
    with pytest.raises(InputError, match=r"'7\.png' is a link, device or sparse file"):
        load(shard)
    first = shards / "train-000.tar"
    whole = first.read_bytes()
    flipped = whole[:2560] + b"?" + whole[2561:]  # in a header: tarfile alone would take it for the end
    for content in (whole[:3000], whole[:2048], whole[:1200], flipped):
        first.write_bytes(content)
        with pytest.raises(InputError, match=r"train-000\.tar (is damaged or cut short|cannot be read)"):
            load(shards)
    monkeypatch.setattr("camri.data.shards.IMAGE_BYTES", 50)
    with pytest.raises(InputError, match="bytes; an image may have 50"):
        load(write_shard(tmp_path / "b.tar", samples(0, 6)))


def test_predictions_read_the_images_of_shards(shards: Path, tmp_path: Path) -> None:
    class Trained:
        is_image, input_shape, preprocessing = True, (6, 5, 3), {}

    (group,), left_out = find_inputs([str(shards / "train-001.tar")], Trained())  # type: ignore[arg-type]
    assert isinstance(group, Images)
    (chunk,) = group.chunks(Trained(), lambda done: None)  # type: ignore[arg-type]
    assert [Path(name).name for name in chunk.files] == [f"{number:06d}.png" for number in range(9, 15)]
    assert np.array_equal(chunk.inputs[2], picture(11))
    assert not chunk.problems
    assert left_out == []
    found, _ = find_inputs([str(shards), str(write_shard(tmp_path / "none.tar", {}))], Trained())  # type: ignore[arg-type]
    assert sum(isinstance(group, Images) for group in found) == 3
    assert [group.why for group in found if isinstance(group, Problem)] == ["the tar file holds no images"]
