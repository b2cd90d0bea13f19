"""Check and condense scores piece by piece; what is wrong is reported at the end, by its first row."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from camri.decision.columns import Picked
from camri.decision.files import Piece, Source, Task, Unreadable
from camri.decision.scores import Array, condense_block
from camri.errors import InputError

SUM_SLACK = 0.05  # the sum of probabilities may miss 1 by this, or by what their decimals explain
ROUNDING = 1e-6  # what single precision may add to a probability of 1
MOST_BY_CHANCE = 0.2  # of rows of logits whose sum is near 1
UNITS = (1.0, 100.0)  # of probabilities and percentages
LARGEST_SCORE = 1e100  # squares and differences of scores must stay finite
HEAD_ROWS = 1000  # that show what the scores are; every further row is held to it
ROWS_TO_SCREEN = 100
MOST_THREADS = 2
FIELDS = ("lead", "rest_spread", "rest", "probability")
REMEDY = "Probabilities lie between 0 and 1 and sum to 1; for raw scores add --logits (kind='logits')"

Progress = Callable[[int, int], None]


class Fault(NamedTuple):
    """What is wrong with some rows: the first of them, its column and number, and how many there are."""

    row: int
    column: int
    value: float
    num: int


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows, condensed unless they have faults. smallest: positive probability. is_pair: columns of one score."""

    num: int
    piece: Piece
    faults: dict[str, Fault]
    fields: dict[str, Array]
    table: Array | None = None
    smallest: float = np.inf
    is_pair: tuple[bool, bool] = (False, False)
    watched: tuple[Array, Array, Array] | None = None  # lowest, highest, whether all are whole


@dataclass(frozen=True)
class Meaning:
    """What scores are. slack: by how much sums may miss 1; None where they are not checked."""

    kind: str
    unit: float = 1.0
    slack: float | None = None
    decimals: int | None = None


def num_decimals(values: Array) -> int | None:
    """How many decimals the values are rounded to; None where there are more than eight, or than their type has.

    >>> num_decimals(np.array([0.25, 0.5])), num_decimals(np.array([1 / 3])), num_decimals(np.float32([0.1, 0.25]))
    (2, None, 2)
    """
    most, noise = {2: (2, 5e-4), 4: (6, 1e-7)}.get(values.dtype.itemsize if values.dtype.kind == "f" else 8, (8, 1e-12))
    return next((num for num in range(most + 1) if np.allclose(values, values.round(num), rtol=0, atol=noise)), None)


def recognise(head: Array, kind: str | None, is_alone: bool = False) -> Meaning:
    """What scores are, from their first rows: probabilities, percentages or logits, unless `kind` says so.

    They are probabilities (or percentages) if more than a few rows sum to 1 (or 100). Then all rows must, and none may
    hold a negative number. Otherwise they are logits, of which a few sum to 1 by chance.
    """
    if kind == "logits":
        return Meaning("logits")
    if is_alone:
        if kind is None and not (head.min() < 0 or head.max() <= 1):
            raise InputError(
                f"scores of one column, from {head.min():g} to {head.max():g}, are neither probabilities nor scores "
                "around 0; give probabilities, both columns, or kind='logits' (--logits)",
                argument="scores",
            )
        return Meaning("logits" if kind is None and head.min() < 0 else "probabilities", decimals=num_decimals(head))
    for unit in UNITS:
        own = num_decimals(np.divide(head, unit, dtype=np.promote_types(head.dtype, np.float16)))
        slack = max(SUM_SLACK, 0.501 * head.shape[1] * 10.0**-own if own else 0.0)
        fits = np.abs(head.sum(axis=1, dtype=np.float64) / unit - 1) < slack
        if fits.mean() > MOST_BY_CHANCE or (kind is not None and unit == 1):
            return Meaning("probabilities", unit, slack if kind is None else None, own)
    return Meaning("logits")


