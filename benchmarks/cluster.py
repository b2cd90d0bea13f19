"""What a cluster costs: Ray beside the local run on this machine, and the whole paper's hours on many GPUs.

python benchmarks/cluster.py --figures results/benchmarks/engine-h200.json   # the table of docs/cluster.md
python benchmarks/cluster.py --trials 40 --workers 2                         # the same small study, local and on Ray
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

from camri.engine import Outcome, Training
from camri.study.executor import find_executor
from camri.study.facts import load_data
from camri.study.forecast import Measured, table
from camri.study.recipes import digits
from camri.study.runner import run


def compare(num_trials: int, workers: int, epochs: int) -> None:
    """Nothing; prints the seconds of a study of cross-entropy on digits, local and on Ray, and a trial's share."""
    study = digits("8", schedule=Training(model="small", epochs=epochs), trials=num_trials).with_(methods={"ce": {}})
    data = load_data(study)
    for on in ("local", "ray"):
        began = time.perf_counter()
        executor = find_executor(on, "cpu", workers)
        ready = time.perf_counter()
        ended: list[float] = []

        def note(outcome: Outcome, ended: list[float] = ended) -> None:
            ended.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as folder:
            run(study, folder, executor, data=data, listeners=[note])
        first, last = ended[0] - ready, ended[-1] - ended[0]
        print(
            f"{on:5s} connected {ready - began:5.2f} s, first outcome {first:5.2f} s, "
            f"then {1000 * last / (num_trials - 1):6.1f} ms a trial ({num_trials} trials, {workers} workers)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, help="JSON of benchmarks/engine.py: print the paper's hours")
    parser.add_argument("--at-48", type=float, help="images/s at 48 × 48, instead of the ratio of pixels")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    if given.figures is None:
        compare(given.trials, given.workers, given.epochs)
        return
    measured = Measured.from_benchmark(json.loads(given.figures.read_text(encoding="utf-8")))
    if given.at_48 is not None:
        measured = dataclasses.replace(measured, at_side=((48, given.at_48),))
    print(table(measured))


if __name__ == "__main__":
    main()
