"""The search by value: what a candidate is worth, what is proposed, what Optuna hears, who goes on."""

import numpy as np
import pytest

from camri.fitting import search as searching
from camri.fitting.budget import Race
from camri.fitting.search import Search, weigh
from camri.fitting.trainer import setting_of
from camri.methods import MARGIN_UNIT
from camri.metrics import condense
from camri.selection import Rule, Validation
from tests.fitting.test_parts import COLUMN, FakeRun, made_scores, run_search


def leads(*values):
    """Scores of two images of the important class and three others, whose important score leads by these."""
    return condense(np.array([[0.0, value] for value in values]), [1, 1, 0, 0, 0], important=(1,))


def test_a_candidate_is_worth_what_it_reaches_with_its_shift_over_the_seeds_it_shares_with_the_baseline():
    ce = Validation("ce", {seed: leads(1.0, -2.0, -3.0, -4.0, -5.0) for seed in range(2)})  # .8 accurate
    ahead = leads(1.0, -0.5, -1.5, -4.0, -5.0)  # all five right at a shift of 1
    found = weigh(Validation("x", {0: ahead}), ce, Rule())
    assert found.rank == (1.0, 1.0, -1.0)  # recall, accuracy, and the smaller shift
    assert (found.value, found.missing) == (1.01, pytest.approx(-0.2))
    # Shifts to either side cost the same.
    behind = leads(2.5, 3.5, 1.5, 1.5, -5.0)  # .6 as it is, all five right at a shift of −2
    assert weigh(Validation("x", {0: behind}), ce, Rule()).rank[2] == -2.0
    # Seeds of the one alone do not count: 1 and 2 here are hopeless.
    hopeless = leads(-1.0, -1.0, 1.0, 1.0, 1.0)
    few = Validation("ce", {0: ce.scores[0], 2: hopeless})
    assert weigh(Validation("x", {0: ahead, 1: hopeless}), few, Rule()) == found
    # No shift reaches the floor: the best there is are the three others.
    lost = weigh(Validation("x", {0: hopeless}), ce, Rule())
    assert (lost.rank, lost.value, lost.missing) == ((-np.inf, 0.6, 0.0), 0.006, pytest.approx(0.2))
    kept = weigh(Validation("x", {0: hopeless}), ce, Rule(max_accuracy_drop=0.25))
    assert kept.rank > (0.0, 0.0, -np.inf)
    assert kept.missing == pytest.approx(0.55 - kept.rank[1])
    assert weigh(Validation("x", {5: ahead}), ce, Rule()) == searching.UNKNOWN


def test_the_search_space_is_round_values_of_each_method():
    pytest.importorskip("optuna")
    with searching._quiet() as optuna:
        points = []
        study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=0))
        study.optimize(lambda trial: points.append(searching.suggest(trial)) or 0.0)  # until every point was asked
    found = {method: {values for name, values in points if name == method} for method in searching.searched()}
    scales = (4.0, 8.0, 16.0, 32.0)
    assert found["l2softmax"] == {(scale,) for scale in scales}
    assert found["camri"] == {(m * np.pi / 64, scale) for m in range(1, 13) for scale in scales}
    assert found["cosface"] == {(round(0.05 * m, 10), scale) for m in range(1, 9) for scale in scales}
    assert found["logit_adjusted"] == {(d, 0.0) for d in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)}
    deltas = (0.6, 0.7, 0.8, 0.9)
    assert found["vector_scaling"] == {(delta, d) for delta in deltas for d in (0.0, 0.5, 1.0, 1.5, 2.0)}
    assert found["wce"] == {(weight,) for weight in (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)}
    assert found["two_sided_logits"] == {(m,) for m in (0.25, 0.5, 1.0, 1.5, 2.0)}


