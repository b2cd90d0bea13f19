"""The paper's tables from a run, and beside Table I its honest version: chosen on validation data, with controls."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camri.errors import InputError
from camri.report.reading import TITLES, Reading, measure
from camri.report.table import BLANK, Cell, Table, cells
from camri.report.verdict import ColumnVerdict, Judged, correct_for_rows, gain_over_shifted
from camri.select import OPTIMISTIC, Measured, PaperChoice, mark_best
from camri.stats import Difference, summarise

ROLES = {"camri": "(proposal)", "ce": "(baseline)"}


def spread(values: Sequence[float]) -> str:
    """Mean ± sd as the paper prints it; one value has no sd.

    >>> spread([0.7, 0.8]), spread([0.7])
    ('0.750 ± 0.071', '0.700')
    """
    found = summarise(values)
    return f"{found.mean:.3f}" if found.num == 1 else f"{found.mean:.3f} ± {found.sd:.3f}"


def points(value: float) -> str:
    """A difference in points of a hundred, with its sign.

    >>> points(0.0312), points(-0.004), points(0.0)
    ('+3.1', '−0.4', '0.0')
    """
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def interval(found: Difference) -> str:
    """A difference in points with its 95 % interval."""
    return f"{points(found.estimate)} [{points(found.low)}, {points(found.high)}]"


def p_value(p: float) -> str:
    """
    >>> p_value(0.0004), p_value(0.21), p_value(float("nan"))
    ('< 0.001', '0.21', '–')
    """
    return BLANK if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


Gains = tuple[Difference | None, Difference | None, float | None]  # of recall, of accuracy, and p
# One column of Table I: its title, the data set's, the paper's choice of each method, and the numbers of its settings.
PaperColumn = tuple[str, str, Mapping[str, PaperChoice | None], Mapping[str, Measured]]


def table_one(runs: Sequence[tuple[Reading, Sequence[ColumnVerdict]]]) -> Table:
    """Table I as the paper prints it, of one run or of several side by side."""
    columns: list[PaperColumn] = []
    methods: dict[str, None] = {}
    for reading, verdicts in runs:
        methods |= dict.fromkeys(reading.methods())
        for one in verdicts:
            if one.baseline is None:
                raise InputError(f"{reading.folder}: Table I needs cross-entropy trials, and there are none")
            shown = {method: one.in_table_one(method) for method in one.paper}
            numbers = {m: measure(setting, one.column.indices) for m, setting in shown.items() if setting is not None}
            columns.append((one.column.title, reading.name, one.paper, numbers))
    if not columns:
        raise InputError("Table I needs important classes, and they are not known yet: cross-entropy trials come first")
    order = [method for method in TITLES if method in methods]
    # As in the paper, L2-softmax has no row of its own: it is the m = 0 of CAMRI's and ArcFace's grids.
    return paper_table(columns, [m for m in order if m != "l2softmax"])


def paper_table(columns: Sequence[PaperColumn], methods: Sequence[str]) -> Table:
    """Table I of given choices: recall above, accuracy below; blank where no setting kept the baseline's accuracy."""
    groups, records = [], []
    best = [mark_best({m: paper.get(m) for m in methods}) for _, _, paper, _ in columns]
    for method in methods:
        recalls, accuracies = [Cell(TITLES.get(method, method))], [Cell(ROLES.get(method, ""))]
        for (title, data, paper, numbers), bold in zip(columns, best, strict=True):
            choice = paper.get(method)
            record: dict[str, Any] = {"data": data, "important": title, "method": method, "setting": None}
            if choice is None:
                recalls.append(Cell(BLANK))
                accuracies.append(Cell(BLANK))
            else:
                found = numbers[method]
                recalls.append(Cell(spread(found.recall), bold=method in bold))
                accuracies.append(Cell(spread(found.accuracy)))
                record |= {"setting": choice.key, **_figures("recall", found.recall)}
                record |= {**_figures("accuracy", found.accuracy), "num_trials": len(found.recall)}
            records.append({**record, "bold": method in bold})
        groups.append((tuple(recalls), tuple(accuracies)))
    names = [data for _, data, _, _ in columns]
    spans = tuple((name, names.count(name)) for name in dict.fromkeys(names))
    return Table(
        caption=f"Table I, as the paper prints it ({OPTIMISTIC}).",
        header=("method", *(title for title, *_ in columns)),
        groups=tuple(groups),
        records=tuple(records),
        notes=(
            "Recall of the important class above, accuracy below: mean ± sd over trials on the test images. Of each "
            "method’s settings whose mean accuracy is not below cross-entropy’s, the one with the highest mean recall; "
            f"{BLANK} where there is none; bold: the highest recall of a column.",
        ),
        spans=spans,
    )


