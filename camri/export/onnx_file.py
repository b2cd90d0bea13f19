"""Models for other runtimes, preprocessing and decision rule inside: model.onnx, and a torch.export program (.pt2)."""

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import camri
from camri.errors import InputError
from camri.export.model import Model, Trained
from camri.files import replacing

OPSET = 18  # what torch's exporter writes without converting; onnxruntime reads it since 1.14
OUTPUTS = ["logits", "probabilities", "prediction"]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # of the logits' size: a hundred times what differs between runtimes


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
    """Whether the onnx extra is there."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


def example(trained: Trained, num_rows: int, seed: int = 0) -> np.ndarray:
    """Made-up raw inputs of the model's kind and shape: uint8 (N, H, W, C) or float32 (N, D)."""
    drawn = np.random.default_rng(seed)
    if trained.is_image:
        brightest = drawn.integers(1, 257, (num_rows, *[1] * len(trained.input_shape)))  # all alike: nothing to compare
        return drawn.integers(0, brightest, (num_rows, *trained.input_shape), dtype=np.uint8)
    mean, sd = trained.standardise or (0.0, 1.0)
    return (drawn.normal(size=(num_rows, *trained.input_shape)) * sd + mean).astype(np.float32)


def write_onnx(model: Model, file: str | Path) -> Path:
    """Write an ONNX file: "inputs" of any batch size -> "logits", "probabilities" and "prediction", a class index.

    Its metadata has the class names, the important ones and the decision rule. It is compared with PyTorch before it
    is written.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"an ONNX file needs {name}, which is not installed: pip install 'camri[onnx]'")
    path = Path(file)
    device = model.module.get_buffer("shift").device
    try:
        data = _export(model)
    finally:
        model.module.to(device)
    _check(data, model)
    with replacing(path, "; choose another file") as part:
        part.write_bytes(data)
    return path


def _export(model: Model) -> bytes:
    trained = model.trained
    wrapped = WithProbabilities(model.module.cpu()).eval()
    rows = torch.from_numpy(example(trained, 2))
    with _quiet():
        program: Any = torch.onnx.export(
            wrapped,
            (rows,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=OUTPUTS,
            dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
    proto = program.model_proto
    for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
        del node.metadata_props[:]  # where the code lay on this machine
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
    """Refuse a file whose logits or predictions differ from the model's."""
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
    """What rounding errors are measured against: the largest logit or the head's scale, which multiplies them."""
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


def write_program(model: Model, file: str | Path) -> Path:
    """Write a .pt2 file: raw inputs of any batch size -> (logits, probabilities, prediction)."""
    path = Path(file)
    device = model.module.get_buffer("shift").device
    rows = torch.from_numpy(example(model.trained, 2))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = {"inputs": {0: torch.export.Dim("batch")}}
            program = torch.export.export(WithProbabilities(model.module.cpu()).eval(), (rows,), dynamic_shapes=shapes)
    finally:
        model.module.to(device)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # where the code lay on this machine
    data = io.BytesIO()
    torch.export.save(program, data)
    with replacing(path, "; choose another file") as part:
        part.write_bytes(data.getvalue())
    return path
