"""Rank a run's settings by false alarms at equal recall against cross-entropy, each under both decision rules.

Every model is brought to the same recalls by a threshold on the class's probability, and by a shift of its score;
cross-entropy of the same seeds under the same rule is the baseline. On validation data it serves to choose:

    python benchmarks/variants/rank.py runs/screen --json runs/screen.json
    python benchmarks/variants/rank.py runs/columns --split test

The choice: the fewest false alarms under the threshold among settings whose accuracy there is not below
cross-entropy's.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from camri.metrics import Scores
from camri.selection import common_range, compare_curves
from camri.stats import holm
from camri.study.reader import RunReader, SettingResults
from camri.study.store import ColumnFacts

RULES = ("threshold", "shift")


def rank_column(
    reading: RunReader, column: ColumnFacts, split: str, recalls: list[float] | None
) -> list[dict[str, Any]]:
    """A record for each setting of a column, cross-entropy's first, then the fewest false alarms first."""
    settings = reading.settings(column)
    (baseline,) = (one for one in settings if one.method == "ce")
    groups = reading.run.groups(split)

    def scores(one: SettingResults) -> dict[int, Scores]:
        return {row.seed: reading.scores(row, split, column) for row in one.rows}

    theirs = scores(baseline)
    grid = common_range(list(theirs.values())) if recalls is None else np.array(recalls)
    records = []
    for one in settings:
        mine = {seed: found for seed, found in scores(one).items() if seed in theirs}
        if not mine:
            continue
        print(f"{column.title}: {one.title}", file=sys.stderr)
        record: dict[str, Any] = {
            "column": column.title,
            "setting": one.title,
            "num_seeds": len(mine),
            "recalls": grid.tolist(),
            "recall_as_trained": float(np.mean([found.recall().mean() for found in mine.values()])),
            "accuracy_as_trained": float(np.mean([found.accuracy() for found in mine.values()])),
        }
        sides = [list(mine.values()), [theirs[seed] for seed in mine]]
        for rule in RULES:
            arm, other = sides if rule == "shift" else [[found.odds() for found in side] for side in sides]
            alarms, accuracy = (
                compare_curves(arm, other, seed=0, recall=grid, groups=groups, figure=figure)
                for figure in ("alarms", "accuracy")
            )
            record[rule] = {
                "alarms_of_ce": float(alarms.baseline.mean()),
                "accuracy_of_ce": float(accuracy.baseline.mean()),
                "p_alarms": alarms.mean.p,
                "p_accuracy": accuracy.mean.p,
            }
            for name, gap in (("alarms", alarms.mean), ("accuracy", accuracy.mean)):
                record[rule] |= {name: gap.value, f"{name}_low": gap.low, f"{name}_high": gap.high}
        records.append(record)
    rivals = [record for record in records if record["setting"] != baseline.title]
    for rule in RULES:
        corrected = holm([record[rule]["p_alarms"] for record in rivals]) if rivals else []
        for record, p in zip(rivals, corrected, strict=True):
            record[rule]["p_alarms_holm"] = float(p)
    rivals.sort(key=lambda record: record["threshold"]["alarms"])
    return [record for record in records if record["setting"] == baseline.title] + rivals


def choose(records: list[dict[str, Any]]) -> str | None:
    """The setting with the fewest false alarms under the threshold at no less accuracy; None if none has any fewer."""
    able = [one for one in records if one["threshold"]["accuracy"] >= 0 and one["threshold"]["alarms"] < 0]
    return min(able, key=lambda one: one["threshold"]["alarms"])["setting"] if able else None


def show(records: list[dict[str, Any]]) -> str:
    """The records of one column as a Markdown table; false alarms in % of cross-entropy's, accuracy in points."""
    first = records[0]
    of = {rule: f"{100 * first[rule]['alarms_of_ce']:.2f} %" for rule in RULES}
    lines = [
        f"{first['column']}, recalls {first['recalls'][0]:.3f} to {first['recalls'][-1]:.3f}; cross-entropy's false "
        f"alarms {of['threshold']} of all images with a threshold, {of['shift']} with a shift",
        "",
        "| setting | n | false alarms, threshold | accuracy, threshold | false alarms, shift | accuracy, shift "
        "| recall, accuracy as trained |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in records:
        cells = [one["setting"], str(one["num_seeds"])]
        for rule in RULES:
            found = one[rule]
            share = [100 * found[f"alarms{end}"] / found["alarms_of_ce"] for end in ("", "_low", "_high")]
            points = [100 * found[f"accuracy{end}"] for end in ("", "_low", "_high")]
            cells += [f"{share[0]:+.1f} % [{share[1]:+.1f}, {share[2]:+.1f}]"]
            cells += [f"{points[0]:+.2f} [{points[1]:+.2f}, {points[2]:+.2f}]"]
        cells += [f"{100 * one['recall_as_trained']:.1f}, {100 * one['accuracy_as_trained']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Chosen: {choose(records[1:])}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--recalls", type=lambda text: [float(word) for word in text.split(",")], default=None)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    records = []
    with RunReader(asked.run) as reading:
        for column in reading.columns:
            found = rank_column(reading, column, asked.split, asked.recalls)
            print(show(found))
            records += found
    if asked.json is not None:
        asked.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
