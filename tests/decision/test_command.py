"""`camri audit`: the same answer as in Python, as text, JSON, page and record; refusals before work is done."""

import csv
import html
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from camri.cli import app
from camri.decision import audit
from camri.decision.answer import load_answer
from camri.errors import InputError
from camri.report.decision_page import render, write_answer
from camri.report.words import VALUE, codes, number, say, text_of, wrapped
from tests.decision.made import costs_of, rows

CLASSES = ("limit", "stop", "yield", "entry")
LOGITS, LABELS = rows(600, seed=3, spread=2.5, held_back=[1])


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("scores.csv", "w", newline="", encoding="utf-8") as file:
        lines = (
            [CLASSES[label], f"p{row // 4}", *scores]
            for row, (label, scores) in enumerate(zip(LABELS, LOGITS, strict=True))
        )
        csv.writer(file).writerows([["label", "patient", *CLASSES], *lines])
    return tmp_path / "scores.csv"


@pytest.fixture(scope="module")
def found():
    return audit(LOGITS, LABELS, "stop", classes=CLASSES)


def run(*words):
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--max-accuracy-drop", "0.02"], {"max_accuracy_drop": 0.02}),
        (["--at-least", "80%", "--confidence", "0.9"], {"at_least": 0.8, "confidence": 0.9}),
        (["--at-least", "stop=0.999"], {"at_least": {"stop": 0.999}}),
        (["--cost-matrix", "costs.csv"], {"cost_matrix": costs_of([1], 4).round(3)}),
        (["--group", "patient"], {"groups": np.arange(600) // 4}),
    ],
    ids=str,
)
def test_the_command_finds_what_python_finds(table, words, options):
    costs = costs_of([1], 4).round(3)[::-1, ::-1]  # found by their names
    lines = [["", *CLASSES[::-1]], *([name, *row] for name, row in zip(CLASSES[::-1], costs.tolist(), strict=True))]
    (table.parent / "costs.csv").write_text("\n".join(",".join(map(str, line)) for line in lines), encoding="utf-8")
    done = run(table, "--important", "stop", *words, "--json", "--save", "kept.json")
    assert done.exit_code == 0, done.output
    wanted = audit(LOGITS, LABELS, "stop", classes=CLASSES, **options).to_json()
    told = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    wanted["source"]["name"] = told["source"]["name"] = ""
    assert told == wanted
    assert load_answer("kept.json").point.rule is not None
    assert not load_answer("kept.json").is_advised or load_answer("kept.json").is_changed


def test_terminal_page_and_python_say_the_same(table, found, monkeypatch):
    pytest.importorskip("altair")
    monkeypatch.setenv("COLUMNS", "120")
    done = run(table, "--important", "stop", "--out", "a.html")
    first, second, *rest = done.output.splitlines()
    assert "scores.csv: 600 rows" in first
    assert second == say(found).sentence, "a pipe gets whole lines"
    assert [f"- {line}" for line in say(found).actions] == rest[: len(say(found).actions)]
    assert codes(found)["numpy"].replace(VALUE, number(found)) in done.output
    page = html.unescape((table.parent / "a.html").read_text(encoding="utf-8"))
    for line in (*say(found).actions, *say(found).evidence):
        assert line in page
        assert " ".join(line.split()) in " ".join(text_of(found).split())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = re.sub(r"\x1b\[[\d;]*m", "", run(table, "--important", "stop").stdout)
    assert " ".join(narrow.split("┏")[0].split()) in " ".join(done.output.split())
    assert max(map(len, narrow.split("\n\n")[0].splitlines())) <= 80


def test_a_number_and_its_unit_and_an_interval_are_on_one_line():
    line = "accuracy 96.2 % [94.9, 97.2] (1038/1079) of “no entry”"
    for width in range(12, 60):
        for one in wrapped(line, width, "  ").splitlines():
            assert not one.strip().startswith("%")
            assert one.count("[") == one.count("]")
        assert " ".join(wrapped(line, width, "  ").split()) == line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--important", "stop", "--out", "a.txt"], "must end in .html"),
        (["--important", "stop", "--at-least", "0.9", "--max-accuracy-drop", "0.1"], "give one goal, not"),
        (["--important", "stop", "--cost-matrix", "no.csv"], "no.csv: it cannot be read"),
        (["--important", "stop", "--label-column", "lable"], "did you mean 'label'"),
        (["--important", "stop", "--group", "patent"], "did you mean 'patient'"),
        (["--important", "stop", "--max-accuracy-drop", "2"], "max-accuracy-drop 2.0 is not allowed"),
        (["--important", "stop", "--at-least", "0.9x"], "0.9x"),
        (["--important", "stop", "--at-least", "=0.9"], "is not CLASS=NUMBER"),
        (["--important", "stop", "no entry"], "--important stop --important 'no entry'"),
    ],
)
def test_bad_options_are_refused(table, words, said):
    done = run(table, *words)
    assert isinstance(done.exception, InputError), done.output
    assert said in str(done.exception)


@pytest.mark.parametrize("option", ["--out", "--save"])
@pytest.mark.parametrize("file", ["no/such/a.html", "folder.html", "/proc/a.html", "scores.csv/a.html"])
def test_a_file_that_cannot_be_written_is_refused_first(table, option, file):
    (table.parent / "folder.html").mkdir()
    before = sorted(table.parent.iterdir())
    done = run("no.csv", "--important", "stop", option, file)
    assert re.fullmatch(f"{file} cannot be written \\(.*\\); choose another file with {option}", str(done.exception))
    assert sorted(table.parent.iterdir()) == before


def test_it_runs_without_torch(table):
    script = (
        "import sys\nfrom camri.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules\n"
    )
    words = ["audit", str(table), "--important", "stop"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "שלט", "a" * 150)


def test_hostile_names_are_shown_as_they_are(tmp_path):
    pytest.importorskip("altair")
    found = audit(LOGITS, LABELS, HOSTILE[1], classes=HOSTILE)
    page = render(found, "<b>scores</b>.csv", ["camri", "audit", "<i>"])
    for text in (page, found._repr_html_()):
        assert "<img src=x" not in text
        assert "<script>alert(2)" not in text
        assert "<b>scores" not in text
    assert html.escape(HOSTILE[0]) in page
    assert not re.search(r"(src|href)=[\"']?http", page.split("<script")[0])
    write_answer(found, tmp_path / "a.html", "scores.csv")
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(InputError, match="cannot be written"):
        write_answer(found, tmp_path / "no" / "a.html", "scores.csv")
