"""The stages of a fit on its folder: trainings, candidates, ramps, finals, hand-over.

Where the clock decides, each stage asks before every call of the engine whether the finals keep their seeds at the pace
of the latest trials; what it was allowed is noted, so that a call that goes on comes to the same.

The whole job: data in, chosen model and report out.
"""

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from camri.data import DataSet
from camri.decision import PRIOR_ROWS
from camri.engine import Pool, Training
from camri.engine.replica import PACK_SIZE
from camri.engine.training import stop_on_signals
from camri.errors import InputError
from camri.fitting import outputs, plan, trainer
from camri.fitting.journal import JOURNAL_FILE as JOURNAL
from camri.fitting.journal import TRAININGS, Journal
from camri.fitting.plan import Budget, fit_epochs, slowness
from camri.fitting.ramps import EARLY, RAMPS, compare_ramps, depends_on_ramp
from camri.fitting.request import Important, Request, check_rows, make_request
from camri.fitting.result import Fitted
from camri.fitting.search import CE, RaceLimits, search
from camri.fitting.trainer import (
    AllFailed,
    Interrupted,
    Point,
    Progress,
    Trainer,
    TrainingRun,
    choose_training,
    count_trials,
    refuse_failures,
    setting_of,
    trainings_for,
)
from camri.selection import Rule
from camri.study import run_folder
from camri.study.executor import Executor
from camri.study.important import name_column
from camri.study.spec import Resolved
from camri.study.store import STORE_FILE as STORE
from camri.study.store import open_run

BESIDE = (JOURNAL, TRAININGS, outputs.MODEL, outputs.PAGE, trainer.FINALS_FOLDER)
FINAL_CALLS = 2  # the first seeds, and the rest when it is known how long they took
SEEDS_APART = 1000  # between the seeds of two fits; the finals' begin in the middle


