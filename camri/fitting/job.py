"""The whole fit: trainings, search, finals, hand-over, each resumed from what its folder holds."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from camri.data import DataSet
from camri.engine import Pool, Training
from camri.engine.training import stop_on_signals
from camri.fitting import outputs
from camri.fitting.budget import (
    FEW_FINAL_SEEDS,
    LEAST_FINAL_SEEDS,
    MOST_FINAL_SEEDS,
    SEARCH_END,
    TRAINING_SHARE,
    Budget,
    Race,
    fit_epochs,
    plan_finals,
    plan_trials,
)
from camri.fitting.request import BEFORE, JOURNAL_FILE, TRAININGS, Important, Journal, Request, check_rows, make_request
from camri.fitting.result import MODEL, PAGE, Fitted
from camri.fitting.search import CE, Search
from camri.fitting.trainer import (
    AllFailed,
    Interrupted,
    Point,
    Progress,
    Trainer,
    TrainingRun,
    choose_training,
    controls_of,
    count_trials,
    refuse_failures,
    setting_of,
    trainings_for,
)
from camri.study import run_folder
from camri.study.important import name_column
from camri.study.spec import Resolved
from camri.study.store import STORE_FILE, open_run

BESIDE = (JOURNAL_FILE, TRAININGS, MODEL, PAGE, outputs.WEIGHTS)  # what the finals' folder may hold
SEEDS_APART = 1000  # between the seeds of two fits; those of the finals begin in the middle


class Unfinished(Exception):
    """A fit was stopped before there was a model to hand over; the same command resumes."""


class Stages:
    """The stages of a fit on its folder. The journal holds what each has decided."""

    def __init__(self, request: Request, journal: Journal, trainer: Trainer):
        self.request, self.journal, self.trainer, self.budget = request, journal, trainer, trainer.budget
        self.trainings = trainings_for(request.data, request.plain)
        self.before = request.out / BEFORE
        base = request.seed * SEEDS_APART
        self.search_seeds = range(base, base + SEEDS_APART // 2)
        self.final_seeds = range(base + SEEDS_APART // 2, base + SEEDS_APART)

    def stores(self) -> list[Path]:
        """The runs of the fit that exist."""
        folders = [self.request.out, self.before, *(self.request.out / TRAININGS / name for name in self.trainings)]
        return [folder for folder in folders if (folder / STORE_FILE).exists()]

    def note(self, **decided: Any) -> None:
        """Write decisions to disk, with the time spent so far."""
        if not self.journal.get("finished"):
            if self.budget.is_timed:
                decided["trial_s"] = self.budget.trial_s
            self.journal.set(**decided, spent_s=round(self.budget.passed_s(), 3))

    def run(self) -> Fitted:
        """Run the stages that are left."""
        if self.journal.get("training") is None:
            self._choose_training()
        if self.journal.get("finalists") is None:
            self._search()
        if self.journal.get("final_seeds") is None:
            self._plan_finals()
        self._finals()
        return self.hand_over(is_finished=True)

    # Stage 1: trainings, compared by cross-entropy's validation accuracy.

    def _choose_training(self) -> None:
        journal = self.journal
        if journal.get("trainings") is None:
            plan = plan_trials(self.budget.trials_left(), len(self.trainings))
            names = list(self.trainings)[: plan.num_trainings]
            self.note(trainings=names, training_seeds=plan.training_seeds, planned_final_seeds=plan.final_seeds)
        names, seeds = journal.get("trainings"), self.search_seeds[: journal.get("training_seeds")]
        self.trainer.begin("trainings", len(names) * len(seeds), first=0)
        until_s = self.budget.end_s(TRAINING_SHARE)
        baselines, rows = {}, []
        for name in names:
            run = self._run_of(name)
            if name != "plain" and not (run.folder / STORE_FILE).exists() and not self.budget.fits(len(seeds), until_s):
                self.note(trainings=names[: names.index(name)])
                break
            try:
                run.train([], seeds, until_s, least=1)
            except AllFailed:  # only if the worst class is still to be found; with a named one scores are missing
                if name == "plain":
                    raise
                continue
            rows += run.rows(CE)
            baselines[name] = run.validation(CE, [index for index, _ in run.column()]).of(seeds)
        refuse_failures(rows, "cross-entropy", self.request.out)
        refuse_failures(self._run_of("plain").rows(CE), "plain cross-entropy", self.request.out)
        chosen = choose_training(baselines)
        column = self._run_of(chosen).column()
        check_rows(self.request.data, [index for index, _ in column])
        self.note(training=chosen, important=[list(pair) for pair in column])

    def _run_of(self, name: str) -> TrainingRun:
        folder = self.request.out / TRAININGS / name
        return TrainingRun(self.trainer, name, self.trainings[name], folder, self.request.important)

    @property
    def training(self) -> Training:
        return self.trainings[self.journal.get("training")]

    @property
    def column(self) -> Resolved:
        return tuple((index, strength) for index, strength in self.journal.get("important"))

    # Stage 2: candidates under the chosen training, raced on validation data with the trainings' seeds and more.

    def _search(self) -> None:
        journal = self.journal
        if journal.get("race") is None:
            race = plan_trials(self.budget.trials_left(), training_seeds=journal.get("training_seeds")).race
            self.note(race=[race.num_candidates, race.num_finalists], num_before_race=self.budget.num_ended)
        race = Race(*journal.get("race"))
        num_trials = race.num_trials(journal.get("training_seeds"))
        self.trainer.begin("candidates", num_trials, first=journal.get("num_before_race"))
        finalists, num_tried = Search(
            self._run_of(journal.get("training")),
            self.column,
            race,
            self.search_seeds,
            self.request.rule,
            self.request.seed,
            self.budget,
            self.budget.end_s(SEARCH_END),
        ).finalists()
        self.note(finalists=finalists, num_settings=num_tried)

    # Stage 3: finalists, controls and cross-entropy with seeds that nothing was chosen by.

    @property
    def finalists(self) -> list[Point]:
        return [(method, tuple(values)) for method, values in self.journal.get("finalists")]

    def points(self) -> list[Point]:
        """The finalists and their controls."""
        return [*self.finalists, *controls_of(self.finalists)]

    def _num_arms(self, finalists: Sequence[Point]) -> int:
        is_plain = self.journal.get("training") == "plain"
        return 1 + len(finalists) + len(controls_of(finalists)) + (not is_plain)

    def _plan_finals(self) -> None:
        finalists, left = self.finalists, self.budget.trials_left()
        least = FEW_FINAL_SEEDS if self.budget.is_timed else LEAST_FINAL_SEEDS
        while len(finalists) > 1 and left < least * self._num_arms(finalists):
            finalists.pop()
        num_seeds = plan_finals(left, self._num_arms(finalists))
        self.note(finalists=finalists, final_seeds=num_seeds)

    def _finals_in(self, training: Training, folder: Path) -> TrainingRun:
        """A run of the finals, whose important classes are known by name: it need not find the worst one."""
        return TrainingRun(
            self.trainer, "finals", training, folder, name_column(self.column, self.request.data.classes)
        )

    def _finals(self) -> None:
        num_planned = self.journal.get("final_seeds")
        if not self.budget.is_timed or self.journal.get("finished"):
            self._train_finals(num_planned, num_planned)
            return
        # The first seeds show how many more the time allows.
        num_seeds = min(num_planned, max(FEW_FINAL_SEEDS, self._num_complete()))
        while self._train_finals(num_seeds, max(num_seeds, num_planned)):
            num_more = self.budget.trials_left() // self._num_arms(self.finalists)
            if not num_more or num_seeds == MOST_FINAL_SEEDS:
                break
            num_seeds = num_planned = min(MOST_FINAL_SEEDS, num_seeds + num_more)
            self.note(final_seeds=num_seeds)
        self.note(final_seeds=self._num_complete())

    def _train_finals(self, num_seeds: int, num_planned: int) -> bool:
        """Train every arm with these seeds. Returns False if the time was up and enough seeds were complete."""
        seeds = self.final_seeds[:num_seeds]
        stored = count_trials([folder for folder in self.stores() if folder in (self.request.out, self.before)])
        self.trainer.begin("finals", num_planned * self._num_arms(self.finalists), self.budget.num_ended - stored)
        limits: dict[str, Any] = {
            "until_s": self.budget.end_s(),
            "is_enough": lambda: self._num_complete() >= LEAST_FINAL_SEEDS,
        }
        if self.journal.get("training") != "plain":
            before = self._finals_in(self.trainings["plain"], self.before)
            is_complete = self.trainer.train(before.study([], seeds), self.before, **limits)
            refuse_failures(before.rows(CE), "plain cross-entropy in the finals", self.request.out)
            if not is_complete:
                return False
        run = self._finals_in(self.training, self.request.out)
        weights = self.request.out / outputs.WEIGHTS
        is_complete = self.trainer.train(
            run.study(self.points(), seeds), run.folder, weights=weights, beside=BESIDE, **limits
        )
        refuse_failures(run.rows(CE), "cross-entropy in the finals", self.request.out)
        return is_complete

    def _complete_seeds(self) -> set[int]:
        """Seeds with which every arm of the finals has ended, well or not."""
        if self.journal.get("final_seeds") is None or not (self.request.out / STORE_FILE).exists():
            return set()
        by_key: dict[str, set[int]] = {setting_of(point, self.column).key: set() for point in self.points()}
        by_key[CE.key] = set()
        with open_run(self.request.out) as run:
            for row in run.rows(status=None):
                by_key[row.key].add(row.seed)
        return set.intersection(*by_key.values())

    def _num_complete(self) -> int:
        """Seeds that are complete, up to the first that is not."""
        complete = self._complete_seeds()
        return next(num for num, seed in enumerate(self.final_seeds) if seed not in complete)

    def hand_over(self, is_finished: bool) -> Fitted:
        """Write the model, its card and the page; raise :class:`Interrupted` if too few seeds are complete."""
        if not is_finished and len(self._complete_seeds()) < LEAST_FINAL_SEEDS:
            raise Interrupted
        self.trainer.begin("writing the model and the page")
        seeds = self.final_seeds[: self.journal.get("final_seeds")]
        finals = self._finals_in(self.training, self.request.out).study(self.points(), seeds)
        # A finished fit says the same when it is asked again.
        wall_s = self.journal.get("wall_s") if self.journal.get("finished") else round(self.budget.passed_s(), 3)
        fitted = outputs.hand_over(self.request, self.journal, finals, self.stores(), wall_s, is_finished=is_finished)
        if is_finished:
            self.note(finished=True, wall_s=wall_s)
        return fitted

    def missing(self) -> str:
        """How far a stopped fit had come, and how to resume it."""
        journal = self.journal
        if journal.get("training") is None:
            where = "while comparing trainings"
        elif journal.get("final_seeds") is None:
            where = "while trying candidates"
        else:
            where = f"in the finals, with {len(self._complete_seeds())} of {journal.get('final_seeds')} seeds complete"
        return (
            f"stopped {where}: no model yet (the finals need {LEAST_FINAL_SEEDS} seeds of every arm). "
            f"{self.budget.num_ended:,} trials are stored in {self.request.out}; the same command resumes"
        )


def fit(
    data: str | PathLike[str] | DataSet = "digits",
    important: Important = None,
    out: str | PathLike[str] | None = None,
    *,
    budget: str | float | None = None,
    num_trials: int | None = None,
    max_accuracy_drop: float = 0.0,
    strengths: Mapping[str, float] | None = None,
    model: str | None = None,
    weights: str | PathLike[str] | None = None,
    from_scratch: bool = False,
    device: str = "auto",
    seed: int = 0,
    epochs: int | None = None,
    data_options: Mapping[str, Any] = MappingProxyType({}),
    on_progress: Callable[[Progress], None] | None = None,
) -> Fitted:
    """Find the best model for the important classes at no less than cross-entropy's accuracy, with the evidence.

    data: anything `camri.data.load` reads, or a DataSet; missing splits are made. important: class names that are
    important jointly; by default the class with the lowest validation recall. out: a new folder, or that of this same
    fit, which then resumes; runs/DATA-CLASS by default. budget: "10m", or seconds; 10 minutes by default. num_trials:
    a number of models instead. max_accuracy_drop: accuracy that may be lost, 0.01 for one percentage point.
    strengths: {class: strength} of important classes that count less or more than 1. model: small, paper,
    resnet18, features, timm:NAME or hf:NAME, pretrained by default. weights: a safetensors file with the trunk's
    initial weights. from_scratch: random weights. data_options: options of `camri.data.load`.

    Everything is chosen on validation data; test images are used once, at the end. With `num_trials` the same call
    gives the same result. SIGINT returns the best model so far, or raises :class:`Unfinished`.
    """
    began = time.monotonic()
    request = make_request(
        data,
        important,
        out,
        budget=budget,
        num_trials=num_trials,
        max_accuracy_drop=max_accuracy_drop,
        strengths=strengths,
        model=model,
        weights=weights,
        from_scratch=from_scratch,
        device=device,
        seed=seed,
        epochs=epochs,
        data_options=data_options,
        on_read=None if on_progress is None else lambda done, num: on_progress(Progress("reading data", done, num)),
    )
    return run_fit(request, began, on_progress)


def run_fit(request: Request, began: float, on_progress: Callable[[Progress], None] | None = None) -> Fitted:
    """Run a checked request; its budget counts from `began`, a `time.monotonic()`."""
    journal = Journal.open(request.out, request.to_json())
    if journal.get("epochs") is None:
        epochs, trial_s = fit_epochs(request)
        journal.values.update(epochs=epochs, trial_s=trial_s)
    request = replace(request, plain=request.plain.with_(epochs=journal.get("epochs")))
    with run_folder.hold(request.out / TRAININGS), stop_on_signals() as stopping, Pool() as pool:
        budget = Budget(
            request.budget_s,
            request.num_trials,
            began=began,
            spent_s=float(journal.get("spent_s")),
            expected_s=journal.get("trial_s"),
        )
        stages = Stages(request, journal, Trainer(request, budget, on_progress, stopping.is_set, pool))
        budget.num_ended = count_trials(stages.stores())
        try:
            return stages.run()
        except Interrupted:
            stopping.set()
            try:
                return stages.hand_over(is_finished=False)
            except Interrupted:
                raise Unfinished(stages.missing()) from None
        finally:
            stages.note()
