"""Published data sets in their official layouts: digits, MNIST and other idx files, CIFAR-10, GTSRB, AwA2."""

import csv
import gzip
import hashlib
import io
import math
import pickle
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from camri.data import tables
from camri.data.cache import hash_file
from camri.data.folder import files_below, shown, subfolders, to_part
from camri.data.listing import DataWarning, EncodedImages, Listing, Options, Part, Source, encode
from camri.errors import InputError, closest


def find_digits() -> Source:
    """scikit-learn's 1,797 digits, 8x8. They have no test split: 539 rows (30 %) are held out by a seeded split."""

    def read(scratch: str) -> Listing:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0..16 -> 0..255
        labels = digits.target.astype(np.int64)
        return Listing(tuple(map(str, range(10))), {"train": Part(pixels, labels)}, test_rows=539)

    return Source("digits", (), read)


# md5 of the unpacked files: the check does not depend on who compressed them.
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def find_mnist(path: Path, verify: bool) -> Source | None:
    """Find MNIST, or another data set in its layout, in path, path/raw or path/MNIST/raw; None otherwise.

    It is MNIST if its folder has that name or any file is MNIST's; then all files must be. Another data set may name
    its classes in classes.txt, one per line.
    """
    for folder in (path, path / "raw", path / "MNIST" / "raw"):
        if _idx_file(folder, "train-images-idx3-ubyte"):
            break
    else:
        return None
    files = {name: _idx_file(folder, name) for name in MNIST_MD5}
    if missing := [name for name, file in files.items() if file is None]:
        raise InputError(f"{folder} has train-images-idx3-ubyte but not {missing[0]}(.gz); add it")
    is_named = "mnist" in {path.name.lower(), folder.parent.name.lower() if folder.name == "raw" else ""}
    listed = [str(file) for file in (*files.values(), folder / "classes.txt") if file is not None and file.is_file()]
    return Source(
        "mnist idx" if is_named else "idx",
        listed,
        lambda scratch: _read_mnist(folder, dict(zip(MNIST_MD5, listed, strict=False)), is_named, verify),
    )


def _idx_file(folder: Path, name: str) -> Path | None:
    spellings = (name, name.replace("-idx", ".idx"))
    files = [folder / f"{spelling}{suffix}" for spelling in spellings for suffix in (".gz", "")]
    return next((file for file in files if file.is_file()), None)


def _read_mnist(folder: Path, files: dict[str, str], is_mnist: bool, verify: bool) -> Listing:
    contents = {name: _unpacked(file) for name, file in files.items()}
    arrays = {name: _read_idx(content, files[name]) for name, content in contents.items()}
    differs = [name for name, content in contents.items() if hashlib.md5(content).hexdigest() != MNIST_MD5[name]]
    is_mnist = is_mnist or len(differs) < len(files)
    if verify and is_mnist and differs:
        remedy = "get it again, or give verify=False or the folder another name if it is not MNIST"
        raise InputError(f"{files[differs[0]]} differs from MNIST's official file; {remedy}", argument="verify")
    inputs, labels = {}, {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, labels[part] = arrays[f"{prefix}-images-idx3-ubyte"], arrays[f"{prefix}-labels-idx1-ubyte"]
        inputs[part] = images[..., None]
        if images.ndim != 3 or labels[part].ndim != 1 or len(images) != len(labels[part]):
            shapes = f"images {images.shape}, labels {labels[part].shape}"
            raise InputError(f"{folder}: the {part} files do not fit together ({shapes}); get them again")
    names = tuple(map(str, range(10))) if is_mnist else None
    if not is_mnist and (folder / "classes.txt").is_file():
        names = tuple((folder / "classes.txt").read_text(encoding="utf-8").splitlines())
    classes, codes = encode(labels, str(folder), names)
    facts = {"layout": "mnist idx", "verified": verify} if is_mnist else {}
    return Listing(classes, {part: Part(inputs[part], codes[part]) for part in inputs}, facts=facts)


def _unpacked(file: str) -> bytes:
    try:
        content = Path(file).read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be unpacked ({error}); get it again") from None


def _read_idx(content: bytes, file: str) -> np.ndarray:
    """Read the array of unsigned bytes in an idx file."""
    zeros, kind, num_axes = struct.unpack(">HBB", content[:4].ljust(4, b"\xff"))
    shape = struct.unpack(f">{num_axes}I", content[4 : 4 + 4 * num_axes].ljust(4 * num_axes, b"\x00"))
    if zeros != 0 or kind != 8 or len(content) != 4 + 4 * num_axes + math.prod(shape):
        raise InputError(f"{file} is not a complete idx file of unsigned bytes; get it again")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * num_axes).reshape(shape)


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PICKLED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
# sha256 of the decoded uint8 (N, 32, 32, 3) arrays, whichever layout they came in.
OFFICIAL_SHA256 = {
    "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
}
PIXELS = 3 * 32 * 32


