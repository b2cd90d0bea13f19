"""Data as a fit uses it: three splits, and features brought to one scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from types import MappingProxyType
from typing import Any

import torch

from camri.data import DataSet, Split, hold_out, load, make_test
from camri.data.dataset import hash_json
from camri.errors import InputError
from camri.export.trained import Standardise

SMALL = 20_000  # rows; below it a tenth would leave too few images of a class to choose on
SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Inputs:
    """The data set a fit trains on; `standardise` is the (mean, sd) that its features were brought to one scale with.

    The fractions are those of the splits that had to be made.
    """

    data: DataSet
    standardise: Standardise | None
    val_fraction: float
    test_fraction: float


def prepare(
    source: str | PathLike[str] | DataSet,
    options: Mapping[str, Any] = MappingProxyType({}),
    on_read: Callable[[int, int], None] | None = None,
) -> Inputs:
    """The data with train, val and test splits, its own where it has them; `options` are those of `camri.data.load`."""
    if isinstance(source, DataSet) and options:
        raise InputError(f"{', '.join(options)} cannot be given for data that is loaded already; give them to load")
    data = source if isinstance(source, DataSet) else load(source, **options, progress=on_read)
    num_rows = len(data.splits["train"])
    val_fraction, test_fraction = (0.2, 0.3) if num_rows < SMALL else (0.1, 0.2)
    if "test" not in data.splits:
        data = make_test(data, fraction=test_fraction, seed=SPLIT_SEED)
    if "val" not in data.splits:
        data = hold_out(data, "val", val_fraction, SPLIT_SEED)
    if data.is_image:
        return Inputs(data, None, val_fraction, test_fraction)
    scaled, standardise = _standardised(data)
    return Inputs(scaled, standardise, val_fraction, test_fraction)


def _standardised(data: DataSet) -> tuple[DataSet, Standardise]:
    """The data with features of mean 0 and sd 1 over the train rows; a constant feature becomes 0."""
    rows = data.splits["train"].inputs.double()
    # In float32 from here on, as the exported model does it: the model is judged on the numbers that it will see.
    mean, sd = rows.mean(dim=0).float(), rows.std(dim=0, unbiased=False).float()
    sd = torch.where(sd > 0, sd, 1.0)

    def scale(split: Split) -> Split:
        return replace(split, inputs=(split.inputs - mean) / sd)

    told: dict[str, Any] = {**data.provenance, "standardised": "features less their mean, over their sd, of train"}
    splits = {name: scale(split) for name, split in data.splits.items()}
    fingerprint = hash_json([data.fingerprint, "standardised"])
    scaled = replace(data, splits=splits, fingerprint=fingerprint, provenance=told)
    return scaled, (tuple(mean.tolist()), tuple(sd.tolist()))
