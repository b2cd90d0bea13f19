"""Every public function with each argument replaced by something else: InputError, or a result that is right.

The signatures are read, so that a new argument is covered by itself, and a new function fails until it is listed here.
Estimators and audits have batteries of their own.
"""

import inspect
import math
import traceback
import warnings

import numpy as np
import pytest
import torch

import camri
from camri import data, export
from camri.errors import MOST_SIGNS, InputError
from camri.methods import setting
from tests.export.conftest import made_trained

HOSTILE = (
    None, "", "x", "\ud800", b"x", True, -1, 0, 1, 2.5, 10**30, math.nan, math.inf, -math.inf, 1e-320, [], [[]], [None],
    (), {}, {"x": None}, {None: 1.0}, {"stop": "x"}, {"stop": math.nan}, {7: 1.0}, set(), object(), print,
    np.array(["a"], object), np.zeros((2, 0)), np.array(5), torch.zeros(2, 0), "x" * 100_000,
)  # fmt: skip
CLASSES = ["limit", "stop", "yield"]
OTHERS = {"audit", "check", "compare", "CamriClassifier", "ImportantClassifier", "InputError"}  # tested elsewhere


def use_loss(loss):
    """A step of training: the loss is finite, or says that it is not for such inputs."""
    outputs = torch.zeros(6, 3, requires_grad=True)
    value = loss(outputs, torch.tensor([0, 1, 2, 0, 1, 2]))
    value.sum().backward()
    if not (value.isfinite().all() and outputs.grad.isfinite().all()):
        raise InputError("not finite: the numbers that were given are too large")


def use_head(head):
    head(torch.ones(2, 4))


def model():
    return export.Model(made_trained("mlp", setting("ce"), (3,), options={"hidden": (4,)}))


LOSS = {"num_classes": 3, "important": {"stop": 1.0}, "classes": CLASSES}
# A call that is right, and what is done with its result.
CALLS = {
    **{name: (getattr(camri, name), LOSS, use_loss) for name in camri.__all__ if name.endswith("Loss")},
    "CosineHead": (camri.CosineHead, {"in_features": 4, "num_classes": 3}, use_head),
    "LinearHead": (camri.LinearHead, {"in_features": 4, "num_classes": 3}, use_head),
    "replace_head": (
        lambda **given: camri.replace_head(**{"model": torch.nn.Sequential(torch.nn.Linear(4, 2)), **given}),
        {"num_classes": 3}, use_head,
    ),
    "load": (camri.load, {"folder": "nowhere"}, None),
    "fit": (camri.fit, {"data": "digits", "important": "8", "num_trials": 16, "device": "cpu"}, None),
    "export.with_rule": (export.with_rule, {"model": model(), "thresholds": {"stop": 0.3}}, None),
    "export.save": (export.save, {"trained": model().trained, "folder": "m", "card": "", "onnx": False}, None),
    "export.write_onnx": (export.write_onnx, {"model": model(), "file": "m.onnx"}, None),
    "data.load": (data.load, {"source": "digits", "cache": False}, None),
}  # fmt: skip
SIGNED = {"replace_head": camri.replace_head}  # whose signature another function has


# Arguments of which a value of another kind still ends in an exception from inside: one that is fixed leaves the list.
OPEN = {
    "CamriLoss": "scale classes beyond_pi ramp reduction",
    "LogitAdjustedLoss": "class_counts tau classes ramp reduction",
    "TwoSidedMarginLoss": "classes ramp reduction",
    "WeightedCrossEntropyLoss": "classes ramp reduction",
    "CosineHead": "in_features num_classes generator",
    "LinearHead": "in_features num_classes generator",
    "replace_head": "model num_classes head neck layer generator",
    "load": "folder",
    "fit": "data important out max_accuracy_drop at_least cost_matrix strengths model weights from_scratch frozen "
    "device data_options",
    "export.with_rule": "model thresholds shifts",
    "export.save": "trained folder card onnx",
    "export.write_onnx": "model file",
    "data.load": "source resize path_column label_column group_column split_column backbone",
}


def names_of(name):
    return list(inspect.signature(SIGNED.get(name, CALLS[name][0])).parameters)


def test_every_public_function_is_here():
    public = {name for name in camri.__all__ if not name.startswith("_")}
    assert public - OTHERS == {name for name in CALLS if "." not in name}


def case(name, argument):
    marks = [pytest.mark.xfail(strict=True)] if argument in OPEN.get(name, "").split() else []
    return pytest.param(name, argument, marks=[*marks, *([] if name.endswith("Loss") else [pytest.mark.long])])


@pytest.mark.parametrize(("name", "argument"), [case(name, one) for name in CALLS for one in names_of(name)])
def test_arguments(tally, tmp_path, monkeypatch, name, argument):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("camri.fitting.job.run_fit", lambda request, *_: request)
    call, usual, use = CALLS[name]
    wrong = {}
    for value in HOSTILE:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = call(**{**usual, argument: value})
                if use is not None:
                    use(found)
        except InputError as error:
            if "\n" in str(error) or len(str(error)) > MOST_SIGNS + 10:
                wrong.setdefault(str(error)[:200], value)
            tally("arguments of public functions replaced", "reported")
        except Exception:
            wrong.setdefault(traceback.format_exc(limit=-1)[-300:], value)
        else:
            tally("arguments of public functions replaced", "taken")
    assert not wrong, "\n".join(f"{argument}={value!r:.60}: {said}" for said, value in wrong.items())
