"""What is asked of a fit, checked before anything is trained or written; and the journal of what it decided."""

import json
import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from camri.backbones import (
    at_hand,
    decoding,
    find,
    is_backbone,
    is_frozen,
    is_transformer,
    published_folder,
    read_weights,
)
from camri.data import DataSet, Split, hold_out, load, make_test
from camri.data.dataset import hash_json
from camri.data.features import embed_within
from camri.data.tables import to_features
from camri.decision.goals import AtLeast, Goal, LeastCost, MostRecall, goal_to_json, parse_goal
from camri.decision.tune import PRIOR_ROWS
from camri.engine import Training, Trial
from camri.engine.replica import Job
from camri.engine.spec import PROBE, TRANSFORMER, TUNED
from camri.engine.training import pick_device
from camri.errors import InputError, closest, one_by_one
from camri.export.model import Standardise
from camri.files import replacing
from camri.methods import setting
from camri.study.run_folder import refuse_other_files
from camri.study.spec import DATA_OPTIONS, SYMBOLS, Column, Resolved, resolve_column
from camri.study.study_file import parse_duration

SMALL = 20_000  # rows; below it a tenth would leave too few images of a class to choose on
SPLIT_SEED = 0
FEATURES_SHARE = 0.5  # of the time, for a frozen network's features
LEAST_ROWS = 200
DEFAULT_BUDGET = "10m"
RATES = {"small": 3e-3}  # 1.3 to 1.9 points above 1e-3 after 16 epochs of 4,000 photos (docs/log.md)
DROPOUT = {"features": 0.1}  # 0.6 to 2.1 points of accuracy for three tables once they are trained out (docs/log.md)

Important = str | int | Sequence[str | int] | None


@dataclass(frozen=True)
class Progress:
    """The stage, the part of the budget that is spent (0 to 1), and the seconds left if there is a time to keep.

    While data are read, the part is that of the rows.
    """

    stage: str
    part: float
    left_s: float | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """The data a fit trains on.

    standardise: (mean, sd) that features were scaled with, None for images. The fractions are those of the splits
    that had to be made. images: what a frozen backbone's features were computed from. share: the part of the images
    for which there was time.
    """

    data: DataSet
    standardise: Standardise | None
    val_fraction: float
    test_fraction: float
    images: DataSet | None = None
    share: float = 1.0


def prepare(
    source: str | PathLike[str] | DataSet,
    options: Mapping[str, Any] = MappingProxyType({}),
    on_read: Callable[[int, int], None] | None = None,
    resident: str | int | None = None,
) -> Inputs:
    """Load the data and make the splits it lacks; `options` are those of `camri.data.load`.

    resident: the memory that images may take.
    """
    given = [*options, *([] if resident is None else ["resident"])]
    if isinstance(source, DataSet) and given:
        raise InputError(f"{', '.join(given)} cannot be given for data that is loaded already; give them to load")
    data = source if isinstance(source, DataSet) else load(source, **options, resident=resident, progress=on_read)
    num_rows = len(data.splits["train"])
    val_fraction, test_fraction = (0.2, 0.3) if num_rows < SMALL else (0.1, 0.2)
    if "test" not in data.splits:
        data = make_test(data, fraction=test_fraction, seed=SPLIT_SEED)
    if "val" not in data.splits:
        data = hold_out(data, "val", val_fraction, SPLIT_SEED)
    if data.is_image:
        return Inputs(data, None, val_fraction, test_fraction)
    return Inputs(*_standardised(data), val_fraction, test_fraction)


def take_features(
    given: Inputs,
    model: str,
    options: Mapping[str, Any],
    limit_s: float = math.inf,
    device: torch.device | None = None,
    on_read: Callable[[int, int], None] | None = None,
) -> Inputs:
    """The inputs with a frozen network's features instead of images: of all, or of those computed in `limit_s`."""
    images, data = embed_within(given.data, model, options, limit_s, device=device, progress=on_read)
    share = len(images.splits["train"]) / len(given.data.splits["train"])
    scaled, standardise = _standardised(data)
    return replace(given, data=scaled, standardise=standardise, images=images, share=share)


def fewer_rows(data: DataSet, share: float, parts: Sequence[str] = ("train", "val", "test")) -> DataSet:
    """The data with this share of the rows of each class in these splits, at least one."""
    if share >= 1:
        return data
    splits = dict(data.splits)
    for part in parts:
        labels = splits[part].labels.numpy()
        order = np.random.default_rng(0).permutation(len(labels))
        kept: list[int] = []
        for index in np.unique(labels):
            own = order[labels[order] == index]
            kept += own[: max(1, round(len(own) * share))].tolist()
        splits[part] = splits[part].rows(np.sort(np.array(kept)))
    return replace(data, splits=splits, fingerprint=hash_json([data.fingerprint, "rows", share, list(parts)]))


