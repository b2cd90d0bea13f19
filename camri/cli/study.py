"""`camri study`: list, show, run, watch, merge and export studies."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camri.cli.options import Resident, class_numbers, examples, group, reading_progress, say_written
from camri.errors import InputError

if TYPE_CHECKING:
    from camri.study.spec import Study

app = group("study", "Run the paper's studies or your own, and see their status.")


Words = Annotated[
    list[str],
    typer.Argument(metavar="STUDY", help="A recipe (camri study list names them), a TOML file, or a study's JSON."),
]
Methods = Annotated[str | None, typer.Option(help="Methods to run, for example ce,camri.")]
NumSeeds = Annotated[int | None, typer.Option(min=1, help="Number of seeds of each setting: 0, 1, …")]
Seeds = Annotated[str | None, typer.Option(help="The seeds, for example 5-9 or 0,3; they can differ by machine.")]
Schedule = Annotated[str | None, typer.Option(help="fast (18 epochs, falling rate) or paper (300 epochs).")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs, instead of the schedule's or the file's.")]
Rule = Annotated[str | None, typer.Option(help="honest (choose on held-out data) or paper (on the test data).")]
GridWords = Annotated[
    list[str] | None,
    typer.Option("--grid", help="Values of a knob: m=4pi/64,8pi/64 s=8,16 or wce.w=4. Margins are in radians."),
]
# Named as the field of a study that errors blame.
Important = Annotated[
    list[str] | None,
    typer.Option("--column", help="An important class: name, index, worst, second or median; jointly: cat+dog. "
                 "Repeat it for more columns."),
]  # fmt: skip
Strengths = Annotated[list[str] | None, typer.Option("--strength", help="Strength in joint columns: dog=0.5.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]


@app.command("list", epilog=examples("camri study list"))
def list_() -> None:
    """List the studies, with their settings and trials."""
    from camri.cli.study_view import print_recipes

    print_recipes()


@app.command(
    epilog=examples(
        "camri study show paper.cifar10", "camri study show paper.cifar10 --column cat --schedule paper --no-cost"
    )
)
def show(
    context: typer.Context,
    words: Words,
    methods: Methods = None,
    num_seeds: NumSeeds = None,
    seeds: Seeds = None,
    schedule: Schedule = None,
    epochs: Epochs = None,
    rule: Rule = None,
    grid: GridWords = None,
    important: Important = None,
    strengths: Strengths = None,
    device: Annotated[str, typer.Option(help="Device to estimate for: auto, cpu, cuda.")] = "auto",
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Estimate the cost, if needed by measuring.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the study's JSON instead.")] = False,
) -> None:
    """Show a study's settings, its trials after merging duplicates, and its cost on this device."""
    import json

    from camri.cli.study_view import print_cost, print_study

    study = _find(**context.params)
    if as_json:
        typer.echo(json.dumps(study.to_json(), indent=2))
        return
    print_study(study)
    if cost:
        print_cost(study, device)


