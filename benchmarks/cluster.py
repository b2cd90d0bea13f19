"""Cost of a cluster: Ray compared with a local run on this machine, and the whole paper's hours on many GPUs.

python benchmarks/cluster.py --figures reproduce/speed/engine-h200.json   # the table of docs/cluster.md
python benchmarks/cluster.py --trials 40 --workers 2                         # the same small study, local and on Ray
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camri.engine import Outcome, Training
from camri.engine.replica import PACK_SIZE
from camri.engine.spec import batch_size, steps_per_epoch
from camri.study import recipes
from camri.study.ray_driver import cut
from camri.study.run_folder import load_data
from camri.study.runner import KNOWN_DATA, find_executor, run


@dataclass(frozen=True)
class Measured:
    """Figures of one GPU: images/s inside epochs, and seconds around them.

    `side` is the height of the images that were measured. At another one the throughput is taken as inverse to the
    number of pixels, unless `at_side` has a figure of its own.
    """

    images_per_s: float
    set_up_s: float  # of a pack by a worker that has trained one: build, capture, evaluate at the end
    start_s: float  # of a worker: its first pack compiles the model
    pack_size: int = PACK_SIZE
    side: int = 32
    at_side: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def from_benchmark(result: Mapping[str, Any], pack_size: int = PACK_SIZE) -> "Measured":
        """The figures in the JSON of benchmarks/engine.py, which trains at 32 × 32."""
        found = result[f"engine_{pack_size}"]
        return Measured(found["images_per_s_within_epochs"], found["set_up_later_s"], found["first_call_s"], pack_size)

    def rate(self, side: int) -> float:
        """Images/s at that image side.

        >>> Measured(80_000.0, 2.0, 15.0).rate(64)
        20000.0
        """
        return dict(self.at_side).get(side, self.images_per_s * (self.side / side) ** 2)


def makespan_s(num_trials: int, trial_s: float, measured: Measured, gpus: int) -> float:
    """Seconds until the last of the GPUs has ended its packs; `trial_s` is a trial's share of a GPU's time.

    >>> makespan_s(16, 10.0, Measured(1.0, set_up_s=2.0, start_s=5.0), gpus=2)
    87.0
    >>> makespan_s(17, 10.0, Measured(1.0, set_up_s=2.0, start_s=5.0), gpus=2)
    99.0
    """
    packs = cut(num_trials, measured.pack_size, gpus)
    shares = [packs[first::gpus] for first in range(gpus)]
    return max(measured.start_s + sum(measured.set_up_s + len(pack) * trial_s for pack in share) for share in shares)


def paper_s(measured: Measured, gpus: int, schedule: str) -> dict[str, float]:
    """Seconds for every trial of Table I, by data set: one study after the other, all train rows, ten seeds."""
    training = recipes.find_schedule(schedule)
    found = {}
    for name in recipes.COLUMNS:
        study = getattr(recipes, name)(rule="paper")
        rows, shape, _ = KNOWN_DATA[name]
        images = training.epochs * steps_per_epoch(training, rows) * batch_size(training, rows)
        num_trials = len(study.trials(study.placeholders()))
        found[name] = makespan_s(num_trials, images / measured.rate(shape[0]), measured, gpus)
    return found


def table(measured: Measured, gpus: tuple[int, ...] = (1, 8, 64)) -> str:
    """The hours of the whole paper as a Markdown table: a line for each schedule and number of GPUs."""
    lines = ["| schedule | GPUs | CIFAR-10 | GTSRB | AwA2 | all, h |", "|---|---|---|---|---|---|"]
    for schedule, count in itertools.product(recipes.SCHEDULES, gpus):
        hours = [seconds / 3600 for seconds in paper_s(measured, count, schedule).values()]
        cells = [schedule, str(count), *(f"{hour:,.1f}" for hour in [*hours, sum(hours)])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compare(num_trials: int, workers: int, epochs: int) -> None:
    """Print the seconds of a study of cross-entropy on digits, local and on Ray, and a trial's share."""
    study = recipes.digits("8", schedule=Training(model="small", epochs=epochs), num_seeds=num_trials).with_(
        methods={"ce": {}}
    )
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
