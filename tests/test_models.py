"""The trunks: the authors' layers, known sizes, and a trial that depends on its own generators alone."""

import copy
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from camri.errors import InputError
from camri.heads import CosineHead, LinearHead
from camri.models import MLP, Classifier, Dropout, PaperCNN, ResNet18, SmallCNN, build, seed_dropout


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


SMALLEST = {  # name -> input shape, options that keep it quick
    "paper": ((3, 8, 8), {"num_features": 16}),
    "small": ((1, 8, 8), {"width": 4}),
    "mlp": ((20,), {"hidden": (16,)}),
    "resnet18": ((3, 8, 8), {"num_features": 16}),
}


def make(name, seed=0, **more):
    shape, options = SMALLEST[name]
    return build(name, shape, seeded(seed), **{**options, **more})


def batch(name, size=4, seed=1):
    return torch.rand(size, *SMALLEST[name][0], generator=seeded(seed))


def lively(model, seed=7):
    """The model in eval mode, with statistics that are not the trivial ones and features that differ.

    As initialised, thirteen Glorot convolutions shrink the difference of two images to 5e-5.
    """
    generator = seeded(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data *= 1.6
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
            for tensor in (module.running_var, module.weight.data):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def multiply_adds(model, shape):
    """Counted by hooks on meta tensors: nothing is computed."""
    model = model.to("meta").eval()
    total = 0

    def count(module, args, out):
        nonlocal total
        total += module.weight.numel() * math.prod(out.shape[2:])

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    model(torch.empty(1, *shape, device="meta"))
    return total


def num_parameters(model):
    return sum(p.numel() for p in model.parameters())


# --- the authors' CNN -----------------------------------------------------------------------------------


def test_paper_cnn_has_568_million_multiply_adds():
    assert round(multiply_adds(PaperCNN(), (3, 32, 32)) / 1e6) == 568
    assert round(multiply_adds(PaperCNN(), (3, 48, 48)) / 1e6) == round(568.0 * 2.25)


def test_paper_cnn_has_the_authors_layers():
    names = {nn.Conv2d: "c", nn.ReLU: "r", nn.BatchNorm2d: "B", nn.MaxPool2d: "M", Dropout: "D"}
    layers = list(PaperCNN().convolutions)
    assert "".join(names[type(layer)] for layer in layers) == ("crcrBcrMD" + "crcrBcrMD" + "crcrBcrcrcrBcrcr")
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [64] * 3 + [128] * 3 + [256] * 5 + [512] * 2
    assert all(c.kernel_size == (3, 3) and c.padding == (1, 1) and c.stride == (1, 1) for c in convolutions)
    assert all(c.bias is not None for c in convolutions)
    assert [layer.p for layer in layers if isinstance(layer, Dropout)] == [0.25, 0.25]
    norms = [m for m in PaperCNN().modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert len(norms) == 5
    assert all((norm.eps, norm.momentum) == (1e-3, 0.01) for norm in norms)


def test_paper_cnn_is_what_its_list_of_layers_says():
    """Written out once more with functions, in float64."""
    model = lively(PaperCNN(2, 16, generator=seeded())).double()
    x = torch.rand(3, 2, 9, 11, generator=seeded(1)).double()
    convolutions = iter(m for m in model.convolutions if isinstance(m, nn.Conv2d))
    norms = iter(m for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)))

    def conv(x):
        layer = next(convolutions)
        return F.conv2d(x, layer.weight, layer.bias, padding="same").clamp(min=0)

    def norm(x):
        layer = next(norms)
        mean, var, scale, shift = (
            t.view(1, -1, *[1] * (x.dim() - 2))
            for t in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        )
        return (x - mean) / (var + 1e-3).sqrt() * scale + shift

    h = F.max_pool2d(conv(norm(conv(conv(x)))), 2)
    h = F.max_pool2d(conv(norm(conv(conv(h)))), 2)
    h = conv(conv(norm(conv(conv(conv(norm(conv(conv(h)))))))))
    wanted = norm(h.sum((2, 3)) / (h.shape[2] * h.shape[3]) @ model.dense.weight.T + model.dense.bias)
    torch.testing.assert_close(model(x), wanted)
    assert wanted.min() < 0  # no ReLU before the head


