"""Training epoch by epoch: what the records count, the table tells and the figure draws."""

import numpy as np
import pytest

from camri.cli import app
from camri.errors import InputError
from camri.report.charts import draw_epochs
from camri.report.page import sections
from camri.report.records import FromRun, epoch_records
from camri.report.results import open_results, write_results
from camri.report.tables import table_of_epochs
from camri.study.reader import RunReader, judge_columns
from tests.report.conftest import make_run
from tools.docs import Site, make_block

EPOCHS, CLASSES = 12, 4
METHODS = {"ce": {}, "camri": {"m": [np.pi / 16], "s": [8]}}


def made_hits(method, seed):
    """Of 100 validation images a class; cross-entropy's "column" swings by ± 6 from epoch to epoch, CAMRI's by ± 2."""
    hits = np.full((EPOCHS, CLASSES), 80)
    hits[:, 0] += np.arange(EPOCHS)
    swing = (6 if method == "ce" else 2) * (-1) ** np.arange(EPOCHS)
    hits[:, 1] = 60 + seed + swing + (5 + seed if method == "camri" else 0)
    return hits.astype(np.int32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("epochs"), methods=METHODS, seeds=3, val_hits=made_hits)


@pytest.fixture(scope="module")
def records(run):
    with RunReader(run) as reading:
        return epoch_records(reading, judge_columns(reading))


def test_records_hold_each_epochs_means_and_how_the_last_third_wanders(records):
    ce, camri = records
    assert (ce["method"], camri["method"], camri["num_trials"], camri["late_epochs"]) == ("ce", "camri", 3, 4)
    assert ce["recall"][:2] == pytest.approx([0.67, 0.55])  # 60 + the seeds' mean of 1, ± 6
    assert camri["recall"][-1] == pytest.approx(0.60 + 0.01 + 0.06 - 0.02)
    assert ce["accuracy"][3] == pytest.approx((83 + 55 + 80 + 80) / 400)
    assert (ce["recall_late"], camri["recall_late"]) == pytest.approx((0.61, 0.67))
    # ± 6 four times: 4 · 6² over n − 1 = 3; that trials differ by their seed does not count
    assert (ce["recall_wander"], camri["recall_wander"]) == pytest.approx(
        (0.06 * np.sqrt(4 / 3), 0.02 * np.sqrt(4 / 3))
    )
    assert ce["recall_gain"] is None


