"""Check what a fit reports: fits of simulated tables, judged on fresh rows of the same population.

python -m benchmarks.promises --cases shift rare --fits 40     # ten to thirty seconds per fit on one core

Prints JSON. `held`: for every 95 % interval of a fit, in how many fits it contains the truth. For the model that is
handed over the truth is its own figure on fresh rows; for a step the mean over new seeds of the settings that its
halves chose, shifted by its rule (`own`: over the fit's own models, so that only the test rows are random).
`claimed`: fits that recommend a method; `wrongly`: those of them in which it adds nothing. `accuracy` and `recall`:
the model's minus cross-entropy's, on fresh rows; `lower`: fits in which accuracy is lower by more than a point;
`dropped`: fits that say so themselves. `predicts`: the model does on test rows what the fit says.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import camri
from camri.data import DataSet, Split
from camri.data.dataset import assemble
from camri.engine import Training, Trial, train
from camri.fitting import Fitted, outputs
from camri.fitting.request import prepare
from camri.methods import Setting, setting
from camri.selection import Candidate, Choice, Judgement, judge
from camri.selection import Trial as Scored
from camri.study.reader import RunReader
from camri.study.verdict import Judged, judge_column

IMPORTANT = 0
CE = setting("ce")
FIGURES = ("recall", "accuracy", "false alarms")
STEPS = (("training", "before"), ("shift", "training"), ("method", "shift"), ("together", "before"))


@dataclass(frozen=True)
class Population:
    """Gaussian clusters of unit noise, a class each; `share` is the important class's, the others' are equal.

    apart: how far a centre is from the origin. lost: the part of the important rows that look like another class.
    mislabelled: the part of rows that get a label at random. `group_rows` rows come together, of one class, with
    `alike` of their noise's variance in common.
    """

    num_rows: int
    epochs: int
    share: float = 0.25
    apart: float = 1.8
    lost: float = 0.0
    mislabelled: float = 0.0
    num_features: int = 8
    num_classes: int = 4
    group_rows: int = 1
    alike: float = 0.0

    def draw(self, num_rows: int, drawn: np.random.Generator) -> Split:
        num_groups = -(-num_rows // self.group_rows)
        rest = (1 - self.share) / (self.num_classes - 1)
        classes = drawn.choice(self.num_classes, num_groups, p=[self.share] + [rest] * (self.num_classes - 1))
        looks = np.where((classes == IMPORTANT) & (drawn.random(num_groups) < self.lost), 1, classes)
        centres = self.apart * np.eye(self.num_classes, self.num_features)[looks]
        common = np.sqrt(self.alike) * drawn.normal(size=centres.shape)
        groups = np.repeat(np.arange(num_groups), self.group_rows)
        own = np.sqrt(1 - self.alike) * drawn.normal(size=(len(groups), self.num_features))
        inputs = torch.from_numpy(((centres + common)[groups] + own).astype(np.float32))
        is_wrong = drawn.random(num_groups) < self.mislabelled
        labels = np.where(is_wrong, drawn.integers(0, self.num_classes, num_groups), classes)
        marks = torch.from_numpy(groups) if self.group_rows > 1 else None
        return Split(inputs, torch.from_numpy(labels[groups].astype(np.int64)), marks)


CASES = {
    "shift": Population(900, epochs=6),
    "nothing helps": Population(900, apart=3.5, lost=0.25, epochs=6),
    "rare": Population(1800, share=0.08, epochs=4),
    "groups": Population(1080, group_rows=6, alike=0.7, epochs=5),
    "training": Population(500, num_features=20, mislabelled=0.2, epochs=15),
}


def candidates(settings: Sequence[Setting], seeds: Sequence[int], data: DataSet, training: Training) -> list[Candidate]:
    """The settings, trained with the seeds."""
    trials = [Trial(one, seed) for one in settings for seed in seeds]
    found = train(trials, data, "cpu", training=training, important=[IMPORTANT], workers=1)
    scored = [Scored(one.trial.seed, one.scores["val"], one.scores["test"]) for one in found]
    return [Candidate(one.key, scored[i * len(seeds) : (i + 1) * len(seeds)]) for i, one in enumerate(settings)]


def added(judged: Judgement, plain: Candidate) -> dict[str, float]:
    """What each step adds to each figure."""
    tests = {trial.seed: trial.test for trial in plain.trials}
    before = [tests[seed] for seed in judged.seeds]
    reached = {
        "before": np.mean([(one.recall()[0], one.accuracy(), one.false_alarms().mean()) for one in before], axis=0)
    }
    for step, name in (("training", "baseline"), ("shift", "baseline shifted"), ("method", "chosen")):
        arm = judged.arms[name]
        reached[step] = np.array([arm.recall.mean(), arm.accuracy.mean(), arm.false_alarms.mean()])
    reached["together"] = reached["method"]
    return {
        f"{step}: {figure}": float(more)
        for step, last in STEPS
        for figure, more in zip(FIGURES, reached[step] - reached[last], strict=True)
    }


def truths(fitted: Fitted, best: Judged, settings: list[Setting], data: DataSet, num_new: int) -> dict[str, Any]:
    """What the steps add on the data's test rows, in the fit's own models and in new ones; cross-entropy's figures."""
    plain = Training(model=fitted.training.model, epochs=fitted.training.epochs)

    def trained(seeds: Sequence[int]) -> tuple[Candidate, list[Candidate], Candidate]:
        ce, *rest = candidates([CE, *settings], seeds, data, fitted.training)
        return ce, rest, ce if fitted.training_name == "plain" else candidates([CE], seeds, data, plain)[0]

    ce, rest, before = trained(best.judgement.seeds)
    own = added(judge(best.choice, ce, rest, seed=0, num_draws=2), before)
    ce, rest, before = trained(range(10_000, 10_000 + num_new))
    rule, parts = best.choice.rule, []
    for group, pick in best.choice.folds:
        alone = Choice(rule, replace(pick, floor=rule.floor(ce.validation())), (), fresh_seeds=True)
        parts += [added(judge(alone, ce, rest, seed=0, num_draws=2), before)] * len(group)
    new = {name: float(np.mean([part[name] for part in parts])) for name in own}
    accuracy, recall = np.mean([(one.test.accuracy(), one.test.recall()[0]) for one in ce.trials], axis=0).tolist()
    return {"own": own, "new": new, "accuracy": accuracy, "recall": recall}


