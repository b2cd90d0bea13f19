"""The curve of a rule: by hand, against every cut-off tried row by row, and counted on some of the rows."""

from dataclasses import replace

import numpy as np
import pytest

from camri.decision import Scores, Shift, Threshold, condense, exact, short_between, trace
from camri.decision.curve import Curve, Sweep, _order
from camri.errors import InputError
from tests.decision.made import figures, predict, rows, softmax

# Six images of class 0 or 1; the logit of class 0 is 0 throughout, so the lead of class 1 is its logit.
LEADS = np.array([0.5, -1.0, -2.0, -1.5, -3.0, 0.25])
LABELS = np.array([1, 1, 1, 0, 0, 0])
RULES = {"shift": Shift, "threshold": Threshold}


def scores_of(leads, labels):
    return condense(np.stack([np.zeros(len(leads)), leads], axis=1), labels, (1,))


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_breakpoints_are_sorted_as_numpy_sorts_them(kind):
    drawn = np.random.default_rng(0).normal(0, 2, 5000).astype(kind).astype(np.float64)
    values = np.concatenate([drawn, drawn[:99], [0.0, -0.0, 60000.0, -60000.0, 6e-8, -6e-8]])
    assert _order(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert _order(values * 1e9).tolist() == np.argsort(values * 1e9, kind="stable").tolist()  # beyond halves


def test_the_curve_of_six_images_by_hand():
    curve = trace(scores_of(LEADS, LABELS))
    # Going up, class 1 wins: image 0 above −.5, 5 above −.25, 1 above 1, 3 above 1.5, 2 above 2, 4 above 3.
    assert curve.value.tolist() == [-1.5, -0.375, 0.0, 1.25, 1.75, 2.5, 4.0]
    assert curve.hits[:, 0].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert curve.predicted[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert curve.correct.tolist() == [3, 4, 3, 4, 3, 4, 3]
    assert curve.alarms.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert (curve.start, curve.before.hits.tolist(), curve.before.alarms.tolist()) == (2, [[1]], [1])
    assert curve.reach([0.0, 1 / 3, 0.5, 2 / 3, 1.0]).tolist() == [0, 1, 3, 3, 5]
    assert curve.precision[curve.reach(1.0)].tolist() == [3 / 5]
    for wrong in (1.5, [0.5, 1.5], [-0.1, 0.5]):
        with pytest.raises(InputError, match=r"recall=.* is not allowed"):
            curve.reach(wrong)
    level = trace(scores_of([-1.0, -1.0, -1.0], [1, 0, 1]))  # images that are level change together
    assert (level.value.tolist(), level.correct.tolist()) == ([0.0, 2.0], [1, 2])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("important", [(2,), (1, 3), (0, 2, 3)])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "rounded"])
def test_every_state_is_what_its_number_does_and_no_other_cut_off_does_else(rule, important, kind):
    logits, labels = rows(90, seed=3)
    table = logits if kind == "logits" else softmax(logits).round(2 if kind == "rounded" else 17)
    name = "logits" if kind == "logits" else "probabilities"
    curve = trace(exact(table, labels, important, name), rule)
    assert (np.diff(curve.value) * (1 if rule == "shift" else -1) > 0).all()
    assert (np.diff(curve.mean_recall) >= 0).all()
    states = set()
    for state in range(len(curve.states)):
        found = curve.rule(state, as_factor=name == "probabilities")
        assert curve.find(found) == state
        recall, accuracy, alarms = figures(predict(found, table, name), labels, important)
        counted = curve.recall[state], curve.accuracy[state], curve.alarms[state] / curve.total
        assert np.allclose(np.hstack([recall, accuracy, alarms]), np.hstack(counted))
        states.add((tuple(curve.hits[state].tolist()), int(curve.correct[state])))
    grid = np.linspace(-7.0123, 7, 101) if rule == "shift" else np.linspace(0.00123, 0.99, 101)
    for cut in grid:
        said = predict(RULES[rule](dict.fromkeys(important, cut)), table, name)
        hits = tuple(int(((said == k) & (labels == k)).sum()) for k in important)
        assert (hits, int((said == labels).sum())) in states


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("important", [(1,), (0, 2)])
def test_counts_of_some_rows_are_the_sweep_of_these_rows(rule, important):
    logits, labels = rows(240, seed=5)
    scores = exact(logits.round(1), labels, important)
    sweep, parts = Sweep(scores, rule), np.random.default_rng(0).integers(0, 4, 240)
    whole = sweep.counts()
    for part, counted in enumerate(sweep.counts_by(parts)):
        own, others = np.flatnonzero(parts == part), np.flatnonzero(parts != part)
        same_curve(sweep.curve(counted), trace(scores.take(own), rule))
        same_curve(sweep.curve(whole.without(counted)), trace(scores.take(others), rule))
        same_curve(sweep.curve(sweep.counts(rows=own)), trace(scores.take(own), rule))
    times = np.random.default_rng(1).poisson(1.0, 240)
    drawn = trace(scores.take(np.repeat(np.arange(240), times)), rule)
    same_curve(sweep.curve(sweep.counts(times.astype(float))), drawn)
    delta = np.arange(240.0)
    assert sweep.sums(delta)[-1] == pytest.approx(delta[sweep.place < sweep.num_states].sum())
    many = [whole.drawn(np.random.default_rng(seed)).table.sum() for seed in range(20)]
    assert np.mean(many) == pytest.approx(240, abs=20)


