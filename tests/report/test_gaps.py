"""Accuracy at equal recall: a curve that is higher is shown to be, one that is only moved along is not."""

import pytest

from camri.curves import compare_curves
from camri.report.gaps import gap_of, gap_records, gap_table
from camri.report.verdict import SEED


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
    assert camri["mean"] == wanted.mean.estimate
    assert (camri["first_low"], camri["last_high"]) == (wanted.at[0].low, wanted.at[-1].high)
    assert camri["recall_from"] == pytest.approx(sum(row.recall["test"][1] for row in baseline.rows) / 8)
    assert 1 - camri["recall_to"] == pytest.approx((1 - camri["recall_from"]) / 2)


def test_a_bias_moves_along_the_curve_and_is_not_bold(opened, no_gain):
    table = gap_table(*opened(no_gain))
    bold = [cell.text for group in table.groups for row in group for cell in row if cell.bold]
    assert bold == []
    assert {record["method"]: abs(record["mean"]) < 0.01 for record in table.records}["wce"]


def test_without_validation_data_no_setting_can_be_picked(opened, no_validation):
    assert gap_table(*opened(no_validation)) is None


def test_what_is_missing_is_blank():
    assert gap_of(None, "mean") == "–"
