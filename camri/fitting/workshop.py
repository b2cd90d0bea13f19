"""Where a fit trains: every trial goes through a study's runner into a store, with one clock and one progress."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from camri.data.parallel import num_cores
from camri.engine import Outcome, Pool, Training
from camri.errors import InputError, last_line
from camri.fitting.pace import Pace, slowness
from camri.fitting.request import Request
from camri.methods import Setting
from camri.select import Validation
from camri.study.executor import Executor, LocalExecutor
from camri.study.grid import Column, Grid, Resolved
from camri.study.heartbeat import Report
from camri.study.records import Row
from camri.study.runner import NoBaseline, run
from camri.study.spec import Study, study
from camri.study.store import FILE_NAME, open_run

Point = tuple[str, tuple[float, ...]]  # a method and a value for each of its knobs


class AllFailed(InputError):
    """No trial of something ended well."""


class Interrupted(Exception):
    """A signal came; everything that had ended is stored."""


@dataclass(frozen=True)
class Progress:
    """How far a fit is: the step it is at, trials ended and planned in all, seconds left as far as can be told.

    While data are read, `unit` is "rows" and these are counted.
    """

    step: str
    done: int
    total: int
    left_s: float | None
    accuracy: float | None = None  # mean validation accuracy of the running trials
    recall: float | None = None
    unit: str = "models"

    @property
    def part(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0


class Workshop:
    """Trains studies on the request's device, tells the progress, and measures the pace."""

    def __init__(
        self,
        request: Request,
        on_progress: Callable[[Progress], None] | None,
        is_stopping: Callable[[], bool],
        pool: Pool,
    ):
        self.request, self.on_progress, self.is_stopping, self.pool = request, on_progress, is_stopping, pool
        self.total = 0  # trials planned in all
        self.ended = 0  # trials that are stored
        self.is_cpu = request.device.type == "cpu"
        self.pace = Pace(num_cores() if self.is_cpu else 1)
        self.last_end = time.monotonic()  # of a call; what is thought until the next counts as its start

    def train(
        self,
        asked: Study,
        folder: Path,
        step: str,
        wrap: Callable[[Executor], Executor] = lambda executor: executor,
        beside: Collection[str] = (),
    ) -> None:
        """Nothing; every trial of the study is in the folder's store. Raises :class:`Interrupted` where one is not."""
        if self.is_stopping():
            raise Interrupted
        num = len(asked.trials(asked.placeholders()))
        workers = self._workers(num)
        executor = wrap(LocalExecutor(str(self.request.device), workers=workers, pool=self.pool))
        began, began_core_s = time.monotonic(), time.process_time()
        pool_s, pool_core_s = self.pool.wall_s, self.pool.core_s
        took: list[float] = []

        def count(outcome: Outcome) -> None:
            self.ended += 1
            took.append(outcome.device_s)
            self.pace.recent.append(outcome.device_s)

        def tell(report: Report) -> None:
            self.tell(step, report)

        # A failed trial stays failed: the same command must come to the same end.
        try:
            result = run(
                asked, folder, executor, data=self.request.data, listeners=[count], on_report=tell, beside=beside
            )
        except NoBaseline as end:
            raise all_failed("cross-entropy", end.reason, self.request.out) from end
        ended = time.monotonic()
        if took:
            width = 1 if workers == 1 or len(took) == 1 else self.pace.parallel
            self.pace.hear(took, width, ended - self.last_end)
            if self.is_cpu and width == 1:
                self.pace.slowness = slowness(ended - began, time.process_time() - began_core_s)
            elif self.is_cpu:
                self.pace.slowness = slowness(self.pool.wall_s - pool_s, self.pool.core_s - pool_core_s)
        self.last_end = ended
        if not result.finished:
            raise Interrupted
        self.tell(step)

    def tell(self, step: str, report: Report | None = None) -> None:
        """Nothing; the listener hears where the fit stands."""
        if self.on_progress is None:
            return
        left = max(self.total - self.ended, 0)
        left_s = self.pace.takes_s(left) if self.pace.trial_s is not None else None
        if left_s is None and report is not None and report.trial_s < float("inf"):
            left_s = left * report.trial_s  # of all trials of the fit, not of this step's alone
        recall, accuracy = (None, None) if report is None else (report.recall, report.accuracy)
        self.on_progress(Progress(step, self.ended, max(self.total, self.ended), left_s, accuracy, recall))

    def _workers(self, num_trials: int) -> int | None:
        # Processes stay for the calls to come, so all trials that are left may pay for their start.
        return 1 if self.pace.width(max(num_trials, self.total - self.ended)) == 1 else None