def test_what_has_done_well_elsewhere_is_proposed_first_and_one_of_each_method():
    _, run = run_search(num=8)
    points, seeds = run.calls[0]
    assert points == [
        ("camri", (8 * MARGIN_UNIT, 8.0)),
        ("wce", (4.0,)),
        ("l2softmax", (8.0,)),
        ("cosface", (0.2, 8.0)),
        ("two_sided_logits", (1.0,)),
        ("logit_adjusted", (1.0, 0.0)),
        ("vector_scaling", (0.8, 0.0)),
        ("camri", (4 * MARGIN_UNIT, 16.0)),
    ]
    assert seeds == [0]


def test_the_last_round_s_candidates_are_all_there_for_another_method(monkeypatch):
    """Three of CAMRI lead six; the third of them makes room though all of the others are in the worse half."""
    margins = [{"method": "camri", "s": 1, "camri.m": place} for place in (11, 9, 8)]
    others = [{"method": "l2softmax", "s": 1}, {"method": "wce", "wce.w": 2}, {"method": "l2softmax", "s": 0}]
    monkeypatch.setattr(searching, "first_settings", lambda: [*margins, *others])
    (finalists, _), _ = run_search(num=6)
    first, second, third = (method for method, _ in finalists)
    assert first == second == "camri" != third


@pytest.mark.filterwarnings("error::FutureWarning", "error::optuna.exceptions.ExperimentalWarning")
def test_packs_are_as_wide_as_asked_and_no_wider_than_needed(monkeypatch):
    monkeypatch.setattr(searching, "PACK_SIZE", 3)
    (_, num_tried), run = run_search(num=7)
    assert [len(points) for points, seeds in run.calls if seeds == [0]] == [3, 3, 1]
    assert num_tried == 7


class Clock:
    """A budget whose time is up after so many packs and rounds."""

    def __init__(self, num_calls):
        self.num_calls = num_calls

    def fits(self, num_trials, until_s):
        self.num_calls -= 1
        return self.num_calls >= 0


@pytest.mark.parametrize(("num_calls", "sizes"), [(0, [8]), (1, [8, 8]), (4, [8, 8, 4, 10, 5])])
def test_no_pack_or_round_begins_when_the_time_is_up(num_calls, sizes):
    run = FakeRun()
    Search(run, COLUMN, Race(20, 3), range(9), Rule(), 0, Clock(num_calls), 1.0).finalists()
    assert [len(points) for points, _ in run.calls] == sizes


def test_optuna_gets_recall_then_accuracy_and_what_is_missing_to_the_floor(monkeypatch):
    optuna = pytest.importorskip("optuna")
    told = []
    real = optuna.study.Study.tell

    def tell(self, trial, value):
        by_trial = hasattr(trial, "constraints")  # from Optuna 5 on
        missing = tuple(trial.constraints.values()) if by_trial else trial.user_attrs["constraint"]
        told.append((missing, value, self.direction.name))
        return real(self, trial, value)

    monkeypatch.setattr(optuna.study.Study, "tell", tell)
    before = optuna.logging.get_verbosity()
    _, run = run_search(num=3)
    assert optuna.logging.get_verbosity() == before
    points, _ = run.calls[0]
    ce = run.validation(searching.CE, [1]).of([0])
    expected = []
    for point in points:
        reached = weigh(run.validation(setting_of(point, COLUMN), [1]).of([0]), ce, Rule())
        expected.append(((reached.missing,), reached.value, "MAXIMIZE"))
    assert told == expected


def test_of_equals_the_one_that_was_proposed_first_wins():
    class Equal(FakeRun):
        def train(self, points, seeds, until_s, least=0):
            self.calls.append((list(points), list(seeds)))
            for point in points:
                self.known.setdefault(setting_of(point, COLUMN).key, {}).update({s: made_scores(s) for s in seeds})
            return True

    (finalists, _), run = run_search(num=6, run=Equal())
    assert [(len(points), seeds) for points, seeds in run.calls] == [(6, [0])]
    assert finalists == run.calls[0][0][:3]
