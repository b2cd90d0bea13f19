"""scikit-learn's 1,797 handwritten digits, 8x8, there without a download.

MNIST: the four idx files, gzipped or not.

CIFAR-10 as it is published: the python (pickled) and the binary batches.

GTSRB: the official folders, the Kaggle folders, and parquet. The track is the group.

AwA2 as it is published: JPEGImages/<class>/*.jpg and classes.txt.
"""

import csv
import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.data import tables
from camri.data.cache import md5
from camri.data.folder import files_below, shown, subfolders
from camri.data.listing import EncodedImages, Listing, Options, Part, Source
from camri.errors import InputError, closest


def find_digits() -> Source:
    """The digits; they come without a test part, so 539 rows (30 %) are held out by a seeded split."""
    return Source("digits", (), lambda scratch: _read_digits())


def _read_digits() -> Listing:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0..16 -> 0..255
    labels = digits.target.astype(np.int64)
    return Listing(tuple(map(str, range(10))), {"train": Part(pixels, labels)}, test_rows=539)


MNIST_PREFIXES = {"train": "train", "test": "t10k"}
# md5 of the files when unpacked, so that the check does not depend on who gzipped them.
OFFICIAL_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def find_mnist(path: Path, verify: bool) -> Source | None:
    """MNIST at path, path/raw or path/MNIST/raw; None where its train images are not there."""
    for folder in (path, path / "raw", path / "MNIST" / "raw"):
        if _locate(folder, "train-images-idx3-ubyte"):
            return _find_mnist(folder, verify)
    return None


def _find_mnist(folder: Path, verify: bool) -> Source:
    files = {}
    for name in OFFICIAL_MD5:
        file = _locate(folder, name)
        if file is None:
            raise InputError(f"{folder} has MNIST's train images but not {name}(.gz); get it beside them")
        files[name] = str(file)
    return Source("mnist idx", list(files.values()), lambda scratch: _read_mnist(files, verify))


def _locate(folder: Path, name: str) -> Path | None:
    for spelling in (name, name.replace("-idx", ".idx")):
        for file in (folder / f"{spelling}.gz", folder / spelling):
            if file.is_file():
                return file
    return None


def _read_mnist(files: dict[str, str], verify: bool) -> Listing:
    parts = {}
    for part, prefix in MNIST_PREFIXES.items():
        arrays = [
            read_idx(files[name], OFFICIAL_MD5[name] if verify else None)
            for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
        ]
        images, labels = arrays
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise InputError(
                f"MNIST's {part} files do not fit together (images {images.shape}, labels {labels.shape}); "
                "get them again"
            )
        parts[part] = Part(images[..., None], labels.astype(np.int64))
    return Listing(tuple(map(str, range(10))), parts, facts={"verified": verify})


def read_idx(file: str, md5: str | None = None) -> np.ndarray:
    """The array of unsigned bytes in an idx file, gzipped or not; its md5 is checked where one is given."""
    try:
        content = Path(file).read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be unpacked ({error}); get it again") from None
    zeros, kind, num_axes = struct.unpack(">HBB", content[:4].ljust(4, b"\xff"))
    shape = struct.unpack(f">{num_axes}I", content[4 : 4 + 4 * num_axes].ljust(4 * num_axes, b"\x00"))
    if zeros != 0 or kind != 8 or len(content) != 4 + 4 * num_axes + math.prod(shape):
        raise InputError(f"{file} is not a whole idx file of unsigned bytes; get it again")
    if md5 and hashlib.md5(content).hexdigest() != md5:
        raise InputError(
            f"{file} differs from the official file (md5 of its content is not {md5}); get it again, or pass "
            "verify=False (--no-verify) if it is meant to differ"
        )
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
Reader = Callable[[Path], tuple[np.ndarray, np.ndarray]]  # (pixels, labels) of one batch


