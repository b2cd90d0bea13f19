"""Goals: what is asked is read as it is meant, aligned by names, or refused in a sentence."""

import math
import warnings

import numpy as np
import pytest

from camri.decision import (
    AtLeast,
    ImportantClassifier,
    LeastCost,
    MostRecall,
    audit,
    goal_from_json,
    goal_to_json,
    parse_goal,
    read_costs,
)
from camri.errors import InputError
from tests.decision.made import Given, rows

NAMES = ["go", "halt", "stop"]
LOGITS, LABELS = rows(300, 3, seed=1, spread=2.5)
COSTS = np.array([[0, 1, 2], [3, 0, 4], [9, 8, 0.0]])
BY_NAME = {
    name: dict(reversed([*zip(NAMES, row, strict=True)])) for name, row in zip(NAMES, COSTS.tolist(), strict=True)
}


def by_audit(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(LOGITS, np.array(NAMES)[LABELS], "stop", classes=NAMES, **options).goal


def by_estimator(**options):
    model = ImportantClassifier(Given(NAMES), "stop", cv="prefit", **options)
    model.fit(LOGITS, np.array(NAMES)[LABELS])
    asked = (model.max_accuracy_drop, model.at_least, model.cost_matrix, model.confidence)
    return parse_goal(NAMES, *asked, ["stop"])


@pytest.mark.parametrize("door", [by_audit, by_estimator])
@pytest.mark.parametrize(
    ("options", "goal"),
    [
        ({}, MostRecall()),
        ({"max_accuracy_drop": "1%"}, MostRecall(0.01)),
        ({"max_accuracy_drop": np.float32(0.5)}, MostRecall(0.5)),
        ({"at_least": "70%"}, AtLeast(0.7, 0.95)),
        ({"at_least": "0.7", "confidence": "90%"}, AtLeast(0.7, 0.9)),
        ({"at_least": {"stop": ".7"}}, AtLeast((0.7,), 0.95)),
        ({"at_least": None}, MostRecall()),
        ({"cost_matrix": COSTS}, LeastCost(COSTS)),
        ({"cost_matrix": COSTS.tolist()}, LeastCost(COSTS)),
        ({"cost_matrix": BY_NAME}, LeastCost(COSTS)),
        ({"cost_matrix": dict(reversed(BY_NAME.items()))}, LeastCost(COSTS)),
    ],
    ids=str,
)  # fmt: skip
def test_what_can_be_read_is_read(door, options, goal):
    assert door(**options) == goal
    assert goal_from_json(goal_to_json(goal)) == goal


@pytest.mark.parametrize("door", [by_audit, by_estimator])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at_least": "0.9x"}, "at_least='0.9x' is not a number; give a recall, say 0.95"),
        ({"at_least": math.nan}, "at_least=nan is not"),
        ({"at_least": math.inf}, "at_least=inf is not"),
        ({"at_least": True}, "at_least=True is not a number"),
        ({"at_least": 1.0}, "at_least=1.0 is not allowed; give a recall above 0 and below 1"),
        ({"at_least": 95}, "at_least=95 is not allowed"),
        ({"at_least": [0.9, 0.8]}, r"at_least=\[0.9, 0.8\] has 2 recalls for 1 important"),
        ({"at_least": []}, "at_least="),
        ({"at_least": {"stpo": 0.9}}, "at_least names 'stpo', which is not important; did you mean 'stop'"),
        ({"at_least": {"stop": 0.9, "go": 0.8}}, "at_least names 'go', which is not important"),
        ({"at_least": {}}, "at_least"),
        ({"at_least": 0.7, "confidence": "x"}, "confidence='x' is not a number; give 0.5 or more"),
        ({"at_least": 0.7, "confidence": 1.0}, "confidence=1.0 is not allowed; give 0.5 or more and less than 1"),
        ({"at_least": 0.7, "confidence": 0.49}, "confidence=0.49 is not allowed"),
        ({"max_accuracy_drop": "x"}, "max_accuracy_drop='x' is not a number; give 0 to 1, 0.01 for one"),
        ({"max_accuracy_drop": -0.1}, "max_accuracy_drop=-0.1 is not allowed; give 0 to 1"),
        ({"max_accuracy_drop": 1.0}, "max_accuracy_drop=1.0 is not allowed"),
        ({"max_accuracy_drop": math.nan}, "max_accuracy_drop=nan is not"),
        ({"at_least": 0.7, "max_accuracy_drop": 0.1}, "give one goal, not max_accuracy_drop and at_least"),
        ({"cost_matrix": "no.csv"}, "cost_matrix=no.csv: it cannot be read"),
        ({"cost_matrix": [["a", "b", "c"]] * 3}, "cost_matrix holds what are no numbers"),
        ({"cost_matrix": np.eye(2)}, r"cost_matrix has shape \(2, 2\); give 3 × 3 finite numbers"),
        ({"cost_matrix": COSTS * np.nan}, "give 3 × 3 finite numbers"),
        ({"cost_matrix": {"go": 1}}, "a mapping has a mapping for each true class"),
        ({"cost_matrix": {n: {"go": 0, "halt": 1} for n in NAMES}}, "class 'stop' is missing: it has no column"),
        ({"cost_matrix": {n: dict.fromkeys(NAMES, 1) for n in ("go", "halt")}}, "'stop' is missing: it has no row"),
        ({"cost_matrix": {n: dict.fromkeys(["go", "halt", "stpo"], 1) for n in NAMES}}, "column 'stpo' is no class"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_a_sentence(door, options, said):
    with pytest.raises(InputError, match=said) as told:
        door(**options)
    assert "\n" not in str(told.value)


def test_a_confidence_is_for_a_guarantee():
    with pytest.raises(
        InputError, match=r"confidence=0\.9 is for a recall to guarantee, .*; give it with at_least, or leave"
    ):
        by_audit(confidence=0.9)


class Frame:
    """What pandas looks like: columns, an index, and an array."""

    def __init__(self, table, index, columns):
        self.table, self.index, self.columns = np.asarray(table), index, columns

    def __array__(self, dtype=None, copy=None):
        return self.table.astype(dtype)


def test_a_labelled_cost_matrix_is_aligned_by_its_labels(tmp_path):
    order, turned = [2, 0, 1], [1, 2, 0]
    frame = Frame(COSTS[np.ix_(order, turned)], [NAMES[k] for k in order], [NAMES[k] for k in turned])
    assert (read_costs(frame, NAMES) == COSTS).all()
    plain = Frame(COSTS, range(3), range(3))  # it has no names
    assert (read_costs(plain, NAMES) == COSTS).all()
    with pytest.raises(InputError, match="row 'x' is no class"):
        read_costs(Frame(COSTS, ["go", "halt", "x"], NAMES), NAMES)
    lines = [",".join(["", *(NAMES[k] for k in turned)])]
    lines += [",".join([NAMES[k], *map(str, COSTS[k, turned])]) for k in order]
    (tmp_path / "costs.csv").write_text("\n".join(lines), encoding="utf-8")
    assert (read_costs(tmp_path / "costs.csv", NAMES) == COSTS).all()
    for text, said in (("", "no table of costs"), ("a,b\n1", "no table of costs"), ("a,go\ngo,x", "no table of costs")):
        (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_costs(tmp_path / "bad.csv", NAMES)
