"""Results made from release files, and the table and figure of all columns that are made of results."""

import json
from pathlib import Path

import numpy as np
import pytest

from camri.decision.stats import holm
from camri.errors import InputError
from camri.report.results import open_results, write_results
from camri.selection import compare_curves
from camri.study.reader import RunReader
from camri.study.store import open_run
from camri.text import points
from tests.report.conftest import make_run
from tools import columns, releases
from tools.columns import column_records, columns_figure, columns_table, ranked_table


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run in which WCE separates the class better, and one in which it does not."""
    folder = tmp_path_factory.mktemp("runs")
    methods = {"ce": {}, "wce": {"w": [4]}}
    return [
        make_run(folder / name, methods=methods, sharpness={"wce": sharpness})
        for name, sharpness in (("sharp", 0.5), ("same", 0.0))
    ]


@pytest.fixture(autouse=True)
def made_runs_have_few_false_alarms(monkeypatch):
    monkeypatch.setattr(columns, "FEWEST_ALARMS", 5)


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return [open_results(write_results(run, folder / run.name)) for run in runs]


def test_columns_have_both_sides_with_thresholds_and_p_over_all(results):
    records = column_records(results, "wce")
    gaps = [one.records("gaps")[0] for one in results]
    corrected = holm([gap["p_alarms_threshold"] for gap in gaps])
    for record, gap, p in zip(records, gaps, corrected, strict=True):
        of_ce = gap["alarms_of_ce"] + gap["alarms_of_ce_threshold"]
        assert record["relative"] == pytest.approx(gap["alarms_threshold"] / of_ce)
        assert record["relative_low"] == gap["relative_threshold_low"]
        assert record["p_holm"] == pytest.approx(p)
    assert records[0]["relative"] < records[1]["relative"]
    with pytest.raises(InputError, match="no results of focal"):
        columns_table(results, ["focal"])


def test_the_table_has_a_row_a_column_and_blanks_for_a_model_that_was_not_run(results, monkeypatch):
    small, other = results
    other.verdict["training"]["model"], other.verdict["data"] = "paper", "other"
    try:
        table = columns_table(results, ["wce"])
        figure = columns_figure(results, ["wce"])
    finally:
        other.verdict["training"]["model"], other.verdict["data"] = "small", small.verdict["data"]
    (first, second) = ([cell.text for cell in row] for row in table.rows)
    gap = column_records([small], "wce")[0]
    assert table.header[1] == f"small CNN, WCE w=4 ({gap['num_trials']} seeds): Δ false alarms"
    assert first[3:] == ["–", "–"] == second[1:3]
    assert first[1].startswith(f"−{-100 * gap['relative']:.0f} % [")
    assert first[2].startswith(points(gap["accuracy_threshold"], decimals=2))
    assert [panel.title for panel in figure.panels] == [
        f"{model}: {shown}" for model in ("small CNN", "authors’ CNN") for shown in ("false alarms", "accuracy")
    ]
    assert figure.records[0]["alarms"] == round(100 * gap["relative"], 2)
    assert figure.records[0]["accuracy_low"] == round(100 * gap["accuracy_threshold_low"], 3)
    of_ce, span = gap["alarms_of_ce_with_threshold"], (gap["recall_from"], gap["recall_to"])
    assert first[1].endswith(" of {:.2f} at {:.2f}–{:.2f}".format(100 * of_ce, *span))
    monkeypatch.setattr(columns, "FEWEST_ALARMS", int(of_ce * results[0].verdict["images"]["test"]) + 1)
    assert columns_table(results, ["wce"]).rows[0][1].text.startswith("too few of ")
    assert columns_figure(results, ["wce"]).records[0]["alarms"] is None


def test_records_of_before_thresholds_had_accuracy_are_marked(results):
    gap = results[0].records("gaps")[0]
    kept = {name: gap.pop(name) for name in [*gap] if name.startswith("accuracy_threshold")} | {
        "p_alarms_threshold": gap.pop("p_alarms_threshold")
    }
    try:
        table = columns_table(results[:1], ["wce"], joint=False)
        with pytest.raises(InputError, match="no results of wce"):
            columns_table(results, ["wce"], joint=True)
    finally:
        gap |= kept
    ((_, alarms, accuracy),) = table.rows
    assert not alarms.bold
    assert accuracy.text.startswith(points(gap["mean"], decimals=2))
    assert accuracy.text.endswith(" *")
    assert "no p" in table.notes[0]
    assert "no p" not in columns_table(results[:1], ["wce"]).notes[0]


def test_release_files_are_checked_and_give_the_same_results(runs, tmp_path):
    folder, listed = tmp_path / "files", tmp_path / "results"
    listed.mkdir()
    releases.add("sharp", runs[0], listed)
    releases.add("screen", runs[1], listed, folder, ranked=True)
    releases.add("gone", runs[1], listed, folder)
    (folder / "gone.sqlite").unlink()
    packed = listed / "scores" / "sharp.sqlite.xz"
    assert packed.stat().st_size < (runs[0] / "outcomes.sqlite").stat().st_size
    assert releases.rebuild(listed, folder) == ["gone"]
    wanted = write_results(runs[0], tmp_path / "wanted")
    for path in wanted.iterdir():
        assert (listed / "sharp" / path.name).read_bytes() == path.read_bytes()

    records = json.loads((listed / "screen" / "ranked.json").read_text())
    assert [one["method"] for one in records] == ["ce", "wce"]
    table = ranked_table(listed / "screen" / "ranked.json")
    (row,) = table.rows
    assert row[0].text == records[1]["setting"]
    assert table.notes[0].startswith("Validation data.")
    assert f"{100 * records[0]['shift']['alarms_of_ce']:.2f} % with a shift" in table.notes[0]

    with pytest.raises(InputError, match="'sharpe' is no release file"):
        releases.rebuild(listed, names=["sharpe"])
    packed.write_bytes(packed.read_bytes()[:-1] + b"x")
    assert releases.rebuild(listed, folder, ["gone"]) == ["gone"]
    with pytest.raises(InputError, match="get it again"):
        releases.rebuild(listed)


def test_every_published_file_is_in_the_repository_or_its_history():
    published = Path(releases.__file__).parents[1] / "reproduce"
    for name, entry in releases.read_list(published).items():
        there = (published / releases.SCORES / entry["file"]).is_file()
        assert there or entry["ranked"] or "in_commit" in entry, f"{name}: its scores are nowhere"
        assert not (there and "in_commit" in entry), f"{name}: its file is here"
        assert ("git show" in releases.where_it_is(entry)) == ("in_commit" in entry)


@pytest.mark.parametrize("name", ["columns-cifar10", "small-cifar10-members"])
def test_published_results_are_rebuilt_from_their_scores(name, tmp_path):
    published = Path(releases.__file__).parents[1] / "reproduce"
    (tmp_path / releases.LIST).symlink_to(published / releases.LIST)
    (tmp_path / releases.SCORES).symlink_to(published / releases.SCORES)
    assert releases.rebuild(tmp_path, names=[name]) == []
    files, wanted = sorted((tmp_path / name).iterdir()), releases.home(published, name)
    assert files
    for path in files:
        if path.suffix == ".json":
            assert_close(json.loads(path.read_text()), json.loads((wanted / path.name).read_text()))


def assert_close(found, wanted):
    """Equal but for rounding: other processors add in another order."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_close(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    else:
        assert found == (pytest.approx(wanted, rel=1e-6, abs=1e-9) if isinstance(wanted, float) else wanted)


