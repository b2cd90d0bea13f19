"""The list of rivals, and the race that halves it."""

from types import SimpleNamespace

import numpy as np

from camri.decision import MostRecall, condense
from camri.fitting import rivals
from camri.fitting.judge import Held
from camri.fitting.rivals import Race, list_rivals, num_rivals
from camri.fitting.trainer import CE, setting_of
from camri.methods import METHODS

COLUMN = ((1, 1.0),)


def test_four_methods_at_two_strengths_come_first_and_those_without_a_control_before_the_others():
    assert [name for name, _ in list_rivals(8)] == 2 * ["two_sided_logits", "wce", "logit_adjusted", "camri"]
    every = list_rivals(10_000)
    assert len(every) == len(set(every)) > rivals.MOST_RIVALS
    assert {name for name, _ in every} == {name for name, entry in METHODS.items() if entry.first}
    for point in every:
        setting_of(point, COLUMN)


def test_a_race_takes_its_share():
    assert [num_rivals(left) for left in (0, 20, 100, 10_000)] == [2, 4, 20, 40]


def scores(recall):
    """Ten important rows, of which a share is found, and ten others."""
    lead = np.where(np.arange(10) < 10 * recall, 1.0, -2.0)
    logits = np.stack([np.zeros(20), np.concatenate([lead, np.full(10, -1.0)])], axis=1)
    return condense(logits, [1] * 10 + [0] * 10, (1,))


class Run:
    """A run whose models find what is given, by method."""

    def __init__(self, recalls, num_calls=99):
        self.recalls, self.calls, self.num_calls = recalls, [], num_calls

    def train(self, points, seeds, until_s):
        self.calls.append((list(points), list(seeds)))
        return len(self.calls) <= self.num_calls

    def models(self, setting, important, seeds):
        if setting == CE:
            return [Held(seed, {"val": scores(0.5)}) for seed in seeds]
        key = next(point for point in self.recalls if setting_of(point, COLUMN).key == setting.key)
        return [Held(seed, {"val": scores(self.recalls[key])}) for seed in seeds]


def race(run):
    request = SimpleNamespace(goal=MostRecall(), prior_rows=0)
    return Race(run, COLUMN, range(10), request).winner(list(run.recalls))


def test_every_round_has_one_more_seed_and_half_the_rivals():
    points = list_rivals(4)
    run = Run(dict(zip(points, (0.5, 0.6, 0.9, 0.7), strict=True)))
    assert race(run) == points[2]
    assert run.calls == [(points, [0]), ([points[2], points[3]], [1])]


def test_of_equals_the_one_listed_first_wins():
    points = list_rivals(2)
    assert race(Run(dict.fromkeys(points, 0.6))) == points[0]


def test_an_incomplete_round_counts_for_nobody():
    points = list_rivals(4)
    recalls = dict(zip(points, (0.5, 0.6, 0.9, 0.7), strict=True))
    assert race(Run(recalls, num_calls=0)) is None
    assert race(Run(recalls, num_calls=1)) == points[2]
