"""Bad input gives one sentence that says where and what to do, and leaves no partial files."""

import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from camri.data import listing as kinds_of_data
from camri.data import load
from camri.data.listing import Options
from camri.decision.read import read_file
from camri.errors import InputError
from camri.tables import is_table

from .pictures import picture, write_folder, write_picture


def refused(source: Path, sentence: str, **options: object) -> None:
    """The source is refused with this sentence, and the refusal leaves no file in the cache."""
    with pytest.raises(InputError, match=sentence):
        load(source, **options)  # type: ignore[arg-type]
    kept = [name for name in os.listdir(os.environ["CAMRI_CACHE"]) if not name.endswith(".files")]
    assert kept == []


# Images


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def scribble(file: Path) -> None:
    file.write_bytes(b"this is no image" * 9)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def claim_size(file: Path, width: int, height: int) -> None:
    """A PNG whose header speaks of more pixels than there are."""
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    file.write_bytes(content)


def disguise(file: Path) -> None:
    """An EPS file under another name: Pillow would run Ghostscript to read it."""
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    assert Image.open(file).format == "EPS"


def bomb(file: Path) -> None:
    claim_size(file, 30_000, 30_000)


def big_but_not_refused_by_pillow(file: Path) -> None:
    claim_size(file, 10_000, 9_000)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (truncate, "truncated|unrecognized|broken"),
        (scribble, "not an image"),
        (empty, "it is empty"),
        (bomb, "decompression bomb"),
        (big_but_not_refused_by_pillow, r"10000x9000 .* 89,478,485 .*decompression bomb"),
        (disguise, "not an image"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_unreadable_image_is_named_or_left_out(pets: Path, spoil: Callable[[Path], None], why: str) -> None:
    spoil(pets / "cat" / "001.png")
    refused(pets, rf"cat/001.png cannot be read: .*({why}).*skip_bad=True")
    with pytest.warns(UserWarning, match="1 unreadable images"):
        data = load(pets, skip_bad=True)
    assert data.class_counts("train").tolist() == [2, 3]
    assert [entry["file"] for entry in data.provenance["skipped"]] == ["cat/001.png"]
    assert np.array_equal(data.splits["train"].inputs[1].numpy(), np.asarray(Image.open(pets / "cat" / "002.png")))


def test_all_bad_images_are_reported_at_once(pets: Path) -> None:
    """Those whose header is bad, and those that are found bad only when their pixels are read."""
    scribble(pets / "cat" / "001.png")
    for name in ("cat/002.png", "dog/002.png"):
        Image.effect_noise((64, 64), 50).save(pets / name)
        truncate(pets / name)
    refused(
        pets,
        r"^3 of 6 .*cat/001\.png \(.*not an image.*\), cat/002\.png \(.*truncated.*\), dog/002\.png \(.*truncated",
    )
    for name in ("cat/000.png", "dog/000.png", "dog/001.png"):
        shutil.copy(pets / "dog" / "002.png", pets / name)
    for skip_bad in (False, True):
        refused(pets, r"^none of the 6 images .*cat/000\.png: .*truncated", skip_bad=skip_bad)


def test_skipping_all_of_a_class_is_refused(pets: Path) -> None:
    for file in (pets / "cat").iterdir():
        scribble(file)
    refused(pets, "class 'cat' is empty", skip_bad=True)


def test_a_folder_that_may_not_be_read(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(InputError, match="pets: permission denied"):
        load(pets)


def test_no_space_to_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("a/1.png", b"x")
    monkeypatch.setattr(shutil, "copyfileobj", full)
    refused(tmp_path / "a.zip", r"a\.zip cannot be unpacked .*No space left on device\); free some space")


def test_a_stray_text_file_is_named(pets: Path) -> None:
    (pets / "dog" / "notes.txt").write_text("hello")
    refused(pets, "dog/notes.txt cannot be read: .*not an image")


def test_a_broken_link_and_a_missing_file(pets: Path) -> None:
    os.symlink(pets / "nowhere.png", pets / "cat" / "zzz.png")
    refused(pets, "cat/zzz.png cannot be read: .*no such file")


def test_a_missing_file_of_a_table(tmp_path: Path) -> None:
    write_picture(tmp_path / "1.png", picture(1))
    (tmp_path / "t.csv").write_text("path,label\n1.png,a\n2.png,b\n")
    refused(tmp_path / "t.csv", "2.png cannot be read: .*no such file")


# Folders


def test_symlink_loops(pets: Path) -> None:
    os.symlink(pets / "cat", pets / "cat" / "again")
    refused(pets, "cat/again .*loop")
    (pets / "cat" / "again").unlink()
    os.symlink("self", pets / "cat" / "self")
    refused(pets, "self")


@pytest.mark.parametrize("is_cached", [False, True])
def test_an_empty_class(pets: Path, is_cached: bool) -> None:
    """It is seen although the images are in the cache."""
    if is_cached:
        load(pets)
    (pets / "eel").mkdir()
    with pytest.raises(InputError, match="class 'eel' is empty"):
        load(pets)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"cat": 3}, r"only one class \('cat'\)"),
        ({"train/a": 2, "train/b": 2, "test/a": 1, "test/c": 1}, "class 'c' is in test but has no training rows"),
        ({"test/a": 2, "test/b": 2}, "has no training rows; it has test"),
        ({"train/a": 2, "train/b": 2, "extra": 0}, "train/ and also extra/"),
        ({"train/a": 2, "train/b": 2, "training/a": 2}, "two folders for one split: train, training"),
    ],
)
def test_bad_folders(tmp_path: Path, counts: dict[str, int], sentence: str) -> None:
    write_folder(tmp_path / "d", counts)
    refused(tmp_path / "d", sentence)