@dataclass(frozen=True)
class Checker:
    """Checks and condenses pieces; `own` are the important classes, ascending."""

    meaning: Meaning
    own: tuple[int, ...]
    is_alone: bool
    watched: tuple[int, ...]
    keeps_table: bool
    num_classes: int
    is_recognised: bool  # not told

    def check(self, piece: Piece) -> Part:
        """Check and condense a piece."""
        values, meaning = piece.values, self.meaning
        kept = piece._replace(values=np.zeros(0))
        with np.errstate(all="ignore"):
            values = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
            faults = self._faults(values)
            if self.is_alone:
                first = 1 - values[:, 0] if meaning.kind == "probabilities" else np.zeros_like(values[:, 0])
                values = np.stack([first, values[:, 0]]).T
            shares = values if meaning.unit == 1 else values.astype(np.float64) / meaning.unit
            if meaning.slack is not None:
                sums = shares @ np.ones(shares.shape[1], shares.dtype)
                faults |= _first("sum", np.abs(sums - 1) < meaning.slack, sums)
        watched = None
        if self.watched:
            numbers = values[:, self.watched]
            watched = numbers.min(axis=0), numbers.max(axis=0), (numbers == np.rint(numbers)).all(axis=0)
        if faults:
            return Part(len(values), kept, faults, {}, watched=watched)
        found = condense_block(shares, np.zeros(len(shares), np.int32), self.own, meaning.kind)
        rest = np.int16 if shares.shape[1] < 2**15 else np.int32
        fields = {name: getattr(found, name) for name in FIELDS if getattr(found, name) is not None}
        fields["rest"] = fields["rest"].astype(rest)
        pair = (False, False)
        if self.is_pair:
            first, second = values.T
            pair = np.allclose(first, 0.0), np.allclose(first, -second)
        table, smallest = None, np.inf
        if self.keeps_table:
            table = shares.astype(np.float64)
            smallest = table.min(initial=np.inf, where=table > 0)
        return Part(len(values), kept, {}, fields, table, float(smallest), pair, watched)

    @property
    def is_pair(self) -> bool:
        """Whether there are two columns of logits, which may be made of one score."""
        return self.meaning.kind == "logits" and self.own in ((0,), (1,)) and self.num_classes == 2

    def _faults(self, values: Array) -> dict[str, Fault]:
        low, high = values.min(), values.max()
        if not -LARGEST_SCORE <= low <= high <= LARGEST_SCORE:
            return _first_cell("score", np.abs(values) <= LARGEST_SCORE, values)
        most = self.meaning.unit * (1 + ROUNDING)
        if self.meaning.kind == "probabilities" and not 0 <= low <= high <= most:
            return _first_cell("p", (values >= 0) & (values <= most), values)
        return {}


def _first(what: str, is_right: Array, values: Array) -> dict[str, Fault]:
    rows = np.flatnonzero(~is_right)
    return {what: Fault(int(rows[0]), 0, float(values[rows[0]]), len(rows))} if len(rows) else {}


def _first_cell(what: str, is_right: Array, values: Array) -> dict[str, Fault]:
    rows = np.flatnonzero(~is_right.all(axis=1))
    column = int(is_right[rows[0]].argmin())
    return {what: Fault(int(rows[0]), column, float(values[rows[0], column]), len(rows))}


