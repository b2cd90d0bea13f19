"""The official layouts, written small: the readers must give back exactly what was written."""

import gzip
import hashlib
import os
import pickle
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from camri.data import load, published
from camri.data.published import GTSRB_CLASSES as SIGNS
from camri.errors import InputError

from .pictures import picture, write_picture

RNG = np.random.default_rng(5)
NUM_IN_BATCH = 12


def cifar_batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{batch: (planes uint8 (n, 3072), labels)} with every class in it."""
    return {
        name: (RNG.integers(0, 256, (NUM_IN_BATCH, 3072), dtype=np.uint8), np.arange(NUM_IN_BATCH) % 10)
        for name in published.PICKLED_MD5
    }


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The batch as Python 2 pickled the official files: byte strings and numpy's old module name."""
    data = pixels.tobytes()
    out = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    out += (
        b"(K\x01K" + bytes([len(labels)]) + b"M" + struct.pack("<H", 3072) + b"\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
    )
    out += (
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", len(data)) + data + b"tb"
    )
    out += b"U\x06labels(" + b"".join(b"K" + bytes([label]) for label in labels) + b"l"
    return out + b"U\x0bbatch_labelU\x04testu."


def write_cifar(folder: Path, form: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    batches = cifar_batches()
    folder.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        if form == "binary":
            rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        elif form == "python 2":
            (folder / name).write_bytes(python2_pickle(pixels, labels))
        else:
            batch = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"testing"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return batches


@pytest.mark.parametrize("form", ["python 2", "python 3", "binary"])
@pytest.mark.parametrize("packed", ["folder", "folder above", "tar.gz", "zip"])
def test_cifar10(tmp_path: Path, form: str, packed: str) -> None:
    folder = tmp_path / "in" / f"cifar-10-batches-{'bin' if form == 'binary' else 'py'}"
    batches = write_cifar(folder, form)
    source = {"folder": folder, "folder above": folder.parent}.get(packed)
    if source is None:
        source = tmp_path / f"cifar.{packed}"
        if packed == "zip":
            with zipfile.ZipFile(source, "w") as archive:
                for file in folder.iterdir():
                    archive.write(file, f"{folder.name}/{file.name}")
        else:
            with tarfile.open(source, "w:gz") as archive:
                archive.add(folder, folder.name)
    data = load(source, verify=False)
    assert data.classes == published.CIFAR10_CLASSES
    for part, names in (("train", [f"data_batch_{k}" for k in range(1, 6)]), ("test", ["test_batch"])):
        planes = np.concatenate([batches[name][0] for name in names]).reshape(-1, 3, 32, 32)
        assert np.array_equal(data.splits[part].inputs.numpy(), planes.transpose(0, 2, 3, 1))
        assert data.splits[part].labels.tolist() == [*range(10), 0, 1] * len(names)
    assert data.provenance["layout"].startswith("cifar10")


def test_cifar10_files_are_verified(tmp_path: Path) -> None:
    write_cifar(tmp_path / "c", "binary")
    with pytest.raises(InputError, match=r"data_batch_1.bin differs from the official file; .*verify=False"):
        load(tmp_path / "c")


def test_cifar10_lacking_a_batch(tmp_path: Path) -> None:
    write_cifar(tmp_path / "c", "binary")
    (tmp_path / "c" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"has no test_batch.bin; CIFAR-10 needs"):
        load(tmp_path / "c", verify=False)


class RunsACommand:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("you-have-been-owned",)


class CallsEval:
    def __reduce__(self) -> tuple:
        return eval, ("1 + 1",)


@pytest.mark.parametrize("bad", [RunsACommand(), CallsEval(), Path("x"), {1, 2}])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_wants_more_than_plain_arrays_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: object, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "c", "python 3")
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0], b"extra": bad}
    (tmp_path / "c" / "data_batch_3").write_bytes(pickle.dumps(batch, protocol=protocol))
    if isinstance(bad, set) and protocol == 4:
        load("c", verify=False)  # a set is plain, and protocol 4 has its own code for it
        return
    with pytest.raises(InputError, match=r"data_batch_3 asks for [\w.]+, which plain data does not need"):
        load("c", verify=False)
    assert not (tmp_path / "you-have-been-owned").exists()


