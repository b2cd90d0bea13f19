"""Download the paper's data sets from their official addresses, check and unpack them.

A broken download is resumed, by a later call too. A file or folder gets its name only when it is complete and checked.
"""

import errno
import http.client
import lzma
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from camri.data import published
from camri.data.cache import hash_file
from camri.data.listing import Options
from camri.errors import InputError, closest
from camri.files import NO_ROOM, alone_in

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_RATIO = 1000  # deflate's own limit is 1032 for a file of zeros; photographs are near 1
SMALL_BYTES = 1 << 30  # below this a high ratio does no harm
TIMEOUT_S = 30
ATTEMPTS = 5  # without a new byte, before the next address is tried
PAUSE_S = 1.0  # before the second attempt; doubled before each further one

DAMAGE = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, RuntimeError)

Report = Callable[[str, int, int | None], None]  # (file name, bytes so far, bytes in all if known)


def is_archive(path: Path) -> bool:
    """True for a file named like an archive."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into the folder; refuse links, devices and names that lead outside before anything is written."""
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as opened_zip:
                infos = opened_zip.infolist()
                is_link = [(info.external_attr >> 16) & 0o170000 == 0o120000 for info in infos]
                _check_members(archive, [info.filename for info in infos], is_link, sum(i.file_size for i in infos))
                opened_zip.extractall(folder)
        else:
            with tarfile.open(archive) as opened:
                members = opened.getmembers()
                while opened.fileobj and opened.fileobj.read(1 << 20):
                    pass  # only at the end of the stream does gzip check that nothing is missing
                is_link = [not (member.isfile() or member.isdir()) for member in members]
                _check_members(archive, [member.name for member in members], is_link, sum(m.size for m in members))
                if hasattr(tarfile, "data_filter"):  # Python 3.10.12, 3.11.4 and later
                    opened.extraction_filter = tarfile.data_filter
                opened.extractall(folder)
    except InputError:
        raise
    except (*DAMAGE, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in NO_ROOM
        remedy = f"free some space in {folder}" if is_full else "download it again"
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise InputError(f"{archive} cannot be unpacked ({reason}); {remedy}") from None


def _check_members(archive: Path, names: Iterable[str], is_link: Iterable[bool], unpacked_bytes: int) -> None:
    for name, link in zip(names, is_link, strict=True):
        place = PurePosixPath(name.replace("\\", "/"))
        if link or place.is_absolute() or ".." in place.parts or (place.parts and ":" in place.parts[0]):
            what = "is a link or device" if link else "would be written outside the folder"
            raise InputError(f"{archive}: {name!r} {what}; nothing is unpacked")
    packed_bytes = max(1, os.path.getsize(archive))
    if unpacked_bytes > SMALL_BYTES and unpacked_bytes / packed_bytes > MAX_RATIO:
        growth = f"grow from {packed_bytes:,} to {unpacked_bytes:,} bytes (a decompression bomb?)"
        raise InputError(f"{archive} would {growth}; if you trust it, unpack it and give the folder")


@dataclass(frozen=True)
class RemoteFile:
    """A file and its addresses, the official one first. Without an md5 it must at least be a zip archive."""

    addresses: tuple[str, ...]
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.addresses[0].rsplit("/", 1)[-1]


def fetch(file: RemoteFile, folder: Path, report: Report) -> Path:
    """Download and check the file; resume a partial download."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    errors = []
    for address in file.addresses:
        try:
            _download(address, part, lambda done, total: report(file.name, done, total))
        except InputError as error:
            errors.append(str(error))
            continue
        _version_of(part).unlink(missing_ok=True)
        if zipfile.is_zipfile(part) if file.md5 is None else hash_file(part, "md5") == file.md5:
            os.replace(part, target)
            return target
        part.unlink()
        wanted = "a zip archive" if file.md5 is None else f"the official file (md5 {file.md5})"
        errors.append(f"the file from {address} is not {wanted}, and was deleted; try again later")
    raise InputError("; and ".join(errors))


def _version_of(part: Path) -> Path:
    """The file with the server's ETag of a partial download, so that two versions are never joined."""
    return part.with_name(part.name + ".version")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _download(address: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Download to the part file, retrying broken connections as long as new bytes arrive."""
    failures = 0
    while True:
        before = _size(part)
        try:
            total = _request_rest(address, part, report)
            if total is None or _size(part) == total:
                return
            reason = "the connection closed early"
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # the part is as long as the file, or longer
                if error.headers.get("Content-Range", "") == f"bytes */{before}":
                    return
                part.unlink()
                continue
            if error.code < 500:
                raise InputError(f"{address} answered {error.code} {error.reason}; the file may have moved") from None
            reason = f"it answered {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EROFS, errno.EACCES):
                raise InputError(f"{part} cannot be written ({error.strerror}); free some space or use --to") from None
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 0 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            kept = f"{_size(part):,} bytes are kept: run the same command again to resume"
            raise InputError(f"{address} could not be downloaded completely ({reason}); {kept}")
        time.sleep(PAUSE_S * 2**failures / 2)


def _request_rest(address: str, part: Path, report: Callable[[int, int | None], None]) -> int | None:
    """Request the missing bytes once; return the length of the whole file, None if the server does not give it."""
    have, version = _size(part), _version_of(part)
    request = urllib.request.Request(address, headers={"User-Agent": "camri", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if version.exists():
            request.add_header("If-Range", version.read_text())
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        resumes = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not resumes:
            have = 0  # the server starts over: another version, or it cannot resume
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        free, missing = shutil.disk_usage(part.parent).free, 0 if total is None else total - have
        if free < missing:
            raise InputError(f"{part.parent} has {free:,} bytes free, {missing:,} are needed; use another --to")
        if etag := response.headers.get("ETag"):
            version.write_text(etag)
        with part.open("ab" if resumes else "wb") as out:
            while chunk := response.read(1 << 18):
                out.write(chunk)
                have += len(chunk)
                report(have, total)
            out.flush()
            os.fsync(out.fileno())
    return total


@dataclass(frozen=True)
class Official:
    """Files of a data set. If they are to be unpacked: how many rows each split must have."""

    files: tuple[RemoteFile, ...]
    unpacked_rows: dict[str, int] | None = None
    about: str = ""


_ERDA = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"
_MNIST = (
    "http://yann.lecun.com/exdb/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
OFFICIAL = {
    "cifar10": Official(
        (RemoteFile(("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",), "c58f30108f718f92721af3b95e74349a"),),
        about="163 MB, checked by md5",
    ),
    "mnist": Official(
        tuple(RemoteFile(tuple(f"{place}/{name}" for place in _MNIST), md5) for name, md5 in _MNIST_MD5.items()),
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
    """Download a data set into to/name; return that folder and whether it was there already.

    Until all files are checked, they are in a hidden folder beside it, and the next call resumes there.
    """
    if name not in OFFICIAL:
        raise InputError(f"{name!r} cannot be fetched; {closest(name, OFFICIAL)}", argument="name")
    official, target, staging = OFFICIAL[name], to / name, to / f".{name}.download"
    if target.exists():
        _check_rows(name, target, official)
        return target, True
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{to} cannot be written ({error.strerror}); choose another folder with --to") from None
    with alone_in(staging) as is_alone:  # two processes would write into the same file
        if is_alone is False:
            raise InputError(f"another process is downloading into {staging}; wait until it has finished")
        files = [fetch(file, staging, report) for file in official.files]
        if official.unpacked_rows is None:
            os.rename(staging, target)
            return target, False
        unpacked = staging / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            for file in files:
                unpack(file, unpacked)
            _check_rows(name, unpacked, official)
        except InputError:
            shutil.rmtree(unpacked, ignore_errors=True)
            for file, remote in zip(files, official.files, strict=True):
                if remote.md5 is None:  # the file that may be wrong
                    file.unlink(missing_ok=True)
            raise
        os.rename(unpacked, target)
        shutil.rmtree(staging, ignore_errors=True)
    return target, False


def _check_rows(name: str, folder: Path, official: Official) -> None:
    """Refuse a folder that is not this data set, or not all of it."""
    from camri.data.catalog import recognise  # catalog imports this module

    source = recognise(folder, Options())
    if official.unpacked_rows is None:
        return  # its files are checked by md5 whenever they are read
    rows = {part: len(listed.labels) for part, listed in source.read("").parts.items()}
    if rows != official.unpacked_rows:
        raise InputError(f"{folder} has {rows} images, but {name} has {official.unpacked_rows}; get it again")