def test_paper_cnn_starts_as_keras_would():
    model = PaperCNN(generator=seeded())
    for layer in model.convolutions:
        if isinstance(layer, nn.Conv2d):
            bound = math.sqrt(6 / (9 * (layer.in_channels + layer.out_channels)))
            assert 0.99 * bound < layer.weight.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
            assert layer.bias.abs().max() == 0
    weight, sd = model.dense.weight, math.sqrt(2 / 512)
    assert weight.std().item() == pytest.approx(sd, rel=0.01)
    assert 1.98 * sd / 0.8796 < weight.abs().max() <= 2.0001 * sd / 0.8796
    assert model.dense.bias.abs().max() == 0


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 7), (4, 48, 48)])
def test_paper_cnn_takes_any_size_from_four_on(shape):
    model = PaperCNN(shape[0], generator=seeded()).eval()
    out = model(torch.rand(2, *shape, generator=seeded(1)))
    assert out.shape == (2, 512)
    assert out.isfinite().all()


# --- ResNet-18 ------------------------------------------------------------------------------------------


def test_resnet18_has_the_known_number_of_parameters():
    with torch.device("meta"):
        cifar = Classifier(ResNet18(), LinearHead(512, 10))
        imagenet = Classifier(ResNet18(stem="standard"), LinearHead(512, 1000))
    assert num_parameters(cifar) == 11_173_962
    assert num_parameters(imagenet) == 11_689_512


def test_resnet18_has_the_known_multiply_adds():
    stem, first = 9 * 3 * 64 * 32**2, 4 * 9 * 64 * 64 * 32**2
    # Each later stage: half the side, twice the channels; one convolution halved, a 1x1 shortcut added.
    later = (3.5 * 9 * 64 * 64 + 64 * 64 / 2) * 32**2
    assert multiply_adds(ResNet18(), (3, 32, 32)) == stem + first + 3 * later
    assert round(multiply_adds(ResNet18(stem="standard"), (3, 224, 224)) / 1e6) == 1814


def test_resnet18_adds_the_shortcut():
    """With the branches' last batch norms at zero, the first two blocks pass their input on."""
    model = ResNet18(generator=seeded()).eval()
    for block in model.blocks:
        nn.init.zeros_(block.branch[-1].weight)
    x = model.stem(torch.rand(2, 3, 8, 8, generator=seeded(1)))
    assert torch.equal(model.blocks[:2](x), x)
    assert model.blocks(x).shape == (2, 512, 1, 1)


def test_resnet18_pooled_features_have_one_sign_and_those_of_the_neck_have_two():
    x = torch.rand(8, 3, 8, 8, generator=seeded(1))
    assert ResNet18(generator=seeded())(x).min() >= 0
    assert ResNet18(num_features=16, generator=seeded())(x).min() < -0.5
    with pytest.raises(InputError, match=r"stem='smal'.*did you mean 'small'"):
        ResNet18(stem="smal")


# --- the small ones -------------------------------------------------------------------------------------


def test_small_cnn_is_small():
    assert multiply_adds(SmallCNN(), (1, 8, 8)) < 0.2e6
    assert multiply_adds(SmallCNN(), (1, 28, 28)) < 2e6


