"""Errors on the command line name the option that was typed; in Python they name the argument."""

import csv
import sys
import warnings

import numpy as np
import pytest

import camri
from camri.cli import run as run_command
from camri.errors import InputError
from camri.export import save
from camri.methods import setting
from camri.study.runner import LocalExecutor, run
from camri.study.study_file import find_study
from tests.export.conftest import made_trained

STUDY = """
name = "small"
data = "{table}"
columns = "stop"
seeds = 2
[split]
val_fraction = 0.2
[training]
model = "features"
epochs = 1
[methods]
ce = {{}}
camri = {{m = [0.2], s = [8]}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of features, which are scores too, a small run of them and a model."""
    folder = tmp_path_factory.mktemp("options")
    names = ("go", "stop", "yield")
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 3, 90)
    scores = drawn.normal(size=(90, 3)) + 2 * np.eye(3)[labels]
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        rows = ([names[label], *row] for label, row in zip(labels, scores, strict=True))
        csv.writer(file).writerows([["label", *names], *rows])
    (folder / "study.toml").write_text(STUDY.format(table=folder / "table.csv"), encoding="utf-8")
    save(made_trained("features", setting("ce"), (3,)), folder / "model", card="# The card\n", onnx=False)
    (folder / "taken").mkdir()
    (folder / "taken" / "letter.txt").write_text("", encoding="utf-8")
    study = find_study(str(folder / "study.toml"))
    run(study, folder / "run", LocalExecutor("cpu", workers=1))
    return folder


@pytest.fixture
def camri_says(folder, monkeypatch, capsys):
    def say(line):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets it
        monkeypatch.setattr(sys, "argv", ["camri", *line.split()])
        with pytest.raises(SystemExit) as end:
            run_command()
        said = capsys.readouterr()
        assert end.value.code == 2, said
        return said.err

    return say


FIT = "fit table.csv --important stop --out new"
RUN = "study run study.toml --out new"
FINALISTS = "study finalists run --out finals.json"
AUDIT = "audit table.csv --important stop"

