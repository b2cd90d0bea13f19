"""Messy data: what can be read is read correctly, what is doubtful gives a warning, the rest is refused by name."""

import os
import unicodedata
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from camri.data import DataSet, hold_out, load, make_test
from camri.data.listing import DataWarning, doubtful_names
from camri.data.tables import encoded_names
from camri.errors import InputError

from .pictures import picture, write_folder, write_picture

COMPOSED, APART = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def quietly(source: Path, **options: object) -> DataSet:
    """The data set, read without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load(source, **options)  # type: ignore[arg-type]


def warned(source: Path) -> tuple[DataSet, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        data = load(source)
    assert all(one.category is DataWarning for one in heard)
    return data, [str(one.message) for one in heard]


# Folders


@pytest.mark.parametrize(
    "clutter", ["__MACOSX/cat/._0.png", "cat/@eaDir/thumb.jpg", "__pycache__/x.pyc", "cat/Thumbs.db"]
)
def test_folders_of_other_programs_are_no_classes(pets: Path, clutter: str) -> None:
    (pets / clutter).parent.mkdir(parents=True, exist_ok=True)
    (pets / clutter).write_bytes(b"")
    assert quietly(pets).class_counts("train").tolist() == [3, 3]


def test_a_zip_made_by_macos(pets: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr(".DS_Store", b"x")
        for file in sorted(pets.glob("*/*.png")):
            archive.write(file, f"pets/{file.parent.name}/{file.name}")
            archive.writestr(f"__MACOSX/pets/{file.parent.name}/._{file.name}", b"x")
    data = quietly(tmp_path / "pets.zip")
    assert data.classes == ("cat", "dog")
    assert data.class_counts("train").tolist() == [3, 3]


def test_no_error_suggests_a_path_inside_an_archive(tmp_path: Path) -> None:
    write_folder(tmp_path / "package" / "src", {"cat": 2, "dog": 2})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("package/package.json", b"{}")
        for file in sorted((tmp_path / "package").rglob("*.png")):
            archive.write(file, file.relative_to(tmp_path))
    with pytest.raises(InputError, match=r"give the folder src .*unpack") as caught:
        load(tmp_path / "x.zip")
    assert "x.zip/package/src" not in str(caught.value)
    assert load(tmp_path / "package" / "src").classes == ("cat", "dog")


def test_what_is_wrong_in_an_archive_is_reported_with_its_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", b"x")
    with pytest.raises(InputError, match=rf"no data set is recognised in {tmp_path}/a\.zip; "):
        load(tmp_path / "a.zip")


@pytest.mark.parametrize(("target", "why"), [("nowhere", "broken link"), ("eel", "cannot be followed")])
def test_a_class_that_is_a_broken_link_is_not_skipped(pets: Path, target: str, why: str) -> None:
    os.symlink(target, pets / "eel")
    with pytest.raises(InputError, match=f"pets/eel .*{why}"):
        load(pets)


@pytest.mark.parametrize("form", ["folder", "table"])
def test_a_pipe_is_named_and_not_waited_for(pets: Path, form: str) -> None:
    os.mkfifo(pets / "cat" / "pipe.png")
    (pets.parent / "t.csv").write_text("path,label\npets/cat/pipe.png,a\npets/dog/000.png,b\npets/cat/000.png,a\n")
    with pytest.raises(InputError, match=r"cat/pipe\.png cannot be read: it is not a file"):
        load(pets if form == "folder" else pets.parent / "t.csv")
    with pytest.warns(DataWarning, match="1 unreadable images"):
        assert len(load(pets, skip_bad=True).splits["train"]) == 6


def test_class_folders_one_level_too_deep(tmp_path: Path) -> None:
    write_folder(tmp_path / "d" / "photos", {"cat": 2, "dog": 2})
    with pytest.raises(
        InputError, match=r"only one class \('photos'\); if cat, dog are the classes, give the folder photos"
    ):
        load(tmp_path / "d")


def test_classes_that_are_called_like_a_split(tmp_path: Path) -> None:
    write_folder(tmp_path / "d", {"bus": 2, "train": 2})
    with pytest.raises(InputError, match="put all of them into one folder named train"):
        load(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "d").rename(tmp_path / "e" / "train")
    assert load(tmp_path / "e").classes == ("bus", "train")


def test_a_table_among_its_images(tmp_path: Path) -> None:
    """The only table of a folder or archive is taken; a table beside class folders is not."""
    write_picture(tmp_path / "d" / "images" / "1.png", picture(1))
    write_picture(tmp_path / "d" / "images" / "2.png", picture(2))
    (tmp_path / "d" / "metadata.csv").write_text("file_name,label\nimages/2.png,a\nimages/1.png,b\n")
    data = quietly(tmp_path / "d")
    assert np.array_equal(data.splits["train"].inputs[1].numpy(), picture(1))
    write_folder(tmp_path / "pets", {"cat": 2, "dog": 2})
    (tmp_path / "pets" / "metadata.csv").write_text("file_name,label\ncat/000.png,a\n")
    assert load(tmp_path / "pets").classes == ("cat", "dog")


def test_what_may_not_be_read_is_not_called_broken(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", forbidden)
    with pytest.raises(InputError, match=r"none of the 6 images .*cat/000\.png: permission denied"):
        load(pets)
    (pets.parent / "a.zip").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"a\.zip: permission denied"):
        load(pets.parent / "a.zip")


# Class names


def test_accents_of_two_encodings_are_one_class(tmp_path: Path) -> None:
    write_folder(tmp_path / "d" / "train", {COMPOSED: 2, "tea": 2})
    write_folder(tmp_path / "d" / "test", {APART: 1, "tea": 1}, first_seed=9)
    data = quietly(tmp_path / "d")
    assert data.classes == (COMPOSED, "tea")
    assert data.class_counts("test").tolist() == [1, 1]
    assert data.class_index(APART) == 0


@pytest.mark.parametrize("other", [APART, "café ", "caf\u00e9\u00a0"])
def test_two_folders_for_one_class(tmp_path: Path, other: str) -> None:
    write_folder(tmp_path / "d", {COMPOSED: 2, other: 2})
    with pytest.raises(InputError, match=r"two folders for class 'café', .*caf.* and "):
        load(tmp_path / "d")


def test_white_space_in_labels_is_one_space(tmp_path: Path) -> None:
    rows = ["stop\u00a0sign", " stop  sign", '"stop\nsign"', APART, COMPOSED]
    (tmp_path / "t.csv").write_text("f,label\n" + "".join(f"{k}.5,{name}\n" for k, name in enumerate(rows)))
    data = load(tmp_path / "t.csv")
    assert data.classes == (COMPOSED, "stop sign")
    assert data.splits["train"].labels.tolist() == [1, 1, 1, 0, 0]


def test_doubtful_names_are_reported() -> None:
    assert doubtful_names(["cat", "dog", "none", "1", "10"]) == []
    for names, fact in (
        (["Cat", "cat"], "'Cat' and 'cat' differ only in case"),
        (["01", "1"], "'01' and '1' are the same number"),
        (["NA", "a"], "'NA' is read as a class"),
    ):
        (note,) = doubtful_names(names)
        assert fact in note
    many = doubtful_names([f"{letter}{k}" for k in range(9) for letter in "aA"])
    assert len(many) == 6
    assert many[-1].startswith("4 more")


def test_a_doubtful_name_is_a_warning_each_time(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,label\n1.5,NA\n2.5,b\n")
    for _ in range(2):
        (note,) = warned(tmp_path / "t.csv")[1]
        assert note.startswith("t: 'NA' is read as a class")


# Tables


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pipes.csv", "path|label\n{0}|a\n{1}|b\n"),
        ("commas.tsv", "path,label\n{0},a\n{1},b\n"),
        ("spaces.csv", "label, path\na, {0}\nb, {1} \n"),
        ("quoted.csv", 'path,label,"a\nnote"\n{0},a,"x\ny"\n{1},b,""\n'),
        ("bom.csv", "\ufeffpath;label\r\n{0};a\r\n{1};b\r\n"),
    ],
)
def test_tables_of_other_programs(tmp_path: Path, name: str, text: str) -> None:
    files = [write_picture(tmp_path / "my images" / f"{k}.png", picture(k)) for k in range(2)]
    (tmp_path / name).write_bytes(text.format(*(file.relative_to(tmp_path) for file in files)).encode())
    data = quietly(tmp_path / name)
    assert data.classes == ("a", "b")
    assert np.array_equal(data.splits["train"].inputs[1].numpy(), picture(1))


@pytest.mark.skipif(os.name == "nt", reason="there it is the usual way")
def test_paths_written_on_windows(tmp_path: Path) -> None:
    write_picture(tmp_path / "in" / "0.png", picture(0))
    write_picture(tmp_path / "odd\\1.png", picture(1))  # a name with a backslash in it: it comes first
    write_picture(tmp_path / "odd" / "1.png", picture(2))
    (tmp_path / "t.csv").write_text("path,label\nin\\0.png,a\nodd\\1.png,b\n")
    pixels = load(tmp_path / "t.csv").splits["train"].inputs.numpy()
    assert np.array_equal(pixels, np.stack([picture(0), picture(1)]))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"features": [[1.0, 2.0], [3.0, None]], "label": ["a", "b"]}, "feature in row 1, column 1 is nan; 1 such"),
        (
            {"features": [[1.0, 2.0], None], "label": ["a", "b"]},
            r"t\.parquet, train part, column 'features': rows without the 2 values .*: row 1 \(missing\);",
        ),
        (
            {"features": [[1.0], [1, 2], None, [3, 4], [], [5, 6], [7, 8, 9], [7, 8]], "label": [*"abababab"]},
            r"2 values that most rows have: row 0 \(1 values\), row 2 \(missing\), row 4 \(0 values\), … 4 of 8 rows",
        ),
        (
            {"features": pa.array([None, None], pa.list_(pa.float32())), "label": ["a", "b"]},
            "column 'features': no row has any values; fill the column in or drop it",
        ),
        (
            {"features": pa.array([[], [], [], [1.0]], pa.list_(pa.float32())), "label": [*"abab"]},
            r"rows without the 1 values that most rows have: row 0 \(0 values\), row 1 \(0 values\), row 2",
        ),
        pytest.param(
            {"features": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), "label": ["a", "b"]},
            r"the 2 values that most rows have: row 1 \(missing\)",
            marks=pytest.mark.skipif(
                int(pa.__version__.split(".")[0]) < 26, reason="pyarrow itself cannot read such a file"
            ),
        ),
        ({"features": [[True], [None]], "label": ["a", "b"]}, "the feature in row 1, column 0 is nan"),
        ({"features": [["x"], ["y"]], "label": ["a", "b"]}, "holds lists of string; features are lists of numbers"),
        (
            {"features": [[[1.0]], [[2.0]]], "label": ["a", "b"]},
            "holds lists of list<.*; features are lists of numbers",
        ),
        (
            {"features": pa.array([[], []], pa.list_(pa.float32())), "label": ["a", "b"]},
            r"inputs are empty, of shape \(0,",
        ),
        ({"f": [1.0, 2.0], "label": [["a"], ["b", "c"]]}, r"label of row 0 is \['a'\]; give one class"),
        ({"f": [1.0, 2.0], "label": [{"k": 1}, {"k": 2}]}, r"label of row 0 is \{'k': 1\}; give one class"),
        ({"f": [1.0, 2.0], "label": [b"a", b"\xff"]}, r"label of row 1, b'\\xff', is not UTF-8 text"),
        ({"f": [1.0, 2.0], "label": ["a", "b"], "split": [0, 1]}, "column 'split': '0' is no split; choices: train"),
        ({"f": [0.5, 2.0], "id": [7, 9], "label": ["a", "b"]}, "column 'id' numbers the rows"),
        ({"f": [0.5, 2.0], "__index_level_0__": [4, 1], "label": ["a", "b"]}, "'__index_level_0__' numbers the rows"),
        (
            {"f": [0.5, 2.0], "target": [0, 1], "label": ["a", "b"]},
            "column 'target' is named like a label",
        ),
        ({"f": [1e300, 2.0], "label": ["a", "b"]}, r"column f is 1e\+300; 1 such values exceed"),
        ({"f": [1.0] * 4, "label": ["a", "", None, "b"]}, r"label of rows 1, 2 \(2 of 4\) is missing; fill it"),
        (
            {"path": ["s3://x/1.png", "2.png"], "label": ["a", "b"]},
            "s3://x/1.png in row 0 is a URL",
        ),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, columns: dict, sentence: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=sentence):
        quietly(tmp_path / "t.parquet")


def test_a_second_label_of_a_csv_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,y,kind\n1.5,0,a\n2.5,1,b\n")
    with pytest.raises(InputError, match="column 'y' is named like a label"):
        load(tmp_path / "t.csv", label_column="kind")


def test_a_feature_that_is_the_label_under_another_name_is_a_warning(tmp_path: Path) -> None:
    def write(*, slip: int) -> None:
        rows = [(k % 4, k % 3 * 7, "abc"[k % 3]) for k in range(24)]
        rows[23] = (0, 7 * 2 + slip, "c")
        (tmp_path / "t.csv").write_text("f,code,label\n" + "".join(f"{f},{code},{name}\n" for f, code, name in rows))

    write(slip=0)
    (note,) = warned(tmp_path / "t.csv")[1]
    assert note.startswith("t: feature 'code' has one value for each class")
    write(slip=1)
    assert warned(tmp_path / "t.csv")[1] == []


def test_a_row_may_be_longer_than_a_megabyte(tmp_path: Path) -> None:
    note = "x" * (2**20 + 1)
    for name in "ab":
        write_picture(tmp_path / f"{name}.png", picture(ord(name)))
    (tmp_path / "t.csv").write_text(f"path,label,note\na.png,a,{note}\nb.png,b,{note}\n")
    assert quietly(tmp_path / "t.csv").classes == ("a", "b")


@pytest.mark.parametrize("name", ["labels.csv", "TRAIN.CSV", "train.parquet", "data/train.parquet", "rows.npz"])
def test_tables_beside_what_macos_leaves(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    if name.endswith("npz"):
        np.savez(file, x=[[1.5], [2.5]], y=["a", "b"])
    elif name.endswith("parquet"):
        pq.write_table(pa.table({"f": [1.5, 2.5], "label": ["a", "b"]}), file)
    else:
        file.write_text("f,label\n1.5,a\n2.5,b\n")
    for folder in (file.parent, tmp_path / "__MACOSX"):
        folder.mkdir(exist_ok=True)
        (folder / f"._{file.name}").write_bytes(b"\x00\x05\x16\x07")
    assert quietly(tmp_path).splits["train"].inputs.tolist() == [[1.5], [2.5]]


def test_groups_in_two_splits_are_a_warning(tmp_path: Path) -> None:
    rows = [
        (1, "a", "train", "p"),
        (2, "b", "train", "q"),
        (3, "a", "test", "q"),
        (4, "b", "test", "q"),
        (5, "b", "test", "r"),
    ]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "t.csv").write_text("\n".join(["f,label,split,group", *lines]))
    (note,) = warned(tmp_path / "t.csv")[1]
    assert note.startswith("t: 1 of the 2 groups of test are also in train, with 2 of its 3 rows")
    (tmp_path / "t.csv").write_text("\n".join(["f,label,split,group", *lines[:2], lines[4]]))
    assert len(quietly(tmp_path / "t.csv").splits["test"]) == 1


def test_the_index_that_pandas_writes_is_no_feature(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",f,label\n0,1.5,a\n1,2.5,a\n2,3.5,b\n")
    with pytest.raises(InputError, match="column '' numbers the rows"):
        load(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("row,f,label\n0,1.5,a\n0,2.5,a\n2,3.5,b\n")  # a row of seats may well repeat
    assert load(tmp_path / "t.csv").input_shape == (2,)


def test_labels_as_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [1.0, 2.0], "label": ["é".encode(), b"a"]}), tmp_path / "t.parquet")
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.array(["é".encode(), b"a"]))
    assert load(tmp_path / "t.parquet").classes == load(tmp_path / "a.npz").classes == ("a", "é")


def test_class_names_that_only_one_shard_knows(tmp_path: Path) -> None:
    names = {b"huggingface": b'{"info": {"features": {"label": {"names": ["no", "yes"]}}}}'}
    rows = pa.table({"f": [1.5, 2.5], "label": [1, 0]})
    pq.write_table(rows, tmp_path / "test-0.parquet")
    pq.write_table(rows.replace_schema_metadata(names), tmp_path / "train-0.parquet")
    assert load(tmp_path).classes == ("no", "yes")


# Arrays


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": np.uint8(3), "labels": [0, 1]}, r"inputs are uint8 \(\); give images as uint8"),
        ({"features": np.zeros((2, 0)), "labels": [0, 1]}, r"the inputs are empty, of shape \(0,\)"),
        ({"images": np.zeros((2, 0, 0, 3), np.uint8), "labels": [0, 1]}, r"the inputs are empty, of shape \(0, 0, 3\)"),
    ],
)
def test_arrays_without_content(tmp_path: Path, arrays: dict, sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=sentence):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("test", [np.zeros((2, 4)), np.zeros((2, 9, 9, 3), np.uint8), np.zeros((2, 8, 8), np.uint8)])
def test_splits_of_unlike_shapes(tmp_path: Path, test: np.ndarray) -> None:
    train = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=train, y_train=[0, 1], x_test=test, y_test=[0, 1])
    with pytest.raises(InputError, match=r"inputs of test are .*, those of train uint8 \(8, 8, 3\); all splits need"):
        load(tmp_path / "a.npz")


# Copies


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def test_test_images_that_are_trained_on_are_a_warning(tmp_path: Path) -> None:
    write_folder(tmp_path / "d" / "train", {"a": 3, "b": 3})
    write_folder(tmp_path / "d" / "test", {"a": 2, "b": 2}, first_seed=50)
    copy(tmp_path / "d/train/b/002.png", tmp_path / "d/test/b/001.png")
    for _ in range(2):  # decoded, and from the cache
        data, (note,) = warned(tmp_path / "d")
        assert note.startswith(
            "d: 1 of 4 test images are exact copies of train images (test/b/001.png is train/b/002.png)"
        )
    assert data.provenance["duplicates"] == [{"splits": ["train", "test"], "rows": [[5, 3]]}]


def test_an_image_in_two_classes_is_a_warning(pets: Path) -> None:
    copy(pets / "cat/001.png", pets / "dog/again.png")
    (note,) = warned(pets)[1]
    assert "1 images of train" in note
    assert "dog/again.png is 'dog', its copy cat/001.png is 'cat'" in note


def test_names_of_copies_fit_although_images_were_left_out(pets: Path) -> None:
    (pets / "cat/000.png").write_bytes(b"x")
    copy(pets / "cat/001.png", pets / "dog/again.png")
    with pytest.warns(DataWarning, match="dog/again.png is 'dog', its copy cat/001.png is 'cat'"):
        load(pets, skip_bad=True)


@pytest.mark.parametrize("split", [hold_out, make_test])
def test_copies_of_an_image_stay_in_one_split(tmp_path: Path, split: Callable[..., DataSet]) -> None:
    write_folder(tmp_path / "d", {"a": 20, "b": 20})
    for klass in "ab":
        for k in range(10):
            copy(tmp_path / f"d/{klass}/{k:03d}.png", tmp_path / f"d/{klass}/copy {k}.png")
    data = quietly(tmp_path / "d")
    assert data.provenance["copies_in_train"] == 20
    for seed in range(5):
        held = split(data, fraction=0.3, seed=seed)
        (part,) = set(held.splits) - {"train"}
        pixels = {name: {row.tobytes() for row in rows.inputs.numpy()} for name, rows in held.splits.items()}
        assert not pixels["train"] & pixels[part]
        assert len(pixels["train"]) + len(pixels[part]) == 40
        assert held.provenance["splits"][0]["by"] == "class, copies together"
        assert 15 <= len(held.splits[part]) <= 21
    again = hold_out(make_test(data), seed=1)
    assert len({row.tobytes() for one in again.splits.values() for row in one.inputs.numpy()}) == sum(
        len({row.tobytes() for row in one.inputs.numpy()}) for one in again.splits.values()
    )


def test_equal_features_are_no_copies(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((6, 2)), y=[0, 1] * 3)
    data = quietly(tmp_path / "a.npz")
    assert hold_out(data, fraction=0.4).provenance["splits"][0]["by"] == "class"


# Images


def test_twelve_bits_in_sixteen_are_reported(tmp_path: Path) -> None:
    for name, brightest in (("a", 4095), ("b", 3000)):
        write_folder(tmp_path / "d", {name: 2}, first_seed=brightest, channels=1)
        pixels = np.linspace(0, brightest, 30).astype(np.uint16).reshape(6, 5)
        Image.fromarray(pixels).save(tmp_path / "d" / name / "deep.png")
    data, (note,) = warned(tmp_path / "d")
    assert "the 16-bit images is 15 of 255" in note
    assert data.splits["train"].inputs[2].max() == 15
    Image.fromarray(np.full((6, 5), 65535, np.uint16)).save(tmp_path / "d" / "a" / "deep.png")
    quietly(tmp_path / "d")


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.fromarray(picture(k, 8, 8)) for k in range(6)]
    for name, first in (("a", 0), ("b", 3)):
        (tmp_path / "d" / name).mkdir(parents=True)
        rest = frames[first + 1 : first + 3]
        frames[first].save(tmp_path / "d" / name / "x.webp", save_all=True, append_images=rest, lossless=True)
    pixels = quietly(tmp_path / "d").splits["train"].inputs.numpy()
    assert np.array_equal(pixels, np.stack([picture(0, 8, 8), picture(3, 8, 8)]))


MIXED = "city,age,member,label\n" + "".join(
    f"{city},{age},{member},{label}\n"
    for city, age, member, label in [
        ("Rome", 30, "true", "a"),
        ("Oslo", "", "false", "b"),
        ("Rome", 50, "", "a"),
        ("", 10, "true", "b"),
        ("Oslo", 40, "true", "a"),
    ]
)


def test_texts_become_categories_and_missing_values_are_filled_in(tmp_path):
    (tmp_path / "train.csv").write_text(MIXED)
    (tmp_path / "test.csv").write_text("city,age,member,label\nBern,,true,a\nOslo,7,false,b\n")
    data = load(tmp_path, cache=False)
    names = encoded_names(data.provenance["encoding"])
    assert names == ["city=Oslo", "city=Rome", "city missing", "age", "age missing", "member", "member missing"]
    assert data.splits["train"].inputs.tolist() == [
        [0, 1, 0, 30, 0, 1, 0],
        [1, 0, 0, 35, 1, 0, 0],
        [0, 1, 0, 50, 0, 1, 1],
        [0, 0, 1, 10, 0, 1, 0],
        [1, 0, 0, 40, 0, 1, 0],
    ]
    # A city that training has not seen is none of its categories.
    assert data.splits["test"].inputs.tolist() == [[0, 0, 0, 35, 1, 1, 0], [1, 0, 0, 7, 0, 0, 0]]


def test_texts_that_are_no_categories_are_refused(tmp_path):
    rows = "".join(f"id{row % 60},{row},{'ab'[row % 2]}\n" for row in range(240))
    (tmp_path / "t.csv").write_text("who,x,label\n" + rows)
    with pytest.raises(InputError, match=r"column 'who' holds string \(first 'id0'\), not numbers or at most 50 cat"):
        load(tmp_path / "t.csv")
