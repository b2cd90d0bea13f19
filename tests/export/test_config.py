"""config.json: what is written, and what is refused with which message."""

import dataclasses
import json
import re

import pytest

import camri
from camri.decision import Shift
from camri.errors import InputError
from camri.export.folder import read_config, to_trained, write_config
from camri.files import checksum
from camri.methods import setting
from tests.export.conftest import made_trained

SCALED = dataclasses.replace(
    made_trained("mlp", setting("camri", 1, m=0.2, s=8), (2,), standardise=((1.5, 0.0), (2.0, 0.1)), seed=4),
    classes=("limit", "stöp", "yield"),
    important=(2, 1),
    rule=Shift({2: 0.5, 1: -1.0}),
    preprocessing={"feature_columns": ["a", "b"]},
)


def as_written(**changes):
    """config.json of a model as bytes, with other values and no checksum."""
    values = json.loads(write_config(SCALED, "0" * 64))
    del values["checksum"]
    return json.dumps({**values, **changes}).encode()


FEATURES = {"kind": "features", "dtype": "float32", "shape": [2]}


def test_every_field_is_written_on_a_line_of_its_own():
    text = write_config(SCALED, "0" * 64)
    values = json.loads(text)
    lines = text.splitlines()
    assert (lines[0], lines[-1], text[-1]) == ("{", "}", "\n")
    assert [json.loads("{" + line.rstrip(",") + "}") for line in lines[1:-1]] == [
        {name: value} for name, value in values.items()
    ]
    assert "stöp" in text
    assert values.pop("checksum") == checksum(json.dumps(values, sort_keys=True).encode())
    assert values == {
        "format": "camri-model",
        "version": 2,
        "camri": camri.__version__,
        "classes": ["limit", "stöp", "yield"],
        "important": ["yield", "stöp"],
        "rule": {"rule": "shift", "values": {"stöp": -1.0, "yield": 0.5}},
        "input": FEATURES,
        "preprocessing": {"feature_columns": ["a", "b"]},
        "standardise": {"mean": [1.5, 0.0], "sd": [2.0, 0.1]},
        "setting": {"method": "camri", "important": [1], "knobs": {"m": [0.2], "s": 8.0}},
        "training": json.loads(json.dumps(SCALED.training.to_json())),
        "seed": 4,
        "class_counts": [50, 20, 30],
        "weights_sha256": "0" * 64,
    }


def test_what_is_written_is_read_back_as_it_was():
    found = to_trained(read_config(write_config(SCALED, "0" * 64).encode(), "x"), SCALED.weights, "x")
    for field in dataclasses.fields(SCALED):
        assert getattr(found, field.name) == getattr(SCALED, field.name), field.name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            as_written(version=1, camri="9.9"),
            f"x has format version 1, and camri {camri.__version__} reads version 2; ",
        ),
        (as_written(seed="four"), "x is damaged: seed is 'four' (Input should be a valid integer); copy the model"),
        (
            as_written(rule={"rule": "shift", "values": {"stöp": "a" * 58}}),
            f"x is damaged: rule.values.stöp is '{'a' * 58}' (",
        ),  # 60 signs are shown
        (
            as_written(rule={"rule": "shift", "values": {"stöp": "a" * 59}}),
            f"x is damaged: rule.values.stöp is '{'a' * 58}… (",
        ),
        (as_written(input={"kind": "sound", "dtype": "uint8", "shape": [2]}), "x is damaged: input.kind is 'sound' ("),
        (as_written(input={**FEATURES, "x": 1}), "x is damaged: input.x is 1 ("),
        (as_written(input={**FEATURES, "shape": ["2"]}), "x is damaged: input.shape.0 is '2' ("),
        (as_written(standardise={"mean": ["0"], "sd": [1.0]}), "x is damaged: standardise.mean.0 is '0' ("),
        (b"\xff", "x is damaged ('utf-8' codec can't decode byte 0xff"),
        (b"{", "x is damaged (Expecting property name"),
        (b"[" * 100_000, "x is damaged (maximum recursion depth"),
        (b"[]", "x is not a camri model's; choose a folder that camri fit or camri.export.save wrote"),
        (b"{}", "x is not a camri model's; choose"),
    ],
)
def test_what_is_wrong_is_reported_with_its_value(text, said):
    with pytest.raises(InputError) as refused:
        read_config(text, "x")
    assert str(refused.value).startswith(said)


def test_what_json_does_not_know_is_refused_in_a_sentence():
    text = as_written().replace(b": -1.0", b": NaN")
    with pytest.raises(InputError, match=r"Shift\(.*nan.* is not allowed; give finite numbers"):
        to_trained(read_config(text, "x"), {}, "x")


def test_values_that_no_model_could_have_are_refused_with_the_place():
    def made(**changes):
        return to_trained(read_config(as_written(**changes), "x"), {}, "x")

    with pytest.raises(InputError, match=r"^x is damaged \(KeyError: 'halt'\); copy the model's folder again$"):
        made(important=["halt", "limit"])
    with pytest.raises(InputError, match=r"^x: a trained model's rule=.* is not allowed; give each important class"):
        made(rule={"rule": "shift", "values": {"stöp": 0.5}})
    told, training = SCALED.setting.to_json(), SCALED.training.to_json()
    with pytest.raises(InputError, match=r"^x: important class 'a' is no index; give whole numbers from 0 on$"):
        made(setting={**told, "important": ["a"]})
    for error, changes in (
        ("TypeError", {"setting": {**told, "important": None}}),
        ("AttributeError", {"training": {**training, "model_options": 3}}),
    ):
        with pytest.raises(InputError, match=rf"^x is damaged \({error}: .*\); copy the model's folder again$"):
            made(**changes)


def test_a_config_with_another_checksum_is_refused():
    text = write_config(SCALED, "0" * 64)
    damaged = text.replace('"seed": 4', '"seed": 5').encode()
    with pytest.raises(InputError, match=r"x is not as it was saved: its checksum differs; .* remove its line"):
        read_config(damaged, "x")
    assert read_config(re.sub(rb',\n "checksum": \d+', b"", damaged), "x").seed == 5


def test_a_config_laid_out_otherwise_is_the_same():
    text = write_config(dataclasses.replace(SCALED, preprocessing={"a": {10: "b", 9: (1, 2)}}), "0" * 64)
    read_config(json.dumps(json.loads(text), indent=4, sort_keys=True).encode(), "x")


def test_preprocessing_that_is_no_json_is_refused():
    for value in (float("nan"), {1, 2}, object()):
        with pytest.raises(InputError, match=r"cannot be written as JSON \(.+\); preprocessing holds plain values"):
            write_config(dataclasses.replace(SCALED, preprocessing={"a": value}), "0" * 64)
