"""How far confidence is from being right, before and after a shift: a table from the judged arms."""

from collections.abc import Sequence

from camri.report.table import Table, cells
from camri.report.verdict import ColumnVerdict

ARMS = {"baseline": "cross-entropy", "baseline shifted": "cross-entropy, shifted", "chosen": "chosen, shifted"}


def calibration_table(verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Expected calibration error of the chosen models and their controls on test images; None without a choice."""
    groups, records, titles = [], [], []
    for one in verdicts:
        if one.best is None:
            continue
        rows = []
        for name, title in ARMS.items():
            arm = one.best.judgement.arms[name]
            error, accuracy = arm.calibration.ece, float(arm.accuracy.mean())
            rows.append(cells(title, f"{error:.4f}", f"{accuracy:.3f}"))
            records.append({"important": one.column.title, "model": title, "ece": error, "accuracy": accuracy})
        groups.append(tuple(rows))
        titles.append(f"important: {one.column.title}")
    if not groups:
        return None
    return Table(
        "Calibration: expected calibration error on test data.",
        ("models", "ECE", "accuracy"),
        tuple(groups),
        tuple(records),
        notes=(
            "The mean distance between a model’s confidence in its guess and how often such guesses are right, over 15 "
            "bins and all trials. A shift, a margin and a scale all move it: calibrate before using probabilities.",
        ),
        titles=tuple(titles),
    )
