"""From a name or path to a DataSet: find the files, recognise the layout, decode, check; or read the cache."""

import contextlib
import glob
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from camri.data.decode import LANCZOS, Decoder, decode_parts, resize_array
from camri.data.features import embed
from camri.data.listing import DataWarning, EncodedImages, Listing, Options, Source
from camri.data.parallel import Progress
from camri.data.rows import Inputs, Rows, Stored, memory_for_images, num_bytes, parse_size
from camri.errors import InputError, closest
from camri.files import NO_ROOM, cache_folder, data_folder, scratch_folder

NAMES = ("digits", "mnist", "cifar10", "gtsrb", "awa2")
CACHE_VERSION = 8  # raise it when the same files and options would decode to something else, or be refused
SPARE = 0.95  # of the free disk that decoded images may take
PIXELS, ROWS = ".pixels", "rows"  # the file of images that do not fit in memory, and which of them a split has


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
    backbone: "timm:NAME" or "hf:NAME" gives the features of this pretrained network instead of images, computed once.
    weights: its safetensors file, where the published weights cannot be had.
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
        found, asked = decoding(find(backbone, weights=weights, size=asked.get("size")), asked)
        images = load(source, **{**given_options, "size": None, "resize": None, **asked})
        kept = Path(cache) if isinstance(cache, (str, PathLike)) else None
        return embed(images, backbone, found, cache=kept, progress=progress)
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
    given = parse_size(resident)
    most = memory_for_images() if given is None else given
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
        dataset = _read_cache(file, most, layout, options.resize) if file else None
        if dataset is None:
            dataset = _make(name, path, layout, options, file, most, progress)
    except PermissionError as error:
        raise InputError(f"{error.filename}: permission denied; change its permissions") from None
    is_benchmark = str(dataset.provenance["layout"]).split(maxsplit=1)[0] in NAMES
    # A benchmark's copies are known and must stay for results to be comparable: no warning, but in `camri data show`.
    for note in notes({**dataset.provenance, "notes": []} if is_benchmark else dataset.provenance):
        warnings.warn(f"{dataset.name}: {note}", DataWarning, stacklevel=2)
    return replace(dataset, resident=given)


def notes(provenance: Mapping[str, Any]) -> list[str]:
    """What the owner of a data set should know, one sentence each."""
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
    """The path of a data set; names are looked up in the data folder."""
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
    if not path.is_dir():
        tables.refuse_special(path)
    if not os.access(path, os.R_OK):
        raise InputError(f"{text}: permission denied; change its permissions")
    return path


def recognise(path: Path, options: Options) -> Source:
    """The layout at the path: the most specific reader that fits."""
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


def _make(
    name: str,
    path: Path,
    source: Source,
    options: Options,
    file: Path | None,
    most: float,
    progress: Progress | None,
    no_room: str = "",
) -> DataSet:
    """Decode the data set and cache it in the file; images of more than `most` bytes stay there.

    Where there is no room for them (`no_room` says why), they are decoded on the fly.
    """
    drafts: list[Draft] = []
    with contextlib.ExitStack() as stack:

        def draft_for(shape: tuple[int, ...]) -> Draft | str | None:
            if math.prod(shape) <= most:
                return None
            why = no_room or _why_not_kept(file, math.prod(shape))
            if not why and file is not None:
                drafts.append(stack.enter_context(contextlib.closing(Draft(file.with_suffix(PIXELS), shape))))
                return drafts[0]
            if source.layout == "archive":  # its files are there only until they are decoded
                needed = f"its images take {math.prod(shape) / 2**30:,.1f} GiB decoded"
                raise InputError(f"{path}: {needed} ({why}); unpack it and give the folder, or set CAMRI_CACHE")
            return why

        scratch = stack.enter_context(scratch_folder())
        try:
            dataset = _decode(name, path, source, options, str(scratch), progress, draft_for)
        except OSError as error:
            if not drafts or error.errno not in NO_ROOM:
                raise
            return _make(name, path, source, options, file, most, progress, "no room in the cache")
        is_large = sum(num_bytes(split.inputs) for split in dataset.splits.values()) > most
        if file is None:
            return dataset
        inputs = dataset.splits["train"].inputs
        _write_cache(file, dataset, drafts[0] if drafts else None)
        if is_large and not (isinstance(inputs, Rows) and isinstance(inputs.store, Decoder)):
            return _read_cache(file, most, source, options.resize) or dataset
        return dataset


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


