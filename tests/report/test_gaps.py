"""What training changes: a curve that is higher is shown to be, one that is only moved along is not."""

import dataclasses

import numpy as np
import pytest

from camri.decision.scores import condense
from camri.decision.stats import compare
from camri.report.records import gap_records, relative_change
from camri.report.tables import gap_of, table_of_alarms, table_of_gaps, table_of_trained
from camri.selection import Validation, choose, common_range, compare_curves
from camri.study.combine import merge
from camri.study.reader import SEED, best_setting, cross_fit, gain_over_shifted, list_picks
from tests.report.conftest import make_run


def test_a_sharper_method_has_the_higher_curve(opened, gain):
    reading, verdicts = opened(gain)
    records = {one["method"]: one for one in gap_records(reading, verdicts) if one["column"] == 0}
    assert list(records) == ["camri", "wce", "l2softmax"]
    camri = records["camri"]
    assert camri["mean_low"] > 0
    assert camri["setting"] == verdicts[0].own["camri"].title
    assert camri["num_trials"] == 8
    assert camri["recall_mean"] == pytest.approx(
        sum(row.recall["test"][1] for row in verdicts[0].own["camri"].rows) / 8
    )
    column, setting, baseline = verdicts[0].column, verdicts[0].own["camri"], verdicts[0].baseline
    arm, other = ([reading.scores(row, "test", column) for row in one.rows] for one in (setting, baseline))
    wanted = compare_curves(arm, other, seed=SEED)
    assert camri["mean"] == wanted.mean.value
    every = gap_records(reading, verdicts)
    assert camri["p_holm"] == pytest.approx(min(1.0, len(every) * wanted.mean.p))  # the least of them all
    assert camri["p_holm"] == min(one["p_holm"] for one in every)
    assert (camri["first_low"], camri["last_high"]) == (wanted.at(0).low, wanted.at(-1).high)
    assert camri["recall_from"] == pytest.approx(sum(row.recall["test"][1] for row in baseline.rows) / 8)
    assert 1 - camri["recall_to"] == pytest.approx((1 - camri["recall_from"]) / 2)


def test_differences_as_trained_are_those_of_the_same_seeds(opened, gain):
    reading, verdicts = opened(gain)
    camri = next(one for one in gap_records(reading, verdicts) if (one["column"], one["method"]) == (0, "camri"))
    mine, its = verdicts[0].own["camri"].rows, verdicts[0].baseline.rows
    recall, accuracy = (
        np.mean([read(row) for row in mine]) - np.mean([read(row) for row in its])
        for read in (lambda row: row.recall["test"][1], lambda row: row.accuracy["test"])
    )
    assert camri["recall_change"] == pytest.approx(recall)
    assert camri["recall_change"] > 0.02
    assert camri["accuracy_change"] == pytest.approx(accuracy)
    assert camri["recall_change_low"] < camri["recall_change"] < camri["recall_change_high"]
    assert camri["accuracy_change_low"] < camri["accuracy_change"] < camri["accuracy_change_high"]


def test_several_important_classes_count_alike(opened, tmp_path):
    methods = {"ce": {}, "l2softmax": {"s": [8]}, "camri": {"m": [0.2], "s": [8]}}
    made = make_run(tmp_path, important=[("column", "ring")], methods=methods, sharpness={"camri": 1.2}, num_images=402)
    reading, (one,) = opened(made)
    labels, column = reading.run.labels("test"), one.column
    own = np.isin(labels, column.indices)
    counts = np.bincount(labels[own])
    assert len(set(counts[counts > 0])) == 2, "classes of different sizes"

    def right(planned):
        return np.array([reading.scores(row, "test", column).correct() for row in planned.rows])[:, own]

    wanted = compare(right(one.own["camri"]), right(one.baseline), parts=labels[own], seed=SEED)
    found = next(record for record in gap_records(reading, [one]) if record["method"] == "camri")
    assert (found["recall_change"], found["recall_change_low"]) == (wanted.value, wanted.low)
    control = one.best.control
    shifted = one.best.judgement.arms["baseline shifted"].correct[:, own]
    its = one.best.judgement.arms[control.key].correct[:, own]
    gain = gain_over_shifted(one.best, control.key, labels)
    assert gain.draws.tolist() == compare(its, shifted, parts=labels[own], seed=SEED).draws.tolist()


