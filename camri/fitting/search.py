"""Candidates proposed by Optuna, raced on validation data: every round halves them, each with a new seed."""

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from camri.decision import trace
from camri.engine.replica import PACK_SIZE
from camri.fitting.plan import Race
from camri.fitting.trainer import Point, TrainingRun, setting_of
from camri.methods import MARGIN_UNIT, setting
from camri.metrics import pool
from camri.selection import Rule, Validation
from camri.study.spec import Resolved

if TYPE_CHECKING:
    import optuna

SCALES = (4.0, 8.0, 16.0, 32.0)  # few, so that finalists share their L2-softmax control
# Asked first, in this order: what has done well elsewhere, one of each method before a second of any.
FIRST: tuple[dict[str, Any], ...] = (
    {"method": "camri", "s": 8.0, "camri.m": 8},
    {"method": "l2softmax", "s": 8.0},
    {"method": "logit_adjusted", "logit_adjusted.d": 1.0},
    {"method": "wce", "wce.w": 4},
    {"method": "cosface", "s": 8.0, "cosface.m": 0.2},
    {"method": "vector_scaling", "vector_scaling.delta": 0.8, "vector_scaling.d": 0.0},
    {"method": "camri", "s": 16.0, "camri.m": 4},
)
METHODS = ("camri", "cosface", "wce", "logit_adjusted", "vector_scaling", "l2softmax")
MOST_OF_A_METHOD = 2  # among the finalists: settings that hardly differ tell the same thing twice
TRIES = 20  # proposals for each place of a pack; if they bring nothing new, the search space is used up
CE = setting("ce")


def suggest(trial: "optuna.trial.Trial") -> Point:
    """The point that an Optuna trial stands for; its values are round, so that finalists can be read and repeated."""
    method = trial.suggest_categorical("method", METHODS)
    if method == "wce":
        return method, (float(trial.suggest_int("wce.w", 2, 32, log=True)),)
    if method == "logit_adjusted":
        return method, (_step(trial, "logit_adjusted.d", 0.5, 3.0, 0.5), 0.0)
    if method == "vector_scaling":
        delta = _step(trial, "vector_scaling.delta", 0.6, 0.9, 0.1)
        return method, (delta, _step(trial, "vector_scaling.d", 0.0, 2.0, 0.5))
    scale = trial.suggest_categorical("s", SCALES)
    if method == "camri":
        return method, (trial.suggest_int("camri.m", 1, 12) * MARGIN_UNIT, scale)
    if method == "cosface":
        return method, (_step(trial, "cosface.m", 0.05, 0.4, 0.05), scale)
    return method, (scale,)


def _step(trial: "optuna.trial.Trial", name: str, low: float, high: float, step: float) -> float:
    return round(trial.suggest_float(name, low, high, step=step), 10)


@dataclass(frozen=True, order=True)
class Worth:
    """What a candidate reaches on validation data, better ones larger: the order is that of `select.choose`.

    Where no shift reaches the floor, `is_kept` is False and the best accuracy there is decides.
    """

    is_kept: bool
    recall: float
    accuracy: float
    small_shift: float
    missing: float = field(compare=False)  # accuracy missing to the floor; at or below 0 there is none


def weigh(candidate: Validation, baseline: Validation, rule: Rule) -> Worth:
    """A candidate's worth over the seeds that it and the baseline share."""
    seeds = set(candidate.scores) & set(baseline.scores)
    if not seeds:
        return Worth(False, 0.0, 0.0, 0.0, 1.0)
    floor = rule.floor(baseline.of(seeds))
    mine = candidate.of(seeds)
    shift = rule.tune(mine, floor)
    if shift is not None:
        missing = floor.accuracy - shift.accuracy
        return Worth(True, shift.value, shift.accuracy, -float(np.abs(shift.shift).sum()), missing)
    best = float(trace(pool(list(mine.scores.values()))).accuracy.max())
    return Worth(False, 0.0, best, 0.0, floor.accuracy - best)


@dataclass(frozen=True)
class SearchResult:
    """The finalists, best first, how many settings were tried, and in how many rounds."""

    finalists: tuple[Point, ...]
    num_tried: int
    num_rounds: int