def test_images_without_a_class_folder(pets: Path) -> None:
    write_picture(pets / "loose.png", picture(3))
    refused(pets, r"images beside its class folders \(loose.png\)")


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    refused(tmp_path, "no data set is recognised in .*; give a folder")
    refused(tmp_path / "readme.txt", "no data set is recognised")


def test_class_folders_that_are_not_utf8(pets: Path) -> None:
    os.rename(pets / "cat", os.fsencode(pets) + b"/caf\xe9")
    refused(pets, r"b'caf\\xe9' is not UTF-8")


def test_a_locale_that_cannot_read_a_class_folder_is_reported(pets: Path) -> None:
    os.rename(pets / "cat", os.fsencode(pets) + "/café".encode())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "camri", "data", "show", str(pets)]
    done = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert r"'caf\xe9'" in done.stderr
    assert "ascii locale; set PYTHONUTF8=1" in done.stderr


def test_image_files_that_are_not_utf8_are_read_and_named(pets: Path) -> None:
    odd = os.fsencode(pets) + b"/cat/z\xe9.png"
    os.rename(pets / "cat" / "002.png", odd)
    assert load(pets).class_counts("train").tolist() == [3, 3]
    with open(odd, "wb") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match=r"image cat/z\\xe9.png cannot be read"):
        load(pets)


# Tables