class Bench:
    """The store of one training: settings × seeds go in, validation scores come out. Test scores are not read here."""

    def __init__(
        self,
        workshop: Workshop,
        name: str,
        training: Training,
        folder: Path,
        important: Column,
        has_baseline: bool = True,
    ):
        self.workshop, self.name, self.training, self.folder = workshop, name, training, folder
        self.important, self.has_baseline = important, has_baseline

    def asked(self, points: Sequence[Point], seeds: Sequence[int]) -> Study:
        """The study of these points with these seeds, and of cross-entropy unless another bench has it."""
        by_method: dict[str, list[tuple[float, ...]]] = {"ce": [()]} if self.has_baseline else {}
        for method, values in points:
            by_method.setdefault(method, []).append(values)
        inputs = self.workshop.request.inputs
        return study(
            f"fit.{self.name}",
            self.workshop.request.source,
            [self.important],
            [Grid.at(method, [values]) for method, values in by_method.items()],
            seeds=list(seeds),
            training=self.training,
            data_options=self.workshop.request.data_options,
            val_fraction=inputs.val_fraction,
            test_fraction=inputs.test_fraction,
        )

    def train(self, points: Sequence[Point], seeds: Sequence[int], step: str) -> None:
        self.workshop.train(self.asked(points, seeds), self.folder, step)

    def column(self) -> Resolved:
        """Indices and strengths of the important classes, as the store has them."""
        with open_run(self.folder) as stored:
            (found,) = stored.columns()
        return found.resolved

    def rows(self, setting: Setting, status: str | None = "done") -> list[Row]:
        with open_run(self.folder) as stored:
            return stored.rows(key=setting.key, status=status)

    def validation(self, setting: Setting, important: Sequence[int]) -> Validation:
        """The setting's validation scores by seed, of those that ended well."""
        with open_run(self.folder) as stored:
            scores = {row.seed: stored.scores(row, "val", important) for row in stored.rows(key=setting.key)}
        return Validation(setting.key, scores)


def setting_of(point: Point, column: Resolved) -> Setting:
    """The setting of a point for the important classes.

    >>> print(setting_of(("wce", (5.0,)), ((3, 1.0), (4, 0.5))))
    wce w=5,3
    """
    method, values = point
    grid = Grid.at(method, [[values]])
    return grid.setting(next(grid.tried()), column)


def count_trials(folders: Sequence[Path]) -> int:
    """Trials that are stored in these runs, failed ones too."""
    num = 0
    for folder in folders:
        if (folder / FILE_NAME).exists():
            with open_run(folder) as stored:
                num += len(stored.statuses())
    return num


def refuse_failures(rows: Sequence[Row], what: str, out: Path) -> None:
    """Refuse to go on where every trial failed, with what the first one said at last."""
    if rows and all(row.status != "done" for row in rows):
        raise all_failed(what, last_line(rows[0].error), out)


def all_failed(what: str, reason: str, out: Path) -> "AllFailed":
    """The error of a fit that cannot go on; failed trials stay failed in its folder, so that it ends as it ended."""
    return AllFailed(
        f"every trial of {what} failed; the first: {reason}; mend that, and fit into another folder (--out): {out} "
        "keeps its failed trials"
    )
