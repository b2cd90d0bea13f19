"""Outcomes for other programs: a tidy table as CSV or parquet, and logging to MLflow or TensorBoard."""

import dataclasses
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camri.decision.counts import recall
from camri.errors import InputError, blame, closest
from camri.files import replacing
from camri.study.store import Run, open_run
from camri.text import csv_text

if TYPE_CHECKING:  # reports use `tidy` without torch
    from camri.data import DataSet
    from camri.engine import Outcome

PLAIN = ("attempts", "epochs_done", "wall_s", "device_s")


def export(folder: str | Path, csv_path: Path | None = None, parquet_path: Path | None = None) -> int:
    """Write the run's tidy table as CSV, parquet or both; return its number of rows."""
    with open_run(folder) as run:
        names, table = tidy(run)
    if csv_path is not None:
        with blame("csv"), replacing(csv_path, "; choose another file") as part:
            part.write_bytes(csv_text(names, table).encode())
    if parquet_path is not None:
        with blame("parquet"), replacing(parquet_path, "; choose another file") as part:
            _write_parquet(part, names, table)
    return len(table)


def tidy(run: Run) -> tuple[list[str], list[dict[str, Any]]]:
    """Column names, and a row of plain values for each outcome and split; missing values are None.

    Each knob has a column. Values of several important classes are joined by semicolons, in the order of `important`.
    `recall:cat` is the recall of cat. A failed outcome has one row, without a split.
    """
    classes, rows = run.classes, []
    knobs: dict[str, Any] = {}
    for row in run.rows(status=None):
        own = {name: _plain(value) for name, value in row.setting["knobs"].items()}
        knobs |= own
        shared = {
            **own,
            "method": row.method,
            "setting": row.title,
            "important": ";".join(classes[index] for index in row.setting["important"]),
            **{name: getattr(row, name) for name in ("seed", "status", "error", "created", "identity", "key")},
            **{name: round(getattr(row, name), 3) for name in PLAIN},
        }
        for split, accuracy in row.accuracy.items():
            recalls = {f"recall:{n}": None if r != r else r for n, r in zip(classes, row.recall[split], strict=True)}
            rows.append({**shared, "split": split, "accuracy": accuracy, **recalls})
        if not row.accuracy:
            rows.append(shared)
    before, after = ["method", "setting", "important"], ["seed", "split", "status", "accuracy"]
    recall_names = [f"recall:{name}" for name in classes]
    names = [*before, *knobs, *after, *recall_names, "error", *PLAIN, "created", "identity", "key"]
    return names, [{name: row.get(name) for name in names} for row in rows]


def _plain(value: float | list[float]) -> float | str | None:
    if not isinstance(value, list):
        return value
    return value[0] if len(value) == 1 else ";".join(map(repr, value)) or None


