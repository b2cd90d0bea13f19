"""A study of some of a run's columns goes into its folder; the run keeps its own columns."""

import re

import pytest
from typer.testing import CliRunner

from camri.cli import app
from camri.errors import InputError
from camri.report.page import write_page
from camri.study import runner
from camri.study.combine import merge, place_into
from camri.study.export import tidy
from camri.study.finalists import find_finalists, make_finals, status
from camri.study.reader import RunReader, judge_columns
from camri.study.spec import Grid
from camri.study.store import open_run
from tests.study.test_runner import Pretender

WIDE = ["row", "column", {"row": 1.0, "corner": 0.5}]
MORE = {"ce": {}, "l2softmax": {"s": [16]}, "camri": {"m": [0.3], "s": [16]}}


@pytest.fixture
def wide(data, small, tmp_path):
    """A run of three columns: ce, l2softmax, and camri m=0.2 of each."""
    runner.run(small.with_(important=WIDE), tmp_path / "wide", Pretender(), data=data)
    return tmp_path / "wide"


@pytest.fixture
def widened(wide, data, small):
    """The same run after a study of its second column alone, with other settings and one seed more."""
    runner.run(small.with_(important="column", methods=MORE, seeds=3), wide, Pretender(), data=data)
    return wide


def planned(run, column):
    return [one.title for one in run.plan(column)]


def test_only_what_the_column_asks_for_is_trained_with_the_scores_of_all_columns(wide, data, small):
    pretender = Pretender()
    narrow = small.with_(important="column", methods=MORE, seeds=3)
    result = runner.run(narrow, wide, pretender, data=data)
    assert (result.finished, result.done, result.pending, result.new) == (True, 9, 0, 7)
    assert sorted((trial.setting.method, trial.setting.important, trial.seed) for trial in pretender.trained) == [
        ("camri", (1,), 0), ("camri", (1,), 1), ("camri", (1,), 2), ("ce", (), 2),
        ("l2softmax", (), 0), ("l2softmax", (), 1), ("l2softmax", (), 2),
    ]  # fmt: skip
    assert pretender.calls[0][1].important == (1, 2)  # all three classes: leads over the first
    again = Pretender()
    assert runner.run(narrow, wide, again, data=data).done == 9
    assert again.calls == []
    with open_run(wide) as run:
        assert len(run.studies) == 2


def test_the_run_keeps_its_columns_and_plans_a_method_where_it_was_trained(widened):
    with open_run(widened) as run:
        assert [column.title for column in run.columns()] == ["row", "column", "row + corner"]
        before = ["ce", "l2softmax s=8", "camri m=0π/64 s=8", "camri m=4.074π/64 s=8"]
        assert planned(run, 0) == [*before, "l2softmax s=16"]
        assert planned(run, 1) == [*before, "l2softmax s=16", "camri m=6.112π/64 s=16"]
        assert planned(run, 2) == [
            *before[:2], "camri m=0π/64,0π/64 s=8", "camri m=4.074π/64,2.037π/64 s=8", "l2softmax s=16",
        ]  # fmt: skip


def test_status_finalists_and_tables_of_such_a_run(widened):
    found = status(widened)
    # 5 settings × 2 seeds, then ce with one seed more, and two settings with three.
    assert (found.total, found.done, found.pending) == (17, 17, 0)
    seeds = {(best.column.title, best.method): best.num_seeds for best in found.best}
    assert {seeds[column, "ce"] for column in found.columns} == {3}
    with open_run(widened) as run:
        finalists = {(one.column.title, one.method): one for one in find_finalists(run)}
        numbers = {name: one.num_settings for name, one in finalists.items() if name[1] != "ce"}
        assert numbers == {
            ("row", "l2softmax"): 2, ("row", "camri"): 2,
            ("column", "l2softmax"): 2, ("column", "camri"): 3,
            ("row + corner", "l2softmax"): 2, ("row + corner", "camri"): 2,
        }  # fmt: skip
        _, table = tidy(run)
        assert len(table) == 34
        assert {row["important"] for row in table if row["s"] == 16 and row["method"] == "camri"} == {"column"}


def test_the_report_judges_a_method_in_its_columns_alone(widened, tmp_path):
    with RunReader(widened) as reading:
        tried = {
            column.title: {one.title: one.seeds for one in reading.settings(column, "camri")}
            for column in reading.columns
        }
        assert tried["row"] == {"camri m=0π/64 s=8": (0, 1), "camri m=4.074π/64 s=8": (0, 1)}
        assert tried["column"] == {**tried["row"], "camri m=6.112π/64 s=16": (0, 1, 2)}
        assert [one.title for one in reading.settings(reading.columns[0], "l2softmax")] == [
            "l2softmax s=8",
            "l2softmax s=16",
        ]
        assert len(judge_columns(reading)) == 3
    assert write_page(widened, tmp_path / "page.html").read_text(encoding="utf-8").count("camri m=6.112") > 0


