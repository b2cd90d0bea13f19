"""One trial of one arm on its device: everything a training step reads and writes lives in tensors that never move."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmarks.prize.arms import Arm
from benchmarks.prize.margins import distil
from camri.data import Split
from camri.engine import Trial, spec
from camri.engine.loop import ADAM_EPS
from camri.engine.replica import Evaluation, Job, draw_epoch, evaluate, prepare
from camri.methods import MARGIN_UNIT
from camri.metrics import accuracy
from camri.models import Classifier

RHO = 0.05  # how far uphill a sharpness-aware step goes first: the length of the move in the space of all weights
MARGIN_RATE_RAD = 5.0  # a learned margin moves by this times the accuracy over its floor: π/64 for one point
LARGEST_MARGIN_RAD = 8 * MARGIN_UNIT


class Replica:
    """A model in training, and what it needs for that."""

    def __init__(
        self,
        arm: Arm,
        seed: int,
        job: Job,
        model: Classifier,
        resident: Mapping[str, Split],
        *,
        targets: Tensor | None = None,
        floors: Sequence[float] | None = None,
    ):
        """`resident` are the splits on the device; `targets` (N, C) what a distilled model hears of the train rows;
        `floors`, by epoch, the accuracies that a learned margin must keep."""
        self.arm, self.job, self.resident, self.targets, self.floors = arm, job, resident, targets, floors
        self.trial = Trial(arm.setting(job.important), seed)
        device = resident["train"].labels.device
        on_gpu = device.type == "cuda"
        self.model: Classifier = model.to(device).train()
        if on_gpu:  # images come channels-last; kernels that lie otherwise would be turned around at every step
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.criterion = arm.criterion(job).to(device)
        self.norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.rates = spec.learning_rates(job.training, job.num_steps).to(device)
        self.rate = self.rates[0].clone()
        self.optimise = torch.optim.Adam(
            self.parameters, lr=self.rate, eps=ADAM_EPS, capturable=on_gpu, fused=on_gpu or None
        )
        self.order = torch.zeros(job.steps_per_epoch, job.batch_size, dtype=torch.int64, device=device)
        # One element and not none: an index without dimensions would be read by the host.
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.train_loss: list[float] = []
        self.val_accuracy: list[float] = []
        self.margins_rad: list[float] = []

    def draw(self, epoch: int) -> None:
        """Nothing; the order of the epoch's rows is on the device."""
        self.order.copy_(draw_epoch(self.trial, self.job, epoch).order)
        self.place.zero_()
        self.loss_sum.zero_()

    def advance(self) -> None:
        """Nothing; one training step, all of it on the device: this is what the graph holds."""
        train = self.resident["train"]
        rows = self.order[self.place].squeeze(0)
        targets = None if self.targets is None else self.targets[rows]
        x = prepare(train.inputs[rows], None, None, None, torch.float32)
        loss, gradients = self._slope(x, train.labels[rows], targets)
        torch._foreach_copy_(self.gradients, list(gradients))
        self.rate.copy_(self.rates[self.step].squeeze(0))
        self.optimise.step()
        self.loss_sum += loss.detach()
        self.step += 1
        self.place += 1

    def _slope(self, x: Tensor, labels: Tensor, targets: Tensor | None) -> tuple[Tensor, Sequence[Tensor]]:
        """The batch's mean loss, and the gradients to step along, of the model as it is or moved uphill first."""
        losses = self._losses(x, labels, targets)
        if not self.arm.uphill:
            return losses.mean(), torch.autograd.grad(losses.mean(), self.parameters)
        own = torch.stack([labels == index for index in self.job.important]).any(dim=0)
        chosen = torch.ones_like(labels) if self.arm.uphill == "all" else own.long()
        steepest = torch.autograd.grad((losses * chosen).sum() / chosen.sum().clamp(min=1), self.parameters)
        # A batch without the class has a gradient of 0: the model stays where it is, and the step is a plain one.
        length = torch.stack([one.norm() for one in steepest]).norm().clamp(min=1e-12)
        with torch.no_grad():
            before = [parameter.clone() for parameter in self.parameters]
            for parameter, one in zip(self.parameters, steepest, strict=True):
                parameter.add_(one * (RHO / length))
        with self._second_pass():
            gradients = torch.autograd.grad(self._losses(x, labels, targets).mean(), self.parameters)
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        return losses.mean(), gradients

    def _losses(self, x: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
        outputs = self.model(x)
        hard = self.criterion(outputs, labels)
        return hard if targets is None else distil(hard, self.criterion.logits(outputs), targets)

    @contextlib.contextmanager
    def _second_pass(self) -> Iterator[None]:
        """Inside, batch norm's running statistics stay as they are and the margin's ramp does not go on."""
        momenta = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
        self.criterion.step -= 1
        try:
            yield
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum

    def end_epoch(self) -> None:
        """Nothing; what the epoch brought is noted, and a learned margin has moved."""
        self.train_loss.append(self.loss_sum.item() / self.job.steps_per_epoch)
        if self.floors is None and self.arm.name != "ce":
            return
        self.val_accuracy.append(accuracy(self.evaluate("val").confusion))
        if self.floors is not None:
            margins, own = self.criterion.get_buffer("margins"), list(self.job.important)
            self.margins_rad.append(margins[own[0]].item())  # all important classes have the same
            margins[own] = move_margin(
                self.margins_rad[-1], self.val_accuracy[-1], self.floors[len(self.val_accuracy) - 1]
            )

    @property
    def error(self) -> str | None:
        lost = [epoch for epoch, loss in enumerate(self.train_loss, 1) if not math.isfinite(loss)]
        return f"the loss stopped being finite in epoch {lost[0]}" if lost else None

    def evaluate(self, split: str) -> Evaluation:
        self.model.eval()
        found = judge_split(self.model, self.criterion.logits, self.resident[split])
        self.model.train()
        return found

    def forget(self, first: Mapping[str, Tensor]) -> None:
        """Nothing; the replica is as it was before any step, with these first values of the model."""
        self.model.load_state_dict(first)
        for state in self.optimise.state.values():
            for value in state.values():
                value.zero_()
        for counter in (self.criterion.step, self.step, self.place, self.loss_sum):
            counter.zero_()


def move_margin(margin_rad: float, val_accuracy: float, floor: float) -> float:
    """The margin after an epoch: larger where accuracy is above the floor, smaller where it is below.

    >>> round(move_margin(0.2, val_accuracy=0.73, floor=0.75), 6), move_margin(0.2, val_accuracy=0.1, floor=0.75)
    (0.1, 0.0)
    """
    return min(max(margin_rad + MARGIN_RATE_RAD * (val_accuracy - floor), 0.0), LARGEST_MARGIN_RAD)


def judge_split(model: Classifier, to_logits: Callable[[Tensor], Tensor], split: Split) -> Evaluation:
    """What a model in eval mode makes of a split."""

    def features_of(rows: Tensor) -> Tensor:
        return model.trunk(prepare(rows, None, None, None, torch.float32))

    return evaluate(features_of, model.head, to_logits, split)
