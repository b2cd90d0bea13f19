"""Plain numbers of a run, as tables and figures show them and as `results` stores them.

Each function of `MAKERS` takes an open run and its verdicts and returns records: dicts of what JSON can hold. It raises
InputError where the run lacks what the part needs. A difference is three fields: `name`, `name_low`, `name_high`.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from camri.decision import Curve, trace
from camri.decision.scores import Array, Scores
from camri.decision.stats import Difference, Estimate, compare, summarise
from camri.errors import InputError
from camri.methods import BASELINE, METHODS, control_of, in_order, title_of
from camri.report.ranking import rank_settings
from camri.selection import CurveFigure, Gap, _outcomes_at, common_range, compare_curves, mark_best
from camri.study.reader import (
    SEED,
    ColumnVerdict,
    Judged,
    RunReader,
    SettingResults,
    control_among,
    correct_several,
    gain_over_shifted,
    judge_columns,
    judge_own,
    list_picks,
    measure,
    picked,
)
from camri.study.store import ColumnFacts, Row
from camri.text import quoted

Record = Mapping[str, Any]
Records = list[dict[str, Any]]
ENDS = ("", "_low", "_high")  # of a difference's fields
MOST_CLASSES = 20  # more cannot be read at phone width
DEPTH = 0.03  # of accuracy below the baseline's: curves are cut there
BACK = 0.15  # of recall below the lowest of the models as trained: curves begin there
LATE = 3  # the last third of the epochs counts as the end of training
LEAST_LATE = 3  # epochs in it, or no spread over them is measured
WCE_WEIGHT = 4.0  # the paper measures WCE's angles at this weight
# A method's penalty: its knob, the axis title, and the unit it is shown in (the paper's step for margins).
PENALTIES = {"wce": ("w", "weight w", 1.0), "camri": ("m", "margin m (π/64)", np.pi / 64)}
MODELS = {"baseline": "cross-entropy", "baseline shifted": "cross-entropy + shift", "chosen": "chosen + shift"}
CIRCLE_METHODS = ("l2softmax", "arcface", "camri")
HEAD = "head.weight"
LETTERS = "bcdefghijklmnopqrstuvwxyz"  # of Fig. 3's changes
MOST_DOTS = 150  # of a class in Fig. 6: more hide each other


def about(verdict: ColumnVerdict) -> dict[str, Any]:
    """The fields that name a record's column."""
    return {"column": verdict.column.number, "important": verdict.column.title}


def group_by(records: Iterable[Record], *names: str) -> dict[Any, list[Record]]:
    """Records by the value of a field, or by the tuple of several, in the order they come.

    >>> group_by([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "a")
    {1: [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]}
    """
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(operator.itemgetter(*names)(record), []).append(record)
    return groups


def ends_of(name: str, found: Estimate | None) -> dict[str, float | None]:
    """The fields of a difference; None where there is none."""
    values = (None,) * 3 if found is None else (found.value, found.low, found.high)
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def figures(recalls: Sequence[float], accuracies: Sequence[float]) -> dict[str, Any]:
    """Mean and sd of recall and accuracy over trials, and the number of trials."""
    return {**spread_of("recall", recalls), **spread_of("accuracy", accuracies), "num_trials": len(recalls)}


