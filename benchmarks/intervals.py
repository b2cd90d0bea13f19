"""How often the interval of a difference holds the truth, and how often its p rejects where nothing differs.

python benchmarks/intervals.py             # differences of recall or accuracy
python benchmarks/intervals.py --curves    # accuracy at equal recall
python benchmarks/intervals.py --curves --figure alarms    # false alarms there
python benchmarks/intervals.py --tuned     # what a tuned rule changes, in an audit; prints JSON
python benchmarks/intervals.py --group-rows 6 --alike 0.9    # six images a patient; with --ungrouped nobody says so

Made tables, seeds × images, of two arms: hardness that both share, each arm's own view of an image, luck of a training,
noise of a single outcome. Few seeds, few images and recalls near 1 are the hard cases. For accuracy at equal recall the
same is made of logits of five classes, one or two of them important. Tuned rules are those of audits of the tables of
benchmarks/audit.py; the truth is what the advised rule changes, and what is there after it, on 100,000 fresh rows.
"""

import argparse
import json
import sys
import warnings
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import norm, ttest_rel

from benchmarks.audit import CLASSES, IMPORTANT, made_rows
from camri.decision import Scores, audit, condense, exact, trace
from camri.decision.stats import compare
from camri.selection import common_range, compare_curves

BETTER = 0.3  # of one arm, in standard deviations of what decides an outcome
WORLDS = {  # the sd of an arm's own view of images, of luck, of single outcomes; hardness has 1
    "outcomes": (0.0, 0.0, 0.4),
    "images": (0.5, 0.1, 0.4),
}
FIGURES = ("recall", "accuracy", "false alarms", "recall after", "false alarms after")
RECALLS = np.linspace(0.3, 1.0, 200)
COSTS = np.where(np.arange(CLASSES)[:, None] == IMPORTANT, 5.0, 1.0) * (1 - np.eye(CLASSES))  # a miss costs five times
GOALS: dict[str, dict[str, Any]] = {"recall": {}, "at-least": {"at_least": 0.8}, "cost": {"cost_matrix": COSTS}}


def made_arms(
    recalls: tuple[float, float],
    world: str,
    num_seeds: int,
    groups: np.ndarray,
    alike: float,
    drawn: np.random.Generator,
) -> list[np.ndarray]:
    """Outcomes (S, N) of two arms of such recalls; images of a group share the part `alike` of each variance."""
    own, luck, noise = WORLDS[world]

    def draw(*shape: int) -> np.ndarray:
        single = drawn.normal(size=(*shape, len(groups)))
        if not alike:
            return single
        return np.sqrt(1 - alike) * single + np.sqrt(alike) * drawn.normal(size=(*shape, groups[-1] + 1))[..., groups]

    hardness = draw()
    arms = []
    for recall in recalls:
        view = hardness + own * draw() + luck * drawn.normal(size=(num_seeds, 1))
        score = view + noise * draw(num_seeds)
        arms.append(score < norm.ppf(recall) * np.sqrt(1 + own**2 + luck**2 + noise**2))
    return arms


def judge_outcomes(asked: argparse.Namespace) -> None:
    warnings.filterwarnings("ignore")  # the t test's, where all differences are equal
    print("world     recall  seeds  images   within: equal  better   p < .05, equal: here  t over seeds  better: here")
    shares = []
    for world, recall, num_seeds, num_images in product(WORLDS, asked.recalls, asked.seeds, asked.images):
        drawn = np.random.default_rng([list(WORLDS).index(world), int(100 * recall), num_seeds, num_images])
        row, groups = [], np.arange(num_images) // asked.group_rows
        for arm in (recall, float(norm.cdf(norm.ppf(recall) + BETTER))):
            marks = []
            for number in range(asked.tables):
                first, second = made_arms((arm, recall), world, num_seeds, groups, asked.alike, drawn)
                told = None if asked.ungrouped else groups
                found = compare(first, second, groups=told, seed=number, num_draws=500)
                alone = ttest_rel(first.mean(axis=1), second.mean(axis=1)).pvalue
                marks.append((found.low <= arm - recall <= found.high, found.p < 0.05, alone < 0.05))
            row.append(np.mean(marks, axis=0))
        (within, rejected, alone), (within_better, power, _) = row
        shares.append((within, within_better, rejected, alone, power))
        print(
            f"{world:9} {recall:6.2f} {num_seeds:6} {num_images:7}"
            + "{:16.3f} {:7.3f} {:22.3f} {:13.3f} {:15.3f}".format(*shares[-1]),
            flush=True,
        )
    for name, ends in (("lowest", np.min(shares, axis=0)), ("highest", np.max(shares, axis=0))):
        print(f"{name:31}" + "{:16.3f} {:7.3f} {:22.3f} {:13.3f} {:15.3f}".format(*ends))


