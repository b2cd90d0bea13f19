"""Export models with their preprocessing and decision rule: to ONNX, and as a torch.export program (.pt2)."""

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

import camri
from camri.decision.rules import DecisionRule, LowestCost, Shift
from camri.errors import InputError, require
from camri.export.model import NOT_EXPORTED, Model, Trained
from camri.files import replacing

OPSET = 18  # torch's exporter writes it without conversion; onnxruntime reads it since 1.14
OUTPUTS = ["logits", "probabilities", "prediction"]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # relative to the logits' size: a hundred times the differences between runtimes


class WithProbabilities(nn.Module):
    """Raw inputs -> logits and probabilities, both (B, C) float32, and the class that the rule predicts, int64 (B,)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.network(inputs)
        probabilities = logits.softmax(dim=1)
        return logits, probabilities, self.network.decide(logits, probabilities)


def is_installed() -> bool:
    """Whether the onnx extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


def example(trained: Trained, num_rows: int, seed: int = 0) -> np.ndarray:
    """Random raw inputs of the model's kind and shape: uint8 (N, H, W, C) or float32 (N, D)."""
    drawn = np.random.default_rng(seed)
    if trained.is_image:
        brightest = drawn.integers(1, 257, (num_rows, *[1] * len(trained.input_shape)))  # so that images differ
        return drawn.integers(0, brightest, (num_rows, *trained.input_shape), dtype=np.uint8)
    mean, sd = trained.standardise or (0.0, 1.0)
    return (drawn.normal(size=(num_rows, *trained.input_shape)) * sd + mean).astype(np.float32)


def write_onnx(model: Model, file: str | Path) -> Path:
    """Write an ONNX file: "inputs" of any batch size -> "logits", "probabilities" and "prediction", a class index.

    Its metadata has the class names, the important classes and the decision rule. Its outputs are compared with
    PyTorch's before it is written.
    """
    return _write(make_onnx(model), Path(file))


def make_onnx(model: Model) -> bytes:
    """The content of an ONNX file, whose outputs have been compared with PyTorch's."""
    require("an ONNX file", *NEEDED, install="'camri-loss[onnx]'")
    data = _export(model)
    _check(data, model)
    return data


def _write(data: bytes, path: Path) -> Path:
    with replacing(path, "; choose another file") as part:
        part.write_bytes(data)
    return path


@contextlib.contextmanager
def _on_cpu(model: Model) -> Iterator[nn.Module]:
    """The model with probabilities, on the CPU; moved back at the end."""
    device = model.module.get_buffer("shift").device
    try:
        yield WithProbabilities(model.module.cpu()).eval()
    finally:
        model.module.to(device)


def _export(model: Model) -> bytes:
    import onnx

    trained = model.trained
    rows = torch.from_numpy(example(trained, 2))
    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": OUTPUTS, "opset_version": OPSET}
    with _quiet(), _on_cpu(model) as wrapped:
        try:  # by tracing: it takes 0.2 s of a core, torch.export 5 s
            file, axes = io.BytesIO(), {name: {0: "batch"} for name in ("inputs", *OUTPUTS)}
            torch.onnx.export(wrapped, (rows,), file, dynamo=False, dynamic_axes=axes, **names)  # type: ignore[arg-type]
            proto = onnx.load_from_string(file.getvalue())
        except Exception:  # of many types: an operation that tracing does not support, or a file of over 2 GB
            shapes = {"inputs": {0: torch.export.Dim("batch")}}
            program: Any = torch.onnx.export(wrapped, (rows,), dynamo=True, dynamic_shapes=shapes, **names)
            proto = program.model_proto
    for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
        del node.metadata_props[:]  # paths of the code on this machine
        node.doc_string = ""
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        del value.metadata_props[:]
    del proto.graph.metadata_props[:]
    del proto.metadata_props[:]
    facts = {
        "classes": json.dumps(trained.classes, ensure_ascii=False),
        "important": json.dumps(model.important, ensure_ascii=False),
        "rule": json.dumps(None if trained.rule is None else trained.rule.to_json(trained.classes), ensure_ascii=False),
        "setting": str(trained.setting),
        "camri": camri.__version__,
    }
    for name, value in facts.items():
        proto.metadata_props.add(key=name, value=value)
    proto.producer_name, proto.producer_version = "camri", camri.__version__
    proto.doc_string = "Raw inputs to logits, probabilities and class; preprocessing and the decision rule are inside."
    return proto.SerializeToString(deterministic=True)


