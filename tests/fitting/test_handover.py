"""What is told of a fit: the command that does it again, how many trials there were, whether a page can be drawn."""

import shlex
from dataclasses import replace

import pytest

from camri.fitting import handover
from camri.fitting.handover import _count, can_draw, command
from camri.study.grid import Column
from tests.fitting.test_request import ask
from tests.report.conftest import make_run


@pytest.fixture(scope="module")
def request_of_digits():
    return ask("digits", "9", num_trials=30)


def test_the_command_has_every_word_that_matters_and_none_that_is_usual(request_of_digits):
    asked = request_of_digits
    assert command(asked) == "camri fit digits --important 9 --trials 30 --model small --out runs/again"
    timed = replace(asked, num_trials=None, budget_s=90.0, tolerance=0.01, seed=3, epochs=5)
    assert command(timed) == (
        "camri fit digits --important 9 --budget 90s --keep-accuracy 0.01 --model small --epochs 5 --seed 3 "
        "--out runs/again"
    )
    several = replace(asked, source="my signs/", important=Column.of({"stop": 1.0, "no entry": 0.5}))
    words = shlex.split(command(several))
    assert words[:7] == ["camri", "fit", "my signs/", "--important", "stop", "--important", "no entry:0.5"]


def test_the_command_has_the_options_of_the_data_and_the_first_weights(request_of_digits):
    options = {"roi": True, "skip_bad": False, "size": 32, "path_column": None, "label_column": "a kind"}
    initial = (("initial", "/w/first.safetensors"), ("initial_sha256", "0" * 64), ("width", 4))
    asked = replace(
        request_of_digits,
        data_options=tuple(options.items()),
        plain=request_of_digits.plain.with_(model_options=initial),
    )
    assert command(asked) == (
        "camri fit digits --important 9 --trials 30 --roi --size 32 --label-column 'a kind' --model small "
        "--weights /w/first.safetensors --out runs/again"
    )
    for verify, word in ((True, ""), (False, "--no-verify ")):
        asked = replace(request_of_digits, data_options=(("verify", verify),))
        assert command(asked) == f"camri fit digits --important 9 --trials 30 {word}--model small --out runs/again"


def test_trials_are_counted_over_all_runs_failed_ones_among_them(tmp_path):
    one = make_run(tmp_path / "one", methods={"ce": {}, "wce": {"w": [4]}}, seeds=3, failing={("wce", 1), ("ce", 0)})
    other = make_run(tmp_path / "other", methods={"ce": {}}, seeds=2, failing={("ce", 1)})
    assert _count((one,)) == (6, 2)
    assert _count((one, other)) == (8, 3)
    assert _count(()) == (0, 0)


def test_a_page_is_drawn_where_all_it_needs_is_there(monkeypatch):
    for needed, is_there in ((("json", "shlex"), True), (("json", "no_such_module"), False)):
        monkeypatch.setattr(handover, "PAGE_NEEDS", needed)
        assert can_draw() is is_there
