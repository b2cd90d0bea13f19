"""Unite the stores of one study from several machines."""

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camri.errors import InputError
from camri.study import lock
from camri.study.records import check_same
from camri.study.spec import Study
from camri.study.store import FILE_NAME, Run, open_run
from camri.study.writer import Store


@dataclass(frozen=True)
class Merged:
    """What was united: outcomes taken over, outcomes found twice and equal, and those that disagree, in words."""

    total: int
    added: int
    agreed: int
    conflicts: tuple[str, ...]


def merge(sources: Sequence[str | Path], out: str | Path) -> Merged:
    """The runs in `sources` as one in `out`, which may hold outcomes already.

    A trial that several runs did must have the same confusion counts in all; where it has not, the first is kept and
    the trial reported. An outcome that is done takes the place of a failed one. A new run is there when it is whole.
    """
    folder = Path(out)
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
        first = runs[0]
        known = [stack.enter_context(open_run(folder))] if (folder / FILE_NAME).exists() else []
        for other in [*known, *runs[1:]]:
            check_same(first.facts(), other.facts(), first.path)
            if other.columns() != first.columns():
                raise InputError(
                    f"{first.path} and {other.path} found different important classes ({_titles(first)}; "
                    f"{_titles(other)}); they cannot be united"
                )
        for one in known:
            one.close()
        stack.enter_context(lock.hold(folder))
        store = stack.enter_context(Store.open(folder, first.facts()))
        columns = [one.resolved for one in first.columns()] or None
        for run in runs:
            for spec in run.studies:
                store.add_study(Study.from_json(spec), columns)
        results = [_take(store, run) for run in runs]
        return Merged(
            total=len(store.statuses()),
            added=sum(added for added, _, _ in results),
            agreed=sum(agreed for _, agreed, _ in results),
            conflicts=tuple(line for _, _, lines in results for line in lines),
        )


def _take(store: Store, run: Run) -> tuple[int, int, list[str]]:
    have = store.statuses()
    added, agreed, conflicts = 0, 0, []
    for row in run.rows(status=None):
        mine = have.get(row.identity)
        if mine is None or (mine == "failed" and row.status == "done"):
            store.copy(row.identity, run)
            added += 1
        elif mine == row.status == "done":
            differ = [
                split
                for split in run.splits
                if not np.array_equal(store.confusion(row.identity, split), run.confusion(row.identity, split))
            ]
            agreed += not differ
            if differ:
                conflicts.append(f"{row.title} seed {row.seed}: {run.path} has other {' and '.join(differ)} counts")
    return added, agreed, conflicts


def _titles(run: Run) -> str:
    return ", ".join(column.title for column in run.columns()) or "none yet"