def table(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    for k in range(3):
        write_picture(tmp_path / f"{k}.png", picture(k))
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("path,label\n0.png,0.5\n1.png,1.5\n", r"column 'label': labels are floats \(one is 0.5\)"),
        ("path,label\n0.png,1.0\n1.png,2e0\n", r"labels are floats \(one is 2e0\)"),
        ("path,label\n0.png,a\n1.png,\n", "column 'label', train part: the label of row 1 is missing"),
        ("path,label\n0.png,nan\n1.png,b\n", "the label of row 0 is missing"),
        ("path,label\n,a\n1.png,b\n", "the path of row 0 is missing"),
        ("path,label\n0.png,a\n,b\n,a\n", r"the path of rows 1, 2 \(2 of 3\) is missing"),
        ("f,label,group\n1,a,x\n2,b,\n", "train part, column 'group': the group of row 1 is missing"),
        ("f,label\n,a\n,b\n", "column 'f' has no values; fill it in or drop it"),
        ("path,label,label\n0.png,a,b\n", "two columns called 'label'"),
        (
            ",".join([*(f"f{k}" for k in range(20)), "fraud"]) + "\n" + ",".join(["0"] * 20 + ["a"]) + "\n",
            r"no label column among f0, f1, .*, f10, …, fraud",
        ),
        ("path,kind\n0.png,a\n", "no label column among path, kind; .*label_column="),
        ("label\na\nb\n", "a label column and nothing else"),
        ("city,label\nRome,a\nOslo,b\n", r"column 'city' holds string \(first 'Rome'\), not numbers"),
        ("n,label\n1,a\n?,b\n", r"column 'n' holds string \(first '\?'\), not numbers"),
        ("n;label\n3;a\n-3,14;b\n", r"column 'n' has numbers with commas \(first '-3,14'\); .*decimal points"),
        ('n,label\n"1,234.5",a\n"1,5e-3",b\n', r"column 'n' has numbers with commas \(first '1,234\.5'\)"),
        ('n,label\n1,a\n2,"b\n3,b\n4,a\n', "t.csv, line 3: a quote is opened and never closed"),
        ('n,"label\n1,a\n2,b\n', "t.csv, line 1: a quote is opened"),
        ('n,label\n1,"a\nb"\n2,"say ""b"\n3,"c\n', "t.csv, line 5: a quote is opened"),
        ('n,label\n"1, 2",a\n2,b\n', r"column 'n' holds string \(first '1, 2'\)"),
        ("n,label\n3,14,a\n", "Expected 2 columns, got 3: 3,14,a; .*decimals with a point"),
        ("path,label\n", "t.csv has no rows"),
        ("path,label\n0.png,a,b\n1.png\n", "t.csv cannot be read as a table: .*as many values"),
        ("path,label,split\n0.png,a,train\n1.png,b,holdout\n", "column 'split': 'holdout' is no split; .*val, test"),
        ("f,label\n0,1\n1,2.5\n", r"labels are floats \(one is 2\.5\)"),
        ("f,label\n0,a\n1,b\x7f\n", r"class name 'b\\x7f' is not printable"),
        ("path,label\n0.png,a\n1.png,a\n", r"only one class \('a'\)"),
        ("f1,label\ninf,a\n3,b\n", "row 0, column f1 is inf; 1 such values must be filled in"),
        ("f1,label\n1,a\n-1e39,b\n2e40,a\n", r"row 1, column f1 is -1e\+39; 2 such values exceed 3\.4e\+38"),
        ("f1,label\n1e39,a\n,b\n", r"row 0, column f1 is 1e\+39; 2 such values exceed"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, sentence: str) -> None:
    refused(table(tmp_path, text), sentence)


def test_a_table_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("path,label\ncafé.png,a\n".encode("latin1"))
    refused(tmp_path / "t.csv", r"t.csv is not UTF-8 text \(byte 0xe9\)")


@pytest.mark.parametrize("name", ["t.csv.gz", "T.TSV.GZ", "t.csv.zst"])
def test_a_packed_table_is_to_be_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"f,label\n1,a\n2,b\n"))
    refused(tmp_path / name, rf"{name} is a compressed table; .*give {name.rpartition('.')[0]}")
    with pytest.raises(InputError, match="is a compressed table"):
        read_file(tmp_path / name, 0)
    assert [is_table(Path(other)) for other in ("photos.gz", "t.csv.d", "t.csv")] == [False, False, True]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_hundred_thousand_classes_are_refused_at_once(tmp_path: Path, form: str) -> None:
    import time

    columns = {"f": np.zeros(100_000), "label": [f"id{k}" for k in range(100_000)]}
    if form == "csv":
        (tmp_path / "t.csv").write_text("f,label\n" + "".join(f"0.0,{name}\n" for name in columns["label"]))
    else:
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    start = time.thread_time()
    refused(tmp_path / f"t.{form}", "100,000 different labels in 100,000 rows look like identifiers")
    assert time.thread_time() - start < 5