def spread_of(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean and sd of a figure over trials."""
    found = summarise(values)
    return {f"{name}_mean": found.mean, f"{name}_sd": found.sd}


def paper_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Table I as the paper chooses, on test data: a record for each column and method.

    As in the paper, L2-softmax has no row of its own: it is the m = 0 of CAMRI's and ArcFace's grids.
    """
    rows, records = [method for method in reading.methods() if method != "l2softmax"], []
    for verdict in verdicts:
        if verdict.baseline is None:
            raise InputError(f"{reading.folder}: Table I needs cross-entropy trials, and there are none")
        best = mark_best({method: verdict.paper.get(method) for method in rows})
        for method in rows:
            setting = verdict.in_table_one(method)
            record = {"data": reading.name, **about(verdict), "method": method, "setting": setting and setting.title}
            if setting is not None:
                found = measure(setting, verdict.column.indices)
                record |= figures(found.recall, found.accuracy)
            records.append({**record, "bold": method in best})
    return records


def honest_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Every method chosen on validation data and judged on test data, then the column's controls."""
    p_values = [row.gain.p for verdict in verdicts for row in verdict.by_method.values()]
    corrected, records = iter(correct_several(p_values) if p_values else []), []
    for verdict in verdicts:
        p = {method: next(corrected) for method in verdict.by_method}
        controls: dict[str, Judged] = {}
        for method in in_order(verdict.by_method):
            row = verdict.by_method[method]
            gains = (None, None, None) if row.keeps_baseline else (row.gain, row.accuracy, p[method])
            found = _honest_record(verdict, title_of(method), picked(verdict, row), row, "chosen", *gains)
            records.append({**found, "method": method, "num_settings": len(verdict.of(method))})
        for row in verdict.by_method.values():
            if row.control is not None and row.final.method != "l2softmax":
                controls.setdefault(row.control.key, row)
        for key, row in controls.items():
            assert row.control is not None
            gain = gain_over_shifted(row, key, reading.run.labels("test"), reading.run.groups("test"))
            title = f"control: L2-softmax at {title_of(row.final.method)}’s scale"
            records.append(_honest_record(verdict, title, row.control.title, row, key, gain))
        for row in list(verdict.by_method.values())[:1]:
            for arm, title in (("baseline shifted", "cross-entropy, shifted"), ("baseline", "cross-entropy")):
                records.append(_honest_record(verdict, f"control: {title}", "ce", row, arm))
    return records


def _honest_record(
    verdict: ColumnVerdict,
    title: str,
    setting: str,
    row: Judged,
    arm: str,
    gain: Difference | None = None,
    accuracy: Difference | None = None,
    p: float | None = None,
) -> dict[str, Any]:
    found = row.judgement.arms[arm]
    return {
        **about(verdict),
        "row": title,
        "setting": setting,
        "hits": int(found.hits.sum()),
        "num": int(found.num.sum()),
        **figures(found.recall.mean(axis=1).tolist(), found.accuracy.tolist()),
        **ends_of("gain_over_shifted_ce", gain),
        **ends_of("accuracy_change", accuracy),
        "p_holm": p,
    }


def own_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Every method's own numbers before and after its rule, whether or not it is better than cross-entropy."""
    records = []
    for verdict in verdicts:
        labels, own = reading.run.labels("test"), verdict.column.indices
        for method in in_order(verdict.by_method):
            if (judged := judge_own(reading, verdict, method)) is None:
                continue
            mine, theirs = judged.arms["chosen"], judged.arms["baseline shifted"]
            settings = [verdict.find(key, method) for key in mine.keys]
            rows = [_by_seed(one)[seed] for one, seed in zip(settings, judged.seeds, strict=True)]
            plain = [reading.scores(row, "test", verdict.column) for row in rows]
            records.append(
                {
                    **about(verdict),
                    "method": method,
                    "setting": list_picks([one.title for one in settings]),
                    "num_images": int(np.isin(labels, own).sum()),
                    **figures([float(one.recall().mean()) for one in plain], [one.accuracy() for one in plain]),
                    **spread_of("alarms", [float(one.false_alarms().mean()) for one in plain]),
                    **spread_of("recall_shifted", mine.recall.mean(axis=1).tolist()),
                    **spread_of("accuracy_shifted", mine.accuracy.tolist()),
                    **spread_of("alarms_shifted", mine.false_alarms.mean(axis=1).tolist()),
                    **spread_of("recall_of_ce_shifted", theirs.recall.mean(axis=1).tolist()),
                    **spread_of("accuracy_of_ce_shifted", theirs.accuracy.tolist()),
                    **ends_of("gain_over_shifted_ce", judged.gains["baseline shifted"].recall),
                }
            )
    return records


def calibration_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Expected calibration error of the chosen models and their controls on test data."""
    return [
        {
            **about(verdict),
            "model": title,
            "ece": arm.calibration.ece,
            "accuracy": float(arm.accuracy.mean()),
            "num_trials": len(arm.accuracy),
        }
        for verdict in verdicts
        if verdict.best is not None
        for name, title in MODELS.items()
        for arm in [verdict.best.judgement.arms[name]]
    ]


def relative_change(
    arm: Sequence[Scores], baseline: Sequence[Scores], recall: Array, groups: Array | None
) -> Estimate | None:
    """Change of false alarms relative to the baseline's at equal recall; None where that has none.

    The interval contains the chance in the baseline's own mean too (delta method): arm / baseline − 1 is below r where
    arm − (1 + r) · baseline is below 0.
    """
    sides = [[_outcomes_at(scores, recall, "alarms") for scores in side] for side in (arm, baseline)]
    (mine, my_pull), (its, its_pull) = (
        (np.array([one.mean(axis=0) for one in part]) for part in zip(*side, strict=True)) for side in sides
    )
    whole = float(its.mean())
    if not whole:
        return None
    ratio = float(mine.mean()) / whole
    found = compare(mine, ratio * its, besides=my_pull - ratio * its_pull, groups=groups, seed=SEED)
    return Estimate(ratio - 1, max(ratio - 1 + found.low / whole, -1.0), ratio - 1 + found.high / whole)


def gap_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Each method against cross-entropy: as trained, and at equal recall.

    Each seed is compared at the setting that is the method's best on validation data of the other half of the seeds. p
    values are of the mean gap over the recall range, in accuracy and in false alarms; Holm's correction over all, but
    for `p_alarms_threshold`, which tables of several studies correct.
    """
    records = []
    for verdict in verdicts:
        reading.begin(f"comparing the curves of {quoted(verdict.column.title)}")
        for method in in_order(verdict.fitted):
            if (gap := _gap(reading, verdict, verdict.fitted[method])) is not None:
                named = {**about(verdict), "method": method, "num_settings": len(verdict.of(method))}
                records.append({**named, **({} if reading.has_validation else {"held_out": False}), **gap})
    for name in ("p", "p_alarms"):
        corrected = correct_several([record.pop(name) for record in records])
        for record, p in zip(records, corrected, strict=True):
            record[f"{name}_holm"] = p
    return records


def _gap(reading: RunReader, verdict: ColumnVerdict, settings: Mapping[int, SettingResults]) -> dict[str, Any] | None:
    """The numbers of a method, one setting a seed, against cross-entropy; None where they share no seed."""
    assert verdict.baseline is not None
    theirs = _by_seed(verdict.baseline)
    used = {seed: settings[seed] for seed in sorted(settings) if seed in theirs}
    if not used:
        return None
    controls = [control for each in used.values() if (control := control_among(each, verdict.settings)) is not None]

    def scores(rows: Sequence[Row]) -> list[Scores]:
        return [reading.scores(row, "test", verdict.column) for row in rows]

    arm = scores([_by_seed(each)[seed] for seed, each in used.items()])
    baseline = scores([theirs[seed] for seed in used])
    has_controls = len(controls) == len(used)
    plain = scores([_by_seed(c)[seed] for seed, c in zip(used, controls, strict=True)]) if has_controls else []
    recall = common_range(baseline, arm, plain)
    labels, groups = reading.run.labels("test"), reading.run.groups("test")

    def against(side: Sequence[Scores], other: Sequence[Scores], figure: CurveFigure) -> Gap:
        return compare_curves(side, other, seed=SEED, recall=recall, groups=groups, figure=figure)

    # Shifts of the odds are thresholds on the class's probability.
    odds, odds_of_baseline = ([score.odds() for score in side] for side in (arm, baseline))
    alarms_threshold = against(odds, odds_of_baseline, "alarms").mean
    accuracy, alarms = against(arm, baseline, "accuracy"), against(arm, baseline, "alarms")
    own = np.isin(labels, verdict.column.indices)
    own_groups = None if groups is None else groups[own]
    mine, its = (np.array([s.correct() for s in side]) for side in (arm, baseline))
    return {
        "setting": list_picks([each.title for each in used.values()]),
        "num_images": int(own.sum()),
        **figures([float(s.recall().mean()) for s in arm], [s.accuracy() for s in arm]),
        "recall_from": float(recall[0]),
        "recall_to": float(recall[-1]),
        "p": accuracy.mean.p,
        "p_alarms": alarms.mean.p,
        "p_alarms_threshold": alarms_threshold.p,
        "alarms_of_ce": float(alarms.baseline.mean()),
        **ends_of("recall_change", compare(mine[:, own], its[:, own], parts=labels[own], groups=own_groups, seed=SEED)),
        **ends_of("accuracy_change", compare(mine, its, groups=groups, seed=SEED)),
        **ends_of("mean", accuracy.mean),
        **ends_of("first", accuracy.at(0)),
        **ends_of("last", accuracy.at(-1)),
        **ends_of("over_l2softmax", against(arm, plain, "accuracy").mean if plain else None),
        **ends_of("alarms", alarms.mean),
        **ends_of("alarms_over_l2softmax", against(arm, plain, "alarms").mean if plain else None),
        **ends_of("alarms_of_ce_threshold", against(odds_of_baseline, baseline, "alarms").mean),
        **ends_of("alarms_threshold", alarms_threshold),
        **ends_of("relative_threshold", relative_change(odds, odds_of_baseline, recall, groups)),
        **ends_of("accuracy_threshold", against(odds, odds_of_baseline, "accuracy").mean),
    }


def _by_seed(setting: SettingResults) -> dict[int, Row]:
    return {row.seed: row for row in setting.rows}


def angle_settings(verdict: ColumnVerdict) -> dict[str, SettingResults | None]:
    """Table II's columns: CAMRI and ArcFace at their Table I settings, WCE at w = 4, L2-softmax at CAMRI's scale, CE.

    Where Table I leaves a cell blank, the method's setting in the charts.
    """
    found = {title_of(method): verdict.in_table_one(method) or verdict.shown(method) for method in ("camri", "arcface")}
    found["WCE (w = 4)"] = next((s for s in verdict.of("wce") if s.value("w") == WCE_WEIGHT), None)
    camri = found["CAMRI"]
    plain = [s for s in verdict.settings if s.method == "l2softmax" or (s.method == "arcface" and s.value("m") == 0)]
    found["L2-softmax"] = next((s for s in plain if camri is None or s.value("s") == camri.value("s")), None)
    found["cross-entropy"] = verdict.baseline
    return found


def angle_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Table II: sd of the angles of the important classes, minimum and median of the others, for each method."""
    if not verdicts:
        raise InputError("Table II needs important classes, and they are not known yet: train cross-entropy first")
    return [
        {
            **about(verdict),
            "line": line,
            "method": name,
            "setting": setting and setting.title,
            "num_trials": 0 if setting is None else len(setting.rows),
            "images": reading.angles_of,
            "sd_rad": value,
        }
        for verdict in verdicts
        for name, setting in angle_settings(verdict).items()
        for line, value in _angle_sds(reading, setting, verdict.column).items()
    ]


def _angle_sds(reading: RunReader, setting: SettingResults | None, column: ColumnFacts) -> dict[str, float | None]:
    """sd of the important classes (their mean), minimum and median of the others; None of classes without data."""
    sd = np.full(len(reading.classes), np.nan) if setting is None else reading.angles(setting)[1]
    is_important, is_known = np.isin(np.arange(len(sd)), column.indices), np.isfinite(sd)
    own, others = sd[is_important & is_known], sd[~is_important & is_known]
    return {
        f"{column.title} (important)": float(own.mean()) if len(own) else None,
        f"min excl. {column.title}": float(others.min()) if len(others) else None,
        f"median excl. {column.title}": float(np.median(others)) if len(others) else None,
    }


def curve_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Recall–accuracy curves, one record per column: the accuracy floor, and each method’s start and line."""
    return [_curves(reading, verdict) for verdict in verdicts if verdict.settings]


def _curves(reading: RunReader, verdict: ColumnVerdict) -> dict[str, Any]:
    lines: Records = []
    traced: list[list[Curve]] = []
    for name in [name for name in reading.methods() if verdict.of(name)]:
        setting = verdict.shown(name)
        assert setting is not None
        scores = [reading.scores(row, "test", verdict.column) for row in setting.rows]
        start = np.mean([[score.recall().mean(), score.accuracy()] for score in scores], axis=0)
        lines.append(
            {"method": name, "setting": setting.title, "num_trials": len(scores), "start": start.round(5).tolist()}
        )
        traced.append([trace(score) for score in scores])
    accuracies = {line["method"]: line["start"][1] for line in lines}
    floor = accuracies.get(BASELINE, min(accuracies.values()))
    grid = np.linspace(max(0.0, min(line["start"][0] for line in lines) - BACK), 1.0, 121)
    for line, curves in zip(lines, traced, strict=True):
        # No common shift finds every image of several important classes: one class takes some from another.
        recall = grid[grid <= min(curve.mean_recall[-1] for curve in curves)]
        accuracy = np.array([curve.accuracy[curve.reach(recall)] for curve in curves])
        mean, sd = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1 if len(curves) > 1 else 0)
        for name, values in (("recall", recall), ("mean", mean), ("sd", sd)):
            line[name] = values[mean >= floor - DEPTH].round(5).tolist()
    return {**about(verdict), "num_important": len(verdict.column.indices), "floor": floor, "lines": lines}