def test_images_in_groups_count_for_what_they_are_worth(opened, tmp_path):
    """The store keeps the groups, a merged one too, and all differences are made with them."""
    for number, seeds in enumerate(([0, 1], [2, 3])):
        make_run(tmp_path / f"part{number}", group_rows=8, seeds=seeds, sharpness={"camri": 0.8})
    merge([tmp_path / "part0", tmp_path / "part1"], tmp_path / "both")
    reading, verdicts = opened(tmp_path / "both")
    groups, labels = reading.run.groups("test"), reading.run.labels("test")
    assert groups.tolist() == [row // 8 for row in range(400)]
    column, own = verdicts[0].column, labels == verdicts[0].column.indices[0]
    record = next(one for one in gap_records(reading, verdicts) if one["method"] == "camri")
    arm, other = (
        [reading.scores(row, "test", column) for row in one.rows]
        for one in (verdicts[0].own["camri"], verdicts[0].baseline)
    )
    mine, its = (np.array([scores.correct()[own] for scores in side]) for side in (arm, other))
    told, alone = (compare(mine, its, seed=SEED, groups=marks) for marks in (groups[own], None))
    assert (
        (record["recall_change_low"], record["recall_change_high"]) == (told.low, told.high) != (alone.low, alone.high)
    )
    whole = compare(
        *(np.array([scores.correct() for scores in side]) for side in (arm, other)), seed=SEED, groups=groups
    )
    assert (record["accuracy_change_low"], record["accuracy_change_high"]) == (whole.low, whole.high)
    wanted = compare_curves(arm, other, seed=SEED, groups=groups)
    assert (record["mean_low"], record["mean_high"]) == (wanted.mean.low, wanted.mean.high)
    gain, arms = verdicts[0].best.judgement.gains["baseline shifted"], verdicts[0].best.judgement.arms
    chosen, shifted = (arms[name].correct[:, own] for name in ("chosen", "baseline shifted"))
    assert gain.recall.low == compare(chosen, shifted, seed=SEED, groups=groups[own]).low


def test_a_margin_is_also_held_against_the_head_without_it(opened, tmp_path):
    reading, verdicts = opened(make_run(tmp_path, sharpness={"l2softmax": 0.3, "camri": 0.8}))
    records = {one["method"]: one for one in gap_records(reading, verdicts) if one["column"] == 0}
    plain = {row.seed: row for row in verdicts[0].own["l2softmax"].rows}
    rows, column = verdicts[0].own["camri"].rows, verdicts[0].column
    arm, other = (
        [reading.scores(row, "test", column) for row in side] for side in (rows, [plain[r.seed] for r in rows])
    )
    grid = np.linspace(records["camri"]["recall_from"], records["camri"]["recall_to"], 9)
    wanted = compare_curves(arm, other, seed=SEED, recall=grid).mean
    assert records["camri"]["over_l2softmax"] == pytest.approx(wanted.value)
    assert records["camri"]["over_l2softmax_low"] == pytest.approx(wanted.low)
    assert 0.005 < wanted.value < records["camri"]["mean"] - 0.005
    assert records["wce"]["over_l2softmax"] is None  # it has no scale
    assert records["l2softmax"]["over_l2softmax"] is None  # it is that


def test_a_bias_moves_along_the_curve_and_is_not_bold(opened, no_gain):
    table = table_of_gaps(gap_records(*opened(no_gain)))
    bold = [cell.text for group in table.groups for row in group for cell in row if cell.bold]
    assert bold == []
    assert {record["method"]: abs(record["mean"]) < 0.01 for record in table.records}["wce"]


def test_without_validation_data_no_setting_can_be_picked_but_a_single_one_needs_no_choice(opened, no_validation):
    reading, verdicts = opened(no_validation)
    (record,) = gap_records(reading, verdicts)
    assert record["method"] == "l2softmax", "the others have several settings"
    note = table_of_trained([record]).notes[0]
    assert "Methods with one setting; others are left out, as no validation data were held out" in note
    (setting,) = verdicts[0].of("l2softmax")
    assert record["recall_mean"] == pytest.approx(np.mean([row.recall["test"][1] for row in setting.rows]))
    assert record["alarms_threshold_low"] < record["alarms_threshold_high"]


def test_what_is_missing_is_blank():
    assert gap_of({"mean": None, "mean_low": None, "mean_high": None, "num_trials": 9}, "mean") == "–"


def record(column, num_trials, low, p=0.01):
    names = ("mean", "first", "last", "over_l2softmax", "recall_change", "accuracy_change")
    ends = {f"{name}{end}": low for name in names for end in ("", "_low", "_high")}
    numbers = {"recall_mean": 0.7, "recall_sd": 0.01, "accuracy_mean": 0.9, "accuracy_sd": 0.02}
    about = {"column": column, "important": f"class {column}", "method": "camri", "setting": "m=1", **numbers}
    return {**about, **ends, "recall_from": 0.7, "recall_to": 0.85, "num_trials": num_trials, "p_holm": p}


def test_bold_is_above_0_and_significant_and_columns_stand_apart():
    table = table_of_gaps(
        [
            record(0, 3, 0.004, p=0.049),
            record(0, 1, 0.004, p=None),
            record(0, 2, 0.004, p=0.01),
            record(0, 3, 0.004, p=0.05),
            record(1, 3, 0.0, p=0.01),
            record(1, 3, -0.001, p=0.01),
        ]
    )
    assert table.titles == ("important: class 0", "important: class 1")
    assert [[row[2].bold for row in group] for group in table.groups] == [[True, False, False, False], [False, False]]
    assert [cell.text for cell in table.groups[0][0]] == [
        "CAMRI",
        "m=1",
        "+0.40 [+0.40, +0.40]",
        "0.049",
        "+0.40 at 0.700, +0.40 at 0.850",
        "+0.40 [+0.40, +0.40]",
        "3",
    ]
    assert [row[2].text for row in table.groups[0]][1:3] == ["+0.40", "+0.40"], "no interval below three trials"


def test_as_trained_recall_and_accuracy_stand_beside_what_they_gained():
    one = {**record(0, 3, 0.004), "recall_change": 0.031, "recall_change_low": -0.01, "recall_change_high": 0.07}
    (row,) = table_of_trained([one]).groups[0]
    wanted = ["CAMRI", "m=1", "0.700 ± 0.010", "+3.1 [−1.0, +7.0]", "0.900 ± 0.020", "+0.40 [+0.40, +0.40]", "3"]
    assert [cell.text for cell in row] == wanted


def test_settings_without_a_seed_in_common_are_not_compared(opened, tmp_path):
    left_out = {("camri", 0), ("camri", 1), ("ce", 2), ("ce", 3)}
    reading, verdicts = opened(make_run(tmp_path, methods={"ce": {}, "camri": {"m": [0.2], "s": [8]}}))
    (one,) = verdicts
    halves = {
        name: dataclasses.replace(planned, rows=[row for row in planned.rows if (name, row.seed) not in left_out])
        for name, planned in (("ce", one.baseline), ("camri", one.own["camri"]))
    }
    fitted = {"camri": {row.seed: halves["camri"] for row in halves["camri"].rows}}
    apart = dataclasses.replace(one, baseline=halves["ce"], fitted=fitted)
    assert gap_records(reading, [apart]) == []
    assert len(gap_records(reading, verdicts)) == 1


def test_a_sharper_method_has_fewer_false_alarms_at_equal_recall(opened, gain):
    reading, verdicts = opened(gain)
    every = gap_records(reading, verdicts)
    camri = next(one for one in every if (one["column"], one["method"]) == (0, "camri"))
    one = verdicts[0]
    arm, other = (
        [reading.scores(row, "test", one.column) for row in setting.rows]
        for setting in (one.own["camri"], one.baseline)
    )
    wanted = compare_curves(arm, other, seed=SEED, figure="alarms")
    assert (camri["alarms"], camri["alarms_low"]) == (wanted.mean.value, wanted.mean.low)
    assert camri["alarms_high"] < 0
    assert camri["alarms_of_ce"] == wanted.baseline.mean()
    assert camri["p_alarms_holm"] == pytest.approx(min(1.0, len(every) * wanted.mean.p))  # the least of them all
    plain = next(setting for setting in one.settings if setting.method == "l2softmax")
    its = [reading.scores(row, "test", one.column) for row in plain.rows]
    control = compare_curves(arm, its, seed=SEED, recall=wanted.recall, figure="alarms")
    assert camri["alarms_over_l2softmax"] == control.mean.value


def test_the_table_of_alarms_shows_rates_and_what_part_is_saved():
    counted = {
        "column": 0, "important": "cat", "method": "camri", "setting": "camri s=8", "num_trials": 10,
        "alarms": -0.0078, "alarms_low": -0.0103, "alarms_high": -0.0055, "alarms_of_ce": 0.0709, "p_alarms_holm": 0.01,
        "alarms_over_l2softmax": None, "alarms_over_l2softmax_low": None, "alarms_over_l2softmax_high": None,
    }  # fmt: skip
    unsure = ({"alarms": 0.0078}, {"p_alarms_holm": 0.06}, {"p_alarms_holm": None})
    table = table_of_alarms([counted, *({**counted, **one} for one in unsure)])
    shown = ["CAMRI", "camri s=8", "7.09", "−0.78 [−1.03, −0.55]", "−11 %", "0.01", "–", "10"]
    assert [cell.text for cell in table.rows[0]] == shown
    assert [row[3].bold for row in table.rows] == [True, False, False, False]
    assert table_of_alarms([{**counted, "alarms_of_ce": 0.0}]).rows[0][4].text == "–"
    assert table_of_alarms([{"column": 0, "method": "camri"}]) is None, "records of before they were counted"


def test_each_seed_is_compared_at_the_setting_that_the_other_half_picks(opened, tmp_path):
    methods = {"ce": {}, "wce": {"w": [2, 4, 8]}}
    reading, verdicts = opened(make_run(tmp_path, methods=methods, seeds=range(6)))
    (one,) = verdicts
    folds = one.best.choice.folds
    for group, pick in folds:
        found = {one.fitted["wce"][seed].key for seed in group}
        points = {setting.key: pick.points[setting.key] for setting in one.of("wce")}
        assert found == {max(points, key=lambda key: points[key].rank)}
    (record,) = gap_records(reading, verdicts)
    rows = [next(row for row in s.rows if row.seed == seed) for seed, s in sorted(one.fitted["wce"].items())]
    assert record["accuracy_mean"] == pytest.approx(np.mean([row.accuracy["test"] for row in rows]))
    assert record["num_trials"] == 6
    assert record["setting"] == list_picks([one.fitted["wce"][seed].title for seed in range(6)])


def made_study(rng, num_settings=10, num_seeds=5, num_images=300):
    """Validation and test scores of cross-entropy and of settings that are equal to it; luck belongs to a training."""
    labels = [np.arange(num_images) % 5 for _ in range(2)]
    hard = [rng.normal(size=(num_images, 5)) for _ in range(2)]
    found = {}
    for number in range(1 + num_settings):
        trials = {}
        for seed in range(num_seeds):
            strength = 2.0 + 0.15 * rng.normal()
            trials[seed] = [
                condense(h + 0.5 * rng.normal(size=h.shape) + strength * np.eye(5)[y], y, (1,))
                for h, y in zip(hard, labels, strict=True)
            ]
        found[f"setting {number}" if number else "ce"] = trials
    return found


def test_equal_settings_seem_better_no_more_often_than_chance_allows():
    """Picked by the seeds that are judged, the best of 10 equal settings is "better" by points of accuracy."""
    rng, gains, rejected = np.random.default_rng(0), {"cross-fitted": [], "by its own seeds": []}, []
    for _ in range(50):
        study = made_study(rng)
        val = [Validation(key, {seed: v for seed, (v, _) in trials.items()}) for key, trials in study.items()]
        choice = choose(val[0], val[1:])
        accuracies = {one.key: {seed: s.accuracy() for seed, s in one.scores.items()} for one in val[1:]}
        picks = {
            "cross-fitted": cross_fit(choice, accuracies),
            "by its own seeds": dict.fromkeys(range(5), best_setting(choice.final, accuracies)),
        }
        baseline = [test for _, test in study["ce"].values()]
        for name, picked in picks.items():
            arm = [study[picked[seed]][seed][1] for seed in range(5)]
            gap = compare_curves(arm, baseline, seed=0, recall=common_range(baseline, arm)[[0, 4, 8]])
            gains[name].append(gap.mean.value)
            if name == "cross-fitted":
                rejected.append(gap.mean.p < 0.05)
    assert np.mean(rejected) <= 0.06
    assert abs(np.mean(gains["cross-fitted"])) < 0.006
    assert np.mean(gains["by its own seeds"]) > 0.015


def test_a_relative_changes_interval_holds_the_truth_and_the_chance_in_both_means():
    """Settings equal to cross-entropy: the relative change is 0 in truth. Of 95 % intervals most hold it."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(60):
        study = made_study(rng, num_settings=1, num_seeds=4)
        baseline, arm = ([test for _, test in trials.values()] for trials in study.values())
        found = relative_change(arm, baseline, common_range(baseline, arm), None)
        plain = compare_curves(arm, baseline, seed=SEED, figure="alarms", recall=common_range(baseline, arm))
        assert found.value == pytest.approx(plain.mean.value / plain.baseline.mean())
        assert found.low < found.value < found.high
        held += found.low <= 0 <= found.high
    assert held >= 52
    assert relative_change(baseline, baseline, common_range(baseline), None).value == 0