def test_mlp_is_what_it_says():
    model = lively(MLP(6, 3, hidden=(5, 4), generator=seeded())).double()
    x = torch.randn(7, 2, 3, generator=seeded(1)).double()
    h = x.view(7, 6)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    for index, (linear, norm) in enumerate(zip(linears, norms, strict=True)):
        h = h @ linear.weight.T + linear.bias
        h = (h - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        h = h.clamp(min=0) if index < 2 else h
    torch.testing.assert_close(model(x), h)
    assert [linear.out_features for linear in linears] == [5, 4, 3]
    assert MLP(6, hidden=())(torch.rand(4, 6)).shape == (4, 64)
    dropped = MLP(6, hidden=(5, 4), dropout=0.3)
    assert [module.p for module in dropped.modules() if isinstance(module, Dropout)] == [0.3, 0.3]


@pytest.mark.parametrize("name", ["paper", "small", "mlp"])
def test_features_before_the_head_are_centred(name):
    """Batch norm and no ReLU come last, so that the directions fill the sphere."""
    features = make(name)(batch(name, 32))
    assert features.mean(0).abs().max() < 1e-5
    assert features.min() < -0.5


# --- all trunks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALLEST)
def test_initial_values_depend_on_the_generator_alone(name):
    before = torch.get_rng_state()
    one = make(name, 5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, other = make(name, 5).state_dict(), make(name, 6).state_dict()
    weights = [key for key in one if one[key].dim() > 1]
    assert weights
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in weights)
    assert all(value.isfinite().all() for value in one.values())


@pytest.mark.parametrize("name", SMALLEST)
def test_without_a_generator_the_global_one_is_used(name):
    shape, options = SMALLEST[name]
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(name, shape, **options).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.parametrize("num_features", [2, 24])
def test_num_features_is_what_comes_out(name, num_features):
    trunk = make(name, num_features=num_features).eval()
    assert trunk.num_features == num_features
    assert trunk(batch(name)).shape == (4, num_features)


@pytest.mark.parametrize("name", SMALLEST)
def test_the_input_is_left_as_it_was(name):
    x = batch(name)
    before = x.clone()
    make(name)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", SMALLEST)
def test_an_images_features_do_not_depend_on_its_neighbours_when_used(name):
    trunk = lively(make(name))
    x = batch(name)
    torch.testing.assert_close(trunk(x)[1:2], trunk(x[1:2]), rtol=1e-4, atol=1e-4)
    assert (trunk(x)[1] - trunk(x)[2]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["paper", "small", "resnet18"])
def test_channels_last_gives_the_same(name):
    trunk = lively(make(name))
    x = batch(name)
    wanted = trunk(x)
    trunk.to(memory_format=torch.channels_last)
    torch.testing.assert_close(trunk(x.to(memory_format=torch.channels_last)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_a_break(name, training):
    trunk = lively(make(name)).train(training)
    seed_dropout(trunk, 5)
    twin = copy.deepcopy(trunk)
    x = batch(name)
    got, wanted = torch.compile(trunk, fullgraph=True, backend="aot_eager")(x), twin(x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    upstream = torch.linspace(-1, 1, got.numel()).view_as(got)
    got.backward(upstream)
    wanted.backward(upstream)
    for one, other in zip(trunk.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    for key, value in twin.state_dict().items():  # running statistics too
        torch.testing.assert_close(trunk.state_dict()[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_exports_with_a_free_batch_size(name):
    model = Classifier(lively(make(name)), CosineHead(make(name).num_features, 3, seeded())).eval()
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(model, (batch(name),), dynamic_shapes=shapes)
    x = batch(name, 7, seed=3)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALLEST)
def test_vmap_over_models_equals_a_loop(name):
    models = [lively(make(name, seed), seed) for seed in range(3)]
    state = torch.func.stack_module_state(models)
    x = batch(name)

    def run(state):
        return torch.func.functional_call(models[0], state, (x,))

    got = torch.func.vmap(run)(state)
    for index, model in enumerate(models):
        torch.testing.assert_close(got[index], model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALLEST)
def test_a_default_device_is_respected_and_values_come_from_the_generators_own(name):
    with torch.device("meta"):
        trunk = make(name)
    assert {t.device.type for t in trunk.state_dict().values()} == {"meta"}


# --- Classifier and build -------------------------------------------------------------------------------


def test_classifier_is_head_after_trunk():
    model = Classifier(lively(make("mlp")), LinearHead(64, 3, seeded())).eval()
    x = batch("mlp")
    assert torch.equal(model(x), model.head(model.trunk(x)))
    with pytest.raises(InputError, match=r"num_features=64.*in_features=65"):
        Classifier(make("mlp"), CosineHead(65, 3))


def test_build_makes_what_the_name_says():
    kinds = {"paper": PaperCNN, "small": SmallCNN, "mlp": MLP, "features": MLP, "resnet18": ResNet18}
    for name, kind in kinds.items():
        trunk = build(name, (2, 6, 5), num_features=3)
        assert type(trunk) is kind
        assert trunk.eval()(torch.rand(1, 2, 6, 5)).shape == (1, 3)
    assert [m.p for m in build("small", (1, 8, 8), dropout=0.5).modules() if isinstance(m, Dropout)] == [0.5]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("papr", (3, 32, 32)), {}, "model='papr'.*did you mean 'paper'.*small, mlp, features, linear, resnet18"),
        (("paper", (3, 32, 32)), {"widht": 3}, "no option 'widht'.*choices: num_features, dropout"),
        (("small", (3, 32, 32)), {"widht": 3}, "did you mean 'width'"),
        (("paper", (3, 32, 32)), {"in_channels": 3}, "no option 'in_channels'"),
        (("paper", (32, 32)), {}, r"images \(channels, height, width\).*\(32, 32\)"),
        (("paper", (3, 32, 3)), {}, r"from 4 x 4 on.*\(3, 32, 3\)"),
        (("mlp", ()), {}, r"input_shape=\(\)"),
        (("mlp", (0,)), {}, r"input_shape=\(0,\)"),
        (("mlp", 8), {}, "input_shape=8 must have"),
        ((None, (8,)), {}, "model=None is not a model"),
        (("paper", (3, 32, 32)), {"num_features": 0}, "option num_features=0 must be a whole number"),
        (("paper", (3, 32, 32)), {"num_features": 1.5}, r"option num_features=1\.5 must be a whole number"),
        (("small", (1, 8, 8)), {"width": "a"}, "option width='a' must be a whole number"),
        (("small", (1, 8, 8)), {"dropout": "a"}, "dropout p='a' must be a number"),
        (("mlp", (8,)), {"num_features": None}, "option num_features=None must be a whole number"),
        (("mlp", (8,)), {"hidden": 5}, "option hidden=5 must be a list"),
        (("mlp", (8,)), {"hidden": (16, 0)}, r"option hidden=\(16, 0\) must be a list"),
        (("resnet18", (3, 8, 8)), {"num_features": "x"}, "option num_features='x' must be a whole number"),
    ],
)
def test_build_refuses_by_name(arguments, options, message):
    with pytest.raises(InputError, match=message):
        build(*arguments, **options)


def test_trials_of_different_seeds_share_one_compiled_version():
    """Otherwise every model of a pack would be compiled anew."""
    compiled = []

    def count(graph, inputs):
        compiled.append(graph)
        return graph

    forward = torch.compile(lambda trunk, x: trunk(x), backend=count, fullgraph=True)
    for seed in range(3):
        trunk = build("small", (1, 8, 8), generator=seeded(seed), dropout=0.5)
        seed_dropout(trunk, seed)
        forward(trunk, torch.rand(4, 1, 8, 8))
    assert len(compiled) == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_building_a_model_does_not_import_the_compiler(device):
    script = (
        "import sys, torch\nfrom camri.models import build\nbefore = set(sys.modules)\n"
        f"with torch.device({device!r}):\n"
        "    for name, shape in (('small', (1, 8, 8)), ('paper', (3, 32, 32)), ('mlp', (4,))):\n"
        f"        assert {{one.device.type for one in build(name, shape).parameters()}} == {{{device!r}}}\n"
        "new = {'sympy', 'torch._dynamo'} & set(sys.modules) - before\nassert not new, new\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