def find_cifar10(path: Path, verify: bool) -> Source | None:
    """The batches in path or in the folder that the official archive makes there; None where there are none."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if (folder / "data_batch_1").is_file():
            return _find_cifar10("cifar10 python", folder, PICKLED_MD5, _read_pickled, verify)
        if (folder / "data_batch_1.bin").is_file():
            return _find_cifar10("cifar10 binary", folder, BINARY_MD5, _read_binary, verify)
    return None


def _find_cifar10(layout: str, folder: Path, checksums: dict[str, str], reader: Reader, verify: bool) -> Source:
    files = {name: folder / name for name in checksums}
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"{folder} has no {name}; CIFAR-10 needs {', '.join(checksums)}")

    def read(scratch: str) -> Listing:
        if verify:
            _verify_cifar10(files, checksums)
        return _join_batches({name: reader(file) for name, file in files.items()}, verify)

    return Source(layout, [str(file) for file in files.values()], read)


def _verify_cifar10(files: dict[str, Path], checksums: dict[str, str]) -> None:
    for name, file in files.items():
        if md5(str(file)) != checksums[name]:
            raise InputError(
                f"{file} differs from the official file (its md5 is not {checksums[name]}); get it again, or pass "
                "verify=False (--no-verify) if it is meant to differ"
            )


def _join_batches(batches: dict[str, tuple[np.ndarray, np.ndarray]], verified: bool) -> Listing:
    parts = {}
    for part, start in (("train", "data_batch"), ("test", "test_batch")):
        chosen = [batch for name, batch in batches.items() if name.startswith(start)]
        planes = np.concatenate([pixels for pixels, _ in chosen]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([labels for _, labels in chosen]).astype(np.int64)
        parts[part] = Part(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
    return Listing(CIFAR10_CLASSES, parts, facts={"verified": verified})


def _read_binary(file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(file, dtype=np.uint8)
    if not len(content) or len(content) % (1 + PIXELS):
        raise InputError(f"{file} has {len(content)} bytes, not a multiple of {1 + PIXELS}; get it again")
    rows = content.reshape(-1, 1 + PIXELS)
    return _checked_batch(rows[:, 1:], rows[:, 0], file)


def _read_pickled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = PlainUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
    except InputError as error:
        raise InputError(f"{file} {error}") from None
    except Exception as error:  # a damaged pickle fails in whatever way its bytes lead to
        raise InputError(f"{file} is not a CIFAR-10 batch ({type(error).__name__}); get it again") from None
    return _checked_batch(pixels, labels, file)


def _checked_batch(pixels: np.ndarray, labels: np.ndarray, file: Path) -> tuple[np.ndarray, np.ndarray]:
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS) or labels.dtype.kind not in "iu":
        raise InputError(f"{file} holds {pixels.dtype} {pixels.shape}, not uint8 rows of {PIXELS}; get it again")
    if len(labels) and (labels.min() < 0 or labels.max() > 9):
        raise InputError(f"{file} holds label {labels.max()}; CIFAR-10 has 0 to 9")
    return pixels, labels


class PlainUnpickler(pickle.Unpickler):
    """Reads arrays, lists, dicts, strings and numbers; anything else in the pickle is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _new_array
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module == "_codecs" and name == "encode":
            return _encode_latin1
        raise InputError(f"asks for {module}.{name}, which plain data does not need; it was not opened further")


def _new_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise InputError("builds something that is no plain array; it was not opened further")
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


GTSRB_SIZE = (48, 48)  # the paper's
GTSRB_CLASSES = (
    "Speed limit (20km/h)",
    "Speed limit (30km/h)",
    "Speed limit (50km/h)",
    "Speed limit (60km/h)",
    "Speed limit (70km/h)",
    "Speed limit (80km/h)",
    "End of speed limit (80km/h)",
    "Speed limit (100km/h)",
    "Speed limit (120km/h)",
    "No passing",
    "No passing for vehicles over 3.5 metric tons",
    "Right-of-way at the next intersection",
    "Priority road",
    "Yield",
    "Stop",
    "No vehicles",
    "Vehicles over 3.5 metric tons prohibited",
    "No entry",
    "General caution",
    "Dangerous curve to the left",
    "Dangerous curve to the right",
    "Double curve",
    "Bumpy road",
    "Slippery road",
    "Road narrows on the right",
    "Road work",
    "Traffic signals",
    "Pedestrians",
    "Children crossing",
    "Bicycles crossing",
    "Beware of ice/snow",
    "Wild animals crossing",
    "End of all speed and passing limits",
    "Turn right ahead",
    "Turn left ahead",
    "Ahead only",
    "Go straight or right",
    "Go straight or left",
    "Keep right",
    "Keep left",
    "Roundabout mandatory",
    "End of no passing",
    "End of no passing by vehicles over 3.5 metric tons",
)
PARQUET_COLUMNS = {"image", "label", "roi_x1", "roi_y1", "roi_x2", "roi_y2", "width", "height"}
Row = tuple[Any, str, int, tuple[float, ...]]  # source, name, class, (x1, y1, x2, y2, width, height)


