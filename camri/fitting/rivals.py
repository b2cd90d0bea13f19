"""Rivals of cross-entropy: a list of simple settings, and a race on validation data that halves it seed by seed."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from camri.fitting.judge import floor_of, tune_rule
from camri.fitting.request import Request
from camri.fitting.trainer import CE, Point, TrainingRun, setting_of
from camri.methods import METHODS, Method
from camri.study.spec import Resolved

MOST_RIVALS = 40
LEAST_RIVALS = 2
RACE_SHARE = 0.4  # of the trials that are left; the finals get the rest


def list_rivals(most: int = MOST_RIVALS) -> list[Point]:
    """The settings to try, most promising first.

    First the methods with two settings in the table, one of each before the second of any, those that need no control
    first; then the other methods that have one; then all other values that the table allows a search.

    >>> list_rivals(3)
    [('wce', (2.0,)), ('two_sided_logits', (1.0,)), ('logit_adjusted', (1.0, 0.0))]
    """
    searched = [(name, entry) for name, entry in METHODS.items() if entry.first]
    searched.sort(key=lambda pair: (len(pair[1].first) < 2, pair[1].control is not None))
    rounds = itertools.zip_longest(*([_point(*pair, values) for values in pair[1].first] for pair in searched))
    two = [point for points in rounds for point in points if point is not None]
    two.sort(key=lambda point: len(METHODS[point[0]].first) < 2)
    rest = itertools.zip_longest(*(list(_grid(*pair)) for pair in searched))
    points = [*two, *(point for points in rest for point in points if point is not None)]
    return list(dict.fromkeys(points))[:most]


def _point(name: str, entry: Method, values: Mapping[str, float]) -> Point:
    return name, tuple(values.get(knob, one.neutral or 0.0) for knob, one in entry.knobs.items())


def _grid(name: str, entry: Method) -> Iterator[Point]:
    for values in itertools.product(*(knob.search or (knob.neutral,) for knob in entry.knobs.values())):
        yield name, tuple(float(value) for value in values if value is not None)


def num_rivals(num_left: int) -> int:
    """Rivals in a race that takes its share of the trials that are left; it trains about twice as many.

    >>> num_rivals(40), num_rivals(9)
    (8, 2)
    """
    return max(LEAST_RIVALS, min(MOST_RIVALS, int(RACE_SHARE * num_left / 2)))


@dataclass(frozen=True)
class Race:
    """A race under one training. Every round trains the rivals with one more seed and keeps the better half.

    Stored trials are not trained again, so an interrupted race resumes. `until_s`: no round ends after it.
    """

    run: TrainingRun
    column: Resolved
    seeds: Sequence[int]
    request: Request
    until_s: float = math.inf

    def winner(self, rivals: Sequence[Point]) -> Point | None:
        """Run the race; None if the time was up before the first round had ended."""
        kept, num_rounds = list(rivals), 0
        while len(kept) > 1 or not num_rounds:
            if not self.run.train(kept, [self.seeds[num_rounds]], self.until_s):
                break  # the round is incomplete: its seed counts for nobody
            num_rounds += 1
            kept = self._rank(kept, num_rounds)[: max(1, len(kept) // 2)]
        return kept[0] if num_rounds else None

    def _rank(self, points: Sequence[Point], num_rounds: int) -> list[Point]:
        """Best first by the goal on validation data; of equals the one that was listed first."""
        important = [index for index, _ in self.column]
        seeds = self.seeds[:num_rounds]
        goal, baseline = self.request.goal, self.run.models(CE, important, seeds)

        def rank(point: Point) -> tuple[float, ...]:
            models = self.run.models(setting_of(point, self.column), important, seeds)
            shared = {one.seed for one in models} & {one.seed for one in baseline}
            if not shared:
                return (-math.inf, -math.inf)
            floor = floor_of(goal, [one for one in baseline if one.seed in shared], self.request.prior_rows)
            return tune_rule(goal, [one for one in models if one.seed in shared], floor).rank

        return sorted(points, key=rank, reverse=True)
