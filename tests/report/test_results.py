"""Results folders: the same tables and figures as the run gives, small, plain, the same bytes each time."""

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest

from camri.cli import app
from camri.errors import InputError
from camri.report import results
from camri.report.charts import PRINT, draw_circle, draw_confusion, draw_curves, draw_penalty, specification
from camri.report.records import (
    FromRun,
    angle_records,
    circle_records,
    confusion_records,
    curve_records,
    gap_records,
    honest_records,
    paper_records,
    penalty_records,
)
from camri.report.results import open_results, without_places, write_results
from camri.report.tables import paper_table, table_of_angles, table_of_gaps, table_of_honest, table_of_trained, write
from camri.study.spec import Study
from tests.report.conftest import edit_store, make_run


@pytest.fixture(scope="module")
def written(gain, tmp_path_factory):
    return write_results(gain, tmp_path_factory.mktemp("results") / "made", commit="1a2b3c4")


def test_tables_of_results_are_those_of_the_run(opened, gain, written):
    reading, verdicts = opened(gain)
    stored = open_results(written)
    pairs = [
        (paper_table([paper_records(reading, verdicts)]), paper_table([stored.records("paper")])),
        (table_of_honest(honest_records(reading, verdicts)), table_of_honest(stored.records("honest"))),
        (table_of_angles(angle_records(reading, verdicts)), table_of_angles(stored.records("angles"))),
        *(
            (make(gap_records(reading, verdicts)), make(stored.records("gaps")))
            for make in (table_of_trained, table_of_gaps)
        ),
    ]
    for mine, theirs in pairs:
        for form in ("md", "csv", "latex"):
            assert write(mine, form) == write(theirs, form)


def test_figures_of_results_are_those_of_the_run(opened, gain, written):
    reading, verdicts = opened(gain)
    stored = open_results(written)
    pairs = [
        (draw_curves(curve_records(reading, verdicts)), draw_curves(stored.records("curves"))),
        (draw_confusion(confusion_records(reading, verdicts)), draw_confusion(stored.records("confusion"))),
        (draw_penalty(penalty_records(reading, verdicts)), draw_penalty(stored.records("penalty"))),
    ]
    for mine, theirs in pairs:
        assert mine.caption == theirs.caption
        assert mine.records == theirs.records
        assert len(mine.records) > 0
        for one, other in zip(mine.panels, theirs.panels, strict=True):
            assert specification(one, PRINT) == specification(other, PRINT)


def test_fig_6_of_results(opened, tmp_path):
    methods = {"l2softmax": {"s": [8]}, "camri": {"m": [0.2], "s": [8]}}  # as the paper's Fig. 6: no cross-entropy
    run = make_run(tmp_path / "run", methods=methods, keep=True, seeds=1, num_images=40)
    reading, _ = opened(run)
    stored = open_results(write_results(run, tmp_path / "results"))
    assert draw_circle(stored.records("circle")).records == draw_circle(circle_records(reading)).records
    assert (stored.records("paper"), stored.records("honest")) == ([], [])
    with pytest.raises(InputError, match="has no penalty"):
        stored.records("penalty")


