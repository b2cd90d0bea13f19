"""How a run stands: counts, time left, and the best setting of each method so far."""

from dataclasses import dataclass
from pathlib import Path

from camri.engine.spec import Training, identity
from camri.select import Rule, Validation
from camri.study import heartbeat, lock
from camri.study.heartbeat import Report
from camri.study.spec import Study
from camri.study.store import ColumnFacts, Row, Run, open_run


@dataclass(frozen=True)
class Best:
    """A method's best setting in a column: recall at no less than cross-entropy's accuracy, after its best shift.

    `setting` is None where the method reaches that accuracy with no setting.
    """

    column: str
    method: str
    setting: str | None
    seeds: int
    recall: float
    accuracy: float


@dataclass(frozen=True)
class Status:
    """A run at one moment. `pid` is the process that runs it; `split` the one `best` is read off."""

    names: tuple[str, ...]
    total: int
    done: int
    failed: int
    pending: int
    retried: int
    pid: int | None
    report: Report | None
    left_s: float | None  # None: nothing has ended that it could be estimated from
    errors: tuple[str, ...]
    columns: tuple[str, ...]
    split: str
    best: tuple[Best, ...]


def status(folder: str | Path, with_best: bool = True) -> Status:
    """How the run in the folder stands; it may be under way."""
    with open_run(folder) as run:
        rows = run.rows(status=None)
        planned = planned_identities(run)
        states = {row.identity: row.status for row in rows if row.identity in planned}
        done, failed = list(states.values()).count("done"), list(states.values()).count("failed")
        pid = lock.holder(Path(folder))
        report = heartbeat.read(Path(folder)) if pid is not None else None
        ended = [row.device_s for row in rows if row.status == "done"]
        pending = len(planned) - done - failed
        estimate = pending * sum(ended) / len(ended) if ended else None
        split = "val" if "val" in run.splits else "test"
        return Status(
            names=tuple(spec["name"] for spec in run.studies),
            total=len(planned),
            done=done,
            failed=failed,
            pending=pending,
            retried=sum(row.attempts > 1 for row in rows),
            pid=pid,
            report=report,
            left_s=report.left_s if report is not None else estimate,
            errors=tuple(f"{row.title} seed {row.seed}: {row.error}" for row in rows if row.status == "failed"),
            columns=tuple(column.title for column in run.columns()),
            split=split,
            best=tuple(best_so_far(run, split)) if with_best else (),
        )


def planned_identities(run: Run) -> set[str]:
    """The identities of all trials that the run's studies plan; made-up ones for classes that are not yet found."""
    columns = [tuple(zip(one.indices, one.strengths, strict=True)) for one in run.columns()]
    training = Training.from_json(run.training)
    studies = [Study.from_json(spec) for spec in run.studies]
    return {
        identity(trial, training, run.fingerprint)
        for study in studies
        for trial in study.trials(columns or study.placeholders())
    }


def best_so_far(run: Run, split: str = "val") -> list[Best]:
    """The best setting of each method in each column; nothing before a cross-entropy trial has ended."""
    rows: dict[str, list[Row]] = {}
    for row in run.rows():
        rows.setdefault(row.key, []).append(row)
    found: list[Best] = []
    for column in run.columns():
        plan = [one for one in run.plan(column.number) if one.key in rows]
        baseline = next((one.key for one in plan if one.method == "ce"), None)
        if baseline is None:
            continue
        floor = Rule().floor(_validation(run, rows[baseline], split, column))
        tuned: dict[str, tuple[float, float] | None] = {}
        best: dict[str, Best] = {}
        for one in plan:
            if one.key not in tuned:
                shift = Rule().tune(_validation(run, rows[one.key], split, column), floor)
                tuned[one.key] = None if shift is None else (shift.value, shift.accuracy)
            reached = tuned[one.key]
            entry = Best(column.title, one.method, None, 0, float("nan"), float("nan"))
            if reached is not None:
                entry = Best(column.title, one.method, one.title, len(rows[one.key]), *reached)
            current = best.setdefault(one.method, entry)
            if reached is not None and not reached[0] <= current.recall:
                best[one.method] = entry
        found += best.values()
    return found


def _validation(run: Run, rows: list[Row], split: str, column: ColumnFacts) -> Validation:
    return Validation(rows[0].key, {row.seed: run.scores(row, split, column.indices) for row in rows})
