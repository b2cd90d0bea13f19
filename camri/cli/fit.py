"""`camri fit`: a person's own data in, a better model and its proof out."""

import time
from pathlib import Path
from typing import Annotated

import typer

from camri.cli.options import GroupColumn, LabelColumn, PathColumn, Roi, Size, SplitColumn, Verify
from camri.errors import InputError


def fit(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder of images, a table, an .npz, or a data set's name.")
    ] = "digits",
    important: Annotated[
        list[str] | None,
        typer.Option(help="A class that must not be missed; several times for several, stop:0.5 at half strength."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write: new, or of this same fit to go on; runs/DATA-CLASS unless told."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time to take, e.g. 90s, 10m, 2h; 10m unless told.")] = None,
    num_trials: Annotated[
        int | None,
        typer.Option("--trials", help="Models to train instead, 16 or more; on a CPU the same result every time."),
    ] = None,
    keep_accuracy: Annotated[
        float, typer.Option(help="Accuracy that may be given up on validation data; 0.01 is a point.")
    ] = 0.0,
    model: Annotated[
        str | None, typer.Option(help="small, paper, resnet18, features or timm:NAME; by data and device unless told.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Safetensors file the model's trunk starts from.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; by its size and the budget unless told.")
    ] = None,
    size: Size = None,
    roi: Roi = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    verify: Verify = True,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn at random.")] = 0,
) -> None:
    """Find the best model for the classes that must not be missed, and show how sure that is.

    Compares trainings, then methods and settings, all on validation data; trains the finalists anew with other seeds;
    and judges once on test data, beside cross-entropy and cross-entropy with a shift. Without DATA it takes digits;
    without --important the class that cross-entropy recognises worst.

    Leaves in the folder: model/ (weights, ONNX, card), report.html, outcomes.sqlite. Stopped or killed, the same
    command goes on where it was; Ctrl-C in the finals hands back the best so far.

    [bold]Examples[/bold]

      camri fit
      camri fit signs/ --important stop --budget 10m
      camri fit signs/ --important stop --important yield:0.5 --out runs/signs
      camri fit features.parquet --important fraud --trials 200
      camri fit scans.csv --important melanoma --group-column patient
    """
    began = time.monotonic() - time.process_time()  # the budget pays for imports too, those before this line as well
    if budget is not None and num_trials is not None:
        raise InputError(f"give --budget {budget} or --trials {num_trials}, not both")

    from camri.cli.fit_view import show
    from camri.study.study_file import parse_duration

    options = {
        "size": size,
        "roi": roi or None,
        "skip_bad": skip_bad or None,
        "verify": None if verify else False,
        "path_column": path_column,
        "label_column": label_column,
        "group_column": group_column,
        "split_column": split_column,
    }
    show(
        data,
        important or None,
        out,
        budget_s=None if budget is None else parse_duration(budget, "--budget"),
        num_trials=num_trials,
        keep_accuracy=keep_accuracy,
        model=model,
        weights=weights,
        device=device,
        epochs=epochs,
        seed=seed,
        began=began,
        data_options={name: value for name, value in options.items() if value is not None},
    )
