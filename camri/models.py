"""Models: trunks, their initial values and their dropout.

A trunk maps inputs to features (B, D), with D in `num_features`; `Classifier(trunk, head)` adds a head. Initial values
come only from the given `generator` or a file, and dropout masks from a seed and the number of the call: a trial
depends on its own seed alone.
"""

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from camri.backbones import Preprocessing, axes, is_backbone, make_net, preprocessing_of
from camri.checks import freeze_for_backward, is_size
from camri.errors import InputError, closest
from camri.imports import find_installed

CLASSIFIERS = ("head.", "fc.", "classifier.")  # names of classifier layers in files of whole models
Generator = torch.Generator | None


def draw(weight: Tensor, init: Callable[..., Tensor], generator: Generator) -> None:
    """Initialise `weight` with draws made on the generator's device, so that every device gets the same values."""
    with torch.no_grad():
        if generator is None:
            init(weight)
        else:
            drawn = torch.empty(weight.shape, dtype=torch.float32, device=generator.device)
            weight.copy_(init(drawn, generator=generator))


def without_counters(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors without batch norm's counters, which are not used after training and missing in some files."""
    return {name: value for name, value in tensors.items() if not name.endswith("num_batches_tracked")}


def start_from(trunk: nn.Module, path: str, digest: str | None) -> None:
    """Load the trunk's values from a safetensors file, whose names and shapes must match the trunk's.

    A file of a whole classifier works too: the prefix "trunk." is removed, and its last layer is ignored.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        found = load(data)
    except OSError as error:
        raise InputError(
            f"weights={path} cannot be read ({error.strerror}); give a safetensors file", argument="weights"
        ) from None
    except (SafetensorError, ValueError) as error:
        raise InputError(f"weights={path} is not a safetensors file ({error})", argument="weights") from None
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise InputError(
            f"weights={path} has changed since the training began; put the file back, or begin anew", argument="weights"
        )
    for prefix in ("trunk.", "net."):
        if any(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    wanted, found = without_counters(trunk.state_dict()), without_counters(found)
    for name, tensor in wanted.items():
        if name not in found:
            raise InputError(f"weights {path} has no {name!r}, which the model has; {closest(name, found)}")
        if found[name].shape != tensor.shape:
            given, needed = tuple(found[name].shape), tuple(tensor.shape)
            raise InputError(
                f"weights {path}: {name!r} has shape {given}, and the model needs {needed}; give weights of this model"
            )
    for name in found:
        if name not in wanted and not name.startswith(CLASSIFIERS):
            raise InputError(f"weights {path} has {name!r}, which the model does not have; {closest(name, wanted)}")
    trunk.load_state_dict({name: found[name] for name in wanted}, strict=False)


class Dropout(nn.Module):
    """Zero each entry with probability `p` and scale the rest by 1 / (1 - p), in training only.

    Unseeded, this is `F.dropout`. With a seed the mask is a hash of (seed, number of the call, position): it is the
    same on every device, needs no generator, and can be compiled, captured in a CUDA graph and resumed at any call.

    >>> drop = Dropout(0.5)
    >>> seed_dropout(drop, 0)
    >>> drop(torch.ones(8))
    tensor([2., 2., 0., 2., 0., 0., 0., 2.])
    """

    calls: Tensor
    seeds: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        if not (isinstance(p, (int, float, Real)) and 0 <= p < 1):
            raise InputError(f"dropout p={p!r} must be a number of at least 0 and below 1")
        self.p = p
        self.seeded = False
        # Tensors, not numbers: torch.compile would make one version of the model for each seed.
        self.register_buffer("seeds", torch.zeros(2, dtype=torch.int32), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if not self.seeded:
            return F.dropout(x, self.p, self.training)
        key = _hash(freeze_for_backward(self.calls), self.seeds[1]) + self.seeds[0]
        kept = _hash(_position(x), key) >= round((self.p - 0.5) * 2**32)
        self.calls += 1
        return torch.where(kept, x * (1 / (1 - self.p)), 0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def seed_dropout(model: nn.Module, seed: int) -> None:
    """Seed every `Dropout` in `model` and set its number of calls to 0."""
    for place, layer in enumerate(_layers(model)):
        digest = hashlib.blake2b(f"dropout/{seed}/{place}".encode(), digest_size=8).digest()
        layer.seeded = True
        layer.seeds.copy_(torch.tensor(struct.unpack(">ii", digest), dtype=torch.int32))
        layer.calls.zero_()


def resume_dropout(model: nn.Module, num_calls: int | Tensor) -> None:
    """Set the number of calls that every `Dropout` in `model` has made."""
    for layer in _layers(model):
        layer.calls.fill_(num_calls)


def _layers(model: nn.Module) -> list[Dropout]:
    return [module for module in model.modules() if isinstance(module, Dropout)]


def _position(x: Tensor) -> Tensor:
    """Index of each entry, int32, with the channels last, as images are stored in memory."""
    number = torch.arange(x.numel(), dtype=torch.int32, device=x.device)
    return number.view(x.shape) if x.dim() != 4 else number.view(x.movedim(1, -1).shape).movedim(-1, 1)


def _hash(x: Tensor, key: Tensor | int) -> Tensor:
    """Hash int32 to int32: Ellis' lowbias32 with two additions of the key; products wrap around."""
    for multiplier, shift in ((0x7FEB352D, 15), (-0x7B935975, 16)):
        x = x + key
        x = x ^ ((x >> 16) & 0xFFFF)
        x = x * multiplier
        x = x ^ ((x >> shift) & (2 ** (32 - shift) - 1))
    return x


class Trunk(nn.Module):
    """Inputs -> features (B, num_features)."""

    num_features: int
    min_size = 1  # smallest image side it accepts


class Classifier(nn.Module):
    """A trunk and a head as one module: inputs -> the head's cosines or logits (B, C).

    >>> Classifier(MLP(4, num_features=2), nn.Linear(2, 3)).eval()(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        gives, takes = getattr(trunk, "num_features", None), getattr(head, "in_features", None)
        if gives is not None and takes is not None and gives != takes:
            raise InputError(f"the trunk gives num_features={gives}, the head takes in_features={takes}")
        self.trunk = trunk
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class PaperCNN(Trunk):
    """The authors' CNN: images (B, in_channels, H, W) in [0, 1], H and W at least 4 -> (B, num_features).

    568 M multiply-adds for a 32 x 32 image. `num_features=2` is for Fig. 6.

    >>> PaperCNN(generator=torch.Generator().manual_seed(0)).eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 512])
    """

    min_size = 4
    # A number is a 3x3 convolution with ReLU.
    LAYERS = (
        *(64, 64, "norm", 64, "pool", "drop"),
        *(128, 128, "norm", 128, "pool", "drop"),
        *(256, 256, "norm", 256, 256, 256, "norm", 512, 512),
    )

    def __init__(
        self,
        in_channels: int = 3,
        num_features: int = 512,
        dropout: float = 0.25,
        generator: Generator = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        # Keras' defaults, as in the authors' TensorFlow code: Glorot-uniform kernels, zero biases, batch norm with
        # epsilon 1e-3 and momentum .99, which is .01 in PyTorch's convention.
        keras: dict[str, Any] = {"eps": 1e-3, "momentum": 0.01}
        layers: list[nn.Module] = []
        channels = in_channels
        for layer in self.LAYERS:
            if layer == "norm":
                layers.append(nn.BatchNorm2d(channels, **keras))
            elif layer == "pool":
                layers.append(nn.MaxPool2d(2))
            elif layer == "drop":
                layers.append(Dropout(dropout))
            else:
                layers += [_conv(channels, int(layer), generator=generator, bias=True), nn.ReLU()]
                channels = int(layer)
        self.convolutions = nn.Sequential(*layers)
        self.dense = _linear(channels, num_features, _he_normal_truncated, generator)
        # paper: fully connected layer with ReLU / here: batch norm and no ReLU / why: the authors' code does so,
        # and behind a ReLU no two features are over 90 degrees apart.
        self.norm = nn.BatchNorm1d(num_features, **keras)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(_average(self.convolutions(x)))

    def top(self, averaged: Tensor) -> Tensor:
        """Compute features from the averaged outputs of the last convolution."""
        return self.norm(self.dense(averaged))


class SmallCNN(Trunk):
    """Three convolutions for tiny images: (B, in_channels, H, W), H and W at least 4 -> (B, num_features).

    0.2 M multiply-adds for an 8 x 8 digit and 2 M for a 28 x 28 one at width 16.

    >>> SmallCNN(in_channels=1).eval()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 64])
    """

    min_size = 4

    def __init__(
        self,
        in_channels: int = 1,
        num_features: int = 64,
        width: int = 16,
        dropout: float = 0.0,
        generator: Generator = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        sizes = (in_channels, width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            if layers:
                layers.append(nn.MaxPool2d(2))
            layers += [_conv(before, after, generator=generator), nn.BatchNorm2d(after), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, Dropout(dropout))
        self.dense = _linear(sizes[-1], num_features, _he_normal, generator)
        self.norm = nn.BatchNorm1d(num_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dense(_average(self.convolutions(x))))


class MLP(Trunk):
    """Dense layers for ready-made features: (B, ...) with in_features numbers each -> (B, num_features).

    Hidden layers have batch norm and ReLU; the last has batch norm only, so that features can point anywhere.

    >>> MLP(20, num_features=8, hidden=(32, 16)).eval()(torch.zeros(3, 20)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        in_features: int,
        num_features: int = 64,
        hidden: Sequence[int] = (128, 128),  # one layer: 0.913, two: 0.939 validation accuracy (docs/log.md)
        dropout: float = 0.0,
        generator: Generator = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        layers: list[nn.Module] = []
        width = in_features
        for after in hidden:
            layers += [_linear(width, after, _small_uniform, generator), nn.BatchNorm1d(after), nn.ReLU()]
            layers.append(Dropout(dropout))
            width = after
        layers += [_linear(width, num_features, _small_uniform, generator), nn.BatchNorm1d(num_features)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class Linear(Trunk):
    """The inputs, normalised to mean 0 and variance 1 over a batch: (B, ...) -> (B, in_features).

    With a head it is a linear classifier of ready-made features, such as those of a frozen backbone. Centring lets
    features from behind a ReLU be more than 90 degrees apart, which a cosine head needs.

    >>> Linear(20).eval()(torch.zeros(3, 20)).shape
    torch.Size([3, 20])
    """

    def __init__(self, in_features: int, dropout: float = 0.0, generator: Generator = None) -> None:
        super().__init__()
        self.num_features = in_features
        self.norm = nn.BatchNorm1d(in_features, affine=False)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x.flatten(1)))


