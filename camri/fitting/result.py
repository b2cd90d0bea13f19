"""What a fit hands back, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camri.engine import Training
from camri.methods import Setting
from camri.stats import Difference, wilson

if TYPE_CHECKING:
    from camri.export import Model


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float

    @staticmethod
    def of(found: Difference) -> "Interval":
        return Interval(found.estimate, found.low, found.high)

    @staticmethod
    def of_share(hits: int, num: int, effect: float) -> "Interval":
        """A share of images, with Wilson's interval; of images in groups, by their design effect."""
        return Interval(hits / num, *wilson(hits / effect, num / effect))

    def to_json(self) -> dict[str, float]:
        return {"estimate": self.estimate, "low": self.low, "high": self.high}


LEAST_SEEDS = 3  # that an interval over seeds is shown for: two say next to nothing of how models differ


@dataclass(frozen=True)
class Figures:
    """Test figures over several models: recall is the important classes' mean; hits and num are their sums."""

    recall: float
    hits: int
    num: int
    accuracy: float


@dataclass(frozen=True)
class Step:
    """One step from plain cross-entropy to what was chosen, with what it added; None for the first.

    `name` is "before", "training", "shift", "method" or "together"; what "together" added is over "before".
    """

    name: str
    title: str
    figures: Figures
    recall_gain: Interval | None
    accuracy_gain: Interval | None

    def to_json(self, has_intervals: bool = True) -> dict[str, Any]:
        """As the page reads it; without intervals their ends are None."""
        ends = {} if has_intervals else {"low": None, "high": None}
        return {
            "name": self.name,
            "title": self.title,
            **vars(self.figures),
            "recall_gain": None if self.recall_gain is None else self.recall_gain.to_json() | ends,
            "accuracy_gain": None if self.accuracy_gain is None else self.accuracy_gain.to_json() | ends,
        }


@dataclass(frozen=True)
class Handed:
    """The one model that is handed over: of the chosen setting's models the best on validation data.

    `shift` is added to the important classes' scores, one number each. Its figures on test images are of this model
    alone, with Wilson's intervals over images; `hits` and `num` are of each important class. `effects`: the design
    effects of test images in groups, of each important class and of all images; none where they have no groups.
    """

    setting: Setting
    seed: int
    shift: tuple[float, ...]
    recalls: tuple[Interval, ...]
    hits: tuple[int, ...]
    num: tuple[int, ...]
    accuracy: Interval
    num_right: int
    num_images: int
    effects: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_json(),
            "seed": self.seed,
            "shift": list(self.shift),
            "hits": list(self.hits),
            "num": list(self.num),
            "num_right": self.num_right,
            "num_images": self.num_images,
            "effects": list(self.effects),
        }

    @staticmethod
    def of(setting: Setting, seed: int, shift: Sequence[float], hits: Sequence[int], num: Sequence[int],
           num_right: int, num_images: int, effects: Sequence[float] = ()) -> "Handed":  # fmt: skip
        """The figures of counts."""
        *own, every = effects or [1.0] * (len(num) + 1)
        return Handed(
            setting,
            seed,
            tuple(shift),
            tuple(Interval.of_share(*one) for one in zip(hits, num, own, strict=True)),
            tuple(hits),
            tuple(num),
            Interval.of_share(num_right, num_images, every),
            num_right,
            num_images,
            tuple(effects),
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit. Gains are over seeds that nothing was chosen by, on test images.

    `before` is plain cross-entropy, `after` what was chosen with its shift; `over_shifted` is the recall gained over
    cross-entropy of the same training with a shift of its own, None where that is what was chosen. `training` has the
    chosen ramp, `ramps` the names of those that were compared, the early one first. `paid` has the
    classes that lost most recall, by name. `is_unanimous` is False where the halves of the seeds, each of which picks
    for the other, did not both pick `setting`: gains are then those of the way it was chosen. `caution` is set where
    validation data could not tell settings apart, or rows of an important class, groups of them, or seeds are few.
    Of two seeds intervals are not to be read, and are not shown: `has_intervals`.
    `finished` is False where it was stopped before all seeds had ended. `keep_accuracy` is what was asked for.
    """

    important: tuple[str, ...]
    setting: Setting
    shift: tuple[float, ...]
    training_name: str
    training: Training
    ramp_name: str
    ramps: tuple[str, ...]
    before: Figures
    after: Figures
    recall_gain: Interval
    accuracy_gain: Interval
    over_shifted: Interval | None
    gain_is_shown: bool
    is_unanimous: bool
    caution: str | None
    steps: tuple[Step, ...]
    paid: tuple[tuple[str, Interval], ...]
    handed: Handed
    num_seeds: int
    num_trainings: int
    num_settings: int
    num_trials: int
    num_failed: int
    wall_s: float
    out: Path
    model_path: Path
    page_path: Path | None
    answer: str
    finished: bool
    keep_accuracy: float

    @property
    def accuracy_fell(self) -> bool:
        """Whether accuracy is surely lower than was allowed, on test images."""
        return self.has_intervals and self.accuracy_gain.high < -self.keep_accuracy

    @property
    def has_intervals(self) -> bool:
        """Whether there are models enough for intervals over seeds."""
        return self.num_seeds >= LEAST_SEEDS

    def load(self) -> "Model":
        """The model, ready to predict."""
        from camri.export import load

        return load(self.model_path)

    def __str__(self) -> str:
        return self.answer