def test_a_hundred_thousand_real_classes_are_read(tmp_path: Path) -> None:
    labels = np.arange(300_000) % 100_000
    pq.write_table(pa.table({"f": labels.astype(np.float32), "label": labels}), tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet")
    assert data.num_classes == 100_000
    assert np.array_equal(data.splits["train"].labels.numpy(), labels)
    with pytest.raises(InputError, match=r"class '100001' is not in t; .* \(100000 in all\)"):
        data.class_index("100001")


def test_bad_parquet(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["label", "label"]), file)
    refused(file, "two columns called 'label'")
    pq.write_table(pa.table({"features": [[1.0, 2.0], [1.0]], "label": ["a", "b"]}), file)
    refused(file, r"column 'features': rows without the 2 values .*row 1 \(1 values\)")
    pq.write_table(pa.table({"f": [1.0, 2.0], "label": [0.0, 1.5]}), file)
    refused(file, r"labels are floats \(row 1 is 1.5\)")
    pq.write_table(pa.table({"f": [1.0, 2.0], "label": [1, None]}), file)
    refused(file, "the label of row 1 is missing")
    names = {b"huggingface": b'{"info": {"features": {"label": {"names": ["a", "b"]}}}}'}
    pq.write_table(pa.table({"f": [1.0, 2.0], "label": [0, 2]}).replace_schema_metadata(names), file)
    refused(file, "label 2 has no name; .*0 to 1")
    file.write_bytes(file.read_bytes()[:-9])
    refused(file, "t.parquet cannot be read as a table")
    pq.write_table(pa.table({"image": [b"", None], "label": ["a", "b"]}), file)
    refused(file, "none of the 2 images .*row 0: .*not an image")


