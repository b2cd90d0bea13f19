"""AwA2 as it is published: JPEGImages/<class>/*.jpg and classes.txt."""

from pathlib import Path

import numpy as np

from camri.data.folder import files_below, shown, subfolders
from camri.data.listing import EncodedImages, Found, Listing, Part
from camri.errors import InputError, closest

SIZE = (64, 64)  # the paper's
NUM_IMAGES, TEST_ROWS = 37_322, 11_165  # the paper: 26,157 for training


def find(path: Path) -> Found | None:
    """AwA2 in path or path/Animals_with_Attributes2; None where there is no JPEGImages with classes.txt."""
    for folder in (path, path / "Animals_with_Attributes2"):
        if (folder / "JPEGImages").is_dir() and (folder / "classes.txt").is_file():
            return _find(folder)
    return None


def _find(folder: Path) -> Found:
    images = folder / "JPEGImages"
    found = {name: list(files_below(images / name)) for name in subfolders(images)}
    files = [str(folder / "classes.txt"), *(file for name in found for file in found[name])]
    classes = _class_names(folder / "classes.txt")
    return Found("awa2 official", files, lambda scratch: _list(folder, classes, found), list(found))


def _class_names(file: Path) -> tuple[str, ...]:
    """The last word of each line: "  1<tab>antelope"."""
    return tuple(line.split()[-1] for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


def _list(folder: Path, classes: tuple[str, ...], found: dict[str, list[str]]) -> Listing:
    index = {name: position for position, name in enumerate(classes)}
    for name in found:
        if name not in index:
            raise InputError(f"{folder}/JPEGImages/{name} is not in classes.txt; {closest(name, classes)}")
    files = [file for name in classes for file in found.get(name, [])]
    labels = np.array([index[name] for name in classes for _ in found.get(name, [])], dtype=np.int64)
    part = Part(EncodedImages(files, [shown(file, folder) for file in files]), labels)
    # A part of AwA2 is split in the paper's proportion.
    test_rows = TEST_ROWS if len(files) == NUM_IMAGES else round(len(files) * TEST_ROWS / NUM_IMAGES)
    return Listing(classes, {"train": part}, size=SIZE, test_rows=test_rows)