def _decode(
    name: str,
    path: Path,
    source: Source,
    options: Options,
    scratch: str,
    progress: Progress | None,
    draft_for: Callable[[tuple[int, ...]], Draft | str | None],
) -> DataSet:
    content = source.read(scratch)
    parts, layout = content.parts, content.facts.pop("layout", source.layout)
    listing.refuse_untaken(str(path), layout, content, options)
    listing.check_classes(str(path), content.classes, {part: rows.labels for part, rows in parts.items()})
    facts: dict[str, Any] = {}
    if any(isinstance(rows.inputs, EncodedImages) for rows in parts.values()):
        parts, facts = decode_parts(
            parts, options.size or content.size, options.skip_bad, progress, options.resize or LANCZOS, draft_for
        )
        if "skipped" in facts:
            listing.check_classes(str(path), content.classes, {part: rows.labels for part, rows in parts.items()})
            facts["skipped_note"] = f"{len(facts['skipped'])} unreadable images were skipped"
    inputs = {part: rows.inputs for part, rows in parts.items() if not isinstance(rows.inputs, EncodedImages)}
    if options.size:  # decoded images have it already
        inputs = {
            part: images if isinstance(images, Rows) else resize_array(images, options.size, options.resize or LANCZOS)
            for part, images in inputs.items()
        }
    train = inputs["train"]
    if 0 in train.shape[1:]:
        raise InputError(f"{path}: the inputs are empty, of shape {train.shape[1:]}; give at least one number per row")
    for part, values in inputs.items():
        if (values.dtype, values.shape[1:]) != (train.dtype, train.shape[1:]):
            raise InputError(
                f"{path}: inputs of {part} are {values.dtype} {values.shape[1:]}, those of train {train.dtype} "
                f"{train.shape[1:]}; all splits need the same"
            )
    splits = {
        part: Split(
            _to_tensor(inputs[part]),
            torch.from_numpy(rows.labels),
            None if rows.groups is None else torch.from_numpy(rows.groups),
        )
        for part, rows in parts.items()
    }
    used = {key: value for key, value in vars(options).items() if value is not None}
    provenance = {"source": name, "layout": layout, "options": used, **content.facts, **facts}
    dataset = assemble(name, content.classes, splits, provenance)
    if name == "cifar10" and "verified" not in provenance:  # parquet: the files have no published checksums
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
    return replace(dataset, provenance=json.loads(json.dumps(provenance)))  # as it will come from the cache


def _to_tensor(inputs: np.ndarray | Rows) -> Inputs:
    if isinstance(inputs, Rows):
        return inputs
    return torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())


def _write_cache(file: Path, dataset: DataSet, draft: Draft | None) -> None:
    arrays: dict[str, np.ndarray] = {}
    for part, split in dataset.splits.items():
        for kind, values in vars(split).items():
            if isinstance(values, Rows):
                arrays[f"{part}/{ROWS}"] = values.index
            elif values is not None:
                arrays[f"{part}/{kind}"] = values.numpy()
    facts = {key: getattr(dataset, key) for key in ("name", "classes", "fingerprint", "provenance")}
    if draft is not None:
        facts["pixels"] = draft.finish()
    inputs = dataset.splits["train"].inputs
    if isinstance(inputs, Rows) and isinstance(inputs.store, Decoder):
        facts["pixels"] = {"shape": inputs.store.shape}
    write_cache(file, facts, arrays)


def _read_cache(file: Path, resident: float, source: Source, resize: str | None) -> DataSet | None:
    """The cached data set; None if there is none, or if images that were decoded on the fly could be kept now."""
    stored = read_cache(file, resident)
    if stored is None:
        return None
    facts, arrays = stored
    pixels: Any = None
    if "pixels" in facts:
        shape = tuple(facts["pixels"]["shape"])
        fits, why = math.prod(shape) <= resident, _why_not_kept(file, math.prod(shape))
        if "crc" in facts["pixels"]:
            pixels = read_pixels(file.with_suffix(PIXELS), facts["pixels"])
        elif why and not fits:
            pixels = Decoder.of(source.read("").parts, shape, resize or LANCZOS, why)
        if pixels is None:
            return None
        if fits:
            pixels = np.memmap(pixels.path, np.uint8, mode="c", shape=pixels.shape)
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        part, kind = name.split("/")
        if kind == ROWS:
            kind, array = "inputs", np.asarray(pixels[array]) if isinstance(pixels, np.ndarray) else Rows(pixels, array)
        elif isinstance(array, Stored):
            array = Rows(array)
        parts.setdefault(part, {})[kind] = array if isinstance(array, Rows) else torch.from_numpy(array)
    splits = {part: Split(**tensors) for part, tensors in parts.items()}
    return DataSet(facts["name"], tuple(facts["classes"]), splits, facts["fingerprint"], facts["provenance"])
