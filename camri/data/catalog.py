"""Load a DataSet from a name or path: find the files, recognise the layout, decode and check, or read the cache."""

import glob
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from camri.backbones import decoding, find, resampling
from camri.data import download, folder, listing, published, shards, tables
from camri.data.cache import Draft, content_hash, read_cache, read_pixels, write_cache
from camri.data.dataset import (
    DataSet,
    Split,
    across_splits,
    assemble,
    copy_notes,
    count_copies,
    group_notes,
    hash_json,
    make_test,
)
from camri.data.decode import LANCZOS, Decoder, decode_parts, join, resize_array
from camri.data.features import embed
from camri.data.listing import DataWarning, EncodedImages, Listing, Options, Source
from camri.data.parallel import Progress
from camri.data.rows import Rows, Store, Stored, memory_for_images, num_bytes, parse_size
from camri.errors import InputError, closest
from camri.files import NO_ROOM, cache_folder, data_folder, refuse_special, scratch_folder

NAMES = ("digits", "mnist", "cifar10", "gtsrb", "awa2")
CACHE_VERSION = 8  # raise it when the same files and options would decode to something else, or be refused
SPARE = 0.95  # share of the free disk that decoded images may take
PIXELS = ".pixels"  # ending of the file of images that do not fit in memory
ROWS = "rows"  # in the cache: which of these images a split has


def load(
    source: str | PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    resize: str | None = None,
    roi: bool = False,
    skip_bad: bool = False,
    verify: bool = True,
    cache: str | PathLike[str] | bool | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    split_column: str | None = None,
    backbone: str | None = None,
    weights: str | PathLike[str] | None = None,
    resident: str | int | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """Load a data set by name ("digits", "mnist", "cifar10", "gtsrb", "awa2") or path.

    size: resize images to this side or (height, width) in pixels. resize: how, as in `camri.backbones.Preprocessing`.
    roi: crop GTSRB's images to the sign. skip_bad: skip unreadable images instead of refusing them.
    verify: check the official files of CIFAR-10 and MNIST against their published checksums.
    cache: folder for decoded data, or False for none; the default is $CAMRI_CACHE or the user's cache folder.
    path_column and so on: columns of a table, if their names are not the usual ones.
    backbone: "timm:NAME" or "hf:NAME" replaces images by the features of this pretrained network, computed once.
    weights: its safetensors file, if the published weights cannot be downloaded.
    resident: "2GiB", or bytes: the memory that images may take, a GPU's or this machine's; by default half of what is
    free. If they take more, they stay on disk and are read by the batch; results are the same.
    An option that has no effect on this kind of data is refused.

    >>> load("digits").splits["test"].labels[:5].tolist()
    [3, 5, 6, 9, 1]
    """
    given_options = {name: value for name, value in locals().items() if name not in ("source", "backbone", "weights")}
    for flag, value in (("roi", roi), ("skip_bad", skip_bad), ("verify", verify)):
        if type(value) is not bool:  # "no" in a study's file would count as true
            raise InputError(f"{flag}={value!r} is not allowed; choices: true, false", argument=flag)
    if backbone is not None:
        asked: dict[str, Any] = {k: v for k, v in (("size", _as_size(size)), ("resize", resize)) if v is not None}
        trunk_options, asked = decoding(find(backbone, weights=weights, size=asked.get("size")), asked)
        images = load(source, **{**given_options, "size": None, "resize": None, **asked})
        folder = Path(cache) if isinstance(cache, (str, PathLike)) else None
        return embed(images, backbone, trunk_options, cache=folder, progress=progress)
    if weights is not None:
        raise InputError(f"weights={weights} is for a backbone; give backbone=NAME too", argument="weights")
    if resize is not None:
        resampling(resize)
        if size is None:
            raise InputError(f"resize={resize!r} needs a size; give size=PIXELS too", argument="resize")
    options = Options(
        _as_size(size), resize, roi, skip_bad, verify, path_column, label_column, group_column, split_column
    )
    name = str(source) if str(source) in NAMES else Path(source).stem.rstrip("-_*?") or Path(source).parent.name
    limit = parse_size(resident)
    try:
        path = locate(source)
        layout = published.find_digits() if str(source) == "digits" else recognise(path, options)
        file = None
        if cache is not False and layout.files:
            root = Path(cache) if isinstance(cache, (str, PathLike)) else cache_folder()
            content = content_hash(layout.files, str(path if path.is_dir() else path.parent), root, progress)
            how = {name: value for name, value in vars(options).items() if name != "resize" or value is not None}
            key = [CACHE_VERSION, content, sorted(layout.also), how, layout.layout, path.name]
            file = root / f"{hash_json(key)}.data"
        job = _Job(name, path, layout, options, file, memory_for_images() if limit is None else limit, progress)
        dataset = _read_cache(job) or _make(job)
    except PermissionError as error:
        raise InputError(f"{error.filename}: permission denied; change its permissions") from None
    is_benchmark = str(dataset.provenance["layout"]).split(maxsplit=1)[0] in NAMES
    # A benchmark's copies are known and must stay for results to be comparable: `camri data show` lists them.
    for note in notes({**dataset.provenance, "notes": []} if is_benchmark else dataset.provenance):
        warnings.warn(f"{dataset.name}: {note}", DataWarning, stacklevel=2)
    return replace(dataset, resident=limit)


@dataclass(frozen=True)
class _Job:
    """A data set to load: its name, where it is and how to read it, and the cache file, if it is to be cached."""

    name: str
    path: Path
    source: Source
    options: Options
    file: Path | None
    most_bytes: int  # of images in memory
    progress: Progress | None

    @property
    def resize(self) -> str:
        return self.options.resize or LANCZOS


def notes(provenance: Mapping[str, Any]) -> list[str]:
    """Notes for the owner of a data set, one sentence each."""
    single = [provenance[key] for key in ("path_note", "size_note", "depth_note", "skipped_note") if key in provenance]
    return [*single, *provenance.get("notes", [])]


def _as_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(side) is int and 1 <= side <= 4096 for side in pair):
        raise InputError(f"size={size!r} must be a side or (height, width) of 1 to 4096 pixels", argument="size")
    return pair


