"""One trial on the CPU: the plain training loop."""

import copy
import math
import re
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from camri.data import Split
from camri.engine import spec
from camri.engine.outcome import Outcome, Record
from camri.engine.replica import (
    Evaluation,
    Job,
    draw_epoch,
    evaluate,
    judged,
    make,
    prepare,
    read_checkpoint,
    write_checkpoint,
)
from camri.engine.spec import Training, Trial
from camri.models import Classifier, resume_dropout
from camri.modules import Criterion

BLOCK = re.compile(r".*?\.\d+\.(?:.*?(?:blocks|layers|layer)\.\d+\.)?")
MOST_VALUES = 2**25  # size of an evaluation batch, 128 MiB: 1,000 images of 105 px, 222 of 224 px
ADAM_EPS = 1e-7  # Keras' default, used by the authors' code; PyTorch's is 1e-8


def optimizer(model: Classifier, training: Training) -> torch.optim.Optimizer:
    """Create the training's optimiser; weight decay applies to :func:`decayed` only.

    Each group has a "factor" that multiplies its learning rate.
    """
    ids = {id(p) for p in decayed(model)}
    factors = rate_factors(model, training)
    groups: list[dict[str, Any]] = []
    for decay, is_in in ((training.weight_decay, True), (0.0, False)):
        alike = [p for p in model.parameters() if (id(p) in ids) is is_in]
        for factor in dict.fromkeys(factors[id(p)] for p in alike):
            chosen = [p for p in alike if factors[id(p)] == factor]
            groups.append({"params": chosen, "weight_decay": decay, "factor": factor})
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=training.momentum)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=training.learning_rate, eps=ADAM_EPS, fused=True)  # saves 0.4 ms per step of a small network


def decayed(model: Classifier) -> list[nn.Parameter]:
    """The parameters with weight decay: the trunk's kernels and matrices.

    A cosine head's weight is normalised, so decay would only raise its effective learning rate.
    """
    return [p for p in model.trunk.parameters() if p.dim() > 1]


def rate_factors(model: Classifier, training: Training) -> dict[int, float]:
    """Factor of each parameter's learning rate, by its id: 1 for the head, `trunk_rate` for the trunk.

    `layer_decay` multiplies it once for every block between a parameter and the head. A block is a numbered module
    ("blocks.3", "encoder.layer.11", "stages.0.blocks.2"); what precedes the first one (patches, positions, stem) counts
    as one more.
    """
    factors = {id(p): 1.0 for p in model.parameters()}
    block, depth, depths = "", 0, {}
    for name, parameter in model.trunk.named_parameters():
        if (found := BLOCK.match(name)) and found[0] != block:
            block, depth = found[0], depth + 1
        depths[id(parameter)] = depth
    for key, place in depths.items():
        factors[key] = training.trunk_rate * training.layer_decay ** (depth - place)
    return factors


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Update an exponential moving average of a model's weights and batch-norm statistics."""
    for mine, its in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mine.is_floating_point():
            mine.lerp_(its, 1 - decay)


def train_one(
    trial: Trial,
    job: Job,
    should_stop: Callable[[], bool] = lambda: False,
    on_epoch: Callable[[Record], None] = lambda record: None,
) -> Outcome | None:
    """Train one trial and return its outcome; None if it was stopped, with a checkpoint if the job has a folder.

    If the trial raises, its outcome is failed, with the end of the traceback.
    """
    record = Record(trial, job, spec.describe_environment(torch.device("cpu")))
    try:
        return _train(trial, job, record, should_stop, on_epoch)
    except (Exception, SystemExit):  # a method that calls sys.exit() ends its own trial only
        return record.failed(traceback.format_exc(limit=-4).strip())