def test_the_command_names_the_figure_by_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app(["report", str(run), "--figure", "training", "--format", "svg"], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["training.svg"]


def test_the_gain_is_between_trials_of_one_seed(records):
    camri = records[1]
    # 5, 6 and 7 points: a t interval of two degrees of freedom
    half = 4.302653 * 0.01 / np.sqrt(3)
    found = [camri[f"recall_gain{end}"] for end in ("", "_low", "_high")]
    assert found == pytest.approx([0.06, 0.06 - half, 0.06 + half], abs=1e-6)
    assert camri["accuracy_gain"] == pytest.approx(0.06 / 4)


def test_seeds_that_one_of_the_two_lacks_do_not_count_for_the_gain(tmp_path):
    run = make_run(tmp_path / "x", methods=METHODS, seeds=3, val_hits=made_hits, leave_out={("ce", 2)})
    with RunReader(run) as reading:
        ce, camri = epoch_records(reading, judge_columns(reading))
    assert (ce["num_trials"], camri["num_trials"]) == (2, 3)
    assert camri["recall_gain"] == pytest.approx(0.055)


def test_columns_stand_apart_and_several_classes_count_alike(tmp_path):
    important = ["column", ("column", "ring")]
    run = make_run(tmp_path / "x", important=important, methods={"ce": {}}, seeds=2, val_hits=made_hits, num_images=402)
    with RunReader(run) as reading:
        one, both = found = epoch_records(reading, judge_columns(reading))
    assert (one["column"], both["column"]) == (0, 1)
    assert one["recall"][0] == pytest.approx(
        (66 + 67) / 2 / 101, abs=1e-5
    )  # 402 images: 101 of "column", 100 of "ring"
    assert both["recall"][0] == pytest.approx(((66 + 67) / 2 / 101 + 0.8) / 2, abs=1e-5)
    table = table_of_epochs(found)
    assert table.titles == ("important: column", "important: column + ring")
    assert [[row[2].text for row in group] for group in table.groups] == [
        [f"{60.5 / 101:.3f}"],
        [f"{(60.5 / 101 + 0.8) / 2:.3f}"],
    ]
    drawn = [(point["column"], point["value"]) for point in draw_epochs(found).records if point["figure"] == "recall"]
    assert drawn == [(record["column"], value) for record in found for value in record["recall"]]


def test_the_table_shows_them_in_points(records):
    table = table_of_epochs(records)
    ce, camri = ([cell.text for cell in row] for row in table.rows)
    assert ce == ["cross-entropy", "ce", "0.610", "6.9", "–", "0.776", "1.6", "–", "3"]
    assert camri[2:5] == ["0.670", "2.3", "+6.0 [+3.5, +8.5]"]
    assert camri[7].startswith("+1.50 [")
    assert table.caption.endswith("the last 4 of 12 epochs.")
    assert [(one["method"], one["recall_late"]) for one in table.records] == [
        (one["method"], one["recall_late"]) for one in records
    ]
    assert "recall" not in table.records[0], "a number an epoch is for the figure"


def test_few_epochs_have_a_figure_and_no_table(tmp_path):
    run = make_run(tmp_path / "x", methods=METHODS, seeds=2, val_hits=lambda method, seed: made_hits(method, seed)[:8])
    with RunReader(run) as reading:
        found = epoch_records(reading, judge_columns(reading))
    assert table_of_epochs(found) is None
    assert not [name for name in found[1] if name.startswith(("recall_", "accuracy_"))]
    assert len(draw_epochs(found).panels) == 2
    run = make_run(tmp_path / "y", methods=METHODS, seeds=2, val_hits=lambda method, seed: made_hits(method, seed)[:9])
    with RunReader(run) as reading:
        found = epoch_records(reading, judge_columns(reading))
    assert table_of_epochs(found).caption.endswith("the last 3 of 9 epochs.")


def test_the_figure_has_a_point_for_each_epoch_and_leaves_the_first_climb_out_of_its_scale(records):
    figure = draw_epochs(records)
    assert [panel.title for panel in figure.panels] == ["recall of “column”", "accuracy of models for “column”"]
    first = [one for one in figure.records if one["figure"] == "recall" and one["method"] == "cross-entropy"]
    assert [one["epoch"] for one in first] == list(range(1, EPOCHS + 1))
    assert [one["value"] for one in first] == records[0]["recall"]
    climbing = [{**one, "accuracy": [0.1, *one["accuracy"][1:]]} for one in records]
    drawn = draw_epochs(climbing).panels[1].chart.to_dict(validate=False)
    assert drawn["encoding"]["y"]["scale"]["domain"] == [records[0]["accuracy"][1], max(records[1]["accuracy"])]
    assert draw_epochs([]).panels == ()


def test_the_page_the_results_and_the_docs_have_it(run, tmp_path, records):
    with RunReader(run) as reading:
        section = next(one for one in sections(FromRun(reading)) if one.name == "training")
        assert section.title == "How training went"
        assert section.tables[0].rows == table_of_epochs(records).rows
    stored = open_results(write_results(run, tmp_path / "made"))
    assert stored.records("training") == records
    site = Site([stored])
    assert "+6.0 \\[+3.5, +8.5\\]" in make_block("epochs made", site, "img")
    assert "![How training went](img/training-made.png)" in make_block("training made", site, "img")


def test_a_run_without_epochs_or_validation_images_says_so(tmp_path):
    with RunReader(make_run(tmp_path / "x", methods=METHODS, seeds=2)) as reading:
        found = next(one for one in sections(FromRun(reading)) if one.name == "training")
        assert found.is_empty
        assert "validation recalls of each epoch" in found.text
    with RunReader(make_run(tmp_path / "y", methods=METHODS, seeds=2, with_val=False)) as reading:
        with pytest.raises(InputError, match="no validation data were held out"):
            epoch_records(reading, judge_columns(reading))
        found = next(one for one in sections(FromRun(reading)) if one.name == "training")
        assert found.is_empty
        assert found.text.startswith("no validation data were held out")