def locate(source: str | PathLike[str]) -> Path:
    """Path of a data set; a name is looked up in the data folder."""
    text = os.fspath(source)
    if text == "digits":
        return Path(text)  # comes with scikit-learn
    if text in NAMES:
        place = data_folder() / text
        if place.exists():
            return place
        raise InputError(f"{text} is not in {data_folder()}; run `camri data get {text}`, or set CAMRI_DATA")
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:  # a loop of links, or a NUL in the name
        raise InputError(f"{text!r} cannot be opened: {error}") from None
    if shards.is_pattern(path) and glob.glob(text):
        return path
    if not exists:
        raise InputError(f"{text!r} is neither a path nor a known data set; {closest(text, NAMES)}")
    if not os.access(path, os.R_OK):
        raise InputError(f"{text}: permission denied; change its permissions")
    if not path.is_dir():
        refuse_special(path)
    return path


def recognise(path: Path, options: Options) -> Source:
    """Recognise the layout at the path; the most specific one wins."""
    if source := shards.find_shards(path):
        return source
    if download.is_archive(path):
        return Source("archive", [str(path)], lambda scratch: _read_archive(path, Path(scratch), options))
    if path.is_dir():
        source = (
            published.find_cifar10(path, options.verify)
            or published.find_gtsrb(path, options.roi)
            or published.find_awa2(path)
            or published.find_mnist(path, options.verify)
            or tables.find_tables(path, options)
            or _find_single_file(path, options)
            or folder.find_folder(path)
        )
    else:
        source = tables.find_arrays(path) or tables.find_tables(path, options)
    if source is None:
        raise InputError(
            f"no data set is recognised in {path}; give a folder with a folder of images per class, a CSV, TSV or "
            "parquet table, tar shards, an .npz file, or the files of CIFAR-10, GTSRB, AwA2 or MNIST"
        )
    return source


def _find_single_file(path: Path, options: Options) -> Source | None:
    """The only archive or .npz in a folder, as `camri data get` leaves it."""
    visible = [path / name for name in folder.visible(path)]
    files = [file for file in visible if download.is_archive(file) or file.suffix.lower() == ".npz"]
    return recognise(files[0], options) if len(files) == 1 and not folder.subfolders(path) else None


