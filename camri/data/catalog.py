"""Names and paths -> data sets: where one lies, which reader fits, and the way from files to a DataSet."""

import os
import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from camri.data import archive, arrays, awa2, cifar10, digits, folder, gtsrb, mnist, table
from camri.data.build import build
from camri.data.dataset import DataSet
from camri.data.listing import DataWarning, Found, Listing, Options
from camri.data.parallel import Progress
from camri.errors import InputError, closest

NAMES = ("digits", "mnist", "cifar10", "gtsrb", "awa2")


def data_folder() -> Path:
    """$CAMRI_DATA, or the place where this platform keeps users' data."""
    if told := os.environ.get("CAMRI_DATA"):
        return Path(told)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "camri"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "camri" / "data"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "camri"


def load(
    source: str | PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    roi: bool = False,
    skip_bad: bool = False,
    verify: bool = True,
    cache: str | PathLike[str] | bool | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    split_column: str | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """The data set with this name ("digits", "mnist", "cifar10", "gtsrb", "awa2") or at this path.

    size: side or (height, width) in pixels to which images are resized.
    roi: crop GTSRB's images to the sign. skip_bad: leave unreadable images out instead of refusing them.
    verify: check the official files of CIFAR-10 and MNIST against their published checksums.
    cache: folder for decoded data, or False for none; otherwise $CAMRI_CACHE or the user's cache folder.
    …_column: columns of a table, where their names are not the usual ones.
    An option that has no effect on this kind of data is refused.

    >>> load("digits").splits["test"].labels[:5].tolist()
    [3, 5, 6, 9, 1]
    """
    for name, flag in (("roi", roi), ("skip_bad", skip_bad), ("verify", verify)):
        if type(flag) is not bool:  # of a study's file: "no" would count as yes
            raise InputError(f"{name}={flag!r} is not allowed; choices: true, false")
    options = Options(_as_size(size), roi, skip_bad, verify, path_column, label_column, group_column, split_column)
    name = str(source) if str(source) in NAMES else Path(source).stem
    try:
        path, found = find(source, options)
        dataset = build(name, path, found, options, cache, progress)
    except PermissionError as error:
        raise InputError(f"{error.filename} may not be read by this user; change its permissions") from None
    is_benchmark = str(dataset.provenance["layout"]).split(maxsplit=1)[0] in NAMES
    # A benchmark's copies are known, and who compares results must leave them; `camri data show` and pages tell
    for note in notes({**dataset.provenance, "notes": []} if is_benchmark else dataset.provenance):
        warnings.warn(f"{dataset.name}: {note}", DataWarning, stacklevel=2)
    return dataset


def notes(provenance: Mapping[str, Any]) -> list[str]:
    """What the owner of a data set should know, a sentence each."""
    single = [provenance[key] for key in ("size_note", "depth_note", "skipped_note") if key in provenance]
    return [*single, *provenance.get("notes", [])]


def _as_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(side) is int and 1 <= side <= 4096 for side in pair):
        raise InputError(f"size={size!r} must be a side or (height, width) of 1 to 4096 pixels, for example 64")
    return pair


def find(source: str | PathLike[str], options: Options) -> tuple[Path, Found]:
    """(where it lies, what it is) of a data set by name or path."""
    if os.fspath(source) == "digits":
        return Path("digits"), digits.find()
    path = locate(source)
    return path, recognise(path, options)


def locate(source: str | PathLike[str]) -> Path:
    """Where the data set lies. A catalogue name is looked for in the data folder."""
    text = os.fspath(source)
    if text in NAMES:
        place = data_folder() / text
        if place.exists():
            return place
        raise InputError(
            f"{text} is not in {data_folder()}; get it with `camri data get {text}`, or set CAMRI_DATA to the folder "
            f"that holds {text}/"
        )
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:  # a loop of links, or a NUL in the name
        raise InputError(f"{text!r} cannot be opened: {error}") from None
    if not exists:
        raise InputError(f"{text!r} is neither a path nor a known data set; {closest(text, NAMES)}")
    if not os.access(path, os.R_OK):
        raise InputError(f"{text} may not be read by this user; change its permissions")
    return path


def recognise(path: Path, options: Options) -> Found:
    """The layout at the path; every reader is asked, the most particular first."""
    if archive.is_archive(path):
        return Found("archive", [str(path)], lambda scratch: _read_archive(path, Path(scratch), options))
    if path.is_dir():
        found = (
            cifar10.find(path, options.verify)
            or gtsrb.find(path, options.roi)
            or awa2.find(path)
            or mnist.find(path, options.verify)
            or table.find(path, options)
            or _find_single_file(path, options)
            or folder.find(path)
        )
    else:
        found = arrays.find(path) or table.find(path, options)
    if found is None:
        raise InputError(
            f"no data set is recognised in {path}; it can be a folder with a folder of images per class, a CSV, TSV or "
            "parquet table, an .npz file, or the files of CIFAR-10, GTSRB, AwA2 or MNIST"
        )
    return found


def _find_single_file(path: Path, options: Options) -> Found | None:
    """The one archive or .npz that a folder holds, as `camri data get` leaves it."""
    visible = [path / name for name in folder.visible(path)]
    files = [file for file in visible if archive.is_archive(file) or file.suffix.lower() == ".npz"]
    return recognise(files[0], options) if len(files) == 1 and not folder.subfolders(path) else None


def _read_archive(path: Path, scratch: Path, options: Options) -> Listing:
    archive.unpack(path, scratch)
    inside = scratch
    try:
        while len(folder.subfolders(inside)) == 1 and len(folder.visible(inside)) == 1:
            inside = inside / folder.subfolders(inside)[0]
        found = recognise(inside, options)
        listing = found.read(str(scratch))
    except InputError as error:  # nobody knows the temporary folder
        raise InputError(str(error).replace(str(scratch), str(path))) from None
    listing.facts["layout"] = f"{found.layout}, in an archive"
    return listing
