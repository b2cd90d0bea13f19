"""Studies as people write them: TOML files, and words on the command line."""

import math
from pathlib import Path

import pytest

from camri.cli.options import class_numbers
from camri.engine import FAST, PAPER
from camri.errors import InputError
from camri.methods import MARGIN_UNIT
from camri.study import study_file
from camri.study.recipes import digits
from camri.study.spec import Column, Grid
from camri.study.study_file import (
    find_study,
    override,
    parse_angle,
    parse_columns,
    parse_duration,
    parse_grid,
    parse_seeds,
    read_study,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"
LEAST = 'columns = "8"\ndata = "digits"\n[methods]\nce = {}\n'


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_is_read_in_full():
    made = find_study(str(EXAMPLE))
    assert made.name == "two digits"
    assert made.important == (Column(("8",), (1.0,)), Column(("3", "8"), (1.0, 0.5)))
    assert made.training == FAST.with_(model="small", epochs=3, model_options=(("width", 8),))
    assert [grid.method for grid in made.methods] == ["ce", "l2softmax", "camri"]
    assert made.methods[2].axes == (("m", (4 * MARGIN_UNIT, 8 * MARGIN_UNIT)), ("s", (8.0,)))
    assert (made.seeds, made.val_fraction, made.data) == ((0, 1), 0.3, "digits")
    assert made.key == "a4f0edfe0d010c59"


def test_the_least_study(tmp_path):
    made = read_study(write(tmp_path, LEAST))
    assert (made.name, made.seeds, made.training, made.val_fraction) == ("mine", tuple(range(10)), FAST, 0.1)


def test_everything_a_study_can_say(tmp_path):
    path = write(
        tmp_path,
        """
        name = "all"
        columns = ["a+b", "worst"]
        strengths = { b = 0.5 }
        important_from = "test"
        seeds = [3, 5]
        [data]
        source = "photos/"
        size = [32, 48]
        label_column = "kind"
        [split]
        val_fraction = 0
        test_fraction = 0.2
        seed = 7
        thin = { cat = 0.25 }
        [training]
        schedule = "paper"
        ramp = [0.0, 0.5]
        model = "mlp"
        model_options = { hidden = [32, 16] }
        [methods]
        ce = {}
        cosface = { m = 0.1, s = [8, 16] }
        [keep]
        logits = true
        """,
    )
    made = read_study(path)
    assert made.data_options == (("label_column", "kind"), ("size", (32, 48)))
    assert (made.val_fraction, made.test_fraction, made.split_seed) == (0.0, 0.2, 7)
    assert made.thin == (("cat", 0.25),)
    assert made.training == PAPER.with_(ramp=(0.0, 0.5), model="mlp", model_options=(("hidden", (32, 16)),))
    assert dict(made.methods[1].axes)["m"] == (0.1,)
    assert made.important == (Column(("a", "b"), (1.0, 0.5)), Column(("worst",), (1.0,)))
    assert (made.keep_logits, made.important_from, made.seeds) == (True, "test", (3, 5))
    hash(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("columns = ", "is not TOML"),
        ('data = "digits"', "has no 'columns'"),
        (
            LEAST.replace("columns", "colums"),
            "has 'colums', which a study does not have; did you mean 'columns'",
        ),
        (LEAST.replace("ce = {}", "cee = {}"), "method 'cee' is unknown; did you mean"),
        (LEAST.replace("ce = {}", "ce = 3"), "methods ce=3 is not a table"),
        (LEAST.replace("columns", "important"), "write 'columns' instead of 'important'"),
        (LEAST.replace('"8"', "[{ 8 = 1.0, 3 = 0.5 }]"), r"write a joint column as '8\+3'"),
        (LEAST + "camri = { m = ['x'] }", "'x' is not a number"),
        (LEAST + "camri = { m = [4, 8] }", 'camri m=4 is above π; margins are radians: write "4pi/64"'),
        (LEAST + "[training]\nepoch = 3", "training has no field 'epoch'; did you mean 'epochs'"),
        (LEAST + "[training]\nmodel_options = 3", r"\.toml: training\.model_options=3 is not a table"),
        (LEAST.replace('data = "digits"', 'data = "digits"\nsplit = 3'), r"\.toml: split=3 is not a table"),
        (LEAST + "[training]\nepochs = 0", "epochs=0 is not allowed"),
        (LEAST + "[training]\nschedule = 'slow'", "schedule='slow' is unknown"),
        (LEAST + "[split]\nval = 0.1", r"\[split\] has no 'val'; choices: val_fraction, test_fraction, seed"),
        (LEAST.replace('data = "digits"', "data = {}"), r"\[data\] needs source"),
        (LEAST + "[data2]", "has 'data2'"),
        (LEAST.replace('data = "digits"', 'data = "digits"\nseeds = "three"'), "seeds='three' is not allowed"),
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read_study(write(tmp_path, text))


def test_missing_files_and_old_pythons(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="does not exist"):
        find_study(str(tmp_path / "no.toml"))
    path = write(tmp_path, LEAST)

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(study_file.importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"needs Python 3.11 to be read, or `pip install tomli`"):
        read_study(path)


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
    assert grids("ce,cosface", ["m=0.1"])["cosface"]["m"] == (0.1,)  # no angle


def test_a_study_that_is_not_overridden_is_the_study():
    study = digits("8")
    assert override(study) == study
    assert override(study, ",".join(one.method for one in study.methods)) == study
    assert override(study, "arcface,ce").methods[0] == Grid.of("arcface")


def refusal(call, *words):
    with pytest.raises(InputError) as refused:
        call(*words)
    return str(refused.value)


def test_knobs_and_methods_that_are_not_there_are_named_with_the_nearest():
    study = digits("8")
    assert refusal(override, study, "ce,cmari").startswith("method 'cmari' is unknown; did you mean 'camri'")
    assert refusal(override, study, "").startswith("methods=() is not allowed")
    said = refusal(override, study, "ce,camri", ["camir.m=4"])
    assert said == "grid=camir.m: 'camir' is not in the study; did you mean 'camri'? choices: ce, camri"
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
    assert class_numbers(["dog=0.5", "a=b=2"], "strengths", "dog=0.5") == {"dog": 0.5, "a=b": 2.0}
    for word in ("dog", "dog=x", "dog="):
        assert refusal(class_numbers, [word], "strengths", "a=1").startswith(f"strengths={word!r} is not CLASS=NUMBER")


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
