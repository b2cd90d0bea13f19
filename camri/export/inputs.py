"""Inputs of `camri predict`: files, folders, patterns and tables, read in chunks and in a fixed order.

An input that cannot be read is reported as a problem with its name and the reason; the others are still predicted.
"""

import glob
import itertools
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from camri.data import shards, tables
from camri.data.decode import LANCZOS, is_image
from camri.data.decode import to_array as decode_image
from camri.data.folder import files_below
from camri.data.listing import Encoded
from camri.data.parallel import for_each, shared_array
from camri.data.published import to_boxes
from camri.data.tables import INPUTS
from camri.errors import InputError
from camri.export.model import NOT_FINITE, Model, Trained, arrange, to_probabilities
from camri.files import refuse_special
from camri.tables import BAD_ARRAYS, SUFFIXES, is_list_type, is_table, is_text_type, read_table, role, to_numpy
from camri.text import listed

LARGEST = float(np.finfo(np.float32).max)
CHUNK_ROWS, CHUNK_VALUES = 1024, 2**28
OnProgress = Callable[[int], None]  # called with the number of inputs read so far


def chunks_of(num: int, trained: Trained) -> Iterator[slice]:
    """Slices of `num` rows into chunks, with fewer rows for large inputs."""
    step = max(1, min(CHUNK_ROWS, CHUNK_VALUES // math.prod(trained.input_shape)))
    return (slice(start, min(start + step, num)) for start in range(0, num, step))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some inputs, with the file of each.

    rows: its number in a table, None for a file of its own. inputs: (N, ...), zeros for those in `problems`.
    problems: {place in the chunk: reason}.
    """

    files: Sequence[str]
    rows: Sequence[int | None]
    inputs: np.ndarray
    problems: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Images:
    """Encoded images: single files, or the rows of a table; boxes (N, 4): fractions to crop to, or None."""

    files: Sequence[str]
    rows: Sequence[int | None]
    sources: Sequence[Encoded]
    boxes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def chunks(self, trained: Trained, on_progress: OnProgress) -> Iterator[Chunk]:
        height, width, channels = trained.input_shape
        how = str(trained.preprocessing.get("resize", LANCZOS))
        for part in chunks_of(len(self), trained):
            out = shared_array((part.stop - part.start, height, width, channels), np.uint8)

            def read(row: int, start: int = part.start, out: np.ndarray = out) -> None:
                box = None if self.boxes is None else self.boxes[start + row]
                if box is not None and not (box[:2] < box[2:]).all():
                    raise ValueError("its box to crop to is missing or empty")
                out[row] = decode_image(self.sources[start + row], (height, width, channels), box, how)

            def report(done: int, total: int, start: int = part.start) -> None:
                on_progress(start + done)

            yield Chunk(self.files[part], self.rows[part], out, for_each(len(out), read, report))


@dataclass(frozen=True, eq=False)
class Ready:
    """An array of inputs: uint8 images, or numbers.

    problems: {row: reason} of rows without an input. names: of the feature columns. part: name of the array, if the
    file has inputs in several arrays.
    """

    file: str
    array: np.ndarray
    problems: Mapping[int, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    part: str = ""

    def __len__(self) -> int:
        return len(self.array)

    def chunks(self, trained: Trained, on_progress: OnProgress) -> Iterator[Chunk]:
        for part in chunks_of(len(self), trained):
            inputs, rows, problems = np.array(self.array[part]), range(part.start, part.stop), {}
            if not trained.is_image:
                with np.errstate(over="ignore"):
                    inputs = inputs.astype(np.float32)
                for row in np.flatnonzero(~np.isfinite(inputs).all(axis=1)).tolist():
                    column = int(np.flatnonzero(~np.isfinite(inputs[row]))[0])
                    name = repr(self.names[column]) if self.names else column
                    value = self.array[rows[row], column]
                    shown = "missing" if np.isnan(value) else value
                    infinite = f"feature {name} is {shown}; it must be a number within ±{LARGEST:.2g}"
                    problems[row] = self.problems.get(rows[row], infinite)
                    inputs[row] = 0
            on_progress(part.stop)
            name = f"{self.file}:{self.part}" if self.part else self.file
            yield Chunk([name] * len(inputs), rows, inputs, problems)


@dataclass(frozen=True, eq=False)
class Problem:
    """A command line argument without any input."""

    file: str
    why: str

    def __len__(self) -> int:
        return 1

    def chunks(self, trained: Trained, on_progress: OnProgress) -> Iterator[Chunk]:
        nothing = np.zeros((1, *trained.input_shape), np.uint8 if trained.is_image else np.float32)
        on_progress(1)
        yield Chunk([self.file], [None], nothing, {0: self.why})


Group = Images | Ready | Problem


ARRAYS = (".npy", ".npz")
TABLES = (*ARRAYS, *SUFFIXES)
BOX = ("roi_x1", "roi_y1", "roi_x2", "roi_y2", "width", "height")  # or Roi.X1 …, as GTSRB's own tables have it


def find_inputs(words: Sequence[str], trained: Trained) -> tuple[list[Group], list[str]]:
    """Find the inputs of files, folders and patterns, in order and each once; also list the skipped files of folders.

    Skipped are files that are not images by name or content; for a model of features, not tables by name.
    """
    first: dict[Any, str | Problem] = {}
    left_out: list[str] = []
    for word in words:
        found, skipped = _files(word, trained)
        left_out += skipped
        for file in found:
            first.setdefault(file if isinstance(file, Problem) else os.path.abspath(file), file)

    def is_image_file(file: str | Problem) -> bool:
        return trained.is_image and isinstance(file, str) and Path(file).suffix.lower() not in (*TABLES, shards.SUFFIX)

    groups: list[Group] = []
    for are_images, run in itertools.groupby(first.values(), is_image_file):
        if are_images:
            files = [str(file) for file in run]
            groups.append(Images(files, [None] * len(files), files))
        else:
            for file in run:
                groups += [file] if isinstance(file, Problem) else _tables(file, trained)
    return groups, left_out


def _files(word: str, trained: Trained) -> tuple[list[str | Problem], list[str]]:
    """The files of a command line argument, and the skipped files of its folders."""
    path = os.path.expanduser(word)
    if not os.path.lexists(path) and glob.has_magic(path):
        matching = sorted(glob.glob(path, recursive=True))
        if not matching:
            return [Problem(word, "no file matches this pattern")], []
        kept, skipped = zip(*(_files(match, trained) for match in matching), strict=True)
        return list(itertools.chain(*kept)), list(itertools.chain(*skipped))
    if not os.path.isdir(path):
        return [path], []
    try:
        every = list(files_below(Path(path)))
    except (InputError, OSError) as error:
        return [Problem(word, str(error))], []
    endings: Collection[str] = TABLES
    if trained.is_image:
        from PIL import Image

        endings = {*Image.registered_extensions(), shards.SUFFIX}
    inputs: list[str | Problem] = []
    others: list[str] = []
    for file in every:
        known = os.path.splitext(file)[1].lower() in endings
        (inputs if known or (trained.is_image and is_image(file)) else others).append(file)
    if not inputs:
        wanted = "images" if trained.is_image else f"tables ({', '.join(TABLES)})"
        return [Problem(word, f"the folder holds no {wanted}")], others
    return inputs, others


def _tables(file: str, trained: Trained) -> list[Group]:
    """The rows of a table, an array file or a tar file; a problem if it cannot be read or does not fit."""
    path = Path(file)
    if not os.path.exists(path):
        return [Problem(str(path), "there is no such file")]
    try:
        if trained.is_image and path.suffix.lower() == shards.SUFFIX:
            images = [(f"{path}/{name}", place) for name, place in shards.members(path) if shards.is_image(name, place)]
            if not images:
                return [Problem(str(path), "the tar file holds no images")]
            return [Images([name for name, _ in images], [None] * len(images), [place for _, place in images])]
        if path.suffix.lower() in ARRAYS:
            return [_checked(ready, trained) for ready in _arrays(path)]
        if not is_table(path):
            return [Problem(str(path), f"this model takes features, from a table: {', '.join(TABLES)}")]
        table = read_table(path, {trained.preprocessing.get("path_column")})
        if trained.is_image:
            return [_image_rows(path, table, trained)]
        used = _feature_columns(table, path, trained)
        if encoding := trained.preprocessing.get("encoding"):
            return [_checked(Ready(str(path), tables.encode_columns(table, encoding, str(path))), trained)]
        if len(used) == 1 and is_list_type(table.schema.field(used[0]).type):
            return [_checked(_list_rows(path, table.column(used[0]), used[0], trained.input_shape[0]), trained)]
        return [_checked(Ready(str(path), _matrix(table, used), names=used), trained)]
    except (InputError, OSError) as error:
        return [Problem(str(path), str(error).removeprefix(f"{path}").lstrip(":, "))]


def _checked(ready: Ready, trained: Trained) -> Group:
    """The rows, or a problem if the model takes another kind or shape."""
    array, shape = arrange(ready.array, trained.input_shape), trained.input_shape
    fits = array.dtype == np.uint8 if trained.is_image else array.dtype.kind in "fiub"
    if not fits or array.shape[1:] != shape:
        wanted = "uint8 images" if trained.is_image else "numbers"
        return Problem(
            ready.file,
            f"it holds {array.dtype} {array.shape}, and the model takes {wanted} (N, {', '.join(map(str, shape))})",
        )
    return replace(ready, array=array)


def _arrays(path: Path) -> list[Ready]:
    """The arrays of inputs in a file, by their names (inputs, x_train, test_images …), or its only array."""
    try:
        refuse_special(path)
        if path.suffix.lower() == ".npy":
            return [Ready(str(path), np.load(path, allow_pickle=False, mmap_mode="r"))]
        with np.load(path, allow_pickle=False) as stored:
            names = [name for word in INPUTS for name in stored.files if name.lower() == word][:1]
            names = names or [name for name in stored.files if set(name.lower().split("_")) & set(INPUTS)]
            if not names and len(stored.files) != 1:
                raise InputError(f"it holds {', '.join(stored.files) or 'nothing'}; call the array of inputs 'inputs'")
            names = names or stored.files
            return [Ready(str(path), stored[name], part=name if len(names) > 1 else "") for name in names]
    except InputError:
        raise
    except BAD_ARRAYS as error:
        raise InputError(f"it cannot be read as plain arrays: {error}") from None


def count_whole(groups: Sequence[Group]) -> int:
    """Number of images that are not cropped to a box."""
    uncropped = (g for g in groups if isinstance(g, Ready) or (isinstance(g, Images) and g.boxes is None))
    return sum(map(len, uncropped))


def _boxes(table: Any) -> np.ndarray | None:
    """The boxes of a table's images (N, 4), as fractions; None if it has none."""
    names = {name.lower().replace(".", "_"): name for name in table.column_names}
    if not names.keys() >= set(BOX):
        return None
    return to_boxes(_matrix(table, [names[column] for column in BOX]).tolist())


def _image_rows(path: Path, table: Any, trained: Trained) -> Group:
    """The images of a table: bytes in a column, or paths relative to the table, in training's column or a usual one."""
    file, where = str(path), str(path)
    boxes = _boxes(table) if trained.is_cropped else None
    image = role(table, "image", None, where, tables.is_image_type)
    if image:
        sources, _, note = tables.image_sources(table.column(image), path.parent)
        if note:
            warnings.warn(f"{path}: {note}", stacklevel=2)
        return Images([file] * len(sources), range(len(sources)), sources, boxes)
    known = trained.preprocessing.get("path_column")
    as_trained = known in table.column_names and is_text_type(table.schema.field(known).type)
    pointed = role(table, "path", known if as_trained else None, where, is_text_type)
    if pointed is None:
        return Problem(file, f"it has no column with images or their paths among {listed(table.column_names)}")
    names = to_numpy(table.column(pointed)).tolist()
    paths, note = tables.pointed_files(path.parent, [name or "" for name in names])
    if note:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return Images([file] * len(paths), range(len(paths)), paths, boxes)


def _feature_columns(table: Any, path: Path, trained: Trained) -> list[str]:
    """The columns of the features: those of training by name, else all columns of numbers without another role."""
    known, wanted = list(trained.preprocessing.get("feature_columns", ())), trained.input_shape[0]
    there = set(table.column_names)
    is_coded = "encoding" in trained.preprocessing
    if is_coded or len(known) == wanted or (len(known) == 1 and known[0] in there):
        if missing := [name for name in known if name not in there]:
            raise InputError(f"it has no column {missing[0]!r}, which the model was trained on")
        return known
    label = trained.preprocessing.get("label_column")
    roles = {role(table, name, None, str(path)) for name in ("label", "group", "split", "path")} | {label}
    rest = [name for name in table.column_names if name not in roles]
    kinds = [table.schema.field(name).type for name in rest]
    of_lists = [name for name, kind in zip(rest, kinds, strict=True) if is_list_type(kind)]
    if len(of_lists) == 1:
        return of_lists
    numbers = [name for name, kind in zip(rest, kinds, strict=True) if tables.is_number_type(kind)]
    if len(numbers) != wanted or numbers[: len(known)] != known:
        raise InputError(f"it has {len(numbers)} columns of numbers, and the model takes {wanted} features")
    return numbers


def _list_rows(path: Path, column: Any, name: str, wanted: int) -> Ready:
    """A column with a list of features per row; a missing list, or one of another length, is a problem of its row."""
    if is_list_type(column.type.value_type):
        raise InputError(f"column {name!r} holds lists of lists, and the model takes a list of numbers a row")
    values, unlike = tables.to_matrix(column, wanted)
    problems = {
        row: f"its list {'is missing' if length is None else f'is {length:,} long'}, and the model takes "
        f"{wanted:,} numbers"
        for row, length in unlike.items()
    }
    return Ready(str(path), _to_floats(values, name), problems)


def _matrix(table: Any, used: Sequence[str]) -> np.ndarray:
    """float (N, D) of columns of numbers; a missing value is NaN."""
    return np.stack([_to_floats(to_numpy(table.column(name)), name) for name in used], axis=1)


def _to_floats(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind in "mM":  # numpy would convert them to days since 1970
        raise InputError(f"column {name!r} holds times ({values[0]}), and features are numbers")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        wrong = [value for value in values.ravel().tolist() if value is not None and not tables.is_float(str(value))]
        shown = next(filter(str, wrong), wrong[0])  # a word rather than an empty cell
        raise InputError(f"column {name!r} holds {shown!r}, and features are numbers") from None


@dataclass(frozen=True, eq=False)
class Prediction:
    """Probabilities (C,) of one input and the class index that the rule predicts, or its problem.

    row: its number in a table, from 0; None for a single file.
    """

    file: str
    row: int | None
    probabilities: np.ndarray | None
    predicted: int = -1
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.file if self.row is None else f"{self.file}:{self.row}"


def predict(
    model: Model,
    groups: Sequence[Group],
    batch_size: int = 256,
    on_progress: OnProgress = lambda num_read: None,
) -> Iterator[Prediction]:
    """Predict every input, in order; one that cannot be read has a problem instead of probabilities.

    `on_progress` gets the number of inputs read so far: reading takes longer than the model.
    """
    before = 0
    for group in groups:
        for chunk in group.chunks(model.trained, lambda num, before=before: on_progress(before + num)):  # type: ignore[misc]
            good = [row for row in range(len(chunk.files)) if row not in chunk.problems]
            logits = model.raw_logits(chunk.inputs[good], batch_size)
            finite = np.isfinite(logits).all(axis=1)
            bad = dict(chunk.problems) | {row: NOT_FINITE for row, fine in zip(good, finite, strict=True) if not fine}
            probabilities = to_probabilities(logits[finite])
            found = zip(probabilities, model.decide(probabilities).tolist(), strict=True)
            for row, (file, number) in enumerate(zip(chunk.files, chunk.rows, strict=True)):
                if row in bad:
                    yield Prediction(file, number, None, problem=bad[row])
                else:
                    yield Prediction(file, number, *next(found))
        before += len(group)
