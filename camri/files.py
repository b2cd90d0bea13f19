"""Files that are there whole or not at all."""

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from camri.errors import InputError

PART = ".part"  # how the name of a file ends that is being written, or was when its writer was killed


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "") -> Iterator[Path]:
    """A file beside the path to write to, which takes the path's place at the end; nothing of it stays otherwise.

    No two writers have the same one. What killed writers left is removed after a day.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        for leftover in path.parent.glob(f"{glob.escape(path.name)}.*{PART}"):
            with contextlib.suppress(OSError):
                if leftover.stat().st_mtime < time.time() - 86_400:
                    leftover.unlink()
        yield part
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}){remedy}") from None
    finally:
        with contextlib.suppress(OSError):  # it has moved, or was never there
            part.unlink()
