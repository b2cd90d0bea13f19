"""Files -> DataSet: list, check, decode, fingerprint; and the same through the cache.

Names and paths -> data sets: where one lies, which reader fits, and the way from files to a DataSet.
"""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from camri.data import arrays, cache, download, folder, published, tables
from camri.data.cache import content_hash, data_folder
from camri.data.dataset import DataSet, Split, assemble, hash_json
from camri.data.decode import decode_parts, resize_arrays
from camri.data.listing import (
    DataWarning,
    EncodedImages,
    Listing,
    Options,
    Part,
    Source,
    check_classes,
    doubtful_names,
    giveaways,
    refuse_untaken,
)
from camri.data.parallel import Progress
from camri.data.splits import across_splits, count_copies, make_test, remarks, torn_groups
from camri.errors import InputError, closest
from camri.files import scratch_folder

CACHE_VERSION = 6  # to be raised when the same files and options would decode to something else, or be refused
OFFICIAL_SHA256 = {"cifar10": published.OFFICIAL_SHA256}  # of the decoded pixels, for layouts without file checksums


def build(
    name: str,
    path: Path,
    found: Source,
    options: Options,
    kept_in: str | PathLike[str] | bool | None,
    progress: Progress | None,
) -> DataSet:
    """The data set that was found, from the cache where it is there, and then kept there."""
    file = _cache_file(path, found, options, kept_in, progress)
    kept = cache.read_cache(file) if file else None
    if kept is not None:
        return _from_cache(*kept)
    with scratch_folder() as scratch:
        dataset = _decode(name, path, found, options, str(scratch), progress)
    if file:
        _keep(file, dataset)
    return dataset


def _cache_file(
    path: Path,
    found: Source,
    options: Options,
    kept_in: str | PathLike[str] | bool | None,
    progress: Progress | None,
) -> Path | None:
    """The file for this content and these options; None where nothing is to be kept."""
    if kept_in is False or not found.files:
        return None
    root = Path(kept_in) if isinstance(kept_in, (str, PathLike)) else cache.cache_folder()
    content = content_hash(found.files, str(path if path.is_dir() else path.parent), root, progress)
    key = hash_json([CACHE_VERSION, content, sorted(found.also), vars(options), found.layout, path.name])
    return root / f"{key}.data"


def _decode(name: str, path: Path, found: Source, options: Options, scratch: str, progress: Progress | None) -> DataSet:
    listing = found.read(scratch)
    parts, layout = listing.parts, listing.facts.get("layout", found.layout)
    refuse_untaken(str(path), layout, listing, options)
    check_classes(str(path), listing.classes, {part: rows.labels for part, rows in parts.items()})
    notes: dict[str, Any] = {}
    if any(isinstance(rows.inputs, EncodedImages) for rows in parts.values()):
        parts, notes = decode_parts(parts, options.size or listing.size, options.skip_bad, progress)
        if "skipped" in notes:
            check_classes(str(path), listing.classes, {part: rows.labels for part, rows in parts.items()})
            notes["skipped_note"] = f"{len(notes['skipped'])} unreadable images were left out"
    else:
        parts = resize_arrays(parts, options.size)
    _refuse_unlike_shapes(str(path), parts)
    provenance = {
        "source": name,
        "layout": layout,
        "options": {key: value for key, value in vars(options).items() if value is not None},
        **{key: value for key, value in listing.facts.items() if key != "layout"},
        **notes,
    }
    splits = {part: _as_split(rows) for part, rows in parts.items()}
    dataset = assemble(name, listing.classes, splits, provenance)
    if listing.test_rows:
        dataset = make_test(dataset, num_rows=listing.test_rows)
    official = OFFICIAL_SHA256.get(name)
    if official and "verified" not in provenance:
        digests = dataset.provenance["sha256"]
        provenance["verified"] = all(digests[part]["inputs"] == official.get(part) for part in digests)
    duplicates = across_splits(dataset)
    told = {**dataset.provenance, **provenance, "duplicates": duplicates}
    told["notes"] = [*doubtful_names(listing.classes), *torn_groups(dataset)]
    if dataset.is_image:  # rows of features may well be equal by chance
        told["copies_in_train"] = count_copies(dataset.splits["train"])
        names = {} if listing.test_rows else {part: rows.names for part, rows in parts.items() if rows.names}
        told["notes"] += remarks(dataset, duplicates, names)
    else:
        train = dataset.splits["train"]
        told["notes"] += giveaways(train.inputs.numpy(), train.labels.numpy(), provenance.get("feature_columns", ()))
    return replace(dataset, provenance=json.loads(json.dumps(told)))  # the same as it will come from the cache


