"""Models with wrong values, whatever wrote them: refused in a sentence, or every probability is a number."""

import copy
import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from camri.decision import Shift, Threshold
from camri.errors import InputError
from camri.export import load, save
from camri.export.inputs import find_inputs, predict
from camri.methods import setting
from tests.attacks.test_fuzz import attack, count
from tests.export.conftest import made_trained

CODED = {
    "feature_columns": ["city", "age"],
    "label_column": "label",
    "encoding": {"city": {"categories": ["Oslo", "Rome"], "flag": False}, "age": {"fill": 30.0, "flag": True}},
}
KINDS = {
    "features": {
        "rule": Threshold({1: 0.3}),
        "preprocessing": CODED,
        "standardise": ((0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0)),
    },
    "images": {
        "rule": Shift({1: 0.5}),
        "preprocessing": {"size": [6, 5], "mode": "RGB", "resize": "lanczos", "roi": True, "path_column": "path"},
    },
}
HOSTILE = (None, "", "x", "\ud800", True, -1, 0, 2**63, 10**400, 1e-45, -1e-45, 1e308, float("nan"), float("inf"), [],
           [[]], [None], ["x"] * 3, {}, {"": None}, {"rule": {}}, "a" * 100_000)  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    rows = "city,age,label,n\n" + "".join(
        f"{'Oslo' if i % 2 else 'Rome'},{i * 7 % 80 or ''},a,{i}\n" for i in range(1, 20)
    )
    (root / "rows.csv").write_text(rows)
    Image.new("RGB", (9, 8), "red").save(root / "a.png")
    boxed = "path,roi_x1,roi_y1,roi_x2,roi_y2,width,height\na.png,1,1,6,6,9,8\n"
    (root / "boxed.csv").write_text(boxed)
    return root


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory, inputs):
    """A model's folder, and a function that reads it and predicts: every probability is a number."""
    kind, important = KINDS[request.param], (1,)
    if request.param == "features":
        trained, files = (
            made_trained("mlp", setting("camri", 1, m=0.2, s=8.0), (4,), options={"hidden": (4,)}),
            ["rows.csv"],
        )
    else:
        trained, files = made_trained("small", setting("ce"), (6, 5, 3)), ["a.png", "boxed.csv"]
    trained = dataclasses.replace(trained, important=important, **kind)
    folder = save(trained, tmp_path_factory.mktemp(request.param) / "model", card="# card", onnx=False)

    def read(path):
        model = load(path)
        found = list(predict(model, find_inputs([str(inputs / name) for name in files], model.trained)[0]))
        assert all(one.problem or np.isfinite(one.probabilities).all() for one in found)
        if problems := {one.problem for one in found if one.problem}:
            raise InputError("; ".join(problems))

    assert not attack(read, folder, "whole")
    return folder, read


def paths(value, before=()):
    """Every place in a JSON value."""
    yield before
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        yield from paths(one, (*before, name))


def changed(values, path, new):
    """A copy with another value at this place; `changed` itself removes it."""
    found = copy.deepcopy(values)
    place = found
    for name in path[:-1]:
        place = place[name]
    if new is changed:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return found


def attack_all(tally, made, path, values, replacements, write, step):
    """Write every replacement in every place of the values and read the model. All that fail are shown at once."""
    read = made[1]
    tries = [(place, new) for place in paths(values) if place for new in replacements]
    refused, failed = 0, {}
    for place, new in tries[::step]:
        write(changed(values, place, new))
        try:
            refused += attack(read, path, f"{place} = {new!r:.40}")
        except pytest.fail.Exception as error:
            failed.setdefault(str(error).strip().splitlines()[-1][:200], f"{place} = {new!r:.40}")
    assert not failed, "\n".join(f"{name}: {said}" for said, name in failed.items())
    count(tally, "model, values replaced in config and header", refused, len(tries[::step]))


STEPS = [pytest.param(23, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]
ENDS = ([0, 4], [4, 0], [8, 4], [0, 2**63], [-4, 0], [2**31, 2**31, 0], "F16", "I64", 2**32, 2**64)


@pytest.mark.parametrize("step", STEPS)
def test_every_value_of_a_config_replaced(tally, tmp_path, made, step):
    path = shutil.copytree(made[0], tmp_path / "model")
    values = json.loads((path / "config.json").read_text())
    del values["checksum"]

    def write(values):
        (path / "config.json").write_text(json.dumps(values))

    attack_all(tally, made, path, values, (changed, *HOSTILE), write, step)


@pytest.mark.parametrize("step", STEPS)
def test_every_value_of_a_header_replaced(tally, tmp_path, made, step):
    """With the right sha256, as whoever writes the file would give it."""
    path = shutil.copytree(made[0], tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    data = (path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")

    def write(header):
        text = json.dumps(header).encode()
        weights = len(text).to_bytes(8, "little") + text + data[8 + length :]
        (path / "model.safetensors").write_bytes(weights)
        known = {**config, "checksum": None, "weights_sha256": hashlib.sha256(weights).hexdigest()}
        (path / "config.json").write_text(json.dumps(known))

    attack_all(tally, made, path, json.loads(data[8 : 8 + length]), (changed, *HOSTILE, *ENDS), write, step)