def _read_archive(path: Path, scratch: Path, options: Options) -> Listing:
    download.unpack(path, scratch)
    inside = scratch
    try:
        while len(folder.subfolders(inside)) == 1 and len(folder.visible(inside)) == 1:
            inside = inside / folder.subfolders(inside)[0]
        source = recognise(inside, options)
        content = source.read(str(scratch))
    except InputError as error:  # the user does not know the temporary folder
        raise InputError(str(error).replace(str(scratch), str(path)), error.argument) from None
    content.facts["layout"] = f"{content.facts.get('layout', source.layout)}, in an archive"
    return content


def _make(job: _Job, no_room: str = "") -> DataSet:
    """Decode the data set and cache it. Images of more than `most_bytes` go to the cache while they are decoded.

    If there is no room for them in the cache (`no_room` says why), they are decoded whenever they are read.
    """
    draft: Draft | None = None

    def draft_for(shape: tuple[int, ...]) -> Draft | str | None:
        nonlocal draft
        if math.prod(shape) <= job.most_bytes:
            return None
        why = no_room or _why_not_kept(job.file, math.prod(shape))
        if why and job.source.layout == "archive":  # its files are there only until they are decoded
            needed = f"its images take {math.prod(shape) / 2**30:,.1f} GiB decoded"
            raise InputError(f"{job.path}: {needed} ({why}); unpack it and give the folder, or set CAMRI_CACHE")
        if not why and job.file is not None:
            draft = Draft(job.file.with_suffix(PIXELS))
        return draft or why

    with scratch_folder() as scratch:
        try:
            dataset = _decode(job, str(scratch), draft_for)
            _write_cache(job.file, dataset, draft)
        except OSError as error:
            if draft is None or error.errno not in NO_ROOM:
                raise
            return _make(job, "no room in the cache")
        finally:
            if draft is not None:
                draft.close()
    inputs = dataset.splits["train"].inputs
    is_large = sum(num_bytes(split.inputs) for split in dataset.splits.values()) > job.most_bytes
    is_decoded_on_the_fly = isinstance(inputs, Rows) and isinstance(inputs.store, Decoder)
    if is_decoded_on_the_fly or (draft is None and not is_large):
        return dataset
    return _read_cache(job) or dataset


def _why_not_kept(file: Path | None, needed: int) -> str:
    """Why the images cannot be cached; "" if they can."""
    if file is None:
        return "no cache"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(file.parent).free
    except OSError as error:
        return f"no cache: {error.strerror}"
    if not os.access(file.parent, os.W_OK):
        return "no cache: permission denied"
    return "" if needed < SPARE * free else f"the cache's disk has {free / 2**30:,.1f} GiB left"