def confusion_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> dict[str, Any]:
    """Fig. 3: cross-entropy's confusion matrix, and the changes by CAMRI, or by the first method there is."""
    baseline = next((verdict.baseline for verdict in verdicts if verdict.baseline is not None), None)
    if baseline is None:
        raise InputError(f"{reading.folder}: Fig. 3 needs cross-entropy trials and important classes, and has none")
    before, changes = reading.confusion(baseline), []
    for verdict in verdicts:
        others = (setting.method for setting in verdict.settings if setting.method != BASELINE)
        name = "camri" if verdict.of("camri") else next(others, BASELINE)
        setting = verdict.in_table_one(name) or verdict.shown(name)
        if setting is not None and name != BASELINE:
            changes.append((verdict, setting, reading.confusion(setting) - before))
    lacking = [
        quoted(verdict.column.title)
        for verdict in verdicts
        if verdict.column not in [one.column for one, *_ in changes]
    ]
    notes = [f"Not drawn, as nothing but cross-entropy was trained: {', '.join(lacking)}."] if lacking else []
    if len(changes) > len(LETTERS):
        notes.append(f"Not drawn: the {len(changes) - len(LETTERS)} last columns.")
    kept = _most_confused(before, changes)
    names = [reading.classes[index] for index in kept]
    cells = _confusion_cells("cross-entropy", before, kept, names)
    panels = [{"title": "(a) cross-entropy", "is_change": False, "cells": cells}]
    for letter, (verdict, setting, change) in zip(LETTERS, changes, strict=False):
        title = f"({letter}) {quoted(verdict.column.title)}: {setting.title} − cross-entropy"
        cells = _confusion_cells(verdict.column.title, change, kept, names)
        panels.append({"title": title, "is_change": True, "cells": cells})
    return {"classes": names, "num_classes": len(before), "panels": panels, **({"notes": notes} if notes else {})}