def made_models(
    strengths: tuple[float, float],
    world: str,
    counts: list[int],
    num_important: int,
    num_seeds: int,
    drawn: np.random.Generator,
) -> list[list[Scores]]:
    """Scores of two arms that know the right class so well, of images of five classes, the first ones important."""
    own, luck, noise = WORLDS[world]
    labels = np.repeat(np.arange(len(counts)), counts)
    shape = (len(labels), len(counts))
    hardness, arms = drawn.normal(size=shape), []
    for strength in strengths:
        view = hardness + own * drawn.normal(size=shape) + strength * np.eye(len(counts))[labels]
        arms.append([])
        for _ in range(num_seeds):
            logits = view + luck * drawn.normal(size=len(counts)) + noise * drawn.normal(size=shape)
            arms[-1].append(condense(logits, labels, range(num_important)))
    return arms


def counted_at(scores: Scores, recall: np.ndarray, figure: str) -> np.ndarray:
    """Which images are right, or false alarms, at each recall: (G, N)."""
    curve = trace(scores)
    shifts = curve.value[curve.reach(recall.clip(max=curve.mean_recall[-1]))]
    if figure == "accuracy":
        return np.array([scores.correct(shift) for shift in shifts])
    is_other = ~np.isin(scores.labels, scores.important)
    return np.array([is_other & np.isin(scores.predict(shift), scores.important) for shift in shifts])


