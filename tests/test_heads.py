"""The heads against float64 references, at the edges of float32, and on models of every style."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from camri.errors import InputError
from camri.heads import CosineHead, LinearHead, replace_head, unit


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cosine_by_hand(features, weight):
    """Cosines in float64, one pair at a time; 0 where either vector is 0."""
    rows = []
    for x in features.detach().double():
        row = []
        for w in weight.detach().double():
            dot = sum(a * b for a, b in zip(x.tolist(), w.tolist(), strict=True))
            lengths = math.hypot(*x.tolist()) * math.hypot(*w.tolist())
            row.append(dot / lengths if lengths else 0.0)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


# Rows, features, classes: one for each place where the head may take the lengths out.
SIZES = [(5, 7, 4), (3, 4, 6), (8, 4, 6)]

# --- CosineHead -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES)
def test_cosines_are_those_of_float64(sizes, dtype):
    num_rows, in_features, num_classes = sizes
    head = CosineHead(in_features, num_classes, seeded())
    x = (torch.randn(num_rows, in_features, generator=seeded(1)) * 3).to(dtype)
    got = head(x)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), cosine_by_hand(x, head.weight), rtol=0, atol=2e-7)


def test_a_half_precision_or_double_weight_does_not_lower_the_products_precision():
    x = torch.randn(5, 7, generator=seeded(1))
    for head in (CosineHead(7, 4, seeded()).half(), CosineHead(7, 4, seeded()).bfloat16()):
        assert head(x.to(head.weight.dtype)).dtype == torch.float32
        torch.testing.assert_close(head(x).double(), cosine_by_hand(x, head.weight), rtol=0, atol=2e-7)
    double = CosineHead(7, 4, seeded()).double()
    torch.testing.assert_close(double(x), cosine_by_hand(x, double.weight), rtol=0, atol=1e-15)


def test_small_angles_survive_autocast():
    """An angle of 0.03 rad: its cosine rounds to 1 in bfloat16."""
    head = CosineHead(2, 1)
    head.weight.data = torch.tensor([[5.0, 0.0]])
    x = torch.tensor([[math.cos(0.03), math.sin(0.03)]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = head(x)
    assert got.dtype == torch.float32
    assert torch.equal(got, head(x))
    assert got.item() == pytest.approx(math.cos(0.03), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_autocast_changes_no_bit_of_value_or_gradient(make, dtype):
    head = make(6, 3, seeded())
    results = []
    for enabled in (False, True):
        x = torch.randn(4, 6, generator=seeded(1)).requires_grad_()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            out = head(x)
        (out * torch.arange(12.0).view(4, 3)).sum().backward()  # outside, as PyTorch asks
        results.append((out, x.grad, head.weight.grad.clone()))
        head.zero_grad()
    for plain, cast in zip(*results, strict=True):
        assert plain.dtype == cast.dtype == torch.float32
        assert torch.equal(plain, cast)


@pytest.mark.parametrize("sizes", SIZES)
def test_gradcheck(sizes):
    num_rows, in_features, num_classes = sizes
    head = CosineHead(in_features, num_classes, seeded()).double()
    x = torch.randn(num_rows, in_features, dtype=torch.float64, generator=seeded(1)).requires_grad_()
    weight = head.weight.detach().clone().requires_grad_()

    def run(x, weight):
        return torch.func.functional_call(head, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(run, (x, weight))
    assert torch.autograd.gradgradcheck(run, (x, weight))


def test_the_gradient_at_an_axis_is_right():
    """One entry alone: the scaled vector's length is exactly 1, where a clamp must not cut the gradient."""
    x = torch.tensor([[0.0, 4.0, 0.0]], requires_grad=True)
    unit(x)[0, 0].backward()
    assert x.grad.tolist() == [[0.25, 0.0, 0.0]]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", SIZES)
def test_zero_vectors_give_zero_and_no_gradient(sizes, compiled):
    num_rows, in_features, num_classes = sizes
    head = CosineHead(in_features, num_classes, seeded())
    with torch.no_grad():
        head.weight[1] = 0
    x = torch.randn(num_rows, in_features, generator=seeded(1))
    x[0] = 0
    x.requires_grad_()
    out = (torch.compile(head, fullgraph=True, backend="aot_eager") if compiled else head)(x)
    assert out[0].tolist() == [0] * num_classes
    assert out[:, 1].tolist() == [0] * num_rows
    (out * torch.arange(1.0, 1 + out.numel()).view_as(out)).sum().backward()
    assert x.grad[0].tolist() == [0] * in_features
    assert head.weight.grad[1].tolist() == [0] * in_features
    for grad in (x.grad, head.weight.grad):
        assert grad.isfinite().all()
        assert grad.abs().max() > 0.1


