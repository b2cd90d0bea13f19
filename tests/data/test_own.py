"""The user's own folders, tables, parquet files and arrays come back exactly as they were written."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from camri.data import load
from camri.data.tables import image_sources
from camri.errors import InputError
from camri.tables import to_matrix

from .pictures import picture, write_folder, write_picture


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


# Folders


def test_a_folder_per_class(tmp_path: Path) -> None:
    written = write_folder(tmp_path, {"dog": 3, "cat": 2, "ant": 4})
    data = load(tmp_path)
    assert data.classes == ("ant", "cat", "dog")
    assert list(data.splits) == ["train"]
    assert data.splits["train"].labels.tolist() == [0] * 4 + [1] * 2 + [2] * 3
    assert np.array_equal(data.splits["train"].inputs.numpy(), np.stack([written[n] for n in sorted(written)]))


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "validation", "testing")])
def test_a_folder_with_splits_above(tmp_path: Path, names: tuple[str, ...]) -> None:
    written = {
        part: write_folder(tmp_path / name, {"b": 2, "a": 3}, first_seed=100 * k)
        for k, (part, name) in enumerate(zip(("train", "val", "test"), names, strict=True))
    }
    data = load(tmp_path)
    assert list(data.splits) == ["train", "val", "test"]
    for part, files in written.items():
        assert np.array_equal(data.splits[part].inputs.numpy(), np.stack([files[n] for n in sorted(files)]))
        assert data.splits[part].labels.tolist() == [0, 0, 0, 1, 1]


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_folder(tmp_path, {"10": 1, "9": 1, "2": 2})
    assert load(tmp_path).classes == ("2", "9", "10")


def test_folders_below_a_class_and_clutter(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 2, "b/left": 2, "b/right/far": 1})
    (tmp_path / "a" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / ".git").mkdir()
    assert load(tmp_path).class_counts("train").tolist() == [2, 3]


def test_a_linked_class_folder_is_followed(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "elsewhere", {"pictures": 2}, first_seed=50)
    write_folder(tmp_path / "own", {"a": 1})
    os.symlink(tmp_path / "elsewhere" / "pictures", tmp_path / "own" / "b")
    data = load(tmp_path / "own")
    assert data.splits["train"].labels.tolist() == [0, 1, 1]
    assert np.array_equal(data.splits["train"].inputs[2].numpy(), written["pictures/001.png"])


def test_a_zip_of_a_folder(tmp_path: Path) -> None:
    import shutil

    written = write_folder(tmp_path / "in" / "pets", {"cat": 2, "dog": 2})
    shutil.make_archive(str(tmp_path / "pets"), "zip", tmp_path / "in")
    data = load(tmp_path / "pets.zip")
    assert data.provenance["layout"] == "image folder, in an archive"
    assert np.array_equal(data.splits["train"].inputs.numpy(), np.stack([written[n] for n in sorted(written)]))
    assert load(tmp_path / "pets.zip").fingerprint == data.fingerprint


# Tables of paths


@pytest.mark.parametrize("form", ["csv", "csv;", "tsv", "parquet"])
def test_a_table_of_paths(tmp_path: Path, form: str) -> None:
    rows = [("a/1.png", "dog", "train", "x"), ("a/2.png", "cat", "train", "x"), ("b 3.png", "cat", "test", "y")]
    rows += [("ä4.png", "dog", "val", "z"), ("5.png", "dog", "train", "x")]
    written = [picture(k) for k in range(len(rows))]
    for (name, *_), pixels in zip(rows, written, strict=True):
        write_picture(tmp_path / name, pixels)
    columns = ("Path", "Label", "split", "group")
    if form == "parquet":
        pq.write_table(pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True))), tmp_path / "t.parquet")
    else:
        delimiter = {"csv": ",", "csv;": ";", "tsv": "\t"}[form]
        text = "\n".join(delimiter.join(line) for line in [columns, *rows])
        (tmp_path / f"t.{form[:3]}").write_text("\ufeff" + text, encoding="utf-8")
    data = load(tmp_path / f"t.{form.rstrip(';')}")
    assert data.classes == ("cat", "dog")
    for part, chosen in (("train", [0, 1, 4]), ("val", [3]), ("test", [2])):
        split = data.splits[part]
        assert np.array_equal(split.inputs.numpy(), np.stack([written[k] for k in chosen]))
        assert split.labels.tolist() == [("cat", "dog").index(rows[k][1]) for k in chosen]
        assert split.groups is not None
        assert split.groups.tolist() == ["xyz".index(rows[k][3]) for k in chosen]


def test_columns_can_be_named(tmp_path: Path) -> None:
    write_picture(tmp_path / "1.png", picture(1))
    write_picture(tmp_path / "2.png", picture(2))
    (tmp_path / "t.csv").write_text("scan,finding,label\n1.png,bad,7\n2.png,good,7\n")
    data = load(tmp_path / "t.csv", path_column="scan", label_column="finding")
    assert data.classes == ("bad", "good")
    with pytest.raises(InputError, match=r"has no column 'findng'; did you mean 'finding'\?"):
        load(tmp_path / "t.csv", path_column="scan", label_column="findng")


def test_leading_zeros_of_text_labels_stay(tmp_path: Path) -> None:
    for k in range(2):
        write_picture(tmp_path / f"{k}.png", picture(k))
    (tmp_path / "t.csv").write_text("path,code\n0.png,007\n1.png,08\n")
    assert load(tmp_path / "t.csv", label_column="code").classes == ("007", "08")


def test_a_table_per_split_in_a_folder(tmp_path: Path) -> None:
    for k in range(4):
        write_picture(tmp_path / f"{k}.png", picture(k))
    (tmp_path / "train.csv").write_text("path,label\n0.png,b\n1.png,a\n2.png,b\n")
    (tmp_path / "test.csv").write_text("path,label\n3.png,b\n")
    data = load(tmp_path)
    assert data.splits["train"].labels.tolist() == [1, 0, 1]
    assert np.array_equal(data.splits["test"].inputs[0].numpy(), picture(3))


def test_the_train_table_says_which_columns_there_are(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("f,group,label\n0.5,p,a\n1.5,p,b\n2.5,q,b\n")
    (tmp_path / "test.csv").write_text("f,label\n3.5,b\n")
    train = load(tmp_path).splits["train"]
    assert train.groups is not None
    assert train.groups.tolist() == [0, 0, 1]
    (tmp_path / "test.csv").write_text("f\n3.5\n")  # as competitions give it
    with pytest.raises(InputError, match="the test table has no column 'label'"):
        load(tmp_path)


# Hugging Face-style parquet


@pytest.mark.parametrize("image_column", ["image", "img"])
@pytest.mark.parametrize("form", ["struct", "bytes"])
def test_parquet_with_image_bytes(tmp_path: Path, image_column: str, form: str) -> None:
    written = [picture(k) for k in range(8)]
    labels = [2, 0, 1, 1, 0, 2, 2, 0]
    features = {"label": {"names": ["zebra", "ape", "bee"], "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    folder = tmp_path / ("data" if form == "struct" else "plain_text")
    folder.mkdir()
    for name, rows in (("train-00000-of-00002", [0, 1, 2]), ("train-00001-of-00002", [3, 4]), ("test", [5, 6, 7])):
        content = [png(written[k]) for k in rows]
        images = [{"bytes": b, "path": None} for b in content] if form == "struct" else content
        table = pa.table({image_column: images, "label": [labels[k] for k in rows]}).replace_schema_metadata(metadata)
        pq.write_table(table, folder / f"{name}.parquet")
    data = load(tmp_path)
    assert data.classes == ("zebra", "ape", "bee")
    assert np.array_equal(data.splits["train"].inputs.numpy(), np.stack(written[:5]))
    assert np.array_equal(data.splits["test"].inputs.numpy(), np.stack(written[5:]))
    assert data.splits["train"].labels.tolist() + data.splits["test"].labels.tolist() == labels


def test_parquet_images_may_lie_beside_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "far.png", picture(1))
    images = [{"bytes": None, "path": "far.png"}, {"bytes": png(picture(2)), "path": "near.png"}]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "t.parquet")
    assert np.array_equal(
        load(tmp_path / "t.parquet").splits["train"].inputs.numpy(), np.stack([picture(1), picture(2)])
    )


@pytest.mark.parametrize("form", ["struct", "path column"])
def test_changed_images_beside_a_parquet_file_are_seen(tmp_path: Path, form: str) -> None:
    write_picture(tmp_path / "far.png", picture(1))
    if form == "struct":
        columns = {"image": [{"bytes": None, "path": "far.png"}, {"bytes": png(picture(2)), "path": "x"}]}
    else:
        write_picture(tmp_path / "near.png", picture(2))
        columns = {"path": ["far.png", "near.png"]}
    pq.write_table(pa.table({**columns, "label": ["a", "b"]}), tmp_path / "t.parquet")
    load(tmp_path / "t.parquet")
    write_picture(tmp_path / "far.png", picture(3))
    assert np.array_equal(load(tmp_path / "t.parquet").splits["train"].inputs[0].numpy(), picture(3))


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.float32())])
def test_lists_of_sliced_columns(kind: pa.DataType) -> None:
    whole = pa.array([[9, 9, 9], [1, 2], None, [3, 4], [], [5]], kind)
    values, unlike = to_matrix(pa.chunked_array([whole.slice(1, 2), whole.slice(3)]))
    assert np.array_equal(values, [[1, 2], [np.nan] * 2, [3, 4], [np.nan] * 2, [np.nan] * 2], equal_nan=True)
    assert unlike == {1: None, 3: 0, 4: 1}
    values, unlike = to_matrix(pa.chunked_array([whole.slice(1, 1), whole.slice(3, 1)]))
    assert (values.tolist(), unlike) == ([[1, 2], [3, 4]], {})
    assert to_matrix(pa.chunked_array([whole.slice(1, 1), whole.slice(5)]))[1] == {1: 1}, "of two, the longer"


def test_image_bytes_of_sliced_columns() -> None:
    structs = pa.chunked_array([pa.array([{"bytes": bytes([k]), "path": f"p{k}"} for k in range(6)]).slice(2, 3)])
    sources, names, _ = image_sources(structs, Path("/"))
    assert [bytes(source) for source in sources] == [b"\x02", b"\x03", b"\x04"]
    assert names == ["p2", "p3", "p4"]
    plain = pa.chunked_array([pa.array([b"a", b"bb", b"c"]).slice(1), pa.array([b"dd"])])
    assert [bytes(source) for source in image_sources(plain, Path("/"))[0]] == [b"bb", b"c", b"dd"]
    large = pa.chunked_array([pa.array([b"a", b"bb", b"c"], pa.large_binary()).slice(1)])
    assert [bytes(source) for source in image_sources(large, Path("/"))[0]] == [b"bb", b"c"]


def test_a_sliced_and_dictionary_encoded_table(tmp_path: Path) -> None:
    table = pa.table(
        {"image": [png(picture(k)) for k in range(5)], "label": pa.array(list("abcab")).dictionary_encode()}
    )
    pq.write_table(table.slice(1, 3), tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet")
    assert data.classes == ("a", "b", "c")
    assert data.splits["train"].labels.tolist() == [1, 2, 0]
    assert np.array_equal(data.splits["train"].inputs.numpy(), np.stack([picture(k) for k in (1, 2, 3)]))


# Features


@pytest.mark.parametrize("form", ["list", "fixed list", "columns", "csv"])
def test_features_in_a_table(tmp_path: Path, form: str) -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    labels = ["n", "y", "n", "n", "y", "y"]
    file = tmp_path / ("t.csv" if form == "csv" else "t.parquet")
    if form == "list":
        pq.write_table(pa.table({"embedding": matrix.tolist(), "label": labels}), file)
    elif form == "fixed list":
        column = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), 4)
        pq.write_table(pa.table({"features": column, "label": labels}), file)
    elif form == "columns":
        pq.write_table(pa.table({"label": labels} | {f"f{k}": matrix[:, k] for k in range(4)}), file)
    else:
        lines = [",".join([*map(str, row), label]) for row, label in zip(matrix, labels, strict=True)]
        file.write_text("\n".join(["f0,f1,f2,f3,label", *lines]))
    data = load(file)
    assert not data.is_image
    assert data.input_shape == (4,)
    assert np.array_equal(data.splits["train"].inputs.numpy(), matrix)
    assert data.splits["train"].labels.tolist() == [0, 1, 0, 0, 1, 1]


# Arrays


@pytest.mark.parametrize(
    ("inputs", "labels", "val"),
    [
        ("x_{}", "y_{}", "val"),
        ("{}_images", "{}_labels", "val"),
        ("X_{}", "Y_{}", "valid"),
        ("x_{}", "y_{}", "validation"),
    ],
    ids=["keras", "medmnist", "upper", "in full"],
)
def test_npz_with_splits(tmp_path: Path, inputs: str, labels: str, val: str) -> None:
    rng = np.random.default_rng(1)
    arrays = {}
    for part, count in (("train", 6), (val, 3), ("test", 4)):
        arrays[inputs.format(part)] = rng.integers(0, 256, (count, 5, 4, 3), dtype=np.uint8)
        arrays[labels.format(part)] = (np.arange(count) % 3)[:, None]  # Keras and MedMNIST keep a column
    np.savez_compressed(tmp_path / "d.npz", **arrays)
    data = load(tmp_path / "d.npz")
    for part, spelling in (("train", "train"), ("val", val), ("test", "test")):
        assert np.array_equal(data.splits[part].inputs.numpy(), arrays[inputs.format(spelling)])
        assert data.splits[part].labels.tolist() == arrays[labels.format(spelling)].ravel().tolist()


def test_npz_channels_first_grey_names_and_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    first = rng.integers(0, 256, (4, 3, 8, 6), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=first, labels=[1, 0, 1, 0], classes=["no", "yes"], groups=[9, 9, 4, 4])
    data = load(tmp_path / "a.npz")
    assert data.classes == ("no", "yes")
    assert np.array_equal(data.splits["train"].inputs.numpy(), first.transpose(0, 2, 3, 1))
    assert data.splits["train"].groups is not None
    assert data.splits["train"].groups.tolist() == [9, 9, 4, 4]
    grey = rng.integers(0, 256, (2, 8, 6), dtype=np.uint8)
    np.savez(tmp_path / "b.npz", images=grey, labels=["b", "a"])
    assert np.array_equal(load(tmp_path / "b.npz").splits["train"].inputs.numpy()[..., 0], grey)


def test_npz_features(tmp_path: Path) -> None:
    matrix = np.random.default_rng(3).standard_normal((5, 7))
    np.savez(tmp_path / "f.npz", features=matrix, labels=[0, 1, 1, 0, 5])
    data = load(tmp_path / "f.npz")
    assert np.array_equal(data.splits["train"].inputs.numpy(), matrix.astype(np.float32))
    assert data.classes == ("0", "1", "5")
    assert data.splits["train"].labels.tolist() == [0, 1, 1, 0, 2]


def test_arrays_are_resized_when_asked(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.full((2, 8, 8, 3), 77, np.uint8), labels=[0, 1])
    data = load(tmp_path / "a.npz", size=(4, 6))
    assert data.input_shape == (4, 6, 3)
    assert data.splits["train"].inputs.unique().tolist() == [77]