def _train(
    trial: Trial, job: Job, record: Record, should_stop: Callable[[], bool], on_epoch: Callable[[Record], None]
) -> Outcome | None:
    model, criterion = make(trial, job)
    optimise = optimizer(model, job.training)
    average = copy.deepcopy(model).eval() if job.training.average else None
    rates = spec.learning_rates(job.training, job.num_steps).tolist()
    decays = spec.average_decays(job.training, job.num_steps).tolist()
    state = _State(model, criterion, optimise, average)
    path = job.checkpoint_of(trial)
    loss_sum = 0.0
    if path is not None and (found := read_checkpoint(path, engine="cpu")) is not None:
        tensors, notes = found
        record.restore(notes)
        loss_sum = notes["loss_sum"]
        state.load(tensors, record.epoch * job.steps_per_epoch + record.step_in_epoch)
    saved_at = time.perf_counter()
    train = job.data.splits["train"]

    def save() -> None:
        if path is not None:
            record.tick()
            write_checkpoint(path, state.tensors(), {**record.notes(), "loss_sum": loss_sum, "engine": "cpu"})

    while record.epoch < job.training.epochs:
        drawn = draw_epoch(trial, job, record.epoch)
        model.train()
        for place in range(record.step_in_epoch, job.steps_per_epoch):
            step = record.epoch * job.steps_per_epoch + place
            for group in optimise.param_groups:
                group["lr"] = rates[step] * group["factor"]
            here = {name: draws[place] for name, draws in drawn.items()}
            rows = here["order"]
            x = prepare(train.inputs[rows], torch.float32, here)
            loss = criterion(model(x), train.labels[rows], here.get("shares"))
            value = loss.item()
            if not math.isfinite(value):
                where = f"epoch {record.epoch + 1}, step {place + 1} of {job.steps_per_epoch}"
                return record.failed(f"the loss became {value} in {where}; {record.last_finite()}")
            optimise.zero_grad(set_to_none=True)
            loss.backward()
            optimise.step()
            if average is not None:
                update_average(average, model, decays[step])
            loss_sum += value
            record.step_in_epoch = place + 1
            if should_stop():
                save()
                return None
        hits: list[int] = []
        if "val" in job.data.splits:
            final = model.eval() if average is None else average
            hits = _evaluate(final, criterion, job.data.splits["val"]).confusion.diagonal().tolist()
        record.end_epoch(loss_sum / job.steps_per_epoch, hits)
        loss_sum = 0.0
        record.tick()
        on_epoch(record)
        if time.perf_counter() - saved_at > job.checkpoint_every_s and record.epoch < job.training.epochs:
            save()
            saved_at = time.perf_counter()

    final = model.eval() if average is None else average
    return record.done(
        lambda split: _evaluate(final, criterion, judged(job.data.splits, split)),
        lambda: {name: tensor.numpy().copy() for name, tensor in final.state_dict().items()},
    )


def _evaluate(model: Classifier, criterion: Criterion, split: Split) -> Evaluation:
    def features_of(rows: Tensor) -> Tensor:
        return model.trunk(prepare(rows, torch.float32))

    most = max(1, MOST_VALUES // math.prod(split.inputs.shape[1:]))
    return evaluate(features_of, model.head, criterion.logits, split, min(1000, most))


class _State:
    """Everything that changes while a trial trains, as named tensors."""

    def __init__(
        self, model: Classifier, criterion: Criterion, optimise: torch.optim.Optimizer, average: Classifier | None
    ):
        self.model, self.criterion, self.optimise, self.average = model, criterion, optimise, average

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for place, parameter in enumerate(self._parameters()):
            for name, value in self.optimise.state.get(parameter, {}).items():
                if value is not None:
                    found[f"optimizer.{place}.{name}"] = torch.as_tensor(value)
        return found

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the saved state; counters are computed from the step."""
        self.model.load_state_dict(_under("model.", tensors))
        if self.average is not None:
            self.average.load_state_dict(_under("average.", tensors))
        for place, parameter in enumerate(self._parameters()):
            self.optimise.state[parameter] = _under(f"optimizer.{place}.", tensors)
        self.criterion.step.fill_(step)
        resume_dropout(self.model, step)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimise.param_groups for parameter in group["params"]]


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