def _write_parquet(path: Path, names: list[str], table: list[dict[str, Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("a parquet file needs pyarrow: `pip install pyarrow`, or use --csv") from None
    columns = {name: [row[name] for row in table] for name in names}
    for values in columns.values():
        if any(isinstance(value, str) for value in values):  # a parquet column has one type
            values[:] = [value if value is None or isinstance(value, str) else repr(value) for value in values]
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")


Listener: TypeAlias = "Callable[[Outcome], None]"
MLFLOW_BATCH = 1000  # most metrics in a request
MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # default: minutes


@dataclasses.dataclass(frozen=True)
class Entry:
    """An outcome to log: `curves` have a value per epoch, `metrics` one at the end."""

    name: str
    params: dict[str, str | int | float]
    metrics: dict[str, float]
    curves: dict[str, list[float]]
    error: str | None


def describe_outcome(outcome: "Outcome", data: "DataSet") -> Entry:
    """The outcome's setting, seed, accuracies, recalls and curves; metrics that are not finite are left out."""
    setting = outcome.trial.setting
    names = [re.sub(r"[^\w .-]", "_", name) for name in data.classes]  # MLflow allows these characters only
    important = ", ".join(data.classes[index] for index in setting.important)
    params: dict[str, str | int | float] = {
        "method": setting.method,
        "setting": str(setting),
        "important": important,
        "seed": outcome.trial.seed,
        "data": data.name,
        "model": outcome.training.model,
        "epochs": outcome.training.epochs,
    }
    for knob, value in setting.to_json()["knobs"].items():
        several = isinstance(value, (list, tuple)) and len(value) > 1
        params[knob] = str(tuple(value)) if several else float(np.ravel(value)[0])
    metrics = {"wall_s": outcome.wall_s, "epochs_done": float(outcome.epochs_done)}
    for split, counts in outcome.confusion.items():
        metrics[f"{split}/accuracy"] = outcome.accuracy(split)
        metrics |= {f"{split}/recall/{name}": float(r) for name, r in zip(names, recall(counts), strict=True)}
    curves = {"train_loss": outcome.curves["train_loss"].tolist()} if "train_loss" in outcome.curves else {}
    hits = outcome.curves.get("val_hits")
    if hits is not None and hits.size:
        counts = data.class_counts("val").numpy()
        curves["val/accuracy"] = (hits.sum(axis=1) / counts.sum()).tolist()
        for index in setting.important:
            curves[f"val/recall/{names[index]}"] = (hits[:, index] / max(counts[index], 1)).tolist()
    finite = {name: value for name, value in metrics.items() if np.isfinite(value)}
    title = ", ".join(filter(None, [str(setting), important, f"seed {outcome.trial.seed}"]))
    return Entry(title, params, finite, curves, outcome.error)


def _points(curves: Mapping[str, list[float]]) -> Iterator[tuple[str, int, float]]:
    """(name, epoch, value) of every finite value of the curves."""
    for name, values in curves.items():
        yield from ((name, epoch, value) for epoch, value in enumerate(values, start=1) if np.isfinite(value))


class MlflowTracker:
    """Logs each entry as a run of an MLflow experiment; `metric` and `param` are classes of `mlflow.entities`."""

    def __init__(self, experiment: str, client: Any, metric: Callable[..., Any], param: Callable[..., Any]):
        self.experiment, self.client, self.metric, self.param = experiment, client, metric, param

    def __call__(self, entry: Entry) -> None:
        found = self.client.get_experiment_by_name(self.experiment)
        number = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        tags = {} if entry.error is None else {"error": entry.error[-500:]}
        run = self.client.create_run(number, tags=tags, run_name=entry.name).info.run_id
        now = int(time.time() * 1000)
        params = [self.param(name, str(value)) for name, value in entry.params.items()]
        values = [(f"curve/{name}", epoch, value) for name, epoch, value in _points(entry.curves)]
        values += [(name, 0, value) for name, value in entry.metrics.items()]
        metrics = [self.metric(name, value, now, step) for name, step, value in values]
        for at in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(run, metrics[at : at + MLFLOW_BATCH], params if at == 0 else [])
        self.client.set_terminated(run, "FINISHED" if entry.error is None else "FAILED")


class TensorBoardTracker:
    """Logs each entry to its own folder under `folder`; `make` is torch's SummaryWriter."""

    def __init__(self, folder: Path, make: Callable[[str], Any]):
        self.folder, self.make = folder, make

    def __call__(self, entry: Entry) -> None:
        writer = self.make(str(self.folder / entry.name.replace("/", "-")))
        try:
            for name, epoch, value in _points(entry.curves):
                writer.add_scalar(f"curve/{name}", value, epoch)
            writer.add_hparams(entry.params, entry.metrics, run_name=".")
            if entry.error is not None:
                writer.add_text("error", entry.error)
        finally:
            writer.close()


def listen(track: Callable[[Entry], None], data: "DataSet", name: str) -> Listener:
    """A listener that logs every outcome. After an error it warns and logs no more; the study continues."""
    works = True

    def log(outcome: "Outcome") -> None:
        nonlocal works
        if not works:
            return
        try:
            track(describe_outcome(outcome, data))
        except Exception as error:
            works = False
            text = " ".join(str(error).split())[:300]
            warnings.warn(f"tracking to {name} failed and is now off ({text}); the run continues", stacklevel=2)

    return log


def find_tracker(asked: str, study: str, data: "DataSet", run: Path) -> Listener:
    """The listener for "mlflow", "mlflow=URI", "tensorboard" (RUN/tensorboard) or "tensorboard=DIR"."""
    kind, _, where = asked.partition("=")
    tracker: MlflowTracker | TensorBoardTracker
    try:
        if kind == "mlflow":
            for name, value in MLFLOW_PATIENCE.items():
                os.environ.setdefault(name, value)
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient

            tracker = MlflowTracker(study, MlflowClient(tracking_uri=where or None), Metric, Param)
        elif kind == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            tracker = TensorBoardTracker(Path(where) if where else run / "tensorboard", SummaryWriter)
        else:
            hint = closest(kind, ["mlflow[=URI]", "tensorboard[=DIR]"])
            raise InputError(f"track={asked!r} is unknown; {hint}", argument="track")
    except (ImportError, RuntimeError) as error:
        message = f"track={asked!r} needs {kind} ({error}); install it with: pip install 'camri-loss[track]'"
        raise InputError(message, argument="track") from None
    return listen(tracker, data, asked)
