"""The whole fit: plan, baseline, rivals, finals, hand-over. Each stage resumes from what its folder holds."""

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

from camri.decision.answer import ANSWER_FILE, EXAMPLES_FILE
from camri.decision.verdict import SEEDS_FOR_PRAISE
from camri.engine import Outcome, Pool, Training
from camri.engine.training import stop_on_signals
from camri.fitting import handover
from camri.fitting.baseline import Baseline, TooSlow
from camri.fitting.budget import SPARE, Budget, Plan, apply_plan, make_plan, measure_slowness, smaller
from camri.fitting.finals import Finals
from camri.fitting.handover import PAGE, Fitted
from camri.fitting.request import (
    FEATURES_SHARE,
    JOURNAL_FILE,
    TRAININGS,
    Journal,
    Progress,
    Request,
    check_rows,
    make_request,
    on_features,
)
from camri.fitting.rivals import FEW_RIVALS, RACE_SHARE, Race, can_grow, grow, list_rivals, num_rivals, trees_of
from camri.fitting.saved import MODEL, WEIGHTS
from camri.fitting.trainer import (
    CE,
    Interrupted,
    Point,
    Trainer,
    TrainingRun,
    change,
    control_point,
    read_weights,
    refuse_failures,
    setting_of,
    statuses_of,
    write_weights,
)
from camri.study import run_folder
from camri.study.spec import Resolved, name_column
from camri.study.store import STORE_FILE, open_run, remove
from camri.text import percent, round_up

# What the finals' folder may hold.
BESIDE = (JOURNAL_FILE, TRAININGS, MODEL, PAGE, WEIGHTS, ANSWER_FILE, EXAMPLES_FILE)
SEEDS_APART = 1000  # between the seeds of two fits; those of the finals begin in the middle
MOST_SEEDS = 20  # of the finals; half as many if there is no rival
TREES_BEFORE = 0.3  # of the time: later there is none for them
FEATURE_RIVALS = 16  # where a network is fine-tuned: heads on its features train in seconds


class Unfinished(Exception):
    """A fit was stopped before there was a model to hand over; the same command resumes."""


