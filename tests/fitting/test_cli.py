"""What `camri fit` prints and how it ends."""

import dataclasses
import re
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from camri.cli import app, fit_view
from camri.fitting import Progress, Unfinished


@pytest.fixture
def asked(monkeypatch, fitted):
    """The arguments that reach the fit, which then gives the session's small fit back."""
    heard = {}

    def make_request(*arguments, on_read, **options):
        heard.update(arguments=arguments, options=options)

    def run_fit(request, began, on_progress):
        heard.update(began=began)
        on_progress(Progress("finals", 3, 4, 10.0))
        return fitted

    monkeypatch.setattr(fit_view, "make_request", make_request)
    monkeypatch.setattr(fit_view, "print_request", lambda request: None)
    monkeypatch.setattr(fit_view, "run_fit", run_fit)
    return heard


def test_words_reach_the_fit(asked, tmp_path):
    words = f"fit signs --important stop --important yield --strength yield=0.5 --out {tmp_path} --budget 10m"
    words += " --label-column kind --skip-bad --roi --max-accuracy-drop 0.01 --model paper --seed 3"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert asked["arguments"] == ("signs", ["stop", "yield"], tmp_path)
    assert asked["began"] <= time.monotonic()
    options = {name: value for name, value in asked["options"].items() if value is not None}
    assert options.pop("data_options") == {"label_column": "kind", "roi": True, "skip_bad": True}
    assert options.pop("strengths") == {"yield": 0.5}
    assert options == {"budget": "10m", "max_accuracy_drop": 0.01, "model": "paper", "seed": 3, "device": "auto"}
    assert CliRunner().invoke(app, ["fit"]).exit_code == 0
    assert (asked["arguments"], asked["options"]["num_trials"]) == (("digits", None, None), None)
    done = CliRunner().invoke(app, ["fit", "--strength", "yield"])
    assert "--strength 'yield' is not CLASS=NUMBER" in str(done.exception)


def test_the_result_is_plain_when_piped(asked, fitted):
    done = CliRunner().invoke(app, ["fit"])
    lines = done.stdout.splitlines()
    table = [line for line in lines if re.search(r" \d+/\d+ +\d+\.\d %", line)]
    assert [line.split("  ")[0].strip() for line in table] == [step.title for step in fitted.evidence.steps]
    assert "│" not in done.stdout
    assert "\x1b" not in done.stdout
    for line in fitted.answer.splitlines():
        assert line in lines
    for path in (fitted.model_path, fitted.page_path):
        assert any(str(path) in line for line in lines[-4:])


def shown_at(width, fitted, capsys, monkeypatch, **how):
    monkeypatch.setattr(fit_view, "_console", lambda: Console(width=width, **how))
    fit_view.print_fitted(fitted)
    return capsys.readouterr().out


def test_no_number_is_cut_in_a_narrow_terminal(fitted, capsys, monkeypatch):
    shown = shown_at(40, fitted, capsys, monkeypatch)
    assert "…" not in shown.partition("step")[2].partition("Mean of")[0]


def test_words_and_numbers_are_whole_at_80_columns(fitted, capsys, monkeypatch):
    shown = shown_at(80, fitted, capsys, monkeypatch, force_terminal=True, color_system=None)
    table = [line for line in shown.splitlines() if "│" in line]
    assert max(map(len, table)) <= 80
    figures = fitted.evidence.before
    first = [cell.strip() for cell in next(line for line in table if "cross-entropy" in line).split("│")[2:6]]
    assert first == [
        f"{100 * figures.recall:.1f} %", f"{figures.hits}/{figures.num}", f"{100 * figures.accuracy:.1f} %",
        f"{100 * figures.false_alarms:.2f} %",
    ]  # fmt: skip


def test_no_word_is_coloured(fitted, capsys, monkeypatch):
    """Rich would paint the word "False" of "False alarms" and every number."""
    shown = shown_at(200, fitted, capsys, monkeypatch, force_terminal=True, color_system="standard")
    assert "False alarms" in shown
    assert not re.search(r"\x1b\[[0-9;]*3\dm", shown)


def test_a_class_that_looks_like_markup_is_shown_as_it_is_called(fitted, capsys):
    fit_view.print_fitted(dataclasses.replace(fitted, important=("stop [v2] [/b]",)))
    assert capsys.readouterr().out.startswith("“stop [v2] [/b]”: found ")


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


def test_the_demo_is_a_fit_of_digits(asked, tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked["arguments"] == ("digits", None, tmp_path)
    assert asked["options"]["num_trials"] >= 60
