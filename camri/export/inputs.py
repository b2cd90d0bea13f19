"""Groups of inputs, read a chunk at a time: image files, arrays, and what is wrong with the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from camri.data.decode import to_array as decode_image
from camri.data.parallel import for_each, shared_array
from camri.export.trained import Trained

LARGEST = float(np.finfo(np.float32).max)  # beyond it a number is infinite to the model
CHUNK_ROWS = 1024
Told = Callable[[int], None]  # hears how many inputs of a group have been read


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows: where each is from, its input, and what is wrong with those that have none.

    rows: the number in its table, None for a file of its own. inputs: (N, ...), zeros where `problems` has the row.
    """

    files: Sequence[str]
    rows: Sequence[int | None]
    inputs: np.ndarray
    problems: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Images:
    """Encoded images: files of their own, or the rows of a table; boxes (N, 4) to crop to, as fractions, or None."""

    files: Sequence[str]
    rows: Sequence[int | None]
    sources: Sequence[str | memoryview]
    boxes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def chunks(self, trained: Trained, told: Told) -> Iterator[Chunk]:
        height, width, channels = trained.input_shape
        for start in range(0, len(self), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            sources, boxes = self.sources[part], None if self.boxes is None else self.boxes[part]
            out = shared_array((len(sources), height, width, channels), np.uint8)

            def read(
                row: int,
                sources: Sequence[str | memoryview] = sources,
                boxes: np.ndarray | None = boxes,
                out: np.ndarray = out,
            ) -> None:
                box = None if boxes is None else boxes[row]
                if box is not None and not (box[:2] < box[2:]).all():
                    raise ValueError("its box to crop to is missing or empty")
                out[row] = decode_image(sources[row], (height, width, channels), box)

            def tell(done: int, total: int, start: int = start) -> None:
                told(start + done)

            yield Chunk(self.files[part], self.rows[part], out, for_each(len(sources), read, tell))


@dataclass(frozen=True, eq=False)
class Ready:
    """An array of inputs: uint8 images, or numbers; `problems` are of rows that are known to have none.

    names: of the features' columns, where they have some.
    """

    file: str
    array: np.ndarray
    problems: Mapping[int, str] = field(default_factory=dict)
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.array)

    def chunks(self, trained: Trained, told: Told) -> Iterator[Chunk]:
        for start in range(0, len(self), CHUNK_ROWS):
            inputs = np.array(self.array[start : start + CHUNK_ROWS])
            rows = range(start, start + len(inputs))
            problems = {}
            if not trained.is_image:
                with np.errstate(over="ignore"):
                    inputs = inputs.astype(np.float32)
                for row in np.flatnonzero(~np.isfinite(inputs).all(axis=1)).tolist():
                    column = int(np.flatnonzero(~np.isfinite(inputs[row]))[0])
                    name = repr(self.names[column]) if self.names else column
                    value = self.array[start + row, column]
                    infinite = f"feature {name} is {value}; it must be a number within ±{LARGEST:.2g}"
                    problems[row] = self.problems.get(rows[row], infinite)
                    inputs[row] = 0
            told(start + len(inputs))
            yield Chunk([self.file] * len(inputs), rows, inputs, problems)


@dataclass(frozen=True, eq=False)
class Problem:
    """A word of the command line that leads to no input."""

    file: str
    why: str

    def __len__(self) -> int:
        return 1

    def chunks(self, trained: Trained, told: Told) -> Iterator[Chunk]:
        nothing = np.zeros((1, *trained.input_shape), np.uint8 if trained.is_image else np.float32)
        told(1)
        yield Chunk([self.file], [None], nothing, {0: self.why})


Group = Images | Ready | Problem