def test_the_same_store_gives_the_same_bytes_and_nothing_of_the_machine(gain, written, tmp_path):
    again = write_results(gain, tmp_path / "again", commit="1a2b3c4")
    names = sorted(path.name for path in written.iterdir())
    assert names == ["angles.json", "curves.json", "figures.json", "outcomes.csv", "study.json", "verdict.json"]
    for name in names:
        data = (written / name).read_bytes()
        assert data == (again / name).read_bytes()
        assert len(data) < 2_000_000
        assert str(gain).encode() not in data
        assert b"NaN" not in data
        assert b"Infinity" not in data
        if name.endswith(".json"):
            json.loads(data)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_the_verdict_tells_how_it_was_made(gain, written):
    found = open_results(written).verdict
    assert (found["data"], found["fingerprint"], found["commit"]) == ("made", "made-fingerprint", "1a2b3c4")
    assert found["trials"] == {"done": 80, "failed": 0, "planned": 80}
    assert found["seeds"] == list(range(8))
    assert [one["important"] for one in found["columns"]] == ["column", "ring"]
    assert [one["indices"] for one in found["columns"]] == [[1], [3]]
    assert found["environment"]["torch"] == ["2.13.0"]
    assert found["device_s"] == 80 + 4 * 8  # CAMRI's trials took two seconds; its m = 0 is L2-softmax
    assert found["training"]["epochs"] == 2
    assert found["screening"] is None
    assert found["answer"]["kind"] == "gain"
    camri = next(one for one in found["honest"] if one["row"] == "CAMRI" and one["column"] == 0)
    assert (camri["num_trials"], camri["num_settings"], camri["method"]) == (8, 3, "camri")
    assert camri["hits"] / camri["num"] == pytest.approx(camri["recall_mean"])
    assert Study.from_json(json.loads((written / "study.json").read_text())).seeds == tuple(range(8))


def test_the_commit_is_the_outcomes_own_by_default(opened, gain, monkeypatch):
    reading, _ = opened(gain)
    assert results._facts(reading, None)["commit"] is None
    for row, commit in zip(reading.rows, ["aaa", "bbb"], strict=False):
        monkeypatch.setitem(row.environment, "commit", commit)
    assert results._facts(reading, None)["commit"] == "aaa / bbb"
    assert results._facts(reading, "ccc")["commit"] == "ccc"


