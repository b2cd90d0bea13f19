"""Tar shards in WebDataset's layout, 000012.jpg beside 000012.cls. They are read in place, never unpacked."""

import glob
import itertools
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from camri.data.decode import image_suffixes
from camri.data.folder import is_clutter, subfolders, visible
from camri.data.listing import EncodedImages, Listing, Part, Slice, Source, encode
from camri.data.tables import by_split
from camri.errors import InputError
from camri.files import refuse_special
from camri.tables import SPLIT_ALIASES

SUFFIX = ".tar"
LABEL, LABEL_BYTES = ".cls", 1 << 10
IMAGE_BYTES = 1 << 28  # an encoded image that is larger is refused before it is read
PEEKED = 16  # members that are read to recognise the layout
CLASSES_FILE = "classes.txt"


def is_pattern(path: Path) -> bool:
    """True for a pattern of shards: "shards/train-*.tar"."""
    return path.suffix == SUFFIX and glob.has_magic(str(path)) and not path.exists()


def find_shards(path: Path) -> Source | None:
    """Find the shards of a folder, of its train, val and test folders or of a pattern, or one; None for other files."""
    if is_pattern(path):
        by_part = by_split(path, [Path(file) for file in sorted(glob.glob(str(path)))])
        folder = path.parent
    elif path.is_dir():
        inside = {SPLIT_ALIASES.get(name.lower()): path / name for name in subfolders(path)}
        if inside and None not in inside:
            by_part = {str(part): _tars(folder) for part, folder in inside.items()}
        else:
            by_part = by_split(path, _tars(path))
        folder = path
    else:
        by_part, folder = {"": [path] if path.suffix.lower() == SUFFIX else []}, path.parent
    files = [file for part in by_part.values() for file in part]
    if not files or not all(by_part.values()) or not (is_pattern(path) or _has_labels(files[0])):
        return None
    names = folder / CLASSES_FILE
    used = [*files, *([names] if names.is_file() else [])]
    return Source("tar shards", list(map(str, used)), lambda scratch: _list(path, by_part, names))


def _tars(folder: Path) -> list[Path]:
    """The tar files of a folder; none if it holds other files than these and the class names."""
    names = [name for name in visible(folder) if name != CLASSES_FILE]
    return [folder / name for name in names] if all(name.endswith(SUFFIX) for name in names) else []


def _has_labels(file: Path) -> bool:
    try:
        return any(name.endswith(LABEL) for name, _ in itertools.islice(members(file), PEEKED + 1))
    except InputError:  # another kind of archive, whose reader says what is wrong
        return False


def members(file: Path) -> Iterator[tuple[str, Slice]]:
    """Yield (name, place) of each file in a shard; refuse links, devices and damaged shards."""
    try:
        refuse_special(file)
        size = os.path.getsize(file)
        with tarfile.open(file, "r:") as opened:
            while (member := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
                if member.isdir():
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
                    raise InputError(f"{file}: {member.name!r} is a link, device or sparse file; remove it")
                if member.offset_data + member.size > size:
                    break
                name = member.name.encode("utf-8", "backslashreplace").decode()
                if not any(map(is_clutter, name.removeprefix("./").split("/"))):
                    yield name, Slice(str(file), member.offset_data, member.size)
            with open(file, "rb") as stream:
                stream.seek(opened.offset)
                if stream.read(512) != bytes(512):  # tarfile takes a damaged header for the end
                    raise InputError(f"{file} is damaged or cut short at byte {opened.offset:,}; copy it again")
    except InputError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        hint = "copy it again; shards are plain tar files, not compressed"
        why = str(error).partition("\n")[0]
        raise InputError(f"{file} cannot be read as a tar file ({why}); {hint}") from None


def is_image(name: str, place: Slice) -> bool:
    """Whether a member of a shard is named like an image; refuse a huge one before it is read."""
    if os.path.splitext(name)[1].lower() not in image_suffixes():
        return False
    if place.size > IMAGE_BYTES:
        raise InputError(f"{place.file}: {name!r} has {place.size:,} bytes; an image may have {IMAGE_BYTES:,}")
    return True


def _list(path: Path, by_part: dict[str, list[Path]], names_file: Path) -> Listing:
    labels, parts = {}, {}
    for part, files in by_part.items():
        samples = [sample for file in files for sample in _samples(file)]
        labels[part or "train"] = np.array([label for _, _, label in samples], dtype=object)
        parts[part or "train"] = EncodedImages([place for _, place, _ in samples], [name for name, _, _ in samples])
    names = names_file.read_text(encoding="utf-8").splitlines() if names_file.is_file() else None
    if names is not None and all(label.isdigit() for column in labels.values() for label in column):
        labels = {part: column.astype(np.int64) for part, column in labels.items()}
    classes, codes = encode(labels, str(path), names)
    return Listing(classes, {part: Part(images, codes[part]) for part, images in parts.items()})


def _samples(file: Path) -> list[tuple[str, Slice, bytes]]:
    """(name, place, label) of each image of a shard, in its order."""
    images: dict[str, tuple[str, Slice]] = {}
    labels: dict[str, bytes] = {}
    with open(file, "rb") as stream:
        for name, place in members(file):
            folder, _, last = name.rpartition("/")
            stem, _, ending = last.partition(".")
            key, ending = f"{folder}/{stem}", f".{ending.lower()}"
            if ending == LABEL:
                stream.seek(place.offset)
                text = stream.read(min(place.size, LABEL_BYTES)).strip()
                if not text or place.size > LABEL_BYTES:
                    raise InputError(f"{file}: {name!r} holds no label; give a class's name or number in it")
                labels[key] = text
            elif is_image(name, place):
                if key in images:
                    raise InputError(f"{file}: {images[key][0]!r} and {name!r} are two images of one sample; keep one")
                images[key] = name, place
    for key, (name, _) in images.items():
        if key not in labels:
            raise InputError(f"{file}: {name!r} has no label; add {os.path.splitext(name)[0]}{LABEL} beside it")
    if lacking := labels.keys() - images.keys():
        raise InputError(f"{file}: {min(lacking).lstrip('/') + LABEL!r} has no image beside it; add it")
    return [(f"{file.name}/{name}", place, labels[key]) for key, (name, place) in images.items()]
