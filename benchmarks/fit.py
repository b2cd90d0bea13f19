"""Judge `camri fit`: beside what a user would do in the same time, and by verdicts on data whose truth is known.

python -m benchmarks.fit --task breast_cancer --budget 60                 # one cell: the fit and three rivals
python -m benchmarks.fit --task table --random-state 1 --budget 180       # table: random states 0, 1, 2
python -m benchmarks.fit --task photos --budget 600                       # 500 CIFAR-10 photos a class (CAMRI_DATA)
python -m benchmarks.fit --truth change train nothing --fits 10 --trials 60

python -m benchmarks.fit --cells 60 180 600 --lanes 2,3 4,5 6,7 --out cells    # all tasks, side by side
python -m benchmarks.fit --truth change train nothing --lanes 2,3 4,5 --out cells
python -m benchmarks.fit --table cells                                    # the files of --out as tables

Prints JSON; with --lanes every cell runs in a process of its own, pinned to the cores of a lane, without a GPU, and
leaves a file in --out, which is not made again. A cell has recall, accuracy and false alarms of each model on the same
test rows; `late`: whether the call took longer than 1.15 × budget + 15 s. The rivals: scikit-learn's
HistGradientBoosting ("trees") and MLP ("mlp"), and a plain PyTorch loop with early stopping ("loop"), each fitted on
the same train rows with the decision tuned on the same validation rows. They do not depend on the fit and run once per
task, the loop again where a smaller budget ends it sooner. With --truth, `held` says whether the 95 % intervals of the
model handed over contain its figures on fresh rows, `gains` what is true there, and `right` whether the verdict is:
the gains are those of new seeds: recall of the best shift at the accuracy of plain cross-entropy (`could`), recall of
the rival over cross-entropy where both have half a point less accuracy than that (`method`), and the changes of recall
and accuracy by the tuned rule.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import camri
from camri.data import DataSet, Split, hold_out, load, thin_out
from camri.data.dataset import assemble
from camri.decision import SLACK, MostRecall, trace, tune
from camri.decision.scores import exact, pool
from camri.engine import Training, Trial, train
from camri.engine.spec import commit
from camri.export import Model
from camri.fitting import Fitted, handover
from camri.fitting.judge import Aim, Held, apply, mean_of, rows_of, rules_of
from camri.fitting.request import prepare
from camri.fitting.trainer import change, setting_of
from camri.methods import Setting, setting

Array = np.ndarray
GOAL = MostRecall()
PRIOR_ROWS = 500
LEAST_GAIN = 0.02
SMALL_DROP = 0.005  # of accuracy: what a rule tuned on a few hundred rows may cost on others


# The tasks.


def breast_cancer(random_state: int) -> tuple[DataSet, str]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return table_of("breast_cancer", data.data, data.target, [str(name) for name in data.target_names]), "malignant"


def made_table(random_state: int) -> tuple[DataSet, str]:
    from sklearn.datasets import make_classification

    rows, labels = make_classification(
        20_000, 30, n_informative=12, n_redundant=6, n_classes=3, n_clusters_per_class=3, weights=[0.6, 0.37, 0.03],
        flip_y=0.01, random_state=random_state,
    )  # fmt: skip
    return table_of(f"table-{random_state}", rows, labels, ["common", "usual", "rare"]), "rare"


def photos(random_state: int) -> tuple[DataSet, str]:
    whole = load("cifar10")
    labels = whole.splits["train"].labels.numpy()
    drawn = np.random.default_rng(random_state)
    kept = np.concatenate([drawn.permutation(np.flatnonzero(labels == index))[:500] for index in range(10)])
    splits = {**whole.splits, "train": whole.splits["train"].rows(np.sort(kept))}
    return replace(whole, splits=splits, fingerprint=f"{whole.fingerprint}-500-{random_state}"), "cat"


def signs(random_state: int) -> tuple[DataSet, str]:
    data = load("gtsrb", size=32)
    rare = int(data.class_counts("train").argmin())
    return data, data.classes[rare]


def demo(random_state: int) -> tuple[DataSet, str]:
    return thin_out(hold_out(load("digits"), "val", 0.2, 0), {"8": 0.15}), "8"


TASKS: dict[str, Callable[[int], tuple[DataSet, str]]] = {
    "demo": demo, "breast_cancer": breast_cancer, "table": made_table, "photos": photos, "signs": signs,
}  # fmt: skip


def table_of(name: str, rows: Array, labels: Array, classes: Sequence[str]) -> DataSet:
    split = Split(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))
    return assemble(name, tuple(classes), {"train": split}, {})


# What a user would do. Each takes flat train rows and returns a function from rows to log-probabilities.


def fit_trees(rows: Array, labels: Array, val: tuple[Array, Array], budget_s: float) -> Callable[[Array], Array]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(random_state=0).fit(rows, labels)
    return lambda other: np.log(np.clip(model.predict_proba(other), 1e-12, 1))


def fit_mlp(rows: Array, labels: Array, val: tuple[Array, Array], budget_s: float) -> Callable[[Array], Array]:
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier((128, 128), early_stopping=True, random_state=0).fit(rows, labels)
    return lambda other: np.log(np.clip(model.predict_proba(other), 1e-12, 1))


def fit_loop(rows: Array, labels: Array, val: tuple[Array, Array], budget_s: float) -> Callable[[Array], Array]:
    """A small network by hand: Adam, batches of 64, stopped when validation accuracy has not risen for ten epochs."""
    torch.manual_seed(0)
    began, width = time.monotonic(), rows.shape[1:]
    num_classes = int(labels.max()) + 1
    if len(width) == 1:
        layers: list[torch.nn.Module] = [torch.nn.Linear(width[0], 128), torch.nn.ReLU(), torch.nn.Linear(128, 128),
                                         torch.nn.ReLU(), torch.nn.Linear(128, num_classes)]  # fmt: skip
    else:
        layers = []
        for before, after in ((width[0], 32), (32, 64), (64, 64)):
            layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU(),
                       torch.nn.MaxPool2d(2)]  # fmt: skip
        layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, num_classes)]
    model = torch.nn.Sequential(*layers)
    steps = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)

    def predict(other: Array) -> Array:
        model.eval()
        with torch.inference_mode():
            parts = [model(torch.from_numpy(other[start : start + 1024])) for start in range(0, len(other), 1024)]
        return torch.cat(parts).log_softmax(dim=1).numpy()

    best, kept, waited = -1.0, {}, 0
    while waited < 10 and time.monotonic() - began < budget_s:
        model.train()
        for batch in torch.randperm(len(x)).split(64):
            if len(batch) < 2:
                continue
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            steps.step()
        accuracy = float((predict(val[0]).argmax(axis=1) == val[1]).mean())
        waited += 1
        if accuracy > best:
            best, waited = accuracy, 0
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return predict


RIVALS = {"trees": fit_trees, "mlp": fit_mlp, "loop": fit_loop}


def figures(predicted: Array, labels: Array, important: int) -> dict[str, Any]:
    own = labels == important
    return {
        "hits": int((predicted[own] == important).sum()),
        "num": int(own.sum()),
        "recall": float((predicted[own] == important).mean()),
        "accuracy": float((predicted == labels).mean()),
        "false_alarms": int((predicted[~own] == important).sum()),
    }


def run_cell(asked: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The fit and its rivals on one task."""
    data, name = TASKS[asked.task](asked.random_state)
    important = data.class_index(name)
    inputs = prepare(data).data
    parts = {part: inputs.splits[part] for part in ("train", "val", "test")}
    labels = {part: split.labels.numpy() for part, split in parts.items()}
    cells, load = [], os.getloadavg()[0]
    for arm in asked.arms:
        began = time.monotonic()
        found: dict[str, Any] = {
            "task": data.name,
            "important": name,
            "budget_s": asked.budget,
            "arm": arm,
            "load": load,
        }
        if arm == "fit":
            with contextlib.redirect_stdout(sys.stderr):
                fitted = camri.fit(data, name, folder, budget=asked.budget, device="cpu", seed=asked.seed)
            after = fitted.answer.made.handed.after
            found |= {"hits": after.recalls[0].hits, "num": after.recalls[0].num, "recall": after.recalls[0].value,
                      "accuracy": after.accuracy.value, "false_alarms": after.false_alarms.hits,
                      "verdict": fitted.answer.verdict.kind, "answer": str(fitted)}  # fmt: skip
        else:
            flat = arm != "loop" or not inputs.is_image
            rows = {part: _rows(split, flat) for part, split in parts.items()}
            model = RIVALS[arm](rows["train"], labels["train"], (rows["val"], labels["val"]), asked.budget)
            point = tune(exact(model(rows["val"]), labels["val"], [important]), GOAL, prior_rows=PRIOR_ROWS)
            predicted = point.rule.predict(model(rows["test"]))
            found |= figures(predicted, labels["test"], important)
        wall_s = round(time.monotonic() - began, 1)
        cells.append({**found, "wall_s": wall_s, "late": wall_s > 1.15 * asked.budget + 15})
    return cells


