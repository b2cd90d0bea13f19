"""The picture of differences at equal recall: what it draws, on which scale, and what it leaves out."""

import pytest

from camri.cli import app
from camri.errors import InputError
from camri.report.charts import ROW_HEIGHT, draw_gaps
from camri.report.page import sections
from camri.report.records import FromRun, gap_records
from tests.report.conftest import make_run, rows_of


def record(column, method, mean, alarms=None):
    """A gap's record: estimates, each with an interval of 0.2 points to the left and 0.3 to the right."""
    found = {"column": column, "important": f"class {column}", "method": method, "setting": f"{method} s=8"}
    for name, value in (("mean", mean), ("alarms", alarms)):
        ends = (None, None, None) if value is None else (value, value - 0.002, value + 0.003)
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    return {**found, "num_trials": 10}


def shown(figure, title):
    (panel,) = [one for one in figure.panels if one.title == title]
    made = panel.chart.to_dict(validate=False)
    zero, line, _ = made["layer"]
    return panel, zero, line["encoding"]


def test_every_method_has_a_dot_and_an_interval_in_points_against_cross_entropy():
    figure = draw_gaps([record(0, "camri", 0.004, -0.01), record(0, "l2softmax", -0.001, 0.0)])
    told = [(one["figure"], one["method"], one["change"], one["low"], one["high"]) for one in figure.records]
    assert told == [
        ("mean", "CAMRI", 0.4, 0.2, 0.7),
        ("alarms", "CAMRI", -1.0, -1.2, -0.7),
        ("mean", "L2-softmax", -0.1, -0.3, 0.2),
        ("alarms", "L2-softmax", 0.0, -0.2, 0.3),
    ]
    assert {(one["setting"], one["trials"]) for one in figure.records} == {("camri s=8", 10), ("l2softmax s=8", 10)}
    assert [one.title for one in figure.panels] == ["“class 0”: accuracy", "“class 0”: false alarms"]
    assert figure.across == 2
    panel, zero, line = shown(figure, "“class 0”: false alarms")
    assert panel.height == 3 * ROW_HEIGHT
    assert rows_of(panel.chart.to_dict(validate=False), zero) == [{"at": 0}]
    assert line["y"]["sort"] == ["CAMRI", "L2-softmax"]
    assert (line["x"]["field"], line["x2"]["field"]) == ("low", "high")
    assert line["x"]["scale"]["domain"] == pytest.approx([-1.275, 0.375])  # a twentieth of room at either end


def test_columns_share_their_scale_and_zero_is_on_it():
    figure = draw_gaps([record(0, "camri", 0.004), record(1, "camri", 0.02), record(1, "wce", 0.01)])
    domains = [shown(figure, f"“class {number}”: accuracy")[2]["x"]["scale"]["domain"] for number in (0, 1)]
    assert domains[0] == domains[1] == pytest.approx([-0.115, 2.415])
    assert len(figure.panels) == 2, "no false alarms were counted, so no panel tells them"


def test_a_method_that_did_not_train_is_named_and_not_drawn():
    figure = draw_gaps(
        [record(0, "camri", 0.2, -0.3), record(0, "wasserstein", -0.5, 0.1), record(0, "wce", -0.1, 0.0)]
    )
    assert [one["method"] for one in figure.records if one["figure"] == "mean"] == ["CAMRI", "WCE"]
    assert figure.caption.endswith("Not drawn, as over 10 points less accurate: Wasserstein.")
    assert "Not drawn" not in draw_gaps([record(0, "wce", -0.1, 0.2)]).caption
    assert draw_gaps([record(0, "wce", -0.3)]).panels == ()
    assert draw_gaps([]).panels == ()


def test_the_page_has_it_with_the_tables_it_sums_up(opened, gain):
    reading, verdicts = opened(gain)
    (section,) = [one for one in sections(FromRun(reading)) if one.name == "equal-recall"]
    assert [table.caption.split(",")[0] for table in section.tables] == [
        "Accuracy at equal recall",
        "False alarms at equal recall",
        "False alarms and accuracy at equal recall",
    ]
    gaps = gap_records(reading, verdicts)
    drawn = [one["change"] for one in section.figure.records if one["figure"] == "alarms"]
    assert drawn == [round(100 * one["alarms"], 3) for one in gaps]
    assert min(drawn) < -5, "the made gain is of false alarms too"


def test_the_command_writes_it_and_says_what_it_lacks(gain, tmp_path, capsys):
    app(["report", str(gain), "--figure", "gaps", "--out", str(tmp_path / "g.svg")], standalone_mode=False)
    assert "Left of 0: fewer false alarms" in capsys.readouterr().out
    assert "L2-softmax" in (tmp_path / "g.svg").read_text()
    alone = make_run(tmp_path / "ce", methods={"ce": {}}, seeds=2)
    with pytest.raises(InputError, match="the figure of gaps needs a method and cross-entropy"):
        app(["report", str(alone), "--figure", "gaps"], standalone_mode=False)
