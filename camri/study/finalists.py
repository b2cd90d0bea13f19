"""Best settings of a run on validation data: how it stands so far, and the finalists of a screening.

A screening tries whole grids with few seeds. A setting that won there also drew good seeds, so the finals use others.
"""

import itertools
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from camri import methods
from camri.engine import Progress
from camri.engine.spec import Training, identity
from camri.errors import InputError, closest
from camri.files import replacing
from camri.methods import BASELINE, Setting
from camri.selection import Floor, Rule, Validation, worth
from camri.study import run_folder
from camri.study.recipes import find_schedule
from camri.study.spec import Grid, Point, Study, name_column
from camri.study.store import ColumnFacts, Row, Run, by_key, open_run, refuse_lost

NUM_SEEDS = 10


@dataclass(frozen=True)
class Finalist:
    """A method's best setting in a column: recall at no less than cross-entropy's accuracy, after its best shift.

    `point` are its values in the order of the method's knobs. Where no setting reaches that accuracy, it is the most
    accurate one, and `reaches_floor` is False. `edges` says which values to try beyond those it was chosen from.
    """

    column: ColumnFacts
    method: str
    setting: Setting
    point: Point
    num_settings: int
    num_seeds: int
    recall: float
    accuracy: float
    reaches_floor: bool
    edges: tuple["Edge", ...]


@dataclass(frozen=True)
class Edge:
    """A knob whose chosen value is the smallest or largest tried, and the next value beyond it."""

    knob: str
    value: float
    beyond: float


def find_finalists(
    run: Run, chosen: Sequence[str] | None = None, columns: Sequence[ColumnFacts] | None = None
) -> list[Finalist]:
    """The finalists of every column, in the study's order of methods; or those of some methods or columns."""
    if "val" not in run.splits:
        raise InputError(f"{run.path}: the screening held out no validation data, so nothing can be chosen")
    if not run.columns():
        raise InputError(f"{run.path}: its important classes are not known yet; let its cross-entropy trials end first")
    planned = list(dict.fromkeys(setting.method for setting in run.plan()))
    for name in chosen or ():
        if name not in planned:
            raise InputError(f"method {name!r} is not in the screening; {closest(name, planned)}", argument="methods")
    refuse_lost(run.rows(status="failed"), run.path, "the finalists")
    rows = by_key(run.rows())
    finalists = []
    for column in run.columns() if columns is None else columns:
        pool = Pool(run, column, rows)
        if pool.baseline is None:
            raise InputError(f"{run.path}: no cross-entropy trial has ended well, and its accuracy is the floor")
        finalists += [pool.best(name) for name in planned if name in (chosen or planned)]
    return [finalist for finalist in finalists if finalist is not None]


class Pool:
    """The results of a column's settings on a split; `baseline` is None while no cross-entropy trial has ended well."""

    def __init__(self, run: Run, column: ColumnFacts, rows: dict[str, list[Row]], split: str = "val"):
        self.run, self.column, self.rows, self.split = run, column, rows, split
        self.tried = _tried(run, column)
        self.baseline = next((s.key for s in self.tried.get(BASELINE, {}).values() if s.key in rows), None)

    def _validation(self, key: str) -> Validation:
        rows = self.rows[key]
        return Validation(key, {row.seed: self.run.scores(row, self.split, self.column.indices) for row in rows})

    @cached_property
    def floor(self) -> Floor:
        """The least accuracy allowed: cross-entropy's."""
        assert self.baseline is not None
        return Rule().floor(self._validation(self.baseline))

    def best(self, method: str) -> Finalist | None:
        """The method's finalist: best recall, then accuracy, then the first; None where it has only the baseline."""
        reached = {
            point: (setting, Rule().tune(self._validation(setting.key), self.floor))
            for point, setting in self.tried[method].items()
            if setting.key in self.rows and (method == BASELINE or setting.key != self.baseline)
        }
        if not reached:
            return None
        accuracy = {
            point: float(np.mean([row.accuracy[self.split] for row in self.rows[setting.key]]))
            for point, (setting, _) in reached.items()
        }
        point = max(reached, key=lambda point: worth(reached[point][1], accuracy[point]))
        setting, shift = reached[point]
        return Finalist(
            column=self.column,
            method=method,
            setting=setting,
            point=point,
            num_settings=len(reached),
            num_seeds=len(self.rows[setting.key]),
            recall=float("nan") if shift is None else shift.value,
            accuracy=accuracy[point] if shift is None else shift.accuracy,
            reaches_floor=shift is not None,
            edges=_edges(method, point, list(reached)),
        )


