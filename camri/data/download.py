"""Zip and tar archives, unpacked only where every member stays inside the folder.

Files from the web: resumed where they broke off, checked, and named only when whole.

The data sets that can be fetched: their official addresses, and what must be there afterwards.
"""

import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from camri.data import published
from camri.data.cache import md5
from camri.data.listing import Options
from camri.errors import InputError, closest
from camri.files import alone_in

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_RATIO = 1000  # deflate's own limit is 1032 for a file of zeros; photographs are near 1
SMALL_BYTES = 1 << 30  # below this a high ratio does no harm


def is_archive(path: Path) -> bool:
    """True for a file that is called like an archive."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Writes the archive's files under the folder; refuses links, devices and names that lead outside."""
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as opened:
                _write(folder, _zip_members(archive, opened))
        else:
            with tarfile.open(archive) as opened_tar:
                _write(folder, _tar_members(archive, opened_tar))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}); get it again") from None
    except OSError as error:
        raise InputError(
            f"{archive} cannot be unpacked into {folder} ({error.strerror or error}); free some space there"
        ) from None


Member = tuple[str, IO[bytes] | None]  # name, content; no content: a folder


def _zip_members(archive: Path, opened: zipfile.ZipFile) -> Iterator[Member]:
    for member in opened.infolist():
        _refuse_outside(archive, member.filename)
        if (member.external_attr >> 16) & 0o170000 == 0o120000:
            raise InputError(f"{archive}: {member.filename} is a link, which may lead outside; nothing is unpacked")
    _refuse_bomb(archive, sum(member.file_size for member in opened.infolist()))
    for member in opened.infolist():
        if member.is_dir():
            yield member.filename, None
        else:
            with opened.open(member) as content:
                yield member.filename, content


def _tar_members(archive: Path, opened: tarfile.TarFile) -> Iterator[Member]:
    members = opened.getmembers()
    while opened.fileobj and opened.fileobj.read(1 << 20):
        pass  # to the end of the stream: only there gzip checks that nothing is missing
    for member in members:
        _refuse_outside(archive, member.name)
        if not (member.isfile() or member.isdir()):
            raise InputError(
                f"{archive}: {member.name} is a link or device, which may lead outside; nothing is unpacked"
            )
    _refuse_bomb(archive, sum(member.size for member in members))
    for member in members:
        yield member.name, opened.extractfile(member) if member.isfile() else None


def _refuse_outside(archive: Path, name: str) -> None:
    pieces = PurePosixPath(name.replace("\\", "/"))
    if pieces.is_absolute() or ".." in pieces.parts or (pieces.parts and ":" in pieces.parts[0]):
        raise InputError(f"{archive}: {name!r} would be written outside the folder; nothing is unpacked")


def _refuse_bomb(archive: Path, unpacked_bytes: int) -> None:
    packed_bytes = max(1, os.path.getsize(archive))
    if unpacked_bytes > SMALL_BYTES and unpacked_bytes / packed_bytes > MAX_RATIO:
        raise InputError(
            f"{archive} would grow from {packed_bytes:,} to {unpacked_bytes:,} bytes (a decompression bomb?); "
            "if you trust it, unpack it and give the folder"
        )


def _write(folder: Path, members: Iterator[Member]) -> None:
    for name, content in members:
        target = folder / name
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            shutil.copyfileobj(content, out, 1 << 20)


Report = Callable[[str, int, int | None], None]  # (file name, bytes so far, bytes in all where known)

TIMEOUT_S = 30
ATTEMPTS = 5  # in a row without a new byte, before an address is given up
PAUSE_S = 1.0  # before the second attempt; doubled before each further one


@dataclass(frozen=True)
class RemoteFile:
    """A file and the addresses that have it, the official one first. Without an md5 it must at least be a zip."""

    addresses: tuple[str, ...]
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.addresses[0].rsplit("/", 1)[-1]


