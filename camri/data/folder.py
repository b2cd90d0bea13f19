"""Image folders: a folder per class, with or without train, val and test folders above."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from camri.data.listing import EncodedImages, Listing, Part, Source, clean_name, natural_order
from camri.errors import InputError
from camri.tables import SPLIT_ALIASES

# Besides hidden files: what Windows, macOS's zip, Synology's previews and Python leave behind.
CLUTTER = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "__pycache__")


def find_folder(path: Path) -> Source | None:
    """Find the image folder at path; None if it has no subfolders."""
    top = subfolders(path)
    if not top:
        return None
    split_folders = {SPLIT_ALIASES[name.lower()]: name for name in top if name.lower() in SPLIT_ALIASES}
    if len(split_folders) == len(top) or "train" in split_folders:
        if stray := [name for name in top if name.lower() not in SPLIT_ALIASES]:
            remedy = "move it away, or, if these are classes, put all of them into one folder named train"
            raise InputError(f"{path} has train/ and also {stray[0]}/, which is not train, val or test; {remedy}")
        if len(split_folders) < len(top):
            raise InputError(f"{path} has two folders for one split: {', '.join(top)}; keep one of each")
        roots = {part: path / name for part, name in split_folders.items()}
    else:
        if len(top) == 1 and (inner := subfolders(path / top[0])):
            remedy = f"if {', '.join(inner[:3])} are the classes, give the folder {top[0]} (unpack an archive first)"
            raise InputError(f"{path} has only one class ({top[0]!r}); {remedy}")
        roots = {"train": path}
    tree = {part: _class_files(root) for part, root in roots.items()}
    files = [file for classes in tree.values() for class_files in classes.values() for file in class_files]
    also = [f"{part}/{name}" for part, classes in tree.items() for name in classes]
    return Source("image folder", files, lambda scratch: _list(path, tree), also)


def _class_files(root: Path) -> dict[str, list[str]]:
    """The files of each class, by class name."""
    folders: dict[str, str] = {}
    for name in subfolders(root):
        _refuse_undecoded(name, root)
        other = folders.setdefault(clean_name(name), name)
        if other != name:
            raise InputError(
                f"{root} has two folders for class {clean_name(name)!r}, {other!a} and {name!a}; merge them"
            )
    _refuse_loose_images(root)
    return {name: list(files_below(root / folder)) for name, folder in folders.items()}


def _refuse_undecoded(name: str, root: Path) -> None:
    """Refuse a class folder whose name Python could not decode: bad bytes, or a locale other than UTF-8."""
    try:
        name.encode()
        return
    except UnicodeEncodeError:
        raw = os.fsencode(name)
    try:
        known = raw.decode()
    except UnicodeDecodeError:
        raise InputError(f"{root}: the name of class folder {raw!r} is not UTF-8; rename it") from None
    encoding = sys.getfilesystemencoding()
    raise InputError(f"{root}: class folder {known!a} cannot be read in this {encoding} locale; set PYTHONUTF8=1")


def _refuse_loose_images(root: Path) -> None:
    from camri.data.decode import image_suffixes

    suffixes = image_suffixes()
    with os.scandir(root) as entries:
        loose = [e.name for e in entries if os.path.splitext(e.name)[1].lower() in suffixes and e.is_file()]
    if loose:
        raise InputError(f"{root} has images beside its class folders ({min(loose)}); put each into its class's folder")


def _list(path: Path, tree: dict[str, dict[str, list[str]]]) -> Listing:
    classes = natural_order(list({name for by_class in tree.values() for name in by_class}))
    return Listing(tuple(classes), {part: to_part(path, by_class, classes) for part, by_class in tree.items()})


def to_part(root: Path, by_class: dict[str, list[str]], classes: Sequence[str]) -> Part:
    """A split of the image files of each class, in the mapping's order."""
    index = {name: position for position, name in enumerate(classes)}
    files = [file for class_files in by_class.values() for file in class_files]
    labels = [index[name] for name, class_files in by_class.items() for _ in class_files]
    return Part(EncodedImages(files, [shown(file, root) for file in files]), np.array(labels, dtype=np.int64))


def shown(file: str, root: Path) -> str:
    """A file's name for messages: relative to the root if it is inside, undecodable bytes escaped."""
    name = os.path.relpath(file, root) if file.startswith(str(root)) else file
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def subfolders(path: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted. A broken link is refused: it may be a class."""
    with os.scandir(path) as entries:
        ours = [entry for entry in entries if not is_clutter(entry.name)]
    for entry in ours:
        if entry.is_symlink() and not _is_folder(entry) and not os.path.exists(entry.path):
            raise InputError(f"{entry.path} is a broken link; repair or remove it")
    return sorted(entry.name for entry in ours if _is_folder(entry))


def visible(path: Path) -> list[str]:
    """Names in a folder without hidden files and clutter, sorted."""
    return sorted(name for name in os.listdir(path) if not is_clutter(name))


def files_below(folder: Path | str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Yield the visible files below a folder, sorted; links are followed. A link to a folder above is refused."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise InputError(f"{folder} is a link to a folder above itself (a loop); remove the link")
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if is_clutter(entry.name):
            continue
        if _is_folder(entry):
            yield from files_below(entry.path, (*above, here))
        else:
            yield entry.path


def is_clutter(name: str) -> bool:
    """True for hidden files and what operating systems leave in folders."""
    return name.startswith(".") or name.lower() in CLUTTER


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself
        raise InputError(f"{entry.path} cannot be followed ({error.strerror}); remove the link") from None
