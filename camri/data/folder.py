"""The user's own image folder: a folder per class, with or without train/val/test above."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from camri.data.listing import SPLIT_ALIASES, EncodedImages, Listing, Part, Source, clean_name, natural_order
from camri.errors import InputError

CLUTTER = ("thumbs.db", "desktop.ini")
CLUTTER_FOLDERS = ("__macosx", "@eadir", "__pycache__")  # of macOS's zips, Synology's previews, Python


def find_folder(path: Path) -> Source | None:
    """The image folder at path; None where it has no folders in it."""
    top = subfolders(path)
    if not top:
        return None
    split_folders = {SPLIT_ALIASES[name.lower()]: name for name in top if name.lower() in SPLIT_ALIASES}
    if len(split_folders) == len(top) or "train" in split_folders:
        if stray := [name for name in top if name.lower() not in SPLIT_ALIASES]:
            raise InputError(
                f"{path} has {split_folders['train']}/ and beside it {stray[0]}/, which is neither train, val nor "
                "test; move it away, or, where these are classes, put all of them into one folder called train"
            )
        if len(split_folders) < len(top):
            raise InputError(f"{path} has two folders for one split: {', '.join(top)}; keep one of each")
        roots = {part: path / name for part, name in split_folders.items()}
    else:
        if len(top) == 1 and (inner := subfolders(path / top[0])):
            raise InputError(
                f"{path} has one class only ({top[0]!r}); if {', '.join(inner[:3])} in it are the classes, give "
                f"{path / top[0]}"
            )
        roots = {"train": path}
    tree = {part: _class_files(root) for part, root in roots.items()}
    _refuse_loose_images(roots)
    files = [file for classes in tree.values() for found in classes.values() for file in found]
    also = [f"{part}/{name}" for part, classes in tree.items() for name in classes]
    return Source("image folder", files, lambda scratch: _list(path, tree), also)


def _class_files(root: Path) -> dict[str, list[str]]:
    """The files of each class, by its name."""
    folders: dict[str, str] = {}
    for name in subfolders(root):
        _refuse_undecoded(name, root)
        other = folders.setdefault(clean_name(name), name)
        if other != name:
            raise InputError(
                f"{root} has two folders for class {clean_name(name)!r}, {other!a} and {name!a}; unite them or rename "
                "one"
            )
    return {clean_name(name): list(files_below(root / folder)) for name, folder in folders.items()}


def _refuse_undecoded(name: str, root: Path) -> None:
    """Refuse a class folder whose name Python could not read: bad bytes, or an encoding that is not the names' own."""
    try:
        name.encode()
        return
    except UnicodeEncodeError:
        raw = os.fsencode(name)
    try:
        known = raw.decode()
    except UnicodeDecodeError:
        raise InputError(f"{root}: the class folder {raw!r} is not named in UTF-8; rename it") from None
    encoding = sys.getfilesystemencoding()
    raise InputError(f"{root}: the class folder {known!a} cannot be read in this {encoding} locale; set PYTHONUTF8=1")


def _list(path: Path, tree: dict[str, dict[str, list[str]]]) -> Listing:
    names = natural_order(list({name for classes in tree.values() for name in classes}))
    index = {name: position for position, name in enumerate(names)}
    parts = {}
    for part, classes in tree.items():
        files = [file for name in classes for file in classes[name]]
        labels = [index[name] for name, found in classes.items() for _ in found]
        parts[part] = Part(EncodedImages(files, [shown(f, path) for f in files]), np.array(labels, dtype=np.int64))
    return Listing(tuple(names), parts)


def shown(file: str, root: Path) -> str:
    """A file's name for messages: relative to the root, whatever bytes it is made of."""
    return os.fsencode(os.path.relpath(file, root)).decode("utf-8", "backslashreplace")


def subfolders(path: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; a link that leads nowhere is refused: it may be a class."""
    with os.scandir(path) as entries:
        ours = [entry for entry in entries if not is_clutter(entry.name)]
    for entry in ours:
        if entry.is_symlink() and not _is_folder(entry) and not os.path.exists(entry.path):
            raise InputError(f"{entry.path} is a link that leads nowhere; repair or remove it")
    return sorted(entry.name for entry in ours if _is_folder(entry))


def visible(path: Path) -> list[str]:
    """Names of what a folder holds, less the clutter of operating systems, sorted."""
    return sorted(name for name in os.listdir(path) if not is_clutter(name))


def files_below(folder: Path) -> Iterator[str]:
    """Visible files under a folder, sorted, links followed; a link back to a folder above is refused."""
    yield from _walk(str(folder), ())


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    stat = os.stat(folder)
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        raise InputError(f"{folder} is a link to a folder above itself (a loop); remove the link")
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if is_clutter(entry.name):
            continue
        if _is_folder(entry):
            yield from _walk(entry.path, (*above, here))
        else:
            yield entry.path


def is_clutter(name: str) -> bool:
    """True for the hidden files and folders, and what operating systems leave beside the user's own."""
    return name.startswith(".") or name.lower() in (*CLUTTER, *CLUTTER_FOLDERS)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself
        raise InputError(f"{entry.path} cannot be followed ({error.strerror}); remove the link") from None


def _refuse_loose_images(roots: dict[str, Path]) -> None:
    from PIL import Image

    known = Image.registered_extensions()
    for root in roots.values():
        with os.scandir(root) as entries:
            loose = [e.name for e in entries if os.path.splitext(e.name)[1].lower() in known and e.is_file()]
        if loose:
            raise InputError(
                f"{root} has images beside its class folders ({min(loose)}); put each image into its class's folder, "
                "or give a table with a path and a label column"
            )