def fetch(file: RemoteFile, folder: Path, report: Report) -> Path:
    """The downloaded and checked file; what a broken download has left is continued, also by a later call."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    complaints = []
    for address in file.addresses:
        try:
            _download(address, part, lambda done, total: report(file.name, done, total))
            _check(file, part, address)
        except InputError as error:
            complaints.append(str(error))
        else:
            os.replace(part, target)
            _validator(part).unlink(missing_ok=True)
            return target
    raise InputError("; and ".join(complaints))


def _check(file: RemoteFile, part: Path, address: str) -> None:
    if file.md5 is None:
        whole, wanted = zipfile.is_zipfile(part), "a zip archive"
    else:
        whole, wanted = md5(str(part)) == file.md5, f"the official file (md5 {file.md5})"
    if not whole:
        part.unlink()
        _validator(part).unlink(missing_ok=True)
        raise InputError(f"what {address} sent is not {wanted}; it was thrown away: try again later")


def _validator(part: Path) -> Path:
    """Where the server's mark of the partly loaded version is kept, so that two versions are never joined."""
    return part.with_name(part.name + ".version")


def _download(address: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Fills the part file to its end, however often the connection breaks, as long as it gets further."""
    failures = 0
    while True:
        before = _size(part)
        try:
            total = _continue(address, part, report)
            if total is None or _size(part) == total:
                return
            reason = "the connection closed early"
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # the part is as long as the file, or longer than it
                if error.headers.get("Content-Range", "") == f"bytes */{before}":
                    return
                part.unlink()
                continue
            if error.code < 500:
                raise InputError(
                    f"{address} answered {error.code} {error.reason}; the file may have moved: look for it on the "
                    "publisher's page and put it into the data folder by hand"
                ) from None
            reason = f"it answered {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (28, 30, 13):  # disk full, read-only, forbidden
                raise InputError(f"{part} cannot be written ({error.strerror}); free some space or use --to") from None
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 0 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise InputError(
                f"{address} could not be read to its end ({reason}); {_size(part):,} bytes are kept: run the same "
                "command again to go on from there"
            )
        time.sleep(PAUSE_S * 2**failures / 2)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _continue(address: str, part: Path, report: Callable[[int, int | None], None]) -> int | None:
    """One request for what is still missing; the length of the whole file where the server told it."""
    have, validator = _size(part), _validator(part)
    request = urllib.request.Request(address, headers={"User-Agent": "camri", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if validator.exists():
            request.add_header("If-Range", validator.read_text())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        resumes = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not resumes:
            have = 0  # the server begins anew: another version, or it cannot resume
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        _refuse_full_disk(part, 0 if total is None else total - have)
        if etag := response.headers.get("ETag"):
            validator.write_text(etag)
        with part.open("ab" if resumes else "wb") as out:
            while chunk := response.read(1 << 18):
                out.write(chunk)
                have += len(chunk)
                report(have, total)
            out.flush()
            os.fsync(out.fileno())
    return total


def _refuse_full_disk(part: Path, missing_bytes: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < missing_bytes:
        raise InputError(
            f"{part.parent} has {free:,} bytes free, {missing_bytes:,} are needed; free some space or use --to"
        )


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
        {"train": published.AWA2_NUM_IMAGES},
        about="13 GB, checked by zip checksums and image count (no checksum is published)",
    ),
}


def fetch_official(name: str, to: Path, report: Report) -> tuple[Path, bool]:
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
            unpack(file, unpacked)
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
    from camri.data.catalog import recognise  # which imports this module

    found = recognise(folder, Options())
    if official.unpacked_rows is None:
        return  # its files are checked by md5 whenever they are read
    rows = {part: len(listed.labels) for part, listed in found.read("").parts.items()}
    if rows != official.unpacked_rows:
        raise InputError(
            f"{folder} has {rows} images, {name} has {official.unpacked_rows}; move it away and get it again"
        )