def true_gaps(
    strengths: tuple[float, float], world: str, counts: list[int], num_important: int, figure: str
) -> np.ndarray:
    """What the first arm has over the second at each of RECALLS, of 40 models each on 20,000 images of their own."""
    drawn, gaps = np.random.default_rng(0), []
    for _ in range(40 if strengths[0] != strengths[1] else 0):
        many = [count * 20_000 // sum(counts) for count in counts]
        arms = made_models(strengths, world, many, num_important, 1, drawn)
        gaps.append(np.subtract(*(counted_at(arm[0], RECALLS, figure).mean(axis=1) for arm in arms)))
    return np.mean(gaps, axis=0) if gaps else np.zeros_like(RECALLS)


def judge_curves(asked: argparse.Namespace) -> None:
    print(
        "world     classes  images  seeds   within: mean  its ends   better: mean  its ends   p < .05"
        "   shifts given: within  p < .05"
    )
    shares = []
    for world, num_important, num_images, num_seeds in product(WORLDS, (1, 2), asked.images, asked.seeds):
        counts = [num_images] * num_important + [max(200, num_images)] * (5 - num_important)
        row = []
        for strengths in ((2.5, 2.5), (2.5 + BETTER, 2.5)):
            drawn = np.random.default_rng([list(WORLDS).index(world), num_important, num_images, num_seeds])
            true = true_gaps(strengths, world, counts, num_important, asked.figure)
            marks = []
            for number in range(asked.tables):
                arm, other = made_models(strengths, world, counts, num_important, num_seeds, drawn)
                recall = common_range(other, arm)[[0, 4, 8]]
                wanted = np.interp(recall, RECALLS, true)
                found = compare_curves(arm, other, seed=number, recall=recall, figure=asked.figure)
                sides = (
                    np.array([counted_at(one, recall, asked.figure).mean(axis=0) for one in s]) for s in (arm, other)
                )
                given = compare(*sides, seed=number, num_draws=500)  # as if shifts had not been found on these images
                within = [
                    one.low <= gap <= one.high
                    for one, gap in zip(map(found.at, range(len(wanted))), wanted, strict=True)
                ]
                mean = wanted.mean()
                marks.append(
                    (
                        found.mean.low <= mean <= found.mean.high,
                        np.mean([within[0], within[2]]),
                        found.mean.p < 0.05,
                        given.low <= mean <= given.high,
                        given.p < 0.05,
                    )
                )
            row.append(np.mean(marks, axis=0))
        equal, better = row
        shares.append((*equal[:2], *better[:2], *equal[2:]))
        line = "{:15.3f} {:9.3f} {:14.3f} {:9.3f} {:9.3f} {:23.3f} {:8.3f}".format(*shares[-1])
        print(f"{world:9} {num_important:7} {num_images:7} {num_seeds:6}{line}", flush=True)
    for name, ends in (("lowest", np.min(shares, axis=0)), ("highest", np.max(shares, axis=0))):
        print(f"{name:32}" + "{:15.3f} {:9.3f} {:14.3f} {:9.3f} {:9.3f} {:23.3f} {:8.3f}".format(*ends))


def judge_tuned(asked: argparse.Namespace) -> None:
    """Coverage of an audit's intervals, with something to gain by a shift (bias −0.8) and without (bias 0)."""
    found = []
    for goal, bias, num_rows in product(asked.goals, (-0.8, 0.0), asked.rows):
        options = GOALS[goal]
        logits, labels = made_rows(100_000, bias, np.random.default_rng(99))
        fresh = exact(logits, labels, (IMPORTANT,))
        own, marks = fresh.labels == IMPORTANT, []
        for seed in range(asked.tables):
            told = audit(*made_rows(num_rows, bias, np.random.default_rng([seed, num_rows])), IMPORTANT, **options)
            if "at_least" in options and not told.is_guaranteed:
                continue
            after = told.evidence.arms[1]
            found_in = (
                told.change.recall,
                told.change.accuracy,
                told.change.false_alarms,
                after.recalls[0],
                after.false_alarms,
            )
            said = told.point.rule.predict(logits)
            said = np.where(said == fresh.rest, -1, said)
            right, alarm = fresh.is_right(said), fresh.is_false_alarm(said)
            changed, louder = right - 1.0 * fresh.correct(), alarm - 1.0 * fresh.false_alarms()
            truths = (changed[own].mean(), changed.mean(), louder.mean(), right[own].mean(), alarm.mean())
            pairs = list(zip(found_in, truths, strict=True))
            marks.append([[one.low <= true <= one.high, true < one.low, one.high - one.low] for one, true in pairs])
        shares = np.mean(marks, axis=0) if marks else np.full((len(FIGURES), 3), np.nan)
        cell = {"goal": goal, "bias": bias, "rows": num_rows, "tables": len(marks)}
        for name, (within, below, width) in zip(FIGURES, shares.tolist(), strict=True):
            cell[name] = {"within": round(within, 3), "below": round(below, 3), "width": round(width, 4)}
        found.append(cell)
        print(json.dumps(cell), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--curves", action="store_true", help="accuracy at equal recall; images are an important class's"
    )
    parser.add_argument("--figure", choices=("accuracy", "alarms"), default="accuracy", help="with --curves")
    parser.add_argument("--tuned", action="store_true", help="what the rule of an audit changes")
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 4000, 10_000], help="with --tuned")
    parser.add_argument("--goals", choices=GOALS, nargs="+", default=list(GOALS), help="with --tuned")
    parser.add_argument("--tables", type=int)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--images", type=int, nargs="+")
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.5, 0.9, 0.97])
    parser.add_argument("--group-rows", type=int, default=1, help="images of one patient")
    parser.add_argument("--alike", type=float, default=0.0, help="the part of every variance that they have in common")
    parser.add_argument("--ungrouped", action="store_true", help="the comparison is not told of the groups")
    asked = parser.parse_args()
    usual = (200, [3, 8, 16], [60, 150, 1000]) if asked.curves else (400, [2, 3, 5, 16], [10, 30, 100])
    for name, value in zip(("tables", "seeds", "images"), usual, strict=True):
        setattr(asked, name, getattr(asked, name) or value)
    (judge_tuned if asked.tuned else judge_curves if asked.curves else judge_outcomes)(asked)


if __name__ == "__main__":
    main()
