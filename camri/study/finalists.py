"""Best settings of a run on validation data, the finals of a screening, and the status of a run.

A screening tries whole grids with few seeds. Its winner also had good seeds, so the finals use other seeds.
"""

import itertools
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camri import methods
from camri.engine import Progress
from camri.engine.spec import Training, identity
from camri.errors import InputError, closest
from camri.files import replacing
from camri.methods import BASELINE, Setting
from camri.selection import Rule, Validation, present_of
from camri.study import run_folder
from camri.study.recipes import find_schedule
from camri.study.spec import Grid, Point, Study, name_column
from camri.study.store import ColumnFacts, Row, Run, by_key, open_run, refuse_lost

NUM_SEEDS = 10


@dataclass(frozen=True)
class Finalist:
    """A method's best setting in a column: most recall at no less than cross-entropy's accuracy, after a shift.

    `point` has its values in the order of the method's knobs. If no setting reaches that accuracy, it is the most
    accurate one and `reaches_floor` is False. `edges` names values to try beyond the grid it was chosen from.
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
    """Each method's best setting on validation data in each column, or those of some methods or columns."""
    if "val" not in run.splits:
        raise InputError(f"{run.path}: the screening held out no validation data, so nothing can be chosen")
    if not run.columns():
        raise InputError(f"{run.path}: its important classes are not known yet; let its cross-entropy trials end first")
    planned = list(dict.fromkeys(setting.method for setting in run.plan()))
    for name in chosen or ():
        if name not in planned:
            raise InputError(f"method {name!r} is not in the screening; {closest(name, planned)}", argument="methods")
    refuse_lost(run.rows(status="failed"), run.path, "the finalists")
    finalists, rows = [], by_key(run.rows())
    for column in run.columns() if columns is None else columns:
        best = best_settings(run, column, rows, "val", chosen)
        if best is None:
            raise InputError(f"{run.path}: no cross-entropy trial has ended well, and its accuracy is the floor")
        finalists += best
    return finalists


def best_settings(
    run: Run, column: ColumnFacts, rows: dict[str, list[Row]], split: str, chosen: Collection[str] | None = None
) -> list[Finalist] | None:
    """Each method's best setting in a column: best recall, then accuracy, then the first.

    `rows` are the run's outcomes by setting. None while no cross-entropy trial has ended well: its accuracy is the
    floor. A method that has no outcomes, or only those of the baseline, is left out.
    """
    tried = _tried(run, column)
    baseline = next((setting.key for setting in tried.get(BASELINE, {}).values() if setting.key in rows), None)
    if baseline is None:
        return None

    def validation(key: str) -> Validation:
        return Validation(key, {row.seed: run.scores(row, split, column.indices) for row in rows[key]})

    present = present_of(validation(baseline))
    finalists = []
    for method in [method for method in tried if method in (chosen or tried)]:
        tuned = {
            values: (setting, Rule().tune(validation(setting.key), present))
            for values, setting in tried[method].items()
            if setting.key in rows and (method == BASELINE or setting.key != baseline)
        }
        if tuned:
            values, (setting, point) = max(tuned.items(), key=lambda item: item[1][1].rank)
            finalists.append(
                Finalist(
                    column,
                    method,
                    setting,
                    values,
                    num_settings=len(tuned),
                    num_seeds=len(rows[setting.key]),
                    recall=float(np.mean(point.recall)) if point.has_met else float("nan"),
                    accuracy=point.accuracy,
                    reaches_floor=point.has_met,
                    edges=_edges(method, values, list(tuned)),
                )
            )
    return finalists


def _tried(run: Run, column: ColumnFacts) -> dict[str, dict[Point, Setting]]:
    """method -> point -> setting of everything that the run's studies plan for a column, in their order."""
    tried: dict[str, dict[Point, Setting]] = {}
    for study in map(Study.from_json, run.studies):
        for grid in study.methods:
            points = tried.setdefault(grid.method, {})
            points.update({p: grid.setting(p, column.resolved) for p in grid.tried(column.number) if p not in points})
    return tried


