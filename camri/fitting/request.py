"""Data as a fit uses it: three splits, and features brought to one scale.

What is asked of a fit, checked before anything is trained or written.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from camri.data import DataSet, Split, hold_out, load, make_test
from camri.data.dataset import hash_json
from camri.engine import Training, Trial
from camri.engine.replica import Job
from camri.engine.training import pick_device
from camri.errors import InputError, closest, one_by_one
from camri.export.model import Standardise
from camri.fitting.journal import BUDGET
from camri.methods import setting
from camri.study.important import resolve
from camri.study.spec import DATA_OPTIONS, Column, Resolved, study

SMALL = 20_000  # rows; below it a tenth would leave too few images of a class to choose on
SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Inputs:
    """The data set a fit trains on; `standardise` is the (mean, sd) that its features were brought to one scale with.

    The fractions are those of the splits that had to be made.
    """

    data: DataSet
    standardise: Standardise | None
    val_fraction: float
    test_fraction: float


def prepare(
    source: str | PathLike[str] | DataSet,
    options: Mapping[str, Any] = MappingProxyType({}),
    on_read: Callable[[int, int], None] | None = None,
) -> Inputs:
    """The data with train, val and test splits, its own where it has them; `options` are those of `camri.data.load`."""
    if isinstance(source, DataSet) and options:
        raise InputError(f"{', '.join(options)} cannot be given for data that is loaded already; give them to load")
    data = source if isinstance(source, DataSet) else load(source, **options, progress=on_read)
    num_rows = len(data.splits["train"])
    val_fraction, test_fraction = (0.2, 0.3) if num_rows < SMALL else (0.1, 0.2)
    if "test" not in data.splits:
        data = make_test(data, fraction=test_fraction, seed=SPLIT_SEED)
    if "val" not in data.splits:
        data = hold_out(data, "val", val_fraction, SPLIT_SEED)
    if data.is_image:
        return Inputs(data, None, val_fraction, test_fraction)
    scaled, standardise = _standardised(data)
    return Inputs(scaled, standardise, val_fraction, test_fraction)


def _standardised(data: DataSet) -> tuple[DataSet, Standardise]:
    """The data with features of mean 0 and sd 1 over the train rows; a constant feature becomes 0."""
    rows = data.splits["train"].inputs.double()
    # In float32 from here on, as the exported model does it: the model is judged on the numbers that it will see.
    mean, sd = rows.mean(dim=0).float(), rows.std(dim=0, unbiased=False).float()
    sd = torch.where(sd > 0, sd, 1.0)

    def scale(split: Split) -> Split:
        return replace(split, inputs=(split.inputs - mean) / sd)

    told: dict[str, Any] = {**data.provenance, "standardised": "features less their mean, over their sd, of train"}
    splits = {name: scale(split) for name, split in data.splits.items()}
    fingerprint = hash_json([data.fingerprint, "standardised"])
    scaled = replace(data, splits=splits, fingerprint=fingerprint, provenance=told)
    return scaled, (tuple(mean.tolist()), tuple(sd.tolist()))


DEFAULT_BUDGET_S = 600.0
LEAST_TRIALS = 16  # two trainings, four candidates, and two new seeds of cross-entropy, a finalist and its control
LARGEST_LOSS = 0.5  # of accuracy: nobody means to give up more

Important = str | int | Sequence[str | int] | Mapping[str | int, float] | None


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request. `plain` is the training that the others are variants of; its epochs may still be changed.

    `important` has names, or "worst": the class that cross-entropy recognises worst on validation data.
    """

    source: str
    data_options: tuple[tuple[str, Any], ...]
    inputs: Inputs
    important: Column
    plain: Training
    device: torch.device
    budget_s: float | None
    num_trials: int | None
    tolerance: float
    seed: int
    epochs: int | None
    out: Path

    @property
    def data(self) -> DataSet:
        return self.inputs.data

    def resolved(self) -> Resolved | None:
        """Class indices and strengths; None while the worst class is still to be found."""
        columns = resolve(study("fit", self.source, [self.important], ["ce"]), self.data.classes)
        return None if columns is None else columns[0]

    def to_json(self) -> dict[str, Any]:
        """What must be the same in a folder's fit for a request to go on with it."""
        return {
            "data": self.data.fingerprint,
            "important": [list(pair) for pair in zip(self.important.classes, self.important.strengths, strict=True)],
            "model": self.plain.model,
            "model options": {k: v for k, v in self.plain.model_options if k != "initial"},
            BUDGET: self.budget_s,
            "trials": self.num_trials,
            "keep accuracy": self.tolerance,
            "epochs": self.epochs,
            "seed": self.seed,
        }


