"""A study narrowed by words, by value: which methods stay, which values they get, what is refused."""

import math

import pytest

from camri.errors import InputError
from camri.methods import MARGIN_UNIT
from camri.study.recipes import digits
from camri.study.spec import Column, Grid
from camri.study.study_file import (
    override,
    parse_angle,
    parse_columns,
    parse_duration,
    parse_grid,
    parse_seeds,
    parse_strengths,
)


def grids(chosen, words=()):
    return {one.method: dict(one.axes) for one in override(digits("8"), chosen, words).methods}


def test_a_word_for_all_methods_reaches_those_that_have_the_knob_and_a_word_for_one_that_alone():
    before = grids(None)
    assert grids(" ce , , wce,") == {"ce": {}, "wce": before["wce"]}
    margins = grids("ce,camri,arcface,wce", ["m=4pi/64,8π/64"])
    for method in ("camri", "arcface"):
        assert margins[method]["m"] == (4 * MARGIN_UNIT, 8 * MARGIN_UNIT)
        assert margins[method]["s"] == grids(f"ce,{method}")[method]["s"]
    assert (margins["ce"], margins["wce"]) == ({}, before["wce"])
    alone = grids("ce,camri,arcface", ["arcface.m=4pi/64"])
    assert alone["arcface"]["m"] == (4 * MARGIN_UNIT,)
    assert alone["camri"] == before["camri"]
    both = grids(None, ["s=4", "wce.w=2.5"])
    assert both["camri"]["s"] == both["l2softmax"]["s"] == (4.0,)
    assert both["wce"] == {"w": (2.5,)}


def test_a_study_that_is_not_narrowed_is_the_study():
    study = digits("8")
    assert override(study, None, []) == study
    assert override(study, ",".join(one.method for one in study.methods)) == study
    assert override(study, "arcface,ce").methods[0] == Grid.of("arcface")


def refusal(call, *words):
    with pytest.raises(InputError) as refused:
        call(*words)
    return str(refused.value)


def test_knobs_and_methods_that_are_not_there_are_named_with_the_nearest():
    study = digits("8")
    said = refusal(override, study, "ce,camri", ["camir.m=4"])
    assert said == "grid=camir.m: 'camir' is not in the study; did you mean 'camri'? choices: ce, camri"
    assert refusal(override, study, "ce,wce", ["arcface.m=4"]).startswith(
        "grid=arcface.m: 'arcface' is not in the study"
    )
    said = refusal(override, study, "ce,camri", ["mm=4"])
    assert said == "grid=mm: no method of the study has that knob; did you mean 'm'? choices: m, s"
    assert refusal(override, study, "ce,camri,wce", ["camri.w=4"]).startswith("grid=w: no method of the study has")
    for word in ("m", "m=", "m=4,", "m=a", "m=api", "m=4pi/0", "m=4pi/x"):
        assert refusal(parse_grid, ["s=8", word]).startswith(f"grid={word!r} is not knob=value,value")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4pi/64", 4 * MARGIN_UNIT), ("4π/64", 4 * MARGIN_UNIT), ("pi", math.pi), (" 0.5pi ", math.pi / 2), ("0.2", 0.2),
     ("1e-1", 0.1), ("-2", -2.0)],
)  # fmt: skip
def test_angles_as_typed(text, value):
    assert parse_angle(text) == value


@pytest.mark.parametrize("text", ["", "x", "4pie", "4pi/", "4/pi", "pi pi", "4pi/0"])
def test_what_is_no_angle_is_refused(text):
    assert repr(text) in refusal(parse_angle, text)


def test_columns_as_written():
    assert parse_columns("7", {}) == [Column(("7",), (1.0,))]
    assert parse_columns(["cat", " cat + dog", ["a+b", 3]], {"dog": 0.5, "3": 2}) == [
        Column(("cat",), (1.0,)), Column(("cat", "dog"), (1.0, 0.5)), Column(("a+b", 3), (1.0, 2.0)),
    ]  # fmt: skip
    assert "none twice" in refusal(parse_columns, ["cat+ cat"], {})
    assert "strengths='dog' is not a class of a joint column" in refusal(parse_columns, ["cat", "dog"], {"dog": 0.5})
    assert "'dog' has strength '1'" in refusal(parse_columns, ["cat+dog"], {"dog": "1"})
    assert "write a joint column as 'cat+dog'" in refusal(parse_columns, [{"cat": 1.0, "dog": 0.5}], {})


def test_strengths_as_typed():
    assert parse_strengths(["dog=0.5", "a=b=2"]) == {"dog": 0.5, "a=b": 2.0}
    for word in ("dog", "dog=x", "dog="):
        assert refusal(parse_strengths, [word]).startswith(f"strengths={word!r} is not class=number")


def test_seeds_as_typed():
    assert parse_seeds("3") == [3]
    assert parse_seeds("4-4") == [4]
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]
    for text in ("7,5-3", "a", "1-b", "", "1,", "0-99999999999"):
        assert refusal(parse_seeds, text).startswith(f"seeds={text!r} is not a list of seeds")


def test_durations_as_typed():
    assert [parse_duration(text) for text in ("0.5", "2s", "3m", "2h")] == [0.5, 2.0, 180.0, 7200.0]
    assert all(math.isfinite(parse_duration(text)) for text in ("1e9h", "1e-9s"))
    for text in ("0", "0m", "-1", "inf", "m", "5 d", "nanh"):
        said = f"budget={text!r} is not a duration; for example 90s, 25m or 1.5h"
        assert refusal(parse_duration, text, "budget") == said
    assert refusal(parse_duration, "0").startswith("max_wall='0' ")