@pytest.mark.parametrize("important", [1, "1", ["column"], {"column": 1.0}, [["column"], "row"]])
def test_columns_are_known_by_their_classes_in_any_order(wide, data, small, important):
    pretender = Pretender()
    narrow = small.with_(important=important, methods=MORE)
    runner.run(narrow, wide, pretender, data=data)
    trained = {trial.setting.important for trial in pretender.trained}
    assert trained == {(), (1,)} | ({(0,)} if isinstance(important, list) and len(important) == 2 else set())


def test_several_at_once_are_one_column_in_any_order(wide, small):
    with open_run(wide) as run:
        placed = place_into(run, small.with_(important=[{"corner": 0.5, "row": 1.0}], methods=MORE))
    assert [grid.points for grid in placed.methods] == [(), (), ((), (), ((0.3, 16.0),))]
    assert placed.to_json()["important"] == small.with_(important=WIDE).to_json()["important"]


@pytest.mark.parametrize(
    ("important", "said"),
    [
        ("corner", "(row, column, row+corner (corner=0.5) from val, and not corner from val)"),
        (["row", "corner"], "(row, column, row+corner (corner=0.5) from val, and not row, corner from val)"),
        ({"column": 0.5}, "(row, column, row+corner (corner=0.5) from val, and not column (column=0.5) from val)"),
        ([["row", "corner"]], "(row, column, row+corner (corner=0.5) from val, and not row+corner from val)"),
        ("worst", "(row, column, row+corner (corner=0.5) from val, and not worst from val)"),
    ],
)
def test_other_columns_are_refused_before_anything_is_trained_or_noted(wide, data, small, important, said):
    pretender = Pretender()
    with pytest.raises(InputError, match=re.escape(said)):
        runner.run(small.with_(important=important), wide, pretender, data=data)
    assert pretender.calls == []
    with open_run(wide) as run:
        assert len(run.studies) == 1


def test_a_class_that_was_found_may_be_asked_for_by_its_name(data, small, tmp_path):
    runner.run(small.with_(important=["worst", "second"]), tmp_path, Pretender(), data=data)
    with open_run(tmp_path) as run:
        worst, second = run.columns()
    more = Pretender()
    runner.run(small.with_(important=second.title, methods=MORE), tmp_path, more, data=data)
    assert {trial.setting.important for trial in more.trained} == {(), second.indices}
    sought = Pretender()
    grids = {"ce": {}, "camri": {"m": [0.4], "s": [8]}}
    runner.run(small.with_(important="worst", methods=grids), tmp_path, sought, data=data)
    assert [trial.setting.important for trial in sought.trained] == [worst.indices] * 2
    with open_run(tmp_path) as run:
        assert run.columns() == [worst, second]
    with pytest.raises(InputError, match="worst, second from val, and not worst from test"):
        runner.run(small.with_(important="worst", important_from="test"), tmp_path, Pretender(), data=data)


def test_a_class_that_is_yet_to_be_found_may_be_asked_for_as_the_run_did(data, small, tmp_path):
    runner.run(small.with_(important=["worst", "second"]), tmp_path, Pretender(stop_after=1), data=data)
    with pytest.raises(
        InputError, match=r"important classes \(worst, second from val\) are not known .* a study of row from val"
    ):
        runner.run(small.with_(important="row"), tmp_path, Pretender(), data=data)
    assert runner.run(small.with_(important="second"), tmp_path, Pretender(), data=data).finished
    with open_run(tmp_path) as run:
        _, second = run.columns()
        assert {tuple(row.setting["important"]) for row in run.rows(method="camri")} == {second.indices}
        assert "camri m=4.074π/64 s=8" not in planned(run, 0)


def test_a_class_that_has_two_columns_is_served_in_both(data, small, tmp_path):
    runner.run(small.with_(important=["worst", "row", "column", "corner"]), tmp_path, Pretender(), data=data)
    with open_run(tmp_path) as run:
        worst, *others = run.columns()
        twin = next(one for one in others if one.indices == worst.indices)
    runner.run(small.with_(important=worst.title, methods=MORE), tmp_path, Pretender(), data=data)
    with open_run(tmp_path) as run:
        where = [one.column for one in run.plan() if one.title == "camri m=6.112π/64 s=16"]
    assert where == [0, twin.number]


def test_points_of_a_column_go_where_it_is(wide, small):
    grids = [
        Grid.at("ce", [[()], [()]]),
        Grid.at("l2softmax", [[(4,)], [(8,)]]),
        Grid.at("camri", [[(0.1, 4)], [(0.2, 8)]]),
    ]
    with open_run(wide) as run:
        placed = place_into(run, small.with_(important=["column", "row"], methods=grids))
    ce, control, camri = placed.methods
    assert ce.points == ()
    assert control.points == (((8.0,),), ((4.0,),), ((4.0,), (8.0,)))
    assert camri.points == (((0.2, 8.0),), ((0.1, 4.0),), ())