def _decode(job: _Job, scratch: str, draft_for: Callable[[tuple[int, ...]], Draft | str | None]) -> DataSet:
    """Read, decode and check the data set, and make its test split if it needs one."""
    path, options = job.path, job.options
    content = job.source.read(scratch)
    parts, layout = content.parts, content.facts.pop("layout", job.source.layout)
    listing.refuse_untaken(str(path), layout, content, options)
    listing.check_classes(str(path), content.classes, {part: rows.labels for part, rows in parts.items()})
    facts: dict[str, Any] = {}
    if any(isinstance(rows.inputs, EncodedImages) for rows in parts.values()):
        size = options.size or content.size
        parts, facts = decode_parts(parts, size, options.skip_bad, job.progress, job.resize, draft_for)
        if "skipped" in facts:
            listing.check_classes(str(path), content.classes, {part: rows.labels for part, rows in parts.items()})
    inputs = {part: rows.inputs for part, rows in parts.items() if not isinstance(rows.inputs, EncodedImages)}
    if options.size:  # decoded images have it already
        inputs = {part: resize_array(images, options.size, job.resize) for part, images in inputs.items()}
    train = inputs["train"]
    if 0 in train.shape[1:]:
        raise InputError(f"{path}: the inputs are empty, of shape {train.shape[1:]}; give at least one number per row")
    for part, values in inputs.items():
        if (values.dtype, values.shape[1:]) != (train.dtype, train.shape[1:]):
            raise InputError(
                f"{path}: inputs of {part} are {values.dtype} {values.shape[1:]}, those of train {train.dtype} "
                f"{train.shape[1:]}; all splits need the same"
            )
    splits = {}
    for part, rows in parts.items():
        values = inputs[part]
        splits[part] = Split(
            values if isinstance(values, Rows) else torch.from_numpy(np.require(values, requirements="W")),
            torch.from_numpy(rows.labels),
            None if rows.groups is None else torch.from_numpy(rows.groups),
        )
    used = {key: value for key, value in vars(options).items() if value is not None}
    provenance = {"source": job.name, "layout": layout, "options": used, **content.facts, **facts}
    dataset = assemble(job.name, content.classes, splits, provenance)
    if job.name == "cifar10" and "verified" not in provenance:  # parquet: the files have no published checksums
        digests = dataset.provenance["sha256"]
        provenance["verified"] = all(digests[p]["inputs"] == published.OFFICIAL_SHA256.get(p) for p in digests)
    if content.test_rows:
        dataset = make_test(dataset, num_rows=content.test_rows)
    provenance = {**dataset.provenance, **provenance, "duplicates": across_splits(dataset)}
    provenance["notes"] = [*listing.doubtful_names(content.classes), *group_notes(dataset)]
    split = dataset.splits["train"]
    if dataset.is_image:  # rows of features may be equal by chance
        provenance["copies_in_train"] = count_copies(split)
        names = {} if content.test_rows else {part: rows.names for part, rows in parts.items() if rows.names}
        provenance["notes"] += copy_notes(dataset, provenance["duplicates"], names)
    else:
        columns = tables.encoded_names(provenance.get("encoding", {})) or provenance.get("feature_columns", ())
        provenance["notes"] += listing.giveaways(split.inputs.numpy(), split.labels.numpy(), columns)
    return replace(dataset, provenance=json.loads(json.dumps(provenance)))  # as it is when read from the cache


def _write_cache(file: Path | None, dataset: DataSet, draft: Draft | None) -> None:
    if file is None:
        return
    arrays: dict[str, np.ndarray] = {}
    facts = {key: getattr(dataset, key) for key in ("name", "classes", "fingerprint", "provenance")}
    for part, split in dataset.splits.items():
        for kind, values in vars(split).items():
            if isinstance(values, Rows):
                arrays[f"{part}/{ROWS}"] = values.index
                facts["pixels"] = {"shape": values.store.shape}
            elif values is not None:
                arrays[f"{part}/{kind}"] = values.numpy()
    if draft is not None:
        draft.finish()
        facts["pixels"]["crc"] = draft.crc
    write_cache(file, facts, arrays)


def _read_cache(job: _Job) -> DataSet | None:
    """The cached data set; None if there is none, or if images that were decoded on the fly can now be kept."""
    if job.file is None or (cached := read_cache(job.file, job.most_bytes)) is None:
        return None
    facts, arrays = cached
    store: Store | None = None
    if pixels := facts.get("pixels"):
        shape = tuple(pixels["shape"])
        fits, why = math.prod(shape) <= job.most_bytes, _why_not_kept(job.file, math.prod(shape))
        if "crc" in pixels:
            store = read_pixels(job.file.with_suffix(PIXELS), shape, pixels["crc"])
        elif why and not fits:
            store = Decoder(join(job.source.read("").parts), shape, job.resize, why)
        if store is None:
            return None
    tensors: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        part, kind = name.split("/")
        if kind == ROWS and store is not None:
            rows = Rows(store, array)
            tensors.setdefault(part, {})["inputs"] = rows[:] if fits else rows
        else:
            values = Rows(array) if isinstance(array, Stored) else torch.from_numpy(array)
            tensors.setdefault(part, {})[kind] = values
    splits = {part: Split(**by_kind) for part, by_kind in tensors.items()}
    return DataSet(facts["name"], tuple(facts["classes"]), splits, facts["fingerprint"], facts["provenance"])
