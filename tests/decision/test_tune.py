"""The chooser against brute force: every cut-off is tried row by row, and the best by the goal's order is chosen."""

import numpy as np
import pytest

from camri.decision import (
    PRIOR_ROWS,
    AtLeast,
    Calibration,
    LeastCost,
    LowestCost,
    MostRecall,
    Present,
    Shift,
    Threshold,
    Tuner,
    condense,
    exact,
    is_argmax,
    pool,
    trace,
    tune,
)
from camri.errors import InputError
from tests.decision.made import costs_of, figures, predict, rows, softmax, table

MAKE = {"shift": Shift, "threshold": Threshold}
COSTS = costs_of([1], 4, 3)
GOALS = [MostRecall(), MostRecall(0.05), AtLeast(0.9, is_seen=True), AtLeast(1.0, is_seen=True), LeastCost(COSTS)]


def cut_offs(table_, labels, important, rule, kind):
    """Every number between two neighbouring rows, and beyond the ends."""
    scores = exact(table_, labels, important, kind)
    at = np.unique(-scores.lead.max(axis=1) if rule == "shift" else scores.probabilities().max(axis=1))
    at = at[np.isfinite(at)]
    between = (at[1:] + at[:-1]) / 2
    return [at[0] - 1, *between, at[-1] + 1, 0.0] if rule == "shift" else [*between, at[0] / 2, (1 + at[-1]) / 2]


def tried(goal, rule, table_, labels, important, kind, prior_rows):
    """(meets the goal, worth, rows moved, predictions) of argmax and of every cut-off that lowers no recall."""
    plain, num = table_.argmax(axis=1), len(labels)
    now, accuracy, _ = figures(plain, labels, important)
    trust = num / (num + prior_rows)
    gain = Calibration.of(exact(table_, labels, important, kind)).gain(exact(table_, labels, important, kind))
    own = np.isin(plain, important)
    rules = [MAKE[rule](dict.fromkeys(important, cut)) for cut in cut_offs(table_, labels, important, rule, kind)]
    if rule == "threshold":
        rules.append(Shift(dict.fromkeys(important, 0.0)))
    for one in rules:
        said = predict(one, table_, kind)
        recall, seen, alarms = figures(said, labels, important)
        thought = (gain * (np.isin(said, important).astype(float) - own)).mean()
        expected = accuracy + trust * (seen - accuracy) + (1 - trust) * thought
        moved = abs(int(np.isin(said, important).sum()) - int(own.sum()))
        if isinstance(goal, LeastCost):
            yield True, -COSTS[labels, said].mean(), moved, said
            continue
        keeps = all(then >= before - 1e-9 for then, before in zip(recall, now, strict=True))
        if rule == "shift":
            keeps = keeps and min(one.values.values()) >= -1e-9
        if isinstance(goal, MostRecall):
            yield keeps and expected >= accuracy - goal.max_accuracy_drop - 1e-9, np.mean(recall), moved, said
        else:
            yield keeps and min(recall) >= goal.recall - 1e-9, -alarms, moved, said


@pytest.mark.parametrize("rule", MAKE)
@pytest.mark.parametrize("important", [[1], [0, 2]], ids=str)
@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
@pytest.mark.parametrize("kind", ["logits", "rounded"])
@pytest.mark.parametrize("prior_rows", [0, PRIOR_ROWS])
def test_the_rule_is_the_best_of_all_cut_offs(rule, important, goal, kind, prior_rows):
    if prior_rows and (not isinstance(goal, MostRecall) or rule == "threshold"):
        pytest.skip("a prior is for the most recall")
    logits, labels = rows(90, seed=3, held_back=important)
    scores = logits if kind == "logits" else softmax(logits).round(3)
    kind = "logits" if kind == "logits" else "probabilities"
    found = tune(exact(scores, labels, important, kind), goal, rule=rule, prior_rows=prior_rows)
    every = list(tried(goal, rule, scores, labels, important, kind, prior_rows))
    met = [one for one in every if one[0]]
    assert found.has_met == bool(met)
    if not met:
        assert is_argmax(found.rule)
        return
    best = max(one[1] for one in met)
    least = min(one[2] for one in met if one[1] >= best - 1e-9)
    said = found.rule.predict(scores, kind)
    mine = next(one for one in met if (one[3] == said).all())
    assert mine[1] == pytest.approx(best)
    if rule == "shift":  # of a threshold the start is another one: the state with as many predictions
        assert mine[2] == least
    recall, accuracy, alarms = figures(said, labels, important)
    assert found.recall == pytest.approx(recall)
    assert (found.accuracy, found.false_alarms) == pytest.approx((accuracy, alarms))


def test_no_recall_falls_and_no_shift_is_negative_unless_costs_ask_for_it():
    fallen = 0
    for seed in range(60):
        logits, labels, important = table(seed)
        scores = exact(logits, labels, important)
        for goal in (MostRecall(), MostRecall(0.02)):
            for rule in ("auto", "threshold"):
                found = tune(scores, goal, rule=rule)
                assert (scores.hits(found.rule) >= scores.hits()).all()
                assert isinstance(found.rule, Threshold) or min(found.rule.values.values()) >= 0
        cost = tune(scores, LeastCost(1 - np.eye(logits.shape[1])), rule="shift")
        fallen += bool((scores.hits(cost.rule) < scores.hits()).any())
    assert fallen, "for a cost it may"


