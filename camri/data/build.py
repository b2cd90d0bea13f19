"""Files -> DataSet: list, check, decode, fingerprint; and the same through the cache."""

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from camri.data import cache, cifar10
from camri.data.dataset import DataSet, Split, assemble, hash_json
from camri.data.decode import decode_parts, resize_arrays
from camri.data.duplicates import across_splits, count_copies, remarks, torn_groups
from camri.data.identity import content_hash
from camri.data.kinds import refuse_untaken
from camri.data.labels import check_classes, doubtful_names, giveaways
from camri.data.listing import EncodedImages, Found, Options, Part
from camri.data.parallel import Progress
from camri.data.splits import make_test
from camri.errors import InputError
from camri.files import scratch_folder

CACHE_VERSION = 6  # to be raised when the same files and options would decode to something else, or be refused
OFFICIAL_SHA256 = {"cifar10": cifar10.OFFICIAL_SHA256}  # of the decoded pixels, for layouts without file checksums


def build(
    name: str,
    path: Path,
    found: Found,
    options: Options,
    kept_in: str | PathLike[str] | bool | None,
    progress: Progress | None,
) -> DataSet:
    """The data set that was found, from the cache where it is there, and then kept there."""
    file = _cache_file(path, found, options, kept_in, progress)
    kept = cache.read(file) if file else None
    if kept is not None:
        return _from_cache(*kept)
    with scratch_folder() as scratch:
        dataset = _decode(name, path, found, options, str(scratch), progress)
    if file:
        _keep(file, dataset)
    return dataset


def _cache_file(
    path: Path,
    found: Found,
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


def _decode(name: str, path: Path, found: Found, options: Options, scratch: str, progress: Progress | None) -> DataSet:
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
    cache.save(file, facts, tensors)


def _from_cache(facts: dict[str, Any], stored: dict[str, np.ndarray]) -> DataSet:
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, array in stored.items():
        part, kind = name.split("/")
        parts.setdefault(part, {})[kind] = torch.from_numpy(array)
    splits = {part: Split(**tensors) for part, tensors in parts.items()}
    return DataSet(facts["name"], tuple(facts["classes"]), splits, facts["fingerprint"], facts["provenance"])
