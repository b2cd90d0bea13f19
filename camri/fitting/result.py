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
    """Test figures over several models: recall is the important classes' mean; hits and num are their sums.

    false_alarms: the share of all images that are of no important class and taken for one. precisions: of what the
    models take for each important class, the share that is of it; None where none of them ever predicts it.
    """

    recall: float
    hits: int
    num: int
    accuracy: float
    false_alarms: float
    precisions: tuple[float | None, ...]


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
    false_alarms_added: Interval | None

    def to_json(self, has_intervals: bool = True) -> dict[str, Any]:
        """As the page reads it; without intervals their ends are None."""
        ends = {} if has_intervals else {"low": None, "high": None}
        changes = {
            "recall_gain": self.recall_gain,
            "accuracy_gain": self.accuracy_gain,
            "false_alarms_added": self.false_alarms_added,
        }
        return {
            "name": self.name,
            "title": self.title,
            **vars(self.figures),
            **{name: None if found is None else found.to_json() | ends for name, found in changes.items()},
        }


@dataclass(frozen=True)
class Handed:
    """The one model that is handed over: of the chosen setting's models the best on validation data.

    `shift` is added to the important classes' scores, one number each. Its figures on test images are of this model
    alone, with Wilson's intervals over images; `hits`, `num` and `called` are of each important class: images found, of
    how many, and all that are taken for it. A precision is None where none is. `false_alarms` is their share of all
    images. `effects`: the design effects of test images in groups, of recalls, accuracy, false alarms and precisions;
    none where they have no groups.
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
    precisions: tuple[Interval | None, ...]
    called: tuple[int, ...]
    false_alarms: Interval
    num_false_alarms: int
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
            "called": list(self.called),
            "num_false_alarms": self.num_false_alarms,
            "effects": list(self.effects),
        }

    @staticmethod
    def of(setting: Setting, seed: int, shift: Sequence[float], hits: Sequence[int], num: Sequence[int],
           num_right: int, num_images: int, called: Sequence[int], num_false_alarms: int,
           effects: Sequence[float] = ()) -> "Handed":  # fmt: skip
        """The handed model's figures with their intervals, from its counts."""
        size, of_all = len(num), effects or [1.0] * (2 * len(num) + 2)
        own, (every, alarms), said = of_all[:size], of_all[size : size + 2], of_all[size + 2 :]
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
            tuple(Interval.of_share(*one) if one[1] else None for one in zip(hits, called, said, strict=True)),
            tuple(called),
            Interval.of_share(num_false_alarms, num_images, alarms),
            num_false_alarms,
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
    false_alarms_added: Interval
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
