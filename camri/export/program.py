"""model.pt2: the whole network as a torch.export program, for ExecuTorch, AOTInductor and C++."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from camri.files import replacing

if TYPE_CHECKING:
    from camri.export.model import Model


def write_program(model: "Model", file: str | Path) -> Path:
    """The .pt2 file: raw inputs of any batch size -> (logits, probabilities)."""
    from camri.export.onnx_file import WithProbabilities, example

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
