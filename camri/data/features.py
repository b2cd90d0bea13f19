"""Features of a frozen backbone, computed once: uint8 images -> float16 (N, D), cached on disk.

The cache is keyed by the images, the weights and the preprocessing. Equal images are computed once and have the same
features to the bit, so copies are still recognised.
"""

import contextlib
import copy
import hashlib
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
from camri.data.dataset import DataSet, hash_json, to_float
from camri.data.parallel import Progress, num_cores
from camri.data.rows import blocks
from camri.errors import InputError
from camri.files import cache_folder
from camri.models import Backbone, build, to_half

FEATURES_VERSION = 1
BATCH_ROWS = 64


def embed(
    data: DataSet,
    model: str,
    options: Mapping[str, Any],
    *,
    device: torch.device | str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """The data set with the features of a backbone in the place of its images.

    options: as `camri.backbones.find` returns them. device: by default a GPU where there is one. cache: a folder, by
    default camri's. progress: called with (images done, images in all) while features are computed. The provenance
    keeps the backbone, from which `camri.export.Trained.of` makes a model that takes images.
    """
    if not data.is_image:
        raise InputError(f"{data.name} holds features already; a frozen backbone takes images", argument="frozen")
    known = {name: value for name, value in options.items() if name != "initial"}
    what = [FEATURES_VERSION, model, known, data.input_shape]
    file = (cache or cache_folder()) / f"{hash_json([*what, data.fingerprint])}.features"
    stored = read_cache(file)
    if stored is None:
        height, width, channels = data.input_shape
        trunk = build(model, (channels, height, width), torch.Generator().manual_seed(0), **options)
        assert isinstance(trunk, Backbone)
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        computed = _compute(trunk, data, device, progress)
        write_cache(file, {"model": model}, computed)
        stored = read_cache(file) or ({}, computed)  # if it cannot be written, a warning has said so
    inputs = {part: torch.from_numpy(array) for part, array in stored[1].items()}
    splits = {part: replace(split, inputs=inputs[part]) for part, split in data.splits.items()}
    backbone = {"model": model, "options": dict(options), "input_shape": list(data.input_shape)}
    provenance = {**data.provenance, "backbone": backbone}
    return replace(data, splits=splits, fingerprint=hash_json([data.fingerprint, *what]), provenance=provenance)


def _compute(trunk: Backbone, data: DataSet, device: torch.device, progress: Progress | None) -> dict[str, np.ndarray]:
    """Features of every split, float16 (N, D)."""
    first: dict[bytes, tuple[str, int]] = {}  # where each content is seen first
    copies: dict[tuple[str, int], tuple[str, int]] = {}
    for part, split in data.splits.items():
        images = (image for block in blocks(split.inputs) for image in block.numpy())
        for row, image in enumerate(images):
            place = first.setdefault(hashlib.blake2b(image.tobytes(), digest_size=16).digest(), (part, row))
            if place != (part, row):
                copies[part, row] = place
    found = {part: np.zeros((len(split), trunk.num_features), np.float16) for part, split in data.splits.items()}
    network, batches, done = _ready(trunk, data.input_shape, device), [], 0
    for part, split in data.splits.items():
        left = np.array([row for row in range(len(split)) if (part, row) not in copies], dtype=np.int64)
        batches += [(part, left[start : start + BATCH_ROWS]) for start in range(0, len(left), BATCH_ROWS)]

    @torch.inference_mode()
    def fill(part: str, rows: np.ndarray) -> int:
        images = data.splits[part].inputs[torch.from_numpy(rows)].to(device)
        found[part][rows] = to_half(network(to_float(images))).cpu().numpy()
        return len(rows)

    with _one_thread_each(1 if device.type == "cuda" else num_cores()) as pool:
        for filled in pool.map(fill, *zip(*batches, strict=True)):
            done += filled
            if progress is not None:
                progress(done, len(first))
    for (part, row), (from_part, from_row) in copies.items():
        found[part][row] = found[from_part][from_row]
    for part, rows in found.items():
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise InputError(f"the features of {part} image {row} are not finite; its network's weights may be damaged")
    return found


def _ready(trunk: Backbone, shape: tuple[int, ...], device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """The trunk for inference: channels last, batch norms folded into the convolutions before them.

    On a CPU it is also traced, which joins convolutions, sums and ReLUs: 295 images/s of a core instead of 215
    (resnet10t, 96 px). A trace that gives other features for another number of images is not used.
    """
    made = copy.deepcopy(trunk).eval().to(device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own code, and of what a trace cannot follow
        with contextlib.suppress(Exception):  # torch.fx cannot follow every network
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
    """Threads in each of which torch uses one core: batches side by side scale better than one batch on all cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