def _most_confused(before: Array, changes: Sequence[tuple[ColumnVerdict, SettingResults, Array]]) -> list[int]:
    """All classes; of many, the important ones and those that are confused or changed most."""
    num_classes = len(before)
    if num_classes <= MOST_CLASSES:
        return list(range(num_classes))
    important = {index for verdict, *_ in changes for index in verdict.column.indices}
    off = np.nan_to_num(before * (1 - np.eye(num_classes)))
    weight = off.sum(axis=0) + off.sum(axis=1)
    for _, _, change in changes:
        weight = weight + 5 * np.abs(np.nan_to_num(change)).sum(axis=1)
    ranked = sorted(range(num_classes), key=lambda index: (index not in important, -weight[index]))
    return sorted(ranked[:MOST_CLASSES])


def _confusion_cells(column: str, shares: Array, kept: Sequence[int], names: Sequence[str]) -> Records:
    return [
        {"column": column, "true": true, "predicted": predicted, "percent": round(100 * float(shares[row, place]), 2)}
        for true, row in zip(names, kept, strict=True)
        for predicted, place in zip(names, kept, strict=True)
        if np.isfinite(shares[row, place]) and abs(shares[row, place]) >= 0.0005
    ]


def penalty_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Fig. 5: recall and accuracy of each column, method and penalty, where there are at least two penalties.

    Each begins without the penalty: with cross-entropy, or for a margin with L2-softmax at its scale if it was trained.
    Where there are fewer, a record says `why`.
    """
    found = [record for verdict in verdicts for method in PENALTIES for record in _penalties(verdict, method)]
    return found if any("why" not in record for record in found) else []


def _penalties(verdict: ColumnVerdict, method: str) -> Records:
    shown = verdict.in_table_one(method) or verdict.shown(method)
    named = {"number": verdict.column.number, "column": verdict.column.title, "method": method}
    if shown is None:
        return [{**named, "why": "not trained"}]
    knob, _, unit = PENALTIES[method]
    fixed = {name: shown.value(name) for name in shown.knobs if name != knob}
    own = [s for s in verdict.of(method) if all(s.value(name) == value for name, value in fixed.items())]
    by_penalty = {setting.value(knob): setting for setting in own}
    if len(by_penalty) < 2:
        return [{**named, "why": "a single penalty"}]
    plain = verdict.baseline if control_of(shown.setting) is None else control_among(shown, verdict.settings)
    neutral = METHODS[method].knobs[knob].neutral
    if plain is not None and neutral is not None:
        by_penalty.setdefault(neutral, plain)
    records = []
    for penalty, setting in sorted(by_penalty.items()):
        found = measure(setting, verdict.column.indices)
        for name, values in (("recall", found.recall), ("accuracy", found.accuracy)):
            mean, sd = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            numbers = {"mean": mean, "sd": sd, "low": mean - sd, "high": mean + sd}
            records.append(
                {
                    **named,
                    "setting": setting.title,
                    "scale": fixed.get("s"),
                    "penalty": round(penalty / unit, 6),
                    "figure": name,
                    **{key: round(value, 5) for key, value in numbers.items()},
                    "trials": len(values),
                }
            )
    return records


def epoch_records(reading: RunReader, verdicts: Sequence[ColumnVerdict]) -> Records:
    """Training epoch by epoch, on validation data: a record for each column and method, cross-entropy first.

    Each method at its best setting on validation data. `recall` and `accuracy` are means over trials, one per epoch.
    `…_late` is the mean over the last third of the epochs, `…_wander` one model's sd over those epochs (root mean
    square over trials), `…_gain` the late mean less cross-entropy's of the same seeds, with the t interval over seeds.
    """
    if not reading.has_validation:
        raise InputError("no validation data were held out, so nothing was measured after each epoch")
    records = []
    for verdict in verdicts:
        chosen = {BASELINE: verdict.baseline, **verdict.own}
        baseline: dict[int, Array] = {}
        for method in sorted(in_order(set(chosen)), key=lambda name: name != BASELINE):
            setting = chosen[method]
            curves = {} if setting is None else trial_curves(reading, setting, verdict.column.indices)
            if setting is None or not curves:  # an ensemble was not trained, so it has no epochs
                continue
            baseline = curves if method == BASELINE else baseline
            named = {**about(verdict), "method": method, "setting": setting.title, "num_trials": len(curves)}
            records.append({**named, **_late_figures(curves, baseline)})
    return records


def trial_curves(reading: RunReader, setting: SettingResults, important: Sequence[int]) -> dict[int, Array]:
    """Seed -> (2, E): recall of the important classes and accuracy on validation data after each epoch."""
    labels = reading.run.labels("val")
    counts = np.bincount(labels, minlength=len(reading.classes))
    found = {}
    for row in setting.rows:
        hits = reading.run.val_hits(row)
        if hits is not None and hits.size:
            recall = (hits[:, list(important)] / counts[list(important)]).mean(axis=1)
            found[row.seed] = np.stack([recall, hits.sum(axis=1) / len(labels)])
    return found


def _late_figures(by_seed: Mapping[int, Array], baseline: Mapping[int, Array]) -> dict[str, Any]:
    curves = np.stack(list(by_seed.values()))  # (trials, 2, E)
    late = curves.shape[-1] // LATE
    record: dict[str, Any] = {"epochs": curves.shape[-1], "late_epochs": late if late >= LEAST_LATE else 0}
    for place, name in enumerate(("recall", "accuracy")):
        record[name] = curves[:, place].mean(axis=0).round(5).tolist()
        if late < LEAST_LATE:
            continue
        own = curves[:, place, -late:]
        record[f"{name}_late"] = float(own.mean())
        record[f"{name}_wander"] = float(np.sqrt(own.var(axis=1, ddof=1).mean()))
        gains = [
            by_seed[seed][place, -late:].mean() - theirs[place, -late:].mean()
            for seed, theirs in baseline.items()
            if seed in by_seed and baseline is not by_seed
        ]
        gain = summarise(gains) if gains else None
        record |= ends_of(f"{name}_gain", gain and Estimate(gain.mean, gain.low, gain.high))
    return record


def recover(logits: Array, weight: Array) -> Array:
    """Unit features (N, 2) from logits (N, C) of a cosine head and its weight (C, 2), whatever the scale.

    With unit weight vectors W and scale s the logits are s · W z′: z′ is the least-squares solution.

    >>> weight = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    >>> recover(8 * np.array([[0.6, 0.8, -1.4 / 2**0.5]]), weight).round(3).tolist()
    [[0.6, 0.8]]
    """
    return _unit(np.asarray(logits, np.float64) @ np.linalg.pinv(_unit(weight)).T)


def room(weight: Array, index: int) -> float:
    """Degrees between the two neighbours of a weight vector on the circle; evenly shared it is 720 / C.

    >>> room(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -1.0]]), 1)
    180.0
    """
    angles = np.degrees(np.arctan2(weight[:, 1], weight[:, 0]))
    apart = np.delete(angles - angles[index], index) % 360
    return float(apart.min() + 360 - apart.max())


def circle_records(reading: RunReader, verdicts: Sequence[ColumnVerdict] = ()) -> Records:
    """Fig. 6, of a run with two features that kept logits and weights: a panel for each method.

    A panel has the weight vectors (spokes) and features (dots) of one model, that of the median accuracy (validation,
    if there is any): one may have collapsed. `models` has every model's accuracy and room of the important class.
    """
    if not reading.columns:
        raise InputError(f"{reading.folder}: Fig. 6 needs the important classes, and they are not known yet")
    column, split, panels = reading.columns[0], "val" if reading.has_validation else "test", []
    for method in CIRCLE_METHODS:
        every = reading.settings(column, method)
        for setting in every[:1]:
            weights = {row.seed: _head_weight(reading, setting, row) for row in setting.rows}
            ranked = sorted(setting.rows, key=lambda row: (row.accuracy[split], row.seed))
            drawn = ranked[len(ranked) // 2]
            dots, spokes = _features(reading, drawn, weights[drawn.seed], column.indices)
            models = [
                {"seed": row.seed, "accuracy": row.accuracy["test"], "room": room(weights[row.seed], column.indices[0])}
                for row in setting.rows
            ]
            named = {"method": method, "title": f"{title_of(method)}: {setting.title}", "important": column.names[0]}
            left_out = {"left_out": [one.title for one in every[1:]]} if len(every) > 1 else {}
            panels.append({**named, **left_out, "drawn": drawn.seed, "models": models, "dots": dots, "spokes": spokes})
    if not panels:
        raise InputError(f"{reading.folder}: Fig. 6 draws {', '.join(CIRCLE_METHODS)}, and the run has none of them")
    return panels


def _head_weight(reading: RunReader, setting: SettingResults, row: Row) -> Array:
    """The head's weight (C, 2)."""
    weights = reading.run.weights(row)
    if weights is None or "test" not in reading.run.logits(row):
        raise InputError(
            f"{reading.folder}: Fig. 6 needs features, and the outcomes of {setting.title} keep none; run the study "
            "with [keep] logits = true, weights = true"
        )
    if HEAD not in weights or weights[HEAD].shape[1] != 2:
        raise InputError(f"{reading.folder}: Fig. 6 needs a model with two features (model_options num_features = 2)")
    return weights[HEAD]


