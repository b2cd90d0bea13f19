"""Unite the stores of one study, or of some of its columns, from several machines."""

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from camri.errors import InputError
from camri.study import lock
from camri.study.important import name_column, place_into
from camri.study.records import Row, check_same
from camri.study.spec import Study
from camri.study.store import FILE_NAME, Run, open_run
from camri.study.wide import all_but_first
from camri.study.writer import Store


@dataclass(frozen=True)
class Merged:
    """What was united: outcomes taken over, outcomes found twice and equal, and those that disagree, in words.

    `left_out` are those without the scores of a column that they would be judged in, in words too.
    """

    total: int
    added: int
    agreed: int
    conflicts: tuple[str, ...]
    left_out: tuple[str, ...]


def merge(sources: Sequence[str | Path], out: str | Path) -> Merged:
    """The runs in `sources` as one in `out`, which may hold outcomes already.

    The united run has the columns of `out`, or else of the run that has most; the others may have some of them.

    A trial that several runs did must have the same confusion counts in all; where it has not, the first is kept and
    the trial reported. An outcome that is done takes the place of a failed one. A new run is there when it is whole.
    """
    folder = Path(out)
    places = [Path(one).resolve() for one in (*sources, out)]
    for source, place in zip(sources, places, strict=False):  # a run agrees with itself, which would look like proof
        if places.count(place) > 1:
            raise InputError(
                f"{source} is given twice; give each run once, and none that is --out: what it holds stays"
            )
    lock.refuse_other_files(folder, FILE_NAME, "run")
    if (folder / FILE_NAME).exists():
        return _unite(sources, folder)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        united = _unite(sources, part)
        with lock.hold(folder):
            if (folder / FILE_NAME).exists():
                raise InputError(f"{folder} was filled by another process meanwhile; merge once more, into it")
            os.replace(part / FILE_NAME, folder / FILE_NAME)
        return united
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unite(sources: Sequence[str | Path], folder: Path) -> Merged:
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(source)) for source in sources]
        known = [stack.enter_context(open_run(folder))] if (folder / FILE_NAME).exists() else []
        widest = (known or [max(runs, key=lambda run: len(run.columns()))])[0]
        studies = [study for run in runs for study in _placed(widest, run)]
        facts, columns = widest.facts(), [one.resolved for one in widest.columns()] or None
        for one in known:
            one.close()
        stack.enter_context(lock.hold(folder))
        store = stack.enter_context(Store.open(folder, facts))
        for study in studies:
            store.add_study(study, columns)
        results = [_take(store, run) for run in runs]
        return Merged(
            total=len(store.statuses()),
            added=sum(one.added for one in results),
            agreed=sum(one.agreed for one in results),
            conflicts=tuple(line for one in results for line in one.conflicts),
            left_out=tuple(line for one in results for line in one.left_out),
        )


def _placed(widest: Run, run: Run) -> list[Study]:
    """The run's studies over the columns of the widest; refused where it is of other data, training or columns."""
    check_same(widest.facts(), run.facts(), widest.path)
    studies = list(map(Study.from_json, run.studies))
    columns = run.columns()
    if run.asked != widest.asked:
        # By their names: two runs may have found different classes.
        named = [name_column(column.resolved, run.classes) for column in columns]
        return [place_into(widest, study.with_(important=named or study.important)) for study in studies]
    if columns != widest.columns():
        raise InputError(
            f"{widest.path} and {run.path} found different important classes ({_titles(widest)}; {_titles(run)}); they "
            "cannot be united"
        )
    return studies


@dataclass
class _Taken:
    added: int = 0
    agreed: int = 0
    conflicts: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _take(store: Store, run: Run) -> _Taken:
    have, found = store.statuses(), _Taken()
    columns = store.columns()
    judged: dict[str, set[int]] = {}
    for planned in store.plan():
        judged.setdefault(planned.key, set()).update(columns[planned.column].indices)
    for row in run.rows(status=None):
        mine = have.get(row.identity)
        if mine is None or (mine == "failed" and row.status == "done"):
            lacking = _lacking(run, row, judged.get(row.key, set()))
            if lacking:
                found.left_out.append(f"{row.title} seed {row.seed}: {run.path} kept no scores of {lacking}")
                continue
            store.copy(row.identity, run)
            found.added += 1
        elif mine == row.status == "done":
            differ = [
                split
                for split in run.splits
                if not np.array_equal(store.confusion(row.identity, split), run.confusion(row.identity, split))
            ]
            found.agreed += not differ
            if differ:
                found.conflicts.append(
                    f"{row.title} seed {row.seed}: {run.path} has other {' and '.join(differ)} counts"
                )
    return found


def _lacking(run: Run, row: Row, judged: set[int]) -> str:
    """The classes that an outcome would be judged by and of which it kept no scores."""
    classes = run.classes
    missing = {
        index
        for kept in run.important(row).values()
        if tuple(kept) != all_but_first(len(classes))
        for index in judged - set(kept)
    }
    return " and ".join(classes[index] for index in sorted(missing))


def _titles(run: Run) -> str:
    return ", ".join(column.title for column in run.columns()) or "none yet"
