"""Zip and tar archives, unpacked only where every member stays inside the folder."""

import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from camri.errors import InputError

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
