"""Learning rate, margin ramp and weight averaging as functions of the step."""

import torch
from torch import Tensor

from camri.engine.spec import Training


def steps_per_epoch(training: Training, num_rows: int) -> int:
    """Full batches in an epoch; of the rows left over each epoch leaves out others.

    A data set smaller than a batch is one batch.
    """
    return max(1, num_rows // training.batch_size)


def batch_size(training: Training, num_rows: int) -> int:
    return min(training.batch_size, num_rows)


def learning_rates(training: Training, num_steps: int) -> Tensor:
    """The rate of every step (T,): constant for `hold` of them, then falling linearly towards 0.

    >>> learning_rates(Training(hold=0.5, learning_rate=1.0), 4)
    tensor([1.0000, 1.0000, 1.0000, 0.5000])
    """
    step = torch.arange(num_steps, dtype=torch.float64)
    falling = max(num_steps * (1 - training.hold), 1e-9)
    return (training.learning_rate * ((num_steps - step) / falling).clamp(max=1)).float()


def ramp_steps(training: Training, num_steps: int) -> tuple[int, int]:
    """The steps between which margins grow from 0 to full.

    >>> ramp_steps(Training(ramp=(0.1, 0.3)), 1000)
    (100, 300)
    """
    start, end = training.ramp
    return round(start * num_steps), round(end * num_steps)


def average_decays(training: Training, num_steps: int) -> Tensor:
    """The decay of the weight average at every step (T,), growing at first so that the start is soon forgotten."""
    step = torch.arange(num_steps, dtype=torch.float64)
    return torch.minimum(torch.tensor(training.average, dtype=torch.float64), (1 + step) / (10 + step)).float()