def _standardised(data: DataSet) -> tuple[DataSet, Standardise]:
    """The data with features of mean 0 and sd 1 over the train rows; a constant feature becomes 0."""
    rows = torch.as_tensor(data.splits["train"].inputs).double()
    # In float32 from here on, as in the exported model: it is judged on the numbers that it will see.
    mean, sd = rows.mean(dim=0).float(), rows.std(dim=0, unbiased=False).float()
    sd = torch.where(sd > 0, sd, 1.0)

    def scale(part: str, split: Split) -> Split:
        to_features(np.asarray(split.inputs), f"{part} data")  # refuses what is not finite
        inputs = (torch.as_tensor(split.inputs) - mean) / sd
        wrong = (~inputs.isfinite()).any(dim=0).nonzero()
        if len(wrong):
            raise InputError(
                f"{part} data: column {int(wrong[0])} has too large numbers to scale; divide it by 1e9, say"
            )
        return replace(split, inputs=inputs)

    provenance = {**data.provenance, "standardised": "(features - mean) / sd, both over the train rows"}
    splits = {name: scale(name, split) for name, split in data.splits.items()}
    fingerprint = hash_json([data.fingerprint, "standardised"])
    scaled = replace(data, splits=splits, fingerprint=fingerprint, provenance=provenance)
    return scaled, (tuple(mean.tolist()), tuple(sd.tolist()))


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request.

    plain: the training that the others are variants of; a short budget may still reduce its epochs. important: class
    names, or "worst": the class with the lowest validation recall under cross-entropy.
    """

    source: str
    data_options: tuple[tuple[str, Any], ...]
    inputs: Inputs
    important: Column
    plain: Training
    goal: Goal
    device: torch.device
    budget_s: float | None
    num_trials: int | None
    seed: int
    epochs: int | None
    out: Path
    is_loaded: bool = False  # the data were given as a DataSet, which no command can name
    costs: str | None = None  # the file of the cost matrix, if it was one

    @property
    def data(self) -> DataSet:
        return self.inputs.data

    @property
    def prior_rows(self) -> int:
        """Weight, in rows, of the expectation that nothing is more accurate than the baseline."""
        return PRIOR_ROWS

    @property
    def is_tuned(self) -> bool:
        """Whether a pretrained network is fine-tuned, so that rivals can race on its frozen features."""
        return is_backbone(self.plain.model) and "initial" in dict(self.plain.model_options)

    @property
    def needs_logits(self) -> bool:
        """Whether full logits are stored: costs depend on the very class that is predicted."""
        return isinstance(self.goal, LeastCost)

    @property
    def scoring(self) -> float:
        """The time to score a model on validation and test data, as a part of an epoch: it needs no gradients."""
        splits = self.data.splits
        return (len(splits["val"]) + len(splits["test"])) / len(splits["train"]) / 3

    def resolved(self) -> Resolved | None:
        """Class indices and strengths; None while the worst class is still to be found."""
        column = resolve_column(self.important, self.data.classes)
        return None if set(self.important.classes) & set(SYMBOLS) else column

    def to_json(self) -> dict[str, Any]:
        """What must be the same for a fit to resume in a folder."""
        return {
            "data": self.data.fingerprint,
            "important": dict(zip(map(str, self.important.classes), self.important.strengths, strict=True)),
            "model": self.plain.model,
            "model_options": {k: v for k, v in self.plain.model_options if k != "initial"},
            "budget_s": self.budget_s,
            "trials": self.num_trials,
            "goal": goal_to_json(self.goal),
            "epochs": self.epochs,
            "seed": self.seed,
        }


# Its docstring is for users of `camri.fit`, which takes the same options.
def make_request(
    data: str | PathLike[str] | DataSet = "digits",
    important: Important = None,
    out: str | PathLike[str] | None = None,
    *,
    budget: str | float | None = None,
    num_trials: int | None = None,
    max_accuracy_drop: float = 0.0,
    at_least: float | None = None,
    cost_matrix: str | PathLike[str] | Sequence[Sequence[float]] | None = None,
    strengths: Mapping[str, float] | None = None,
    model: str | None = None,
    weights: str | PathLike[str] | None = None,
    from_scratch: bool = False,
    frozen: bool | str = "auto",
    device: str = "auto",
    seed: int = 0,
    epochs: int | None = None,
    resident: str | int | None = None,
    data_options: Mapping[str, Any] = MappingProxyType({}),
    on_progress: Callable[[Progress], None] | None = None,
) -> Request:
    """Find the best model for the important classes, with the evidence.

    data: anything `camri.data.load` reads, or a DataSet; missing splits are made. important: class names that are
    important jointly; by default the class with the lowest validation recall. out: a new folder, or that of this same
    fit, which then resumes; runs/DATA-CLASS by default. budget: "10m", or seconds; 10 minutes by default. num_trials:
    a number of models instead. The goal is one of three: the most recall with at most `max_accuracy_drop` of accuracy
    lost (0.01 is one percentage point); the fewest false alarms at a recall of `at_least`; the least cost by a
    `cost_matrix`, row = true class. strengths: {class: strength} of important classes that count less or more than 1.
    model: small, paper, resnet18, features, timm:NAME or hf:NAME, pretrained by default. weights: a safetensors file
    with the trunk's initial weights. from_scratch: random weights. frozen: train heads on a pretrained
    network's features; "auto" does so without a GPU. resident: the memory that images may take, for example "2GiB";
    more are read from disk. data_options: other options of `camri.data.load`.

    Everything is chosen on validation data; test data are used once, at the end. With `num_trials` the same call gives
    the same result on a CPU. SIGINT returns the best model so far, or raises :class:`Unfinished`.
    """
    began = time.monotonic()
    if budget is not None and num_trials is not None:
        raise InputError(f"give a budget ({budget}) or a number of trials ({num_trials}), not both")
    if num_trials is not None and (type(num_trials) is not int or num_trials < 1):
        raise InputError(
            f"num_trials={num_trials!r} is not allowed; give a whole number of at least 1", argument="num_trials"
        )
    budget_s = None if num_trials is not None else parse_duration(str(budget or DEFAULT_BUDGET), "budget")
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed={seed!r} is not allowed; give a whole number of at least 0", argument="seed")
    picked = pick_device(device)
    for option in data_options:
        if option not in DATA_OPTIONS:
            raise InputError(f"data has no option {option!r}; {closest(option, DATA_OPTIONS)}")
    if model == "trees":
        raise InputError("model='trees' is grown beside every fit of a table; leave the option out", argument="model")
    model_options: dict[str, Any] = {}
    backbone: tuple[str, dict[str, Any]] | None = None
    if model is None and weights is None and not from_scratch and is_frozen(frozen, from_scratch, picked.type):
        model = _network_for(data)
    if model is not None and is_backbone(model):
        model_options = find(model, weights=weights, from_scratch=from_scratch, size=data_options.get("size"))
        if not isinstance(data, DataSet):
            model_options, data_options = decoding(model_options, data_options)
        if is_frozen(frozen, from_scratch, picked.type):
            backbone = model, model_options
    elif frozen is True:
        raise InputError(
            f"frozen=True needs a pretrained network; give model=timm:NAME or hf:NAME, not {model}", "frozen"
        )
    elif weights is not None:
        model_options = read_weights(weights)

    def read(done: int, num: int) -> None:
        if on_progress is not None:
            on_progress(Progress("reading data", done / max(num, 1)))

    def embedded(done: int, num: int) -> None:
        if on_progress is not None:
            passed_s = time.monotonic() - embedding
            left_s = min(limit_s - passed_s, passed_s * (num - done) / max(done, 1))
            on_progress(Progress("computing features", done / max(num, 1), max(0.0, left_s)))

    inputs = prepare(data, data_options, read, resident)
    goal = parse_goal(inputs.data.classes, max_accuracy_drop, at_least, cost_matrix)
    column = parse_important(important, strengths, inputs.data.classes)
    folder = Path(out) if out is not None else Path("runs") / _folder_name(inputs.data.name, column)
    if backbone is not None:
        limit_s = math.inf if budget_s is None else began + FEATURES_SHARE * budget_s - time.monotonic()
        if _has_fewer(folder):  # the same images as in the call before
            limit_s = 0.0
        embedding = time.monotonic()
        inputs = take_features(inputs, *backbone, limit_s, on_read=embedded)
    loaded = inputs.data
    model = model or _model_for(loaded, picked)
    if model in DROPOUT:
        model_options = {"dropout": DROPOUT[model], **model_options}
    plain = Training(
        model=model,
        model_options=tuple(sorted(model_options.items())),
        epochs=epochs if epochs is not None else epochs_for(len(loaded.splits["train"])),
        learning_rate=RATES.get(model, 1e-3),
    )
    if backbone is not None:
        plain = plain.with_(**PROBE)
    elif "preprocessing" in model_options and not from_scratch:
        plain = plain.with_(**TUNED | (TRANSFORMER if is_transformer(plain.model, model_options) else {}))
    request = Request(
        source=data.name if isinstance(data, DataSet) else fspath(data),
        data_options=tuple(sorted(data_options.items())),
        inputs=inputs,
        important=column,
        plain=plain,
        goal=goal,
        device=picked,
        budget_s=budget_s,
        num_trials=num_trials,
        seed=seed,
        epochs=epochs,
        out=folder,
        is_loaded=isinstance(data, DataSet),
        costs=fspath(cost_matrix) if isinstance(cost_matrix, (str, PathLike)) else None,
    )
    indices = tuple(index for index, _ in request.resolved() or ())
    Job(plain, loaded, indices).check([Trial(setting("ce"), 0)])
    check_rows(loaded, indices)
    return request


def on_features(request: Request, limit_s: float) -> Request:
    """The request on the frozen features of the network that it fine-tunes; there a trial takes seconds.

    limit_s: time for the features; if they take longer, fewer images are used.
    """
    training = request.plain
    inputs = take_features(request.inputs, training.model, dict(training.model_options), limit_s, request.device)
    epochs = epochs_for(len(request.data.splits["train"]))
    return replace(request, inputs=inputs, plain=Training(epochs=epochs).with_(**PROBE))


def command(request: Request, is_finished: bool = True) -> str:
    """The command that repeats this fit in a new folder, or resumes it if it has not finished."""
    column, goal, words = (
        request.important,
        request.goal,
        ["camri", "fit", "DATA" if request.is_loaded else request.source],
    )
    for name in column.classes:
        words += ["--important", str(name)]
    for name, strength in zip(column.classes, column.strengths, strict=True):
        words += [] if strength == 1 else ["--strength", f"{name}={strength:g}"]
    for name, value in request.data_options:
        if name == "verify":
            words += [] if value else ["--no-verify"]
        elif name == "resize":
            pass  # the model's own
        elif isinstance(value, tuple):  # a size
            words += ["--size", str(value[0])]
        elif value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    backbone = request.data.provenance.get("backbone")
    model, given = request.plain.model, dict(request.plain.model_options)
    if backbone is not None:
        model, given = backbone["model"], backbone["options"]
        words += ["--frozen"]
    initial = given.get("initial")
    words += ["--from-scratch"] if is_backbone(model) and initial is None else []
    options = {
        "--trials": request.num_trials,
        "--budget": None if request.budget_s is None else f"{request.budget_s:g}s",
        "--max-accuracy-drop": (goal.max_accuracy_drop or None) if isinstance(goal, MostRecall) else None,
        "--at-least": goal.recall if isinstance(goal, AtLeast) else None,
        "--cost-matrix": (request.costs or "COSTS") if isinstance(goal, LeastCost) else None,
        "--model": model,
        "--weights": None if initial is None or initial.startswith(str(published_folder())) else initial,
        "--epochs": request.epochs,
        "--seed": request.seed or None,
        "--out": "runs/again" if is_finished else request.out,
    }
    return shlex.join(words + [str(word) for pair in options.items() if pair[1] is not None for word in pair])


def model_name(training: Training, data: DataSet) -> str:
    """The model of a training: its name, with the frozen network whose features it takes."""
    backbone = data.provenance.get("backbone")
    return training.model if backbone is None else f"{training.model} on {backbone['model']}, frozen"


def check_rows(data: DataSet, important: Sequence[int]) -> None:
    """Refuse important classes without validation or test data."""
    for part in ("val", "test"):
        counts = data.class_counts(part)
        for index in important:
            if not counts[index]:
                raise InputError(
                    f"important={data.classes[index]!r} has no {data.noun.many} in the {part} split, so its recall is "
                    "unknown; add some",
                    argument="important",
                )


def parse_important(given: Important, strengths: Mapping[str, float] | None, classes: Sequence[str]) -> Column:
    """The important classes with their strengths, 1 by default.

    >>> parse_important(["stop", "yield"], {"yield": 0.5}, ["go", "stop", "yield"])
    Column(classes=('stop', 'yield'), strengths=(1.0, 0.5))
    >>> parse_important(None, None, ["go", "stop"]).classes
    ('worst',)
    """
    names: list[Any] = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for name in names:
        if isinstance(name, str) and name not in classes and (hint := one_by_one(name, classes)):
            raise InputError(f"important={name!r} is not a class; {hint}", argument="important")
    by_name = {str(name): strength for name, strength in (strengths or {}).items()}
    for name, strength in by_name.items():
        if name not in map(str, names):
            hint = f"is not an important class; {closest(name, names)}"
            raise InputError(f"strengths={name!r} {hint}", argument="strengths")
        if not 0 < strength < float("inf"):
            raise InputError(f"strengths={name}={strength} is not allowed; give a number above 0", argument="strengths")
    return Column(tuple(names or ["worst"]), tuple(by_name.get(str(name), 1.0) for name in names or ["worst"]))


def epochs_for(num_rows: int) -> int:
    """Epochs by the number of rows: 18 for 50,000, as in the fast schedule, more for fewer, between 12 and 60.

    >>> epochs_for(50_000), epochs_for(10_000), epochs_for(1_000)
    (18, 40, 60)
    """
    return int(min(60, max(12, round(18 * (50_000 / num_rows) ** 0.5))))


def _model_for(data: DataSet, device: torch.device) -> str:
    if not data.is_image:
        return "features"
    # The authors' CNN takes 568 M multiply-adds for a 32 × 32 image: on a CPU a trial of it lasts hours.
    return "paper" if device.type == "cuda" and min(data.input_shape[:2]) >= 16 else "small"


def _network_for(data: object) -> str | None:
    """A pretrained network whose weights are at hand, for a folder of JPEG files; None for anything else."""
    if not isinstance(data, (str, PathLike)) or not Path(data).is_dir():
        return None
    is_photos = next(Path(data).rglob("*.[jJ][pP]*[gG]"), None) is not None
    if is_photos and (name := at_hand()) is not None:
        message = f"the weights of {name} are in the hub's cache, so heads are trained on its features"
        warnings.warn(f"{message}; to train a network from scratch, give model=small", stacklevel=3)
        return name
    return None


def _folder_name(data: str, column: Column) -> str:
    """
    >>> _folder_name("signs", Column.of(["stop", "no entry"]))
    'signs-stop-no_entry'
    """
    words = [data, *map(str, column.classes)]
    return "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)[:80]


JOURNAL_FILE = "fit.json"
TRAININGS = "trainings"  # folder of the runs before the finals; a killed call may have left nothing else


# Decisions to make again with more time, if the baseline was still improving or there was no time for rivals.
LATE = ("epochs", "training", "lengths", "still_improving", "learnt", "important", "is_raced", "winner", "num_settings")


def _has_fewer(folder: Path) -> bool:
    """Whether a fit in this folder had no time for the features of all images."""
    try:
        return "share" in json.loads((folder / JOURNAL_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


class Journal:
    """A fit's decisions by name, on disk as soon as they are made, so that the same command resumes."""

    def __init__(self, folder: Path, values: dict[str, Any]):
        self.path = folder / JOURNAL_FILE
        self.values = values

    @staticmethod
    def open(folder: Path, request: dict[str, Any]) -> "Journal":
        """Open or begin the folder's journal; refuse a folder of another fit by what differs, or of anything else."""
        path = folder / JOURNAL_FILE
        if not path.exists() or (path.is_file() and not path.stat().st_size):
            refuse_other_files(folder, JOURNAL_FILE, "fit", {TRAININGS})
            return Journal(folder, {"request": request, "spent_s": 0.0})
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            before = values["request"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read ({error}); choose another folder") from None
        asked = json.loads(json.dumps(request))
        if before.get("budget_s") and (asked["budget_s"] or 0) > before["budget_s"]:  # more time: resume with it
            before = before | {"budget_s": asked["budget_s"]}
            values |= {"request": before, "finished": False}
            if values.get("still_improving") or values.get("winner") is None:
                values = {name: value for name, value in values.items() if name not in LATE}
                values["given_up"] = list((values.get("plan") or {}).get("given_up", ()))
        for name in asked:
            if before.get(name) != asked[name]:
                differs = f"{name} {before.get(name)!r}, not {asked[name]!r}"
                if name == "data":  # hashes say nothing to people
                    differs = "its data are others, or have changed"
                raise InputError(f"{folder} holds another fit ({differs}); choose another folder", argument="out")
        return Journal(folder, values)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def set(self, **values: Any) -> None:
        """Write the values to disk, all or none."""
        self.values.update(values)
        with replacing(self.path, "; choose another folder") as part:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")