@dataclass(eq=False)
class Gathered:
    """All pieces of a source, one after another."""

    checker: Checker
    head: Array
    num: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    fields: dict[str, list[Array]] = field(default_factory=dict)
    roles: dict[str, list[Any]] = field(default_factory=dict)
    tables: list[Array] = field(default_factory=list)
    unlike: dict[int, int | None] = field(default_factory=dict)
    smallest: float = np.inf
    is_pair: tuple[bool, bool] = (True, True)
    lows: Array = field(default_factory=lambda: np.zeros(0))
    highs: Array = field(default_factory=lambda: np.zeros(0))
    whole: Array = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, part: Part) -> None:
        """Add the next part."""
        for what, fault in part.faults.items():
            seen = self.faults.get(what)
            moved = fault._replace(row=fault.row + self.num)
            self.faults[what] = moved if seen is None else seen._replace(num=seen.num + fault.num)
        for name, values in part.fields.items():
            self.fields.setdefault(name, []).append(values)
        for name, values in part.piece.roles.items():
            self.roles.setdefault(name, []).append(values)
        self.unlike |= {row + self.num: length for row, length in part.piece.unlike.items()}
        self.smallest = min(self.smallest, part.smallest)
        self.is_pair = (self.is_pair[0] and part.is_pair[0], self.is_pair[1] and part.is_pair[1])
        if part.table is not None:
            self.tables.append(part.table)
        if part.watched is not None:
            low, high, whole = part.watched
            self.lows = low if not self.num else np.minimum(self.lows, low)
            self.highs = high if not self.num else np.maximum(self.highs, high)
            self.whole = whole if not self.num else self.whole & whole
        self.num += part.num

    def joined(self, name: str) -> Any:
        """A field of all rows, None if there is none; its parts are let go."""
        parts = self.fields.pop(name, None)
        return None if parts is None else parts[0] if len(parts) == 1 else np.concatenate(parts)

    def table(self) -> Array | None:
        """The log-scores of all classes, if they were kept.

        A probability of 0 counts as half the smallest one in the table.
        """
        if not self.tables:
            return None
        whole, self.tables = np.concatenate(self.tables), []
        if self.checker.meaning.kind == "logits":
            return whole
        least = max(self.smallest / 2, np.finfo(np.float64).smallest_subnormal)
        return np.log(np.maximum(whole, least, out=whole), out=whole)

    @property
    def first_column(self) -> int | None:
        """Of two columns of logits made of one score d: 0 for [0, d], −1 for [−d, d]; else None."""
        return 0 if self.is_pair[0] else -1 if self.is_pair[1] else None


def gather(
    source: Source, picked: Picked, own: tuple[int, ...], kind: str | None, keeps_table: bool, report: Progress | None
) -> Gathered:
    """Check and condense all rows of a source, on two threads."""
    tasks = source.tasks(picked)
    pieces = next(tasks)()
    try:
        first = next(pieces)
    except Unreadable as problem:
        raise problem.explain(0) from None
    head = first.values[:HEAD_ROWS]
    try:
        with np.errstate(all="ignore"):
            meaning = recognise(head, kind, picked.alone)
    except InputError as error:
        raise source.place.error(str(error), error.argument) from None
    checker = Checker(meaning, own, picked.alone, picked.watched, keeps_table, len(picked.classes), kind is None)
    gathered, done = Gathered(checker, np.array(head, dtype=np.float64)), 0.0

    def work(rest: Iterable[Piece]) -> list[Part]:
        return [checker.check(piece) for piece in rest]

    def later(task: Task) -> list[Part]:
        return work(task())

    jobs = chain([partial(work, chain([first], pieces))], (partial(later, task) for task in tasks))
    del first
    try:
        for parts in _in_order(jobs):
            for part in parts:
                gathered.add(part)
                done += part.piece.done
            if report is not None:
                report(gathered.num, max(gathered.num, round(gathered.num * source.size / max(done, 1.0))))
    except Unreadable as problem:
        raise problem.explain(gathered.num) from None
    return gathered


def _in_order(jobs: Iterator[Callable[[], list[Part]]]) -> Iterator[list[Part]]:
    """Run jobs on some threads and yield their results in order; only a few are under way."""
    first, second = next(jobs), next(jobs, None)
    if second is None:
        yield first()
        return
    num = min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num) as pool:
        waiting = deque([pool.submit(first), pool.submit(second)])
        for job in jobs:
            if len(waiting) > num:
                yield waiting.popleft().result()
            waiting.append(pool.submit(job))
        while waiting:
            yield waiting.popleft().result()