def test_finals_of_one_column_go_into_the_run_of_all(wide, data, small):
    with open_run(wide) as run:
        column = run.columns()[2]
        finals = make_finals(run, find_finalists(run, ["camri"], [column]), seeds=[7])
    pretender = Pretender()
    runner.run(finals, wide, pretender, data=data)
    assert {trial.seed for trial in pretender.trained} == {7}
    assert {trial.setting.important for trial in pretender.trained} <= {(), (0, 2)}


def test_such_runs_are_united_to_the_same_run(widened, data, small, tmp_path):
    runner.run(small.with_(important=WIDE, seeds=[5]), tmp_path / "other", Pretender(), data=data)
    merged = merge([tmp_path / "other", widened], tmp_path / "both")
    assert (merged.total, merged.added, merged.conflicts, merged.left_out) == (22, 22, [], [])
    with open_run(tmp_path / "both") as both, open_run(widened) as one:
        assert {planned.title for planned in both.plan(0)} == {planned.title for planned in one.plan(0)}
        assert both.columns() == one.columns()


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_of_one_column_is_united_but_for_what_lacks_scores(data, small, tmp_path, order):
    narrow = small.with_(important="column", methods=MORE, seeds=[2, 8])
    runner.run(narrow, tmp_path / "narrow", Pretender(), data=data)
    runner.run(small.with_(important=WIDE), tmp_path / "fresh", Pretender(), data=data)
    merged = merge([tmp_path / "fresh", tmp_path / "narrow"][::order], tmp_path / "both")
    file = tmp_path / "narrow" / "outcomes.sqlite"
    assert (merged.total, merged.added, merged.agreed, merged.conflicts) == (12, 12, 0, [])
    assert merged.left_out == [
        f"{title} seed {seed}: {file} kept no scores of row and corner"
        for title in ("ce", "l2softmax s=16")
        for seed in (2, 8)
    ]
    assert status(tmp_path / "both").pending == 4
    more = Pretender()
    runner.run(narrow, tmp_path / "both", more, data=data)
    assert len(more.trained) == 4
    runner.run(narrow, tmp_path / "fresh", Pretender(), data=data)
    with open_run(tmp_path / "both") as both, open_run(tmp_path / "fresh") as straight:
        assert both.columns() == straight.columns()
        assert {row.identity for row in both.rows()} == {row.identity for row in straight.rows()}
        assert sorted(map(str, both.plan())) == sorted(map(str, straight.plan()))


def test_a_run_of_more_columns_does_not_go_into_one_of_fewer(wide, data, small, tmp_path):
    runner.run(small, tmp_path / "narrow", Pretender(), data=data)
    before = status(tmp_path / "narrow").total
    with pytest.raises(
        InputError, match=r"narrow.*other important classes \(column from val, and not row, column, row\+"
    ):
        merge([wide], tmp_path / "narrow")
    assert status(tmp_path / "narrow").total == before


def test_what_a_run_found_is_not_taken_for_what_another_found(data, small, tmp_path):
    """Both have "worst", and it is another class in each."""
    folders = {}
    for seed in range(8):
        folder = tmp_path / str(seed)
        runner.run(small.with_(important=["worst"], seeds=[seed]), folder, Pretender(), data=data)
        with open_run(folder) as run:
            folders.setdefault(run.columns()[0].title, folder)
    (one, folder), (other, _), *_ = folders.items()
    runner.run(small.with_(important=[other, one]), tmp_path / "wide", Pretender(), data=data)
    merge([tmp_path / "wide", folder], tmp_path / "both")
    with open_run(tmp_path / "both") as run, open_run(folder) as source:
        assert [column.title for column in run.columns()] == [other, one]
        (key,) = {row.key for row in source.rows(method="camri")}
        assert {planned.column for planned in run.plan() if planned.key == key} == {1}


def test_trials_of_a_run_that_has_not_found_its_class_yet_serve_all_columns(data, small, tmp_path):
    runner.run(small.with_(important=["worst", "second"]), tmp_path / "wide", Pretender(), data=data)
    runner.run(small.with_(important="worst", seeds=[7, 8]), tmp_path / "begun", Pretender(stop_after=1), data=data)
    merged = merge([tmp_path / "begun", tmp_path / "wide"], tmp_path / "both")
    assert (merged.total, merged.left_out) == (9, [])
    with open_run(tmp_path / "both") as both, open_run(tmp_path / "wide") as wide:
        assert both.columns() == wide.columns()
        (row,) = [row for row in both.rows() if row.seed == 7]
        for column in both.columns():
            (index,) = column.indices
            assert both.scores(row, "test", column.indices).recall().tolist() == [row.recall["test"][index]]


def test_the_command_line_says_what_was_left_out(wide, data, small, tmp_path):
    runner.run(small.with_(methods=["ce"], seeds=[9]), tmp_path / "narrow", Pretender(), data=data)
    result = CliRunner().invoke(app, ["study", "merge", str(tmp_path / "narrow"), "--out", str(wide)])
    assert result.exit_code == 0
    told = result.stderr.replace("\n", "")
    assert f"left out: ce seed 9: {tmp_path / 'narrow' / 'outcomes.sqlite'} kept no scores of row and corner" in told
    assert f"camri study run STUDY --out {wide}" in told
