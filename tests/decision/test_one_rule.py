"""One chooser: the audit, the estimator and a study find the same rule on the same rows."""

import sys
import warnings

import numpy as np
import pytest

from camri.decision import PRIOR_ROWS, ImportantClassifier, LowestCost, Present, audit, exact
from camri.errors import InputError
from camri.selection import Rule, Validation
from tests.decision.made import Given, costs_of, softmax, table

GOALS = {
    "most recall": {},
    "a drop": {"max_accuracy_drop": 0.02},
    "at least .8": {"at_least": 0.8},
    "at least .9": {"at_least": 0.9},
    "least cost": {"cost_matrix": None},
}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Intervals are not looked at here."""
    monkeypatch.setattr(sys.modules["camri.decision.audit"], "MOST_DRAWS", 3)
    monkeypatch.setattr(sys.modules["camri.decision.audit"], "FEWEST_DRAWS", 3)


def asked(goal, important, num_classes, seed=0):
    return {name: costs_of(important, num_classes, seed) if value is None else value
            for name, value in GOALS[goal].items()}  # fmt: skip


def estimated(scores, labels, important, kind, options, classes=None):
    """The rule of `ImportantClassifier` with these scores; None where it refuses."""
    classes = np.arange(scores.shape[1]) if classes is None else classes
    model = ImportantClassifier(Given(classes, kind), [classes[k] for k in important], cv="prefit", **options)
    try:
        return model.fit(scores, classes[labels]).decision_.rule
    except InputError:
        return None


def audited(scores, labels, important, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(scores, labels, important, **options)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_every_door_finds_the_same_rule(goal, kind):
    for seed in range(20):
        logits, labels, important = table(seed)
        if logits.shape[1] == 2 and kind == "logits":  # scikit-learn has one score of two classes
            logits = np.stack([np.zeros(len(logits)), logits[:, 1] - logits[:, 0]], axis=1)
        scores = logits if kind == "logits" else softmax(logits)
        options = asked(goal, important, scores.shape[1], seed)
        found = audited(scores, labels, important, kind=kind, **options)
        point, other = found.point, estimated(scores, labels, important, kind, options)
        assert other == (point.rule if point.has_met else None)
        if goal in ("most recall", "a drop") and kind == "logits":
            rows = exact(scores, labels, important)
            study = Rule(prior_rows=PRIOR_ROWS, **options).tune(Validation("ce", {0: rows}), Present.of(rows))
            assert study.rule == point.rule
        if goal != "least cost":
            before = [np.mean(scores[labels == k].argmax(axis=1) == k) for k in important]
            rule_recall = exact(scores, labels, important, kind).recall(point.rule)
            assert (rule_recall >= np.array(before) - 1e-9).all()


def value_of(rule):
    return rule.probabilities.slope if isinstance(rule, LowestCost) else next(iter(rule.values.values()))


@pytest.mark.parametrize("goal", GOALS)
def test_the_order_of_rows_and_columns_and_the_kind_of_labels_change_nothing(goal):
    for seed in range(8):
        logits, labels, important = table(100 + seed)
        if seed % 2:  # rows alike by rounding; of equal largest scores argmax itself takes the first column
            top = np.sort(logits.round(1), axis=1)
            kept = top[:, -1] > top[:, -2]
            logits, labels = logits.round(1)[kept], labels[kept]
        num = logits.shape[1]
        costs = costs_of(important, num, seed)
        names, drawn = np.array(["a", "b", "c", "d", "e", "f"][:num]), np.random.default_rng(seed)

        def found(order, columns, as_labels, classes, logits=logits, labels=labels, important=important, costs=costs):
            options = {name: costs[np.ix_(columns, columns)] if value is None else value
                       for name, value in GOALS[goal].items()}  # fmt: skip
            own = [columns.tolist().index(k) for k in important]
            chosen = own if classes is None else [classes[k] for k in own]
            truth = np.argsort(columns)[labels[order]]
            return audited(logits[order][:, columns], as_labels(truth), chosen, classes=classes, **options)

        same, turned = np.arange(len(labels)), drawn.permutation(len(labels))
        plain = found(same, np.arange(num), np.array, None).point
        moved = drawn.permutation(num)
        others = [
            found(turned, np.arange(num), np.array, None),
            found(same, moved, np.array, None),
            found(turned, moved, lambda truth, names=names[moved]: names[truth], names[moved].tolist()),
            found(
                same, np.arange(num), lambda truth, names=names: [str(name) for name in names[truth]], names.tolist()
            ),
            found(same, np.arange(num), lambda truth: truth.astype(np.uint8).tolist(), None),
        ]
        for other in others:
            point = other.point
            assert (type(point.rule), point.has_met) == (type(plain.rule), plain.has_met)
            if isinstance(plain.rule, LowestCost):  # fitted step by step: the last digit may differ
                assert value_of(point.rule) == pytest.approx(value_of(plain.rule), rel=1e-4)
            else:
                assert value_of(point.rule) == value_of(plain.rule)
            assert sorted(point.recall) == pytest.approx(sorted(plain.recall))
            assert (point.accuracy, point.false_alarms) == pytest.approx((plain.accuracy, plain.false_alarms))


@pytest.mark.parametrize(
    "options", [{}, {"max_accuracy_drop": 0.05}, {"cost_matrix": 1 - np.eye(3) + 9 * np.eye(3, k=-1)}]
)
def test_few_rows_change_nothing(options):
    drawn = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [100, 19, 100])
    logits = drawn.normal(size=(219, 3)) + 2 * np.eye(3)[labels] - [0, 2, 0]
    assert audit(logits, labels, 1, **options).verdict.kind == "cannot_tell"
    model = ImportantClassifier(Given(np.arange(3)), 1, cv="prefit", **options)
    with pytest.warns(UserWarning, match="fewer than 20 rows"):
        model.fit(logits, labels)
    assert model.predict(logits).tolist() == logits.argmax(axis=1).tolist()