@pytest.mark.parametrize("written", ["1.0,10.0,-2.0", "1.,10,-2.0", "1,10,-2"])
def test_whole_numbers_written_as_floats_are_those_whole_numbers(tmp_path: Path, written: str) -> None:
    """pandas writes them so where a label was missing once; `camri audit` reads them so too."""
    labels = written.split(",") * 2 + ["10"]
    (tmp_path / "t.csv").write_text("f,label\n" + "".join(f"{k}.5,{label}\n" for k, label in enumerate(labels)))
    numbers = np.array([float(label) for label in labels])
    pq.write_table(pa.table({"f": np.arange(7.0), "label": numbers}), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", features=np.arange(7.0).reshape(7, 1), labels=numbers)
    for name in ("t.csv", "t.parquet", "t.npz"):
        data = load(tmp_path / name)
        assert data.classes == ("-2", "1", "10"), name
        assert data.splits["train"].labels.tolist() == [1, 2, 0, 1, 2, 0, 2], name


# Arrays


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": np.zeros((2, 4, 4, 3)), "labels": [0, 1]}, r"inputs are float64 \(2, 4, 4, 3\)"),
        ({"images": np.zeros((2, 8, 6, 4), np.uint8), "labels": [0, 1]}, r"inputs are uint8 \(2, 8, 6, 4\)"),
        (
            {"x_train": np.zeros((2, 3)), "y_train": [0, 1], "x_test": np.zeros((2, 3))},
            "holds x_train, y_train, x_test; name the arrays",
        ),
        ({"images": np.zeros((3, 4, 4, 3), np.uint8), "labels": [0, 1]}, "3 inputs but 2 labels"),
        ({"features": np.zeros((2, 3)), "labels": np.eye(2)}, r"labels have shape \(2, 2\); give one class per row"),
        ({"features": np.zeros((2, 3)), "labels": [0.0, 0.25]}, r"labels are floats \(row 1 is 0.25\)"),
        ({"features": np.zeros((2, 3)), "labels": [0.0, 1e300]}, r"labels are floats \(row 1 is 1e\+300\)"),
        ({"features": np.zeros((2, 3)), "labels": [0.0, np.nan]}, "the label of row 1 is missing"),
        ({"features": np.array([[1, np.nan]] * 2), "labels": [0, 1]}, "the feature in row 0, column 1 is nan"),
        ({"pixels": np.zeros((2, 3))}, "holds pixels; name the arrays"),
        ({"features": np.zeros((2, 3)), "labels": np.array([None, {}])}, "cannot be read as plain arrays"),
        ({"features": np.zeros((2, 3)), "labels": [0, 1], "groups": [0.5, 1]}, "groups are float64"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict, sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", sentence)


def test_a_damaged_npz(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nonsense")
    refused(tmp_path / "a.npz", "a.npz cannot be read as plain arrays")


# Archives


def write_archive(path: Path, kind: str) -> None:
    """An archive whose first member is fine and whose second one leads outside."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/1.txt", "fine")
            link = zipfile.ZipInfo("a/link")
            link.external_attr = 0o120777 << 16
            names = {"up": "../evil.txt", "absolute": "/tmp/evil.txt", "windows": "C:\\evil.txt"}
            archive.writestr(names[kind] if kind != "link" else link, "/etc/passwd")
        return
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a/1.txt"))
        names = {"up": "a/../../evil.txt", "absolute": "/tmp/evil.txt", "windows": "..\\evil.txt", "link": "a/link"}
        member = tarfile.TarInfo(names[kind])
        if kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)


@pytest.mark.parametrize("kind", ["up", "absolute", "windows", "link"])
@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_archives_that_reach_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, suffix: str) -> None:
    import tempfile

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    write_archive(tmp_path / f"bad{suffix}", kind)
    refused(tmp_path / f"bad{suffix}", "(written outside|is a link).*; nothing is unpacked")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"bad{suffix}", "scratch"]


def test_a_damaged_archive(tmp_path: Path) -> None:
    write_folder(tmp_path / "in", {"a": 3, "b": 3}, height=40, width=40)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")
    truncate(tmp_path / "x.tar.gz")
    (tmp_path / "y.zip").write_bytes(b"no zip")
    with tarfile.open(tmp_path / "z.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "in", "in")
    content = bytearray((tmp_path / "z.tar.xz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "z.tar.xz").write_bytes(content)
    for name in ("x.tar.gz", "y.zip", "z.tar.xz"):
        refused(tmp_path / name, rf"{name} cannot be unpacked \(.*\); download it again")


def test_an_archive_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camri.data.download.SMALL_BYTES", 1 << 20)
    monkeypatch.setattr("camri.data.download.MAX_RATIO", 100)
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/1.png", bytes(1 << 23))
    refused(tmp_path / "z.zip", r"would grow from .* bytes \(a decompression bomb\?\)")


# Arguments and names


@pytest.mark.parametrize("size", [0, -3, 2.5, (3,), "64", (4, 5000), True])
def test_bad_sizes(pets: Path, size: object) -> None:
    refused(pets, r"size=.* must be .* 1 to 4096 pixels", size=size)


@pytest.mark.parametrize("flag", ["roi", "skip_bad", "verify"])
def test_a_flag_is_true_or_false(pets: Path, flag: str) -> None:
    refused(pets, f"{flag}='no' is not allowed; choices: true, false", **{flag: "no"})


# kind of data -> its layout, and the options that mean something for it
COLUMNS = {f"{role}_column": "kind" for role in ("path", "label", "group", "split")}
GIVEN = {"size": 4, "roi": True, "skip_bad": True, "verify": False, **COLUMNS}
TAKES = {
    "digits": ("images (digits)", {"size"}),
    "pets": ("images (image folder)", {"size", "skip_bad"}),
    "pets.zip": ("images (image folder, in an archive)", {"size", "skip_bad"}),
    "paths.csv": ("images (table)", {"size", "skip_bad", *COLUMNS}),
    "bytes.parquet": ("images (parquet)", {"size", "skip_bad", *COLUMNS}),
    "features.csv": ("features (table)", {*COLUMNS}),
    "features.parquet": ("features (parquet)", {*COLUMNS}),
    "images.npz": ("images (npz)", {"size"}),
    "features.npz": ("features (npz)", set()),
}
TAKEN_BY = {
    "size": "images",
    "roi": "GTSRB",
    "skip_bad": "image files",
    "verify": "the official files of CIFAR-10 and MNIST",
    **dict.fromkeys(COLUMNS, "tables (CSV, TSV, parquet)"),
}
IGNORED = [(kind, option) for kind, (_, takes) in TAKES.items() for option in GIVEN if option not in takes]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set of every kind that people bring."""
    root = tmp_path_factory.mktemp("kinds")
    write_folder(root / "pets", {"cat": 3, "dog": 3})
    with zipfile.ZipFile(root / "pets.zip", "w") as archive:
        for file in sorted((root / "pets").rglob("*.png")):
            archive.write(file, file.relative_to(root))
    names = sorted(str(file.relative_to(root)) for file in (root / "pets").rglob("*.png"))
    (root / "paths.csv").write_text("path,label\n" + "".join(f"{name},{name[5:8]}\n" for name in names))
    (root / "features.csv").write_text("f,label\n1,a\n2,b\n3,a\n4,b\n")
    pq.write_table(pa.table({"features": [[1.0], [2.0]], "label": ["a", "b"]}), root / "features.parquet")
    contents = [(root / name).read_bytes() for name in names]
    pq.write_table(pa.table({"image": contents, "label": [name[5:8] for name in names]}), root / "bytes.parquet")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    np.savez(root / "images.npz", images=pixels, labels=[0, 1, 0, 1])
    np.savez(root / "features.npz", features=np.eye(4), labels=[0, 1, 0, 1])
    return root


@pytest.mark.parametrize(("kind", "option"), IGNORED)
def test_an_option_that_the_data_do_not_take_is_refused(kinds: Path, kind: str, option: str) -> None:
    source = Path("digits") if kind == "digits" else kinds / kind
    wanted = f"{option}={GIVEN[option]!r} is for {TAKEN_BY[option]}, and {source} holds {TAKES[kind][0]}"
    refused(source, "^" + re.escape(wanted), **{option: GIVEN[option]})


@pytest.mark.parametrize("kind", [kind for kind, (_, takes) in TAKES.items() if takes - {*COLUMNS}])
def test_an_option_that_the_data_take_is_taken(kinds: Path, kind: str) -> None:
    options = {option: GIVEN[option] for option in TAKES[kind][1] - {*COLUMNS}}
    assert load("digits" if kind == "digits" else kinds / kind, **options).input_shape[:2] == (4, 4)  # type: ignore[arg-type]


def test_the_columns_of_a_table_in_an_archive_are_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", "f,g,kind\n1,0,a\n2,0,b\n")
    assert load(tmp_path / "t.zip", label_column="kind").classes == ("a", "b")


def test_every_option_says_which_sources_take_it() -> None:
    assert set(vars(Options())) == {*GIVEN, "resize"}  # how a backbone wants its images
    assert set(kinds_of_data.TAKEN_BY) == {*vars(Options()), "backbone", "weights"}  # used after decoding


def test_a_split_column_is_refused_where_files_are_the_splits(tmp_path: Path) -> None:
    for part in ("train", "test"):
        table(tmp_path, "f,label,fold\n1,a,train\n2,b,test\n", f"{part}.csv")
    refused(tmp_path, "split_column='fold' is for a table in one file", split_column="fold")


def test_unknown_class_names_bring_the_closest() -> None:
    digits = load("digits")
    with pytest.raises(InputError, match="class '77' is not in digits; did you mean '7'"):
        digits.class_index("77")
    with pytest.raises(InputError, match="digits has no split 'val'; choices: train, test"):
        digits.class_counts("val")