def _refuse_unlike_shapes(source: str, parts: Mapping[str, Part]) -> None:
    shapes = {part: rows.inputs.shape[1:] for part, rows in parts.items() if isinstance(rows.inputs, np.ndarray)}
    kinds = {part: rows.inputs.dtype for part, rows in parts.items() if isinstance(rows.inputs, np.ndarray)}
    if 0 in shapes["train"]:
        raise InputError(f"{source}: the inputs are empty, of shape {shapes['train']}; give at least a number a row")
    for part in shapes:
        if shapes[part] != shapes["train"] or kinds[part] != kinds["train"]:
            raise InputError(
                f"{source}: inputs of {part} are {kinds[part]} {shapes[part]}, those of train {kinds['train']} "
                f"{shapes['train']}; all splits need the same"
            )


def _as_split(rows: Part) -> Split:
    assert isinstance(rows.inputs, np.ndarray)
    inputs = rows.inputs if rows.inputs.flags.writeable else rows.inputs.copy()
    groups = None if rows.groups is None else torch.from_numpy(rows.groups)
    return Split(torch.from_numpy(inputs), torch.from_numpy(rows.labels), groups)


def _keep(file: Path, dataset: DataSet) -> None:
    tensors = {
        f"{part}/{kind}": tensor.numpy()
        for part, split in dataset.splits.items()
        for kind, tensor in vars(split).items()
        if tensor is not None
    }
    facts = {
        "name": dataset.name,
        "classes": dataset.classes,
        "fingerprint": dataset.fingerprint,
        "provenance": dict(dataset.provenance),
    }
    cache.write_cache(file, facts, tensors)


def _from_cache(facts: dict[str, Any], stored: dict[str, np.ndarray]) -> DataSet:
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, array in stored.items():
        part, kind = name.split("/")
        parts.setdefault(part, {})[kind] = torch.from_numpy(array)
    splits = {part: Split(**tensors) for part, tensors in parts.items()}
    return DataSet(facts["name"], tuple(facts["classes"]), splits, facts["fingerprint"], facts["provenance"])


NAMES = ("digits", "mnist", "cifar10", "gtsrb", "awa2")


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
        raise InputError(
            f"size={size!r} must be a side or (height, width) of 1 to 4096 pixels, for example 64", argument="size"
        )
    return pair


def find(source: str | PathLike[str], options: Options) -> tuple[Path, Source]:
    """(where it lies, what it is) of a data set by name or path."""
    if os.fspath(source) == "digits":
        return Path("digits"), published.find_digits()
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


def recognise(path: Path, options: Options) -> Source:
    """The layout at the path; every reader is asked, the most particular first."""
    if download.is_archive(path):
        return Source("archive", [str(path)], lambda scratch: _read_archive(path, Path(scratch), options))
    if path.is_dir():
        found = (
            published.find_cifar10(path, options.verify)
            or published.find_gtsrb(path, options.roi)
            or published.find_awa2(path)
            or published.find_mnist(path, options.verify)
            or tables.find_tables(path, options)
            or _find_single_file(path, options)
            or folder.find_folder(path)
        )
    else:
        found = arrays.find_arrays(path) or tables.find_tables(path, options)
    if found is None:
        raise InputError(
            f"no data set is recognised in {path}; it can be a folder with a folder of images per class, a CSV, TSV or "
            "parquet table, an .npz file, or the files of CIFAR-10, GTSRB, AwA2 or MNIST"
        )
    return found


def _find_single_file(path: Path, options: Options) -> Source | None:
    """The one archive or .npz that a folder holds, as `camri data get` leaves it."""
    visible = [path / name for name in folder.visible(path)]
    files = [file for file in visible if download.is_archive(file) or file.suffix.lower() == ".npz"]
    return recognise(files[0], options) if len(files) == 1 and not folder.subfolders(path) else None


def _read_archive(path: Path, scratch: Path, options: Options) -> Listing:
    download.unpack(path, scratch)
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