@app.command(
    epilog=examples(
        "camri study run digits --out runs/digits",
        "camri study run paper.cifar10.cat --out runs/cat --grid m=4pi/64 s=8",
        "camri study run mine.toml --out runs/mine --max-wall 25m",
        "camri study run small.fig5 --out runs/fig5 --epochs 2",
        "camri study run paper.cifar10 --out runs/all --on ray://head:10001",
        "Stopped or killed? The same command resumes it.",
    )
)
def run(
    context: typer.Context,
    words: Words,
    out: Annotated[Path, typer.Option(help="The run's folder: new, or one to resume.")],
    methods: Methods = None,
    num_seeds: NumSeeds = None,
    seeds: Seeds = None,
    schedule: Schedule = None,
    epochs: Epochs = None,
    rule: Rule = None,
    grid: GridWords = None,
    important: Important = None,
    strengths: Strengths = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    pack_size: Annotated[int | None, typer.Option(min=1, help="Models side by side on a GPU.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="CPU processes, by default one per core. With Ray: most workers at a time."),
    ] = None,
    resident: Resident = None,
    on: Annotated[str, typer.Option(help="local, ray (a cluster on this machine) or ray://HOST:PORT.")] = "local",
    track: Annotated[
        list[str] | None, typer.Option(help="Also log every trial: mlflow, mlflow=URI, tensorboard, tensorboard=DIR.")
    ] = None,
    max_wall: Annotated[str | None, typer.Option(help="Write checkpoints and stop within this time: 25m, 2h.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Train failed trials again.")] = False,
) -> None:
    """Run a study, or resume it: train what is not done yet, and store every outcome as its trial ends."""
    began = time.monotonic()  # the time limit includes the imports below, which take seconds

    from camri.cli.study_view import print_result, watching
    from camri.study import runner
    from camri.study.export import find_tracker
    from camri.study.run_folder import load_data
    from camri.study.study_file import parse_duration

    study = _find(**context.params)
    end = None if max_wall is None else began + parse_duration(max_wall)
    executor = runner.find_executor(on, device, workers, pack_size)
    with reading_progress() as progress:
        data = load_data(study, progress, resident)
    with watching() as on_progress:
        result = runner.run(
            study,
            out,
            executor,
            data=data,
            retry_failed=retry_failed,
            max_wall_s=None if end is None else end - time.monotonic(),
            listeners=[find_tracker(name, study.name, data, out) for name in track or []],
            on_progress=on_progress,
        )
    print_result(result, out)
    if not result.finished and end is None:
        raise typer.Exit(130)
    if result.failed:
        raise typer.Exit(3)


@app.command(epilog=examples("camri study status runs/digits", "camri study status runs/paper --no-best"))
def status(
    folder: RunFolder,
    best: Annotated[bool, typer.Option("--best/--no-best", help="Show the best settings so far.")] = True,
) -> None:
    """Show how many trials of a run are done, failed and pending, and each method's best setting so far."""
    from camri.cli.study_view import print_status
    from camri.study.finalists import status as status_of

    print_status(status_of(folder, best), folder)


@app.command(epilog=examples("camri study merge runs/a runs/b --out runs/all"))
def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs of one study, or of some of its columns.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the merged run; it may hold one of the same study.")],
) -> None:
    """Merge runs of one study from several machines. Exit code 1 if a trial differs between two of them."""
    from camri.study.combine import merge as merge_runs

    merged = merge_runs(folders, out)
    typer.echo(
        f"{out}: {merged.total:,} outcomes, {merged.added:,} of them new; {merged.agreed:,} were there twice and agree"
    )
    for line in merged.conflicts:
        typer.echo(f"differs, the first is kept: {line}", err=True)
    for line in merged.left_out:
        typer.echo(f"left out: {line}", err=True)
    if merged.left_out:
        typer.echo(f"run their study into {out} to train them there: camri study run STUDY --out {out}", err=True)
    if merged.conflicts:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "camri study run paper.cifar10.cat --out runs/screen --seeds 100-102",
        "camri study finalists runs/screen --out finals.json --seeds 0-9",
        "camri study run finals.json --out runs/finals",
    )
)
def finalists(
    folder: Annotated[Path, typer.Argument(metavar="SCREEN_RUN", help="The folder of the screening's run.")],
    out: Annotated[Path, typer.Option(help="The file to write: the JSON of the finals' study.")],
    methods: Annotated[str | None, typer.Option(help="Methods, by default all; controls are added.")] = None,
    column: Annotated[str | None, typer.Option(help="Only this column: its important class or its number.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds that the screening did not use; by default ten.")] = None,
    schedule: Annotated[str | None, typer.Option(help="fast or paper; by default the screening's training.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the finals; by default the schedule's.")] = None,
) -> None:
    """Choose each method's best setting on a screening's validation data, and write the study that trains it again.

    A screening tries whole grids with few seeds. The finals train each method's best setting with other seeds, with
    cross-entropy and L2-softmax at the finalists' scales as controls.
    """
    from camri.cli.study_view import print_finalists
    from camri.study.finalists import find_column, find_finalists, make_finals, write_study
    from camri.study.finalists import status as status_of
    from camri.study.store import open_run
    from camri.study.study_file import parse_seeds

    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    with open_run(folder) as run:
        columns = None if column is None else [find_column(run.columns(), column)]
        found = find_finalists(run, names, columns)
        given = None if seeds is None else parse_seeds(seeds)
        finals = make_finals(run, found, seeds=given, schedule=schedule, epochs=epochs)
    write_study(finals, out)
    print_finalists(found, finals, out, status_of(folder, with_best=False))


@app.command(
    epilog=examples(
        "camri study ensembles runs/finals --size 5 --out runs/ensembles", "camri report runs/ensembles --table 1"
    )
)
def ensembles(
    folder: RunFolder,
    size: Annotated[int, typer.Option(min=2, help="Trials in an ensemble.")],
    out: Annotated[Path, typer.Option(help="The folder of the new run.")],
) -> None:
    """Average the probabilities of a setting's trials; the ensembles are a run that `camri report` takes.

    The trials must have kept their logits (`logits = true` under \\[keep] of the study's TOML).
    """
    from camri.study.combine import make_ensembles

    made = make_ensembles(folder, out, size)
    left = f"; seeds left over: {', '.join(map(str, made.left_over))}" if made.left_over else ""
    typer.echo(f"{out}: {made.num_each} ensembles of {size} trials for each of {made.num_settings} settings{left}")


@app.command(epilog=examples("camri study export runs/digits --csv digits.csv --parquet digits.parquet"))
def export(
    folder: RunFolder,
    csv: Annotated[Path | None, typer.Option(help="Write CSV here; '-' is standard output.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write parquet here.")] = None,
) -> None:
    """Write a tidy table: a row for each outcome and split, with knobs, accuracy and every class's recall."""
    from camri.study.export import export as write

    if csv is None and parquet is None:
        raise InputError("nothing to write; give --csv FILE, --parquet FILE or both")
    num_rows = write(folder, csv, parquet)
    files = [path for path in (csv, parquet) if path is not None]
    say_written(f"{num_rows:,} rows: {', '.join(map(str, files))}", *files)


def _find(words: list[str], num_seeds: int | None, seeds: str | None, **params: Any) -> "Study":
    """The study that the options of `show` and `run` describe; others of their `params` are ignored."""
    from camri.study.study_file import find_study, override, parse_columns, parse_seeds

    # Of `--grid m=0.2,0.4 s=8,16` the parser takes one word after the option and leaves the rest to the arguments.
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise InputError(f"give one study, not {len(names)} ({' '.join(names) or 'none'}); see `camri study list`")
    if num_seeds is not None and seeds is not None:
        raise InputError(f"give --num-seeds {num_seeds} or --seeds {seeds}, not both")
    given: dict[str, Any] = {"schedule": params["schedule"], "rule": params["rule"], "num_seeds": num_seeds}
    if params["important"] or params["strengths"]:
        strengths = class_numbers(params["strengths"], "strengths", "dog=0.5")
        given["columns"] = parse_columns(params["important"] or [], strengths)
    study = find_study(names[0], **{name: value for name, value in given.items() if value is not None})
    if seeds is not None:
        study = study.with_(seeds=parse_seeds(seeds))
    if params["epochs"] is not None:
        study = study.with_(training=study.training.with_(epochs=params["epochs"]))
    return override(study, params["methods"], [*(params["grid"] or []), *(word for word in words if "=" in word)])
