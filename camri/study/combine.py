"""Put studies and runs together: a study into a run's columns, runs of several machines, models into ensembles."""

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from camri.engine.outcome import Outcome
from camri.engine.spec import Training, Trial
from camri.errors import InputError
from camri.files import cannot_write
from camri.methods import Setting
from camri.metrics import Array, condense, confusion
from camri.study import run_folder
from camri.study.spec import SYMBOLS, Column, Grid, Point, Study, name_column, resolve_column
from camri.study.store import STORE_FILE, Row, Run, Store, all_but_first, by_key, check_same, open_run

Pair = Sequence[str | int | float]  # a class and its strength


def place_into(run: Run, study: Study) -> Study:
    """The study with the run's columns instead of its own; refused if the run lacks one of its columns.

    Settings that depend on important classes are placed in the columns that the study has; the others, which serve all
    columns alike, in every one.
    """
    if [study.to_json()["important"], study.important_from] == run.asked:
        return study
    asked, split = run.asked
    found = [column.resolved for column in run.columns()]
    own: list[list[int]] = [[] for _ in asked]  # the study's columns that are the run's column of this place
    for number, column in enumerate(study.important):
        is_sought = bool(set(column.classes) & set(SYMBOLS))
        by_name = [] if is_sought and study.important_from != split else _places(column.pairs, asked)
        by_index = _places(resolve_column(column, run.classes), found)
        if not by_name and not by_index:
            raise _not_there(run, study)
        for place in {*by_name, *by_index}:
            own[place].append(number)
    return study.with_(
        important=[Column(*zip(*column, strict=True)) for column in asked],
        important_from=split,
        methods=[Grid.at(grid.method, [_points(grid, numbers, study) for numbers in own]) for grid in study.methods],
    )


def _places(wanted: Iterable[Pair], columns: Sequence[Iterable[Pair]]) -> list[int]:
    pairs = set(map(tuple, wanted))
    return [place for place, column in enumerate(columns) if set(map(tuple, column)) == pairs]


def _points(grid: Grid, numbers: Sequence[int], study: Study) -> list[Point]:
    served = numbers or ([] if grid.per_column else range(len(study.important)))
    return list(dict.fromkeys(point for number in served for point in grid.tried(number)))


def _not_there(run: Run, study: Study) -> InputError:
    here, asked = run.asked, f"{', '.join(map(str, study.important))} from {study.important_from}"
    theirs = f"{', '.join(str(Column(*zip(*column, strict=True))) for column in here[0])} from {here[1]}"
    if not run.columns():
        why = f"its important classes ({theirs}) are not known until its cross-entropy trials end"
        return InputError(f"{run.path}: {why}; run a study of {asked} into it after that, or choose another folder")
    why = f"holds a study of other important classes ({theirs}, and not {asked})"
    return InputError(f"{run.path} {why}; choose another folder, or some of its columns")


@dataclass
class Merged:
    """Counts of a merge: outcomes in all, copied, and present twice with equal counts.

    `conflicts` describes trials whose counts differ, `left_out` outcomes that lack the scores of their column.
    """

    total: int = 0
    added: int = 0
    agreed: int = 0
    conflicts: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def merge(sources: Sequence[str | Path], out: str | Path) -> Merged:
    """Merge the runs in `sources` into `out`, which may hold outcomes already; a new run appears when it is whole.

    The merged run has the columns of `out`, or else of the run with most columns; the others may have some of them.
    A trial that several runs did must have the same confusion counts in all; if not, the first is kept and the trial
    reported. An outcome that is done replaces a failed one.
    """
    folder = Path(out)
    places = [Path(path).resolve() for path in (*sources, out)]
    for source, place in zip(sources, places, strict=False):  # a run merged with itself would seem to be confirmed
        if places.count(place) > 1:
            raise InputError(f"{source} is given twice; give each run once, and not the one in --out, which is kept")
    run_folder.refuse_other_files(folder, STORE_FILE, "run")
    if (folder / STORE_FILE).exists():
        return _merge(sources, folder)
    with _new_run(folder) as part:
        return _merge(sources, part)


