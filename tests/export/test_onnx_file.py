"""ONNX and torch.export say what PyTorch says, for every model and head, at any batch size."""

import dataclasses
import json
import logging
import warnings

import numpy as np
import onnxruntime
import pytest
import torch

import camri
from camri.decision import Threshold
from camri.errors import InputError
from camri.export import Model, save, write_onnx, write_program
from camri.export.onnx_file import _quiet, example, logit_size
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
    logits, probabilities, predicted = (np.asarray(one) for one in found)
    expected = model.logits(rows)
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() <= 1e-5 * logit_size(model, expected)
    assert np.abs(probabilities - model.predict_proba(rows)).max() <= 1e-5
    assert predicted.tolist() == [model.classes.index(name) for name in model.predict(rows)]
    return True


@pytest.mark.parametrize("name", CASES)
def test_onnx_agrees(name, tmp_path):
    trained = CASES[name]
    model = Model(trained)
    model.module.train()  # as somebody may have left it
    path = write_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == "inputs"
    assert given.type == ("tensor(uint8)" if trained.is_image else "tensor(float)")
    assert given.shape[1:] == list(trained.input_shape)
    assert isinstance(given.shape[0], str), "the batch is fixed"
    assert [one.name for one in session.get_outputs()] == ["logits", "probabilities", "prediction"]
    for num_rows in (1, 2, 9):
        rows = example(trained, num_rows, seed=num_rows)
        assert agree(session.run(None, {"inputs": rows}), model, rows)
    spread = np.ptp(model.logits(example(trained, 9, seed=9)), axis=0).max()
    assert spread > 1e-3, "the inputs do not matter to this model: agreement would mean nothing"


@pytest.mark.parametrize("name", CASES)
def test_torch_export_agrees(name, tmp_path):
    model = Model(CASES[name])
    model.module.train()  # as somebody may have left it
    path = write_program(model, tmp_path / "model.pt2")
    program = torch.export.load(path).module()
    for num_rows in (2, 9):
        rows = example(CASES[name], num_rows, seed=num_rows)
        assert agree([one.detach() for one in program(torch.from_numpy(rows))], model, rows)
    assert b".py" not in path.read_bytes(), "it tells where the code lay on this machine"


def test_the_saved_onnx_file_names_its_classes_and_no_paths_of_this_machine(trained, tmp_path):
    path = save(trained, tmp_path / "model", card="# card")
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == ["limit", "stop", "yield"]
    assert json.loads(facts["important"]) == ["stop"]
    assert json.loads(facts["rule"]) == {"rule": "shift", "values": {"stop": 0.75}}
    assert sorted(facts) == ["camri", "classes", "important", "rule", "setting"]
    assert (facts["setting"], facts["camri"]) == (str(trained.setting), camri.__version__)
    assert session.get_modelmeta().producer_name == "camri"
    data = (path / "model.onnx").read_bytes()
    assert b".py" not in data
    assert str(tmp_path).encode() not in data
    proto = onnx.load_from_string(data)
    assert [(one.domain, one.version) for one in proto.opset_import if one.domain == ""] == [("", 18)]
    onnx.checker.check_model(proto, full_check=True)
    assert len(proto.metadata_props) == 5
    assert proto.producer_version == camri.__version__
    assert proto.doc_string.startswith("Raw inputs to logits, probabilities and class")
    assert not [one for one in (*proto.graph.node, *proto.graph.input, *proto.graph.output) if one.metadata_props]
    assert not [node for node in proto.graph.node if node.doc_string]
    assert not proto.graph.metadata_props
    assert not [one for one in proto.graph.value_info if one.metadata_props]


def test_a_logit_is_as_large_as_the_scale_allows_even_where_all_are_small():
    small = np.float32([[0.1, -0.2, 0.0]])
    assert logit_size(Model(CASES["paper-cosine"]), small) == 16
    assert logit_size(Model(CASES["features-linear"]), small) == 1
    assert logit_size(Model(CASES["features-linear"]), small * 100) == pytest.approx(20)


class Other:
    """A runtime whose logits are a part of the logits' size away from PyTorch's."""

    model, apart, beside = None, 0.0, 0

    def __init__(self, data, options, providers):
        assert (data, options.intra_op_num_threads, providers) == (b"the file", 1, ["CPUExecutionProvider"])

    def run(self, names, feed):
        assert names == ["logits", "probabilities", "prediction"]
        expected = self.model.logits(feed["inputs"])
        found = expected.copy()
        found[-1, 0] += self.apart * logit_size(self.model, expected)
        probabilities = self.model.predict_proba(feed["inputs"])
        return [found, probabilities, (self.model.decide(probabilities) + self.beside) % 3]