def find_gtsrb(path: Path, roi: bool) -> Source | None:
    """GTSRB in any of its three layouts; None where path holds none of them."""
    for folder in (path, path / "GTSRB"):
        if (folder / "Final_Training" / "Images").is_dir():
            return _found("gtsrb official", path, _official_rows(folder, path), roi)
    if (path / "Test.csv").is_file() and _has_regions(path / "Train.csv"):
        rows = {part: list(_csv_rows(path / f"{part.title()}.csv", path, ",", "Path")) for part in ("train", "test")}
        return _found("gtsrb kaggle", path, rows, roi)
    files = [file for file in tables.parquet_files(path) if tables.part_of_file(file)] if path.is_dir() else []
    if files and _has_parquet_columns(files[0]):
        return Source(
            "gtsrb parquet", list(map(str, files)), lambda scratch: _list_gtsrb(_parquet_rows(files), path, roi)
        )
    return None


def _has_regions(file: Path) -> bool:
    """Whether it is a GTSRB table: anybody may call a table Train.csv."""
    if not file.is_file():
        return False
    with open(file, encoding="utf-8", errors="replace") as lines:
        return "Roi.X1" in lines.readline()


def _found(layout: str, path: Path, rows: dict[str, list[Row]], roi: bool) -> Source:
    files = [str(row[0]) for part in rows.values() for row in part]
    tables = [str(file) for pattern in ("**/GT-*.csv", "T*.csv") for file in sorted(path.glob(pattern))]
    return Source(layout, [*tables, *files], lambda scratch: _list_gtsrb(rows, path, roi))


def _official_rows(folder: Path, path: Path) -> dict[str, list[Row]]:
    training = folder / "Final_Training" / "Images"
    train = [
        row
        for name in subfolders(training)
        for row in _csv_rows(training / name / f"GT-{name}.csv", training / name, ";", "Filename")
    ]
    test = folder / "Final_Test" / "Images"
    answers = [place / "GT-final_test.csv" for place in (test, folder / "Final_Test", folder, path)]
    truth = next((file for file in answers if file.is_file()), None)
    if truth is None or not test.is_dir():
        lacking = "GT-final_test.csv with the test classes" if test.is_dir() else test
        raise InputError(
            f"{folder} has GTSRB's training images but not {lacking}; "
            "unpack GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip there too"
        )
    return {"train": train, "test": list(_csv_rows(truth, test, ";", "Filename"))}


def _csv_rows(file: Path, root: Path, delimiter: str, path_column: str) -> Iterable[Row]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            for line in csv.DictReader(stream, delimiter=delimiter):
                roi = tuple(float(line[f"Roi.{edge}"]) for edge in ("X1", "Y1", "X2", "Y2"))
                sizes = (float(line["Width"]), float(line["Height"]))
                image = root / line[path_column]
                yield str(image), shown(str(image), root), int(line["ClassId"]), roi + sizes
    except FileNotFoundError:
        raise InputError(f"{file} is missing; unpack GTSRB again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a GTSRB table ({type(error).__name__}: {error}); unpack GTSRB again") from None


def _has_parquet_columns(file: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(file).names) >= PARQUET_COLUMNS
    except (OSError, ValueError):
        return False  # the reader for tables will say what is wrong with the file


def _parquet_rows(files: list[Path]) -> dict[str, list[Row]]:
    by_part: dict[str, list[Path]] = {}
    for file in files:
        by_part.setdefault(tables.part_of_file(file) or "train", []).append(file)
    rows = {}
    for part, found in tables.load_tables(by_part, Options()).items():
        sources, names = tables.image_sources(found.column("image"), files[0].parent)
        numbers = [
            tables.to_numpy(found.column(c)) for c in ("roi_x1", "roi_y1", "roi_x2", "roi_y2", "width", "height")
        ]
        labels = tables.to_numpy(found.column("label"))
        rows[part] = list(zip(sources, names, labels.tolist(), zip(*numbers, strict=True), strict=True))
    return rows


