"""The stages of a fit on its folder: trainings, candidates, ramps, finals, hand-over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from camri.engine import Training
from camri.engine.packs import PACK_SIZE
from camri.fitting import finals, handover, plan
from camri.fitting.budget import Budget
from camri.fitting.journal import FILE_NAME as JOURNAL
from camri.fitting.journal import TRAININGS, Journal
from camri.fitting.ramps import EARLY, RAMPS, compare_ramps, depends_on_ramp
from camri.fitting.request import Request, check_rows
from camri.fitting.result import Fitted
from camri.fitting.search import CE, search
from camri.fitting.trainings import choose_training, trainings_for
from camri.fitting.workshop import (
    AllFailed,
    Bench,
    Interrupted,
    Point,
    Workshop,
    count_trials,
    refuse_failures,
    setting_of,
)
from camri.posthoc import PRIOR_ROWS
from camri.select import Rule
from camri.study.grid import SYMBOLS, Column, Resolved
from camri.study.store import FILE_NAME as STORE
from camri.study.store import open_run

BESIDE = (JOURNAL, TRAININGS, handover.MODEL, handover.PAGE, finals.FOLDER)
SEEDS_APART = 1000  # between the seeds of two fits; the finals' begin in the middle


class Stages:
    """One call of :func:`fit` on its folder."""

    def __init__(self, request: Request, journal: Journal, workshop: Workshop):
        self.request, self.journal, self.workshop = request, journal, workshop
        self.rule = Rule(tolerance=request.tolerance, prior_rows=PRIOR_ROWS)
        self.budget = Budget(request, float(journal.get("spent_s")), lambda: count_trials(self.stores()))
        self.trainings = trainings_for(request.data, request.plain)
        workshop.ended, workshop.expected_s = count_trials(self.stores()), journal.get("trial_s")
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
        if self.journal.get("final_seeds") is None:
            self._choose_ramp()
            self._plan_finals()
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
        self.note(finalists=list(found.finalists), num_settings=found.num_tried)

    @property
    def finalists(self) -> list[Point]:
        return [(method, tuple(values)) for method, values in self.journal.get("finalists")]

    def _num_arms(self, finalists: Sequence[Point]) -> int:
        is_plain = self.journal.get("training") == "plain"
        return 1 + len(finalists) + len(finals.controls_of(finalists)) + (not is_plain)

    # Step 3: other ramps for finalists that depend on one, with the race's seeds, where the finals can spare trials.

    def _choose_ramp(self) -> None:
        journal = self.journal
        seeds = self.search_seeds[: len(plan.Race(*journal.get("race")).rounds())]
        points = [one for one in self.finalists if depends_on_ramp(setting_of(one, self.column), self.request.data)]
        if journal.get("ramps") is None:
            left, arms = self._left(), self._num_arms(self.finalists)
            num = plan.plan_ramps(left, len(RAMPS) - 1, len(points), len(seeds), arms)
            self.note(ramps=list(RAMPS)[: 1 + num])
        tried = journal.get("ramps")
        self._expect((len(tried) - 1) * len(points) * len(seeds))
        benches = {EARLY: self.bench(journal.get("training"))}
        for name in tried[1:]:
            training = self.training.with_(ramp=RAMPS[name])
            benches[name] = self.named_bench(f"ramp {name}", training, self.ramp_folder(name), has_baseline=False)
        self.note(ramp=compare_ramps(benches, points, self.column, seeds))

    # Step 4: finalists, controls and cross-entropy with seeds that nothing was chosen by.

    def _plan_finals(self) -> None:
        finalists, left = self.finalists, self._left()
        while len(finalists) > 1 and plan.plan_finals(left, self._num_arms(finalists)) < plan.LEAST_FINAL_SEEDS:
            finalists.pop()
        num_seeds = max(plan.LEAST_FINAL_SEEDS, plan.plan_finals(left, self._num_arms(finalists)))
        self.note(finalists=finalists, final_seeds=num_seeds)

    @property
    def final_training(self) -> Training:
        """The chosen training with the chosen ramp; cross-entropy comes out the same under every ramp."""
        return self.training.with_(ramp=RAMPS[self.journal.get("ramp") or EARLY])

    def points(self) -> list[Point]:
        """The finalists and their controls."""
        return [*self.finalists, *finals.controls_of(self.finalists)]

    def named_bench(self, name: str, training: Training, folder: Path, has_baseline: bool = True) -> Bench:
        """A bench whose important classes are known by name: its store need not find the worst one."""
        classes = self.request.data.classes
        names = tuple(i if classes[i] in SYMBOLS else classes[i] for i, _ in self.column)
        column = Column(names, tuple(strength for _, strength in self.column))
        return Bench(self.workshop, name, training, folder, column, has_baseline)

    def _finals(self) -> None:
        journal, seeds = self.journal, self.final_seeds[: self.journal.get("final_seeds")]
        arms = self._num_arms(self.finalists)
        stored = count_trials([self.request.out, self.before])
        self.workshop.total = self.workshop.ended - stored + len(seeds) * arms
        if journal.get("training") != "plain":
            before = self.named_bench("finals", self.trainings["plain"], self.before)
            before.train([], seeds, "finals: plain cross-entropy")
            refuse_failures(before.rows(CE, status=None), "plain cross-entropy in the finals", self.request.out)
        weights = self.request.out / finals.FOLDER
        self.workshop.train(
            self.named_bench("finals", self.final_training, self.request.out).asked(self.points(), seeds),
            self.request.out,
            "finals",
            lambda executor: finals.Keeping(executor, weights),
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
        ended = handover.Finals(
            study=self.named_bench("finals", self.final_training, out).asked(self.points(), seeds),
            training_name=name,
            training=self.final_training,
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
        if self.journal.get("final_seeds") is None or not (self.request.out / STORE).exists():
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
        """Nothing; the workshop knows how many trials there will be, for the time left."""
        self.workshop.total = self.workshop.ended + max(num_more, self._left())

    def _left(self) -> int:
        """Trials that the budget still allows."""
        return self.budget.left(self.workshop.trial_s, self.workshop.start_s)
