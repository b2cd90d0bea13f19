"""Tune cross-entropy's training on validation data, with seeds of its own, then run studies with that training.

    python reproduce/studies/tune.py reproduce/studies/small-gtsrb-{tuned,camri}.toml --out runs
    python reproduce/studies/tune.py reproduce/studies/small-cifar10-tuned.toml --in-turn --seeds 2 --out runs

Every combination of VALUES is trained into OUT/tuning/…, or with --in-turn the changes of STEPS one after the other, of
which each stays that raises the mean validation accuracy. The best training takes the place of the studies' own. They
go into one run, OUT/NAME, NAME being the first file's. OUT/NAME-tuning.csv lists what was tried. Stopped by --max-wall,
the same command resumes.
"""

import argparse
import csv
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.study.reader import RunReader
from camri.study.run_folder import load_data
from camri.study.runner import LocalExecutor, run
from camri.study.spec import Grid
from camri.study.study_file import find_study

VALUES = {"epochs": (12, 24), "learning_rate": (0.002, 0.004), "label_smoothing": (0.0, 0.1)}
STEPS: tuple[dict[str, Any], ...] = (
    {"epochs": 24},
    {"learning_rate": 0.003},
    {"label_smoothing": 0.1},
    {"flip": True, "translate_px": 2},
    {"average": 0.999},
)
SEEDS = (900, 901, 902)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--in-turn", action="store_true", help="try the changes of STEPS, not all combinations")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), metavar="N", help="of each training that is tried")
    parser.add_argument("--max-wall", type=float, default=float("inf"), metavar="SECONDS")
    asked = parser.parse_args(arguments)
    end = time.monotonic() + asked.max_wall
    studies = [find_study(str(path)) for path in asked.studies]
    study, name, data = studies[0], asked.studies[0].stem, load_data(studies[0])
    fields = [*VALUES] if not asked.in_turn else [field for step in STEPS for field in step]
    tried: list[tuple[float, dict[str, Any]]] = []  # validation accuracy, values

    def left() -> float:
        return max(1.0, end - time.monotonic())

    def attempt(values: Mapping[str, Any]) -> None:
        training = study.training.with_(**values)
        values = {field: getattr(training, field) for field in fields}
        alone = study.with_(methods=[Grid.of("ce")], training=training, seeds=SEEDS[: asked.seeds])
        folder = asked.out / "tuning" / "-".join(map(str, values.values()))
        if not run(alone, folder, LocalExecutor(), data=data, max_wall_s=left()).finished:
            raise SystemExit(f"stopped in {folder}; the same command resumes")
        with RunReader(folder) as reading:
            found = {split: float(np.mean([row.accuracy[split] for row in reading.rows])) for split in ("val", "test")}
        rounded = {f"{split}_accuracy": round(accuracy, 5) for split, accuracy in found.items()}
        tried.append((found["val"], {**values, "seeds": asked.seeds, **rounded}))
        print(tried[-1][1], flush=True)

    if asked.in_turn:
        attempt({})
        for step in STEPS:
            attempt({field: max(tried, key=lambda one: one[0])[1][field] for field in fields} | step)
    else:
        for each in itertools.product(*VALUES.values()):
            attempt(dict(zip(VALUES, each, strict=True)))
    best = max(tried, key=lambda one: one[0])[1]
    with open(asked.out / f"{name}-tuning.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(best))
        table.writeheader()
        table.writerows(facts for _, facts in tried)
    print("chosen:", best, flush=True)
    training = study.training.with_(**{field: best[field] for field in fields})
    for one in studies:
        tuned = one.with_(training=training)
        print(run(tuned, asked.out / name, LocalExecutor(), data=data, max_wall_s=left()), flush=True)


if __name__ == "__main__":
    main()