@pytest.mark.parametrize("kind", ["O", "<i8"])
def test_a_pickled_array_of_anything_but_bytes_is_refused(tmp_path: Path, kind: str) -> None:
    """Objects are addresses; numpy itself would follow one that a pickle makes up."""
    write_cifar(tmp_path / "c", "python 3")
    batch = {b"data": np.zeros((1, 3072), kind), b"labels": [0]}
    (tmp_path / "c" / "data_batch_3").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(InputError, match=r"data_batch_3 holds an array of '[Oi]8'"):
        load(tmp_path / "c", verify=False)


def test_a_damaged_pickle_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path / "c", "python 3")
    file = tmp_path / "c" / "data_batch_2"
    file.write_bytes(file.read_bytes()[:-900])
    with pytest.raises(InputError, match=r"data_batch_2 is not a CIFAR-10 batch \(\w+\); get it again"):
        load(tmp_path / "c", verify=False)


# GTSRB: three tracks of three frames a class for training, 60 test images.


def gtsrb_rows() -> tuple[list[tuple], list[tuple]]:
    """(train, test) rows: name pieces, class, pixels, region of interest."""
    train = [
        ((klass, track, frame), klass, picture(klass * 9 + track * 3 + frame, 20, 16), (4, 5, 11, 14))
        for klass in range(43)
        for track in range(3)
        for frame in range(3)
    ]
    test = [((number,), (number * 7) % 43, picture(9000 + number, 18, 24), (6, 3, 17, 14)) for number in range(60)]
    return train, test


HEADER = ["Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId"]


def write_gtsrb(root: Path, form: str) -> None:
    train, test = gtsrb_rows()
    if form == "parquet":
        write_gtsrb_parquet(root, train, test)
        return
    tables: dict[Path, list[list]] = {}
    for part, rows in (("Train", train), ("Test", test)):
        for pieces, klass, pixels, roi in rows:
            numbers = [pixels.shape[1], pixels.shape[0], *roi, klass]
            if form == "official":
                name = "_".join(f"{piece:05d}" for piece in pieces[-2:]) + ".ppm"
                folder = (
                    root / "GTSRB" / ("Final_Test/Images" if part == "Test" else f"Final_Training/Images/{klass:05d}")
                )
                table = root / "GT-final_test.csv" if part == "Test" else folder / f"GT-{klass:05d}.csv"
                write_picture(folder / name, pixels)
                tables.setdefault(table, []).append([name, *numbers])
            else:
                name = "_".join(f"{piece:05d}" for piece in pieces) + ".png"
                place = f"Train/{klass}/{name}" if part == "Train" else f"Test/{name}"
                write_picture(root / place, pixels)
                tables.setdefault(root / f"{part}.csv", []).append([*numbers, place])
    for table, lines in tables.items():
        header = HEADER if form == "official" else [*HEADER[1:], "Path"]
        delimiter = ";" if form == "official" else ","
        table.write_text("\n".join(delimiter.join(map(str, line)) for line in [header, *lines]) + "\n")


