"""The whole job: data in, chosen model and report out."""

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from types import MappingProxyType
from typing import Any

from camri.data import DataSet
from camri.engine import Pool
from camri.engine.training import stop_on_signals
from camri.errors import InputError
from camri.fitting.budget import fit_epochs
from camri.fitting.journal import TRAININGS, Journal
from camri.fitting.pace import slowness
from camri.fitting.request import Important, Request, make_request
from camri.fitting.result import Fitted
from camri.fitting.stages import Stages
from camri.fitting.workshop import Interrupted, Progress, Workshop
from camri.study import lock


class Unfinished(Exception):
    """A fit was stopped before there was anything to hand back; the same command goes on."""


def fit(
    data: str | PathLike[str] | DataSet = "digits",
    important: Important = None,
    out: str | PathLike[str] | None = None,
    *,
    budget_s: float | None = None,
    num_trials: int | None = None,
    keep_accuracy: float = 0.0,
    model: str | None = None,
    weights: str | PathLike[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    epochs: int | None = None,
    data_options: Mapping[str, Any] = MappingProxyType({}),
    on_start: Callable[[Request], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
) -> Fitted:
    """The best model found for the important classes, at no less than cross-entropy's accuracy, with its proof.

    data: whatever `camri.data.load` knows, or a DataSet; splits that it lacks are made. important: names, {name:
    strength}, or None for the class that cross-entropy recognises worst on validation data. out: a folder, new or of
    this same fit, which then goes on; runs/… unless told. Give `budget_s` or `num_trials` (ten minutes unless told).
    keep_accuracy: how much accuracy may be given up, 0.01 for a point. weights: a safetensors file with the trunk's
    first values. data_options: those of `camri.data.load` (size, label_column, …). `on_start` hears what was
    understood before anything is trained. began: the `time.monotonic()` that the budget counts from; this call unless
    told.

    Everything is chosen on validation data; test images are looked at once, at the end. With `num_trials` the same
    call gives the same result. SIGINT hands back what there is, or raises :class:`Unfinished`.
    """
    began = time.monotonic() if began is None else began
    if importlib.util.find_spec("optuna") is None:
        raise InputError("camri fit needs optuna, which is not installed: pip install 'camri[fit]'")
    request = make_request(
        data,
        important,
        out,
        budget_s=budget_s,
        num_trials=num_trials,
        keep_accuracy=keep_accuracy,
        model=model,
        weights=weights,
        device=device,
        seed=seed,
        epochs=epochs,
        data_options=data_options,
        on_read=None if on_progress is None else lambda done, num: on_progress(_reading(done, num)),
    )
    journal = Journal.open(request.out, request.to_json())
    if on_start is not None:
        on_start(request)
    if journal.get("epochs") is None:
        asked_at, asked_at_core_s = time.monotonic(), time.process_time()
        found, trial_s = fit_epochs(request)
        journal.values.update(epochs=found, trial_s=trial_s)
        if trial_s is not None and request.device.type == "cpu":
            found_slow = slowness(time.monotonic() - asked_at, time.process_time() - asked_at_core_s)
            journal.values.update(slowness=round(found_slow, 2))
    request = replace(request, plain=request.plain.with_(epochs=journal.get("epochs")))
    with lock.hold(request.out / TRAININGS), stop_on_signals() as told, Pool() as pool:
        workshop = Workshop(request, on_progress, told.is_set, pool)
        stages = Stages(request, journal, workshop, began)
        try:
            return stages.run()
        except Interrupted:
            told.set()
            try:
                return stages.hand_over(is_finished=False)
            except Interrupted:
                raise Unfinished(stages.missing()) from None
        finally:
            stages.note()


def _reading(done: int, num: int) -> Progress:
    return Progress("reading the data", done, num, None, unit="rows")