@pytest.mark.parametrize("size", [1e-14, 1e-12, 1e-8, 1e8, 1e15, 1e18])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_features_length_does_not_matter(sizes, size):
    num_rows, in_features, num_classes = sizes
    head = CosineHead(in_features, num_classes, seeded())
    direction = F.normalize(torch.randn(num_rows, in_features, generator=seeded(1)), dim=1)
    upstream = torch.linspace(0, 11, num_rows * num_classes).view(num_rows, num_classes)
    x = (direction * size).requires_grad_()
    out = head(x)
    torch.testing.assert_close(out, head(direction), rtol=0, atol=3e-7)
    out.backward(upstream)
    reference = direction.double().requires_grad_()
    head(reference).backward(upstream.double())
    torch.testing.assert_close(x.grad.double() * size, reference.grad, rtol=1e-4, atol=1e-4)  # it goes as 1 / length


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-31, 1e-17])
def test_features_too_small_for_a_gradient_count_as_zero(size):
    x = torch.full((2, 6), size).requires_grad_()
    out = CosineHead(6, 3, seeded())(x)
    out.sum().backward()
    assert out.abs().max() == 0
    assert x.grad.abs().max() == 0


@pytest.mark.parametrize("size", [1e-14, 1e17])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_weights_length_does_not_matter(sizes, size):
    num_rows, in_features, num_classes = sizes
    head, scaled = (CosineHead(in_features, num_classes, seeded()) for _ in range(2))
    scaled.weight.data *= size / head.weight.norm(dim=1, keepdim=True)
    x = torch.randn(num_rows, in_features, generator=seeded(1))
    torch.testing.assert_close(scaled(x), head(x), rtol=0, atol=3e-7)


def test_what_is_not_a_number_is_not_hidden():
    x = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1.0, 1.0]])
    assert CosineHead(2, 1, seeded())(x).isnan().flatten().tolist() == [True, True, False]


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_leading_dimensions_are_kept(make):
    head = make(6, 3, seeded())
    x = torch.randn(2, 5, 6, generator=seeded(1))
    assert head(x).shape == (2, 5, 3)
    torch.testing.assert_close(head(x), head(x.view(10, 6)).view(2, 5, 3))
    torch.testing.assert_close(head(x[0, 0]), head(x)[0, 0])
    assert head(x[:0]).shape == (0, 5, 3)


def test_features_and_weight_are_left_as_they_were():
    head = CosineHead(6, 3, seeded())
    x = torch.randn(4, 6, generator=seeded(1))
    before = x.clone(), head.weight.detach().clone()
    head(x)
    assert torch.equal(x, before[0])
    assert torch.equal(head.weight, before[1])


# --- LinearHead -----------------------------------------------------------------------------------------


def test_logits_are_the_affine_map():
    head = LinearHead(7, 4, seeded())
    head.bias.data = torch.tensor([0.0, 1.0, -2.0, 0.5])
    x = torch.randn(5, 7, generator=seeded(1))
    wanted = x.double() @ head.weight.double().T + head.bias.double()
    torch.testing.assert_close(head(x).double(), wanted, rtol=0, atol=2e-6)
    assert head(x.half()).dtype == torch.float32
    assert head(x.double()).dtype == torch.float64


# --- both -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_initial_weights_are_glorot_uniform(make):
    head = make(300, 200, seeded())
    bound = math.sqrt(6 / 500)
    assert head.weight.shape == (200, 300)
    assert head.weight.abs().max() <= bound
    assert head.weight.abs().max() > 0.999 * bound
    assert head.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert abs(head.weight.mean().item()) < 0.001
    assert make is CosineHead or head.bias.tolist() == [0.0] * 200
    assert {name for name, _ in head.named_parameters()} == ({"weight"} if make is CosineHead else {"weight", "bias"})


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_initial_weights_depend_on_the_generator_alone(make):
    before = torch.get_rng_state()
    one = make(8, 3, seeded(5)).weight
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(make(8, 3, seeded(5)).weight, one)
    assert not torch.equal(make(8, 3, seeded(6)).weight, one)
    torch.manual_seed(5)
    without = make(8, 3).weight
    torch.manual_seed(5)
    assert torch.equal(make(8, 3).weight, without)