def write_gtsrb_parquet(root: Path, train: list[tuple], test: list[tuple]) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def table(rows: list[tuple]) -> pa.Table:
        columns: dict[str, list] = {"image": [], "label": [], "width": [], "height": []}
        columns |= {f"roi_{edge}": [] for edge in ("x1", "y1", "x2", "y2")}
        for pieces, klass, pixels, roi in rows:
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            name = "_".join(f"{piece:05d}" for piece in pieces) + ".png"
            columns["image"].append({"bytes": stream.getvalue(), "path": name})
            for column, value in zip(
                columns.values(), ["", klass, pixels.shape[1], pixels.shape[0], *roi], strict=True
            ):
                if value != "":
                    column.append(value)
        return pa.table(columns)

    root.mkdir(parents=True)
    for shard in range(2):
        pq.write_table(table(train[shard::2]), root / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(table(test), root / "test-00000-of-00001.parquet")


@pytest.mark.parametrize("form", ["official", "kaggle", "parquet"])
def test_gtsrb_layouts_give_the_same_rows(tmp_path: Path, form: str) -> None:
    from PIL import Image

    write_gtsrb(tmp_path / "g", form)
    train, test = gtsrb_rows()
    data = load(tmp_path / "g")
    assert data.classes == SIGNS
    assert data.input_shape == (48, 48, 3)
    for part, rows in (("train", train), ("test", test)):
        expected = [Image.fromarray(row[2]).resize((48, 48), Image.Resampling.LANCZOS) for row in rows]
        assert np.array_equal(data.splits[part].inputs.numpy(), np.stack([np.asarray(image) for image in expected]))
        assert data.splits[part].labels.tolist() == [row[1] for row in rows]
    assert data.splits["train"].groups is not None
    assert data.splits["train"].groups.tolist() == [row[0][0] * 100_000 + row[0][1] for row in train]
    assert data.splits["test"].groups is None


@pytest.mark.parametrize("form", ["official", "kaggle", "parquet"])
def test_gtsrb_cropped_to_the_sign(tmp_path: Path, form: str) -> None:
    from PIL import Image

    write_gtsrb(tmp_path / "g", form)
    train, test = gtsrb_rows()
    data = load(tmp_path / "g", roi=True, size=8)
    for part, rows in (("train", train), ("test", test)):
        _, _, pixels, (x1, y1, x2, y2) = rows[7]
        image = Image.fromarray(pixels)
        expected = image.resize((8, 8), Image.Resampling.LANCZOS, box=(x1, y1, x2 + 1, y2 + 1))
        assert np.abs(data.splits[part].inputs[7].numpy().astype(int) - np.asarray(expected)).max() <= 1


def test_gtsrb_without_test_classes(tmp_path: Path) -> None:
    write_gtsrb(tmp_path / "g", "official")
    (tmp_path / "g" / "GT-final_test.csv").unlink()
    with pytest.raises(InputError, match=r"not GT-final_test\.csv"):
        load(tmp_path / "g")


def test_gtsrb_with_a_broken_table(tmp_path: Path) -> None:
    write_gtsrb(tmp_path / "g", "kaggle")
    (tmp_path / "g" / "Test.csv").write_text("Width,Height\n3,4\n")
    with pytest.raises(InputError, match=r"Test.csv is not a GTSRB table \(KeyError: 'Path'\)"):
        load(tmp_path / "g")


def test_tables_that_are_called_like_gtsrbs_are_tables(tmp_path: Path) -> None:
    for name in ("Train", "Test"):
        (tmp_path / f"{name}.csv").write_text("a,b,label\n" + "0.5,1.5,x\n2.5,0.5,y\n" * 3)
    assert {part: split.inputs.shape for part, split in load(tmp_path).splits.items()} == {
        "train": (6, 2),
        "test": (6, 2),
    }
    (tmp_path / "Train.csv").unlink()
    with pytest.raises(InputError, match="train"):
        load(tmp_path)


# AwA2 and MNIST


@pytest.mark.parametrize("above", [True, False])
def test_awa2(tmp_path: Path, above: bool) -> None:
    counts = {"walrus": 20, "antelope": 10, "grizzly+bear": 30}
    root = tmp_path / "Animals_with_Attributes2"
    written = {}
    for name, count in counts.items():
        for number in range(count):
            pixels = np.full((70, 90, 3), len(written), np.uint8)
            written[name, number] = len(written)
            write_picture(root / "JPEGImages" / name / f"{name}_1{number:04d}.png", pixels)
    (root / "classes.txt").write_text("      1\tantelope\n      2\tgrizzly+bear\n      3\twalrus\n")
    data = load(tmp_path if above else root)
    assert data.classes == ("antelope", "grizzly+bear", "walrus")
    assert data.input_shape == (64, 64, 3)
    assert data.class_counts("test").tolist() == [3, 9, 6]  # 18 of 60, as 11,165 of 37,322
    step = data.provenance["splits"][0]
    assert (step["part"], step["asked_rows"], step["seed"]) == ("test", 18, 0)
    for split in data.splits.values():
        for image, label in zip(split.inputs, split.labels, strict=True):
            values = image.unique()
            assert len(values) == 1
            assert values.item() in {v for (name, _), v in written.items() if name == data.classes[label]}


def test_awa2_with_an_unlisted_class(tmp_path: Path) -> None:
    write_picture(tmp_path / "JPEGImages" / "antelop" / "1.png", picture(1))
    (tmp_path / "classes.txt").write_text("1\tantelope\n2\tbat\n")
    with pytest.raises(InputError, match=r"JPEGImages/antelop is not in classes.txt; did you mean 'antelope'\?"):
        load(tmp_path)


def write_mnist(folder: Path, packed: bool, dots: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.arange(30, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(7, dtype=np.uint8),
    }
    for name, array in arrays.items():
        content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
        file = folder / (name.replace("-idx", ".idx") if dots else name)
        if packed:
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(content))
        else:
            file.write_bytes(content)
    return arrays


@pytest.mark.parametrize(
    ("packed", "dots", "below"), [(True, False, ""), (False, True, "MNIST/raw"), (False, False, "raw")]
)
def test_mnist(tmp_path: Path, packed: bool, dots: bool, below: str) -> None:
    arrays = write_mnist(tmp_path / "m" / below, packed, dots)
    data = load(tmp_path / "m", verify=False)
    assert data.classes == tuple("0123456789")
    assert np.array_equal(data.splits["train"].inputs.numpy()[..., 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(data.splits["test"].inputs.numpy()[..., 0], arrays["t10k-images-idx3-ubyte"])
    assert data.splits["test"].labels.tolist() == list(range(7))


def test_a_benchmark_refuses_options_that_are_not_for_it(tmp_path: Path) -> None:
    write_mnist(tmp_path / "m", True, False)
    write_cifar(tmp_path / "c", "binary")
    write_gtsrb(tmp_path / "g", "parquet")
    with pytest.raises(InputError, match=r"^roi=True is for GTSRB, and .*m holds images \(idx\)"):
        load(tmp_path / "m", verify=False, roi=True)
    with pytest.raises(InputError, match=r"^skip_bad=True is for image files, and .*c holds images \(cifar10 binary\)"):
        load(tmp_path / "c", verify=False, skip_bad=True)
    with pytest.raises(InputError, match=r"^label_column='kind' is for tables .*, and .*g holds images \(gtsrb"):
        load(tmp_path / "g", label_column="kind")
    with pytest.raises(InputError, match=r"^verify=False is for the official files of CIFAR-10"):
        load(tmp_path / "g", verify=False)


@pytest.mark.parametrize("below", ["MNIST", "mnist/raw", "data/MNIST/raw"])
def test_a_folder_named_mnist_must_hold_the_official_files(tmp_path: Path, below: str) -> None:
    write_mnist(tmp_path / below, True, False)
    for source in {tmp_path / below.partition("/")[0], tmp_path / below}:
        with pytest.raises(
            InputError, match=r"train-images-idx3-ubyte.gz differs from MNIST's official file"
        ) as caught:
            load(source)
        assert caught.value.argument == "verify"
        data = load(source, verify=False)
        assert (data.provenance["layout"], data.provenance["verified"]) == ("mnist idx", False)


def test_another_data_set_in_mnists_layout_is_read_as_its_own(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path / "mnist" / "fashion", True, False)
    for options in ({}, {"verify": False}):
        data = load(tmp_path / "mnist" / "fashion", **options)
        assert (data.name, data.classes, data.provenance["layout"]) == ("fashion", tuple("0123456789"), "idx")
        assert "verified" not in data.provenance
        assert np.array_equal(data.splits["train"].inputs.numpy()[..., 0], arrays["train-images-idx3-ubyte"])
    names = [f"garment {k}" for k in range(10)]
    (tmp_path / "mnist" / "fashion" / "classes.txt").write_text("\n".join(names))
    named = load(tmp_path / "mnist" / "fashion")
    assert named.classes == tuple(names)
    assert named.splits["test"].labels.tolist() == list(range(7))


def test_one_official_file_makes_a_folder_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged MNIST is refused under any name."""
    write_mnist(tmp_path / "m", False, False)
    files = sorted((tmp_path / "m").iterdir())
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    monkeypatch.setattr(published, "MNIST_MD5", {name: md5[name] for name in published.MNIST_MD5})
    data = load(tmp_path / "m", cache=False)
    assert (data.provenance["layout"], data.provenance["verified"]) == ("mnist idx", True)
    content = files[0].read_bytes()
    files[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{files[0].name} differs"):
        load(tmp_path / "m", cache=False)


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "m", True, False)
    file = tmp_path / "m" / "t10k-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz cannot be unpacked"):
        load(tmp_path / "m", verify=False)
    file.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz is not a complete idx file"):
        load(tmp_path / "m", verify=False)
    file.unlink()
    with pytest.raises(InputError, match=r"but not t10k-images-idx3-ubyte\(.gz\)"):
        load(tmp_path / "m", verify=False)


def test_names_are_looked_for_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMRI_DATA", str(tmp_path))
    arrays = write_mnist(tmp_path / "mnist", True, False)
    data = load("mnist", verify=False)
    assert data.name == "mnist"
    assert data.splits["train"].labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    shutil.rmtree(tmp_path / "mnist")
    with pytest.raises(InputError, match=r"mnist is not in .*`camri data get mnist`, or set CAMRI_DATA"):
        load("mnist")
    with pytest.raises(InputError, match=r"'mnits' is neither a path nor a known data set; did you mean 'mnist'\?"):
        load("mnits")


def test_the_whole_of_awa2_is_split_as_in_the_paper() -> None:
    import torch

    from camri.data import Split, make_test, published
    from camri.data.dataset import assemble

    classes = tuple(f"animal {k}" for k in range(50))
    counts = [100 + 25 * k for k in range(49)]
    counts.append(37_322 - sum(counts))
    found = {
        name: [f"/awa2/JPEGImages/{name}/{k}.jpg" for k in range(n)] for name, n in zip(classes, counts, strict=True)
    }
    listing = published._list_awa2(Path("/awa2"), classes, found)
    assert listing.test_rows == 11_165
    labels = torch.from_numpy(listing.parts["train"].labels)
    data = assemble("awa2", classes, {"train": Split(torch.zeros(37_322, 1), labels)}, {})
    data = make_test(data, num_rows=listing.test_rows)
    assert {part: len(split) for part, split in data.splits.items()} == {"train": 26_157, "test": 11_165}
    shares = data.class_counts("test").numpy() / np.array(counts)
    assert np.abs(shares - 11_165 / 37_322).max() < 0.01


def test_copies_in_a_benchmark_are_noted_but_no_warning(tmp_path: Path) -> None:
    import warnings

    root = tmp_path / "Animals_with_Attributes2"
    for number in range(20):
        write_picture(root / "JPEGImages" / ("bat", "cow")[number % 2] / f"{number}.png", picture(number % 4))
    (root / "classes.txt").write_text("1\tbat\n2\tcow\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(root)
    assert data.provenance["copies_in_train"] > 0
    write_picture(root / "JPEGImages" / "cow" / "copy.png", picture(0))  # also a bat: worth a note
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "also in another class" in load(root).provenance["notes"][-1]
