"""Combine studies and runs: add a study to a run, merge runs of several machines, average models to ensembles."""

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from camri.decision.counts import confusion
from camri.decision.scores import Array, condense
from camri.engine.outcome import Outcome
from camri.engine.spec import Training, Trial
from camri.errors import InputError
from camri.files import cannot_write
from camri.methods import Setting
from camri.study import run_folder
from camri.study.spec import SYMBOLS, Column, Grid, Point, Study, name_column, resolve_column
from camri.study.store import STORE_FILE, Row, Run, Store, all_but_first, by_key, check_same, open_run

Pair = Sequence[str | int | float]  # a class and its strength


def place_into(run: Run, study: Study) -> Study:
    """The study with the run's columns instead of its own; refused if the run lacks one of the study's columns.

    Settings that depend on the important classes go to the study's own columns, all others to every column.
    """
    if [study.to_json()["important"], study.important_from] == run.asked:
        return study
    asked, split = run.asked
    columns = [Column(*zip(*pairs, strict=True)) for pairs in asked]
    resolved = [column.resolved for column in run.columns()]
    own: list[list[int]] = [[] for _ in asked]  # for each column of the run: the numbers of the study's equal columns
    for number, column in enumerate(study.important):
        is_symbolic = bool(set(column.classes) & set(SYMBOLS))
        by_name = [] if is_symbolic and study.important_from != split else _places(column.pairs, asked)
        by_index = _places(resolve_column(column, run.classes), resolved)
        if not by_name and not by_index:
            ours = f"{', '.join(map(str, study.important))} from {study.important_from}"
            theirs = f"{', '.join(map(str, columns))} from {split}"
            if not resolved:
                why = f"its important classes ({theirs}) are not known until its cross-entropy trials end"
                raise InputError(
                    f"{run.path}: {why}; run a study of {ours} into it after that, or choose another folder"
                )
            why = f"holds a study of other important classes ({theirs}, and not {ours})"
            raise InputError(f"{run.path} {why}; choose another folder, or some of its columns")
        for place in {*by_name, *by_index}:
            own[place].append(number)

    def points(grid: Grid, numbers: Sequence[int]) -> list[Point]:
        served = numbers or ([] if grid.per_column else range(len(study.important)))
        return list(dict.fromkeys(point for number in served for point in grid.tried(number)))

    grids = [Grid.at(grid.method, [points(grid, numbers) for numbers in own]) for grid in study.methods]
    return study.with_(important=columns, important_from=split, methods=grids)


def _places(wanted: Iterable[Pair], columns: Sequence[Iterable[Pair]]) -> list[int]:
    """The places of the columns that have exactly these (class, strength) pairs."""
    pairs = set(map(tuple, wanted))
    return [place for place, column in enumerate(columns) if set(map(tuple, column)) == pairs]


@dataclass
class Merged:
    """Numbers of outcomes in all, newly copied, and present twice with equal confusion counts.

    `conflicts` lists trials whose counts differ, `left_out` outcomes that lack the scores of a column.
    """

    total: int = 0
    added: int = 0
    agreed: int = 0
    conflicts: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def merge(sources: Sequence[str | Path], out: str | Path) -> Merged:
    """Merge the runs in `sources` into `out`: a run of the same study, or a new one that appears when it is complete.

    The merged run has the columns of `out`, or else of the run with the most columns; the others may have some of
    them. If two runs trained the same trial with different confusion counts, the first is kept and the trial reported.
    A done outcome replaces a failed one.
    """
    folder = Path(out)
    paths = [Path(path).resolve() for path in (*sources, out)]
    for source, path in zip(sources, paths, strict=False):  # a run merged with itself would only agree with itself
        if paths.count(path) > 1:
            raise InputError(f"{source} is given twice; give each run once, and not the one in --out, which is kept")
    run_folder.refuse_other_files(folder, STORE_FILE, "run")
    if (folder / STORE_FILE).exists():
        return _merge(sources, folder)
    with _new_run(folder) as part:
        return _merge(sources, part)