def refuse_faults(gathered: Gathered, source: Source, picked: Picked, labels: Array, is_by_name: bool) -> None:
    """Refuse the table if any row has a fault; name the first."""
    meaning, faults = gathered.checker.meaning, gathered.faults

    def error(what: str, remedy: str) -> InputError:
        fault = faults[what]
        column = fault.column + (1 if picked.alone else 0)
        many = "" if fault.num == 1 else f" ({fault.num:,} of {gathered.num:,} rows are like this)"
        text = f"{what}({picked.classes[column]}) = {fault.value:g}{many}. {remedy}"
        return source.place.error(text, "scores", fault.row)

    if "score" in faults:
        raise error("score", "Give finite scores, or remove the rows")
    may_sum = meaning.slack is not None or (meaning.kind == "logits" and gathered.checker.is_recognised)
    if may_sum and (faults or meaning.kind == "logits") and not picked.alone:
        _refuse_extra(gathered.head, source, picked, labels, is_by_name)
    if "p" in faults:
        raise error("p", REMEDY)
    if "sum" in faults:
        text = f"the probabilities sum to {faults['sum'].value:g}. {REMEDY}"
        raise source.place.error(text, "scores", faults["sum"].row)


def _refuse_extra(head: Array, source: Source, picked: Picked, labels: Array, is_by_name: bool) -> None:
    """Refuse columns beside probabilities that are no class's, such as a confidence, an entropy or a loss.

    These are columns that no label has and without which every row is probabilities (or percentages), but not with
    them. Labels that are positions may count without such a column: then every column is tried if the last has no
    label.
    """
    names = picked.classes
    counts = np.bincount(labels, minlength=len(names))
    unlabelled = np.flatnonzero(counts == 0).tolist()
    is_shifted = not is_by_name and not counts[-1]
    for extra in _candidates(head[:ROWS_TO_SCREEN], unlabelled, is_shifted):
        if (unit := _unit_without(extra, source, picked)) is not None:
            are, them = ("is no class", "it") if len(extra) == 1 else ("are no classes", "them")
            shown = ", ".join(repr(names[place]) for place in extra)
            raise source.place.error(
                f"column{'s' * (len(extra) > 1)} {shown} {are}: without {them} every row sums to {unit:g}; remove "
                f"{them}, or add --logits (kind='logits') if every column has the scores of a class",
                "scores",
            )


def _candidates(head: Array, unlabelled: Sequence[int], is_shifted: bool) -> Iterator[list[int]]:
    """Columns without which the first rows are probabilities: each alone, then all that have no label."""
    without = head.sum(axis=1)[:, None] - head
    fits = np.logical_or(*((np.abs(without / unit - 1) < 1.01 * SUM_SLACK).all(axis=0) for unit in UNITS))
    singles = [place for place in (range(head.shape[1]) if is_shifted else unlabelled) if fits[place]]
    for extra in [*([place] for place in singles), list(unlabelled)]:
        if extra and head.shape[1] - len(extra) >= 2 and _unit_of(np.delete(head, extra, axis=1)) is not None:
            yield extra


def _unit_without(extra: Sequence[int], source: Source, picked: Picked) -> float | None:
    """1 or 100 if without these columns every row sums to that, and rows differ; else None."""
    found, first, is_varied = set(), None, False
    for task in source.tasks(picked):
        for piece in task():
            rest = np.delete(piece.values.astype(np.float64), extra, axis=1)
            found.add(_unit_of(rest))
            if len(found) > 1 or None in found:
                return None
            first = rest[0] if first is None else first
            is_varied |= bool((rest != first).any())
    return found.pop() if is_varied else None


def _unit_of(values: Array) -> float | None:
    """1 if every row is probabilities, 100 if percentages; None for others. Coarse rounding is no excuse."""
    if not values.min() >= 0:
        return None
    sums = values.sum(axis=1)
    return next((unit for unit in UNITS if (np.abs(sums / unit - 1) < SUM_SLACK).all()), None)
