"""Files from the web: resumed where they broke off, checked, and named only when whole."""

import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from camri.data.identity import md5
from camri.errors import InputError

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
