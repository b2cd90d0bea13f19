"""`camri fit`: your data in, a better model and its evidence out."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from camri.cli.options import (
    GroupColumn,
    LabelColumn,
    PathColumn,
    Resident,
    Roi,
    Size,
    SplitColumn,
    Verify,
    class_numbers,
)
from camri.errors import InputError


def _age_s() -> float:
    """Seconds since this process was started for the command; 0 if that is unknown or long ago."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):  # not Linux
        age_s = time.process_time()
    return age_s if age_s < 30 else 0.0


def fit(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder of images, tar shards, a table, an .npz, or a name.")
    ] = "digits",
    important: Annotated[
        list[str] | None, typer.Option(help="A class that must not be missed; repeat it for several.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write: a new one, or that of this same fit to resume; default runs/DATA-CLASS."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time to take: 90s, 10m, 2h; default 10m.")] = None,
    num_trials: Annotated[
        int | None,
        typer.Option("--trials", help="Models to train instead of a budget; reproducible on a CPU."),
    ] = None,
    max_accuracy_drop: Annotated[
        float, typer.Option(help="Accuracy that may be lost on validation data; 0.01 is one percentage point.")
    ] = 0.0,
    at_least: Annotated[
        float | None, typer.Option(help="Goal: this recall with the fewest false alarms; for example 0.95.")
    ] = None,
    cost_matrix: Annotated[
        Path | None,
        typer.Option(help="Goal: the least mean cost; a CSV file, row = true class, column = predicted."),
    ] = None,
    strengths: Annotated[
        list[str] | None,
        typer.Option("--strength", metavar="CLASS=NUMBER", help="How much an important class counts; default 1."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="small, paper, resnet18, features, timm:NAME or hf:NAME; default by data and device."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Safetensors file with the trunk's initial weights.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Random weights instead of the published ones of timm:, hf:.")
    ] = False,
    frozen: Annotated[
        bool | None,
        typer.Option("--frozen/--no-frozen", help="Train heads on a pretrained network's features; default on a CPU."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; default by its size and the budget.")
    ] = None,
    size: Size = None,
    roi: Roi = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    verify: Verify = True,
    resident: Resident = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Find the best model for the classes that must not be missed, with the evidence.

    Trains cross-entropy until longer training no longer helps, compares other methods with it on validation data,
    trains the best again with new seeds and judges once on test data, beside cross-entropy with a tuned decision. A
    short budget makes a smaller plan, and the answer says what was left out. Without DATA it takes digits; without
    --important the class with the lowest validation recall.

    Writes model/ (weights, ONNX, card), answer.json, report.html and outcomes.sqlite. If it is stopped or killed, the
    same command resumes. Ctrl-C in the finals returns the best model so far.

    [bold]Examples[/bold]

      camri fit
      camri fit signs/ --important stop --budget 10m
      camri fit signs/ --important stop --important yield --strength yield=0.5
      camri fit features.parquet --important fraud --at-least 0.95
      camri fit scans.csv --important melanoma --group-column patient
    """
    began = time.monotonic() - _age_s()  # the budget pays for imports too
    if budget is not None and num_trials is not None:
        raise InputError(f"give --budget {budget} or --trials {num_trials}, not both")

    from camri.cli.fit_view import show

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
        began,
        data,
        important,
        out,
        budget=budget,
        num_trials=num_trials,
        max_accuracy_drop=max_accuracy_drop,
        at_least=at_least,
        cost_matrix=cost_matrix,
        strengths=class_numbers(strengths, "strengths", "yield=0.5"),
        model=model,
        weights=weights,
        from_scratch=from_scratch,
        frozen="auto" if frozen is None else frozen,
        device=device,
        epochs=epochs,
        seed=seed,
        resident=resident,
        data_options={name: value for name, value in options.items() if value is not None},
    )
