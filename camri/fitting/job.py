"""The whole job: data in, chosen model and report out."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from camri.data import DataSet
from camri.engine import Training
from camri.engine.packs import PACK_SIZE
from camri.engine.training import stop_on_signals
from camri.errors import InputError
from camri.fitting import finals, handover, plan
from camri.fitting.budget import Budget, fit_epochs
from camri.fitting.journal import FILE_NAME as JOURNAL
from camri.fitting.journal import TRAININGS, Journal
from camri.fitting.request import Important, Request, check_rows, make_request
from camri.fitting.result import Fitted
from camri.fitting.search import CE, search
from camri.fitting.trainings import choose_training, trainings_for
from camri.fitting.workshop import (
    Bench,
    Interrupted,
    Point,
    Progress,
    Workshop,
    count_trials,
    refuse_failures,
    setting_of,
)
from camri.select import Rule
from camri.study import lock
from camri.study.grid import SYMBOLS, Column, Resolved
from camri.study.store import FILE_NAME as STORE
from camri.study.store import open_run

BESIDE = (JOURNAL, f"{JOURNAL}.part", TRAININGS, handover.MODEL, handover.PAGE, finals.FOLDER)
SEEDS_APART = 1000  # between the seeds of two fits; the finals' begin in the middle


class Unfinished(Exception):
    """A fit was stopped before there was anything to hand back; the same command goes on."""


def fit(
    data: str | PathLike[str] | DataSet = "digits",
    important: Important = None,
    out: str | PathLike[str] | None = None,
    *,
    budget_s: float | None = None,
    num_trials: int | None = None,
    keep_accuracy: float = 0.0,
    model: str | None = None,
    weights: str | PathLike[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    epochs: int | None = None,
    data_options: Mapping[str, Any] = MappingProxyType({}),
    on_start: Callable[[Request], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Fitted:
    """The best model found for the important classes, at no less than cross-entropy's accuracy, with its proof.

    data: whatever `camri.data.load` knows, or a DataSet; splits that it lacks are made. important: names, {name:
    strength}, or None for the class that cross-entropy recognises worst on validation data. out: a folder, new or of
    this same fit, which then goes on; runs/… unless told. Give `budget_s` or `num_trials` (ten minutes unless told).
    keep_accuracy: how much accuracy may be given up, 0.01 for a point. weights: a safetensors file with the trunk's
    first values. data_options: those of `camri.data.load` (size, label_column, …). `on_start` hears what was
    understood before anything is trained.

    Everything is chosen on validation data; test images are looked at once, at the end. With `num_trials` the same
    call gives the same result. SIGINT hands back what there is, or raises :class:`Unfinished`.
    """
    if importlib.util.find_spec("optuna") is None:
        raise InputError("camri fit needs optuna, which is not installed: pip install 'camri[fit]'")
    request = make_request(
        data,
        important,
        out,
        budget_s=budget_s,
        num_trials=num_trials,
        keep_accuracy=keep_accuracy,
        model=model,
        weights=weights,
        device=device,
        seed=seed,
        epochs=epochs,
        data_options=data_options,
    )
    journal = Journal.open(request.out, request.to_json())
    if on_start is not None:
        on_start(request)
    if journal.get("epochs") is None:
        found, trial_s = fit_epochs(request)
        journal.values.update(epochs=found, trial_s=trial_s)
    request = replace(request, plain=request.plain.with_(epochs=journal.get("epochs")))
    with lock.hold(request.out / TRAININGS), stop_on_signals() as told:
        workshop = Workshop(request, on_progress, told.is_set)
        job = _Job(request, journal, workshop)
        try:
            return job.run()
        except Interrupted:
            told.set()
            try:
                return job.hand_over(is_finished=False)
            except Interrupted:
                raise Unfinished(job.missing()) from None
        finally:
            job.note()


class _Job:
    """One call of :func:`fit` on its folder."""

    def __init__(self, request: Request, journal: Journal, workshop: Workshop):
        self.request, self.journal, self.workshop = request, journal, workshop
        self.rule = Rule(tolerance=request.tolerance)
        self.budget = Budget(request, float(journal.get("spent_s")), lambda: count_trials(self.stores()))
        self.trainings = trainings_for(request.data, request.plain)
        workshop.ended, workshop.expected_s = count_trials(self.stores()), journal.get("trial_s")
        base = request.seed * SEEDS_APART
        self.search_seeds = range(base, base + SEEDS_APART // 2)
        self.final_seeds = range(base + SEEDS_APART // 2, base + SEEDS_APART)

    def stores(self) -> list[Path]:
        out = self.request.out
        return [out, self.before, *(out / TRAININGS / name for name in self.trainings)]

    @property
    def before(self) -> Path:
        """The run with plain cross-entropy's trials of the finals' seeds, where another training was chosen.

        It is not that of the plain training: the class that is worst there may be another one.
        """
        return self.request.out / TRAININGS / "before"

    def bench(self, name: str) -> Bench:
        folder = self.request.out / TRAININGS / name
        return Bench(self.workshop, name, self.trainings[name], folder, self.request.important)

    def note(self, **decided: Any) -> None:
        """Nothing; what was decided is on the disk, with the time that was spent until now."""
        if not self.journal.get("finished"):
            self.journal.set(**decided, spent_s=round(self.budget.passed_s(), 3))

    def run(self) -> Fitted:
        if self.journal.get("training") is None:
            self._choose_training()
        if self.journal.get("finalists") is None:
            self._search()
        self._finals()
        return self.hand_over(is_finished=True)

    # Step 1: trainings, compared by cross-entropy's validation accuracy.

    def _choose_training(self) -> None:
        journal = self.journal
        if journal.get("trainings") is None:
            planned = plan.plan_trainings(self._left(), len(self.trainings))
            names = list(self.trainings)[: planned.num]
            self.note(trainings=names, training_seeds=planned.num_seeds)
        names, seeds = journal.get("trainings"), self.search_seeds[: journal.get("training_seeds")]
        self._expect(len(names) * len(seeds))
        baselines = {}
        rows = []
        for name in names:
            bench = self.bench(name)
            bench.train([], seeds, f"trainings: {name}")
            rows += bench.rows(CE, status=None)
            baselines[name] = bench.validation(CE, [index for index, _ in bench.column()]).of(seeds)
        refuse_failures(rows, "cross-entropy")
        if not baselines["plain"].scores:
            raise InputError(f"every trial of plain cross-entropy failed; the first: {rows[0].error}")
        chosen = choose_training(baselines)
        column = self.bench(chosen).column()
        check_rows(self.request.data, [index for index, _ in column])
        self.note(training=chosen, important=[list(pair) for pair in column])

    @property
    def training(self) -> Training:
        return self.trainings[self.journal.get("training")]

    @property
    def column(self) -> Resolved:
        return tuple((index, strength) for index, strength in self.journal.get("important"))

    # Step 2: candidates under the chosen training, raced on validation data with the seeds of the trainings and more.

    def _search(self) -> None:
        journal = self.journal
        if journal.get("race") is None:
            race = plan.plan_race(self._left(), journal.get("training_seeds"))
            self.note(race=[race.num_candidates, race.num_finalists], pack=PACK_SIZE)
        race = plan.Race(*journal.get("race"))
        self._expect(sum(race.rounds()))
        found = search(
            self.bench(journal.get("training")),
            self.column,
            race,
            self.search_seeds,
            self.rule,
            self.request.seed,
            journal.get("pack"),
        )
        finalists = list(found.finalists)
        left = self._left()
        while len(finalists) > 1 and plan.plan_finals(left, self._num_arms(finalists)) < plan.LEAST_FINAL_SEEDS:
            finalists.pop()
        num_seeds = max(plan.LEAST_FINAL_SEEDS, plan.plan_finals(left, self._num_arms(finalists)))
        self.note(finalists=finalists, num_settings=found.num_tried, final_seeds=num_seeds)

    def _num_arms(self, finalists: Sequence[Point]) -> int:
        is_plain = self.journal.get("training") == "plain"
        return 1 + len(finalists) + len(finals.controls_of(finalists)) + (not is_plain)

    # Step 3: finalists, controls and cross-entropy with seeds that nothing was chosen by.

    def points(self) -> list[Point]:
        """The finalists and their controls."""
        finalists = [(method, tuple(values)) for method, values in self.journal.get("finalists")]
        return [*finalists, *finals.controls_of(finalists)]

    def finals_bench(self, training: Training, folder: Path) -> Bench:
        classes = self.request.data.classes
        names = tuple(i if classes[i] in SYMBOLS else classes[i] for i, _ in self.column)
        column = Column(names, tuple(strength for _, strength in self.column))
        return Bench(self.workshop, "finals", training, folder, column)

    def _finals(self) -> None:
        journal, seeds = self.journal, self.final_seeds[: self.journal.get("final_seeds")]
        arms = self._num_arms([(method, tuple(values)) for method, values in journal.get("finalists")])
        stored = count_trials([self.request.out, self.before])
        self.workshop.total = self.workshop.ended - stored + len(seeds) * arms
        if journal.get("training") != "plain":
            self.finals_bench(self.trainings["plain"], self.before).train([], seeds, "finals: plain cross-entropy")
        weights = self.request.out / finals.FOLDER
        self.workshop.train(
            self.finals_bench(self.training, self.request.out).asked(self.points(), seeds),
            self.request.out,
            "finals",
            lambda executor: finals.Keeping(executor, weights),
            BESIDE,
        )

    def hand_over(self, is_finished: bool) -> Fitted:
        """What is chosen of the finals, in files; raises :class:`Interrupted` where they are not far enough."""
        if not is_finished and len(self._complete_seeds()) < plan.LEAST_FINAL_SEEDS:
            raise Interrupted
        name, out = self.journal.get("training"), self.request.out
        seeds = self.final_seeds[: self.journal.get("final_seeds")]
        ended = handover.Finals(
            study=self.finals_bench(self.training, out).asked(self.points(), seeds),
            training_name=name,
            training=self.training,
            plain=None if name == "plain" else self.before,
            important=tuple(sorted(index for index, _ in self.column)),
            stores=tuple(folder for folder in self.stores() if (folder / STORE).exists()),
        )
        self.workshop.tell("writing model and page")
        wall_s = self.journal.get("told_s") if self.journal.get("finished") else round(self.budget.passed_s(), 3)
        fitted = handover.hand_over(self.request, self.journal, ended, self.rule, wall_s, is_finished=is_finished)
        if is_finished:
            self.note(finished=True, told_s=wall_s)  # asked again, it tells the same
        return fitted

    def _complete_seeds(self) -> set[int]:
        """Seeds with which every arm of the finals has ended, well or not."""
        if self.journal.get("finalists") is None or not (self.request.out / STORE).exists():
            return set()
        by_key: dict[str, set[int]] = {setting_of(point, self.column).key: set() for point in self.points()}
        by_key[CE.key] = set()
        with open_run(self.request.out) as run:
            for row in run.rows(status=None):
                by_key[row.key].add(row.seed)
        return set.intersection(*by_key.values())

    def missing(self) -> str:
        """What there is not yet, for who stopped a fit."""
        journal = self.journal
        if journal.get("training") is None:
            where = "while trainings were compared"
        elif journal.get("finalists") is None:
            where = "while candidates were tried"
        else:
            done = len(self._complete_seeds())
            where = f"in the finals, with {done} of {journal.get('final_seeds')} seeds complete"
        return (
            f"stopped {where}: too early to hand a model back (the finals need {plan.LEAST_FINAL_SEEDS} seeds of every "
            f"arm); {self.workshop.ended:,} trials are stored in {self.request.out}, and the same command goes on"
        )

    def _expect(self, num_more: int) -> None:
        """Nothing; the workshop knows how many trials there will be, for the time left."""
        self.workshop.total = self.workshop.ended + max(num_more, self._left())

    def _left(self) -> int:
        """Trials that the budget still allows."""
        return self.budget.left(self.workshop.trial_s, self.workshop.start_s)