def _figures(name: str, values: Sequence[float]) -> dict[str, float]:
    found = summarise(values)
    return {f"{name}_mean": found.mean, f"{name}_sd": found.sd}


def honest_table(reading: Reading, verdicts: Sequence[ColumnVerdict]) -> Table | None:
    """Table I chosen on validation data and judged once on test, with its controls; None without validation data."""
    judged = [(one, m, row) for one in verdicts for m, row in one.by_method.items()]
    if not judged:
        return None
    labels = reading.run.labels("test")
    p = dict(
        zip([(one.column.number, m) for one, m, _ in judged], correct_for_rows([r for *_, r in judged]), strict=True)
    )
    groups: list[tuple[tuple[Cell, ...], ...]] = []
    records: list[Mapping[str, Any]] = []
    for one in verdicts:
        rows = []
        for method in [name for name in TITLES if name in one.by_method]:
            row = one.by_method[method]
            gains: Gains = (
                (None, None, None) if row.keeps_baseline else (row.gain, row.accuracy, p[one.column.number, method])
            )
            rows.append(_honest_row(one, TITLES[method], picked(one, row), row, "chosen", gains, records))
        for row in _one_for_each_control(one):
            assert row.control is not None
            gains = (gain_over_shifted(row, row.control.key, labels), None, None)
            title = f"control: L2-softmax at {TITLES[row.final.method]}’s scale"
            rows.append(_honest_row(one, title, row.control.title, row, row.control.key, gains, records))
        first = next(iter(one.by_method.values()), None)
        if first is not None:
            for arm, title in (
                ("baseline shifted", "control: cross-entropy, shifted"),
                ("baseline", "control: cross-entropy"),
            ):
                rows.append(_honest_row(one, title, "ce", first, arm, (None, None, None), records))
        groups.append(tuple(rows))
    return Table(
        caption="Table I, honest: chosen on validation images by other seeds than it is judged by; judged on test.",
        header=(
            "method", "setting picked (seeds)", "recall", "hits / n", "accuracy",
            "recall gained over shifted CE", "p (Holm)", "accuracy against CE", "trials",
        ),
        groups=tuple(groups),
        titles=tuple(f"important: {one.column.title}" for one in verdicts),
        records=tuple(records),
        notes=(
            "Every row but “cross-entropy” has its important scores shifted, each model by what its own validation "
            "scores allow at cross-entropy’s accuracy. A method’s row takes cross-entropy (“ce”) where no setting of "
            "the method was better on validation data. Mean ± sd over trials; differences in points of a hundred with "
            "95 % intervals over seeds and images; p of a paired t test over seeds, corrected for all rows.",
        ),
    )  # fmt: skip


def _honest_row(
    one: ColumnVerdict,
    title: str,
    setting: str,
    row: Judged,
    arm: str,
    gains: Gains,
    records: list[Mapping[str, Any]],
) -> tuple[Cell, ...]:
    found = row.judgement.arms[arm]
    recalls, hits, num = found.recall.mean(axis=1).tolist(), int(found.hits.sum()), int(found.num.sum())
    gain, accuracy, p = gains
    record: dict[str, Any] = {"important": one.column.title, "row": title, "setting": setting, "hits": hits, "num": num}
    record |= {
        **_figures("recall", recalls),
        **_figures("accuracy", found.accuracy.tolist()),
        "num_trials": len(recalls),
    }
    for name, difference in (("gain_over_shifted_ce", gain), ("accuracy_change", accuracy)):
        ends = (None,) * 3 if difference is None else (difference.estimate, difference.low, difference.high)
        record |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    records.append({**record, "p_holm": p})
    is_sure = gain is not None and p is not None and gain.low > 0 and p < 0.05
    return (
        *cells(title, setting, spread(recalls), f"{hits}/{num}", spread(list(found.accuracy))),
        Cell(BLANK if gain is None else interval(gain), bold=is_sure),
        *cells(
            BLANK if p is None else p_value(p), BLANK if accuracy is None else interval(accuracy), str(len(recalls))
        ),
    )


def picked(one: ColumnVerdict, row: Judged) -> str:
    """The settings that the judged seeds were given, the most frequent first."""
    keys = row.judgement.arms["chosen"].keys
    names = {key: one.find(key, row.final.method).title for key in keys}
    counted = sorted(((keys.count(key), name) for key, name in names.items()), key=lambda pair: -pair[0])
    return counted[0][1] if len(counted) == 1 else ", ".join(f"{name} ({count})" for count, name in counted)


def _one_for_each_control(one: ColumnVerdict) -> list[Judged]:
    """Judgements whose L2-softmax control is not shown by one before them."""
    found: dict[str, Judged] = {}
    for row in one.by_method.values():
        if row.control is not None and row.final.method != "l2softmax":
            found.setdefault(row.control.key, row)
    return list(found.values())
