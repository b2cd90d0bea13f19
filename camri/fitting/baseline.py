"""The baseline of a fit: cross-entropy trained longer and in other ways, while validation accuracy rises."""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from camri.decision.verdict import SEEDS_FOR_PRAISE
from camri.fitting.judge import Held
from camri.fitting.request import epochs_for
from camri.fitting.rivals import FEW_RIVALS
from camri.fitting.trainer import (
    CE,
    WIDTHS,
    AllFailed,
    Trainer,
    TrainingRun,
    accuracy_of,
    changes_of,
    refuse_failures,
    rises,
    statuses_of,
)
from camri.study.spec import Resolved

NUM_SEEDS = 2
FIRST_END = 0.6  # of the time: a first length that has not ended by then is too long
FLAT_LENGTHS = 2  # lengths in a row without a rise, after which the baseline is trained out
SECOND_SHARE = 0.5  # of the time left that the second of them may take, so that five seeds can still be trained
# Label smoothing is tried after the first length, where that is cheap: it helps long trainings, which may never become
# flat (GTSRB, 20 epochs: .950 to .958). Moves of images hurt short trainings and help long ones (docs/log.md).
EARLY = "smooth"
EARLY_SHARE = 0.1  # of the time left that this may take
CHANGE_SHARE = 0.25  # of the time left that trying a change may take: five seeds can still be trained after it
WIDER_COSTS = 4  # times the time, at most
# A longer training that is hardly better is taken only if the time left is enough for rivals and seeds of that length.
ENOUGH_TRIALS = FEW_RIVALS + 2 * SEEDS_FOR_PRAISE
MOST_EPOCHS = 4  # times the usual number, where trials are counted
CHANGES_FROM = 40  # counted trials left: with fewer, changes are not tried


class TooSlow(Exception):
    """The first length did not end in its share of the time; `part` of its epochs were trained in `spent_s`."""

    def __init__(self, part: float, spent_s: float):
        super().__init__(part, spent_s)
        self.part, self.spent_s = part, spent_s