def _edges(method: str, point: Point, tried: Sequence[Point]) -> tuple[Edge, ...]:
    """Knobs at the smallest or largest value tried, unless it is the neutral value: there is nothing beyond it."""
    edges = []
    for place, (name, knob) in enumerate(methods.method(method).knobs.items()):
        value, values = point[place], sorted({other[place] for other in tried})
        if len(values) > 1 and value in (values[0], values[-1]) and value != knob.neutral:
            beyond = _beyond(values if value == values[-1] else values[::-1], name, knob.neutral)
            edges.append(Edge(name, value, beyond))
    return tuple(edges)


def _beyond(values: Sequence[float], knob: str, neutral: float | None) -> float:
    """The value after the last: by the ratio of the last two for a scale, else by their difference.

    Going down it stays above the neutral value, or above 0.

    >>> _beyond([4.0, 8.0, 16.0], "s", None), _beyond([0.1, 0.2], "m", 0.0), _beyond([8.0, 4.0], "w", 1.0)
    (32.0, 0.3, 2.5)
    """
    before, last = values[-2:]
    following = last * last / before if knob == "s" else round(last + (last - before), 10)
    least = neutral if neutral is not None and neutral < last else 0.0
    return following if following > least or last > before else (least + last) / 2


def make_finals(
    run: Run,
    finalists: Sequence[Finalist],
    *,
    seeds: Sequence[int] | None = None,
    schedule: str | None = None,
    epochs: int | None = None,
) -> Study:
    """The study that trains the finalists again, with cross-entropy and L2-softmax at their scales as controls.

    Its columns name the classes, so that "worst" is not searched again. By default `seeds` are the ten smallest that
    the screening did not use; seeds of the screening are refused. The training is the screening's; `schedule` replaces
    all of it but the model, and `epochs` then its length.
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
    """The seeds, refused if some were used; without any, the smallest unused ones.

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
    """Write the study's JSON; the file appears when it is complete."""
    with replacing(path, "; choose another file with --out") as part:
        part.write_text(json.dumps(study.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def find_column(columns: Sequence[ColumnFacts], text: str) -> ColumnFacts:
    """The column with this title ("cat", "cat+dog") or number (from 0)."""
    by_title = {column.title.replace(" ", ""): column for column in columns}
    by_number = {str(column.number): column for column in columns}
    chosen = by_title.get(text.replace(" ", "")) or by_number.get(text)
    if chosen is None:
        named = ", ".join(f"{column.number} ({column.title})" for column in columns)
        raise InputError(f"column={text!r} is not a column of the run; choices: {named}", argument="column")
    return chosen


@dataclass(frozen=True)
class Status:
    """A run at one moment. `pid` is the process that runs it, `split` the data by which `best` was chosen."""

    names: tuple[str, ...]
    total: int
    done: int
    failed: int
    pending: int
    retried: int
    pid: int | None
    progress: Progress | None
    left_s: float | None  # None until a trial has ended
    errors: tuple[str, ...]  # a line per failed trial: setting, seed, error
    columns: tuple[str, ...]
    split: str
    best: tuple[Finalist, ...]


def status(folder: str | Path, with_best: bool = True) -> Status:
    """The status of the run in a folder, also while it is running."""
    with open_run(folder) as run:
        rows, columns, training = run.rows(status=None), run.columns(), Training.from_json(run.training)
        planned = {
            identity(trial, training, run.fingerprint)
            for study in map(Study.from_json, run.studies)
            for trial in study.trials([column.resolved for column in columns] or study.placeholders())
        }
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
            columns=tuple(column.title for column in columns),
            split=split,
            best=tuple(
                best
                for column in (columns if with_best else ())
                for best in best_settings(run, column, by_key(rows), split) or ()
            ),
        )
