"""The result of a fit as plain records: the evidence over seeds, and the one model that is handed over."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from camri.engine import Training
from camri.methods import Setting
from camri.stats import Estimate

if TYPE_CHECKING:
    from camri.export import Model

MODEL, PAGE = "model", "report.html"  # in the folder of a fit
LEVEL = 0.05  # of significance
LEAST_SEEDS = 3  # for an interval over seeds: two say next to nothing about how models differ


@dataclass(frozen=True)
class Figures:
    """Test figures over several models.

    recall: mean over the important classes. hits, num: sums over these classes and the models. false_alarms: share of
    all images that belong to no important class but are predicted as one. precisions: one for each important class;
    None where no model ever predicts it.
    """

    recall: float
    hits: int
    num: int
    accuracy: float
    false_alarms: float
    precisions: tuple[float | None, ...]


@dataclass(frozen=True)
class Gains:
    """Differences between two steps."""

    recall: Estimate
    accuracy: Estimate
    false_alarms: Estimate


@dataclass(frozen=True)
class Step:
    """One step from plain cross-entropy to what was chosen, with its gains; None for the first step.

    `name` is "before", "training", "shift", "method" or "together". The gains of "together" are over "before", those
    of the others over the step above.
    """

    name: str
    title: str
    figures: Figures
    gains: Gains | None


@dataclass(frozen=True)
class Evidence:
    """What the finals show on test images, over seeds that nothing was chosen by.

    steps: from plain cross-entropy to the choice. lost: the classes that lost most recall, by name. over_shifted:
    recall gained over shifted cross-entropy under the same training; None if that is the choice. p: of this gain, nan
    for one seed. gain_is_shown: whether the gain is significant and accuracy was kept. is_unanimous: False if the two
    halves of the seeds, each of which chooses for the other, did not both choose the setting that is handed over; the
    gains then describe the selection procedure, not this setting.
    """

    steps: tuple[Step, ...]
    lost: tuple[tuple[str, Estimate], ...]
    over_shifted: Estimate | None
    p: float
    gain_is_shown: bool
    is_unanimous: bool
    num_seeds: int

    @property
    def has_intervals(self) -> bool:
        """Whether there are enough seeds to show intervals."""
        return self.num_seeds >= LEAST_SEEDS

    @property
    def before(self) -> Figures:
        """Plain cross-entropy."""
        return self.steps[0].figures

    @property
    def after(self) -> Figures:
        """The choice, shifted."""
        return self.steps[-1].figures

    @property
    def gains(self) -> Gains:
        """All that was gained, from `before` to `after`."""
        gains = self.steps[-1].gains
        assert gains is not None
        return gains


@dataclass(frozen=True)
class Handed:
    """The model that is handed over, with its counts on the test images.

    shift: added to the important classes' scores, one number each. hits, num, called: for each important class, the
    images found, all its images, and all images predicted as it. effects: design effects of grouped test images, for
    recalls, accuracy, false alarms and precisions in this order; empty without groups.
    """

    setting: Setting
    seed: int
    shift: tuple[float, ...]
    hits: tuple[int, ...]
    num: tuple[int, ...]
    called: tuple[int, ...]
    num_right: int
    num_images: int
    num_false_alarms: int
    effects: tuple[float, ...] = ()

    @property
    def recalls(self) -> tuple[Estimate, ...]:
        effects = self._effects(0, len(self.num))
        return tuple(Estimate.of_share(*counts) for counts in zip(self.hits, self.num, effects, strict=True))

    @property
    def accuracy(self) -> Estimate:
        return Estimate.of_share(self.num_right, self.num_images, *self._effects(len(self.num), 1))

    @property
    def false_alarms(self) -> Estimate:
        """Their share of all images."""
        return Estimate.of_share(self.num_false_alarms, self.num_images, *self._effects(len(self.num) + 1, 1))

    @property
    def precisions(self) -> tuple[Estimate | None, ...]:
        """One for each important class; None where it is never predicted."""
        effects = self._effects(len(self.num) + 2, len(self.num))
        counts = zip(self.hits, self.called, effects, strict=True)
        return tuple(Estimate.of_share(*one) if one[1] else None for one in counts)

    def _effects(self, start: int, num: int) -> Sequence[float]:
        return self.effects[start : start + num] or (1.0,) * num


@dataclass(frozen=True)
class Effort:
    """What a fit tried and what it took."""

    num_trainings: int
    num_settings: int
    num_trials: int
    num_failed: int
    wall_s: float


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit.

    evidence: gains over seeds, what to expect from a new training. handed: the one model in `model_path`. training:
    the training chosen for all methods, by name and as a value. cautions: why the figures may say less than they seem
    to. finished: False if it was stopped before all seeds had ended.
    """

    important: tuple[str, ...]
    evidence: Evidence
    handed: Handed
    training_name: str
    training: Training
    effort: Effort
    cautions: tuple[str, ...]
    max_accuracy_drop: float
    finished: bool
    out: Path

    @property
    def model_path(self) -> Path:
        return self.out / MODEL

    @property
    def page_path(self) -> Path | None:
        """The report; None where it could not be written because altair or jinja2 is missing."""
        path = self.out / PAGE
        return path if path.exists() else None

    @property
    def accuracy_dropped(self) -> bool:
        """Whether accuracy on test images is significantly lower than allowed."""
        return self.evidence.has_intervals and self.evidence.gains.accuracy.high < -self.max_accuracy_drop

    @property
    def answer(self) -> str:
        """The result in sentences, one or two a line."""
        from camri.fitting.answer import compose

        return "\n".join(compose(self))

    def load(self) -> "Model":
        """Load the model, ready to predict."""
        from camri.export import load

        return load(self.model_path)

    def __str__(self) -> str:
        return self.answer