# (command, what is typed wrong, how the sentence names it)
WRONG = [
    (FIT, "--trials 0", "--trials 0 is not allowed; give a whole number of at least 1"),
    (FIT, "--at-least 1.5", "--at-least 1.5 is not allowed; give a recall above 0 and below 1"),
    (FIT, "--cost-matrix no.csv", "--cost-matrix no.csv: it cannot be read"),
    (FIT, "--trials 20 --budget 1m", "give --budget 1m or --trials 20, not both"),
    (FIT, "--budget soon", "--budget 'soon' is not a duration"),
    (FIT, "--max-accuracy-drop 1.5", "--max-accuracy-drop 1.5 is not allowed"),
    (FIT, "--max-accuracy-drop nan", "--max-accuracy-drop nan is not a number"),
    (FIT, "--model resnet", "--model resnet is not allowed; did you mean 'resnet18'?"),
    (FIT, "--model small", "--model small takes images (channels, height, width); the inputs have shape (3,)"),
    (FIT, "--no-verify", "--no-verify is for the official files of CIFAR-10 and MNIST, and table.csv holds features"),
    (FIT, "--weights no.safetensors", "--weights no.safetensors cannot be read"),
    (FIT, "--weights table.csv", "table.csv is not a safetensors file"),
    (FIT, "--device tpu", "--device tpu is not known"),
    (FIT, "--device mps", "--device mps cannot train here"),
    (FIT, "--epochs 0", "'--epochs'"),
    (FIT, "--size 0", "--size 0 must be a side"),
    (FIT, "--size 64", "--size 64 is for images, and table.csv holds features (table); leave it out"),
    (FIT, "--roi", "--roi is for GTSRB, and table.csv holds features (table)"),
    (FIT, "--skip-bad", "--skip-bad is for image files, and table.csv holds"),
    (FIT, "--seed -1", "'--seed'"),
    (FIT, "--path-column nope", "--path-column: table.csv has no column 'nope';"),
    (FIT, "--label-column nope", "--label-column: table.csv has no column 'nope';"),
    (FIT, "--group-column nope", "--group-column: table.csv has no column 'nope';"),
    (FIT, "--split-column label", "--split-column: table.csv, column 'label': "),
    ("fit table.csv --trials 20 --out new", "--important stpo", "--important stpo is not a class; did you mean 'stop'"),
    (FIT, "--strength stop=-1", "--strength stop=-1.0 is not allowed"),
    (FIT, "--strength stop", "--strength 'stop' is not CLASS=NUMBER"),
    (FIT, "--important stop", "--important [stop, stop] must name"),
    ("fit table.csv --trials 20 --important stop", "--out taken", "--out: taken holds other files (letter.txt, …)"),
    ("fit table.csv --trials 20 --important stop", "--out table.csv", "choose another folder for --out"),
    ("demo", "--out taken", "--out: taken holds other files (letter.txt, …)"),
    (RUN, "--methods ce,cee", "--methods: method 'cee' is unknown"),
    (RUN, "--methods ,", "--methods () is not allowed"),
    (RUN, "--num-seeds 0", "'--num-seeds'"),
    (RUN, "--seeds x", "--seeds 'x' is not a list of seeds"),
    (RUN, "--seeds 5-3", "--seeds '5-3' is not a list of seeds"),
    (RUN, "--schedule slow", "--schedule slow is unknown"),
    ("study show digits", "--rule fair", "digits does not take rule"),
    ("study show digits", "--epochs 0", "'--epochs'"),
    ("study show study.toml", "--rule fair", "--rule fair is unknown; choices: honest, paper"),
    ("study show paper.cifar10", "--rule fair", "--rule fair is unknown; choices: honest, paper"),
    ("study show digits", "--device tpu", "--device tpu is not known"),
    (RUN, "--grid q=4", "--grid q: no method"),
    (RUN, "--column stpo", "--column stpo is not a class"),
    (RUN, "--column go+stop --strength stop=0", "strength 0.0"),
    (RUN, "--strength stop=0.5", "--strength stop is not a class of a joint column"),
    (RUN, "--device tpu", "--device tpu is not known"),
    (RUN, "--pack-size 0", "'--pack-size'"),
    (RUN, "--workers 0", "'--workers'"),
    (RUN, "--on moon", "--on moon is unknown"),
    (RUN, "--on ray://", "--on ray:// cannot be reached (it has no host or no port"),
    (RUN, "--track wandb", "--track wandb is unknown"),
    (RUN, "--max-wall soon", "--max-wall 'soon' is not a duration"),
    ("study run study.toml", "--out taken", "--out: taken holds other files"),
    ("study merge run", "--out taken", "--out: taken holds other files (letter.txt, …) and no run"),
    (FINALISTS, "--methods cee", "--methods: method 'cee' is not in the screening"),
    (FINALISTS, "--column nope", "--column nope is not a column of the run"),
    (FINALISTS, "--seeds 0-1", "--seeds 0, 1 chose the finalists"),
    (FINALISTS, "--schedule slow", "--schedule slow is unknown"),
    (FINALISTS, "--epochs 0", "'--epochs'"),
    ("study finalists run", "--out no/finals.json", "no/finals.json cannot be written (No such file or directory); "),
    ("study ensembles run --out new", "--size 99", "--size 99 is not allowed"),
    ("study ensembles run --size 2", "--out taken", "taken is not empty; choose a new folder with --out"),
    ("study ensembles run --size 2", "--out table.csv", "table.csv is no folder; choose a new folder with --out"),
    ("study finalists run", "--out taken", "taken cannot be written (Is a directory); choose another file with --out"),
    ("study export run", "--csv table.csv/new", "--csv: table.csv/new cannot be written (Not a directory)"),
    ("study export run", "--csv taken", "--csv: taken cannot be written (Is a directory)"),
    ("study export run", "--csv no/table.csv", "--csv: no/table.csv cannot be written"),
    ("study export run", "--parquet no/table.parquet", "--parquet: no/table.parquet cannot be written"),
    ("data get mnist", "--to table.csv/x", "choose another folder with --to"),
    ("data show digits", "--size -1", "--size -1 must be a side"),
    ("data show digits", "--label-column kind", "--label-column kind is for tables (CSV, TSV, parquet), and digits"),
    ("data show digits", "--no-verify", "--no-verify is for the official files of CIFAR-10 and MNIST, and digits"),
    ("data show digits", "--sheet a.jpg", "--sheet a.jpg must end in .png"),
    ("data show digits", "--sheet no/a.png", "--sheet: no/a.png cannot be written"),
    ("data show table.csv", "--label-column nope", "--label-column: table.csv has no column 'nope';"),
    ("audit table.csv", "--important stpo", "--important stpo is not a class"),
    (
        AUDIT,
        "--confidence 0.9",
        "--confidence 0.9 is for a recall to guarantee, or a budget of alarms; give it with --at-least",
    ),
    (AUDIT, "--at-least 0.9 --max-accuracy-drop 0.1", "give one goal, not --max-accuracy-drop and --at-least"),
    (AUDIT, "--max-accuracy-drop 2", "--max-accuracy-drop 2.0 is not allowed"),
    (AUDIT, "--label-column nope", "--label-column: table.csv has no column 'nope';"),
    (AUDIT, "--split-column nope", "--split-column: table.csv has no column 'nope';"),
    (AUDIT, "--group nope", "--group: table.csv has no column 'nope';"),
    (AUDIT, "--out a.pdf", "--out a.pdf must end in .html"),
    (AUDIT, "--out no/a.html", "no/a.html cannot be written (No such file or directory); choose another file with"),
    ("predict model table.csv", "--device tpu", "--device tpu is not known"),
    ("predict model table.csv", "--batch-size 0", "'--batch-size'"),
    ("predict model table.csv", "--csv no/a.csv", "choose another file with --csv"),
    ("predict model table.csv", "--csv table.csv", "table.csv is one of the inputs and would be overwritten; choose"),
    ("predict model *.csv", "--csv ./table.csv", "./table.csv is one of the inputs and would be overwritten; choose"),
    ("export model", "--torch-export no/a.pt2", "--torch-export: no/a.pt2 cannot be written"),
    ("report run", "--table 3", "--table 3 is unknown"),
    ("report run", "--figure 4", "--figure 4 is unknown"),
    ("report run --table 1", "--format png", "--format png is not for a table"),
    ("report run --figure 3", "--format csv", "--format csv is not for a figure"),
    ("report run", "--out no/a.html", "no/a.html cannot be written (No such file or directory); choose another file"),
    ("report run", "--out a.pdf", "--out a.pdf is not for a page; its name may end in .html, .htm"),
    ("report run --table 1", "--out a.pdf", "--out a.pdf is not for a table; its name may end in .tex, .csv, .md,"),
    ("report run --figure 3", "--out a.bmp", "--out a.bmp is not for a figure; its name may end in .png, .svg, .pdf"),
    ("report run --results new", "--out a.html", "--out a.html is not for results, which go to --results new"),
    ("report run --results new", "--screening taken", "--screening: taken holds no run"),
]


