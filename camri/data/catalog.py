"""Names and paths -> data sets: where a data set lies, which reader fits, and the way to a DataSet."""

from os import PathLike

import torch

from camri.data import digits
from camri.data.dataset import DataSet, Split, assemble
from camri.data.listing import Listing
from camri.data.splits import make_test
from camri.errors import InputError, closest


def load(source: str | PathLike[str]) -> DataSet:
    """The data set with this name."""
    if str(source) != "digits":
        raise InputError(f"unknown data set {str(source)!r}; {closest(source, ['digits'])}")
    return _finish("digits", digits.find().read())


def _finish(name: str, listing: Listing) -> DataSet:
    splits = {
        part: Split(torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels))
        for part, rows in listing.parts.items()
    }
    dataset = assemble(name, listing.classes, splits, {"source": name})
    return make_test(dataset, num_rows=listing.test_rows) if listing.test_rows else dataset
