"""`camri predict` and `camri export`: apply a model, write it for other runtimes."""

import contextlib
import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from camri.cli.options import class_numbers, progress_bar, say_written
from camri.errors import InputError, blame
from camri.files import STDOUT, replacing
from camri.text import clip, csv_cell, csv_path, plural, visible

if TYPE_CHECKING:
    from camri.export.inputs import Group, Prediction
    from camri.export.model import Model

ROWS_SHOWN = 100
PROBLEMS_SHOWN = 20
IMPORTANT_SHOWN = 3


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder, as camri fit writes it.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="Images, folders, patterns like 'photos/*.jpg', or tables: npy, npz, CSV, parquet."
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--csv", help="Write every class's probability to this file; '-' is standard output.")
    ] = None,
    cropped: Annotated[bool, typer.Option("--cropped", help="The images are crops already: do not warn.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per batch.")] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.")] = "cpu",
) -> None:
    """Predict the class of every image or table row, with its probability and those of the important classes.

    Images are decoded and resized as for training, and the model's decision rule is applied. A file that cannot be read
    does not stop the rest: it is named at the end, and the exit code is 1.

    [bold]Examples[/bold]

      camri predict runs/stop/model photo.jpg
      camri predict runs/stop/model photos/ --csv predictions.csv
      camri predict runs/stop/model rows.parquet --csv - | head
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from camri.engine.training import pick_device
    from camri.export import load
    from camri.export.inputs import BOX, count_whole, find_inputs
    from camri.export.inputs import predict as predict_all

    loaded = load(model)
    loaded.module.to(pick_device(device))
    groups, left_out = find_inputs(files, loaded.trained)
    _refuse_input(out, groups)
    total = sum(map(len, groups))
    if loaded.trained.is_cropped and not cropped and (num_whole := count_whole(groups)):
        typer.echo(
            f"warning: the model was trained on images cropped to the object, and {num_whole:,} of {total:,} are taken "
            f"whole; crop them, or give a table with {', '.join(BOX)}; if they are crops already, say --cropped",
            err=True,
        )
    problems: list[Prediction] = []
    counts: Counter[str] = Counter()

    def counted(predictions: "Iterable[Prediction]") -> "Iterator[Prediction]":
        for prediction in predictions:
            if prediction.probabilities is None:
                problems.append(prediction)
            else:
                counts[loaded.classes[prediction.predicted]] += 1
            yield prediction

    columns = ("predicting", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, quiet=out == STDOUT and sys.stdout.isatty(), total=total) as update:
        predictions = counted(predict_all(loaded, groups, batch_size, lambda num_read: update(completed=num_read)))
        if out is None:
            shown = list(predictions)
        else:
            with _open_csv(out) as stream:
                _write_csv(predictions, loaded, stream)
    if out is None:
        _print_table(shown, loaded)
    _print_end(problems, counts, total, left_out, out)
    if problems:
        raise typer.Exit(1)


def _refuse_input(out: str | None, groups: "Iterable[Group]") -> None:
    """Refuse to overwrite an input."""
    if out is None or out == STDOUT or not os.path.exists(out):
        return
    from camri.export.inputs import Images

    files = {file for group in groups for file in (group.files if isinstance(group, Images) else [group.file])}
    if any(os.path.exists(file) and os.path.samefile(file, out) for file in files):
        raise InputError(f"{out} is one of the inputs and would be overwritten; choose another file with --csv")


@contextlib.contextmanager
def _open_csv(out: str) -> Iterator[IO[str]]:
    """Yield the stream to write to. The file appears when it is complete; Ctrl-C leaves OUT.part."""
    if out == STDOUT:
        yield sys.stdout
        return
    with (
        replacing(Path(out), "; choose another file with --csv") as part,
        open(part, "w", newline="", encoding="utf-8") as stream,
    ):
        try:
            yield stream
        except KeyboardInterrupt:
            os.rename(part, f"{out}.part")
            typer.echo(f"stopped; the predictions so far are in {out}.part", err=True)
            raise


def _write_csv(predictions: "Iterable[Prediction]", model: "Model", stream: IO[str]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    probabilities = [csv_cell(f"p:{name}") for name in model.classes]
    writer.writerow(["file", "row", "predicted", "probability", *probabilities, "problem"])
    for each in predictions:
        where: list[Any] = [csv_path(each.file), each.row]
        if each.probabilities is None:
            writer.writerow([*where, "", "", *[""] * len(model.classes), csv_cell(each.problem or "")])
            continue
        numbers = [f"{value:.6g}" for value in each.probabilities.tolist()]
        writer.writerow([*where, csv_cell(model.classes[each.predicted]), numbers[each.predicted], *numbers, ""])


def _print_table(predictions: "list[Prediction]", model: "Model") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    good = [(each, each.probabilities) for each in predictions if each.probabilities is not None]
    if not good:
        return
    console = Console()
    shown = good[:ROWS_SHOWN] if console.is_terminal else good
    important = model.trained.important[:IMPORTANT_SHOWN]
    table = Table(box=None, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("predicted", overflow="fold")
    table.add_column("probability", justify="right")
    for index in important:
        table.add_column(f"p({escape(clip(model.classes[index]))})", justify="right", overflow="fold")
    for each, probabilities in shown:
        name = escape(clip(model.classes[each.predicted]))
        marked = f"[bold]{name}[/bold]" if each.predicted in model.trained.important else name
        numbers = [f"{probabilities[index]:.3f}" for index in (each.predicted, *important)]
        table.add_row(escape(visible(each.name)), marked, *numbers)
    console.print(table)
    if len(good) > len(shown):
        console.print(f"… and {len(good) - len(shown):,} more; --csv FILE writes all")


def _print_end(
    problems: "list[Prediction]", counts: Counter[str], total: int, left_out: list[str], out: str | None
) -> None:
    if total > 1:
        several = ", ".join(f"{visible(clip(name))} ({count:,})" for name, count in counts.most_common(8))
        rest = ", …" if len(counts) > 8 else ""
        into = f" in {out}" if out not in (None, STDOUT) else ""
        typer.echo(
            f"{counts.total():,} of {total:,} predicted{into}{f': {several}{rest}' if several else ''}", err=True
        )
    if left_out:
        endings = sorted({os.path.splitext(file)[1].lower() or "no ending" for file in left_out})
        kinds = visible(", ".join(endings[:8]) + (", …" if len(endings) > 8 else ""))
        typer.echo(f"{plural(len(left_out), 'other file')} in the folders left out ({kinds})", err=True)
    for problem in problems[:PROBLEMS_SHOWN]:
        typer.echo(f"{visible(problem.name)}: {visible(problem.problem or '')}", err=True)
    if len(problems) > PROBLEMS_SHOWN:
        more = " (the CSV names all)" if out is not None else " (--csv FILE names all)"
        typer.echo(f"… and {len(problems) - PROBLEMS_SHOWN:,} more that could not be read{more}", err=True)


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder, as camri fit writes it.")],
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX file here.")] = None,
    torch_export: Annotated[Path | None, typer.Option(help="Write a torch.export program (.pt2) here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a model's folder here, for a rule of your own.")] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="CLASS=P", help="Predict CLASS where its probability is above P."),
    ] = None,
    shifts: Annotated[
        list[str] | None,
        typer.Option("--shift", metavar="CLASS=NUMBER", help="Add NUMBER to the logit of CLASS; the largest wins."),
    ] = None,
) -> None:
    """Write a model for other runtimes, with preprocessing and decision rule inside and any batch size.

    ONNX and torch.export map raw inputs (uint8 images, height x width x channels, or features) to logits,
    probabilities and the predicted class. --threshold and --shift replace the model's decision rule.

    [bold]Examples[/bold]

      camri export runs/stop/model --onnx stop.onnx
      camri export runs/stop/model --torch-export stop.pt2
      camri export runs/stop/model --threshold stop=0.213 --out careful
    """
    if onnx is None and torch_export is None and out is None:
        raise InputError("nothing to write; give --onnx FILE, --torch-export FILE or --out FOLDER")

    from camri.export import load, save, with_rule, write_onnx, write_program
    from camri.export.card import card_with_rule

    if out is not None and model.exists() and out.exists() and out.samefile(model):
        raise InputError(f"--out {out} is the model itself and would be overwritten; choose another folder")
    loaded = load(model)
    card = _read_card(model)
    if thresholds or shifts:
        rules = {"thresholds": thresholds, "shifts": shifts}
        given = {name: class_numbers(texts, name, "stop=0.2") for name, texts in rules.items()}
        loaded = with_rule(loaded, **given)
        card = card_with_rule(loaded, card)
    shape = ", ".join(map(str, loaded.trained.input_shape))
    kind = "uint8" if loaded.trained.is_image else "float32"
    if out is not None:
        with blame("out"):
            say_written(f"{save(loaded.trained, out, card=card)}: a model's folder", onnx, torch_export)
    for name, file, write in (("onnx", onnx, write_onnx), ("torch_export", torch_export, write_program)):
        if file is not None:
            with blame(name):
                written = write(loaded, file)
            say_written(
                f"{written}: inputs {kind} (N, {shape}) -> logits, probabilities, prediction", onnx, torch_export
            )


def _read_card(model: Path) -> str:
    """The card in a model's folder; "" if there is none."""
    file = model / "README.md"
    return file.read_text(encoding="utf-8") if file.is_file() else ""