def _rows(split: Split, flat: bool) -> Array:
    rows = split.inputs.float()
    if rows.dim() == 4:
        rows = (rows / 255).permute(0, 3, 1, 2)
    return (rows.flatten(start_dim=1) if flat else rows).contiguous().numpy()


# Made truth.


@dataclass(frozen=True)
class Population:
    """Gaussian clusters of unit noise, a class each; `share` is the important class's, the others' are equal.

    train_share: its share of the train rows, if that is another; a shift then makes up for it. apart: how far a centre
    is from the origin. lost: the part of the important rows that look like another class. spread: standard deviation of
    the important class's noise. bands: if any, the classes take turns along the first feature in so many bands, and the
    others are noise: boosted trees find that, a network with few rows does not.
    """

    num_rows: int
    share: float = 0.25
    train_share: float | None = None
    apart: float = 1.8
    lost: float = 0.0
    spread: float = 1.0
    bands: int = 0
    num_features: int = 8
    num_classes: int = 4

    def splits(self, drawn: np.random.Generator) -> dict[str, Split]:
        """Train, validation and test rows, in the shares that a fit makes itself."""
        parts = {"train": 0.56, "val": 0.14, "test": 0.3}
        shares = {"train": self.train_share}
        return {name: self.draw(round(part * self.num_rows), drawn, shares.get(name)) for name, part in parts.items()}

    def draw(self, num_rows: int, drawn: np.random.Generator, share: float | None = None) -> Split:
        share = share or self.share
        rest = (1 - share) / (self.num_classes - 1)
        classes = drawn.choice(self.num_classes, num_rows, p=[share] + [rest] * (self.num_classes - 1))
        looks = np.where((classes == 0) & (drawn.random(num_rows) < self.lost), 1, classes)
        noise = drawn.normal(size=(num_rows, self.num_features)) * np.where(looks == 0, self.spread, 1.0)[:, None]
        inputs = self.apart * np.eye(self.num_classes, self.num_features)[looks] + noise
        if self.bands:
            rounds = drawn.integers(self.bands // self.num_classes, size=num_rows)
            inputs = noise
            inputs[:, 0] = looks + self.num_classes * rounds + drawn.random(num_rows)
        return Split(torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(classes.astype(np.int64)))


CASES = {
    "change": Population(3000, train_share=0.04),
    "flat": Population(3000, share=0.12, apart=1.5),  # argmax is nearly the best rule: more recall costs a little
    "wide": Population(3000, share=0.12, apart=1.5, spread=1.6),
    "nothing": Population(3000, apart=3.5, lost=0.25),
    "train": Population(3000, lost=0.1, bands=12),
}


def one_fit(case: str, number: int, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fit a sample, and compare verdict and intervals with the truth."""
    population = CASES[case]
    fresh = population.draw(asked.fresh, np.random.default_rng(99))
    splits = population.splits(np.random.default_rng([number, list(CASES).index(case)]))
    data = assemble(case, tuple("abcd"), splits, {})
    with contextlib.redirect_stdout(sys.stderr):
        fitted = camri.fit(data, "a", folder, num_trials=asked.trials, device="cpu", seed=number)
    answer, labels = fitted.answer, fresh.labels.numpy()
    predicted = np.array([data.class_index(one) for one in fitted.load().predict(fresh.inputs.numpy())])
    true = figures(predicted, labels, 0)
    true["false_alarms"] /= len(labels)
    after = answer.made.handed.after
    claimed = {"recall": after.recalls[0], "accuracy": after.accuracy, "false_alarms": after.false_alarms}
    inputs = prepare(data)
    assert inputs.standardise is not None
    mean, sd = map(torch.tensor, inputs.standardise)
    test = inputs.data.splits["test"]
    said = np.array([data.class_index(one) for one in fitted.load().predict((test.inputs * sd + mean).numpy())])
    others = {**inputs.data.splits, "test": replace(fresh, inputs=(fresh.inputs - mean) / sd)}
    gains = true_gains(fitted, replace(inputs.data, splits=others), asked.new)
    return {
        "case": case,
        "verdict": answer.verdict.kind,
        "reason": answer.verdict.reason,
        "gains": gains,
        "right": is_right(answer.verdict.kind, gains),
        "held": {name: bool(one.low <= true[name] <= one.high) for name, one in claimed.items()},
        "predicts": abs(int((said == test.labels.numpy()).sum()) - after.accuracy.hits) <= 1,
        "num_seeds": answer.evidence.num_seeds,
    }


def is_right(verdict: str, gains: dict[str, float]) -> bool | None:
    """Whether a verdict's statement is true of the population; None if it states nothing."""
    if verdict == "train_with":
        return gains["method"] > 0
    if verdict == "change_the_decision":
        does_gain = gains["rule_recall"] > 0 and gains["rule_accuracy"] >= -SMALL_DROP
        return does_gain and gains["method"] < LEAST_GAIN
    if verdict == "nothing_to_gain":
        return max(gains["could"], gains["method"]) < LEAST_GAIN
    return None


def true_gains(fitted: Fitted, data: DataSet, num_new: int) -> dict[str, float]:
    """What a rule and the race's winner, or trees if they were handed over, gain on fresh rows over new seeds."""
    decided = json.loads((fitted.out / "fit.json").read_text())
    options = tuple(decided["request"]["model_options"].items())
    plain = Training(model="features", model_options=options, epochs=decided["epochs"])
    training = change(data, plain, decided["training"])
    is_trees = fitted.answer.made.handed.method == "trees"
    settings: list[Setting] = [setting("ce")]
    if decided["winner"] is not None and not is_trees:
        settings.append(setting_of((decided["winner"][0], tuple(decided["winner"][1])), ((0, 1.0),)))
    seeds = range(10_000, 10_000 + num_new)
    trials = [Trial(one, seed) for one in settings for seed in seeds]
    found = train(trials, data, "cpu", training=training, important=[0], workers=1)
    models = [Held(one.trial.seed, one.scores) for one in found if one.status == "done"]
    baseline, rivals = models[:num_new], models[num_new:]
    if is_trees:
        model = Model(replace(fitted.load().trained, rule=None, standardise=None))
        rivals = [Held(seed, {name: exact(model.logits(data.splits[name].inputs), data.splits[name].labels.numpy(), [0])
                              for name in ("val", "test")}) for seed in seeds[:1]]  # fmt: skip
    together = pool([model.scores["test"] for model in baseline])

    def best(arm: Sequence[Held], drop: float) -> float:
        """The highest recall that one shift reaches on fresh rows at cross-entropy's accuracy less `drop`."""
        curve = trace(pool([model.scores["test"] for model in arm]))
        return float(curve.mean_recall[curve.accuracy >= together.accuracy() - drop].max(initial=0.0))

    rules = rules_of(Aim(GOAL, baseline, PRIOR_ROWS).tune_arm(baseline, is_baseline=True))
    tuned, rows = apply("", baseline, rules, "test", GOAL), rows_of(baseline, "test")
    return {
        "rule_recall": float(mean_of(tuned, rows, "recall") - together.recall()[0]),
        "rule_accuracy": float(tuned.right.mean() - together.accuracy()),
        "could": best(baseline, SLACK) - float(together.recall()[0]),
        # Not at the accuracy itself, which is near the top of both curves: a rival 0.01 points lower would have none.
        "method": best(rivals, SMALL_DROP) - best(baseline, SMALL_DROP) if rivals else 0.0,
    }


# Many cells side by side.

CELLS = ("demo", "breast_cancer", "table:0", "table:1", "table:2", "photos", "signs")
MANY_FEATURES = ("photos", "signs")  # trees would take hours
WORDS = {
    "demo": "digits, rare “8”", "breast_cancer": "breast cancer, malignant", "table:0": "made table, state 0",
    "table:1": "made table, state 1", "table:2": "made table, state 2", "photos": "5,000 photos of CIFAR-10, cat",
    "signs": "GTSRB, its rarest sign",
}  # fmt: skip


def cell_words(task: str, budget: float, arms: Sequence[str]) -> list[str]:
    """The options that run one cell in a process."""
    name, _, state = task.partition(":")
    return ["--task", name, "--random-state", state or "0", "--budget", f"{budget:g}", "--arms", *arms]


def cell_file(folder: Path, task: str, budget: float, what: str) -> Path:
    return folder / f"{task.replace(':', '-')}_{budget:g}_{what}.json"


def run_lanes(asked: argparse.Namespace) -> None:
    """Run cells and truths in lanes, each on its own cores; the longest first."""
    folder, most = asked.out, max(asked.cells, default=0.0)
    folder.mkdir(parents=True, exist_ok=True)
    waiting: queue.PriorityQueue[tuple[float, int, Path, list[str]]] = queue.PriorityQueue()
    names = set()

    def add(long_s: float, file: Path, words: list[str]) -> None:
        names.add(file)
        if not file.exists():
            waiting.put((-long_s, len(names), file, words))

    for budget in asked.cells:
        for task in asked.tasks:
            add(budget, cell_file(folder, task, budget, f"fit{asked.suffix}"), cell_words(task, budget, ["fit"]))
    for task in asked.tasks if asked.rivals and asked.cells else ():
        arms = [arm for arm in RIVALS if arm != "trees" or task not in MANY_FEATURES]
        add(most, cell_file(folder, task, most, "rivals"), cell_words(task, most, arms))
    for case in asked.truth or ():
        for number in range(asked.first, asked.first + asked.fits):
            words = ["--truth", case, "--first", str(number), "--fits", "1", "--trials", str(asked.trials)]
            words += ["--new", str(asked.new)]
            add(100.0, folder / f"truth-{case}_{number}.json", words)

    def work(lane: str) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                _, _, file, words = waiting.get_nowait()
                began = time.monotonic()
                code = run_pinned(lane, words, file)
                print(
                    f"{time.monotonic() - began:7.1f} s  {'done' if code == 0 else 'FAILED'}  {file.name}", flush=True
                )
                if code == 0 and file.stem.endswith("_rivals"):
                    (loop,) = (one for one in json.loads(file.read_text())["cells"] if one["arm"] == "loop")
                    task = next(one for one in asked.tasks if file == cell_file(folder, one, most, "rivals"))
                    for budget in asked.cells:
                        if budget < min(most, loop["wall_s"]):
                            add(budget, cell_file(folder, task, budget, "loop"), cell_words(task, budget, ["loop"]))

    threads = [threading.Thread(target=work, args=(lane,)) for lane in asked.lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_pinned(lane: str, words: Sequence[str], file: Path) -> int:
    """Run one cell on the lane's cores; its file appears when it has ended, its messages are beside it."""
    hidden = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    part, log = file.with_suffix(".part"), file.with_suffix(".log")
    with open(part, "wb") as output, open(log, "wb") as messages:
        code = subprocess.run(
            ["taskset", "-c", lane, sys.executable, "-m", "benchmarks.fit", *words],
            stdout=output, stderr=messages, env={**hidden, "CUDA_VISIBLE_DEVICES": ""}, check=False,
        ).returncode  # fmt: skip
    if code == 0:
        part.replace(file)
        log.unlink()
    return code


def print_tables(folder: Path) -> None:
    """The files that `run_lanes` left, as Markdown: the cells, how late they were, the verdicts."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    cells = {(name.split("_")[-1], name): one for name, one in found.items() if "cells" in one}
    arms: dict[tuple[str, float, str], dict[str, Any]] = {}
    for (what, name), one in cells.items():
        if what not in ("fit", "loop", "rivals"):  # again, for its time
            continue
        task = next(task for task in CELLS if name.startswith(f"{task.replace(':', '-')}_"))
        for cell in one["cells"]:
            arms.setdefault((task, cell["budget_s"], cell["arm"]), cell)

    def show(task: str, budget: float, arm: str) -> str:
        cell = arms.get((task, budget, arm))
        if cell is None:  # of the largest budget, if it took no longer than this one
            longer = [one for (t, _, a), one in arms.items() if (t, a) == (task, arm)]
            cell = max(longer, key=lambda one: one["budget_s"], default=None) if arm != "fit" else None
        if cell is None:
            return ""
        slow = f", {cell['wall_s']:.0f} s" if cell["wall_s"] > 1.15 * budget + 15 else ""
        return f"{cell['recall']:.3f} at {cell['accuracy']:.3f} ({cell['false_alarms']}{slow})"

    print("| task | test rows | budget | fit | loop | trees | MLP | verdict |\n|---|---|---|---|---|---|---|---|")
    for task in CELLS:
        for budget in sorted({b for t, b, arm in arms if t == task and arm == "fit"}):
            fit = arms[task, budget, "fit"]
            shown = [show(task, budget, arm) for arm in ("fit", "loop", "trees", "mlp")]
            verdict = fit["verdict"].replace("_", " ")
            print(f"| {WORDS[task]} | {fit['num']} | {budget:g} s | {' | '.join(shown)} | {verdict} |")
    walls = [(name, cell) for (_, name), one in cells.items() for cell in one["cells"] if cell["arm"] == "fit"]
    late = [f"{cell['wall_s']:g} of {cell['budget_s']:g} s ({name})" for name, cell in walls if cell["late"]]
    longest = max((cell["wall_s"] / cell["budget_s"] for _, cell in walls), default=0.0)
    print(f"\n{len(walls)} fits; the longest took {longest:.2f} × budget; {len(late)} late {', '.join(late)}")
    fits = [fit for one in found.values() for fit in one.get("fits", ())]
    if fits:
        print("\n| case | fits | verdicts that are true | that are not | cannot tell | intervals that hold |")
        print("|---|---|---|---|---|---|")
    for case in CASES if fits else ():
        own = [one for one in fits if one["case"] == case]
        said = {right: [one["verdict"] for one in own if one["right"] is right] for right in (True, False, None)}
        cells = [_counted(said[True]), _counted(said[False]), str(len(said[None]))]
        held = [holds for one in own for holds in one["held"].values()]
        print(f"| {case} | {len(own)} | {' | '.join(cells)} | {sum(held)} of {len(held)} |")
    print(f"\ncommits: {', '.join(sorted({str(one['commit']) for one in found.values()}))}")


def _counted(verdicts: Sequence[str]) -> str:
    """
    >>> _counted(["train_with", "train_with", "nothing_to_gain"])
    '2 train with, 1 nothing to gain'
    """
    counts = Counter(verdicts)
    return ", ".join(f"{num} {kind.replace('_', ' ')}" for kind, num in counts.items()) or "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--random-state", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds")
    parser.add_argument("--arms", nargs="+", default=["fit", *RIVALS], choices=["fit", *RIVALS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", nargs="+", choices=CASES)
    parser.add_argument("--fits", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first fit, to run several at once")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--new", type=int, default=10, help="new seeds for the truth")
    parser.add_argument("--fresh", type=int, default=100_000, help="rows for the truth")
    parser.add_argument("--cells", nargs="+", type=float, default=[], metavar="SECONDS", help="budgets of all tasks")
    parser.add_argument("--tasks", nargs="+", default=CELLS, choices=CELLS, help="of --cells")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false", help="the fits of --cells alone")
    parser.add_argument("--suffix", default="", help="in the names of files, to run the same cells again")
    parser.add_argument("--lanes", nargs="+", metavar="CORES", help="cores of each lane, for example 2,3 4,5")
    parser.add_argument("--out", type=Path, default=Path("cells"), help="folder of the lanes' files")
    parser.add_argument("--table", type=Path, metavar="DIR", help="print the files of --out as tables")
    asked = parser.parse_args()
    if asked.table:
        print_tables(asked.table)
        return
    if asked.lanes:
        run_lanes(asked)
        return
    if not asked.task and not asked.truth:
        parser.error("give --task, --truth, --lanes with --cells, or --table")
    if asked.truth:
        handover.can_draw = lambda: False  # a page takes seconds, and no figure is made by it
    result: dict[str, Any] = {"commit": commit(), "torch": torch.__version__, "words": sys.argv[1:]}
    if asked.task:
        with tempfile.TemporaryDirectory() as folder:
            result["cells"] = run_cell(asked, Path(folder) / "fit")
    if asked.truth:
        result["fits"] = []
        for case in asked.truth:
            for number in range(asked.first, asked.first + asked.fits):
                with tempfile.TemporaryDirectory() as folder:
                    result["fits"].append(one_fit(case, number, asked, Path(folder) / "fit"))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