class Stages:
    """One call of :func:`fit` on its folder."""

    def __init__(self, request: Request, journal: Journal, workshop: Trainer, began: float):
        self.request, self.journal, self.workshop = request, journal, workshop
        self.rule = Rule(max_accuracy_drop=request.tolerance, prior_rows=PRIOR_ROWS)
        self.pace = workshop.pace
        if (trial_s := journal.get("trial_s")) is not None:
            self.pace.expected_s = trial_s * self.pace.parallel
        self.pace.slowness = journal.get("slowness") or 1.0
        spent_s = float(journal.get("spent_s"))
        self.budget = Budget(request, self.pace, spent_s, lambda: count_trials(self.stores()), began)
        self.trainings = trainings_for(request.data, request.plain)
        workshop.ended = count_trials(self.stores())
        base = request.seed * SEEDS_APART
        self.search_seeds = range(base, base + SEEDS_APART // 2)
        self.final_seeds = range(base + SEEDS_APART // 2, base + SEEDS_APART)

    def stores(self) -> list[Path]:
        beside = [self.request.out / TRAININGS / name for name in self.trainings]
        return [self.request.out, self.before, *beside, *map(self.ramp_folder, RAMPS)]

    @property
    def before(self) -> Path:
        """The run with plain cross-entropy's trials of the finals' seeds, where another training was chosen.

        It is not that of the plain training: the class that is worst there may be another one.
        """
        return self.request.out / TRAININGS / "before"

    def ramp_folder(self, name: str) -> Path:
        """The run of the finalists under another ramp than the early one."""
        return self.request.out / TRAININGS / f"ramp-{name.replace(' ', '-')}"

    def bench(self, name: str) -> TrainingRun:
        folder = self.request.out / TRAININGS / name
        return TrainingRun(self.workshop, name, self.trainings[name], folder, self.request.important)

    def note(self, **decided: Any) -> None:
        """Nothing; what was decided is on the disk, with the time that was spent until now."""
        if not self.journal.get("finished"):
            if self.budget.is_timed and self.pace.trial_s is not None:
                decided["trial_s"] = self.pace.trial_s / self.pace.parallel  # what a call that goes on expects
                decided["slowness"] = round(self.pace.slowness, 2)
            self.journal.set(**decided, spent_s=round(self.budget.passed_s(), 3))

    def run(self) -> Fitted:
        if self.journal.get("training") is None:
            self._choose_training()
        if self.journal.get("finalists") is None:
            self._search()
        if self.journal.get("final_seeds") is None:
            self._choose_ramp()
            self._plan_finals()
        self._finals()
        return self.hand_over(is_finished=True)

    # Step 1: trainings, compared by cross-entropy's validation accuracy.

    def _choose_training(self) -> None:
        journal = self.journal
        if journal.get("trainings") is None:
            left = self.budget.left()
            planned = plan.plan_trainings(left, len(self.trainings))
            names = list(self.trainings)[: planned.num]
            planned_seeds = plan.first_final_seeds(left)
            self.note(trainings=names, training_seeds=planned.num_seeds, planned_final_seeds=planned_seeds)
        names, seeds = journal.get("trainings"), self.search_seeds[: journal.get("training_seeds")]
        self._expect(len(names) * len(seeds))
        baselines = {}
        rows = []
        for name in names:
            bench = self.bench(name)
            if name != "plain" and not (bench.folder / STORE).exists() and not self._may_train(len(seeds)):
                self.note(trainings=names[: names.index(name)])
                break
            try:
                bench.train([], seeds, f"trainings: {name}")
            except AllFailed:  # only where the worst class is still to be found; with a named one scores are missing
                if name == "plain":
                    raise
                continue
            rows += bench.rows(CE, status=None)
            baselines[name] = bench.validation(CE, [index for index, _ in bench.column()]).of(seeds)
        refuse_failures(rows, "cross-entropy", self.request.out)
        refuse_failures(self.bench("plain").rows(CE, status=None), "plain cross-entropy", self.request.out)
        chosen = choose_training(baselines)
        column = self.bench(chosen).column()
        check_rows(self.request.data, [index for index, _ in column])
        self.note(training=chosen, important=[list(pair) for pair in column])

    def _may_train(self, num_trials: int) -> bool:
        """Whether another training leaves the search its part of the time before the finals."""
        if not self.budget.is_timed:
            return True
        passed_s = self.budget.passed_s()
        part = plan.TRAINING_SHARE / (1 - plan.FINAL_SHARE)
        return passed_s + self.pace.takes_s(num_trials) <= part * (passed_s + self.spare_s())

    def spare_s(self) -> float:
        """Seconds that may be trained before the finals, which keep the seeds that they are to have."""
        left_s, finalists = self.budget.left_s(), self.journal.get("finalists")
        num_trials = self.workshop.ended + self.pace.affords(left_s)
        num_arms = plan.num_finalists(num_trials) + 3 if finalists is None else self._num_arms(self.finalists)
        num_seeds = plan.protect_seeds(num_trials, self.journal.get("planned_final_seeds") or 0, num_arms)
        return left_s - self.pace.takes_s(num_seeds * num_arms, FINAL_CALLS)

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
            race = plan.plan_race(self.budget.left(), journal.get("training_seeds"))
            self.note(race=[race.num_candidates, race.num_finalists], pack=PACK_SIZE)
        race = plan.Race(*journal.get("race"))
        self._expect(sum(race.rounds()))
        bench, pack = self.bench(journal.get("training")), journal.get("pack")
        referee = TimedLimits(race, pack, self) if self.budget.is_timed else RaceLimits(race, pack)
        found = search(bench, self.column, referee, self.search_seeds, self.rule, self.request.seed)
        self.note(finalists=list(found.finalists), num_settings=found.num_tried, rounds=found.num_rounds)

    @property
    def finalists(self) -> list[Point]:
        return [(method, tuple(values)) for method, values in self.journal.get("finalists")]

    def _num_arms(self, finalists: Sequence[Point]) -> int:
        is_plain = self.journal.get("training") == "plain"
        return 1 + len(finalists) + len(trainer.controls_of(finalists)) + (not is_plain)

    # Step 3: other ramps for finalists that depend on one, with the race's seeds, where the finals can spare trials.

    def _choose_ramp(self) -> None:
        journal = self.journal
        rounds = journal.get("rounds") or len(plan.Race(*journal.get("race")).rounds())
        seeds = self.search_seeds[:rounds]
        points = [one for one in self.finalists if depends_on_ramp(setting_of(one, self.column), self.request.data)]
        if journal.get("ramps") is None:
            left, arms = self.budget.left(), self._num_arms(self.finalists)
            num = plan.plan_ramps(left, len(RAMPS) - 1, len(points), len(seeds), arms)
            self.note(ramps=list(RAMPS)[: 1 + num])
        tried = journal.get("ramps")
        self._expect((len(tried) - 1) * len(points) * len(seeds))
        benches = {EARLY: self.bench(journal.get("training"))}
        for name in tried[1:]:
            training = self.training.with_(ramp=RAMPS[name])
            benches[name] = self.named_bench(f"ramp {name}", training, self.ramp_folder(name), has_baseline=False)

        def may_try(name: str) -> bool:
            if (benches[name].folder / STORE).exists() or not self.budget.is_timed:
                return True
            may = self.pace.takes_s(len(points) * len(seeds)) <= self.spare_s()
            if not may:
                self.note(ramps=[one for one in journal.get("ramps") if one != name])
            return may

        self.note(ramp=compare_ramps(benches, points, self.column, seeds, may_try))

    # Step 4: finalists, controls and cross-entropy with seeds that nothing was chosen by.

    def _plan_finals(self) -> None:
        finalists, left = self.finalists, self.budget.left(FINAL_CALLS)
        least = plan.FEW_FINAL_SEEDS if self.budget.is_timed else plan.LEAST_FINAL_SEEDS
        while len(finalists) > 1 and plan.plan_finals(left, self._num_arms(finalists)) < least:
            finalists.pop()
        num_seeds = max(plan.LEAST_FINAL_SEEDS, plan.plan_finals(left, self._num_arms(finalists)))
        self.note(finalists=finalists, final_seeds=num_seeds)

    @property
    def final_training(self) -> Training:
        """The chosen training with the chosen ramp; cross-entropy comes out the same under every ramp."""
        return self.training.with_(ramp=RAMPS[self.journal.get("ramp") or EARLY])

    def points(self) -> list[Point]:
        """The finalists and their controls."""
        return [*self.finalists, *trainer.controls_of(self.finalists)]

    def named_bench(self, name: str, training: Training, folder: Path, has_baseline: bool = True) -> TrainingRun:
        """A bench whose important classes are known by name: its store need not find the worst one."""
        column = name_column(self.column, self.request.data.classes)
        return TrainingRun(self.workshop, name, training, folder, column, has_baseline)

    def _finals(self) -> None:
        if not self.budget.is_timed or self.journal.get("finished"):
            self._train_finals(self.journal.get("final_seeds"))
            return
        try:
            self._train_finals(min(self.journal.get("final_seeds"), plan.FEW_FINAL_SEEDS))
            num_complete = self._num_complete()
            num_more = self.budget.left(FINAL_CALLS - 1) // self._num_arms(self.finalists)
            self.note(final_seeds=min(plan.MOST_FINAL_SEEDS, num_complete + num_more))
            self._train_finals(self.journal.get("final_seeds"))
        except Interrupted:
            num_complete = self._num_complete()
            if self.workshop.is_stopping() or num_complete < plan.LEAST_FINAL_SEEDS:
                raise  # not the clock, but a signal
            self.note(final_seeds=num_complete)

    def _is_time_up(self) -> bool:
        return self.budget.left_s() <= 0

    def _train_finals(self, num_seeds: int) -> None:
        """Nothing; every arm has these seeds, or the time was up and enough of them were complete."""
        journal, seeds = self.journal, self.final_seeds[:num_seeds]
        arms = self._num_arms(self.finalists)
        stored = count_trials([self.request.out, self.before])
        self.workshop.total = self.workshop.ended - stored + max(num_seeds, journal.get("final_seeds")) * arms

        def until(executor: Executor) -> Executor:
            if not self.budget.is_timed:
                return executor
            return trainer.Deadline(executor, self._is_time_up, lambda: self._num_complete() >= plan.LEAST_FINAL_SEEDS)

        if journal.get("training") != "plain":
            before = self.named_bench("finals", self.trainings["plain"], self.before)
            self.workshop.train(before.asked([], seeds), self.before, "finals: plain cross-entropy", until)
            refuse_failures(before.rows(CE, status=None), "plain cross-entropy in the finals", self.request.out)
        weights = self.request.out / trainer.FINALS_FOLDER
        self.workshop.train(
            self.named_bench("finals", self.final_training, self.request.out).asked(self.points(), seeds),
            self.request.out,
            "finals",
            lambda executor: trainer.SaveWeights(until(executor), weights),
            BESIDE,
        )
        with open_run(self.request.out) as run:
            refuse_failures(run.rows(method="ce", status=None), "cross-entropy in the finals", self.request.out)

    def hand_over(self, is_finished: bool) -> Fitted:
        """What is chosen of the finals, in files; raises :class:`Interrupted` where they are not far enough."""
        if not is_finished and len(self._complete_seeds()) < plan.LEAST_FINAL_SEEDS:
            raise Interrupted
        name, out = self.journal.get("training"), self.request.out
        seeds = self.final_seeds[: self.journal.get("final_seeds")]
        ended = outputs.Finals(
            study=self.named_bench("finals", self.final_training, out).asked(self.points(), seeds),
            training_name=name,
            training=self.final_training,
            plain=None if name == "plain" else self.before,
            important=tuple(sorted(index for index, _ in self.column)),
            stores=tuple(folder for folder in self.stores() if (folder / STORE).exists()),
        )
        self.workshop.tell("writing model and page")
        wall_s = self.journal.get("told_s") if self.journal.get("finished") else round(self.budget.passed_s(), 3)
        fitted = outputs.hand_over(self.request, self.journal, ended, self.rule, wall_s, is_finished=is_finished)
        if is_finished:
            self.note(finished=True, told_s=wall_s)  # asked again, it tells the same
        return fitted

    def _complete_seeds(self) -> set[int]:
        """Seeds with which every arm of the finals has ended, well or not."""
        if self.journal.get("final_seeds") is None or not (self.request.out / STORE).exists():
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

    def missing(self) -> str:
        """A sentence for the person who stopped a fit: how far it had come, and how to go on."""
        journal = self.journal
        if journal.get("training") is None:
            where = "while trainings were compared"
        elif journal.get("finalists") is None:
            where = "while candidates were tried"
        elif journal.get("final_seeds") is None:
            where = "while ramps were compared"
        else:
            done = len(self._complete_seeds())
            where = f"in the finals, with {done} of {journal.get('final_seeds')} seeds complete"
        return (
            f"stopped {where}: too early to hand a model back (the finals need {plan.LEAST_FINAL_SEEDS} seeds of every "
            f"arm); {self.workshop.ended:,} trials are stored in {self.request.out}, and the same command goes on"
        )

    def _expect(self, num_more: int) -> None:
        """Nothing; the workshop knows how many trials there will be, and so how much time is left."""
        self.workshop.total = self.workshop.ended + max(num_more, self.budget.left())


class TimedLimits(RaceLimits):
    """A race that is planned anew before each of its packs and rounds, so that the finals keep their seeds."""

    def __init__(self, race: plan.Race, pack: int, stages: Stages):
        super().__init__(race, pack)
        self.stages = stages

    def next_pack(self, number: int, num_found: int) -> int:
        packs = self.stages.journal.get("packs") or []
        if number == len(packs):
            num = max(self._num_candidates(num_found), plan.LEAST_CANDIDATES, self.race.num_finalists)
            packs = [*packs, max(0, min(self.pack, num - num_found))]
            self.stages.note(packs=packs)
        return int(packs[number])

    def _num_candidates(self, num_found: int) -> int:
        """Candidates to try: those planned, or as many as time allows in all rounds. `num_found` had their first."""
        pace, spare_s = self.stages.pace, self.stages.spare_s()
        num_seeds = self.stages.journal.get("training_seeds")

        def is_affordable(race: plan.Race) -> bool:
            num_calls = race.num_calls(self.pack) - -(-num_found // self.pack)
            takes_s = pace.takes_s(race.num_trials(num_seeds) - num_found, max(0, num_calls))
            return race.num_candidates <= self.race.num_candidates and takes_s <= spare_s

        return plan.largest_race(self.race.num_finalists, is_affordable).num_candidates

    def rounds(self, num_found: int) -> int:
        return len(plan.Race(num_found, self.race.num_finalists).rounds())

    def run_round(self, number: int, bench: TrainingRun, candidates: Sequence[Point], seed: int) -> bool:
        stages = self.stages
        if number > (stages.journal.get("rounds") or 1):
            if stages.pace.takes_s(len(candidates)) > stages.spare_s():
                return False
            stages.note(rounds=number)
        study = bench.asked(candidates, [seed])
        try:
            stages.workshop.train(study, bench.folder, f"candidates, round {number}", self._sparing)
        except Interrupted:
            if stages.workshop.is_stopping():
                raise
            return False
        return True

    def _sparing(self, executor: Executor) -> Executor:
        """An executor that stops where the finals' time begins: a round is long, and the pace may change in it."""
        return trainer.Deadline(executor, lambda: self.stages.spare_s() <= 0, lambda: True)


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
    began: float | None = None,
) -> Fitted:
    """The best model found for the important classes, at no less than cross-entropy's accuracy, with its proof.

    data: whatever `camri.data.load` knows, or a DataSet; splits that it lacks are made. important: names, {name:
    strength}, or None for the class that cross-entropy recognises worst on validation data. out: a folder, new or of
    this same fit, which then goes on; runs/… unless told. Give `budget_s` or `num_trials` (ten minutes unless told).
    keep_accuracy: how much accuracy may be given up, 0.01 for a point. weights: a safetensors file with the trunk's
    first values. data_options: those of `camri.data.load` (size, label_column, …). `on_start` hears what was
    understood before anything is trained. began: the `time.monotonic()` that the budget counts from; this call unless
    told.

    Everything is chosen on validation data; test images are looked at once, at the end. With `num_trials` the same
    call gives the same result. SIGINT hands back what there is, or raises :class:`Unfinished`.
    """
    began = time.monotonic() if began is None else began
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
        on_read=None if on_progress is None else lambda done, num: on_progress(_reading(done, num)),
    )
    journal = Journal.open(request.out, request.to_json())
    if on_start is not None:
        on_start(request)
    if journal.get("epochs") is None:
        asked_at, asked_at_core_s = time.monotonic(), time.process_time()
        found, trial_s = fit_epochs(request)
        journal.values.update(epochs=found, trial_s=trial_s)
        if trial_s is not None and request.device.type == "cpu":
            found_slow = slowness(time.monotonic() - asked_at, time.process_time() - asked_at_core_s)
            journal.values.update(slowness=round(found_slow, 2))
    request = replace(request, plain=request.plain.with_(epochs=journal.get("epochs")))
    with run_folder.hold(request.out / TRAININGS), stop_on_signals() as told, Pool() as pool:
        workshop = Trainer(request, on_progress, told.is_set, pool)
        stages = Stages(request, journal, workshop, began)
        try:
            return stages.run()
        except Interrupted:
            told.set()
            try:
                return stages.hand_over(is_finished=False)
            except Interrupted:
                raise Unfinished(stages.missing()) from None
        finally:
            stages.note()


def _reading(done: int, num: int) -> Progress:
    return Progress("reading the data", done, num, None, unit="rows")
