"""Trials by their scores: with the test images' for a judge, without them for those who choose."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from camri.metrics import Scores


@dataclass(frozen=True, eq=False)
class Trial:
    """One seed of a setting: the trained model's scores of the validation and of the test images."""

    seed: int
    val: Scores
    test: Scores


@dataclass(frozen=True, eq=False)
class Validation:
    """A setting as `choose` sees it: its validation scores by seed."""

    key: str
    scores: Mapping[int, Scores]

    def of(self, seeds: Collection[int]) -> "Validation":
        """The same setting with these seeds only."""
        return Validation(self.key, {seed: one for seed, one in self.scores.items() if seed in seeds})


@dataclass(frozen=True, eq=False)
class Candidate:
    """A setting with its trials; `key` is its name in tables."""

    key: str
    trials: Sequence[Trial]

    def validation(self) -> Validation:
        """What `choose` may see of it."""
        return Validation(self.key, {trial.seed: trial.val for trial in self.trials})