def one_fit(case: str, number: int, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fit a sample and compare what it says with the truth."""
    population = CASES[case]
    fresh = population.draw(asked.fresh, np.random.default_rng(99))
    rows = population.draw(population.num_rows, np.random.default_rng([number, list(CASES).index(case)]))
    data = assemble(case, tuple(map(str, range(population.num_classes))), {"train": rows}, {})
    options: dict[str, Any] = {"num_trials": asked.trials, "epochs": population.epochs, "device": "cpu", "seed": number}
    fitted = camri.fit(data, str(IMPORTANT), folder, **options)
    inputs = prepare(data)
    assert inputs.standardise is not None
    mean, sd = map(torch.tensor, inputs.standardise)
    with RunReader(fitted.out) as reading:
        (column,) = reading.columns
        best = judge_column(reading, column).best
        assert best is not None
        keys = {best.choice.final.key, *(pick.key for _, pick in best.choice.folds)} - {CE.key}
        settings = {one.key: Setting.from_json(one.rows[0].setting) for one in reading.settings(column)}
    splits = {**inputs.data.splits, "test": replace(fresh, inputs=(fresh.inputs - mean) / sd)}
    true = truths(fitted, best, [settings[key] for key in sorted(keys)], replace(inputs.data, splits=splits), asked.new)

    def outcomes(split: Split) -> dict[str, np.ndarray]:
        """For each figure, the rows it is a share of, True where they count."""
        labels = split.labels.numpy()
        called = np.array(fitted.load().predict(split.inputs.numpy())).astype(int)
        hit, is_alarm = called == labels, (called == IMPORTANT) & (labels != IMPORTANT)
        counted = (hit[labels == IMPORTANT], hit, is_alarm, hit[called == IMPORTANT])
        return dict(zip((*FIGURES, "precision"), counted, strict=True))

    test, one = inputs.data.splits["test"], fitted.handed
    counts = [int(hit.sum()) for hit in outcomes(replace(test, inputs=test.inputs * sd + mean)).values()]
    handed = {f"model: {figure}": float(hit.mean()) for figure, hit in outcomes(fresh).items()}
    figures = dict(
        zip((*FIGURES, "precision"), (one.recalls[0], one.accuracy, one.false_alarms, one.precisions[0]), strict=True)
    )
    claimed = {f"model: {figure}": interval for figure, interval in figures.items() if interval is not None}
    for step in fitted.evidence.steps[1:]:
        for figure, gain in zip(FIGURES, vars(step.gains).values(), strict=True):
            claimed[f"{step.name}: {figure}"] = gain
    return {
        **{f"held {kind}": {n: end.low <= {**true[kind], **handed}[n] <= end.high for n, end in claimed.items()}
           for kind in ("own", "new")},
        "claimed": fitted.evidence.gain_is_shown,
        "wrongly": fitted.evidence.gain_is_shown and true["new"]["method: recall"] <= 0,
        "dropped": fitted.accuracy_dropped,
        "accuracy": handed["model: accuracy"] - true["accuracy"],
        "recall": handed["model: recall"] - true["recall"],
        "predicts": counts == [one.hits[0], one.num_right, one.num_false_alarms, one.hits[0]],
    }  # fmt: skip


def summarise(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count over the fits of a case."""
    accuracy, recall = (np.array([one[name] for one in found]) for name in ("accuracy", "recall"))
    summary: dict[str, Any] = {"fits": len(found)}
    for kind in ("held new", "held own"):
        names = dict.fromkeys(name for one in found for name in one[kind])
        held = {name: [one[kind][name] for one in found if name in one[kind]] for name in names}
        summary[kind] = {name: f"{sum(those)}/{len(those)}" for name, those in held.items()}
    summary |= {name: sum(one[name] for one in found) for name in ("claimed", "wrongly", "dropped", "predicts")}
    summary["accuracy"] = {
        "mean": float(accuracy.mean()), "sd": float(accuracy.std()), "lowest": float(accuracy.min()),
        "lower": int((accuracy < -0.01).sum()),
    }  # fmt: skip
    return {**summary, "recall": {"mean": float(recall.mean()), "sd": float(recall.std())}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--fits", type=int, default=40)
    parser.add_argument("--trials", type=int, default=36)
    parser.add_argument("--new", type=int, default=10, help="new seeds for the truth of steps")
    parser.add_argument("--fresh", type=int, default=20_000, help="rows for the truth")
    asked = parser.parse_args()
    outputs.can_draw = lambda: False  # a page takes seconds, and no figure is made by it
    found = {}
    for case in asked.cases:
        fits = []
        for number in range(asked.fits):
            with tempfile.TemporaryDirectory() as folder:
                fits.append(one_fit(case, number, asked, Path(folder) / "fit"))
        found[case] = summarise(fits)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
