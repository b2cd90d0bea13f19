"""model.pt2: the whole network as a torch.export program, for ExecuTorch, AOTInductor and C++."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from camri.errors import InputError

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
    part = path.with_name(f"{path.stem}.part.pt2")  # torch wants the ending
    try:
        torch.export.save(program, part)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another file") from None
    return path