def _features(reading: RunReader, row: Row, weight: Array, important: Sequence[int]) -> tuple[Records, Records]:
    """The dots and the spokes of a panel."""
    features, labels = recover(reading.run.logits(row)["test"], weight), reading.run.labels("test")
    dots, spokes = [], []
    for index, (name, (x, y)) in enumerate(zip(reading.classes, _unit(weight).tolist(), strict=True)):
        named = {"class": name, "kind": "important" if index in important else "other"}
        spokes.append({**named, "x": x, "y": y, "line": True})
        shown = features[labels == index][:MOST_DOTS].tolist()
        dots += [{**named, "x": round(x, 4), "y": round(y, 4), "line": False} for x, y in shown]
    return dots, spokes


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


MAKERS: Mapping[str, Callable[[RunReader, Sequence[ColumnVerdict]], Any]] = {
    "paper": paper_records,
    "honest": honest_records,
    "own": own_records,
    "gaps": gap_records,
    "angles": angle_records,
    "curves": curve_records,
    "confusion": confusion_records,
    "penalty": penalty_records,
    "training": epoch_records,
    "circle": circle_records,
    "calibration": calibration_records,
    "settings": lambda reading, verdicts: rank_settings(reading),
}


class Source(Protocol):
    """Where records come from: an open run, or a results folder."""

    @property
    def small(self) -> str:
        """What to say of a run of a small recipe; "" for others."""

    def records(self, part: str) -> Any:
        """The records of a part of `MAKERS`; InputError where there are none."""


@dataclass(frozen=True, eq=False)
class FromRun:
    """The records of an open run, each part made once."""

    reading: RunReader
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def small(self) -> str:
        return self.reading.small

    @cached_property
    def verdicts(self) -> list[ColumnVerdict]:
        return judge_columns(self.reading)

    def records(self, part: str) -> Any:
        if part not in self._made:
            self._made[part] = plain(MAKERS[part](self.reading, self.verdicts))
        return self._made[part]


def plain(value: Any) -> Any:
    """The value as JSON holds it: lists, plain numbers, None for nan and infinity."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
