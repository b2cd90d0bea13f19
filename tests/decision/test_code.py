"""The code that users copy decides exactly as the answer's `predict`, on any scores."""

import sys
import warnings

import numpy as np
import pytest
import scipy
from sklearn.linear_model import LogisticRegression

from camri.decision import audit
from camri.report.words import VALUE, codes, number
from tests.decision.made import Given, costs_of, softmax, table

KINDS = ("logits", "probabilities", "percentages")
GOALS = ({}, {"max_accuracy_drop": 0.02}, {"at_least": 0.8}, {"at_least": 0.6}, {"cost_matrix": None})


def scores_of(logits, kind, decimals, dtype):
    scores = logits if kind == "logits" else softmax(logits) * (100 if kind == "percentages" else 1)
    return (scores if decimals is None else scores.round(decimals)).astype(dtype)


def audited(scores, labels, important, **options):
    """The answer, advised whatever its verdict: the code is that of the tuned rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = audit(scores, labels, important, **options)
    object.__setattr__(found.verdict, "kind", "change_the_decision")
    return found


def run(found, language, scores, **names):
    """What the code predicts."""
    names = {"np": np, "scipy": scipy, "logits": scores, "p": scores, "percentages": scores, **names}
    exec(codes(found)[language].replace(VALUE, number(found)), names)
    return np.asarray(names["predicted"])


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(sys.modules["camri.decision.audit"], "MOST_DRAWS", 3)
    monkeypatch.setattr(sys.modules["camri.decision.audit"], "FEWEST_DRAWS", 3)


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_code_predicts_what_the_answer_predicts(goal, few_draws):
    torch = pytest.importorskip("torch")
    rules = set()
    for seed in range(60):
        kind, decimals = KINDS[seed % 3], (None, 1, 2, 3)[seed // 3 % 4]
        dtype = (np.float64, np.float32, np.float16)[seed // 12 % 3]
        logits, labels, important = table(1000 + seed)
        options = {
            name: costs_of(important, logits.shape[1]) if value is None else value for name, value in goal.items()
        }
        scores = scores_of(logits, kind, decimals, dtype)
        asked = None if kind == "percentages" else kind
        found = audited(scores, labels, important, kind=asked, **options)
        rules.add(found.point.rule.name)
        fresh = scores_of(table(5000 + seed)[0][:, : logits.shape[1]], kind, decimals, dtype)
        for table_ in (scores, fresh) if fresh.shape == (len(fresh), logits.shape[1]) else (scores,):
            wanted = found.predict(table_)
            kept = table_.copy()
            assert (run(found, "numpy", table_) == wanted).all()
            assert (run(found, "PyTorch", torch.tensor(table_), torch=torch) == wanted).all()
            assert (table_ == kept).all()  # the caller's array is not written into
    assert len(rules) >= (2 if "at_least" in goal or "cost_matrix" in goal else 1)


@pytest.mark.parametrize("first", ["zero", "minus"])
@pytest.mark.parametrize("goal", [{}, {"at_least": 0.7}], ids=str)
def test_code_for_scikit_learn_makes_the_columns_that_were_judged(first, goal):
    logits, labels, _ = table(13)
    labels = (labels == 1).astype(int)
    d = LogisticRegression().fit(logits[:100], labels[:100]).decision_function(logits)
    scores = np.column_stack([np.zeros_like(d) if first == "zero" else -d, d])
    found = audited(scores, labels, 1, **goal)
    model = Given([0, 1])
    assert (run(found, "scikit-learn", None, model=model, X=np.column_stack([0 * d, d])) == found.predict(scores)).all()
    unknown = audited(scores + 1.0, labels, 1, **goal)
    assert "scikit-learn" not in codes(unknown)


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_figures_are_of_what_predict_predicts(goal, few_draws):
    for seed in range(6):
        logits, labels, important = table(2000 + seed)
        options = {
            name: costs_of(important, logits.shape[1]) if value is None else value for name, value in goal.items()
        }
        found = audited(logits.round(1).astype(np.float32), labels, important, **options)
        right = found.predict(logits.round(1).astype(np.float32)) == labels
        recall = [right[labels == index].mean() for index in important]
        assert found.point.recall == pytest.approx(recall)
        assert found.point.accuracy == pytest.approx(right.mean())


def test_what_is_not_advised_is_not_applied():
    logits, labels, important = table(0)
    found = audit(logits, labels, important, at_least=0.999)
    assert found.verdict.kind == "cannot_guarantee"
    assert not found.is_changed
    assert (found.predict(logits) == logits.argmax(axis=1)).all()
    flat = audit(logits, labels, important, cost_matrix=np.ones((logits.shape[1],) * 2))
    assert flat.verdict.kind == "nothing_to_gain"
    assert (flat.predict(logits) == logits.argmax(axis=1)).all()
