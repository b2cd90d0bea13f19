"""`camri export`: a model as an ONNX file or a torch.export program."""

from pathlib import Path
from typing import Annotated

import typer

from camri.errors import InputError


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder, as camri fit writes it.")],
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX file here.")] = None,
    torch_export: Annotated[Path | None, typer.Option(help="Write a torch.export program (.pt2) here.")] = None,
) -> None:
    """Write a model for other runtimes, with preprocessing, scale and shift inside and any batch size.

    Both take raw inputs (uint8 images, height x width x channels, or features) and give logits and probabilities.

    [bold]Examples[/bold]

      camri export runs/stop/model --onnx stop.onnx
      camri export runs/stop/model --torch-export stop.pt2
    """
    if onnx is None and torch_export is None:
        raise InputError("nothing to write; give --onnx FILE, --torch-export FILE or both")

    from camri.export import load, write_onnx, write_program

    loaded = load(model)
    shape = ", ".join(map(str, loaded.trained.input_shape))
    kind = "uint8" if loaded.trained.is_image else "float32"
    if onnx is not None:
        typer.echo(f"{write_onnx(loaded, onnx)}: inputs {kind} (N, {shape}) -> logits, probabilities")
    if torch_export is not None:
        typer.echo(f"{write_program(loaded, torch_export)}: inputs {kind} (N, {shape}) -> logits, probabilities")