@pytest.mark.parametrize(("command", "typed", "words"), WRONG, ids=[f"{c.split(' --')[0]} {t}" for c, t, _ in WRONG])
def test_an_error_names_the_option_as_typed(camri_says, folder, command, typed, words):
    before = sorted(folder.iterdir())
    said = camri_says(f"{command} {typed}")
    assert words.replace("'", "") in said.replace("'", "")
    assert typed.split()[0] in said
    assert [path for path in sorted(folder.iterdir()) if path not in before] == []


def test_a_study_s_errors_name_the_file(camri_says, folder):
    wrong = STUDY.format(table=folder / "unnamed.csv").replace('important = "stop"', 'important = "go"')
    (folder / "unnamed.csv").write_text("kind,f\ngo,1\nstop,2\n", encoding="utf-8")
    (folder / "unnamed.toml").write_text(wrong, encoding="utf-8")
    said = camri_says("study run unnamed.toml --out new")
    assert "no label column among kind, f" in said
    assert "--label-column" in camri_says("data show unnamed.csv")
    said = camri_says("data show unnamed.csv --label-column f")
    assert "column 'kind' holds string (first 'go')" in said
    assert "--path-column" in said


def test_in_python_the_argument_is_named(folder):
    with pytest.raises(InputError, match=r"^num_trials=0 is not allowed; give a whole number of at least 1"):
        camri.fit(folder / "table.csv", "stop", folder / "new", num_trials=0)
