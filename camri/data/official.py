"""The data sets that can be fetched: their official addresses, and what must be there afterwards."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from camri.data import archive, awa2
from camri.data.catalog import recognise
from camri.data.download import RemoteFile, Report, fetch
from camri.data.listing import Options
from camri.errors import InputError, closest
from camri.files import alone_in

_ERDA = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"
_MNIST = (
    "http://yann.lecun.com/exdb/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


@dataclass(frozen=True)
class Official:
    """Files, whether they are unpacked, and the rows per split that prove an unpacked set whole."""

    files: tuple[RemoteFile, ...]
    unpacked_rows: dict[str, int] | None = None
    about: str = ""


def _mnist_file(name: str, md5: str) -> RemoteFile:
    return RemoteFile(tuple(f"{place}/{name}.gz" for place in _MNIST), md5)


OFFICIAL = {
    "cifar10": Official(
        (RemoteFile(("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",), "c58f30108f718f92721af3b95e74349a"),),
        about="163 MB, checked by md5",
    ),
    "mnist": Official(
        (
            _mnist_file("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            _mnist_file("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
            _mnist_file("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
            _mnist_file("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        about="11 MB, checked by md5",
    ),
    "gtsrb": Official(
        (
            # No checksum of the training archive is published: its images are counted after unpacking.
            RemoteFile((f"{_ERDA}/GTSRB_Final_Training_Images.zip",)),
            RemoteFile((f"{_ERDA}/GTSRB_Final_Test_Images.zip",), "c7e4e6327067d32654124b0fe9e82185"),
            RemoteFile((f"{_ERDA}/GTSRB_Final_Test_GT.zip",), "fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
        ),
        {"train": 39_209, "test": 12_630},
        about="348 MB; the test archives are checked by md5, the training archive by zip checksums and image count",
    ),
    "awa2": Official(
        (RemoteFile(("https://cvml.ista.ac.at/AwA2/AwA2-data.zip",)),),
        {"train": awa2.NUM_IMAGES},
        about="13 GB, checked by zip checksums and image count (no checksum is published)",
    ),
}


def get(name: str, to: Path, report: Report) -> tuple[Path, bool]:
    """(the folder with the data set, whether it was there already). The folder appears when all of it is checked.

    Downloads are kept in a hidden folder beside it until then, and continued by the next call.
    """
    if name not in OFFICIAL:
        raise InputError(f"{name!r} cannot be fetched; {closest(name, OFFICIAL)}")
    official, target, staging = OFFICIAL[name], to / name, to / f".{name}.download"
    if target.exists():
        _check_rows(name, target, official)
        return target, True
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{to} cannot be written ({error.strerror}); choose another folder with --to") from None
    with alone_in(staging) as is_alone:  # a second one would write into the same file, checked or not
        if is_alone is False:
            raise InputError(f"another process is fetching into {staging}; wait until it has ended")
        _fill(name, official, staging, target, report)
    return target, False


def _fill(name: str, official: Official, staging: Path, target: Path, report: Report) -> None:
    files = [fetch(file, staging, report) for file in official.files]
    if official.unpacked_rows is None:
        os.rename(staging, target)
        return
    unpacked = staging / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        for file in files:
            archive.unpack(file, unpacked)
        _check_rows(name, unpacked, official)
    except InputError:
        shutil.rmtree(unpacked, ignore_errors=True)
        for file, remote in zip(files, official.files, strict=True):
            if remote.md5 is None:  # the one that may be wrong
                file.unlink(missing_ok=True)
        raise
    os.rename(unpacked, target)
    shutil.rmtree(staging, ignore_errors=True)


def _check_rows(name: str, folder: Path, official: Official) -> None:
    """Refuses a folder that is not this data set, or not all of it."""
    found = recognise(folder, Options())
    if official.unpacked_rows is None:
        return  # its files are checked by md5 whenever they are read
    rows = {part: len(listed.labels) for part, listed in found.read("").parts.items()}
    if rows != official.unpacked_rows:
        raise InputError(
            f"{folder} has {rows} images, {name} has {official.unpacked_rows}; move it away and get it again"
        )
