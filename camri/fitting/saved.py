"""The model that a fit hands over: as it is saved, and its scores as they will be where it is loaded."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camri.data.rows import Inputs
from camri.decision.answer import EXAMPLES_FILE
from camri.decision.rules import DecisionRule
from camri.decision.scores import Array, exact
from camri.engine import Training, Trial
from camri.errors import InputError
from camri.export import Model, Trained, load
from camri.files import replacing
from camri.fitting.judge import Held
from camri.fitting.request import Request
from camri.fitting.trainer import outcome_with_weights
from camri.methods import Setting

MODEL = "model"  # in the folder of a fit
WEIGHTS = "weights"  # folder of trained weights, until the fit has finished
MOST_EXAMPLES = 24


def take_model(
    request: Request, training: Training, important: Sequence[int], setting: Setting, seed: int, rule: DecisionRule
) -> tuple[Trained, Trained]:
    """The model to hand over; and as it takes the rows of `request.data`, which may be a frozen backbone's features."""
    # Without the file of initial weights, which may not exist where the model is loaded.
    kept = tuple(pair for pair in training.model_options if not pair[0].startswith("initial"))
    portable = training.with_(model_options=kept)
    trained = None
    with contextlib.suppress(InputError):  # an earlier call may have saved it, and left no other weights
        trained = load(request.out / MODEL).trained
    bare = None
    if trained is None or (trained.setting, trained.seed, trained.training) != (setting, seed, portable):
        outcome = outcome_with_weights(request, request.out / WEIGHTS, Trial(setting, seed), training)
        outcome = replace(outcome, training=portable)
        trained = Trained.of(outcome, request.data, important, rule, request.inputs.standardise)
        if request.inputs.images is not None:  # the head alone: the features of all images are at hand
            bare = Trained.of(outcome, replace(request.data, provenance={}), important)
    trained = replace(trained, rule=rule)
    return trained, bare or trained


def score(request: Request, trained: Trained, seed: int = 0) -> tuple[Held, dict[str, Array]]:
    """A model's scores before its rule, in full precision as it is saved: a GPU trains and counts in half."""
    # As it takes the features in `data`, which are scaled already.
    model = Model(replace(trained, rule=None, standardise=None))
    model.module.to(request.device)
    splits = request.data.splits
    logits = {name: model.logits(splits[name].inputs) for name in ("val", "test")}
    held = {name: exact(v, splits[name].labels.numpy(), trained.important) for name, v in logits.items()}
    return Held(seed, held), logits


def write_examples(request: Request, model: Held, logits: Mapping[str, Array], rule: DecisionRule) -> None:
    """Write examples.npz: see `camri.decision.answer.EXAMPLES_FILE`."""
    test, split = model.scores["test"], request.data.splits["test"]
    predicted = rule.predict(test)
    lead = test.lead.astype(np.float64).max(axis=1)
    own = np.isin(test.labels, test.important)
    missed = np.flatnonzero(own & ~test.is_right(predicted))
    alarms = np.flatnonzero(test.is_false_alarm(predicted))
    worst = {
        "missed": missed[np.argsort(lead[missed], kind="stable")][:MOST_EXAMPLES],
        "false_alarms": alarms[np.argsort(-lead[alarms], kind="stable")][:MOST_EXAMPLES],
    }
    inputs = {f"{name}_inputs": _raw(request, split.inputs, rows) for name, rows in worst.items()}
    arrays: dict[str, Any] = {
        f"{name}_{what}": values
        for name in ("val", "test")
        for what, values in (("labels", model.scores[name].labels), ("logits", logits[name]))
    }
    with replacing(request.out / EXAMPLES_FILE, "; choose another folder") as part, open(part, "wb") as file:
        np.savez_compressed(file, **(arrays | worst | inputs))


def _raw(request: Request, inputs: Inputs, rows: Array) -> Array:
    """Test inputs as the user's data have them: images before a frozen backbone, features not yet standardised."""
    if request.inputs.images is not None:
        inputs = request.inputs.images.splits["test"].inputs
    chosen: Array = inputs[rows].numpy()
    if request.inputs.standardise is None or request.inputs.images is not None:
        return chosen
    mean, sd = (np.array(values, dtype=np.float32) for values in request.inputs.standardise)
    return chosen * sd + mean
