"""What `camri fit` prints and how it ends."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from camri.cli import app, fit_view
from camri.decision import Caution
from camri.fitting import Progress, Unfinished


@pytest.fixture
def asked(monkeypatch, fitted):
    """The arguments that reach the fit, which then gives the session's small fit back."""
    heard = {}

    def make_request(*arguments, on_progress, **options):
        heard.update(arguments=arguments, options=options)

    def run_fit(request, began, on_progress):
        heard.update(began=began)
        on_progress(Progress("training the finals", 0.75, 10.0))
        return fitted

    monkeypatch.setattr(fit_view, "make_request", make_request)
    monkeypatch.setattr(fit_view, "print_request", lambda request: None)
    monkeypatch.setattr(fit_view, "run_fit", run_fit)
    return heard


def test_words_reach_the_fit(asked, tmp_path):
    words = f"fit signs --important stop --important yield --strength yield=0.5 --out {tmp_path} --budget 10m"
    words += " --label-column kind --skip-bad --roi --at-least 0.9"
    words += " --cost-matrix costs.csv --max-accuracy-drop 0.01 --model paper --seed 3"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert asked["arguments"] == ("signs", ["stop", "yield"], tmp_path)
    assert asked["began"] <= time.monotonic()
    options = {name: value for name, value in asked["options"].items() if value is not None}
    assert options.pop("data_options") == {"label_column": "kind", "roi": True, "skip_bad": True}
    assert options.pop("strengths") == {"yield": 0.5}
    assert (options.pop("at_least"), options.pop("cost_matrix")) == (0.9, Path("costs.csv"))
    assert options == {"budget": "10m", "max_accuracy_drop": 0.01, "model": "paper", "seed": 3, "device": "auto",
                       "from_scratch": False, "frozen": "auto"}  # fmt: skip
    assert CliRunner().invoke(app, ["fit"]).exit_code == 0
    assert (asked["arguments"], asked["options"]["num_trials"]) == (("digits", None, None), None)
    done = CliRunner().invoke(app, ["fit", "--strength", "yield"])
    assert "--strength 'yield' is not CLASS=NUMBER" in str(done.exception)


def test_the_result_is_plain_when_piped(asked, fitted):
    done = CliRunner().invoke(app, ["fit"])
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert lines[0].startswith("Finds ")
    for line in str(fitted).splitlines():
        assert line in lines
    for path in (fitted.model_path, fitted.page_path):
        assert any(str(path) in line for line in lines[-4:])


def shown(fitted, capsys, monkeypatch, width, **how):
    monkeypatch.setattr(fit_view, "Console", lambda: Console(width=width, force_terminal=True, **how))
    fit_view.print_fitted(fitted)
    return capsys.readouterr().out


def test_a_full_answer_has_at_most_25_lines_of_80_columns(fitted, capsys, monkeypatch):
    """With the request before it: three lines and a blank one."""
    arms = fitted.answer.evidence.arms
    evidence = replace(fitted.answer.evidence, arms=(*arms, replace(arms[-1], title="L2-softmax, s=8, tuned")))
    many = (Caution("few_rows", {"name": "9", "num_val": 3, "num_test": 4}),) * 5
    effort = replace(fitted.answer.made.effort, still_improving=True, given_up=("2 of 8 rivals", "1 of 5 seeds"))
    made = replace(fitted.answer.made, effort=effort, finished=False)
    answer = replace(fitted.answer, evidence=evidence, cautions=many, made=made)
    full = shown(replace(fitted, answer=answer, out=Path("runs/x")), capsys, monkeypatch, 80, color_system=None)
    lines = full.splitlines()
    assert max(map(len, lines)) <= 80
    assert 4 + len(lines) - 1 <= 25 + 2  # a stopped fit that gave things up, with two cautions, is the longest
    usual = shown(replace(fitted, out=Path("runs/x")), capsys, monkeypatch, 80, color_system=None)
    assert 4 + len(usual.splitlines()) <= 25


def test_no_word_is_coloured(fitted, capsys, monkeypatch):
    """Rich would paint the word "False" and every number."""
    assert not re.search(r"\x1b\[[0-9;]*3\dm", shown(fitted, capsys, monkeypatch, 200, color_system="standard"))


def test_a_class_that_looks_like_markup_is_shown_as_it_is_called(fitted, capsys):
    source = replace(fitted.answer.source, classes=(*fitted.answer.source.classes[:-1], "stop [v2] [/b]"))
    fit_view.print_fitted(replace(fitted, answer=replace(fitted.answer, source=source)))
    assert " “stop [v2] [/b]” (before:" in capsys.readouterr().out.splitlines()[0]


def test_stopped_too_early_ends_with_130(monkeypatch):
    def stop(*arguments, **options):
        raise Unfinished("stopped while candidates were tried")

    monkeypatch.setattr(fit_view, "make_request", stop)
    done = CliRunner().invoke(app, ["fit"])
    assert done.exit_code == 130
    assert "stopped while candidates were tried" in done.stderr


def test_a_bad_budget_names_its_option():
    done = CliRunner().invoke(app, ["fit", "--budget", "soon"])
    assert "--budget" in str(done.exception)
    assert "'soon' is not a duration" in str(done.exception)


def test_it_says_what_was_understood(capsys):
    from tests.fitting.test_request import ask

    fit_view.print_request(ask(important=None))
    said = capsys.readouterr().out
    for text in ("digits: 8x8x1 images, 10 classes; 1,006 train, 252 val, 539 test", "lowest validation recall"):
        assert text in said
    for text in ("small on cpu", "20 models"):
        assert text in said
    fit_view.print_request(ask(important=["8", "9"], strengths={"9": 0.5}))
    said = capsys.readouterr().out
    assert "8 (98 train, 24 val, 52 test); 9 (" in said
    assert "at strength 0.5" in said


def test_the_demo_is_a_fit_of_digits_with_a_rare_class_and_ends_with_what_to_try(asked, tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    data, important, out = asked["arguments"]
    assert (important, out) == ("8", tmp_path)
    counts = data.class_counts("train").tolist()
    assert 5 * counts[8] < min(counts[:8] + counts[9:])
    assert data.class_counts("test")[8] == 87
    assert (asked["options"]["num_trials"], asked["options"]["epochs"]) == (24, 48)
    assert [line.split()[:2] for line in done.stdout.splitlines()[-3:]] == [
        ["camri", "fit"], ["camri", "audit"], ["camri", "predict"],
    ]  # fmt: skip
