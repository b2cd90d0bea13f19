"""GTSRB: the official folders, the Kaggle folders, and parquet. The track is the group."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.data import columns, table
from camri.data.folder import shown, subfolders
from camri.data.listing import EncodedImages, Found, Listing, Options, Part
from camri.errors import InputError

SIZE = (48, 48)  # the paper's
CLASSES = (
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


def find(path: Path, roi: bool) -> Found | None:
    """GTSRB in any of its three layouts; None where path holds none of them."""
    for folder in (path, path / "GTSRB"):
        if (folder / "Final_Training" / "Images").is_dir():
            return _found("gtsrb official", path, _official_rows(folder, path), roi)
    if (path / "Test.csv").is_file() and _has_regions(path / "Train.csv"):
        rows = {part: list(_csv_rows(path / f"{part.title()}.csv", path, ",", "Path")) for part in ("train", "test")}
        return _found("gtsrb kaggle", path, rows, roi)
    files = [file for file in table.parquet_files(path) if columns.part_of_file(file)] if path.is_dir() else []
    if files and _has_parquet_columns(files[0]):
        return Found("gtsrb parquet", list(map(str, files)), lambda scratch: _list(_parquet_rows(files), path, roi))
    return None


def _has_regions(file: Path) -> bool:
    """Whether it is a GTSRB table: anybody may call a table Train.csv."""
    if not file.is_file():
        return False
    with open(file, encoding="utf-8", errors="replace") as lines:
        return "Roi.X1" in lines.readline()


def _found(layout: str, path: Path, rows: dict[str, list[Row]], roi: bool) -> Found:
    files = [str(row[0]) for part in rows.values() for row in part]
    tables = [str(file) for pattern in ("**/GT-*.csv", "T*.csv") for file in sorted(path.glob(pattern))]
    return Found(layout, [*tables, *files], lambda scratch: _list(rows, path, roi))


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
        by_part.setdefault(columns.part_of_file(file) or "train", []).append(file)
    rows = {}
    for part, found in table.load_tables(by_part, Options()).items():
        sources, names = columns.image_sources(found.column("image"), files[0].parent)
        numbers = [
            columns.to_numpy(found.column(c)) for c in ("roi_x1", "roi_y1", "roi_x2", "roi_y2", "width", "height")
        ]
        labels = columns.to_numpy(found.column("label"))
        rows[part] = list(zip(sources, names, labels.tolist(), zip(*numbers, strict=True), strict=True))
    return rows


def _list(rows: dict[str, list[Row]], path: Path, roi: bool) -> Listing:
    """Rows in the order of the official files, so that the layout does not change a split."""
    parts = {}
    for part, found in rows.items():
        ordered = sorted(found, key=lambda row: (row[2] if part == "train" else 0, Path(row[1]).name))
        labels = np.array([row[2] for row in ordered], dtype=np.int64)
        if len(labels) and (labels.min() < 0 or labels.max() >= len(CLASSES)):
            raise InputError(f"{path} has class {labels.max()}; GTSRB has 0 to {len(CLASSES) - 1}")
        images = EncodedImages(
            [row[0] for row in ordered],
            [row[1] for row in ordered],
            to_boxes([row[3] for row in ordered]) if roi else None,
        )
        parts[part] = Part(images, labels, _tracks(ordered) if part == "train" else None)
    return Listing(CLASSES, parts, size=SIZE, facts={"roi": roi})


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
