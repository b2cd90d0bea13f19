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
    """The arguments that reach `fit`, which then gives the session's small fit back."""
    heard = {}

    def answer(*arguments, on_start, on_progress, **options):
        heard.update(arguments=arguments, options=options)
        on_progress(Progress("finals", 3, 4, 10.0))
        return fitted

    monkeypatch.setattr(fit_view, "fit", answer)
    return heard


def test_words_reach_the_fit(asked, tmp_path):
    words = [
        "fit",
        "signs",
        "--important",
        "stop",
        "--important",
        "yield:0.5",
        "--out",
        str(tmp_path),
        "--budget",
        "10m",
    ]
    words += ["--label-column", "kind", "--skip-bad", "--roi"]
    done = CliRunner().invoke(app, [*words, "--keep-accuracy", "0.01", "--model", "paper", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert asked["arguments"] == ("signs", ["stop", "yield:0.5"], tmp_path)
    options = {name: value for name, value in asked["options"].items() if value is not None}
    assert options.pop("began") <= time.monotonic()
    assert options.pop("data_options") == {"label_column": "kind", "roi": True, "skip_bad": True}
    assert options == {"budget_s": 600.0, "keep_accuracy": 0.01, "model": "paper", "seed": 3, "device": "auto"}
    assert CliRunner().invoke(app, ["fit"]).exit_code == 0
    assert (asked["arguments"], asked["options"]["num_trials"]) == (("digits", None, None), None)


def test_the_answer_is_plain_when_piped(asked, fitted):
    done = CliRunner().invoke(app, ["fit"])
    lines = done.stdout.splitlines()
    table = [line for line in lines if re.search(r"\d+/\d+ +0\.\d{3}", line)]
    assert [line.split("  ")[0].strip() for line in table] == [step.title for step in fitted.steps]
    assert "│" not in done.stdout
    assert "\x1b" not in done.stdout
    for line in fitted.answer.splitlines():
        assert line in lines
    assert f"model: {fitted.model_path}" in lines
    assert f"page:  {fitted.page_path}" in lines


def test_no_number_is_cut_in_a_narrow_terminal(fitted, capsys, monkeypatch):
    monkeypatch.setattr(fit_view, "PLAIN_WIDTH", 40)
    fit_view.print_fitted(fitted)
    table = capsys.readouterr().out.partition("Points of a hundred")[0]
    assert "…" not in table
    assert len(table.splitlines()) > 2 * len(fitted.steps)


def test_words_and_numbers_are_whole_at_80_columns(fitted, capsys, monkeypatch):
    monkeypatch.setattr(fit_view, "_console", lambda: Console(width=80, force_terminal=True, color_system=None))
    fit_view.print_fitted(fitted)
    table = capsys.readouterr().out.partition("Points of a hundred")[0].splitlines()
    assert max(map(len, table)) <= 80
    (first,) = [line for line in table if "cross-entropy," in line]
    one = fitted.before
    assert [cell.strip() for cell in first.split("│")[2:6]] == [
        f"{one.recall:.3f}", f"{one.hits}/{one.num}", f"{one.accuracy:.3f}", f"{100 * one.false_alarms:.2f}"
    ]  # fmt: skip


def test_a_class_that_looks_like_markup_is_shown_as_it_is_called(fitted, capsys):
    fit_view.print_fitted(dataclasses.replace(fitted, important=("stop [v2]", "go [/b]")))
    assert capsys.readouterr().out.startswith(f"stop [v2], go [/b]: {fitted.num_seeds} models of new seeds each")


def test_stopped_too_early_ends_with_130(monkeypatch):
    def stop(*arguments, **options):
        raise Unfinished("stopped while candidates were tried")

    monkeypatch.setattr(fit_view, "fit", stop)
    done = CliRunner().invoke(app, ["fit"])
    assert done.exit_code == 130
    assert "stopped while candidates were tried" in done.stderr


def test_a_bad_budget_names_its_option():
    done = CliRunner().invoke(app, ["fit", "--budget", "soon"])
    assert "--budget 'soon' is not a duration" in str(done.exception)


def test_it_says_what_was_understood(capsys):
    from tests.fitting.test_request import ask

    fit_view.print_request(ask(important=None))
    said = capsys.readouterr().out
    assert "digits: 8x8x1 images, 10 classes; 1,006 train, 252 val, 539 test" in said
    assert "the class that cross-entropy recognises worst on validation data" in said
    assert "small on cpu" in said
    assert "20 models" in said


def test_the_demo_is_a_fit_of_digits(asked, tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked["arguments"] == ("digits", None, tmp_path)
    assert asked["options"]["num_trials"] >= 60
