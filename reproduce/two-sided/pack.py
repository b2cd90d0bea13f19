"""Pack what the tables need of a run: for each trial and class, the test images' log-odds of the class.

    export PYTHONPATH=$PWD:$PWD/benchmarks/variants
    python reproduce/two-sided/pack.py runs/classes runs/half --out reproduce/two-sided/scores
    python reproduce/two-sided/pack.py runs/sweep --split val --out reproduce/two-sided/scores

NAME.npz.xz has a row for each trial and column. Log-odds are float16; those below the lowest threshold that the tables
look at are cut off, which makes a file ten times smaller. `argmax` has what the models predict without a threshold, as
trained and, where there is validation data, with the bias of TwoSidedMarginLoss.settle: 2 the class, 1 another class
that is right, 0 another that is wrong.
"""

import argparse
import io
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from camri.decision.scores import Scores
from camri.selection import common_range
from camri.study.reader import RunReader
from camri.study.store import ColumnFacts

ROOM = 0.05  # of recall beyond the highest that is compared: intervals look at the slope there


def settled(scores: Scores) -> float:
    """The shift with which the class's mean probability on these rows is its frequency."""
    lead, spread = scores.lead[:, 0].astype(np.float64), scores.rest_spread.astype(np.float64)
    share = float(np.mean(scores.labels == scores.important[0]))

    def excess(shift: float) -> float:
        return float(expit(lead + shift - spread).mean()) - share

    return float(brentq(excess, -50.0, 50.0))


def predictions(scores: Scores, shift: float = 0.0) -> Any:
    """2 where the class is predicted, 1 where another is and is right, 0 elsewhere."""
    return np.where(scores.lead[:, 0].astype(np.float64) + shift > 0, 2, scores.rest_right.astype(np.uint8))


def rows_of(reading: RunReader, column: ColumnFacts, split: str) -> list[tuple[Any, ...]]:
    """A record, log-odds, rest_right and predictions of each trial of a column, cross-entropy first."""
    settings = sorted(reading.settings(column), key=lambda one: one.method != "ce")
    scores = {(one.title, row.seed): reading.scores(row, split, column) for one in settings for row in one.rows}
    grid = common_range([found for (title, _), found in scores.items() if title == settings[0].title])
    rows = []
    for one in settings:
        if one.title != "ce" and one.key == settings[0].key:
            continue  # all knobs neutral: it is cross-entropy
        for row in one.rows:
            found = scores[one.title, row.seed]
            odds, own = found.odds().lead[:, 0], found.labels == column.indices[0]
            cut = np.quantile(odds[own], max(0.0, 1 - grid[-1] - ROOM), method="lower")
            record = {
                "column": column.title,
                "index": column.indices[0],
                "setting": one.title,
                "seed": row.seed,
                "recalls": [float(grid[0]), float(grid[-1]), len(grid)],
                "recall_as_trained": float(found.recall()[0]),
                "accuracy_as_trained": float(found.accuracy()),
            }
            shift = 0.0
            if split == "test" and "val" in reading.run.splits and one.title != "ce":
                shift = settled(reading.scores(row, "val", column))
            argmax = np.stack([predictions(found), predictions(found, shift)])
            rows.append((record, np.where(odds < cut, cut - 1.0, odds), found.rest_right, argmax))
    return rows


def write(folder: Path, split: str, out: Path) -> None:
    """Pack one run."""
    with RunReader(folder) as reading:
        single = [column for column in reading.columns if len(column.indices) == 1]
        rows = [row for column in single for row in rows_of(reading, column, split)]
        facts = {"split": split, "training": reading.run.training, "environment": reading.rows[0].environment}
        labels = reading.run.labels(split)
    records, odds, right, argmax = zip(*rows, strict=True)
    file = io.BytesIO()
    np.savez(
        file,
        records=np.array(json.dumps([facts, *records])),
        labels=labels.astype(np.uint8),
        odds=np.array(odds).astype(np.float16),
        right=np.packbits(np.array(right), axis=1),
        argmax=np.array(argmax, dtype=np.uint8) if split == "test" else np.zeros(0, np.uint8),
    )
    (out / f"{folder.name}.npz.xz").write_bytes(lzma.compress(file.getvalue(), preset=9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default="test", choices=["val", "test"])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for folder in asked.runs:
        write(folder, asked.split, asked.out)
        print(folder.name, (asked.out / f"{folder.name}.npz.xz").stat().st_size, flush=True)


if __name__ == "__main__":
    main()
