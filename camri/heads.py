"""Heads: features (..., D) -> one number per class (..., C). They hold weights and never see labels.

`CosineHead` gives cosines, for the margin losses; `LinearHead` gives logits, for everything else;
`replace_head` puts either on a torchvision-, timm- or transformers-style model.
"""

import math
from collections.abc import Callable

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from camri.checks import is_size
from camri.errors import InputError, closest
from camri.models import draw

# Below this length a vector counts as zero: the squares of its entries would be subnormal in float32.
TINY_LENGTH = 1e-15
# Not torch.amp.is_autocast_available: torch 2.11 cannot compile that call.
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu")


def unit(x: Tensor) -> Tensor:
    """Scale `x` to length 1 along its last dimension, in float32 (float64 stays): (..., D) -> (..., D).

    A zero vector stays zero with a gradient of zero; with `F.normalize` it is 1e12. Lengths from 1e-15 to 1e19 are
    exact to rounding.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e18, 4e18]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000],
            [0.6000, 0.8000]])
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * _over_length(x, keepdim=True)


def _over_length(x: Tensor, keepdim: bool = False) -> Tensor:
    """1 / |x| along the last dimension, 0 with gradient 0 for a zero vector: (..., D) -> (...) or (..., 1)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
    # Not torch.threshold, which saves a step: ONNX's older exporter, the default before torch 2.9, does not support it.
    return torch.where(length > TINY_LENGTH, length, math.inf).reciprocal()


class _Head(nn.Module):
    """Base of both heads, with a float32 weight (C, D)."""

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("num_classes", num_classes)):
            if not is_size(value):
                raise InputError(f"{name}={value!r} must be a whole number of at least 1")
        self.in_features = in_features
        self.num_classes = num_classes
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, dtype=torch.float32))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw a new weight, Glorot-uniform, from `generator` or torch's global one."""
        draw(self.weight, nn.init.xavier_uniform_, generator)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, num_classes={self.num_classes}"


class CosineHead(_Head):
    """Cosines between features and class weights: (..., D) -> (..., C), eq. 8's cos θ.

    No bias; weight (C, D), Glorot-uniform, from `generator` if one is given. Computed in float32 under
    any autocast dtype (in bfloat16 every angle below 0.063 rad would round to 0); float64 stays float64.
    A zero feature vector or weight row gives cosine 0 and gradient 0. Lengths may be 1e-15 to 1e18; shorter
    vectors count as zero. Rounding may exceed [-1, 1] by about 1e-7.
    With `torch.set_float32_matmul_precision("high")` a GPU multiplies in TF32: keep "highest" for angles.

    >>> head = CosineHead(2, 3)
    >>> head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> head(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[0.6000, 0.8000, 0.0000]])
    """

    def forward(self, features: Tensor) -> Tensor:
        return _cosines(features, self.weight)


class LinearHead(_Head):
    """Logits, features · weightᵀ + bias: (..., D) -> (..., C), in float32 under any autocast dtype.

    Weight (C, D) Glorot-uniform, bias (C,) zero: Keras' defaults, as in the authors' baseline.

    >>> head = LinearHead(2, 3)
    >>> head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> head(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[3., 8., 0.]])
    """

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__(in_features, num_classes, generator)
        self.bias = nn.Parameter(torch.zeros(num_classes, dtype=torch.float32))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        if hasattr(self, "bias"):  # the base class calls this before the bias exists
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor) -> Tensor:
        return _logits(features, self.weight, self.bias)


# torch.fx must not trace into these two: the traced steps would skip the checks and run under autocast.
@torch.fx.wrap
def _cosines(features: Tensor, weight: Tensor) -> Tensor:
    return _in_float32(_cosines_of_floats, features, weight)


@torch.fx.wrap
def _logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _in_float32(F.linear, features, weight, bias)