@pytest.mark.parametrize("apart", [0.5e-4, -0.5e-4, 2e-4, -2e-4, np.nan])
def test_a_file_may_differ_by_rounding_and_no_more(model, tmp_path, monkeypatch, apart):
    monkeypatch.setattr(onnxruntime, "InferenceSession", type("Near", (Other,), {"model": model, "apart": apart}))
    monkeypatch.setattr("camri.export.onnx_file._export", lambda model: b"the file")
    (tmp_path / "m.onnx").write_bytes(b"the old file")
    if abs(apart) < 1e-4:
        assert write_onnx(model, str(tmp_path / "m.onnx")) == tmp_path / "m.onnx"
        assert (tmp_path / "m.onnx").read_bytes() == b"the file"
    else:
        with pytest.raises(
            InputError, match=r"differ from PyTorch's by (0\.0002|nan) of their size; it is not written"
        ):
            write_onnx(model, tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").read_bytes() == b"the old file"
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_whose_predictions_are_others_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "InferenceSession", type("Beside", (Other,), {"model": model, "beside": 1}))
    monkeypatch.setattr("camri.export.onnx_file._export", lambda model: b"the file")
    with pytest.raises(InputError, match="predictions are not those of its decision rule"):
        write_onnx(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("shares", [{1: 0.5}, {0: 0.4, 2: 0.7}, {1: 0.0}, {0: 1.0, 1: 0.3}], ids=str)
def test_a_threshold_is_inside(shares, tmp_path):
    """Thresholds at quantiles of the probabilities; at 0 and 1 all rows pass, and none."""
    plain = Model(dataclasses.replace(CASES["features-linear"], rule=None))
    rows = example(plain.trained, 300, seed=5)
    own = {index: float(np.quantile(plain.predict_proba(rows)[:, index], q)) for index, q in shares.items()}
    rule = Threshold({index: shares[index] if shares[index] in (0.0, 1.0) else own[index] for index in own})
    model = Model(dataclasses.replace(plain.trained, important=tuple(own), rule=rule))
    np.testing.assert_array_equal(model.logits(rows), plain.logits(rows))
    expected = rule.predict(model.predict_proba(rows), kind="probabilities")
    assert (expected != model.logits(rows).argmax(axis=1)).any(), "the rule changes nothing here"
    assert [model.classes[index] for index in expected] == model.predict(rows)
    path = write_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert (session.run(["prediction"], {"inputs": rows})[0] == expected).mean() > 0.99  # rounding at the threshold
    assert json.loads(session.get_modelmeta().custom_metadata_map["rule"]) == rule.to_json(model.classes)
    program = torch.export.load(write_program(model, tmp_path / "m.pt2")).module()
    assert (program(torch.from_numpy(rows))[2].numpy() == expected).mean() > 0.99


def test_what_is_made_up_is_of_the_model_s_kind_and_not_all_alike():
    images = example(CASES["paper-cosine"], 300)
    assert (images.dtype, images.shape) == (np.uint8, (300, 8, 8, 3))
    brightest = images.reshape(300, -1).max(axis=1)
    assert (images.min(), brightest.max()) == (0, 255)
    assert brightest.min() < 10 < np.ptp(brightest) - 200  # dark and bright ones
    np.testing.assert_array_equal(example(CASES["paper-cosine"], 2), example(CASES["paper-cosine"], 2, seed=0))
    assert (example(CASES["paper-cosine"], 2, seed=1) != images[:2]).any()
    scaled = CASES["mlp-cosine"]
    features = example(scaled, 4000)
    assert (features.dtype, features.shape) == (np.float32, (4000, 5))
    mean, sd = scaled.standardise
    np.testing.assert_allclose((features.mean(axis=0) - mean) / sd, 0, atol=0.06)
    np.testing.assert_allclose(features.std(axis=0) / sd, 1, atol=0.05)
    bare = example(CASES["features-linear"], 4000)
    np.testing.assert_allclose([bare.mean(), bare.std()], [0, 1], atol=0.03)


def test_the_exporter_is_quiet_and_what_it_changed_is_put_back(capsys, recwarn):
    logger = logging.getLogger("torch.onnx")
    before = logger.level

    @_quiet()
    def complain():
        assert logger.getEffectiveLevel() == logging.ERROR
        print("progress")
        warnings.warn("advice", stacklevel=1)
        raise RuntimeError("its errors are raised")

    with pytest.raises(RuntimeError, match="its errors are raised"):
        complain()
    assert logger.level == before
    assert (capsys.readouterr().out, recwarn.list) == ("", [])


@pytest.mark.parametrize("write", [write_onnx, write_program])
def test_the_model_stays_where_it_was_even_where_writing_fails(trained, tmp_path, monkeypatch, write):
    model = Model(trained)
    model.module.to("meta")  # as a GPU's would be: the exporters want the processor

    def fail(wrapped, *arguments, **options):
        assert wrapped.network.get_buffer("shift").device.type == "cpu"
        raise RuntimeError("no such operator")

    monkeypatch.setattr("torch.onnx.export", fail)
    monkeypatch.setattr("torch.export.export", fail)
    monkeypatch.setattr(type(model.module), "cpu", lambda self: self.to_empty(device="cpu"))
    with pytest.raises(RuntimeError, match="no such operator"):
        write(model, tmp_path / "m")
    assert model.module.get_buffer("shift").device.type == "meta"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [write_onnx, write_program])
def test_a_folder_in_the_files_place_is_refused_and_no_part_stays(write, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match=r"taken cannot be written \(.*\); choose another file$"):
        write(Model(CASES["features-linear"]), tmp_path / "taken")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_a_classifier_s_rule_of_least_cost_is_refused_with_what_to_do():
    pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    from camri.decision import LowestCost
    from camri.export import to_onnx

    drawn = np.random.default_rng(0)
    y = drawn.integers(0, 3, 600)
    X = drawn.normal(size=(600, 3)) + np.eye(3)[y]
    model = camri.ImportantClassifier(LogisticRegression(), 1, cost_matrix=[[0, 1, 2], [20, 0, 20], [5, 1, 0]]).fit(
        X, y
    )
    assert isinstance(model.decision_.rule, LowestCost)
    with pytest.raises(InputError, match="cannot be exported; give a shift or a threshold by rule='threshold'"):
        to_onnx(model, X)