class Baseline:
    """Cross-entropy with two seeds, in growing lengths, each a whole schedule, and with changes of the training.

    run_of: returns the run of a training by the names of its changes and its epochs. What helps stays: `run`, of
    `epochs` epochs with the changes `names`, has the highest accuracy so far.
    """

    def __init__(
        self,
        trainer: Trainer,
        run_of: Callable[[Sequence[str], int], TrainingRun],
        seeds: Sequence[int],
        weights: Path,
    ):
        self.trainer, self.run_of, self.weights = trainer, run_of, weights
        self.request, self.budget = trainer.request, trainer.budget
        self.seeds = seeds[: min(NUM_SEEDS, self.budget.num_trials or NUM_SEEDS)]
        self.names: list[str] = []
        self.epochs = self.latest = self.request.plain.epochs
        self.run = run_of((), self.epochs)
        self.is_rising = self.request.epochs is None  # not known of a single length

    def train_out(self) -> None:
        """Train until neither twice the epochs nor a change of the training helps, or the time is up.

        Changes are tried when a longer training did not help, and one that helps is followed by longer ones.
        """
        self.trainer.begin("training the baseline")
        self._train_first()
        changes = list(changes_of(self.request.data, self.request.plain))
        if self.request.epochs is not None:
            for name in changes:
                self._try(name)
            return
        self._try(EARLY, EARLY_SHARE)
        num_flat = 0  # lengths in a row that were not better
        while num_flat < FLAT_LENGTHS:
            helps = self._lengthen(SECOND_SHARE if num_flat else 1.0)
            if helps is None:
                return
            num_flat = 0 if helps else num_flat + 1
            if num_flat == 1 and any(self._try(name) for name in changes):
                num_flat = 0

    def _train_first(self) -> None:
        began_s, until_s = self.budget.passed_s(), self.budget.end_s(FIRST_END)
        is_first = began_s < until_s  # of the first try: a second has what time it takes
        self.run.train([], self.seeds, until_s, least=0 if is_first else 1, weights=self.weights)
        if is_first and not self.run.rows(CE):
            shutil.rmtree(self.run.folder)
            raise TooSlow(self.trainer.part, self.budget.passed_s() - began_s)
        refuse_failures(self.run.rows(CE), "cross-entropy", self.request.out)
        self.important = [index for index, _ in self.column]
        self.models = self._models(self.run)
        self.lengths = [(self.epochs, accuracy_of(self.models))]

    @property
    def column(self) -> Resolved:
        """Indices and strengths of the important classes; of those asked for as the worst, at the best length."""
        return self.run.column()

    def _models(self, run: TrainingRun) -> list[Held]:
        return run.models(CE, self.important)

    def _num_missing(self, run: TrainingRun) -> int:
        return len(self.seeds) - len(statuses_of([run.folder]))

    def _lengthen(self, share: float) -> bool | None:
        """Train longer than the latest length. Returns whether accuracy rises; None if the time is up.

        share: of the time left that this may take.
        """
        num = self._num_missing(self.run_of(self.names, 2 * self.latest))
        epochs = self.budget.longer(self.latest, num)
        if epochs is None or self._part(epochs, num) > share:
            return None
        if not self.budget.is_timed and epochs > self._most_epochs():
            return None
        run = self.run_of(self.names, epochs)
        is_complete = run.train([], self.seeds, self.budget.end_s(), weights=self.weights)
        models = self._models(run)
        if not models:
            return None
        self.latest = epochs
        self.lengths.append((epochs, accuracy_of(models)))
        self.is_rising = rises(models, self.models)
        is_taken = self.is_rising or not self.budget.is_timed or self.budget.trials_left(epochs) >= ENOUGH_TRIALS
        if is_taken and accuracy_of(models) > accuracy_of(self.models):
            self.epochs, self.run, self.models = epochs, run, models
        return self.is_rising if is_complete else None

    def _part(self, epochs: int, num_trials: int) -> float:
        """The part of the time left that these trials take; 0 if trials are counted."""
        left_s = self.budget.end_s() - self.budget.passed_s()
        return self.budget.rounds_s(epochs, num_trials) / max(left_s, 1e-9)

    def _most_epochs(self) -> int:
        """The longest length where trials are counted: without an end, each could take twice as long as the last."""
        return MOST_EPOCHS * epochs_for(len(self.request.data.splits["train"]))

    def _try(self, name: str, share: float = CHANGE_SHARE) -> bool:
        """Try a change at the best length, if that takes no more than a share of the time left.

        Returns whether accuracy rises; then the change stays.
        """
        budget, run = self.budget, self.run_of([*self.names, name], self.epochs)
        if name in self.names or (name == "wider" and "wide" not in self.names) or not self._can_try(name, run, share):
            return False
        paces, epoch_s, budget.paces = budget.paces, budget.epoch_s, []  # a wider network has a pace of its own
        left_s = budget.end_s() - budget.passed_s()
        models: list[Held] = []
        with contextlib.suppress(AllFailed):  # a change that cannot be trained does not help
            if run.train([], self.seeds, budget.passed_s() + 2 * CHANGE_SHARE * left_s, weights=self.weights):
                models = self._models(run)
        if not rises(models, self.models):
            budget.paces, budget.epoch_s = paces, epoch_s
            return False
        self.names, self.run, self.models, self.latest = [*self.names, name], run, models, self.epochs
        self.is_rising = self.request.epochs is None
        return True

    def _can_try(self, name: str, run: TrainingRun, share: float) -> bool:
        if not self._num_missing(run):  # it was trained before the fit was interrupted
            return True
        if not self.names and not self.run.has_learnt(self.models):
            return False
        if not self.budget.is_timed:
            return self.budget.trials_left(self.epochs) >= CHANGES_FROM
        return self._part(self.epochs, len(self.seeds)) * (WIDER_COSTS if name in WIDTHS else 1) <= share
