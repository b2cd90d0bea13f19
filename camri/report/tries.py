"""What else was tried to train for a class: a table of the JSON that `benchmarks/prize` writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from camri.errors import InputError
from camri.report.numbers import span
from camri.report.table import BLANK, Cell, Table, cells
from camri.report.titles import title_of

TITLES = {  # of arms that are no methods
    "hardest": "margin against the strongest rival",
    "head_ce": "new cross-entropy head, frozen trunk",
    "head_l2softmax": "new L2-softmax head, frozen trunk",
    "head_camri": "new CAMRI head, frozen trunk",
    "head_wce": "new WCE head, frozen trunk",
    "learned_final": "margin learned under the final accuracy",
    "learned_epoch": "margin learned under each epoch’s accuracy",
    "sam": "sharpness-aware steps",
    "sam_important": "sharpness-aware steps, uphill for the class",
    "ensemble_ce": "five cross-entropy models",
    "ensemble_l2softmax": "five L2-softmax models",
    "ensemble_camri": "five CAMRI models",
    "distilled_ce": "cross-entropy, distilled from five",
    "distilled_l2softmax": "L2-softmax, distilled from five",
    "distilled_camri": "CAMRI, distilled from five",
}


def table_of_tries(path: Path) -> Table:
    """Accuracy and false alarms at equal recall of every arm, against cross-entropy and its nearest control."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); python -m benchmarks.prize --out writes it") from None
    low, high = found["recall_range"]
    return Table(
        caption=f"At equal recall of “{found['about']['class']}”: accuracy, and false alarms (the fewer the better).",
        header=(
            "what",
            "accuracy, over cross-entropy’s",
            "accuracy, over its control’s",
            "false alarms, over cross-entropy’s",
            "false alarms, over its control’s",
            "the control",
            "trials",
        ),
        groups=(tuple(_row(arm) for arm in found["arms"] if arm["against"]),),
        records=tuple(found["arms"]),
        notes=(
            f"Test data; every model is shifted until it reaches a recall, mean over recalls from {low:.3f} to "
            f"{high:.3f}. A false alarm: of another class, and taken for this one; in a hundred of all. Points of a "
            "hundred with 95 % intervals over seeds and test data, not corrected for "
            f"{found['num_looks']} arms that are made for the class.",
        ),
        words=("what", "the control"),
    )


def _row(arm: Mapping[str, Any]) -> tuple[Cell, ...]:
    over_ce, *others = arm["against"]
    own: Mapping[str, Any] = others[-1] if others else {}  # the last is the nearest: the same without a margin
    gaps = [_gap(one, figure) for figure in ("mean", "alarms") for one in (over_ce, own)]
    return cells(_title(arm["arm"]), *gaps, _title(own["arm"]) if own else BLANK, str((own or over_ce)["num"]))


def _gap(one: Mapping[str, Any], figure: str) -> str:
    if figure not in one:  # no control, no seed that both have, or written before alarms were counted
        return BLANK
    found = one[figure]
    return span(found["estimate"], found["low"], found["high"], decimals=2)


def _title(arm: str) -> str:
    """
    >>> _title("hardest_0.2"), _title("sam"), _title("two_sided_0.1")
    ('margin against the strongest rival, 0.2', 'sharpness-aware steps', 'margin on both sides, 0.1')
    """
    name, _, size = arm.rpartition("_")
    if size[:1].isdigit():
        return f"{_title(name)}, {size}"
    return TITLES.get(arm) or title_of(arm)
