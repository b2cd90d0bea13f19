"""ONNX and torch.export say what PyTorch says, for every model and head, at any batch size."""

import json

import numpy as np
import onnxruntime
import pytest
import torch

from camri.errors import InputError
from camri.export import Model, save, write_onnx, write_program
from camri.export.onnx_file import example, logit_size
from camri.methods import setting
from tests.export.conftest import made_trained

onnx = pytest.importorskip("onnx")

CASES = {
    "small-linear": made_trained("small", setting("ce"), (9, 8, 1), options={"dropout": 0.5, "width": 4}),
    "paper-cosine": made_trained("paper", setting("camri", 1, m=0.2, s=16), (8, 8, 3)),
    "resnet18-cosine": made_trained("resnet18", setting("l2softmax", s=8), (8, 8, 3)),
    # Fewer features than classes: the cosine head's other product.
    "mlp-cosine": made_trained(
        "mlp",
        setting("camri", 1, m=0.2, s=8),
        (5,),
        options={"num_features": 2, "hidden": (8,), "dropout": 0.2},
        standardise=((3.0, -1.0, 0.0, 100.0, 0.5), (2.0, 0.1, 1.0, 30.0, 1.0)),
    ),
    "features-linear": made_trained("features", setting("wce", 1, w=4), (6,)),
}


def agree(found, model, rows):
    """Probabilities to 1e-5, logits to 1e-5 of the head's scale or of the largest logit.

    Runtimes add up in another order. A cosine comes out 1e-7 to 7e-7 apart (seen with five instruction sets), its logit
    as many times more as the scale says, however small the logit itself is.
    """
    logits, probabilities = (np.asarray(one) for one in found)
    expected = model.logits(rows)
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() <= 1e-5 * logit_size(model, expected)
    assert np.abs(probabilities - model.predict_proba(rows)).max() <= 1e-5
    return True


@pytest.mark.parametrize("name", CASES)
def test_onnx_agrees(name, tmp_path):
    trained = CASES[name]
    model = Model.of(trained)
    path = write_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == "inputs"
    assert given.type == ("tensor(uint8)" if trained.is_image else "tensor(float)")
    assert given.shape[1:] == list(trained.input_shape)
    assert isinstance(given.shape[0], str), "the batch is fixed"
    assert [one.name for one in session.get_outputs()] == ["logits", "probabilities"]
    for num_rows in (1, 2, 9):
        rows = example(trained, num_rows, seed=num_rows)
        assert agree(session.run(None, {"inputs": rows}), model, rows)
    spread = np.ptp(model.logits(example(trained, 9, seed=9)), axis=0).max()
    assert spread > 1e-3, "the inputs do not matter to this model: agreement would mean nothing"


@pytest.mark.parametrize("name", CASES)
def test_torch_export_agrees(name, tmp_path):
    model = Model.of(CASES[name])
    path = write_program(model, tmp_path / "model.pt2")
    program = torch.export.load(path).module()
    for num_rows in (2, 9):
        rows = example(CASES[name], num_rows, seed=num_rows)
        assert agree([one.detach() for one in program(torch.from_numpy(rows))], model, rows)
    assert b".py" not in path.read_bytes(), "it tells where the code lay on this machine"


def test_the_saved_folder_has_an_onnx_file_that_tells_its_classes_and_nothing_of_this_machine(trained, tmp_path):
    path = save(trained, tmp_path / "model", card="# card")
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == ["limit", "stop", "yield"]
    assert json.loads(facts["important"]) == ["stop"]
    assert json.loads(facts["shift"]) == [0.75]
    assert session.get_modelmeta().producer_name == "camri"
    data = (path / "model.onnx").read_bytes()
    assert b".py" not in data
    assert str(tmp_path).encode() not in data
    proto = onnx.load_from_string(data)
    assert [(one.domain, one.version) for one in proto.opset_import if one.domain == ""] == [("", 18)]
    onnx.checker.check_model(proto, full_check=True)
    (only,) = [one.key for one in proto.metadata_props if one.key == "classes"]
    assert only == "classes"


def test_the_shift_is_inside(trained, model, tmp_path):
    path = write_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows = example(trained, 4)
    unshifted = model.logits(rows) - np.float32([0, 0.75, 0])
    np.testing.assert_allclose(session.run(["logits"], {"inputs": rows})[0] - unshifted, [[0, 0.75, 0]] * 4, atol=1e-4)


def test_a_logit_is_as_large_as_the_scale_allows_even_where_all_are_small():
    small = np.float32([[0.1, -0.2, 0.0]])
    assert logit_size(Model.of(CASES["paper-cosine"]), small) == 16
    assert logit_size(Model.of(CASES["features-linear"]), small) == 1
    assert logit_size(Model.of(CASES["features-linear"]), small * 100) == pytest.approx(20)


def test_a_file_that_disagrees_is_not_written(model, tmp_path, monkeypatch):
    class Wrong:
        def __init__(self, *arguments, **options):
            pass

        def run(self, names, feed):
            return [np.zeros((len(feed["inputs"]), 3), np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(InputError, match=r"logits differ from PyTorch's by .* of their size; it is not written"):
        write_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused(model, tmp_path):
    for write in (write_onnx, write_program):
        with pytest.raises(InputError, match=r"cannot be written .*; choose another file"):
            write(model, tmp_path / "no" / "such" / "file.pt2")