class RaceLimits:
    """What a race may still do: all that was planned. A budget's time has a stricter one."""

    def __init__(self, race: Race, pack: int = PACK_SIZE):
        self.race, self.pack = race, pack

    def next_pack(self, number: int, num_found: int) -> int:
        """How many candidates the pack of that number has, from 0 on, after so many; 0 ends the proposing."""
        return min(self.pack, self.race.num_candidates - num_found)

    def rounds(self, num_found: int) -> int:
        """How many rounds are planned for so many candidates."""
        return len(self.race.rounds())

    def run_round(self, number: int, bench: TrainingRun, candidates: Sequence[Point], seed: int) -> bool:
        """Whether the round of that number, from 2 on, was run to its end: all candidates have the seed."""
        bench.train(candidates, [seed], f"candidates, round {number}")
        return True


def search(
    bench: TrainingRun, column: Resolved, referee: RaceLimits, seeds: Sequence[int], rule: Rule, seed: int
) -> SearchResult:
    """The finalists of a race; proposals depend on `seed`, the packs and what came of those before, and nothing else.

    What is stored is not trained again, so an interrupted search comes to the same proposals and goes on.
    """
    race = referee.race
    important = [index for index, _ in column]

    def worth(point: Point, num_rounds: int) -> Worth:
        """Its worth by the seeds of so many rounds: an earlier call may have stored later rounds already."""
        baseline = bench.validation(CE, important).of(seeds[:num_rounds])
        return weigh(bench.validation(setting_of(point, column), important), baseline, rule)

    def ranked(points: Sequence[Point], num_rounds: int) -> list[Point]:
        """Best first; of equals the one that was proposed first."""
        return sorted(points, key=lambda one: worth(one, num_rounds), reverse=True)

    candidates = _propose(bench, column, referee, seeds[0], lambda one: worth(one, 1), seed)
    tried, number = len(candidates), 1
    candidates = ranked(candidates, number)
    for _ in range(1, referee.rounds(tried)):
        kept = candidates[: race.kept(len(candidates))]
        if not referee.run_round(number + 1, bench, kept, seeds[number]):
            break
        number += 1
        candidates = ranked(kept, number)
    return SearchResult(tuple(_varied(candidates, race.num_finalists)), tried, number)


def _varied(ranked: Sequence[Point], num: int) -> list[Point]:
    """The first `num`, with no more than two of a method unless there is nothing else."""
    kept: list[Point] = []
    for point in ranked:
        if sum(one[0] == point[0] for one in kept) < MOST_OF_A_METHOD:
            kept.append(point)
    rest = [point for point in ranked if point not in kept]
    return (kept + rest)[:num]


def _propose(
    bench: TrainingRun, column: Resolved, referee: RaceLimits, seed: int, worth: Any, sampler_seed: int
) -> list[Point]:
    """Different points, in packs that the referee allows; Optuna hears what each reached before it proposes more."""
    found: dict[str, Point] = {}
    with _quiet() as optuna:
        # Optuna 4 hears of constraints through its sampler, which Optuna 7 will no longer take.
        by_trial = hasattr(optuna.trial.Trial, "set_constraint")
        told = {} if by_trial else {"constraints_func": lambda trial: trial.user_attrs["constraint"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the liar, and constraints in 4
            sampler = optuna.samplers.TPESampler(
                seed=sampler_seed, n_startup_trials=2 * len(FIRST), constant_liar=True, **told
            )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for values in FIRST:
            study.enqueue_trial(values)
        for number in itertools.count():
            size = referee.next_pack(number, len(found))
            asked: list[tuple[Any, Point]] = []
            new: dict[str, Point] = {}
            for _ in range(TRIES * referee.pack):
                if len(new) == size:
                    break
                trial = study.ask()
                point = suggest(trial)
                asked.append((trial, point))
                key = setting_of(point, column).key
                if key not in found and key != CE.key:
                    new[key] = point
            if not new:
                break
            bench.train(list(new.values()), [seed], "candidates")
            found |= new
            for trial, point in asked:
                reached = worth(point)
                if by_trial:
                    trial.set_constraint("accuracy", reached.missing)
                else:
                    trial.set_user_attr("constraint", (reached.missing,))
                # Recall decides; accuracy is to tell equal recalls apart, of which a small validation split has many.
                study.tell(trial, reached.recall + 0.01 * reached.accuracy)
    return list(found.values())


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """Optuna without its log."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)
