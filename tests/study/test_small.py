"""Small recipes: each table and figure of the paper once, small, and labelled as small wherever it is shown."""

import re

import pytest

from camri.cli import app
from camri.report.charts import draw
from camri.report.page import write_page
from camri.report.records import FromRun
from camri.report.results import open_results, write_results
from camri.report.tables import TABLES, make_table
from camri.study import SMALL
from camri.study.reader import RunReader
from camri.study.recipes import QUICK, RECIPES
from camri.study.runner import LocalExecutor, run

NAMES = [name for name in RECIPES if name.startswith(SMALL)]
SECONDS_AN_EPOCH = {"cifar10": 16.0, "mnist": 12.0}  # of a small CNN on one core, with its evaluation
DRAWN = {"small.table1": ["confusion", "curves"], "small.fig5": ["penalty"], "small.fig6": ["circle"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every small recipe on the embedded digits for one epoch of one seed."""
    folder = tmp_path_factory.mktemp("small")
    for name in NAMES:
        study = RECIPES[name]()
        study = study.with_(
            data="digits", important=["8"], seeds=[0], training=study.training.with_(epochs=1), val_fraction=0.3
        )
        assert run(study, folder / name, LocalExecutor("cpu", workers=1)).finished
    return {name: folder / name for name in NAMES}


def test_each_takes_minutes_on_two_cores():
    assert set(NAMES) == set(DRAWN)
    for name in NAMES:
        study = RECIPES[name]()
        trials = len(study.trials(study.placeholders()))
        assert study.training == QUICK or name == "small.fig6"
        assert study.name == name
        assert trials * study.training.epochs * SECONDS_AN_EPOCH[study.data] / 2 <= 10 * 60


@pytest.mark.parametrize("name", NAMES)
def test_everything_made_of_a_small_run_says_so(runs, name, tmp_path, capsys):
    with RunReader(runs[name]) as reading:
        assert reading.small.startswith("This is a small run (small model, 1 epoch, 1 seed)")
        source = FromRun(reading)
        for part in DRAWN[name]:
            figure = draw(part, source)
            assert figure.caption.startswith(reading.small)
            assert all(panel.title.startswith("small run: ") for panel in figure.panels)
        if name != "small.fig6":  # the paper's Fig. 6 has no cross-entropy, so there is no table
            table = make_table("paper", source)
            assert table.caption.startswith("Small run: Table I")
            assert table.notes[0] == reading.small
    page = write_page(runs[name], tmp_path / "page.html").read_text()
    assert re.search(r"This is a small run \(small model, 1 epoch", page)
    if name != "small.fig6":
        app(["report", str(runs[name]), "--table", "1"], standalone_mode=False)
        assert "Small run: Table I" in capsys.readouterr().out
        stored = open_results(write_results(runs[name], tmp_path / "results"))
        assert make_table("trained", stored).caption.startswith("Small run: ")


def test_a_table_one_run_has_every_table_of_the_paper(runs):
    with RunReader(runs["small.table1"]) as reading:
        source = FromRun(reading)
        methods = {record["method"] for record in make_table("paper", source).records}
        assert methods == {"ce", "wce", "crwwce", "wasserstein", "arcface", "camri"}
        assert set(TABLES) - {"training"} == {
            name for name in TABLES if name != "training" and make_table(name, source).rows
        }


def test_other_runs_are_not_called_small(tmp_path):
    study = RECIPES["digits"]().with_(seeds=[0], training=QUICK.with_(epochs=1))
    run(study, tmp_path, LocalExecutor("cpu", workers=1))
    with RunReader(tmp_path) as reading:
        assert reading.small == ""
        assert not make_table("paper", FromRun(reading)).caption.startswith("Small")