def test_outcomes_have_a_row_for_each_trial_and_split(written, monkeypatch, gain, tmp_path):
    rows = list(csv.DictReader(io.StringIO((written / "outcomes.csv").read_text())))
    assert len(rows) == 80 * 2
    assert {row["split"] for row in rows} == {"val", "test"}
    assert {"recall:row", "recall:ring"} < set(rows[0])
    size = (written / "outcomes.csv").stat().st_size
    monkeypatch.setattr(results, "IN_VERDICT", ("paper",))  # it would be larger than the outcomes of this small run
    monkeypatch.setattr(results, "MOST_BYTES", size - 1)
    fewer = csv.DictReader(io.StringIO((write_results(gain, tmp_path / "x") / "outcomes.csv").read_text()))
    assert [name for name in fewer.fieldnames if name.startswith("recall:")] == ["recall:column", "recall:ring"]
    monkeypatch.setattr(results, "MOST_BYTES", 2000)
    with pytest.raises(InputError, match="bytes, and results are to be small"):
        write_results(gain, tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_a_screening_is_noted(no_gain, tmp_path):
    methods = {"ce": {}, "wce": {"w": [4]}, "camri": {"m": [np.pi / 16], "s": [8]}}
    finals = make_run(tmp_path / "finals", methods=methods, seeds=[10, 11])
    found = open_results(write_results(finals, tmp_path / "r", screening=no_gain)).verdict["screening"]
    assert found["num_settings"] == {"column": {"ce": 1, "wce": 2, "l2softmax": 1, "camri": 3}}
    assert found["trials"] == {"done": 22, "failed": 2, "planned": 24}
    assert found["seeds"] == [0, 1, 2, 3]
    other = make_run(tmp_path / "other", classes=("a", "b", "c"), important=("a",), seeds=2)
    with edit_store(other) as store:
        store.execute("UPDATE meta SET value = '\"other\"' WHERE name = 'fingerprint'")
    with pytest.raises(InputError, match="is a screening on other data"):
        write_results(finals, tmp_path / "s", screening=other)


def test_only_results_are_replaced(gain, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "outcomes.csv").write_text("x")
    with pytest.raises(InputError, match=r"mine holds outcomes.csv that are not results"):
        write_results(gain, mine)
    assert [path.read_text() for path in mine.iterdir()] == ["x"]
    found = tmp_path / "r"
    found.mkdir()
    (found / "finals.json").write_text("x")
    write_results(gain, found)
    (found / "study-2.json").write_text("of earlier results")
    write_results(gain, found, commit="abc")
    assert (found / "finals.json").read_text() == "x"
    assert not (found / "study-2.json").exists()
    assert open_results(found).verdict["commit"] == "abc"
    assert not list(found.glob("*.part"))
    before = sorted(gain.iterdir())
    with pytest.raises(InputError, match="holds files that are not results"):
        write_results(gain, gain)
    with pytest.raises(InputError, match="holds files that are not results"):
        write_results(gain, found / "finals.json")
    assert sorted(gain.iterdir()) == before


def test_a_study_that_is_part_of_another_is_not_written(gain, tmp_path):
    shutil.copytree(gain, tmp_path / "run")
    with edit_store(tmp_path / "run") as store:
        ((spec,),) = store.execute("SELECT spec FROM studies")
        study = json.loads(spec)
        few = {**study, "methods": study["methods"][:2], "seeds": study["seeds"][:2]}
        other = {**few, "split_seed": study["split_seed"] + 1}
        longer = {**few, "seeds": [*few["seeds"], 99]}  # united with the few, so none of them is a part
        for place, one in enumerate((few, other)):
            store.execute("INSERT INTO studies VALUES (?, 'more', ?, '')", (str(place), json.dumps(one)))

    def seeds_written():
        folder = write_results(tmp_path / "run", tmp_path / "r")
        names = sorted((path.name for path in folder.glob("study*.json")), key=lambda name: (len(name), name))
        return [json.loads((folder / name).read_text())["seeds"] for name in names]

    assert seeds_written() == [study["seeds"], other["seeds"]]
    with edit_store(tmp_path / "run") as store:
        store.execute("INSERT INTO studies VALUES ('2', 'more', ?, '')", (json.dumps(longer),))
    assert seeds_written() == [study["seeds"], longer["seeds"], other["seeds"]]


def test_damaged_and_strange_results_are_refused(written, tmp_path):
    with pytest.raises(InputError, match=re.escape("verdict.json does not exist; camri report RUN --results")):
        open_results(tmp_path)
    (tmp_path / "verdict.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        open_results(tmp_path)
    (tmp_path / "verdict.json").write_text('{"version": 99}')
    with pytest.raises(InputError, match="is of version 99, and this camri reads 2"):
        open_results(tmp_path)


def test_places_on_the_machine_are_cut_and_other_slashes_kept():
    assert (
        without_places("no /home/me/x y.png, 3/4, a/b, https://x.org/a/b") == "no x y.png, 3/4, a/b, https://x.org/a/b"
    )
    assert without_places(r"C:\Users\me\cat.png is bad") == "cat.png is bad"


def test_the_command_takes_results_for_a_run(gain, written, tmp_path, capsys):
    def said(*words):
        app(["report", *map(str, words)], standalone_mode=False)
        return capsys.readouterr().out

    for number in "12":
        assert said(written, "--table", number, "--format", "csv") == said(gain, "--table", number, "--format", "csv")
    assert said(written, gain, "--table", 1).count("column") > 2
    assert "A line above cross-entropy’s" in said(written, "--figure", "curve", "--out", tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_text().startswith("<svg")
    with pytest.raises(InputError, match="holds results, and the page needs the run"):
        said(written)
    with pytest.raises(InputError, match="are noted in results; give --results"):
        said(gain, "--commit", "x")
    with pytest.raises(InputError, match="--table and --results cannot be given together"):
        said(gain, "--table", 1, "--results", tmp_path / "r")


def test_records_are_plain(opened, gain):
    reading, _ = opened(gain)
    source = FromRun(reading)
    for part in ("paper", "honest", "angles", "curves", "confusion", "penalty"):
        assert json.loads(json.dumps(source.records(part), allow_nan=False)) == source.records(part)
    assert results.plain({"a": (np.float32(0.5), float("nan"), np.int64(3))}) == {"a": [0.5, None, 3]}
