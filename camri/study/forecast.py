"""How long the paper's trials take on many GPUs, from what was measured on one."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from camri.engine.packs import PACK_SIZE
from camri.engine.schedule import batch_size, steps_per_epoch
from camri.study import paper
from camri.study.cost import KNOWN_DATA
from camri.study.packing import cut


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
    training = paper.find_schedule(schedule)
    found = {}
    for name in paper.COLUMNS:
        study = getattr(paper, name)(rule="paper")
        rows, shape, _ = KNOWN_DATA[name]
        images = training.epochs * steps_per_epoch(training, rows) * batch_size(training, rows)
        num_trials = len(study.trials(study.placeholders()))
        found[name] = makespan_s(num_trials, images / measured.rate(shape[0]), measured, gpus)
    return found


def table(measured: Measured, gpus: tuple[int, ...] = (1, 8, 64)) -> str:
    """The hours of the whole paper as a Markdown table: a line for each schedule and number of GPUs."""
    lines = ["| schedule | GPUs | CIFAR-10 | GTSRB | AwA2 | all, h |", "|---|---|---|---|---|---|"]
    for schedule, count in itertools.product(paper.SCHEDULES, gpus):
        hours = [seconds / 3600 for seconds in paper_s(measured, count, schedule).values()]
        cells = [schedule, str(count), *(f"{hour:,.1f}" for hour in [*hours, sum(hours)])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
