"""A trained model at work: raw inputs in, shifted logits, probabilities and class names out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from camri.data.batches import to_float
from camri.errors import InputError
from camri.export.trained import Trained
from camri.heads import HEADS
from camri.models import Classifier, build

INITIAL = ("initial", "initial_sha256")  # where training started: a file that the trained model does not need
COUNTER = "num_batches_tracked"  # batch norm's; nothing reads it after training, and a GPU's outcome has none


class Network(nn.Module):
    """Raw inputs -> shifted logits (B, C), float32: preprocessing, classifier, scale and shift in one module.

    Inputs are uint8 (B, H, W, C) images or float32 (B, D) features, as a data set holds them.
    """

    shift: Tensor
    mean: Tensor | None
    sd: Tensor | None

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        num_classes = len(trained.classes)
        self.classifier = make_classifier(trained, torch.Generator())
        self.criterion = trained.setting.criterion(num_classes, trained.class_counts)
        shift = torch.zeros(num_classes)
        shift[list(trained.important)] = torch.tensor(trained.shift)
        self.register_buffer("shift", shift)
        mean, sd = (None, None) if trained.standardise is None else map(torch.tensor, trained.standardise)
        self.register_buffer("mean", mean)
        self.register_buffer("sd", sd)
        check_weights(trained.weights, self.classifier, "the trained model")
        state = {name: torch.tensor(value, dtype=torch.float32) for name, value in _floats(trained.weights).items()}
        self.classifier.load_state_dict(state, strict=False)  # what may be missing was checked
        self.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mean is not None and self.sd is not None:
            inputs = (inputs - self.mean) / self.sd
        return self.criterion.logits(self.classifier(to_float(inputs))).float() + self.shift


def make_classifier(trained: Trained, generator: torch.Generator | None = None) -> Classifier:
    """The untrained classifier, as the engine makes it; its first values come from the generator."""
    shape = trained.input_shape
    channels_first = (shape[-1], *shape[:-1]) if trained.is_image else shape
    options = {name: value for name, value in trained.training.model_options if name not in INITIAL}
    trunk = build(trained.training.model, channels_first, generator=generator, **options)
    head = HEADS[trained.setting.head](trunk.num_features, len(trained.classes), generator=generator)
    return Classifier(trunk, head)


def check_weights(weights: Mapping[str, Any], classifier: nn.Module, where: str) -> None:
    """Refuses weights that are not this classifier's: missing, unknown, of another shape."""
    wanted = {name: tuple(tensor.shape) for name, tensor in _floats(classifier.state_dict()).items()}
    given = {name: tuple(value.shape) for name, value in _floats(weights).items()}
    if missing := [name for name in wanted if name not in given]:
        raise InputError(f"{where} has no tensor {missing[0]!r}{_more(missing)}; it is not the model its config says")
    if unknown := [name for name in given if name not in wanted]:
        raise InputError(f"{where} has a tensor {unknown[0]!r}{_more(unknown)} that its model does not have")
    for name, shape in wanted.items():
        if given[name] != shape:
            raise InputError(f"{where}: tensor {name!r} has shape {given[name]}, and its model needs {shape}")


def _floats(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tensors.items() if not name.endswith(COUNTER)}


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


class Model:
    """A trained model to predict with; `camri.load(folder)` gives one.

    `module` takes raw inputs, uint8 (B, H, W, C) images or float32 (B, D) features, to shifted logits (B, C); move it
    to a GPU with `model.module.to("cuda")` and everything else follows.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.module: nn.Module = Network(trained)

    @staticmethod
    def of(trained: Trained) -> "Model":
        """The model of a trained value that is not on disk."""
        return Model(trained)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.trained.classes

    @property
    def important(self) -> tuple[str, ...]:
        """Names of the important classes."""
        return tuple(self.trained.classes[index] for index in self.trained.important)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.trained.input_shape))
        return f"Model({self.trained.setting}, {len(self.classes)} classes, inputs {shape}, important {self.important})"

    def logits(self, inputs: np.ndarray | Tensor, batch_size: int = 256) -> np.ndarray:
        """Shifted logits, float32 (N, C); the highest is the predicted class."""
        return self._over_batches(inputs, batch_size, lambda logits: logits)

    def predict_proba(self, inputs: np.ndarray | Tensor, batch_size: int = 256) -> np.ndarray:
        """Probabilities after the shift, float32 (N, C), columns as in `classes`."""
        return self._over_batches(inputs, batch_size, lambda logits: logits.softmax(dim=1))

    def predict(self, inputs: np.ndarray | Tensor, batch_size: int = 256) -> list[str]:
        """The predicted class's name for every input."""
        return [self.classes[index] for index in self.logits(inputs, batch_size).argmax(axis=1)]

    @torch.inference_mode()
    def _over_batches(
        self, inputs: np.ndarray | Tensor, batch_size: int, then: Callable[[Tensor], Tensor]
    ) -> np.ndarray:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size!r} is not allowed; give a whole number of at least 1")
        rows = check_inputs(inputs, self.trained)
        device = self.module.get_buffer("shift").device
        found = [then(self.module(batch.to(device))).cpu().numpy() for batch in _cut(rows, batch_size)]
        return np.concatenate(found) if found else np.zeros((0, len(self.classes)), np.float32)


def _cut(rows: Tensor, batch_size: int) -> Iterator[Tensor]:
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]


def check_inputs(inputs: np.ndarray | Tensor, trained: Trained) -> Tensor:
    """The inputs as a tensor of the right kind; other shapes, types and values are refused with what is wanted."""
    rows = inputs if isinstance(inputs, Tensor) else _to_tensor(inputs)
    shape = tuple(trained.input_shape)
    wanted = f"uint8 images (N, {', '.join(map(str, shape))})" if trained.is_image else f"numbers (N, {shape[0]})"
    if rows is None or rows.is_complex() or (trained.is_image and rows.dtype != torch.uint8):
        found = getattr(inputs, "dtype", type(inputs).__name__)
        raise InputError(f"inputs of dtype {found} do not fit this model; give {wanted}")
    if rows.dim() != 1 + len(shape) or tuple(rows.shape[1:]) != shape:
        raise InputError(f"inputs of shape {tuple(rows.shape)} do not fit this model; give {wanted}")
    if trained.is_image:
        return rows
    rows = rows.to(torch.float32)
    finite = rows.isfinite().all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise InputError(f"the features of row {row} are not all finite in float32; fill them in or leave the row out")
    return rows


def _to_tensor(inputs: object) -> Tensor | None:
    """The array as a tensor, float32 unless it is uint8; None where it holds no numbers."""
    array = np.asarray(inputs)
    if array.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        array = np.ascontiguousarray(array, dtype=None if array.dtype == np.uint8 else np.float32)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
