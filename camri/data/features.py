"""Features of a frozen backbone, computed once: uint8 images -> float16 (N, D), cached on disk.

The cache is keyed by the images, the weights and the preprocessing. Equal images are computed once and have the same
features to the bit, so copies are still recognised.
"""

import contextlib
import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from camri.data.cache import read_cache, write_cache
from camri.data.dataset import DataSet, hash_json, row_hashes, to_float
from camri.data.parallel import Progress, num_cores
from camri.errors import InputError
from camri.files import cache_folder
from camri.models import Backbone, build, to_half

FEATURES_VERSION = 1
BATCH_ROWS = 64
DONE = " done"  # after a split's name: a mask of its rows that have features, if time ran out


def embed(data: DataSet, model: str, options: Mapping[str, Any], **how: Any) -> DataSet:
    """Replace the images of a data set by a backbone's features; `how` as for :func:`embed_within`."""
    return embed_within(data, model, options, **how)[1]


def embed_within(
    data: DataSet,
    model: str,
    options: Mapping[str, Any],
    limit_s: float = math.inf,
    *,
    device: torch.device | str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[DataSet, DataSet]:
    """(images, their features): all images, or those whose features can be computed in `limit_s` seconds.

    options: as `camri.backbones.find` returns them. device: by default a GPU if there is one. cache: a folder, by
    default camri's. progress: called with (images done, images in all) while features are computed. The provenance
    keeps the backbone; from it `camri.export.Trained.of` makes a model that takes images.

    When time is up, every class of every split has lost about the same share of its images and keeps at least one.
    Finished features are cached: the next call computes more, or with `limit_s=0` returns the same images.
    """
    deadline = time.monotonic() + limit_s
    if not data.is_image:
        raise InputError(f"{data.name} holds features already; a frozen backbone takes images", argument="frozen")
    known = {name: value for name, value in options.items() if name != "initial"}
    what = [FEATURES_VERSION, model, known, data.input_shape]
    file = (cache or cache_folder()) / f"{hash_json([*what, data.fingerprint])}.features"
    stored = (read_cache(file) or ({}, {}))[1]
    if not stored or (limit_s > 0 and any(name.endswith(DONE) for name in stored)):
        height, width, channels = data.input_shape
        trunk = build(model, (channels, height, width), torch.Generator().manual_seed(0), **options)
        assert isinstance(trunk, Backbone)
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        computed = _compute(trunk, data, device, progress, stored, deadline)
        write_cache(file, {"model": model}, computed)
        stored = (read_cache(file) or ({}, computed))[1]  # if it cannot be written, a warning has said so
    images, source = data, [data.fingerprint]
    rows = {part: np.flatnonzero(stored[part + DONE]) for part in data.splits if part + DONE in stored}
    if rows:
        splits = {part: split.rows(rows[part]) for part, split in data.splits.items()}
        source.append(hashlib.sha256(b"".join(rows[part].tobytes() for part in splits)).hexdigest())
        images = replace(data, splits=splits, fingerprint=hash_json(source))
    inputs = {part: torch.from_numpy(stored[part][rows[part]] if rows else stored[part]) for part in data.splits}
    splits = {part: replace(split, inputs=inputs[part]) for part, split in images.splits.items()}
    backbone = {"model": model, "options": dict(options), "input_shape": list(data.input_shape)}
    provenance = {**data.provenance, "backbone": backbone}
    fingerprint = hash_json([*source, *what])
    return images, replace(data, splits=splits, fingerprint=fingerprint, provenance=provenance)


def _compute(
    trunk: Backbone,
    data: DataSet,
    device: torch.device,
    progress: Progress | None,
    stored: Mapping[str, np.ndarray],
    deadline: float,
) -> dict[str, np.ndarray]:
    """Compute the features of every split: float16 (N, D) by the split's name.

    If time runs out, there is also a mask of the rows that have theirs, by the split's name + DONE. stored: the result
    of an earlier call that ran out of time.
    """
    first: dict[bytes, tuple[str, int]] = {}  # where each image appears first
    copies: dict[tuple[str, int], tuple[str, int]] = {}
    for part, split in data.splits.items():
        for row, content in enumerate(row_hashes(split)):
            place = first.setdefault(content, (part, row))
            if place != (part, row):
                copies[part, row] = place
    sizes = {part: len(split) for part, split in data.splits.items()}
    found = {part: stored.get(part, np.zeros((num, trunk.num_features), np.float16)) for part, num in sizes.items()}
    done = {part: stored.get(part + DONE, np.zeros(num, bool)) for part, num in sizes.items()}
    network, batches = _ready(trunk, data.input_shape, device), []
    for part, split in data.splits.items():
        order = np.arange(len(split)) if deadline == math.inf else _spread(split.labels.numpy())
        left = [row for row in order.tolist() if (part, row) not in copies and not done[part][row]]
        each = [np.array(left[start : start + BATCH_ROWS]) for start in range(0, len(left), BATCH_ROWS)]
        batches += [(number / len(each), part, rows) for number, rows in enumerate(each)]
    if deadline < math.inf:
        batches.sort(key=lambda batch: batch[0])

    @torch.inference_mode()
    def fill(place: float, part: str, rows: np.ndarray) -> None:
        if place > 0 and time.monotonic() > deadline:
            return
        images = data.splits[part].inputs[torch.from_numpy(rows)].to(device)
        found[part][rows] = to_half(network(to_float(images))).cpu().numpy()
        done[part][rows] = True

    with _one_thread_each(1 if device.type == "cuda" else num_cores()) as pool:
        for _ in pool.map(fill, *zip(*batches, strict=True)) if batches else ():
            if progress is not None:  # if it raises, the batches that wait are cancelled
                progress(sum(int(rows.sum()) for rows in done.values()), len(first))
    for (part, row), (from_part, from_row) in copies.items():
        found[part][row], done[part][row] = found[from_part][from_row], done[from_part][from_row]
    for part, rows in found.items():
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise InputError(f"the features of {part} image {row} are not finite; its network's weights may be damaged")
    if all(rows.all() for rows in done.values()):
        return found
    return found | {part + DONE: rows for part, rows in done.items()}


def _spread(labels: np.ndarray) -> np.ndarray:
    """Shuffle the rows so that the first rows, however many, have about the same share of each class.

    >>> np.array([0, 0, 0, 0, 1, 1])[_spread(np.array([0, 0, 0, 0, 1, 1]))]
    array([0, 1, 0, 0, 1, 0])
    """
    order = np.random.default_rng(0).permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        own = order[labels[order] == label]
        place[own] = np.arange(len(own)) / len(own)
    return np.argsort(place, kind="stable")


def _ready(trunk: Backbone, shape: tuple[int, ...], device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare the trunk for inference: channels last, batch norms folded into the convolutions before them.

    On a CPU it is also traced, which fuses convolutions, sums and ReLUs: 295 images/s per core instead of 215
    (resnet10t, 96 px). A trace that gives other features at another batch size is not used.
    """
    made = copy.deepcopy(trunk).eval().to(device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from torch's own code and its tracer
        with contextlib.suppress(Exception):  # torch.fx cannot trace every network
            from torch.fx.experimental.optimization import fuse

            fused: nn.Module = fuse(made.net)
            made.net = fused
        made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if device.type == "cpu":
            images = to_float(torch.randint(256, (5, *shape), dtype=torch.uint8, generator=torch.Generator()))
            with contextlib.suppress(Exception):  # nor can torch.jit
                traced = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(made, images[:2])))
                torch.testing.assert_close(traced(images), made(images), rtol=1e-3, atol=1e-3)
                return traced
    return made


@contextlib.contextmanager
def _one_thread_each(num_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Pool of threads that each use one core in torch: several batches at once scale better than one on all cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