def test_a_packed_store_keeps_the_scores_of_its_columns_only(tmp_path):
    run = make_run(tmp_path / "run", important=["column", "ring"], methods={"ce": {}, "wce": {"w": [4]}}, seeds=[0])
    releases.pack(run / "outcomes.sqlite", tmp_path / "packed.xz")
    with releases.unpacked(tmp_path / "packed.xz") as path, open_run(path) as packed, open_run(run) as whole:
        columns = packed.columns()
        for number, column in enumerate(columns):
            (key,) = {planned.key for planned in packed.plan(number) if planned.method == "wce"}
            (row,) = packed.rows(key=key)
            assert packed.important(row) == {"val": list(column.indices), "test": list(column.indices)}
            wanted = whole.scores(row, "test", column.indices)
            found = packed.scores(row, "test", column.indices)
            assert found.lead.tolist() == wanted.lead.tolist()
            assert found.rest_spread.tolist() == wanted.rest_spread.tolist()
        (shared,) = packed.rows(method="ce")
        assert packed.important(shared)["test"] == sorted(index for column in columns for index in column.indices)


def test_cross_entropy_of_several_runs_is_ranked_by_column(runs, tmp_path):
    longer = make_run(tmp_path / "longer", methods={"ce": {}}, sharpness={"ce": 0.5}, seeds=[0, 1, 2])
    results = tmp_path / "results"
    results.mkdir()
    releases.add("longer", longer, results, compared=True)
    releases.add("short", runs[0], results, compared=True, against={"longer": "longer"}, num_seeds=3)
    assert releases.rebuild(results) == []
    assert [path.name for path in results.glob("*/*.json")] == ["ranked.json"]
    with releases.unpacked(results / "scores" / "short.sqlite.xz") as path, open_run(path) as packed:
        assert {row.seed for row in packed.rows()} == {0, 1, 2}
        assert {tuple(packed.important(row)) for row in packed.rows()} == {("test",)}
    records = json.loads((results / "short" / "ranked.json").read_text())
    with RunReader(runs[0]) as reading, RunReader(longer) as other:
        column = reading.columns[0]
        arm = [other.scores(row, "test", column).odds() for row in other.rows]
        rows = [row for row in reading.rows if row.method == "ce"][:3]
        theirs = [reading.scores(row, "test", column).odds() for row in rows]
    gap = compare_curves(arm, theirs, seed=0, figure="alarms", recall=np.array(records[0]["recalls"]))
    assert [(one["setting"], one["num_seeds"]) for one in records] == [("cross-entropy", 3), ("longer", 3)]
    assert records[0]["threshold"]["alarms"] == 0
    assert records[1]["threshold"]["alarms"] == pytest.approx(gap.mean.value)
    assert records[1]["threshold"]["alarms"] < 0
    (results / "scores" / "longer.sqlite.xz").unlink()
    assert releases.rebuild(results, names=["short"]) == ["short"]
    releases.write_json(tmp_path / "cost.json", [*records, *({**one, "column": "other"} for one in records)])
    table = ranked_table(tmp_path / "cost.json")
    assert [row[0].text for row in table.rows] == [f"{records[0]['column']}: longer", "other: longer"]
    assert table.notes[0].startswith("Test data.")