def _tried(run: Run, column: ColumnFacts) -> dict[str, dict[Point, Setting]]:
    """method -> point -> setting of everything that the run's studies plan for a column, in their order."""
    found: dict[str, dict[Point, Setting]] = {}
    for study in map(Study.from_json, run.studies):
        for grid in study.methods:
            points = found.setdefault(grid.method, {})
            points.update({p: grid.setting(p, column.resolved) for p in grid.tried(column.number) if p not in points})
    return found


def _edges(method: str, point: Point, tried: Sequence[Point]) -> tuple[Edge, ...]:
    """Knobs at the smallest or largest value tried, except at the neutral value: there is nothing beyond it."""
    found = []
    for place, (name, knob) in enumerate(methods.method(method).knobs.items()):
        values = sorted({one[place] for one in tried})
        if len(values) > 1 and point[place] in (values[0], values[-1]) and point[place] != knob.neutral:
            is_last = point[place] == values[-1]
            found.append(Edge(name, point[place], _beyond(values if is_last else values[::-1], name, knob.neutral)))
    return tuple(found)


def _beyond(values: Sequence[float], knob: str, neutral: float | None) -> float:
    """The next value after the last two: by their ratio for a scale, else by their difference; before the neutral one.

    >>> _beyond([4.0, 8.0, 16.0], "s", None), _beyond([0.1, 0.2], "m", 0.0), _beyond([8.0, 4.0], "w", 1.0)
    (32.0, 0.3, 2.5)
    """
    before, last = values[-2:]
    found = last * last / before if knob == "s" else round(last + (last - before), 10)
    least = neutral if neutral is not None and neutral < last else 0.0
    return found if found > least or last > before else (least + last) / 2


def make_finals(
    run: Run,
    finalists: Sequence[Finalist],
    *,
    seeds: Sequence[int] | None = None,
    schedule: str | None = None,
    epochs: int | None = None,
) -> Study:
    """The study that trains the finalists again, with cross-entropy and L2-softmax at their scales as controls.

    Its columns are those of the finalists, named, so that it does not look for the worst class again. `seeds` may not
    be among the screening's; by default they are the ten smallest that it did not use. The training is the
    screening's; `schedule` replaces all of it but the model, then `epochs` its length.
    """
    screening = Study.from_json(run.studies[0])
    used = {seed for spec in run.studies for seed in spec["seeds"]} | {row.seed for row in run.rows(status=None)}
    # "second" and "median" may be one class.
    columns = {frozenset(finalist.column.resolved): finalist.column for finalist in finalists}
    grids: dict[str, list[list[Point]]] = {BASELINE: [[()] for _ in columns]}
    for finalist in finalists:
        place = list(columns).index(frozenset(finalist.column.resolved))
        grids.setdefault(finalist.method, [[] for _ in columns])[place].append(finalist.point)
        if (control := methods.control_of(finalist.setting)) is not None:
            values = tuple(float(value) for _, value in control.knobs if not isinstance(value, tuple))
            grids.setdefault(control.method, [[] for _ in columns])[place].append(values)
    training = screening.training
    if schedule is not None:
        training = find_schedule(schedule).with_(model=training.model, model_options=training.model_options)
    if epochs is not None:
        training = training.with_(epochs=epochs)
    return screening.with_(
        name=f"{screening.name}.finals",
        important=[name_column(column.resolved, run.classes) for column in columns.values()],
        methods=[
            Grid.at(name, [sorted(set(points)) for points in by_column])
            for name, by_column in grids.items()
            if any(by_column)
        ],
        seeds=_fresh(used, seeds),
        training=training,
    )