def _in_float32(product: Callable[..., Tensor], features: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """Compute the product with autocast off, in float32, or in float64 if features or weight are."""
    in_features = weight.shape[-1]
    if not isinstance(features, Tensor):
        raise InputError(f"features of type {type(features).__name__} are no tensor; give (..., {in_features})")
    if features.shape[-1:] != (in_features,):
        raise InputError(
            f"features of shape {tuple(features.shape)} do not fit this head: "
            f"the last dimension must be in_features={in_features}"
        )
    if not features.dtype == weight.dtype == torch.float32:
        dtype = torch.promote_types(torch.promote_types(features.dtype, weight.dtype), torch.float32)
        features, weight, bias = features.to(dtype), weight.to(dtype), tuple(b.to(dtype) for b in bias)
    if _may_be_autocast(features):
        with torch.autocast(device_type=features.device.type, enabled=False):
            return product(features, weight, *bias)
    return product(features, weight, *bias)


def _cosines_of_floats(features: Tensor, weight: Tensor) -> Tensor:
    num_classes, in_features = weight.shape
    # Divide the smallest of features (B, D), weight (C, D) and product (B, C) by the lengths. Time with the product
    # alone / with features and weight alone, at D 512, loss included, one CPU core: 0.88 at B 1,024, C 10; 0.92 at
    # 64, 1,000; 1.04 at 1,024, 1,000 (fastest of 200, 184 and 19 steps).
    over_feature, over_weight = _over_length(features, keepdim=True), _over_length(weight)
    if num_classes < in_features:
        return F.linear(features, weight) * over_feature * over_weight
    features = features * over_feature
    # A compiled graph serves any batch, so it must not depend on the size of this one.
    if not torch.compiler.is_compiling() and features.shape[:-1].numel() < in_features:
        return F.linear(features, weight) * over_weight
    return F.linear(features, weight * over_weight.unsqueeze(-1))


HEADS: dict[str, type[CosineHead] | type[LinearHead]] = {"cosine": CosineHead, "linear": LinearHead}

# Where torchvision, timm, transformers and pretrainedmodels keep the classifier.
USUAL_NAMES = ("fc", "classifier", "head", "heads", "last_linear", "score")
_INSTEAD = "put CosineHead(num_features, num_classes) on the model's features instead"
# Modules after the classifier that do not change its outputs in eval mode.
HARMLESS = (nn.Identity, nn.Dropout, nn.Flatten)


def replace_head(
    model: nn.Module,
    num_classes: int,
    head: str = "cosine",
    neck: int | None = None,
    *,
    layer: str | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Replace the classifier of `model` in place by a `CosineHead` or a `LinearHead`, and return `model`.

    The classifier is what `get_classifier()` returns, else the last linear layer under a usual name (fc, classifier,
    head, heads, last_linear, score), else the last linear layer; `layer="path.to.it"` overrides this. `neck=512` puts
    Linear + BatchNorm1d before the head, for features (B, D): after a ReLU features are never negative, so their angles
    are at most 90 degrees and margins must be smaller. The neck gets the old layer's dtype and device, the head its
    device; the head stays float32. `num_classes`, `num_labels` and `config.num_labels` are updated if the model has
    them. Create the optimiser afterwards.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1000))
    >>> replace_head(model, num_classes=3)[-1]
    CosineHead(in_features=4, num_classes=3)
    """
    if head not in HEADS:
        raise InputError(f"head={head!r} is not a head; {closest(head, HEADS)}", argument="head")
    if neck is not None and not is_size(neck):
        raise InputError(f"neck={neck!r} must be a whole number of at least 1, or None for no neck", argument="neck")
    if hasattr(model, "_orig_mod") or isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise InputError(
            f"{type(model).__name__} wraps the model: replace the head first, then compile or distribute it"
        )
    path = _find_classifier(model) if layer is None else layer
    old = _classifier_at(model, path)

    device, dtype = old.weight.device, old.weight.dtype
    width = old.in_features if neck is None else neck
    new: nn.Module = HEADS[head](width, num_classes, generator).to(device)
    if neck is not None:
        # No bias: the batch norm after it would cancel it.
        linear = nn.utils.skip_init(nn.Linear, old.in_features, neck, bias=False, device=device, dtype=dtype)
        draw(linear.weight, nn.init.kaiming_normal_, generator)
        new = nn.Sequential(linear, nn.BatchNorm1d(neck, device=device, dtype=dtype), new)
    new.train(old.training)

    *parents, name = path.split(".")
    setattr(model.get_submodule(".".join(parents)), name, new)
    _tell_num_classes(model, parents, num_classes)
    return model


def _find_classifier(model: nn.Module) -> str:
    """Find the path of the classifier; raise InputError if there is none or more than one."""
    kind = type(model).__name__
    everywhere = _linear_paths(model)
    places = _usual_places(model)
    found = [path for place in places for path in everywhere if f"{path}.".startswith(f"{place}.")]
    if places and not found:
        inside = model.get_submodule(places[-1])
        what = "a convolution" if _convolutions(inside) else f"{type(inside).__name__}, no linear layer"
        raise InputError(f"{kind}.{places[-1]} is {what}: {_INSTEAD}")
    if not everywhere:
        raise InputError(f"{kind} has no linear layer to replace: {_INSTEAD}")
    path = (found or everywhere)[-1]
    if not found:
        order = [name for name, _ in model.named_modules()]
        later = [name for name in _convolutions(model) if order.index(name) > order.index(path)]
        if later:
            raise InputError(
                f"{kind} has a convolution, {later[-1]}, after its last linear layer, {path}; "
                f"if that is the classifier, say layer={path!r}"
            )
    rivals = [other for other in everywhere if _is_rival(model, path, other, everywhere)]
    if rivals:
        raise InputError(
            f"{kind} has several layers that may be the classifier: {', '.join([path, *rivals])}; "
            f"choose one, for example layer={path!r}"
        )
    return path


def _usual_places(model: nn.Module) -> list[str]:
    """Paths where this model keeps its classifier by convention; may be empty."""
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        named = get_classifier()
        parts = list(named) if isinstance(named, (tuple, list, nn.ModuleList)) else [named]
        paths = [name for name, module in model.named_modules() if any(module is part for part in parts)]
        if len(paths) > 1:
            raise InputError(
                f"{type(model).__name__} has several classifiers: {', '.join(paths)}; "
                f"choose one, for example layer={paths[0]!r}"
            )
        if paths:
            return paths
    return [name for name, _ in model.named_children() if name in USUAL_NAMES]


def _classifier_at(model: nn.Module, path: str) -> "nn.Linear | _Head":
    """The layer at `path`, checked: it is linear, shares no weight, and nothing after it changes its outputs."""
    kind = type(model).__name__
    modules = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        raise InputError(f"layer={path!r} is not in {kind}; {closest(path, _linear_paths(model))}", argument="layer")
    old = modules[path]
    if not isinstance(old, (nn.Linear, _Head)) or path == "":
        what = f"{kind} itself" if path == "" else f"{kind}.{path}, {type(old).__name__},"
        raise InputError(f"{what} is no linear layer inside a model: {_INSTEAD}")
    if isinstance(old, nn.LazyLinear):
        raise InputError(f"{kind}.{path} does not know its input size yet: run one batch first")
    users = [name for name, p in model.named_parameters(remove_duplicate=False) if p is old.weight]
    if len(users) > 1:
        raise InputError(f"{kind}.{path} shares its weight ({', '.join(users)}): it is no classifier of its own")
    while path:
        path, _, name = path.rpartition(".")
        parent = modules[path]
        if isinstance(parent, nn.Sequential):
            names = list(parent._modules)
            for after in names[names.index(name) + 1 :]:
                if not isinstance(parent._modules[after], HARMLESS):
                    raise InputError(
                        f"{type(parent._modules[after]).__name__} follows the classifier in {kind}: "
                        "take it off first, the losses want bare cosines or logits"
                    )
    return old


def _linear_paths(model: nn.Module) -> list[str]:
    """Paths of all linear layers and heads outside attention modules, in order of registration."""
    attention = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention))
    linear = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, _Head))]
    return [name for name in linear if not name.startswith(attention)]


def _convolutions(model: nn.Module) -> list[str]:
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def _sizes(model: nn.Module, path: str) -> tuple[int, int]:
    layer = model.get_submodule(path)
    assert isinstance(layer, (nn.Linear, _Head))
    return layer.in_features, layer.num_classes if isinstance(layer, _Head) else layer.out_features


def _is_rival(model: nn.Module, path: str, other: str, everywhere: list[str]) -> bool:
    """Whether `other` looks like a second output: no layer takes its output, and it resembles `path`.

    Examples: DeiT's head and head_dist, Inception's fc and AuxLogits.fc, a module with one head per task.
    """
    if other == path:
        return False
    (taken, given), (taken_too, given_too) = _sizes(model, path), _sizes(model, other)
    parent, parent_too = path.rpartition(".")[0], other.rpartition(".")[0]
    in_a_row = parent == parent_too and isinstance(model.get_submodule(parent), nn.Sequential)
    if in_a_row or any(_sizes(model, layer)[0] == given_too for layer in everywhere):
        return False
    return given == given_too or (taken == taken_too and parent == parent_too)


def _tell_num_classes(model: nn.Module, parents: list[str], num_classes: int) -> None:
    """Update the class counts stored in the model and the modules around its classifier."""
    around = [model.get_submodule(".".join(parents[:depth])) for depth in range(len(parents) + 1)]
    for holder in [*around, getattr(model, "config", None)]:
        for name in ("num_classes", "num_labels"):
            prop = getattr(type(holder), name, None)
            if isinstance(prop, property) and prop.fset is None:
                continue  # computed from something else
            if isinstance(getattr(holder, name, None), int):
                setattr(holder, name, num_classes)


def _may_be_autocast(x: Tensor) -> bool:
    """Whether autocast has to be switched off; doing so without need takes 5 % of a small head's time.

    A compiled graph always switches it off, since it may run under autocast later. Meta tensors have no autocast.
    """
    device = x.device.type
    return device in AUTOCAST_DEVICES and (torch.compiler.is_compiling() or torch.is_autocast_enabled(device))
