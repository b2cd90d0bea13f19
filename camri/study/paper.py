"""The paper's studies: `paper.cifar10("cat")` is one column of Table I, `paper.cifar10()` all three.

Every function takes `columns` (a class by name or index, "worst", "second", "median", or a list of columns), the
`schedule` ("fast", "paper" or a Training), `num_seeds`, and the `rule`: "honest" holds a tenth of the train split out
to choose on; "paper" trains on all of it and chooses on the test images, as the authors did.
"""

import functools
from typing import Any

from camri.engine.spec import FAST, PAPER, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study.spec import Column, Study, study

Schedule = str | Training
SCHEDULES = {"fast": FAST, "paper": PAPER}
RULES = ("honest", "paper")
METHODS_OF_THE_PAPER = ["ce", "wce", "crwwce", "wasserstein", "l2softmax", "arcface", "camri"]
# Table I's columns: worst, second worst and median recall under cross-entropy. GTSRB's by the indices of their classes.
COLUMNS: dict[str, dict[str, str | int]] = {
    "cifar10": {"cat": "cat", "dog": "dog", "airplane": "airplane"},
    "gtsrb": {"limit-80-end": 6, "no-passing-end": 41, "limit-80": 5},
    "awa2": {"mouse": "mouse", "beaver": "beaver", "moose": "moose"},
}


def mnist_2d(*, schedule: Schedule = "fast", num_seeds: int = 1) -> Study:
    """Fig. 6: MNIST in two features, "3" important; keeps weights and logits, from which the features are drawn.

    paper: names no margin and scale / here: 4π/64 and 16, those of its CIFAR-10 winner.
    """
    margin, scale = [4 * MARGIN_UNIT], [16.0]
    return study(
        "paper.mnist_2d",
        "mnist",
        "3",
        {"l2softmax": {"s": scale}, "arcface": {"m": margin, "s": scale}, "camri": {"m": margin, "s": scale}},
        seeds=num_seeds,
        training=find_schedule(schedule).with_(model_options=(("num_features", 2),)),
        keep_logits=True,
        keep_weights=True,
    )


def find_schedule(schedule: Schedule) -> Training:
    """The training of that name, or the training given.

    >>> find_schedule("paper").epochs
    300
    """
    if isinstance(schedule, Training):
        return schedule
    if schedule not in SCHEDULES:
        raise InputError(f"schedule={schedule!r} is unknown; {closest(schedule, SCHEDULES)}", argument="schedule")
    return SCHEDULES[schedule]


def find_columns(data: str, columns: Any) -> list[Column]:
    """The columns given, with Table I's names for their classes; all of Table I's by default.

    >>> [column.classes for column in find_columns("gtsrb", ["limit-80", "Stop"])]
    [(5,), ('Stop',)]
    """
    names: dict[Any, str | int] = {**COLUMNS[data]}
    given = list(names) if columns is None else columns if isinstance(columns, (list, tuple)) else [columns]
    parsed = [Column.of(column) for column in given]
    return [Column(tuple(names.get(n, n) for n in column.classes), column.strengths) for column in parsed]


def table_one(
    data: str, columns: Any = None, *, schedule: Schedule = "fast", num_seeds: int = 10, rule: str = "honest"
) -> Study:
    """A data set's columns of Table I, all three by default.

    >>> cifar10("cat").important[0].classes
    ('cat',)
    """
    if rule not in RULES:
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", argument="rule")
    return study(
        f"paper.{data}",
        data,
        find_columns(data, columns),
        METHODS_OF_THE_PAPER,
        seeds=num_seeds,
        training=find_schedule(schedule),
        val_fraction=0.1 if rule == "honest" else 0.0,
        important_from="val" if rule == "honest" else "test",
    )


cifar10, gtsrb, awa2 = (functools.partial(table_one, data) for data in COLUMNS)
