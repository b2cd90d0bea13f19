"""A model and inputs -> one prediction each, problems among them, in the order of the inputs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from camri.export.inputs import Group
from camri.export.model import Model


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the model says of one input: probabilities (C,) after the shift, or what is wrong with the input.

    row: its number in a table, from 0; None for a file of its own.
    """

    file: str
    row: int | None
    probabilities: np.ndarray | None
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.file if self.row is None else f"{self.file}:{self.row}"


def predict(
    model: Model,
    groups: Sequence[Group],
    batch_size: int = 256,
    on_progress: Callable[[int], None] = lambda num_read: None,
) -> Iterator[Prediction]:
    """A prediction for every input, in order; a bad one has a problem instead of probabilities.

    `on_progress` hears how many inputs have been read; reading images takes the time, not the model.
    """
    before = 0
    for group in groups:
        for chunk in group.chunks(model.trained, lambda num, before=before: on_progress(before + num)):  # type: ignore[misc]
            good = [row for row in range(len(chunk.files)) if row not in chunk.problems]
            found = iter(model.predict_proba(chunk.inputs[good], batch_size))
            for row, (file, number) in enumerate(zip(chunk.files, chunk.rows, strict=True)):
                problem = chunk.problems.get(row)
                yield Prediction(file, number, None if problem is not None else next(found), problem)
        before += len(group)
