"""Tune cross-entropy's training on validation data, with seeds of its own, then run studies with that training.

    python benchmarks/columns/tune.py benchmarks/columns/small-gtsrb-{tuned,camri}.toml --out runs

Every combination of the values below is trained into OUT/tuning/…; the one with the highest mean validation accuracy
takes the place of the studies' own. They go into one run, OUT/NAME, NAME being the first file's. OUT/NAME-tuning.csv
lists the combinations. Stopped by --max-wall, the same command resumes.
"""

import argparse
import csv
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from camri.study.reader import RunReader
from camri.study.run_folder import load_data
from camri.study.runner import LocalExecutor, run
from camri.study.spec import Grid
from camri.study.study_file import find_study

VALUES = {"epochs": (12, 24), "learning_rate": (0.002, 0.004), "label_smoothing": (0.0, 0.1)}
SEEDS = (900, 901, 902)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-wall", type=float, default=float("inf"), metavar="SECONDS")
    asked = parser.parse_args(arguments)
    end, tried = time.monotonic() + asked.max_wall, []
    studies = [find_study(str(path)) for path in asked.studies]
    study, name, data = studies[0], asked.studies[0].stem, load_data(studies[0])
    for values in (dict(zip(VALUES, each, strict=True)) for each in itertools.product(*VALUES.values())):
        training = study.training.with_(**values)
        alone = study.with_(methods=[Grid.of("ce")], training=training, seeds=SEEDS)
        folder = asked.out / "tuning" / "-".join(map(str, values.values()))
        if not run(alone, folder, LocalExecutor(), data=data, max_wall_s=max(1.0, end - time.monotonic())).finished:
            raise SystemExit(f"stopped in {folder}; the same command resumes")
        with RunReader(folder) as reading:
            found = {split: [row.accuracy[split] for row in reading.rows] for split in ("val", "test")}
        tried.append(
            (training, {**values, **{f"{name}_accuracy": round(float(np.mean(own)), 5) for name, own in found.items()}})
        )
    with open(asked.out / f"{name}-tuning.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*VALUES, "seeds", "val_accuracy", "test_accuracy"])
        table.writeheader()
        table.writerows({**facts, "seeds": len(SEEDS)} for _, facts in tried)
    training, facts = max(tried, key=lambda one: one[1]["val_accuracy"])
    print("chosen:", facts, flush=True)
    for one in studies:
        left = max(1.0, end - time.monotonic())
        print(
            run(one.with_(training=training), asked.out / name, LocalExecutor(), data=data, max_wall_s=left), flush=True
        )


if __name__ == "__main__":
    main()
