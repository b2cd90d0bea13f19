"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from camri.errors import InputError


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "") -> Iterator[Path]:
    """A file beside the path to write to, which takes the path's place at the end; nothing of it stays otherwise."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}){remedy}") from None
    finally:
        with contextlib.suppress(OSError):  # it has moved, or was never there
            part.unlink()