def test_a_prior_keeps_few_rows_from_overfitting():
    """The best possible model, so that every shift costs: on average 1.2 points, and 0.05 with a prior."""

    def draw(num, seed):
        drawn = np.random.default_rng(seed)
        labels = drawn.integers(0, 4, num)
        return condense(1.8 * (drawn.normal(size=(num, 4)) + 1.8 * np.eye(4)[labels]), labels, (0,))

    fresh, lost = draw(20_000, 99), []
    for seed in range(40):
        scores = draw(100, [1, seed])
        rules = [tune(scores, MostRecall(), prior_rows=num).rule for num in (0, PRIOR_ROWS)]
        lost.append([fresh.accuracy() - fresh.accuracy(rule) for rule in rules])
    free, held = np.mean(lost, axis=0)
    assert free > 0.008
    assert held < 0.002


def test_what_a_method_tilted_is_the_same_to_a_present_decision():
    logits, labels = rows(200, 6, spread=2.0)
    logits = np.round(logits, 3)
    tilted = logits + 2.0 * np.isin(np.arange(6), (1, 4))
    plain, method = (exact(one, labels, (1, 4)) for one in (logits, tilted))
    points = [
        tune(one, MostRecall(), present=Present.of(plain), keeps_recall=False, prior_rows=100)
        for one in (plain, method)
    ]
    (shift, _), (other, _) = (list(point.rule.values.values()) for point in points)
    assert shift > 0
    assert other == pytest.approx(shift - 2.0, abs=0.01)
    assert points[0].recall == points[1].recall


def test_models_that_share_a_rule_are_counted_together_and_pooled_rows_are_more_rows():
    first, second = (exact(*rows(300, seed=seed), [1]) for seed in (0, 5))
    assert tune([first, first], MostRecall()).rule == tune(first, MostRecall()).rule
    more = pool([first, second])
    both = tune(more, MostRecall(), prior_rows=0)
    assert (len(more), both.rule) == (600, tune([more], MostRecall(), prior_rows=0).rule)
    assert tune(more, LeastCost(1 - np.eye(4))).accuracy == pytest.approx(1 - tune(more, LeastCost(1 - np.eye(4))).cost)


@pytest.mark.parametrize("rule", MAKE)
@pytest.mark.parametrize(
    "goal", [MostRecall(0.01), AtLeast(0.8, is_seen=True), LeastCost(COSTS)], ids=lambda goal: goal.name
)
def test_weights_count_rows_several_times(rule, goal):
    logits, labels = rows(200)
    times = np.random.default_rng(1).integers(0, 4, 200)
    weighed = tune(exact(logits, labels, [1]), goal, rule=rule, weights=times, prior_rows=0)
    every = tune(exact(logits.repeat(times, axis=0), labels.repeat(times), [1]), goal, rule=rule, prior_rows=0)
    for name in ("has_met", "recall", "precision", "accuracy", "false_alarms", "cost"):
        assert getattr(weighed, name) == (value := getattr(every, name)) or getattr(weighed, name) == pytest.approx(
            value
        )


@pytest.mark.parametrize("goal", [MostRecall(), MostRecall(0.02), AtLeast(0.7)], ids=str)
@pytest.mark.parametrize("important", [[1], [0, 2]], ids=str)
def test_folds_are_tuned_as_their_rows_alone(goal, important):
    logits, labels = rows(300, seed=2, held_back=important)
    scores, fold = exact(logits, labels, important), np.arange(300) % 5
    said, _ = Tuner(scores, goal).cross_fit(fold)
    for part in range(5):
        own, others = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        alone = Tuner(scores.take(others), goal, rule=Tuner(scores, goal).names[0]).choose()
        assert (said[own] == alone.rule.predict(scores.take(own))).all()


def test_draws_are_tuned_as_their_rows_alone():
    logits, labels = rows(200, held_back=[1])
    scores = exact(logits, labels, [1])
    tuner = Tuner(scores, MostRecall(0.02), prior_rows=0)
    times = np.random.default_rng(0).poisson(1.0, 200)
    drawn = tuner.choose(times=times.astype(float))
    alone = Tuner(scores.take(np.repeat(np.arange(200), times)), MostRecall(0.02), prior_rows=0).choose()
    assert (drawn.rule, drawn.accuracy) == (alone.rule, pytest.approx(alone.accuracy))
    rules = [one.rule for one in tuner.redraw(20)]
    assert len({next(iter(rule.values.values())) for rule in rules}) > 3


def test_the_spread_shrinks_with_rows_and_widens_with_groups():
    def width(scores, groups=None):
        low, high = tune(scores, AtLeast(0.9), num_draws=60, groups=groups).spread
        return high - low

    assert width(exact(*rows(8000), [1])) < 0.6 * width(exact(*rows(800), [1]))
    logits, labels = rows(100)
    many = exact(logits.repeat(20, axis=0), labels.repeat(20), [1])
    assert width(many, np.repeat(np.arange(100), 20)) > 1.5 * width(many)