class Trees(Trunk):
    """Boosted trees with one score per class: (B, ...) with in_features numbers each -> (B, num_features).

    The nodes of all trees are stored in sequence: feature, threshold, left and right child, and the value of a leaf. A
    leaf is its own child. Tree t belongs to class t % num_features. All are float32, like other weights.

    >>> Trees(20, num_features=3, num_trees=6, num_nodes=42, depth=3)(torch.zeros(5, 20)).shape
    torch.Size([5, 3])
    """

    NODES = ("feature", "threshold", "left", "right", "value")

    def __init__(
        self,
        in_features: int,
        num_features: int = 1,
        num_trees: int = 1,
        num_nodes: int = 1,
        depth: int = 0,
        generator: Generator = None,
    ) -> None:
        super().__init__()
        if num_trees % num_features:
            raise InputError(f"num_trees={num_trees} is no multiple of num_features={num_features}")
        self.num_features, self.depth = num_features, depth
        for name in self.NODES:
            self.register_buffer(name, torch.zeros(num_nodes))
        self.register_buffer("roots", torch.zeros(num_trees))
        self.register_buffer("base", torch.zeros(num_features))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        feature, left, right, roots = (self.get_buffer(name).long() for name in ("feature", "left", "right", "roots"))
        threshold, value = self.get_buffer("threshold"), self.get_buffer("value")
        node = roots.expand(x.shape[0], -1)
        for _ in range(self.depth):
            node = torch.where(x.gather(1, feature[node]) <= threshold[node], left[node], right[node])
        return value[node].unflatten(1, (-1, self.num_features)).sum(dim=1) + self.get_buffer("base")