def find_cifar10(path: Path, verify: bool) -> Source | None:
    """Find CIFAR-10's batches in path or in the folder of the official archive; None if there are none."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if (folder / "data_batch_1").is_file():
            return _find_batches("cifar10 python", folder, PICKLED_MD5, _read_pickled, verify)
        if (folder / "data_batch_1.bin").is_file():
            return _find_batches("cifar10 binary", folder, BINARY_MD5, _read_binary, verify)
    return None


def _find_batches(
    layout: str,
    folder: Path,
    checksums: dict[str, str],
    reader: Callable[[Path], tuple[np.ndarray, np.ndarray]],
    verify: bool,
) -> Source:
    files = [folder / name for name in checksums]  # five for training, one for testing
    for file in files:
        if not file.is_file():
            raise InputError(f"{folder} has no {file.name}; CIFAR-10 needs {', '.join(checksums)}")

    def read(scratch: str) -> Listing:
        for file in files:
            if verify and hash_file(file, "md5") != checksums[file.name]:
                remedy = "get it again, or give verify=False if it is meant to differ"
                raise InputError(f"{file} differs from the official file; {remedy}", argument="verify")
        batches = [_check_batch(*reader(file), file) for file in files]
        parts = {}
        for part, chosen in (("train", batches[:-1]), ("test", batches[-1:])):
            planes = np.concatenate([pixels for pixels, _ in chosen]).reshape(-1, 3, 32, 32)
            labels = np.concatenate([labels for _, labels in chosen]).astype(np.int64)
            parts[part] = Part(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
        return Listing(CIFAR10_CLASSES, parts, facts={"verified": verify})

    return Source(layout, [str(file) for file in files], read)


def _read_binary(file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(file, dtype=np.uint8)
    if not len(content) or len(content) % (1 + PIXELS):
        raise InputError(f"{file} has {len(content)} bytes, not a multiple of {1 + PIXELS}; get it again")
    rows = content.reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def _read_pickled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = PlainUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        return batch["data"].values, np.asarray(batch["labels"])
    except InputError as error:
        raise InputError(f"{file} {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{file} is not a CIFAR-10 batch ({type(error).__name__}); get it again") from None


def _check_batch(pixels: np.ndarray, labels: np.ndarray, file: Path) -> tuple[np.ndarray, np.ndarray]:
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS) or labels.dtype.kind not in "iu":
        raise InputError(f"{file} holds {pixels.dtype} {pixels.shape}, not uint8 rows of {PIXELS}; get it again")
    if len(labels) and (labels.min() < 0 or labels.max() > 9):
        raise InputError(f"{file} holds label {labels.max()}; CIFAR-10 has 0 to 9")
    return pixels, labels


class PlainUnpickler(pickle.Unpickler):
    """Unpickle byte arrays, lists, dicts, strings and numbers only; anything else is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: ByteArray()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return ByteType
        if module == "_codecs" and name == "encode":
            return lambda text, encoding="latin1": text.encode("latin1")
        raise InputError(f"asks for {module}.{name}, which plain data does not need; it was not read further")


class ByteType:
    """Stand-in for a pickled numpy dtype. numpy's own is unsafe: it trusts flags in the file."""

    def __init__(self, code: object = "u1", *_: object):
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class ByteArray:
    """Stand-in for a pickled numpy array of unsigned bytes."""

    values: np.ndarray

    def __setstate__(self, state: tuple[Any, tuple[int, ...], ByteType, bool, bytes]) -> None:
        _, shape, kind, is_fortran, content = state
        if kind.code not in ("u1", b"u1"):
            raise InputError(f"holds an array of {kind.code!r}, not of unsigned bytes; it was not read further")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