def _fresh(used: Collection[int], seeds: Sequence[int] | None) -> list[int]:
    """
    >>> _fresh({0, 2}, None)
    [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    """
    if seeds is None:
        return list(itertools.islice((seed for seed in itertools.count() if seed not in used), NUM_SEEDS))
    both = sorted(set(seeds) & set(used))
    if both:
        raise InputError(
            f"seeds={', '.join(map(str, both))} chose the finalists in the screening, so they would flatter them; give "
            "others, or leave seeds out",
            argument="seeds",
        )
    return list(seeds)


def write_study(study: Study, path: Path) -> None:
    """Write the study's JSON, whole or not at all."""
    with replacing(path, "; choose another file with --out") as part:
        part.write_text(json.dumps(study.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def find_column(columns: Sequence[ColumnFacts], text: str) -> ColumnFacts:
    """The column of that title ("cat", "cat+dog") or number, from 0."""
    by_title = {column.title.replace(" ", ""): column for column in columns}
    by_number = {str(column.number): column for column in columns}
    chosen = by_title.get(text.replace(" ", "")) or by_number.get(text)
    if chosen is None:
        named = ", ".join(f"{column.number} ({column.title})" for column in columns)
        raise InputError(f"column={text!r} is not a column of the run; choices: {named}", argument="column")
    return chosen


@dataclass(frozen=True)
class Status:
    """A run at one moment. `pid` is the process that runs it; `split` the one that `best` is read from."""

    names: tuple[str, ...]
    total: int
    done: int
    failed: int
    pending: int
    retried: int
    pid: int | None
    progress: Progress | None
    left_s: float | None  # None: no trial has ended yet to estimate it from
    errors: tuple[str, ...]  # of each failed trial: its setting, seed and last line
    columns: tuple[str, ...]
    split: str
    best: tuple[Finalist, ...]


def status(folder: str | Path, with_best: bool = True) -> Status:
    """The status of the run in a folder; it may be running."""
    with open_run(folder) as run:
        rows = run.rows(status=None)
        planned = planned_identities(run)
        counts = Counter(row.status for row in rows if row.identity in planned)
        done, failed = counts["done"], counts["failed"]
        pid = run_folder.holder(Path(folder))
        progress = run_folder.read_progress(Path(folder)) if pid is not None else None
        ended = [row.device_s for row in rows if row.status == "done"]
        pending = len(planned) - done - failed
        estimate = pending * sum(ended) / len(ended) if ended else None
        split = "val" if "val" in run.splits else "test"
        return Status(
            names=tuple(dict.fromkeys(spec["name"] for spec in run.studies)),
            total=len(planned),
            done=done,
            failed=failed,
            pending=pending,
            retried=sum(row.attempts > 1 for row in rows),
            pid=pid,
            progress=progress,
            left_s=progress.left_s if progress is not None else estimate,
            errors=tuple(row.complaint for row in rows if row.status == "failed"),
            columns=tuple(column.title for column in run.columns()),
            split=split,
            best=tuple(best_so_far(run, split)) if with_best else (),
        )


def planned_identities(run: Run) -> set[str]:
    """The identities of all trials that the run's studies plan; made up for classes that are not yet found."""
    columns, training = [column.resolved for column in run.columns()], Training.from_json(run.training)
    return {
        identity(trial, training, run.fingerprint)
        for study in map(Study.from_json, run.studies)
        for trial in study.trials(columns or study.placeholders())
    }


def best_so_far(run: Run, split: str) -> list[Finalist]:
    """The best setting of each method in each column; none before a cross-entropy trial has ended."""
    rows = by_key(run.rows())
    pools = [Pool(run, column, rows, split) for column in run.columns()]
    finalists = [pool.best(method) for pool in pools if pool.baseline is not None for method in pool.tried]
    return [finalist for finalist in finalists if finalist is not None]