@contextmanager
def _new_run(folder: Path) -> Iterator[Path]:
    """Yield a folder to write the new run's store in; move the store into `folder` when it is complete."""
    part = folder.absolute()  # "." has no name of its own
    part = part.with_name(f"{part.name}.part")
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
    """The run's studies with the columns of the widest run; refused if data, training or columns differ."""
    check_same(widest.facts(), run.facts(), widest.path)
    studies = list(map(Study.from_json, run.studies))
    columns = run.columns()
    if run.asked != widest.asked:
        # By class names: "worst" may be another class in each run.
        named = [name_column(column.resolved, run.classes) for column in columns]
        return [place_into(widest, study.with_(important=named or study.important)) for study in studies]
    if columns != widest.columns():
        titles = [", ".join(column.title for column in each.columns()) or "none yet" for each in (widest, run)]
        differ = f"found different important classes ({'; '.join(titles)})"
        raise InputError(f"{widest.path} and {run.path} {differ}; they cannot be merged")
    return studies


def _copy(store: Store, run: Run, merged: Merged) -> None:
    """Copy outcomes that the store lacks, and compare those that both have."""
    statuses, columns, classes = store.statuses(), store.columns(), run.classes
    needed: dict[str, set[int]] = {}  # by the key of a setting: classes whose scores its columns need
    for planned in store.plan():
        needed.setdefault(planned.key, set()).update(columns[planned.column].indices)
    for row in run.rows(status=None):
        mine = statuses.get(row.identity)
        if mine is None or (mine == "failed" and row.status == "done"):
            all_kept = [kept for kept in run.important(row).values() if tuple(kept) != all_but_first(len(classes))]
            lacking = sorted({index for kept in all_kept for index in needed.get(row.key, set()) - set(kept)})
            if lacking:
                names = " and ".join(classes[index] for index in lacking)
                merged.left_out.append(f"{row.title} seed {row.seed}: {run.path} kept no scores of {names}")
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


@dataclass(frozen=True)
class Ensembles:
    """Number of settings, number of ensembles of each setting, and the seeds left over."""

    num_settings: int
    num_each: int
    left_over: tuple[int, ...]


def average(logits: Sequence[Array]) -> Array:
    """Logits of an ensemble: log of the members' mean probabilities, (N, C) each -> float32 (N, C).

    >>> np.exp(average([np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])])).round(3)
    array([[0.7, 0.3]], dtype=float32)
    """
    stacked = np.asarray(logits, dtype=np.float64)  # (members, N, C)
    log_h = stacked - np.logaddexp.reduce(stacked, axis=-1, keepdims=True)
    return (np.logaddexp.reduce(log_h, axis=0) - np.log(len(stacked))).astype(np.float32)


def make_ensembles(source: str | Path, out: str | Path, size: int) -> Ensembles:
    """Write a new run to `out` whose outcomes are ensembles of `size` trials of one setting.

    The trials must have kept their logits, and each is in at most one ensemble. Ensemble number k has the same seeds in
    every setting, so differences are paired. The new run's training has the model option `ensemble`, so that nothing
    can be trained into it.
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
    return Ensembles(len(by_setting), len(groups), tuple(seeds[len(groups) * size :]))


def _average(run: Run, members: Sequence[Row], number: int, training: Training, important: Sequence[int]) -> Outcome:
    """The outcome of an ensemble: its number stands for the seed."""
    kept = [run.logits(row) for row in members]
    logits = {split: average([by_split[split] for by_split in kept]) for split in run.splits}
    labels = {split: run.labels(split) for split in run.splits}
    num_classes = len(run.classes)
    return Outcome(
        trial=Trial(Setting.from_json(members[0].setting), number),
        training=training,
        fingerprint=run.fingerprint,
        status="done",
        epochs_done=members[0].epochs_done,
        confusion={split: confusion(own.argmax(axis=1), labels[split], num_classes) for split, own in logits.items()},
        scores={split: condense(own, labels[split], tuple(important)) for split, own in logits.items()},
        logits={split: own.astype(np.float16) for split, own in logits.items()},
        wall_s=sum(row.wall_s for row in members),
        device_s=sum(row.device_s for row in members),
        environment=members[0].environment,
    )
