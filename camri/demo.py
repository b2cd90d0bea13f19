"""The main job on embedded data: digits, its weakest class made important, CAMRI beside its controls."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from camri.data import DataSet, hold_out, load
from camri.engine import Outcome, Progress, Training, Trial, train
from camri.methods import Setting, setting
from camri.metrics import condense
from camri.posthoc import choose_shift

TRAINING = Training(model="small", epochs=12)
SCALE = 8.0
MARGIN_RAD = 0.3


@dataclass(frozen=True)
class Row:
    """One line of the table: recall of the important class and accuracy of each seed, on the test split."""

    title: str
    recall: tuple[float, ...]
    accuracy: tuple[float, ...]
    hits: int
    num: int


@dataclass(frozen=True)
class Demo:
    data: DataSet
    important: int
    rows: tuple[Row, ...]


def run(num_seeds: int = 10, on_progress: Callable[[str, Progress], None] = lambda title, progress: None) -> Demo:
    """What cross-entropy and CAMRI make of digits; the important class and the shifts are chosen on validation data."""
    data = hold_out(load("digits"), fraction=0.2, seed=0)

    def trained(title: str, chosen: Setting) -> list[Outcome]:
        trials = [Trial(chosen, seed) for seed in range(num_seeds)]
        tell = functools.partial(on_progress, title)
        outcomes = train(trials, data, "cpu", training=TRAINING, keep_logits=True, on_progress=tell)
        for outcome in outcomes:
            if outcome.status != "done":
                raise RuntimeError(f"{outcome.trial.setting}, seed {outcome.trial.seed}: {outcome.error}")
        return outcomes

    baseline = trained("cross-entropy", setting("ce"))
    hits = sum(outcome.confusion["val"].diagonal() for outcome in baseline)
    important = int(np.argmin(hits / sum(outcome.confusion["val"].sum(axis=1) for outcome in baseline)))
    control = trained(f"L2-softmax, s = {SCALE:g}", setting("l2softmax", s=SCALE))
    camri = trained(f"CAMRI, s = {SCALE:g}, m = {MARGIN_RAD:g}", setting("camri", important, m=MARGIN_RAD, s=SCALE))
    rows = (
        row("cross-entropy", baseline, data, important),
        row("cross-entropy, shifted afterwards", baseline, data, important, shifted=True),
        row(f"L2-softmax, s = {SCALE:g}", control, data, important),
        row(f"CAMRI, s = {SCALE:g}, m = {MARGIN_RAD:g} rad", camri, data, important),
    )
    return Demo(data, important, rows)


def row(title: str, outcomes: Sequence[Outcome], data: DataSet, important: int, shifted: bool = False) -> Row:
    """A line of the table; `shifted` adds to the important class's score what validation accuracy allows."""
    recall, accuracy, hits, num = [], [], 0, 0
    for outcome in outcomes:
        val, test = (
            condense(outcome.logits[split].astype(np.float32), data.splits[split].labels.numpy(), (important,))
            for split in ("val", "test")
        )
        best = choose_shift(val, accuracy_floor=val.accuracy()) if shifted else None
        shift = best.shift[0] if best is not None else 0.0
        recall.append(float(test.recall(shift)[0]))
        accuracy.append(test.accuracy(shift))
        hits += int(test.hits(shift)[0])
        num += int(test.num[0])
    return Row(title, tuple(recall), tuple(accuracy), hits, num)