def same_curve(one: Curve, other: Curve):
    """The same figures in the same order; of equal states the first is enough."""

    def points(curve):
        table = np.column_stack([curve.hits, curve.predicted, curve.correct, curve.alarms])
        return table[np.append(True, (np.diff(table, axis=0) != 0).any(axis=1))]

    assert np.allclose(points(one), points(other))
    assert np.allclose(one.before.hits, other.before.hits)
    assert np.allclose(one.before.accuracy, other.before.accuracy)


def test_no_shift_moves_a_probability_of_exactly_0_or_1():
    with np.errstate(divide="ignore"):
        lead = np.log([[0.0], [0.5], [1.0], [0.2]]) - np.log([[1.0], [0.5], [0.0], [0.8]])
    curve = trace(replace(scores_of([0.0] * 4, [1, 1, 1, 0]), lead=lead))
    assert np.isfinite(curve.value).all()
    assert curve.hits[:, 0].tolist() == [1, 2, 2]


def test_leads_that_single_precision_cannot_tell_apart_are_one_cut_off():
    logits = np.array([[2.4, 0.3], [2.5, 0.4], [2.9, 0.8], [0.0, 3.0]], dtype=np.float32)
    scores = exact(logits, [1, 0, 1, 0], [1])
    assert len(np.unique(scores.lead)) > 2
    assert trace(scores).hits[:, 0].tolist() == [0, 0, 2]
    assert trace(scores).number(2) == 3.0  # and not 2.10000004


def votes(num_trees, seed, num=300):
    """Shares of the votes of a few trees, which tie all the time: .3 / .6 is .1 / .2 but for rounding."""
    drawn = np.random.default_rng(seed)
    logits, labels = rows(num, seed=seed)
    return np.stack([drawn.multinomial(num_trees, p * (1 - 1e-12)) for p in softmax(logits)]) / num_trees, labels


@pytest.mark.parametrize("num_trees", [10, 100])
@pytest.mark.parametrize("important", [[1], [1, 2]])
def test_tied_votes_are_decided_as_argmax_decides(num_trees, important):
    table, labels = votes(num_trees, seed=7)
    scores = exact(table, labels, important, "probabilities")
    curve, unchanged = trace(scores), Shift(dict.fromkeys(important, 0.0))
    assert unchanged.predict(table, kind="probabilities").tolist() == table.argmax(axis=1).tolist()
    assert scores.accuracy() == np.mean(table.argmax(axis=1) == labels) == curve.accuracy[curve.find(unchanged)]
    for state in range(len(curve.value)):
        moved = table.copy()
        moved[:, important] *= curve.number(state, as_factor=True)
        assert (moved.argmax(axis=1) == labels).sum() == curve.correct[state]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_threshold_separates_neighbouring_numbers_in_their_own_precision(kind):
    low = kind(0.3)
    high = np.nextafter(low, kind(1), dtype=kind)
    table = np.array([[1 - low, low], [1 - high, high]], dtype=kind)
    curve = trace(exact(table, [0, 1], [1], "probabilities"), "threshold")
    threshold = curve.number(int(curve.reach(1.0)))
    assert (table[:, 1] > kind(threshold)).tolist() == (table[:, 1] > threshold).tolist() == [False, True]


@pytest.mark.parametrize("ends", [(0.1, 0.2), (1 / 3, 1 / 3 + 1e-12), (-5.0, 7.0), (1e-300, 3e-300)])
def test_the_shortest_number_lies_between(ends):
    assert ends[0] < short_between(*ends) < ends[1]


def test_many_cut_offs_are_tried_together_and_no_shift_stays_a_state(monkeypatch):
    monkeypatch.setattr("camri.decision.curve.MOST_CUTS", 50)
    logits, labels = rows(2000)
    scores = exact(logits, labels, [1])
    curve = trace(scores)
    assert 40 <= len(curve.states) <= 60
    assert isinstance(scores, Scores)
    assert curve.accuracy[curve.start] == scores.accuracy()
    for state in range(len(curve.states)):
        assert curve.accuracy[state] == scores.accuracy(curve.rule(state))