@contextmanager
def _new_run(folder: Path) -> Iterator[Path]:
    """A folder beside the new run's, in which to write its store; the store moves there when it is whole."""
    whole = folder.absolute()  # "." has no name of its own
    part = whole.with_name(f"{whole.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(folder, error, "; choose a new folder with --out") from None
    try:
        yield part
        with run_folder.hold(folder):
            if (folder / STORE_FILE).exists():
                raise InputError(f"{folder} was filled by another process meanwhile; run the command again")
            os.replace(part / STORE_FILE, folder / STORE_FILE)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _merge(sources: Sequence[str | Path], folder: Path) -> Merged:
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(source)) for source in sources]
        known = [stack.enter_context(open_run(folder))] if (folder / STORE_FILE).exists() else []
        widest = (known or [max(runs, key=lambda run: len(run.columns()))])[0]
        studies = [study for run in runs for study in _placed(widest, run)]
        facts, columns = widest.facts(), [column.resolved for column in widest.columns()] or None
        for run in known:
            run.close()
        stack.enter_context(run_folder.hold(folder))
        store = stack.enter_context(Store.open(folder, facts))
        for study in studies:
            store.add_study(study, columns)
        merged = Merged()
        for run in runs:
            _copy(store, run, merged)
        merged.total = len(store.statuses())
        return merged


def _placed(widest: Run, run: Run) -> list[Study]:
    """The run's studies with the columns of the widest; refused if data, training or columns differ."""
    check_same(widest.facts(), run.facts(), widest.path)
    studies = list(map(Study.from_json, run.studies))
    columns = run.columns()
    if run.asked != widest.asked:
        # By their names: two runs may have found different classes.
        named = [name_column(column.resolved, run.classes) for column in columns]
        return [place_into(widest, study.with_(important=named or study.important)) for study in studies]
    if columns != widest.columns():
        theirs, ours = (", ".join(column.title for column in one.columns()) or "none yet" for one in (widest, run))
        differ = f"found different important classes ({theirs}; {ours})"
        raise InputError(f"{widest.path} and {run.path} {differ}; they cannot be merged")
    return studies


def _copy(store: Store, run: Run, merged: Merged) -> None:
    """Copy the run's outcomes that the store lacks, and compare those that both have."""
    have, columns = store.statuses(), store.columns()
    judged: dict[str, set[int]] = {}
    for planned in store.plan():
        judged.setdefault(planned.key, set()).update(columns[planned.column].indices)
    for row in run.rows(status=None):
        mine = have.get(row.identity)
        if mine is None or (mine == "failed" and row.status == "done"):
            lacking = _lacking(run, row, judged.get(row.key, set()))
            if lacking:
                merged.left_out.append(f"{row.title} seed {row.seed}: {run.path} kept no scores of {lacking}")
            else:
                store.copy(row.identity, run)
                merged.added += 1
        elif mine == row.status == "done":
            counts = {split: (store.confusion(row.identity, split), run.confusion(row, split)) for split in run.splits}
            differ = [split for split, both in counts.items() if not np.array_equal(*both)]
            merged.agreed += not differ
            if differ:
                what = f"{run.path} has other {' and '.join(differ)} counts"
                merged.conflicts.append(f"{row.title} seed {row.seed}: {what}")


def _lacking(run: Run, row: Row, judged: set[int]) -> str:
    """The classes by which an outcome would be judged, but whose scores it did not keep."""
    classes = run.classes
    missing = {
        index
        for kept in run.important(row).values()
        if tuple(kept) != all_but_first(len(classes))
        for index in judged - set(kept)
    }
    return " and ".join(classes[index] for index in sorted(missing))


@dataclass(frozen=True)
class Ensembles:
    """Number of settings, ensembles of each setting and members of each ensemble, and the seeds left over."""

    num_settings: int
    num_each: int
    size: int
    left_over: tuple[int, ...]