def _check(data: bytes, model: Model) -> None:
    """Raise InputError if the file's logits or predictions differ from the model's."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    rows = example(model.trained, 5, seed=1)
    expected = model.logits(rows)
    found, probabilities, predicted = session.run(OUTPUTS, {"inputs": rows})
    apart = float(np.abs(found - expected).max()) / logit_size(model, expected)
    if not apart <= TOLERANCE:
        raise InputError(
            f"the ONNX file's logits differ from PyTorch's by {apart:.1g} of their size; it is not written"
        )
    if not np.array_equal(predicted, model.decide(probabilities)):
        raise InputError("the ONNX file's predictions are not those of its decision rule; it is not written")


def logit_size(model: Model, logits: np.ndarray) -> float:
    """The size that rounding errors are relative to: the largest logit, or the head's scale, which multiplies them."""
    scale = dict(model.trained.setting.knobs).get("s", 1.0)
    assert isinstance(scale, float)
    return max(scale, float(np.abs(logits).max()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's progress and advice; its errors are raised."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def to_onnx(classifier: Any, X: Any) -> Any:
    """Convert a fitted `camri.ImportantClassifier` to an ONNX model, with its decision rule in the graph.

    skl2onnx converts the estimator; it takes the input types from some rows X. Outputs: "label", by the rule, and
    "probabilities" (N, C). ONNX computes in float32: a row within rounding of the threshold may get another label.
    """
    require("a classifier's ONNX file", "skl2onnx", "onnx", install="'camri-loss[onnx]'")
    from skl2onnx import to_onnx as convert

    estimator = getattr(classifier, "estimator_", None)
    if getattr(classifier, "decision_", None) is None or not hasattr(estimator, "predict_proba"):
        raise InputError("give a fitted ImportantClassifier with an important class and predict_proba", "classifier")
    rule = classifier.decision_.rule
    if isinstance(rule, LowestCost):
        raise InputError(f"{NOT_EXPORTED} by rule='threshold', or predict with the estimator", "classifier")
    inner = getattr(estimator, "estimator", estimator) if type(estimator).__name__ == "FrozenEstimator" else estimator
    try:
        model = convert(inner, X[:1], options={id(inner): {"zipmap": False}}, target_opset=OPSET)
    except Exception as error:  # of many types, some with pages of text
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"skl2onnx cannot convert {type(inner).__name__}: {reason[:200]}", "classifier") from error
    _append_rule(model.graph, rule, classifier.classes_)
    for name, value in {
        "classes": json.dumps([str(label) for label in classifier.classes_.tolist()], ensure_ascii=False),
        "rule": json.dumps(rule.to_json(), ensure_ascii=False),
        "camri": camri.__version__,
    }.items():
        model.metadata_props.add(key=name, value=value)
    return model


def _append_rule(graph: Any, rule: DecisionRule, classes: np.ndarray) -> None:
    """Replace the graph's label by the one that the rule predicts from its probabilities."""
    from onnx import TensorProto, helper, numpy_helper

    label, scores = (output.name for output in graph.output[:2])
    is_text = classes.dtype.kind not in "iu"
    own, values = list(rule.values), np.array(list(rule.values.values()))

    def constant(name: str, value: np.ndarray) -> str:
        graph.initializer.append(numpy_helper.from_array(value, f"rule_{name}"))
        return f"rule_{name}"

    def node(kind: str, inputs: Sequence[str], name: str, **options: Any) -> str:
        graph.node.append(helper.make_node(kind, list(inputs), [name], **options))
        return name

    names = np.array([str(name) for name in classes.tolist()], dtype=object) if is_text else classes.astype(np.int64)
    if isinstance(rule, Shift):
        added = np.zeros(len(classes), dtype=np.float32)
        added[own] = values
        moved = node("Add", [node("Log", [scores], "rule_log"), constant("shift", added)], "rule_shifted")
        place = node("ArgMax", [moved], "rule_place", axis=1, keepdims=0)
    else:
        least = values.astype(np.float32)
        mine = node("Gather", [scores, constant("own", np.array(own, dtype=np.int64))], "rule_mine", axis=1)
        passes = node("Greater", [mine, constant("least", least)], "rule_passes")
        left = node("Sub", [constant("one", np.ones(1, dtype=np.float32)), mine], "rule_left")
        odds = node("Sub", [node("Log", [mine], "rule_log"), node("Log", [left], "rule_log_left")], "rule_odds")
        bar = special.logit(values.clip(1e-30, 1 - 1e-7)).astype(np.float32)
        excess = node("Sub", [odds, constant("bar", bar)], "rule_excess")
        lowest = constant("lowest", np.array([-3e38], dtype=np.float32))
        best = node("ArgMax", [node("Where", [passes, excess, lowest], "rule_kept")], "rule_best", axis=1, keepdims=0)
        winner = node("Gather", ["rule_own", best], "rule_winner", axis=0)
        is_own = np.isin(np.arange(len(classes)), own)
        others = node("Where", [constant("is_own", is_own), lowest, scores], "rule_others")
        rest = node("ArgMax", [others], "rule_rest", axis=1, keepdims=0)
        counted = node("Cast", [passes], "rule_counted", to=TensorProto.INT64)
        most = node("ReduceMax", [counted, constant("axis", np.array([1], dtype=np.int64))], "rule_most", keepdims=0)
        found = node("Cast", [most], "rule_found", to=TensorProto.BOOL)
        place = node("Where", [found, winner, rest], "rule_place")
    for before in graph.node:  # rename the estimator's own label, which is no longer an output
        for at, name in enumerate(before.output):
            if name == label:
                before.output[at] = f"{label}_before"
    node("Gather", [constant("classes", names), place], "label", axis=0)
    kind = TensorProto.STRING if is_text else TensorProto.INT64
    kept = graph.output[1]
    probabilities = helper.make_tensor_value_info(
        "probabilities", kept.type.tensor_type.elem_type, [None, len(classes)]
    )
    if scores != "probabilities":
        node("Identity", [scores], "probabilities")
    del graph.output[:]
    graph.output.extend([helper.make_tensor_value_info("label", kind, [None]), probabilities])


def write_program(model: Model, file: str | Path) -> Path:
    """Write a .pt2 file: raw inputs of any batch size -> (logits, probabilities, prediction)."""
    rows = torch.from_numpy(example(model.trained, 2))
    with warnings.catch_warnings(), _on_cpu(model) as wrapped:
        warnings.simplefilter("ignore")
        shapes = {"inputs": {0: torch.export.Dim("batch")}}
        program = torch.export.export(wrapped, (rows,), dynamic_shapes=shapes)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of the code on this machine
    data = io.BytesIO()
    torch.export.save(program, data)
    return _write(data.getvalue(), Path(file))