def _list_gtsrb(rows: dict[str, list[Row]], path: Path, roi: bool) -> Listing:
    """Rows in the order of the official files, so that the layout does not change a split."""
    parts = {}
    for part, found in rows.items():
        ordered = sorted(found, key=lambda row: (row[2] if part == "train" else 0, Path(row[1]).name))
        labels = np.array([row[2] for row in ordered], dtype=np.int64)
        if len(labels) and (labels.min() < 0 or labels.max() >= len(GTSRB_CLASSES)):
            raise InputError(f"{path} has class {labels.max()}; GTSRB has 0 to {len(GTSRB_CLASSES) - 1}")
        images = EncodedImages(
            [row[0] for row in ordered],
            [row[1] for row in ordered],
            to_boxes([row[3] for row in ordered]) if roi else None,
        )
        parts[part] = Part(images, labels, _tracks(ordered) if part == "train" else None)
    return Listing(GTSRB_CLASSES, parts, size=GTSRB_SIZE, facts={"roi": roi})


def to_boxes(regions: Sequence[Sequence[float]]) -> np.ndarray:
    """Regions of interest (x1, y1, x2, y2, width, height) as fractions of the image, (N, 4).

    Their right and bottom pixels belong to them.
    """
    x1, y1, x2, y2, width, height = np.array(regions, dtype=np.float64).reshape(-1, 6).T
    boxes = np.stack([x1 / width, y1 / height, (x2 + 1) / width, (y2 + 1) / height], axis=1)
    return np.clip(boxes, 0, 1)


def _tracks(rows: list[Row]) -> np.ndarray:
    """class * 100,000 + track, from file names track_frame (official) or class_track_frame."""
    tracks = []
    for _, name, label, _ in rows:
        pieces = Path(name).stem.split("_")
        if len(pieces) not in (2, 3) or not all(piece.isdigit() for piece in pieces):
            raise InputError(
                f"{name} is not named class_track_frame or track_frame, so its track is unknown; rename it"
            )
        tracks.append(label * 100_000 + int(pieces[-2]))
    return np.array(tracks, dtype=np.int64)


AWA2_SIZE = (64, 64)  # the paper's
AWA2_NUM_IMAGES, TEST_ROWS = 37_322, 11_165  # the paper: 26,157 for training


def find_awa2(path: Path) -> Source | None:
    """AwA2 in path or path/Animals_with_Attributes2; None where there is no JPEGImages with classes.txt."""
    for folder in (path, path / "Animals_with_Attributes2"):
        if (folder / "JPEGImages").is_dir() and (folder / "classes.txt").is_file():
            return _find_awa2(folder)
    return None


def _find_awa2(folder: Path) -> Source:
    images = folder / "JPEGImages"
    found = {name: list(files_below(images / name)) for name in subfolders(images)}
    files = [str(folder / "classes.txt"), *(file for name in found for file in found[name])]
    classes = _awa2_class_names(folder / "classes.txt")
    return Source("awa2 official", files, lambda scratch: _list_awa2(folder, classes, found), list(found))


def _awa2_class_names(file: Path) -> tuple[str, ...]:
    """The last word of each line: "  1<tab>antelope"."""
    return tuple(line.split()[-1] for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


def _list_awa2(folder: Path, classes: tuple[str, ...], found: dict[str, list[str]]) -> Listing:
    index = {name: position for position, name in enumerate(classes)}
    for name in found:
        if name not in index:
            raise InputError(f"{folder}/JPEGImages/{name} is not in classes.txt; {closest(name, classes)}")
    files = [file for name in classes for file in found.get(name, [])]
    labels = np.array([index[name] for name in classes for _ in found.get(name, [])], dtype=np.int64)
    part = Part(EncodedImages(files, [shown(file, folder) for file in files]), labels)
    # A part of AwA2 is split in the paper's proportion.
    test_rows = TEST_ROWS if len(files) == AWA2_NUM_IMAGES else round(len(files) * TEST_ROWS / AWA2_NUM_IMAGES)
    return Listing(classes, {"train": part}, size=AWA2_SIZE, test_rows=test_rows)
