"""The search: candidates proposed by Optuna, raced on validation data; every round adds a seed and halves them."""

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from camri.decision import trace
from camri.engine.replica import PACK_SIZE
from camri.fitting.budget import LEAST_CANDIDATES, Budget, Race
from camri.fitting.trainer import Point, TrainingRun, setting_of
from camri.methods import METHODS, setting
from camri.metrics import pool
from camri.selection import Rule, Validation, worth
from camri.study.spec import Resolved

if TYPE_CHECKING:
    import optuna

MOST_OF_A_METHOD = 2  # among the finalists: settings that hardly differ say the same thing twice
TRIES = 20  # proposals for each place of a pack; if they bring nothing new, the search space is used up
CE = setting("ce")


def searched() -> list[str]:
    """The methods that a fit searches, in the order of the table."""
    return [name for name, entry in METHODS.items() if entry.first]


def first_settings() -> list[dict[str, Any]]:
    """What has done well elsewhere, tried first: one setting of each method before a second of any."""
    rounds = itertools.zip_longest(*(METHODS[name].first for name in searched()))
    return [
        {
            "method": name,
            **{_label(name, knob): METHODS[name].knobs[knob].search.index(v) for knob, v in values.items()},
        }
        for settings in rounds
        for name, values in zip(searched(), settings, strict=True)
        if values is not None
    ]


def suggest(trial: "optuna.trial.Trial") -> Point:
    """The point of an Optuna trial; its values are round, so that finalists are easy to read and repeat."""
    method = trial.suggest_categorical("method", searched())
    values = []
    for name, knob in METHODS[method].knobs.items():
        if knob.search:
            values.append(knob.search[trial.suggest_int(_label(method, name), 0, len(knob.search) - 1)])
        else:
            assert knob.neutral is not None, f"{method}: {name} needs values to search or a neutral one"
            values.append(knob.neutral)
    return method, tuple(values)


def _label(method: str, knob: str) -> str:
    return knob if knob == "s" else f"{method}.{knob}"  # what is known of a scale holds for every method


class Worth(NamedTuple):
    """What a candidate reaches on validation data: its rank by `selection.worth`, and what Optuna learns of it."""

    rank: tuple[float, float, float]
    value: float  # recall; accuracy breaks ties, of which a small validation split has many
    missing: float  # accuracy floor minus accuracy


UNKNOWN = Worth((-math.inf, 0.0, 0.0), 0.0, 1.0)  # of a candidate without scores


def weigh(candidate: Validation, baseline: Validation, rule: Rule) -> Worth:
    """A candidate's worth over the seeds that it shares with the baseline."""
    seeds = set(candidate.scores) & set(baseline.scores)
    if not seeds:
        return UNKNOWN
    floor, mine = rule.floor(baseline.of(seeds)), candidate.of(seeds)
    if (shift := rule.tune(mine, floor)) is not None:
        return Worth(worth(shift), shift.value + 0.01 * shift.accuracy, floor.accuracy - shift.accuracy)
    accuracy = float(trace(pool(list(mine.scores.values()))).accuracy.max())
    return Worth(worth(None, accuracy), 0.01 * accuracy, floor.accuracy - accuracy)


@dataclass(frozen=True)
class Search:
    """A race of settings under one training, on validation data.

    Packs and rounds begin only if they end before `until_s` by the budget's clock. Proposals depend on `seed` and the
    results before them and nothing else, and stored trials are not trained again, so an interrupted search resumes.
    """

    run: TrainingRun
    column: Resolved
    race: Race
    seeds: Sequence[int]
    rule: Rule
    seed: int
    budget: Budget
    until_s: float = math.inf

    def finalists(self) -> tuple[list[Point], int]:
        """Run the race. Returns the finalists, best first, and how many settings were tried."""
        candidates = self._propose()
        num_tried = len(candidates)
        ranked = self._rank(candidates, num_rounds=1)
        for number in range(1, len(Race(num_tried, self.race.num_finalists).rounds())):
            kept = ranked[: self.race.num_kept(len(ranked))]
            if not self.budget.fits(len(kept), self.until_s):
                break
            if not self.run.train(kept, [self.seeds[number]], self.until_s):
                break  # the round is incomplete: its seed counts for nobody
            ranked = self._rank(kept, num_rounds=number + 1)
        return _varied(ranked, self.race.num_finalists), num_tried

    def _worth(self, point: Point, num_rounds: int) -> Worth:
        """A candidate's worth by the seeds of so many rounds: an earlier call may have stored later ones."""
        important = [index for index, _ in self.column]
        baseline = self.run.validation(CE, important).of(self.seeds[:num_rounds])
        return weigh(self.run.validation(setting_of(point, self.column), important), baseline, self.rule)

    def _rank(self, points: Sequence[Point], num_rounds: int) -> list[Point]:
        """Best first; of equals the one that was proposed first."""
        return sorted(points, key=lambda point: self._worth(point, num_rounds).rank, reverse=True)

    def _propose(self) -> list[Point]:
        """Train different points, pack by pack; Optuna learns what each reached before it proposes more."""
        found: dict[str, Point] = {}
        with _quiet() as optuna:
            # Optuna 4 takes constraints through its sampler, which Optuna 7 will no longer do.
            by_trial = hasattr(optuna.trial.Trial, "set_constraint")
            options = {} if by_trial else {"constraints_func": lambda trial: trial.user_attrs["constraint"]}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # constant_liar, constraints
                sampler = optuna.samplers.TPESampler(
                    seed=self.seed, n_startup_trials=2 * len(first_settings()), constant_liar=True, **options
                )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for values in first_settings():
                study.enqueue_trial(values)
            while (size := min(PACK_SIZE, self.race.num_candidates - len(found))) > 0:
                if found and not self.budget.fits(size, self.until_s):
                    break
                asked: list[tuple[Any, Point]] = []
                new: dict[str, Point] = {}
                for _ in range(TRIES * PACK_SIZE):
                    if len(new) == size:
                        break
                    trial = study.ask()
                    point = suggest(trial)
                    asked.append((trial, point))
                    key = setting_of(point, self.column).key
                    if key not in found and key != CE.key:
                        new[key] = point
                if not new:
                    break
                least = 0 if found else LEAST_CANDIDATES
                if not self.run.train(list(new.values()), [self.seeds[0]], self.until_s, least):
                    new = {key: point for key, point in new.items() if self._worth(point, 1) != UNKNOWN}
                found |= new
                for trial, point in asked:
                    reached = self._worth(point, num_rounds=1)
                    if by_trial:
                        trial.set_constraint("accuracy", reached.missing)
                    else:
                        trial.set_user_attr("constraint", (reached.missing,))
                    study.tell(trial, reached.value)
        return list(found.values())


def _varied(ranked: Sequence[Point], num: int) -> list[Point]:
    """The best `num`, at most two of each method unless there is nothing else."""
    kept: list[Point] = []
    for point in ranked:
        if sum(method == point[0] for method, _ in kept) < MOST_OF_A_METHOD:
            kept.append(point)
    rest = [point for point in ranked if point not in kept]
    return (kept + rest)[:num]


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