def make_request(
    data: str | PathLike[str] | DataSet,
    important: Important,
    out: str | PathLike[str] | None,
    *,
    budget_s: float | None,
    num_trials: int | None,
    keep_accuracy: float,
    model: str | None,
    weights: str | PathLike[str] | None,
    device: str,
    seed: int,
    epochs: int | None,
    data_options: Mapping[str, Any],
    on_read: Callable[[int, int], None] | None = None,
) -> Request:
    """The checked request; a value that cannot be meant is refused by name. `on_read` hears how far data are read."""
    if budget_s is not None and num_trials is not None:
        raise InputError(f"give a budget ({budget_s:g} s) or a number of trials ({num_trials}), not both")
    if budget_s is not None and not 0 < budget_s < float("inf"):
        raise InputError(f"budget_s={budget_s!r} is not allowed; give seconds above 0", argument="budget_s")
    if num_trials is not None and (type(num_trials) is not int or num_trials < LEAST_TRIALS):
        raise InputError(
            f"num_trials={num_trials!r} is not allowed; give a whole number of at least {LEAST_TRIALS}",
            argument="num_trials",
        )
    if not 0 <= keep_accuracy <= LARGEST_LOSS:
        raise InputError(
            f"keep_accuracy={keep_accuracy!r} is not allowed; give the accuracy that may be given up, 0 to "
            f"{LARGEST_LOSS}, for example 0.01 for one point",
            argument="keep_accuracy",
        )
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed={seed!r} is not allowed; give a whole number of at least 0", argument="seed")
    chosen = pick_device(device)
    source = data.name if isinstance(data, DataSet) else fspath(data)
    for option in data_options:
        if option not in DATA_OPTIONS:
            raise InputError(f"data has no option {option!r}; {closest(option, DATA_OPTIONS)}")
    inputs = prepare(data, data_options, on_read)
    found = inputs.data
    column = parse_important(important, found.classes)
    plain = Training(
        model=model or _model_for(found, chosen),
        model_options=() if weights is None else _initial(weights),
        epochs=epochs if epochs is not None else epochs_for(len(found.splits["train"])),
    )
    if budget_s is None and num_trials is None:
        budget_s = DEFAULT_BUDGET_S
    folder = Path(out) if out is not None else Path("runs") / _folder_name(found.name, column)
    told = tuple(sorted(data_options.items()))
    request = Request(
        source, told, inputs, column, plain, chosen, budget_s, num_trials, keep_accuracy, seed, epochs, folder
    )
    resolved = request.resolved()
    indices = () if resolved is None else tuple(index for index, _ in resolved)
    Job(plain, found, indices).check([Trial(setting("ce"), 0)])
    check_rows(found, indices)
    return request


def check_rows(data: DataSet, important: Sequence[int]) -> None:
    """Refuse important classes that nothing can be chosen or shown on."""
    for part in ("val", "test"):
        counts = data.class_counts(part)
        for index in important:
            if not counts[index]:
                raise InputError(
                    f"class {data.classes[index]!r} has no {data.noun.many} in the {part} split, so its recall "
                    "cannot be told; add some"
                )


def parse_important(given: Important, classes: Sequence[str]) -> Column:
    """The column of important classes; "stop:0.5" is "stop" at half strength, unless a class is called that.

    >>> parse_important(["stop", "yield:0.5"], ["go", "stop", "yield"])
    Column(classes=('stop', 'yield'), strengths=(1.0, 0.5))
    >>> parse_important(None, ["go", "stop"]).classes
    ('worst',)
    """
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return Column.of("worst")
    if isinstance(given, Mapping):
        return Column.of(dict(given))
    words = list(given) if isinstance(given, (list, tuple)) else [given]
    pairs = [_parse_word(word, classes) for word in words]
    return Column(tuple(name for name, _ in pairs), tuple(strength for _, strength in pairs))


def _parse_word(word: Any, classes: Sequence[str]) -> tuple[Any, float]:
    if not isinstance(word, str) or word in classes:
        return word, 1.0
    name, colon, number = word.rpartition(":")
    try:
        name, strength = (name, float(number)) if colon else (word, 1.0)
    except ValueError:
        name, strength = word, 1.0
    if name not in classes and (hint := one_by_one(word, classes)):
        raise InputError(f"important={word!r} is not a class; {hint}", argument="important")
    return name, strength


def epochs_for(num_rows: int) -> int:
    """Passes over the data: 18 for 50,000 rows, as in the fast schedule, more for fewer rows, between 12 and 60.

    >>> epochs_for(50_000), epochs_for(10_000), epochs_for(1_000)
    (18, 40, 60)
    """
    return int(min(60, max(12, round(18 * (50_000 / num_rows) ** 0.5))))


def _model_for(data: DataSet, device: torch.device) -> str:
    if not data.is_image:
        return "features"
    # The authors' CNN takes 568 M multiply-adds for a 32 × 32 image: on a processor a trial of it lasts hours.
    return "paper" if device.type == "cuda" and min(data.input_shape[:2]) >= 16 else "small"


def _initial(weights: str | PathLike[str]) -> tuple[tuple[str, Any], ...]:
    path = Path(weights).absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"weights={weights} cannot be read ({error.strerror}); give a safetensors file", argument="weights"
        ) from None
    return (("initial", str(path)), ("initial_sha256", digest))


def _folder_name(data: str, column: Column) -> str:
    """
    >>> _folder_name("signs", Column.of(["stop", "no entry"]))
    'signs-stop-no_entry'
    """
    words = [data, *map(str, column.classes)]
    return "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)[:80]