class Stages:
    """The stages of a fit on its folder. The journal holds what each has decided."""

    def __init__(self, request: Request, journal: Journal, trainer: Trainer):
        self.asked = self.request = request
        self.journal, self.trainer, self.budget = journal, trainer, trainer.budget
        base = request.seed * SEEDS_APART
        self.search_seeds = range(base, base + SEEDS_APART // 2)
        self.final_seeds = range(base + SEEDS_APART // 2, base + SEEDS_APART)
        self.weights = request.out / WEIGHTS

    def run(self) -> Fitted:
        """Run the stages that are left."""
        if (share := self.request.inputs.share) < 1 and self.journal.get("share") is None:
            self.note(share=share)
            self.give_up(f"{percent(1 - share, 0)} of the images: there was no time for their features")
        if self.journal.get("trees") is None and can_grow(self.request.data):
            self.trees()
        if self.journal.get("plan") is None:
            self._measure()
        self._apply(Plan(**self.journal.get("plan")))
        if self.journal.get("epochs") is None:
            try:
                self._train_out()
            except TooSlow as slow:
                left_s = max(0.0, SPARE * (self.budget.end_s() - self.budget.passed_s()))
                plan = Plan(**self.journal.get("plan"))
                self._apply(smaller(plan, self.request.data.noun, slow.part, left_s / slow.spent_s))
                self._train_out()
        self._drop_old_finals()
        if self.journal.get("is_raced") is None:
            self._race()
        self._finals()
        return self.hand_over(is_finished=True)

    def _measure(self) -> None:
        """Plan by the speed of a few short trials."""
        self.trainer.begin("measuring the speed")
        plan = make_plan(self.request, self.trainer.pool, self.budget.num_parallel)
        self.trainer.note_slowness()
        self.budget.epoch_s = plan.epoch_s
        self._apply(plan)

    def _apply(self, plan: Plan) -> None:
        """Train by this plan from here on."""
        if self.journal.get("plan") != vars(plan):
            self.note(
                plan=vars(plan), given_up=[*dict.fromkeys([*(self.journal.get("given_up") or []), *plan.given_up])]
            )
        self.request = self.trainer.request = apply_plan(self.asked, plan)

    def stores(self) -> list[Path]:
        """The runs of the fit that exist."""
        folders = [self.request.out, *sorted((self.request.out / TRAININGS).glob("*"))]
        return [folder for folder in folders if (folder / STORE_FILE).exists()]

    def note(self, **decided: Any) -> None:
        """Write decisions to disk, with the time spent so far."""
        if not self.journal.get("finished"):
            self.journal.set(**decided, epoch_s=self.budget.epoch_s, spent_s=round(self.budget.passed_s(), 3))

    def give_up(self, what: str) -> None:
        """Note what the plan leaves out for lack of time."""
        self.note(given_up=[*dict.fromkeys([*(self.journal.get("given_up") or []), what])])

    # Before them, of tables: boosted trees, which take seconds.

    def trees(self) -> Outcome | None:
        """The boosted trees, grown if they are not stored; None without a table for them, or time."""
        if not can_grow(self.request.data) or self.journal.get("trees") == {}:
            return None
        path, known = self.request.out / TRAININGS / "trees.safetensors", self.journal.get("trees")
        if known is None and self.budget.passed_s() > TREES_BEFORE * self.budget.end_s():  # on very busy cores
            self.give_up("boosted trees")
            self.note(trees={})
            return None
        weights = None if known is None else read_weights(path)
        if weights is None:
            self.trainer.begin("growing boosted trees")
            outcome = grow(self.request.data, self.budget)
            if outcome is None:
                self.give_up("boosted trees")
                self.note(trees={})
                return None
            write_weights(path, outcome.weights or {})
            self.note(trees=outcome.training.to_json())
            return outcome
        return trees_of(Training.from_json(known), self.request.data, weights)

    # Stage 1: cross-entropy, trained longer and in other ways while validation accuracy rises.

    def _run_of(self, names: Sequence[str], epochs: int) -> TrainingRun:
        """The run of cross-entropy's training with these changes and epochs."""
        important = self.request.important
        if self.journal.get("important") is not None:  # known by name from here on
            important = name_column(self.column, self.request.data.classes)
        training = change(self.request.data, self.request.plain.with_(epochs=epochs), names)
        folder = self.request.out / TRAININGS / f"{'+'.join(names) or 'plain'}-{epochs}"
        return TrainingRun(self.trainer, training, folder, important)

    def _train_out(self) -> None:
        baseline = Baseline(self.trainer, self._run_of, self.search_seeds, self.weights)
        baseline.train_out()
        check_rows(self.request.data, [index for index, _ in baseline.column])
        self.note(
            epochs=baseline.epochs,
            training=baseline.names,
            lengths=baseline.lengths,
            still_improving=baseline.is_rising,
            learnt=baseline.run.has_learnt(baseline.models),
            important=[list(pair) for pair in baseline.column],
        )

    def _drop_old_finals(self) -> None:
        """Remove the finals of an earlier call in which the baseline had less time and another training."""
        path = self.request.out / STORE_FILE
        if path.exists():
            with open_run(self.request.out) as stored:
                is_old = stored.training != self.training.to_json()
            if is_old:
                remove(path)

    @property
    def training(self) -> Training:
        return self.baseline.training

    @property
    def baseline(self) -> TrainingRun:
        return self._run_of(self.journal.get("training"), self.journal.get("epochs"))

    @property
    def column(self) -> Resolved:
        return tuple((index, strength) for index, strength in self.journal.get("important"))

    @property
    def important(self) -> list[int]:
        return [index for index, _ in self.column]

    # Stage 2: rivals, raced on validation data.

    def _race(self) -> None:
        if self.journal.get("num_settings") is None:
            self.note(num_settings=self._num_rivals())
        num, winner = self.journal.get("num_settings"), None
        if num:
            self.trainer.begin("comparing rivals")
            until_s = self.budget.passed_s() + 1.5 * RACE_SHARE * (self.budget.end_s() - self.budget.passed_s())
            race = Race(self._race_run(), self.column, self.search_seeds, self.request, until_s)
            winner = race.winner(list_rivals(num))
            self.budget.num_ended = len(statuses_of(self.stores()))
        self.note(is_raced=True, winner=winner)

    def _race_run(self) -> TrainingRun:
        """Where rivals race: under the training of the finals; of a network that is fine-tuned, on its features."""
        if not self.request.is_tuned:
            return self.baseline
        left_s = self.budget.end_s() - self.budget.passed_s()
        request = on_features(self.request, max(1.0, FEATURES_SHARE * left_s))
        # Heads have a pace of their own, which says nothing about the finals.
        trainer = self.trainer.on(request, replace(self.budget, epoch_s=None, paces=[]))
        return TrainingRun(trainer, request.plain, self.request.out / TRAININGS / "features", self.baseline.important)

    def _num_rivals(self) -> int:
        """How many rivals to try: none if they leave no time for enough seeds in the finals."""
        left = self.budget.trials_left(self.training.epochs)
        num = FEATURE_RIVALS if self.request.is_tuned and self.budget.is_timed else num_rivals(left)
        if not self.journal.get("learnt"):
            return 0
        if (0 if self.request.is_tuned else num) + 2 * SEEDS_FOR_PRAISE > left:
            self.give_up("rivals of cross-entropy")
            return 0
        if num < FEW_RIVALS:
            self.give_up(f"{FEW_RIVALS - num} of {FEW_RIVALS} rivals")
        return num

    # Stage 3: cross-entropy, the winner and its control with seeds that nothing was chosen by.

    @property
    def winner(self) -> Point | None:
        found = self.journal.get("winner")
        return None if found is None else (found[0], tuple(found[1]))

    @property
    def control(self) -> Point | None:
        """The winner's head without its margin."""
        return None if self.winner is None else control_point(self.winner, self.column)

    def points(self) -> list[Point]:
        """The arms of the finals beside cross-entropy."""
        return [point for point in (self.winner, self.control) if point is not None]

    @property
    def seeds(self) -> range:
        """The finals' seeds; without a rival nothing was chosen by those of the baseline."""
        return self.search_seeds if self.winner is None else self.final_seeds

    def _finals_run(self) -> TrainingRun:
        """The run of the finals, whose important classes are known by name."""
        column = name_column(self.column, self.request.data.classes)
        return TrainingRun(self.trainer, self.training, self.request.out, column)

    def _finals(self) -> None:
        self.trainer.begin("training the finals")
        run, num_arms = self._finals_run(), 1 + len(self.points())
        if self.winner is None:
            self.request.out.mkdir(parents=True, exist_ok=True)
            run.take_from(self.baseline, self.seeds)
        if self.journal.get("finished"):
            return
        num_planned = self.journal.get("planned_seeds")
        while num_planned is None or self.budget.is_timed:
            most = MOST_SEEDS if self.winner is not None else MOST_SEEDS // 2
            num_done = self._num_complete()
            num_planned = min(most, num_done + self.budget.trials_left(self.training.epochs) // num_arms)
            if not self.budget.is_timed:
                break
            num_planned = min(num_planned, max(SEEDS_FOR_PRAISE, 2 * num_done))  # the first show the pace
            is_new = not (self.request.out / STORE_FILE).exists()
            if num_planned <= num_done and not is_new:
                break
            if not self._train_finals(run, max(num_planned, 1)):
                break
        if not self.budget.is_timed:
            self.note(planned_seeds=max(num_planned, 1))
            self._train_finals(run, max(num_planned, 1))
        if self.winner is not None and not self._num_complete():  # the time was up: cross-entropy is all there is
            self.give_up("rivals of cross-entropy")
            self.note(winner=None)
            run.take_from(self.baseline, self.seeds)
        self.note(final_seeds=self._num_complete())
        if self.journal.get("final_seeds") < SEEDS_FOR_PRAISE:
            self.give_up(f"{SEEDS_FOR_PRAISE - self.journal.get('final_seeds')} of {SEEDS_FOR_PRAISE} seeds")

    def _train_finals(self, run: TrainingRun, num_seeds: int) -> bool:
        """Train every arm with so many seeds. Returns False if the time was up first."""
        is_complete = run.train(
            self.points(), self.seeds[:num_seeds], self.budget.end_s(), weights=self.weights, beside=BESIDE
        )
        refuse_failures(run.rows(CE), "cross-entropy in the finals", self.request.out)
        return is_complete

    def _complete_seeds(self) -> list[int]:
        """Seeds with which every arm of the finals has ended, well or not."""
        if self.journal.get("is_raced") is None or not (self.request.out / STORE_FILE).exists():
            return []
        run, settings = self._finals_run(), [CE, *(setting_of(point, self.column) for point in self.points())]
        ended = [{row.seed for row in run.rows(setting)} for setting in settings]
        return sorted(set.intersection(*ended) & set(self.seeds))

    def _num_complete(self) -> int:
        return len(self._complete_seeds())

    # Stage 4: the model, its card and the page.

    def hand_over(self, is_finished: bool) -> Fitted:
        """Write the model, its card and the page; raise :class:`Interrupted` if no seed is complete."""
        if not self._num_complete():
            raise Interrupted
        self.trainer.begin("writing the model and the page")
        journal = self.journal
        # A finished fit says the same when it is asked again.
        is_again = journal.get("finished")
        wall_s = journal.get("wall_s") if is_again else round(self.budget.passed_s(), 3)
        enough = journal.get("enough") if is_again else self._enough()
        fitted = handover.hand_over(
            self.request,
            self._finals_run(),
            Finals(
                column=self.column,
                winner=None if self.winner is None else setting_of(self.winner, self.column),
                control=None if self.control is None else setting_of(self.control, self.column),
                trees=self.trees(),
                points=self.points(),
                seeds=self._complete_seeds(),
                lengths=journal.get("lengths"),
                still_improving=journal.get("still_improving"),
                learnt=journal.get("learnt"),
                num_settings=1 + journal.get("num_settings"),
                given_up=tuple(journal.get("given_up")),
                wall_s=wall_s,
                enough=enough,
                is_finished=is_finished,
            ),
            self.stores(),
        )
        if handover.can_draw() and not self.budget.is_late:
            handover.write_page(self.request.out)
        if is_finished:
            self.note(finished=True, wall_s=wall_s, enough=enough)
        return fitted

    def _enough(self) -> str:
        """The option that would allow a race, five seeds and twice the epochs if they help, at the pace of this fit."""
        budget, is_rising = self.budget, self.journal.get("still_improving")
        num = 2 * FEW_RIVALS + 2 * SEEDS_FOR_PRAISE + (2 if is_rising else 0)
        if not budget.is_timed:
            return f"--trials {budget.num_ended + num}"
        epochs = self.training.epochs * (2 if is_rising else 1)
        return f"--budget {round_up(1.1 * (budget.passed_s() + budget.rounds_s(epochs, num)))}"  # and the files

    def missing(self) -> str:
        """How far a stopped fit had come, and how to resume it."""
        where = "in the finals"
        if self.journal.get("training") is None:
            where = "while training the baseline"
        elif self.journal.get("is_raced") is None:
            where = "while comparing rivals"
        return (
            f"stopped {where}: no model yet. {self.budget.num_ended:,} trials are stored in {self.request.out}; the "
            "same command resumes"
        )


P = ParamSpec("P")


def _fits(make: Callable[P, Request]) -> Callable[P, Fitted]:
    """The function that runs what `make` returns and takes the same options."""

    @functools.wraps(make)
    def fit(*arguments: P.args, **options: P.kwargs) -> Fitted:
        began = time.monotonic()
        listener: Any = options.get("on_progress")
        return run_fit(make(*arguments, **options), began, listener)

    fit.__name__ = fit.__qualname__ = "fit"
    fit.__module__ = __name__
    fit.__signature__ = inspect.signature(make).replace(return_annotation=Fitted)  # type: ignore[attr-defined]
    return fit


def run_fit(request: Request, began: float, on_progress: Callable[[Progress], None] | None = None) -> Fitted:
    """Run a checked request; its budget counts from `began`, a `time.monotonic()`."""
    journal = Journal.open(request.out, request.to_json())
    with run_folder.hold(request.out / TRAININGS), stop_on_signals() as stopping, Pool() as pool:
        budget = Budget(
            request.budget_s,
            request.num_trials,
            began=began,
            spent_s=float(journal.get("spent_s")),
            epoch_s=journal.get("epoch_s"),
            slowness=measure_slowness() if request.budget_s is not None else 1.0,
            scoring=request.scoring,
        )
        trainer = Trainer(request, budget, on_progress, stopping.is_set, pool)
        trainer.start_workers(is_needed=not journal.get("finished"))
        stages = Stages(request, journal, trainer)
        budget.num_ended = len(statuses_of(stages.stores()))
        stages.note()
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


fit = _fits(make_request)
