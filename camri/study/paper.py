"""The paper's studies: `paper.cifar10("cat")` is one column of Table I, `paper.cifar10()` three.

Every function takes the important class (a name, an index, "worst", "second", "median", or a list of columns), the
`schedule` ("fast", "paper" or a Training), the number of `trials`, and the `rule`: "honest" holds a tenth of the train
split out to choose on; "paper" trains on all of it and chooses on the test images, as the authors did.
"""

from typing import Any

from camri.engine.spec import FAST, PAPER, Training
from camri.errors import InputError, closest
from camri.methods import MARGIN_UNIT
from camri.study.spec import Study, study

Schedule = str | Training
SCHEDULES = {"fast": FAST, "paper": PAPER}
RULES = ("honest", "paper")
METHODS_OF_THE_PAPER = ["ce", "wce", "crwwce", "wasserstein", "l2softmax", "arcface", "camri"]
# Table I's columns: worst, second worst and median recall under cross-entropy. GTSRB's by the numbers of their classes.
COLUMNS: dict[str, dict[str, str | int]] = {
    "cifar10": {"cat": "cat", "dog": "dog", "airplane": "airplane"},
    "gtsrb": {"limit-80-end": 6, "no-passing-end": 41, "limit-80": 5},
    "awa2": {"mouse": "mouse", "beaver": "beaver", "moose": "moose"},
}


def cifar10(important: Any = None, *, schedule: Schedule = "fast", trials: int = 10, rule: str = "honest") -> Study:
    """CIFAR-10's columns of Table I: cat, dog, airplane unless told.

    >>> cifar10("cat").important[0].classes
    ('cat',)
    """
    return _table("cifar10", important, schedule, trials, rule)


def gtsrb(important: Any = None, *, schedule: Schedule = "fast", trials: int = 10, rule: str = "honest") -> Study:
    """GTSRB's columns of Table I: limit-80-end, no-passing-end, limit-80 unless told."""
    return _table("gtsrb", important, schedule, trials, rule)


def awa2(important: Any = None, *, schedule: Schedule = "fast", trials: int = 10, rule: str = "honest") -> Study:
    """AwA2's columns of Table I: mouse, beaver, moose unless told."""
    return _table("awa2", important, schedule, trials, rule)


def mnist_2d(*, schedule: Schedule = "fast", trials: int = 1) -> Study:
    """Fig. 6: MNIST in two features, "3" important; weights and logits are kept, from which the features are drawn.

    paper: names no margin and scale / here: 4π/64 and 16, those of its CIFAR-10 winner.
    """
    margin, scale = [4 * MARGIN_UNIT], [16.0]
    return study(
        "paper.mnist_2d",
        "mnist",
        "3",
        {"l2softmax": {"s": scale}, "arcface": {"m": margin, "s": scale}, "camri": {"m": margin, "s": scale}},
        seeds=trials,
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


def find_columns(data: str, important: Any) -> list[Any]:
    """The columns asked for, Table I's by their names there; all of Table I's where none is.

    >>> find_columns("gtsrb", ["limit-80", "Stop"]), find_columns("cifar10", None)
    ([5, 'Stop'], ['cat', 'dog', 'airplane'])
    """
    names = COLUMNS[data]
    asked = list(names) if important is None else important if isinstance(important, (list, tuple)) else [important]
    return [names.get(one, one) if isinstance(one, str) else one for one in asked]


def _table(data: str, important: Any, schedule: Schedule, trials: int, rule: str) -> Study:
    if rule not in RULES:
        raise InputError(f"rule={rule!r} is unknown; {closest(rule, RULES)}", argument="rule")
    return study(
        f"paper.{data}",
        data,
        find_columns(data, important),
        METHODS_OF_THE_PAPER,
        seeds=trials,
        training=find_schedule(schedule),
        val_fraction=0.1 if rule == "honest" else 0.0,
        important_from="val" if rule == "honest" else "test",
    )