def average(logits: Sequence[Array]) -> Array:
    """Log of the members' mean probabilities, which are logits: several (N, C) -> float32 (N, C).

    >>> np.exp(average([np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])])).round(3)
    array([[0.7, 0.3]], dtype=float32)
    """
    stacked = np.asarray(logits, dtype=np.float64)  # (members, N, C)
    log_h = stacked - np.logaddexp.reduce(stacked, axis=-1, keepdims=True)
    return (np.logaddexp.reduce(log_h, axis=0) - np.log(len(stacked))).astype(np.float32)


def make_ensembles(source: str | Path, out: str | Path, size: int) -> Ensembles:
    """Make ensembles of `size` trials of each setting, no trial in two of them, as a new run in `out`.

    The trials must have kept their logits. Ensemble number k has the same seeds in every setting, so differences are
    paired. The new run's training has `ensemble` among its model options, so nothing can be trained into it.
    """
    folder = Path(out)
    with open_run(source) as run:
        by_setting = {key: {row.seed: row for row in rows} for key, rows in by_key(run.rows()).items()}
        if not by_setting:
            raise InputError(f"{run.path} has no trial that ended well; see `camri study status`")
        if not run.columns():
            raise InputError(f"{run.path}: its important classes are not known until its cross-entropy trials end")
        seeds = sorted(set.intersection(*(set(rows) for rows in by_setting.values())))
        if size < 2 or len(seeds) < size:
            limit = f"{run.path} has {len(seeds)} seeds of every setting"
            raise InputError(f"size={size} is not allowed: {limit}; give 2 to {len(seeds)}", argument="size")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not empty" if folder.is_dir() else "is no folder"
            raise InputError(f"{folder} {what}; choose a new folder with --out")
        for row in (rows[seed] for rows in by_setting.values() for seed in seeds):
            if not run.logits(row):
                what = f"{row.title} with seed {row.seed} kept no logits"
                raise InputError(f"{run.path}: {what}; train with `logits = true` under [keep]")
        groups = [seeds[start : start + size] for start in range(0, len(seeds) - size + 1, size)]
        training = Training.from_json(run.training)
        training = training.with_(model_options=(*training.model_options, ("ensemble", size)))
        facts = replace(run.facts(), training=training.to_json())
        with _new_run(folder) as part, Store.open(part, facts) as store:
            columns = [column.resolved for column in run.columns()]
            for spec in run.studies:
                study = Study.from_json(spec)
                name = f"{study.name}, ensembles of {size}"
                store.add_study(study.with_(name=name, training=training, seeds=list(range(len(groups)))), columns)
            command = ["camri", "study", "ensembles", str(source), "--size", str(size), "--out", str(out)]
            store.write_note("command", shlex.join(command))
            important = sorted({index for column in columns for index, _ in column})
            for rows in by_setting.values():
                for number, group in enumerate(groups):
                    members = [rows[seed] for seed in group]
                    text = "ensemble/" + "/".join(row.identity for row in members)
                    identity = hashlib.sha256(text.encode()).hexdigest()[:32]
                    store.add(identity, _average(run, members, number, training, important))
    return Ensembles(len(by_setting), len(groups), size, tuple(seeds[len(groups) * size :]))


def _average(run: Run, members: Sequence[Row], number: int, training: Training, important: Sequence[int]) -> Outcome:
    kept = [run.logits(row) for row in members]
    logits = {split: average([one[split] for one in kept]) for split in run.splits}
    labels = {split: run.labels(split) for split in run.splits}
    num_classes = len(run.classes)
    return Outcome(
        trial=Trial(Setting.from_json(members[0].setting), number),
        training=training,
        fingerprint=run.fingerprint,
        status="done",
        epochs_done=members[0].epochs_done,
        confusion={split: confusion(one.argmax(axis=1), labels[split], num_classes) for split, one in logits.items()},
        scores={split: condense(one, labels[split], tuple(important)) for split, one in logits.items()},
        logits={split: one.astype(np.float16) for split, one in logits.items()},
        wall_s=sum(row.wall_s for row in members),
        device_s=sum(row.device_s for row in members),
        environment=members[0].environment,
    )