def test_reset_draws_weight_and_bias_anew():
    head = LinearHead(8, 3, seeded(5))
    first = head.weight.detach().clone()
    head.bias.data += 1
    head.reset_parameters(seeded(6))
    assert not torch.equal(head.weight, first)
    assert head.bias.tolist() == [0, 0, 0]
    head.reset_parameters(seeded(5))
    assert torch.equal(head.weight, first)


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_wrong_sizes_are_refused(make):
    with pytest.raises(InputError, match="num_classes=0"):
        make(4, 0)
    with pytest.raises(InputError, match="in_features=-1"):
        make(-1, 4)
    for size in ("4", 4.0, None, True):
        with pytest.raises(InputError, match=f"num_classes={size!r} must be a whole number"):
            make(4, size)
        with pytest.raises(InputError, match=f"in_features={size!r} must be a whole number"):
            make(size, 4)
    with pytest.raises(InputError, match="features of type list"):
        make(4, 3)([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(InputError, match=r"features of shape \(\)"):
        make(4, 3)(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"\(2, 5\).*in_features=4"):
        make(4, 3)(torch.zeros(2, 5))


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_meta_tensors_pass(make):
    with torch.device("meta"):
        head = make(4, 3, seeded())
        assert head(torch.empty(2, 4)).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_compiles_without_a_break_under_autocast(make):
    head = make(6, 3, seeded())
    x = torch.randn(4, 6, generator=seeded(1))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(x), head(x))


@pytest.mark.slow
@pytest.mark.parametrize("make", [CosineHead, LinearHead])
@pytest.mark.parametrize("num_classes", [3, 8])
def test_exports_with_a_free_batch_size(make, num_classes):
    head = make(6, num_classes, seeded())
    shapes = {"features": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(head, (torch.randn(4, 6, generator=seeded(1)),), dynamic_shapes=shapes)
    x = torch.randn(9, 6, generator=seeded(2))
    torch.testing.assert_close(program.module()(x), head(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
def test_fx_traces_a_head_as_one_step(make):
    """As feature extractors and quantisation trace models; the graph still computes in float32 and refuses."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), make(6, 3, seeded()))
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(5, 4, generator=seeded(1))
    assert torch.equal(traced(x), model(x))
    assert [node.name for node in traced.graph.nodes if node.op == "call_function"] in (["_cosines"], ["_logits"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert traced(x).dtype == torch.float32
        assert torch.equal(traced(x), model(x))
    traced.get_submodule("0").weight.data = torch.zeros(7, 4)
    traced.get_submodule("0").bias.data = torch.zeros(7)
    with pytest.raises(InputError, match=re.escape("features of shape (5, 7) do not fit")):
        traced(x)


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
@pytest.mark.parametrize("num_classes", [3, 8])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_by_jit_serves_any_batch(make, num_classes):
    head = make(6, num_classes, seeded())
    x = torch.randn(9, 6, generator=seeded(1))
    torch.testing.assert_close(torch.jit.trace(head, x[:4])(x), head(x), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("num_classes", [3, 8])
def test_onnx_by_the_older_exporter(num_classes, tmp_path):
    """The default before torch 2.9; it does not know every operator."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    head, x = CosineHead(6, num_classes, seeded()), torch.randn(9, 6, generator=seeded(1))
    x[2] = 0
    axes = {"x": {0: "batch"}}
    torch.onnx.export(head, (x[:4],), tmp_path / "head.onnx", dynamo=False, input_names=["x"], dynamic_axes=axes)
    (got,) = runtime.InferenceSession(tmp_path / "head.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), head(x).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [CosineHead, LinearHead])
@pytest.mark.parametrize("num_classes", [3, 8])
def test_vmap_over_heads_equals_a_loop(make, num_classes):
    heads = [make(6, num_classes, seeded(seed)) for seed in range(4)]
    parameters, buffers = torch.func.stack_module_state(heads)
    x = torch.randn(4, 5, 6, generator=seeded(9))
    x[1, 2] = 0

    def loss(parameters, x):
        return torch.func.functional_call(heads[0], (parameters, buffers), (x,)).square().sum()

    got = torch.func.vmap(torch.func.grad(loss))(parameters, x)
    for index, head in enumerate(heads):
        head(x[index]).square().sum().backward()
        torch.testing.assert_close(got["weight"][index], head.weight.grad)


# --- replace_head ---------------------------------------------------------------------------------------


class Net(nn.Module):
    """A trunk of 6 -> 5 features with whatever else the test hangs on it, called in that order."""

    def __init__(self, **parts):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        for name, part in parts.items():
            setattr(self, name, part)
        self.order = ["trunk", *parts]

    def forward(self, x):
        for name in self.order:
            x = getattr(self, name)(x)
        return x


class TimmNet(Net):
    """timm's manner: get_classifier, reset_classifier, num_classes, num_features."""

    def __init__(self, **parts):
        super().__init__(**(parts or {"head": nn.Linear(5, 1000)}))
        self.num_classes, self.num_features = 1000, 5

    def get_classifier(self):
        return self.head

    def reset_classifier(self, num_classes):
        raise AssertionError("would put a plain linear layer there")


class HuggingNet(nn.Module):
    """transformers' manner: config.num_labels, num_labels, an output object with logits."""

    def __init__(self, classifier=None):
        super().__init__()
        self.config = SimpleNamespace(num_labels=1000)
        self.num_labels = 1000
        self.vit = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.classifier = classifier or nn.Linear(5, 1000)

    def forward(self, x):
        return SimpleNamespace(logits=self.classifier(self.vit(x)))


def two_layers():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 1000))


class NormHead(nn.Module):
    """A head that is a module of its own, with its layer inside."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(5), nn.Linear(5, 1000)
        self.num_classes = 1000

    def forward(self, x):
        return self.fc(self.norm(x))


STYLES = {
    "resnet: fc": (lambda: Net(fc=nn.Linear(5, 1000)), "fc", 5),
    "vgg: classifier[-1]": (lambda: Net(classifier=two_layers()), "classifier.3", 4),
    "vit: heads.head": (lambda: Net(heads=nn.Sequential()), "heads.head", 5),
    "swin: head": (lambda: Net(norm=nn.LayerNorm(5), head=nn.Linear(5, 1000, bias=False)), "head", 5),
    "cadene: last_linear": (lambda: Net(last_linear=nn.Linear(5, 1000)), "last_linear", 5),
    "timm: get_classifier": (TimmNet, "head", 5),
    "timm: head.fc": (lambda: TimmNet(head=NormHead()), "head.fc", 5),
    "transformers: classifier": (HuggingNet, "classifier", 5),
    "transformers: out_proj": (lambda: HuggingNet(two_layers()), "classifier.3", 4),
    "any: the last one": (lambda: Net(a=nn.Linear(5, 7), b=nn.Linear(7, 1000)), "b", 7),
    "sequential": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1000)), "2", 5),
    "wrapped": (lambda: Net(backbone=nn.Sequential(two_layers())), "backbone.0.3", 4),
    "there and back": (lambda: Net(a=nn.Linear(5, 9), b=nn.Linear(9, 5), c=nn.Linear(5, 1000)), "c", 5),
    "gated": (lambda: nn.Sequential(nn.Linear(6, 10), nn.GLU(), nn.Linear(5, 10)), "2", 5),
    "gated, wrapped": (
        lambda: Net(classifier=nn.Sequential(nn.Linear(5, 14), nn.GLU(), nn.Linear(7, 14))),
        "classifier.2",
        7,
    ),
    "dropout behind": (lambda: Net(fc=nn.Sequential(nn.Linear(5, 1000), nn.Dropout())), "fc.0", 5),
    "attention inside": (
        lambda: Net(fc2=nn.Linear(5, 1000), unused=nn.MultiheadAttention(8, 2)),
        "fc2",
        5,
    ),
}


def make_style(name):
    torch.manual_seed(0)
    model = STYLES[name][0]()
    if name == "vit: heads.head":
        model.heads.add_module("head", nn.Linear(5, 1000))
    if name == "attention inside":
        model.order.remove("unused")
    return model


def scores(model, x):
    out = model(x)
    return getattr(out, "logits", out)


@pytest.mark.parametrize("neck", [None, 1, 8])
@pytest.mark.parametrize("style", STYLES)
def test_the_classifier_of_every_style_is_replaced(style, neck):
    _, path, width = STYLES[style]
    model = make_style(style).eval()
    x = torch.randn(4, 6, generator=seeded(1))
    inputs = []
    model.get_submodule(path).register_forward_hook(lambda module, args, out: inputs.append(args[0]))
    scores(model, x)  # what went into the old classifier
    others = {name: p for name, p in model.named_parameters() if not name.startswith(f"{path}.")}

    returned = replace_head(model, 3, neck=neck, generator=seeded(2))

    assert returned is model
    new = model.get_submodule(path)
    head = new if neck is None else new[2]
    assert isinstance(head, CosineHead)
    assert (head.in_features, head.num_classes) == (neck or width, 3)
    assert not any(module.training for module in model.modules())
    after = dict(model.named_parameters())
    assert all(after[name] is p for name, p in others.items())
    features = inputs[0] if neck is None else new[1](new[0](inputs[0]))
    torch.testing.assert_close(scores(model, x).double(), cosine_by_hand(features, head.weight), rtol=0, atol=3e-7)


@pytest.mark.parametrize("style", STYLES)
def test_a_head_can_be_replaced_again(style):
    model = replace_head(make_style(style), 4)
    replace_head(model, 3, head="linear")
    new = model.get_submodule(STYLES[style][1])
    assert isinstance(new, LinearHead)
    assert scores(model.eval(), torch.zeros(2, 6)).shape == (2, 3)


def test_class_counts_follow():
    timm, norm, hugging = TimmNet(), TimmNet(head=NormHead()), HuggingNet()
    for model in (timm, norm, hugging):
        replace_head(model, 3)
    assert timm.num_classes == norm.num_classes == norm.head.num_classes == 3
    assert timm.num_features == 5
    assert hugging.config.num_labels == hugging.num_labels == 3


def test_a_count_that_cannot_be_set_is_left():
    class Counting(Net):
        num_classes = property(lambda self: 1000)

    assert replace_head(Counting(fc=nn.Linear(5, 1000)), 3).num_classes == 1000


def test_the_neck_frees_the_features_of_their_orthant():
    model = replace_head(Net(fc=nn.Linear(5, 1000)), 3, neck=8)
    linear, norm, head = model.fc
    assert (type(linear), type(norm), type(head)) == (nn.Linear, nn.BatchNorm1d, CosineHead)
    pooled = model.trunk(torch.randn(64, 6, generator=seeded(1)))
    assert pooled.min() >= 0
    freed = norm(linear(pooled))
    assert freed.mean(0).abs().max() < 1e-5


def test_dtype_and_device_of_the_old_layer_are_kept_for_the_neck():
    model = replace_head(Net(fc=nn.Linear(5, 1000)).to(torch.bfloat16), 3, neck=8)
    assert {p.dtype for p in model.fc[:2].parameters()} == {torch.bfloat16}
    assert model.fc[2].weight.dtype == torch.float32
    on_meta = replace_head(Net(fc=nn.Linear(5, 1000)).to("meta"), 3, neck=8)
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}


def test_replacement_depends_on_the_generator_alone():
    before = torch.get_rng_state()
    models = [make_style("resnet: fc") for _ in range(2)]
    torch.set_rng_state(before)
    for model in models:
        replace_head(model, 3, neck=8, generator=seeded(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(models[0].fc[0].weight, models[1].fc[0].weight)
    assert torch.equal(models[0].fc[2].weight, models[1].fc[2].weight)


def test_layer_decides():
    model = Net(head=nn.Linear(5, 1000), head_dist=nn.Linear(5, 1000))
    model.order.remove("head_dist")
    old = model.head_dist
    replace_head(model, 3, layer="head")
    assert isinstance(model.head, CosineHead)
    assert model.head_dist is old


def distilled():
    model = TimmNet(head=nn.Linear(5, 1000), head_dist=nn.Linear(5, 1000))
    model.get_classifier = lambda: (model.head, model.head_dist)
    return model


def tied():
    model = Net(embed=nn.Embedding(1000, 5), lm_head=nn.Linear(5, 1000))
    model.lm_head.weight = model.embed.weight
    return model


def registered_twice():
    model = Net(fc=nn.Linear(5, 1000))
    model.also = model.fc
    return model


def squeezenet():
    classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(5, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return Net(classifier=classifier)


def inception():
    model = Net(fc=nn.Linear(5, 1000))
    model.AuxLogits = nn.Module()
    model.AuxLogits.fc = nn.Linear(7, 1000)
    return model


REFUSALS = {
    "no linear layer": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), "no linear layer"),
    "a convolution": (squeezenet, "classifier is a convolution"),
    "a convolution, wrapped": (lambda: Net(conv=nn.Conv2d(5, 9, 1)), "convolution, conv, after .* trunk.0"),
    "headless": (lambda: Net(head=nn.Identity()), "head is Identity"),
    "headless, timm": (lambda: TimmNet(head=nn.Identity()), "head is Identity"),
    "distilled, timm": (distilled, "several classifiers: head, head_dist.*layer='head'"),
    "distilled": (lambda: Net(head=nn.Linear(5, 9), head_dist=nn.Linear(5, 9)), "several .*head, head_dist"),
    "one head a task": (lambda: Net(age=nn.Linear(5, 9), sex=nn.Linear(5, 2)), "several .* sex, age"),
    "one head a task, wrapped": (
        lambda: Net(heads=nn.ModuleDict({"age": nn.Linear(5, 9), "sex": nn.Linear(5, 2)})),
        "several .* heads.sex, heads.age",
    ),
    "auxiliary": (inception, "several .* fc, AuxLogits.fc"),
    "tied": (tied, "shares its weight .*embed.weight, lm_head.weight"),
    "registered twice": (registered_twice, "shares its weight .*fc.weight, also.weight"),
    "softmax behind": (lambda: Net(fc=nn.Sequential(nn.Linear(5, 9), nn.LogSoftmax(1))), "LogSoftmax follows"),
    "softmax further behind": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 9)), nn.Softmax(1)),
        "Softmax follows",
    ),
    "the layer alone": (lambda: nn.Linear(5, 9), "Linear itself"),
    "lazy": (lambda: Net(fc=nn.LazyLinear(9)), "run one batch first"),
    "wrapped": (lambda: nn.DataParallel(Net(fc=nn.Linear(5, 9))), "DataParallel wraps"),
    "compiled": (lambda: torch.compile(Net(fc=nn.Linear(5, 9))), "OptimizedModule wraps"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_where_it_cannot_it_says_so_and_changes_nothing(case):
    make, message = REFUSALS[case]
    model = make()
    before = str(model)
    with pytest.raises(InputError, match=message):
        replace_head(model, 3)
    assert str(model) == before


def test_wrong_arguments_are_refused_by_name():
    model = Net(fc=nn.Linear(5, 9))
    for arguments, message in (
        ({"head": "cosin"}, "head='cosin'.*did you mean 'cosine'.*choices: cosine, linear"),
        ({"neck": 0}, "neck=0"),
        ({"neck": 2.5}, "neck=2.5"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"layer": "fx"}, "layer='fx' is not in Net.*fc"),
        ({"layer": "trunk"}, "trunk, Sequential"),
    ):
        with pytest.raises(InputError, match=message):
            replace_head(model, **{"num_classes": 3, **arguments})
    assert type(model.fc) is nn.Linear


# --- the real libraries, where they are installed -------------------------------------------------------


def library(name):
    try:
        return __import__(name)
    except (ImportError, RuntimeError) as error:  # an unfit torchvision raises RuntimeError
        pytest.skip(f"{name}: {error}")


def check_real(model, x):
    replace_head(model, 3, neck=16).eval()
    got = scores(model, x)
    assert got.shape == (len(x), 3)
    assert got.dtype == torch.float32
    assert got.abs().max() <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_16", "densenet121", "swin_t"])
def test_torchvision(name):
    library("torchvision")
    from torchvision import models

    check_real(models.get_model(name, weights=None), torch.randn(2, 3, 224, 224))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0", "mobilenetv3_small_050"]
)
def test_timm(name):
    model = library("timm").create_model(name)
    check_real(model, torch.randn(2, 3, 224, 224))
    assert model.num_classes == 3


@pytest.mark.slow
def test_transformers():
    transformers = library("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vit = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=32, patch_size=8, num_labels=7, **sizes)
    )
    check_real(vit, torch.randn(2, 3, 32, 32))
    assert vit.config.num_labels == 3
    assert len(vit.config.id2label) == 3
    roberta = transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(vocab_size=50, num_labels=7, **sizes)
    )
    check_real(roberta, torch.randint(5, 50, (2, 8)))
    assert isinstance(roberta.classifier.out_proj[2], CosineHead)