def test_the_spread_is_of_the_values_of_the_chosen_kind():
    scores, costs = exact(*rows(150, seed=4), [1]), LeastCost(costs_of([1], 4))
    tuner = Tuner(scores, costs)
    kinds = {type(one.rule) for one in tuner.redraw(40)}
    assert kinds == {Shift, Threshold}, "draws choose both"
    mixed = tune(scores, costs, num_draws=40)
    values = [one.rule.values[1] for one in tuner.redraw(40) if type(one.rule) is type(mixed.rule)]
    assert mixed.spread == pytest.approx(np.quantile(values, [0.05, 0.95]))


def test_probabilities_that_saturate_still_find_their_rows():
    """Logits so far apart that probabilities round to 1: no threshold below 1 tells them apart, and none is lost."""
    leads = np.concatenate([np.linspace(40, 60, 100), np.linspace(-60, 45, 100)])
    found = tune(exact(np.stack([np.zeros(200), leads], axis=1), np.repeat([1, 0], 100), [1]), AtLeast(0.95))
    assert found.recall == (1.0,)
    assert isinstance(found.rule, Shift) or 0 < found.rule.values[1] < 1


def test_what_no_rule_meets_is_argmax_and_says_so():
    zero = exact([[1.0, 0.0], [0.4, 0.6], [0.9, 0.1]], [1, 1, 0], [1], "probabilities")
    few = exact(*rows(20), [1])
    for scores, goal in ((zero, AtLeast(0.9)), (few, AtLeast(0.95, confidence=0.95))):
        found = tune(scores, goal)
        assert not found.has_met
        assert is_argmax(found.rule)
        assert found.recall == pytest.approx(scores.recall().tolist())
        assert found.rank[0] == -np.inf


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda rows: tune(rows, MostRecall(), rule="best"), "rule='best' is unknown"),
        (lambda rows: tune(rows, LeastCost(np.ones((2, 2)))), "does not fit class 3"),
        (lambda rows: tune(rows, MostRecall(), weights=[1.0]), "weights .* do not fit"),
        (lambda rows: tune(rows, MostRecall(), groups=[1]), "groups .* do not fit 300 rows"),
        (lambda rows: tune(rows.take(rows.labels != 1), MostRecall()), r"classes \[1\] have no rows"),
        (lambda _: tune(condense(*rows(), (1,)), LeastCost(np.eye(4))), "costs need the scores of all classes"),
        (lambda rows: tune([rows, rows.take(np.arange(99))], MostRecall()), "are of different rows"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(exact(*rows(), [1]))


# ---- the least cost: argmin of the expected cost is among the rules


def mean_cost(matrix, labels, said):
    return matrix[labels, said].mean()


def test_no_rule_costs_more_than_argmax_on_the_tuning_rows():
    for seed in range(60):
        logits, labels, important = table(seed)
        matrix = np.random.default_rng(seed).uniform(-1, 3, (logits.shape[1],) * 2)
        found = tune(exact(logits, labels, important), LeastCost(matrix), table=logits)
        cost = mean_cost(matrix, labels, found.rule.predict(logits))
        assert cost <= mean_cost(matrix, labels, logits.argmax(axis=1)) + 1e-9
        assert found.cost == pytest.approx(cost)


@pytest.mark.parametrize("distort", [lambda z: z, lambda z: 3 * z - [1.0, 0, 2, 0, 0]], ids=["calibrated", "not"])
def test_the_lowest_cost_is_clearly_below_that_of_one_cut_off(distort):
    """Costs that differ by pair of classes: one number for the important classes cannot follow them."""
    costs = {"argmax": [], "cut-off": [], "found": []}
    for seed in range(8):
        drawn = np.random.default_rng(seed)
        labels = drawn.integers(0, 5, 4000)
        logits = distort(1.3 * (drawn.normal(size=(4000, 5)) + 1.3 * np.eye(5)[labels]))
        matrix = drawn.uniform(0, 4, (5, 5)) ** 2 * (1 - np.eye(5))
        scores = exact(logits[:2000], labels[:2000], [1, 3])
        rules = {
            "argmax": Shift({1: 0.0}),
            "cut-off": tune(scores, LeastCost(matrix)).rule,
            "found": tune(scores, LeastCost(matrix), table=logits[:2000]).rule,
        }
        assert isinstance(rules["found"], LowestCost)
        for name, rule in rules.items():
            costs[name].append(mean_cost(matrix, labels[2000:], rule.predict(logits[2000:])))
    means = {name: np.mean(values) for name, values in costs.items()}
    assert means["found"] < 0.9 * means["cut-off"] <= 0.95 * means["argmax"]


def test_a_rule_must_lower_the_cost_to_be_taken():
    logits, labels = rows()
    found = tune(exact(logits, labels, [1]), LeastCost(np.ones((4, 4))), table=logits)
    assert is_argmax(found.rule)
    assert found.has_met
    assert trace(exact(logits, labels, [1])).start > 0
