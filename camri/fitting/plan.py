"""How many trials each step of a fit gets."""

from collections.abc import Callable
from dataclasses import dataclass

TRAINING_SHARE = 0.2
SEARCH_SHARE = 0.4  # of what is left after the trainings; the finals have the rest
MOST_TRAINING_SEEDS = 5
MOST_FINAL_SEEDS = 20
LEAST_FINAL_SEEDS = 2  # one to choose by, one to judge by
ENOUGH_FINAL_SEEDS = 10  # what the finals keep before other ramps are tried: intervals are worth more than a ramp
FEW_FINAL_SEEDS = 5  # with fewer the answer says so, and a budget's time has finalists given up first
LEAST_RAMP_SEEDS = 2  # one would speak of single models
LEAST_CANDIDATES = 4  # that are tried however slow trials are
FINAL_SHARE = (1 - TRAINING_SHARE) * (1 - SEARCH_SHARE)


@dataclass(frozen=True)
class Trainings:
    """How many of the trainings are tried, with how many seeds."""

    num: int
    num_seeds: int


def plan_trainings(num_trials: int, num_choices: int) -> Trainings:
    """A fifth of the trials for the trainings; where it is little, fewer trainings.

    >>> plan_trainings(100, 5), plan_trainings(16, 5)
    (Trainings(num=5, num_seeds=4), Trainings(num=3, num_seeds=1))
    """
    share = int(TRAINING_SHARE * num_trials)
    num = max(1, min(num_choices, share))
    return Trainings(num, max(1, min(MOST_TRAINING_SEEDS, share // num)))


@dataclass(frozen=True)
class Race:
    """How many candidates start, and how many are left at its end. Every round halves them, each with a new seed."""

    num_candidates: int
    num_finalists: int

    def rounds(self) -> list[int]:
        """Candidates trained in each round.

        >>> Race(8, 2).rounds(), Race(2, 2).rounds()
        ([8, 4], [2])
        """
        found = [self.num_candidates]
        while (kept := self.kept(found[-1])) > self.num_finalists:
            found.append(kept)
        return found

    def kept(self, num: int) -> int:
        """How many of so many go on: the better half, but no fewer than the finalists."""
        return max(self.num_finalists, -(-num // 2))

    def num_trials(self, num_known_seeds: int) -> int:
        """Trials of all rounds; cross-entropy runs along in those whose seed it does not have yet."""
        rounds = self.rounds()
        return sum(rounds) + max(0, len(rounds) - num_known_seeds)

    def num_calls(self, pack: int) -> int:
        """Calls of the engine: a call for each pack of candidates and for each further round."""
        return -(-self.num_candidates // pack) + len(self.rounds()) - 1


def plan_race(num_left: int, num_known_seeds: int) -> Race:
    """The race that so many trials allow.

    >>> plan_race(80, 3).rounds(), plan_race(13, 1).rounds()
    ([18, 9, 5], [4])
    """
    share = int(SEARCH_SHARE * num_left)
    return largest_race(num_finalists(num_left), lambda race: race.num_trials(num_known_seeds) <= share)


def num_finalists(num_left: int) -> int:
    """How many candidates go to the finals, where so many trials are left."""
    return 2 if num_left < 50 else 3 if num_left < 160 else 4


def largest_race(num_finalists: int, is_affordable: Callable[[Race], bool]) -> Race:
    """The race with the most candidates that can be afforded; with as many as finalists where none can."""
    found = Race(num_finalists, num_finalists)
    while is_affordable(bigger := Race(found.num_candidates + 1, num_finalists)):
        found = bigger
    return found


def first_final_seeds(num_trials: int) -> int:
    """Seeds that the finals of so many trials would get, before anything of them is known.

    >>> first_final_seeds(370), first_final_seeds(60), first_final_seeds(16)
    (20, 4, 2)
    """
    num_arms = num_finalists(num_trials) + 3  # cross-entropy, the plain one too, a control
    return max(LEAST_FINAL_SEEDS, plan_finals(int(FINAL_SHARE * num_trials), num_arms))


def protect_seeds(num_trials: int, num_planned: int, num_arms: int) -> int:
    """Seeds of the finals that no step before them may use up: their share, and up to ten of those that were planned.

    num_trials: all that can be trained at the pace, with those that were.

    >>> protect_seeds(200, 20, 6), protect_seeds(100, 20, 6), protect_seeds(100, 5, 6), protect_seeds(900, 20, 6)
    (16, 10, 8, 20)
    """
    return max(plan_finals(int(FINAL_SHARE * num_trials), num_arms), min(num_planned, ENOUGH_FINAL_SEEDS))


def plan_ramps(num_left: int, num_ramps: int, num_finalists: int, num_seeds: int, num_arms: int) -> int:
    """How many of the other ramps are tried, with these finalists and seeds: what the finals can spare.

    >>> plan_ramps(60, 2, 2, 3, 5), plan_ramps(56, 2, 2, 3, 5), plan_ramps(55, 2, 2, 3, 5), plan_ramps(500, 2, 2, 1, 5)
    (1, 1, 0, 0)
    """
    cost = num_finalists * num_seeds
    if not cost or num_seeds < LEAST_RAMP_SEEDS:
        return 0
    return max(0, min(num_ramps, (num_left - ENOUGH_FINAL_SEEDS * num_arms) // cost))


def plan_finals(num_left: int, num_arms: int) -> int:
    """New seeds of every arm of the finals; fewer than two mean that there are too many arms.

    >>> plan_finals(48, 6), plan_finals(500, 5), plan_finals(9, 6)
    (8, 20, 1)
    """
    return min(MOST_FINAL_SEEDS, num_left // num_arms)
