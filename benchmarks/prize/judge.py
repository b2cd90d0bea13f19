"""A folder of trials -> the verdict on every arm, as plain JSON and as a table."""

import math
from typing import Any

import numpy as np

from benchmarks.prize.arms import ARMS, Arm
from benchmarks.prize.ensembles import put_together
from benchmarks.prize.store import SPLITS, Folder, Kept
from camri.errors import InputError
from camri.selection import common_range, compare_curves, recall_range
from camri.stats import Difference, summarise

Trials = dict[int, Kept]


def judge(folder: Folder) -> dict[str, Any]:
    """Every arm as trained, and its accuracy at equal recall against its controls, over the seeds that both have."""
    found = {arm.name: put_together(folder, arm.members) if arm.members else folder.load_arm(arm.name)
             for arm in ARMS.values()}  # fmt: skip
    if not found["ce"]:
        raise InputError(f"{folder.path} has no trial of cross-entropy that ended well; nothing can be compared")
    ranged = recall_range([trial.scores["test"] for trial in found["ce"].values()])
    rows = [
        _judge_arm(arm, found) | {"num_failed": len(folder.seeds(arm.name)) - len(found[arm.name])
                                          if not arm.members else 0}
        for arm in ARMS.values()
        if found[arm.name]
    ]  # fmt: skip
    commits = {
        str(trial.notes.get("environment", {}).get("commit")) for arm in found.values() for trial in arm.values()
    }
    return {
        "about": folder.about,
        "commits": sorted(commits - {"None"}),
        "environment": next(iter(found["ce"].values())).notes.get("environment"),
        "recall_range": [float(ranged[0]), float(ranged[-1])],
        "num_looks": sum(ARMS[row["arm"]].is_for_the_class for row in rows),
        "arms": rows,
    }


def _judge_arm(arm: Arm, found: dict[str, Trials]) -> dict[str, Any]:
    trials = found[arm.name].values()
    others = dict.fromkeys(name for name in ("ce", arm.trained_alike, arm.without_margin) if name and name != arm.name)
    return {
        "arm": arm.name,
        "group": arm.group,
        "is_for_the_class": arm.is_for_the_class,
        "recall": _spread([float(trial.scores["test"].recall().mean()) for trial in trials]),
        "accuracy": _spread([trial.scores["test"].accuracy() for trial in trials]),
        "modes": sorted({trial.notes["mode"] for trial in trials if "mode" in trial.notes}),
        "seconds_a_trial": _mean([trial.notes["wall_s"] for trial in trials if "wall_s" in trial.notes]),
        "last_margin_rad": _mean(
            [trial.notes["margins_rad"][-1] for trial in trials if trial.notes.get("margins_rad")]
        ),
        "against": [_compare(found[arm.name], found[name], name, found["ce"]) for name in others if found[name]],
    }


def _compare(mine: Trials, its: Trials, name: str, baseline: Trials) -> dict[str, Any]:
    seeds = sorted(mine.keys() & its.keys())
    if not seeds:
        return {"arm": name, "num": 0}
    gaps = {}
    for split in SPLITS:
        arm, other = ([side[seed].scores[split] for seed in seeds] for side in (mine, its))
        recall = common_range([trial.scores[split] for trial in baseline.values()], arm, other)
        gaps[split] = compare_curves(arm, other, seed=0, recall=recall)
    test, alarms = gaps["test"], compare_curves(arm, other, seed=0, recall=gaps["test"].recall, figure="alarms")
    return {
        "arm": name,
        "num": len(seeds),
        "mean": _interval(test.mean),
        "chance_below_0": test.mean.chance_of_fall(),
        "lower_end": _interval(test.at(0)),
        "upper_end": _interval(test.at(-1)),
        "validation": _interval(gaps["val"].mean),
        "alarms": {**_interval(alarms.mean), "baseline": float(alarms.baseline.mean())},
    }


def _interval(found: Difference) -> dict[str, float]:
    return {"estimate": found.estimate, "low": found.low, "high": found.high}


def _spread(values: list[float]) -> dict[str, float | int | None]:
    found = summarise(values)
    return {"mean": found.mean, "sd": None if math.isnan(found.sd) else found.sd, "num": found.num}


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def show(verdict: dict[str, Any]) -> str:
    """The verdict as a table, in points of a hundred; a star where the interval of the mean gap is above 0."""
    low, high = verdict["recall_range"]
    lines = [
        f"accuracy at equal recall, {low:.3f} to {high:.3f}; 95 % intervals, not corrected for "
        f"{verdict['num_looks']} arms made for the class",
        f"{'arm':19} {'n':>3} {'recall':>12} {'accuracy':>12}  {'against':19} {'n':>3} {'mean gap':>23} "
        f"{'lower end':>22} {'upper end':>22} {'validation':>22} {'false alarms':>22}",
    ]
    for row in verdict["arms"]:
        start = f"{row['arm']:19} {row['recall']['num']:3} {_percent(row['recall'])} {_percent(row['accuracy'])}"
        for other in row["against"] or [None]:
            line = start
            if other is not None and other["num"]:
                star = "*" if other["mean"]["low"] > 0 else " "
                cells = [_points(other[name]) for name in ("mean", "lower_end", "upper_end", "validation", "alarms")]
                line += f"  {other['arm']:19} {other['num']:3} {cells[0]:>22}{star} " + " ".join(
                    f"{cell:>22}" for cell in cells[1:]
                )
            lines.append(line.rstrip())
            start = " " * len(start)
        if row["num_failed"]:
            lines.append(f"{'':19} {row['num_failed']} failed")
    return "\n".join(lines)


def _percent(found: dict[str, float]) -> str:
    spread = "" if found["sd"] is None else f" ± {100 * found['sd']:.1f}"
    return f"{100 * found['mean']:.1f}{spread}".rjust(12)


def _points(found: dict[str, float]) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * found[name] for name in ("estimate", "low", "high")))