GTSRB_SIZE = (48, 48)  # the paper's
GTSRB_CLASSES = tuple(
    """
    Speed limit (20km/h); Speed limit (30km/h); Speed limit (50km/h); Speed limit (60km/h); Speed limit (70km/h);
    Speed limit (80km/h); End of speed limit (80km/h); Speed limit (100km/h); Speed limit (120km/h); No passing;
    No passing for vehicles over 3.5 metric tons; Right-of-way at the next intersection; Priority road; Yield; Stop;
    No vehicles; Vehicles over 3.5 metric tons prohibited; No entry; General caution; Dangerous curve to the left;
    Dangerous curve to the right; Double curve; Bumpy road; Slippery road; Road narrows on the right; Road work;
    Traffic signals; Pedestrians; Children crossing; Bicycles crossing; Beware of ice/snow; Wild animals crossing;
    End of all speed and passing limits; Turn right ahead; Turn left ahead; Ahead only; Go straight or right;
    Go straight or left; Keep right; Keep left; Roundabout mandatory; End of no passing;
    End of no passing by vehicles over 3.5 metric tons
    """.strip()
    .replace("\n   ", "")
    .split("; ")
)
BOX_COLUMNS = ("roi_x1", "roi_y1", "roi_x2", "roi_y2", "width", "height")


class Sign(NamedTuple):
    """An image of GTSRB; region: x1, y1, x2, y2, width, height."""

    source: str | memoryview
    name: str
    label: int
    region: tuple[float, ...]


def find_gtsrb(path: Path, roi: bool) -> Source | None:
    """Find GTSRB as official folders, Kaggle's folders or parquet; None for anything else. Tracks are the groups."""
    for folder in (path, path / "GTSRB"):
        if (folder / "Final_Training" / "Images").is_dir():
            return _gtsrb_source("gtsrb official", path, _official_rows(folder, path), roi)
    if (path / "Test.csv").is_file() and _has_boxes(path / "Train.csv"):
        rows = {part: _csv_rows(path / f"{part.title()}.csv", path, ",", "Path") for part in ("train", "test")}
        return _gtsrb_source("gtsrb kaggle", path, rows, roi)
    files = [file for file in tables.parquet_files(path) if tables.part_of_file(file)]
    try:
        if not files or not set(tables.pq.read_schema(files[0]).names) >= {"image", "label", *BOX_COLUMNS}:
            return None
    except (OSError, ValueError):
        return None  # the reader for tables will say what is wrong with the file
    return Source(
        "gtsrb parquet", list(map(str, files)), lambda scratch: _list_gtsrb(_parquet_rows(path, files), path, roi)
    )


def _has_boxes(file: Path) -> bool:
    """Whether it is a GTSRB table: other tables may be named Train.csv, too."""
    if not file.is_file():
        return False
    with open(file, encoding="utf-8", errors="replace") as lines:
        return "Roi.X1" in lines.readline()


def _gtsrb_source(layout: str, path: Path, rows: dict[str, list[Sign]], roi: bool) -> Source:
    images = [str(sign.source) for signs in rows.values() for sign in signs]
    csv_files = [str(file) for pattern in ("**/GT-*.csv", "T*.csv") for file in sorted(path.glob(pattern))]
    return Source(layout, [*csv_files, *images], lambda scratch: _list_gtsrb(rows, path, roi))


def _official_rows(folder: Path, path: Path) -> dict[str, list[Sign]]:
    training = folder / "Final_Training" / "Images"
    train: list[Sign] = []
    for name in subfolders(training):
        train += _csv_rows(training / name / f"GT-{name}.csv", training / name, ";", "Filename")
    test = folder / "Final_Test" / "Images"
    answers = [place / "GT-final_test.csv" for place in (test, folder / "Final_Test", folder, path)]
    truth = next((file for file in answers if file.is_file()), None)
    if truth is None or not test.is_dir():
        lacking = "GT-final_test.csv with the test classes" if test.is_dir() else test
        remedy = "unpack GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip there too"
        raise InputError(f"{folder} has GTSRB's training images but not {lacking}; {remedy}")
    return {"train": train, "test": _csv_rows(truth, test, ";", "Filename")}