class ResNet18(Trunk):
    """ResNet-18: images (B, in_channels, H, W) -> (B, num_features).

    `stem="small"` is the usual one for CIFAR (3x3, stride 1, no pooling), `"standard"` the one for ImageNet
    (7x7, stride 2, max-pool). `num_features=None` gives the 512 pooled features, none below 0; a number adds a
    dense layer with batch norm, whose outputs have both signs, which is better for an angular margin.

    >>> ResNet18(num_features=2).eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2])
    """

    STEMS = ("small", "standard")

    def __init__(
        self,
        in_channels: int = 3,
        num_features: int | None = None,
        stem: str = "small",
        generator: Generator = None,
    ) -> None:
        super().__init__()
        if stem not in self.STEMS:
            raise InputError(f"stem={stem!r} is not known; {closest(stem, self.STEMS)}", argument="stem")
        small = stem == "small"
        kernel, stride = (3, 1) if small else (7, 2)
        self.stem = nn.Sequential(
            _conv(in_channels, 64, kernel, stride, init=_he_normal_fan_out, generator=generator),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        before = 64
        for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [_Block(before, after, stride, generator), _Block(after, after, 1, generator)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.num_features = before if num_features is None else num_features
        self.neck: nn.Module = nn.Identity()
        if num_features is not None:
            dense = _linear(before, num_features, _he_normal, generator)
            self.neck = nn.Sequential(dense, nn.BatchNorm1d(num_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.neck(_average(self.blocks(self.stem(x))))


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is projected if the shape changes."""

    def __init__(self, before: int, after: int, stride: int, generator: Generator) -> None:
        super().__init__()
        init = _he_normal_fan_out
        self.branch = nn.Sequential(
            _conv(before, after, 3, stride, init=init, generator=generator),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            _conv(after, after, 3, 1, init=init, generator=generator),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            projection = _conv(before, after, 1, stride, init=init, generator=generator)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class Backbone(Trunk):
    """A network of another package with its own preprocessing: images (B, C, H, W) in [0, 1] -> (B, num_features).

    Grey images are repeated for the three colours. Images that were decoded at the network's size are only normalised;
    others are resized and cropped as the record says, with 8-bit rounding like Pillow's. A `probe` is a trunk that was
    trained on stored features (:func:`to_half`), standardised by `feature_mean` and `feature_sd`.
    """

    mean: Tensor
    sd: Tensor
    rows: Tensor | None
    columns: Tensor | None
    feature_mean: Tensor
    feature_sd: Tensor

    def __init__(self, net: nn.Module, record: Preprocessing, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.net = net
        self.probe: Trunk | None = None
        size = record.size or (shape[1], shape[2])
        matrices = None if record.size is None else axes(shape[1], shape[2], size, record.resize)
        for name, matrix in zip(("rows", "columns"), matrices or (None, None), strict=True):
            self.register_buffer(name, None if matrix is None else torch.tensor(matrix), persistent=False)
        for name, values in (("mean", record.mean), ("sd", record.sd)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        if shape[0] not in (1, len(record.mean)):
            raise InputError(
                f"the images have {shape[0]} channels, and the model takes {len(record.mean)} or grey ones"
            )
        self.num_features = _num_features(net, (len(record.mean), *size))

    def add_probe(self, probe: Trunk) -> None:
        """Put a trunk on the features; its values and the features' mean and sd are loaded with the state."""
        self.register_buffer("feature_mean", torch.zeros(self.num_features))
        self.register_buffer("feature_sd", torch.ones(self.num_features))
        self.probe, self.num_features = probe, probe.num_features

    def forward(self, x: Tensor) -> Tensor:
        features = _features(self.net, self.prepare(x))
        if self.probe is None:
            return features
        return self.probe((to_half(features).float() - self.feature_mean) / self.feature_sd)

    def save_memory(self) -> None:
        """Turn on gradient checkpointing if the network supports it."""
        net: Any = self.net
        with contextlib.suppress(AttributeError, ValueError):  # for networks without it
            if hasattr(net, "set_grad_checkpointing"):  # timm
                net.set_grad_checkpointing(True)
            else:
                net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def prepare(self, x: Tensor) -> Tensor:
        """The network's input: resized, cropped and normalised, in float32."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float().expand(-1, len(self.mean), -1, -1)
            if self.rows is not None and self.columns is not None:
                # Horizontally first, with 8-bit values in between, like Pillow.
                across = _to_levels(torch.matmul(_to_levels(x * 255), self.columns.T))
                x = _to_levels(torch.matmul(self.rows, across)) / 255
            return (x - self.mean) / self.sd


def to_half(features: Tensor) -> Tensor:
    """Convert features to the stored form: float16, clipped to its largest number."""
    return features.clamp(-65504, 65504).half()


def _to_levels(x: Tensor) -> Tensor:
    """Round to the nearest of 256 pixel levels."""
    return (x + 0.5).floor().clamp(0, 255)


def _features(net: nn.Module, x: Tensor) -> Tensor:
    """Outputs of a network without classifier, which transformers calls logits: (B, D)."""
    outputs = net(x)
    return (outputs if isinstance(outputs, Tensor) else outputs.logits).flatten(1)


@torch.no_grad()
def _num_features(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of features of a network for images of this shape, found by running it once."""
    was_training = net.training
    try:
        return _features(net.eval(), torch.zeros(1, *shape)).shape[1]
    except Exception as error:
        raise InputError(
            f"{type(net).__name__} cannot take images of {shape[1]} x {shape[2]} pixels ({error})"
        ) from None
    finally:
        net.train(was_training)


MODELS: dict[str, type[Trunk]] = {
    "paper": PaperCNN,
    "small": SmallCNN,
    "mlp": MLP,
    "features": MLP,
    "linear": Linear,
    "trees": Trees,
    "resnet18": ResNet18,
}
NAMES = (*(name for name in MODELS if name != "trees"), "timm:NAME", "hf:NAME")  # trees are fitted by scikit-learn


def is_known(name: str) -> bool:
    """Whether `name` is in `MODELS`, or has the form of a timm or transformers model, which is looked up when built.

    Other packages add trunks by entry points of the group "camri.models" (docs/study.md).
    """
    return is_backbone(name) or find_installed(name, MODELS, "camri.models")


def build(name: str, input_shape: Sequence[int], generator: Generator = None, **options: Any) -> Trunk:
    """Build the trunk `name` for inputs of `input_shape`, (C, H, W) images or, for "mlp", any shape.

    `options` are the constructor's: num_features, dropout, width, hidden, stem; "timm:NAME" takes those of timm and
    those that `camri.backbones.find` returns for pretrained weights. Every model takes `initial`, a safetensors file
    with the trunk's initial values, and `initial_sha256`, which distinguishes trainings from different files.

    >>> build("small", (1, 8, 8), num_features=2).num_features
    2
    """
    initial, digest = options.pop("initial", None), options.pop("initial_sha256", None)
    if not isinstance(input_shape, Sequence) or not all(is_size(size) for size in input_shape) or not input_shape:
        raise InputError(
            f"input_shape={input_shape!r} must have one dimension or more, each at least 1", argument="input_shape"
        )
    trunk = _build(name, tuple(input_shape), generator, options)
    if initial is not None:
        start_from(trunk.net if isinstance(trunk, Backbone) else trunk, initial, digest)
    return trunk


def _build(name: str, shape: tuple[int, ...], generator: Generator, options: dict[str, Any]) -> Trunk:
    if not is_known(name):
        raise InputError(f"model={name!r} is not a model; {closest(name, NAMES)}", argument="model")
    if name not in MODELS:
        return _build_backbone(name, shape, generator, options)
    model = MODELS[name]
    known = [option for option in inspect.signature(model).parameters if not option.startswith("in_")]
    known.remove("generator")
    for option, value in options.items():
        if option not in known:
            raise InputError(f"model {name!r} has no option {option!r}; {closest(option, known)}")
        may_be_none = inspect.signature(model).parameters[option].default is None
        if option in ("num_features", "width") and not (is_size(value) or (value is None and may_be_none)):
            raise InputError(f"model {name!r} option {option}={value!r} must be a whole number of at least 1")
        if option == "hidden" and not (isinstance(value, (list, tuple)) and all(is_size(size) for size in value)):
            raise InputError(f"model {name!r} option hidden={value!r} must be a list of whole numbers of at least 1")
    if model in (MLP, Linear, Trees):
        return model(math.prod(shape), generator=generator, **options)
    _check_is_image(name, shape)
    if min(shape[1:]) < model.min_size:
        raise InputError(
            f"model={name!r} takes images from {model.min_size} x {model.min_size} on; the inputs have shape {shape}",
            argument="model",
        )
    return model(in_channels=shape[0], generator=generator, **options)


def _check_is_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise InputError(
            f"model={name!r} takes images (channels, height, width); the inputs have shape {shape}", argument="model"
        )


def _build_backbone(name: str, shape: tuple[int, ...], generator: Generator, options: dict[str, Any]) -> Backbone:
    """Build a network of timm or transformers, initialised from the generator."""
    _check_is_image(name, shape)
    options = dict(options)
    probe = options.pop("probe", None)
    with torch.random.fork_rng(devices=[]):  # these packages use the global generator
        seed = torch.randint(0, 2**62, (), generator=generator).item()
        torch.manual_seed(int(seed))
        net = make_net(name, options)
    text = options.get("preprocessing")
    record = preprocessing_of(getattr(net, "pretrained_cfg", {})) if text is None else Preprocessing.from_text(text)
    trunk = Backbone(net, record, shape)
    if probe is not None:
        small = json.loads(probe)
        trunk.add_probe(_build(small["model"], (trunk.num_features,), generator, small["options"]))
    return trunk


Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


def _average(x: Tensor) -> Tensor:
    """Global average pooling: (B, C, H, W) -> (B, C)."""
    return x.mean((2, 3))


_he_normal = functools.partial(nn.init.kaiming_normal_, nonlinearity="relu")
_he_normal_fan_out = functools.partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
# PyTorch's default, ±1/√fan_in. Before a batch norm only the size of Adam's steps relative to the weights matters: with
# He's normal draws, 2.4 times larger, a table's validation accuracy was 1.9 points lower after 16 epochs (docs/log.md).
_small_uniform = functools.partial(nn.init.kaiming_uniform_, a=math.sqrt(5))


def _he_normal_truncated(weight: Tensor, generator: Generator = None) -> Tensor:
    """Keras' he_normal: truncated at two standard deviations and rescaled to a variance of 2 / fan_in."""
    std = math.sqrt(2 / weight.shape[1]) / 0.87962566103423978  # sd of a standard normal truncated at ±2
    return nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)


def _conv(
    before: int,
    after: int,
    kernel: int = 3,
    stride: int = 1,
    bias: bool = False,
    init: Callable[..., Tensor] = nn.init.xavier_uniform_,
    generator: Generator = None,
) -> nn.Conv2d:
    """A convolution with "same" padding, its weight from `generator`, its bias zero."""
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=bias, device="meta")
    return _initialise(layer, init, generator)


def _linear(before: int, after: int, init: Callable[..., Tensor], generator: Generator) -> nn.Linear:
    return _initialise(nn.Linear(before, after, device="meta"), init, generator)


def _initialise(layer: Layer, init: Callable[..., Tensor], generator: Generator) -> Layer:
    """Draw the values of a layer made on the meta device, whose constructor used no global random numbers."""
    device = torch.get_default_device()
    if device.type == "meta":  # shapes only; a normal draw there would import torch's compiler (1 s or more)
        return layer
    for name, shape in [(name, parameter.shape) for name, parameter in layer.named_parameters()]:
        setattr(layer, name, nn.Parameter(torch.empty(shape, device=device)))  # skip_init would import sympy
    draw(layer.weight, init, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