def _csv_rows(file: Path, root: Path, delimiter: str, path_column: str) -> list[Sign]:
    box = ("Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "Width", "Height")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(csv.DictReader(stream, delimiter=delimiter))
        images, note = tables.pointed_files(root, [line[path_column] for line in lines])
        if note:
            warnings.warn(f"{file}: {note}", DataWarning, stacklevel=2)
        return [
            Sign(image, shown(image, root), int(line["ClassId"]), tuple(float(line[name]) for name in box))
            for line, image in zip(lines, images, strict=True)
        ]
    except FileNotFoundError:
        raise InputError(f"{file} is missing; unpack GTSRB again") from None
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as error:
        raise InputError(f"{file} is not a GTSRB table ({type(error).__name__}: {error}); unpack GTSRB again") from None


def _parquet_rows(path: Path, files: list[Path]) -> dict[str, list[Sign]]:
    rows = {}
    for part, table in tables.load_tables(tables.by_split(path, files), Options()).items():
        sources, names, _ = tables.image_sources(table.column("image"), files[0].parent)
        boxes = zip(*(tables.to_numpy(table.column(name)) for name in BOX_COLUMNS), strict=True)
        labels = tables.to_numpy(table.column("label")).tolist()
        rows[part] = [Sign(*row) for row in zip(sources, names, labels, boxes, strict=True)]
    return rows


def _list_gtsrb(rows: dict[str, list[Sign]], path: Path, roi: bool) -> Listing:
    """List the rows in the order of the official files, so that splits do not depend on the layout."""
    parts = {}
    for part, unordered in rows.items():
        signs = sorted(unordered, key=lambda sign: (sign.label if part == "train" else 0, Path(sign.name).name))
        labels = np.array([sign.label for sign in signs], dtype=np.int64)
        if len(labels) and (labels.min() < 0 or labels.max() >= len(GTSRB_CLASSES)):
            raise InputError(f"{path} has class {labels.max()}; GTSRB has 0 to {len(GTSRB_CLASSES) - 1}")
        boxes = to_boxes([sign.region for sign in signs]) if roi else None
        images = EncodedImages([sign.source for sign in signs], [sign.name for sign in signs], boxes)
        groups = np.array([_track(sign) for sign in signs], dtype=np.int64) if part == "train" else None
        parts[part] = Part(images, labels, groups)
    return Listing(GTSRB_CLASSES, parts, size=GTSRB_SIZE, facts={"roi": roi})


def to_boxes(regions: Sequence[Sequence[float]]) -> np.ndarray:
    """Regions of interest (x1, y1, x2, y2, width, height) as fractions of the image, (N, 4).

    The pixels at x2 and y2 are inside.
    """
    x1, y1, x2, y2, width, height = np.array(regions, dtype=np.float64).reshape(-1, 6).T
    boxes = np.stack([x1 / width, y1 / height, (x2 + 1) / width, (y2 + 1) / height], axis=1)
    return np.clip(boxes, 0, 1)


def _track(sign: Sign) -> int:
    """class * 100,000 + track, from a file name track_frame (official) or class_track_frame."""
    pieces = Path(sign.name).stem.split("_")
    if len(pieces) not in (2, 3) or not all(piece.isdigit() for piece in pieces):
        raise InputError(f"{sign.name} is not named class_track_frame or track_frame: its track is unknown")
    return sign.label * 100_000 + int(pieces[-2])


AWA2_SIZE = (64, 64)  # the paper's
AWA2_NUM_IMAGES, TEST_ROWS = 37_322, 11_165  # the paper: 26,157 for training


def find_awa2(path: Path) -> Source | None:
    """Find AwA2 in path or path/Animals_with_Attributes2; None if there is no JPEGImages beside classes.txt."""
    for folder in (path, path / "Animals_with_Attributes2"):
        if (folder / "JPEGImages").is_dir() and (folder / "classes.txt").is_file():
            break
    else:
        return None
    images, names = folder / "JPEGImages", folder / "classes.txt"
    lines = names.read_text(encoding="utf-8").splitlines()  # "  1<tab>antelope"
    classes = tuple(line.split()[-1] for line in lines if line.strip())
    by_class = {name: list(files_below(images / name)) for name in subfolders(images)}
    files = [str(names), *(file for name in by_class for file in by_class[name])]
    return Source("awa2 official", files, lambda scratch: _list_awa2(folder, classes, by_class), list(by_class))


def _list_awa2(folder: Path, classes: tuple[str, ...], by_class: dict[str, list[str]]) -> Listing:
    for name in by_class:
        if name not in classes:
            raise InputError(f"{folder}/JPEGImages/{name} is not in classes.txt; {closest(name, classes)}")
    part = to_part(folder, {name: by_class[name] for name in classes if name in by_class}, classes)
    # If images are missing, the rest is split in the paper's proportion.
    test_rows = round(len(part.labels) * TEST_ROWS / AWA2_NUM_IMAGES)
    return Listing(classes, {"train": part}, size=AWA2_SIZE, test_rows=test_rows)
