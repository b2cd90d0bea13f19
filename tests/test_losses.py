"""The losses against their equations, at their edges, and against other people's packages."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from camri import losses
from camri.errors import InputError
from tests import references
from tests.cases import CASES, COST, IDS, MARGINS, NUM_CLASSES, PAPER_MARGINS, WEIGHTS, labels

every_loss = pytest.mark.parametrize("case", CASES, ids=IDS)


@every_loss
def test_equals_the_equation(case):
    outputs = case.outputs()
    got = case.loss(outputs, labels(), **case.parameters)
    torch.testing.assert_close(got, case.reference(outputs, labels(), **case.parameters), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if case.smooths], ids=lambda case: case.name)
def test_label_smoothing_equals_the_equation_with_soft_labels(case):
    got = case.loss(case.outputs(), labels(), **case.parameters, label_smoothing=0.1)
    want = case.reference(case.outputs(), labels(), **case.parameters, smoothing=0.1)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@every_loss
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-4), (torch.float16, 1e-4)])
def test_half_precision_inputs_are_computed_in_float32(case, dtype, rtol):
    outputs = case.outputs().to(dtype)  # the rounded numbers are the input: the loss adds no rounding of its own
    got = case.loss(outputs, labels(), **case.cast(torch.float32))
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), case.reference(outputs, labels(), **case.cast(torch.float32)), rtol=rtol, atol=1e-5
    )
    assert case.loss(outputs, labels(), **case.parameters).dtype == torch.float32  # float64 parameters change nothing


@every_loss
def test_gradient_equals_finite_differences(case):
    outputs = case.outputs(6).requires_grad_()
    assert torch.autograd.gradcheck(lambda o: case.loss(o, labels(6), **case.parameters), (outputs,))


@every_loss
def test_inputs_are_not_changed(case):
    outputs = case.outputs()
    before = outputs.clone(), {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in case.parameters.items()}
    case.loss(outputs, labels(), **case.parameters)
    assert outputs.equal(before[0])
    for name, value in case.parameters.items():
        assert value.equal(before[1][name]) if isinstance(value, torch.Tensor) else value == before[1][name]


@every_loss
def test_renaming_the_classes_changes_nothing(case):
    order = torch.tensor([3, 0, 4, 1, 2])  # new class i is old class order[i]
    new_label = order.argsort()
    renamed = {
        name: value[order][:, order]
        if getattr(value, "ndim", 0) == 2
        else value[order]
        if getattr(value, "ndim", 0)
        else value
        for name, value in case.parameters.items()
    }
    got = case.loss(case.outputs()[:, order], new_label[labels()], **renamed)
    torch.testing.assert_close(got, case.loss(case.outputs(), labels(), **case.parameters))


@every_loss
def test_compiled_without_a_graph_break(case):
    compiled = torch.compile(
        lambda o, t: case.loss(o, t, **case.cast(torch.float32)), fullgraph=True, backend="aot_eager"
    )
    outputs = case.outputs().float().requires_grad_()
    got, want = compiled(outputs, labels()), case.loss(outputs, labels(), **case.cast(torch.float32))
    torch.testing.assert_close(got, want)
    (got_slope,) = torch.autograd.grad(got.sum(), outputs)
    (want_slope,) = torch.autograd.grad(want.sum(), outputs)
    torch.testing.assert_close(got_slope, want_slope)


@every_loss
def test_exported_gives_the_same(case):
    class Loss(nn.Module):
        def forward(self, outputs, targets):
            return case.loss(outputs, targets, **case.cast(torch.float32))

    outputs = case.outputs().float()
    exported = torch.export.export(Loss(), (outputs, labels()), strict=False).module()
    torch.testing.assert_close(exported(outputs, labels()), case.loss(outputs, labels(), **case.cast(torch.float32)))


@every_loss
def test_vmap_over_replicas_equals_a_loop(case):
    outputs = torch.stack([case.outputs(seed=seed) for seed in range(3)])
    targets = torch.stack([labels().roll(shift) for shift in range(3)])
    strength = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)

    def one(o, t, k):
        scaled = {name: k * v if isinstance(v, torch.Tensor) else v for name, v in case.parameters.items()}
        return case.loss(o, t, **scaled)

    got = torch.func.vmap(one)(outputs, targets, strength)
    torch.testing.assert_close(got, torch.stack([one(outputs[i], targets[i], strength[i]) for i in range(3)]))
    slope = torch.func.vmap(torch.func.grad(lambda *args: one(*args).sum()))(outputs, targets, strength)
    loop = torch.stack(
        [torch.func.grad(lambda *args: one(*args).sum())(outputs[i], targets[i], strength[i]) for i in range(3)]
    )
    torch.testing.assert_close(slope, loop)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_extreme_outputs_have_finite_loss_and_gradient(case, dtype):
    if case.takes == "cos":
        rows = [[1, 1, 1, 1, 1], [-1, -1, -1, -1, -1], [1, -1, 0, 1, -1], [-1, 1, 1, -1, 1], [0, 0, 0, 0, 0]]
    else:
        rows = [[1e4, -1e4, 0, 0, 0], [-1e4, 1e4, 1e4, -1e4, 1e4], [1e4] * 5, [-1e4] * 5, [0, 0, 0, 0, 1e4]]
    for label in range(NUM_CLASSES):
        outputs = torch.tensor(rows, dtype=dtype, requires_grad=True)
        loss = case.loss(outputs, torch.full((5,), label), **case.cast(torch.float32))
        assert loss.isfinite().all(), loss
        (slope,) = torch.autograd.grad(loss.sum(), outputs)
        assert slope.isfinite().all(), slope


@every_loss
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.uint16])
def test_leading_dimensions_and_small_integer_labels(case, dtype):
    smoothing = {"label_smoothing": 0.1} if case.smooths else {}
    got = case.loss(
        case.outputs().view(3, 4, NUM_CLASSES), labels().view(3, 4).to(dtype), **case.parameters, **smoothing
    )
    torch.testing.assert_close(got, case.loss(case.outputs(), labels(), **case.parameters, **smoothing).view(3, 4))


@every_loss
def test_as_many_small_labels_as_classes_are_no_mask(case):
    where = torch.tensor([1, 2, 4, 3, 1])
    got = case.loss(case.outputs(NUM_CLASSES), where.to(torch.uint8), **case.parameters)
    torch.testing.assert_close(got, case.loss(case.outputs(NUM_CLASSES), where, **case.parameters))


@every_loss
def test_every_loss_refuses_the_same(case):
    outputs, where = case.outputs(), labels()
    with pytest.raises(InputError, match="label 5 is out of range; there are 5 classes, 0 to 4"):
        case.loss(outputs, where + 1, **case.parameters)
    broken = outputs.clone()
    broken[3, 2] = math.nan
    with pytest.raises(InputError, match=r"outputs at \(3, 2\) is nan"):
        case.loss(broken, where, **case.parameters, validate=True)
    assert case.loss(broken, where, **case.parameters)[3].isnan()  # not looked at unless asked: that would take time
    if case.smooths:
        for smoothing in (-0.1, 1.0):
            with pytest.raises(
                InputError, match=rf"label_smoothing={smoothing} is not allowed; it must be in \[0, 1\)"
            ):
                case.loss(outputs, where, **case.parameters, label_smoothing=smoothing)
    if case.takes == "cos":
        with pytest.raises(InputError, match=r"scale=0\.0 is not allowed"):
            case.loss(outputs, where, **{**case.parameters, "scale": 0.0})
        with pytest.raises(InputError, match="allowed: cosines in"):
            case.loss(1.02 * outputs.sign(), where, **case.parameters, validate=True)
        case.loss(1.01 * outputs.sign(), where, **case.parameters, validate=True)  # rounding is let pass
    for name in set(case.parameters) & {
        "weights",
        "margins",
        "false_negative",
        "false_positive",
        "cost",
        "gamma",
        "scales",
    }:
        negative = case.parameters[name].clone()
        negative.view(-1)[1] = -1.0
        with pytest.raises(InputError, match=rf"{name} at \(.*1,?\) is -1"):
            case.loss(outputs, where, **{**case.parameters, name: negative})


@every_loss
def test_an_empty_batch_is_an_empty_loss(case):
    assert case.loss(case.outputs(0), labels(0), **case.parameters).shape == (0,)


@every_loss
def test_autocast_changes_nothing(case):
    outputs = case.outputs().float()
    plain = case.loss(outputs, labels(), **case.cast(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert case.loss(outputs, labels(), **case.cast(torch.float32)).equal(plain)


# --- the margin ----------------------------------------------------------------------------------------------


def target_cosine(theta, margin, policy):
    cos = torch.stack([torch.cos(theta), torch.zeros_like(theta)], dim=-1)
    where = torch.zeros(theta.shape, dtype=torch.int64)
    return losses.add_angular_margin(cos, where, torch.tensor([margin, 0.0], dtype=theta.dtype), policy)[..., 0]


@pytest.mark.parametrize("margin", [*PAPER_MARGINS[1:], 0.8, 1.5, 3.0, math.pi])
def test_monotone_falls_strictly_continues_the_paper_and_has_no_kink(margin):
    theta = torch.linspace(0.001, math.pi - 0.001, 20_001, dtype=torch.float64, requires_grad=True)
    value = target_cosine(theta, margin, "monotone")
    (slope,) = torch.autograd.grad(value.sum(), theta)
    steps = value.detach().diff()
    assert (steps < 0).all()
    assert steps.abs().max() < 2 * math.pi / 20_000  # continuous: no step larger than the slope allows
    assert slope.diff().abs().max() < 2 * math.pi / 20_000  # and so is its slope
    inside = theta.detach() + margin <= math.pi
    torch.testing.assert_close(value[inside], torch.cos(theta + margin)[inside])
    torch.testing.assert_close(value[~inside], (-2 - torch.cos(theta + margin))[~inside])


def test_paper_and_clip_beyond_pi():
    theta = torch.tensor([math.pi - 0.1], dtype=torch.float64)
    assert target_cosine(theta, 0.4, "paper").item() == pytest.approx(math.cos(math.pi + 0.3))
    assert target_cosine(theta, 0.4, "clip").item() == pytest.approx(math.cos(math.pi - 0.1) - 0.4 * math.sin(0.4))
    assert target_cosine(theta, 0.4, "monotone").item() == pytest.approx(-2 - math.cos(math.pi + 0.3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cosine", [1.0, -1.0])
def test_gradient_at_plus_minus_one_points_the_right_way(dtype, cosine):
    cos = torch.tensor([[cosine, 0.0]], dtype=dtype, requires_grad=True)
    loss = losses.margin_softmax(cos, torch.tensor([0]), torch.tensor([0.3, 0.0]), 64.0)
    (slope,) = torch.autograd.grad(loss.sum(), cos)
    assert slope.isfinite().all()
    # A larger target cosine never raises the loss; far from the boundary the slope may round to zero.
    assert slope[0, 0] < 0 if cosine < 0 else slope[0, 0] <= 0


def test_rows_without_a_margin_are_untouched_to_the_bit_even_past_plus_minus_one():
    cos = torch.tensor([[1.0000001, 0.2], [-1.0000001, 0.3], [1.0, 0.5], [-1.0, 0.1]], requires_grad=True)
    where = torch.zeros(4, dtype=torch.int64)
    for policy in losses.BEYOND_PI:
        got = losses.add_angular_margin(cos, where, torch.zeros(2), policy)
        assert got.equal(cos)
        (slope,) = torch.autograd.grad(got.sum(), cos)
        assert slope.equal(torch.ones(4, 2))
    assert losses.add_angular_margin(math.nan * cos, where, torch.zeros(2)).isnan().all()  # looked at only if asked


@given(
    theta=st.floats(0.01, math.pi - 0.01),
    margin=st.floats(0.0, 1.5),
    more=st.floats(1e-3, 1.0),
    scale=st.floats(1.0, 64.0),
    other=st.floats(-0.99, 0.99),
)
@settings(max_examples=200, deadline=None)
def test_a_larger_margin_is_a_larger_loss(theta, margin, more, scale, other):
    cos = torch.tensor([[math.cos(theta), other]], dtype=torch.float64)
    small, large = (
        losses.margin_softmax(cos, torch.tensor([0]), torch.tensor([m, 0.0], dtype=torch.float64), scale).item()
        for m in (margin, margin + more)
    )
    assert large >= small
    assert large > small or large < 1e-12


@given(
    cos=st.lists(st.floats(-1, 1), min_size=NUM_CLASSES, max_size=NUM_CLASSES),
    label=st.integers(0, NUM_CLASSES - 1),
    scale=st.sampled_from([1.0, 2.0, 8.0, 64.0, 256.0, 1e4]),
    policy=st.sampled_from(losses.BEYOND_PI),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
)
@settings(max_examples=300, deadline=None)
def test_margin_softmax_is_finite_for_any_cosines(cos, label, scale, policy, dtype):
    row = torch.tensor([cos], dtype=dtype, requires_grad=True)
    loss = losses.margin_softmax(row, torch.tensor([label]), MARGINS, scale, policy)
    (slope,) = torch.autograd.grad(loss.sum(), row)
    assert loss.isfinite().all()
    if dtype != torch.float16 or scale <= 256:  # s = 1e4 times a slope of 12 is past float16's 65504
        assert slope.isfinite().all()


def test_margin_zero_is_plain_softmax_and_the_important_class_alone_changes():
    cos, where = torch.tanh(torch.randn(50, 4, dtype=torch.float64)), torch.arange(50) % 4
    plain = losses.cross_entropy(8.0 * cos, where)
    torch.testing.assert_close(losses.margin_softmax(cos, where, torch.zeros(4), 8.0), plain)
    margined = losses.margin_softmax(cos, where, torch.tensor([0.0, 0.0, 0.3, 0.0]), 8.0)
    assert margined[where != 2].equal(plain[where != 2])
    assert (margined[where == 2] > plain[where == 2]).all()


def test_scale_may_be_a_tensor_that_learns():
    cos, where = torch.tanh(torch.randn(6, 3, dtype=torch.float64)), torch.tensor([0, 1, 2, 0, 1, 2])
    scale = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    loss = losses.margin_softmax(cos, where, MARGINS[:3], scale)
    torch.testing.assert_close(loss, losses.margin_softmax(cos, where, MARGINS[:3], 8.0))
    (slope,) = torch.autograd.grad(loss.sum(), scale)
    h = 1e-6
    ends = [losses.margin_softmax(cos, where, MARGINS[:3], 8.0 + sign * h).sum().item() for sign in (1, -1)]
    assert slope.item() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("policy", losses.BEYOND_PI)
def test_second_derivatives_and_those_by_the_margins_are_right(policy):
    cos, where = CASES[4].outputs(4).requires_grad_(), labels(4)
    margins = torch.tensor([0.2, 0.4, 0.3, 1.2, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c, m: losses.margin_softmax(c, where, m, 8.0, policy), (cos, margins))
    assert torch.autograd.gradgradcheck(lambda c, m: losses.margin_softmax(c, where, m, 8.0, policy), (cos, margins))


@pytest.mark.parametrize("loss", [losses.margin_softmax, losses.cosine_margin_softmax])
def test_vmap_over_margins_or_scales_alone(loss):
    cos, where = CASES[4].outputs(), labels()
    strengths = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    got = torch.func.vmap(lambda k: loss(cos, where, k * MARGINS, 8.0))(strengths)
    torch.testing.assert_close(got, torch.stack([loss(cos, where, k * MARGINS, 8.0) for k in strengths]))
    got = torch.func.vmap(lambda k: loss(cos, where, MARGINS, 1 + k))(strengths)
    torch.testing.assert_close(got, torch.stack([loss(cos, where, MARGINS, 1 + k) for k in strengths]))


# --- the others' edges ---------------------------------------------------------------------------------------


def test_wce_mean_divides_by_the_batch_and_not_by_the_weights():
    logits, where = CASES[0].outputs(), labels()
    ours = losses.weighted_cross_entropy(logits, where, WEIGHTS).mean()
    summed = nn.functional.cross_entropy(logits, where, weight=WEIGHTS, reduction="sum")
    torch.testing.assert_close(ours, summed / len(where))
    assert not torch.isclose(ours, nn.functional.cross_entropy(logits, where, weight=WEIGHTS))


def test_crwwce_prices_the_row_of_the_guess_and_the_column_of_the_truth():
    logits = torch.tensor([[0.0, 2.0, -1.0]], dtype=torch.float64)  # truth 0, mostly taken for 1
    h = torch.softmax(logits, dim=-1)[0]
    price = torch.zeros(3, 3, dtype=torch.float64)
    price[1, 0] = 1.0
    nothing = torch.zeros(3, dtype=torch.float64)
    got = losses.real_world_weight_cross_entropy(logits, torch.tensor([0]), nothing, price)
    assert got.item() == pytest.approx(-math.log(1 - h[1].item()))
    assert losses.real_world_weight_cross_entropy(logits, torch.tensor([0]), nothing, price.T).item() == 0


def test_log_one_minus_h_does_not_round_away():
    logits = torch.tensor([[60.0, 0.0, 0.0]], requires_grad=True)  # 1 − h₀ is 2 e^−60: zero in float32
    price = torch.ones(3, 3) - torch.eye(3)
    loss = losses.real_world_weight_cross_entropy(logits, torch.tensor([1]), torch.zeros(3), price)
    assert loss.item() == pytest.approx(60 - math.log(2), rel=1e-6)
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(slope, torch.tensor([[1.0, -0.5, -0.5]]))


def test_sinkhorn_with_one_hot_targets_is_the_closed_form():
    logits = CASES[0].outputs().requires_grad_()
    one_hot = nn.functional.one_hot(labels(), NUM_CLASSES).double()
    soft, hard = (losses.wasserstein(logits, target, COST, 0.2) for target in (one_hot, labels()))
    torch.testing.assert_close(soft, hard)
    slopes = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (soft, hard)]
    torch.testing.assert_close(*slopes)


def test_sinkhorn_gradient_equals_finite_differences():
    logits = CASES[0].outputs(4).requires_grad_()
    targets = torch.softmax(CASES[0].outputs(4, seed=1), dim=-1)
    assert torch.autograd.gradcheck(lambda o: losses.wasserstein(o, targets, COST, 0.5, num_iterations=300), (logits,))


def test_numbers_that_are_not_given_are_the_articles_and_those_that_are_keep_float64():
    logits, where = CASES[0].outputs(), labels()
    h = torch.softmax(logits.double(), dim=-1)[torch.arange(len(where)), where]
    torch.testing.assert_close(
        losses.focal(logits.double(), where, 0.3), -((1 - h) ** 0.3) * h.log(), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(losses.focal(logits.double(), where), -((1 - h) ** 2) * h.log())
    scaled = 30 * (torch.tensor([[0.5, 0.2]]) - torch.tensor([[0.3, 0.0]]))
    margins = torch.tensor([0.3, 0.0])
    torch.testing.assert_close(
        losses.ldam(torch.tensor([[0.5, 0.2]]), torch.tensor([0]), margins),
        nn.functional.cross_entropy(scaled, torch.tensor([0]), reduction="none"),
    )


def test_sinkhorn_that_has_not_arrived_is_refused_under_validate():
    logits, targets = CASES[0].outputs(4), torch.softmax(CASES[0].outputs(4, seed=1), dim=-1)
    with pytest.raises(InputError, match=r"misses its marginals by .* after num_iterations=1;"):
        losses.wasserstein(logits, targets, COST, 0.01, num_iterations=1, validate=True)
    arrived = losses.wasserstein(logits, targets, COST, 0.5, validate=True)
    folded = losses.wasserstein(logits.view(2, 2, 5), targets.view(2, 2, 5), COST, 0.5, validate=True)
    torch.testing.assert_close(folded.flatten(), arrived)
    assert losses.wasserstein(logits.float(), targets, COST, 0.5).dtype == torch.float32


# --- other people's packages ---------------------------------------------------------------------------------


def test_agrees_with_torch():
    logits, where = CASES[0].outputs(), labels()
    ours = losses.cross_entropy(logits, where, label_smoothing=0.1)
    torch.testing.assert_close(ours, nn.functional.cross_entropy(logits, where, reduction="none", label_smoothing=0.1))
    ours = losses.weighted_cross_entropy(logits, where, WEIGHTS, label_smoothing=0.1)
    theirs = nn.functional.cross_entropy(logits, where, weight=WEIGHTS, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(ours, theirs)


def peer(theirs, features, weight, where):
    """Their loss a sample, with our weight in their parameter (D, C)."""
    with torch.no_grad():
        theirs.W.copy_(weight.T)
    from pytorch_metric_learning.reducers import DoNothingReducer

    theirs.reducer = DoNothingReducer()
    return theirs(features, where)["loss"]["losses"]


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(40, 16, generator=generator, dtype=torch.float64)
    weight = torch.randn(NUM_CLASSES, 16, generator=generator, dtype=torch.float64)
    cos = nn.functional.normalize(features) @ nn.functional.normalize(weight).T
    return features, weight, cos, labels(40)


@pytest.mark.parametrize("margin", PAPER_MARGINS[1:])
@pytest.mark.parametrize("scale", [1.0, 8.0, 64.0])
def test_agrees_with_pytorch_metric_learning_arcface(drawn, margin, scale):
    from pytorch_metric_learning.losses import ArcFaceLoss

    features, weight, cos, where = drawn
    theirs = peer(
        ArcFaceLoss(NUM_CLASSES, 16, margin=math.degrees(margin), scale=scale).double(), features, weight, where
    )
    ours = losses.margin_softmax(cos, where, torch.full((NUM_CLASSES,), margin, dtype=torch.float64), scale, "clip")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_agrees_with_pytorch_metric_learning_cosface(drawn):
    from pytorch_metric_learning.losses import CosFaceLoss

    features, weight, cos, where = drawn
    theirs = peer(CosFaceLoss(NUM_CLASSES, 16, margin=0.35, scale=16).double(), features, weight, where)
    ours = losses.cosine_margin_softmax(cos, where, torch.full((NUM_CLASSES,), 0.35, dtype=torch.float64), 16.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("entropy", [0.1, 0.5, 2.0])
def test_agrees_with_pot_sinkhorn(entropy):
    import ot

    logits, targets = CASES[0].outputs(6), torch.softmax(CASES[0].outputs(6, seed=1), dim=-1)
    ours = losses.wasserstein(logits, targets, COST, entropy, num_iterations=2000)
    for h, y, loss in zip(torch.softmax(logits, dim=-1), targets, ours, strict=True):
        plan = torch.as_tensor(
            ot.sinkhorn(
                h.numpy(), y.numpy(), COST.numpy(), entropy, method="sinkhorn_log", numItermax=5000, stopThr=1e-12
            )
        )
        value = (plan * COST).sum() + entropy * (plan * (plan.log() - 1)).sum()
        torch.testing.assert_close(loss, value, rtol=1e-6, atol=1e-8)


# --- what is refused -----------------------------------------------------------------------------------------

COSINES, TRUTH = torch.tensor([[0.5, 0.1, 0.2]]), torch.tensor([0])
ZEROS = torch.zeros(3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: losses.cross_entropy(COSINES, torch.tensor([-100])), "label -100"),
        (lambda: losses.cross_entropy(COSINES, torch.tensor([0.0])), "torch.float32.*one class index"),
        (lambda: losses.cross_entropy(COSINES, torch.tensor([0, 1])), r"\(2,\).*\(1, 3\)"),
        (lambda: losses.cross_entropy(COSINES.long(), TRUTH), "torch.int64.*float"),
        (lambda: losses.cross_entropy(COSINES[:, :1], TRUTH), "two classes"),
        (lambda: losses.cross_entropy(COSINES[0], TRUTH[0]), r"\(3,\) are not \(batch, classes\)"),
        (lambda: losses.weighted_cross_entropy(COSINES, TRUTH, torch.ones(4)), r"weights of shape \(4,\).*3 classes"),
        (
            lambda: losses.margin_softmax(COSINES, TRUTH, torch.tensor([0, 28.6, 0]), 8.0),
            "28.6; allowed: 0 to π radians",
        ),
        (lambda: losses.margin_softmax(COSINES, TRUTH, torch.tensor([math.nan, 0, 0]), 8.0), "nan"),
        (lambda: losses.margin_softmax(COSINES, TRUTH, ZEROS, math.inf), "scale=inf"),
        (lambda: losses.margin_softmax(COSINES, TRUTH, ZEROS, torch.tensor(-1.0)), "scale=-1.0"),
        (lambda: losses.margin_softmax(COSINES, TRUTH, ZEROS, 8.0, "monotonic"), "did you mean 'monotone'"),
        (lambda: losses.add_angular_margin(COSINES * math.nan, TRUTH, ZEROS, validate=True), "is nan"),
        (lambda: losses.vector_scaling(COSINES, TRUTH, ZEROS, ZEROS - math.inf), r"shifts at \(0,\) is -inf"),
        (lambda: losses.margin_softmax(COSINES.long(), TRUTH, ZEROS, 8.0), "torch.int64.*float"),
        (lambda: losses.add_angular_margin(COSINES, TRUTH + 3, ZEROS), "label 3 is out of range"),
        (lambda: losses.add_angular_margin(COSINES, TRUTH, ZEROS + 4), r"margins at \(0,\) is 4; allowed: 0 to π"),
        (
            lambda: losses.real_world_weight_cross_entropy(COSINES, TRUTH, ZEROS, torch.ones(3, 3)),
            "diagonal of false_pos",
        ),
        (lambda: losses.real_world_weight_cross_entropy(COSINES, TRUTH, ZEROS, torch.ones(3)), r"give \(3, 3\)"),
        (
            lambda: losses.real_world_weight_cross_entropy(COSINES, TRUTH, torch.ones(1), torch.zeros(3, 3)),
            r"false_negative of shape \(1,\)",
        ),
        (lambda: losses.wasserstein(COSINES, TRUTH, torch.ones(1, 3)), r"cost of shape \(1, 3\)"),
        (lambda: losses.wasserstein(COSINES, TRUTH, torch.ones(3, 3), entropy=-1.0), "entropy=-1.0"),
        (lambda: losses.wasserstein(COSINES, TRUTH, torch.ones(3, 3), entropy=math.inf), "entropy=inf"),
        (lambda: losses.wasserstein(COSINES, COSINES, torch.ones(3, 3)), "entropy=0 needs class indices"),
        (lambda: losses.wasserstein(COSINES, COSINES[:, :2], torch.ones(3, 3), 1.0), "targets of shape"),
        (lambda: losses.wasserstein(COSINES, -COSINES, torch.ones(3, 3), 1.0), r"targets at \(0, 0\) is -0\.5"),
        (
            lambda: losses.wasserstein(COSINES * math.nan, COSINES, torch.ones(3, 3), 1.0, validate=True),
            r"outputs at \(0, 0\) is nan",
        ),
        (lambda: losses.wasserstein(COSINES, COSINES, torch.ones(3, 3), 1.0), r"sum of targets at \(0,\) is 0\.8"),
        (
            lambda: losses.wasserstein(COSINES, COSINES / 0.8, torch.ones(3, 3), 1.0, num_iterations=0),
            "num_iterations=0 is not allowed",
        ),
        (lambda: losses.wasserstein(COSINES, [0], torch.ones(3, 3)), "labels of type list"),
        (lambda: losses.cross_entropy({"logits": COSINES}, TRUTH), "outputs of type dict"),
        (lambda: losses.cross_entropy(COSINES, [0]), "labels of type list are no tensor"),
        (
            lambda: losses.cross_entropy(COSINES / 0, TRUTH, validate=True),
            r"outputs at \(0, 0\) is inf; allowed: finite",
        ),
        (lambda: losses.margin_softmax(COSINES, TRUTH, [0.2, 0, 0], 8.0), r"margins of type list .*\(3,\)"),
        (lambda: losses.real_world_weight_cross_entropy(COSINES, TRUTH, ZEROS, [ZEROS] * 3), r"list .*\(3, 3\)"),
        (lambda: losses.margin_softmax(COSINES, TRUTH, ZEROS, "8"), "scale='8'"),
        (lambda: losses.margin_softmax(COSINES, TRUTH, ZEROS, torch.ones(3)), "scale=tensor"),
        (lambda: losses.margin_softmax(torch.zeros(2, 3, 5, 5), TRUTH, ZEROS, 8.0), r"last dimension .*\(2, 3, 5, 5\)"),
        (
            lambda: losses.cross_entropy(torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, 5).long()),
            "last dimension is the cl",
        ),
        (lambda: losses.margin_softmax(COSINES * 2.03, TRUTH, ZEROS, 8.0), r"outputs at \(0, 0\) is 1\.015"),
        (lambda: losses.add_angular_margin(COSINES * -2.03, TRUTH, ZEROS), r"outputs at \(0, 0\) is -1\.015"),
        (lambda: losses.logit_adjusted(COSINES, TRUTH, torch.tensor([0, -math.inf, 0])), "adjustments at .* is -inf"),
        (lambda: losses.focal(COSINES, TRUTH, gamma=torch.ones(2)), r"gamma of shape \(2,\) does not fit 3 classes"),
        (lambda: losses.weighted_cross_entropy(COSINES, TRUTH, torch.tensor(1.0)), r"weights of shape \(\)"),
        (lambda: losses.ldam(COSINES, TRUTH, ZEROS, 8.0, torch.tensor([1.0, math.inf, 1])), "weights at .* is inf"),
    ],
)
def test_wrong_input_is_refused_by_name_and_value(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("of_margins", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("of_outputs", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_margin_of_pi_passes_in_every_precision_and_no_more_does(of_outputs, of_margins):
    margins = torch.tensor([math.pi, 0, 0], dtype=of_margins)
    turned = losses.add_angular_margin(COSINES.to(of_outputs), TRUTH, margins, "paper")
    assert turned.dtype == (torch.float64 if of_outputs == torch.float64 else torch.float32)
    assert turned[0].tolist() == pytest.approx([-0.5, 0.1, 0.2], abs=1e-3 if of_margins.itemsize > 2 else 2e-3)
    for margin in (3.2, -0.01):
        margins[0] = margin
        with pytest.raises(InputError, match=r"margins at \(0,\) is .*; allowed: 0 to π radians"):
            losses.add_angular_margin(COSINES.to(of_outputs), TRUTH, margins)


def test_a_hair_above_pi_is_refused():
    for dtype, above in ((torch.float32, 3.141593), (torch.float64, math.pi + 1e-7)):
        with pytest.raises(InputError, match="allowed: 0 to π radians"):
            losses.add_angular_margin(COSINES.to(dtype), TRUTH, torch.tensor([above, 0, 0], dtype=dtype))


def test_minus_100_is_an_error_and_no_row_to_pass_over_even_where_values_are_not_looked_at():
    def total(cos):
        return losses.margin_softmax(cos, torch.tensor([-100]), ZEROS, 8.0).sum()

    with pytest.raises((IndexError, RuntimeError)):
        torch.func.grad(total)(COSINES)
    with pytest.raises(IndexError):  # nor where nothing before it has looked the label up
        losses._cross_entropy(COSINES, torch.tensor([-100]), 0.0)


def test_references_disagree_with_a_flipped_margin():
    """The oracle itself: it tells θ + m from θ − m."""
    right, wrong = (references.margin_softmax(CASES[4].outputs(), labels(), sign * MARGINS, 8.0) for sign in (1, -1))
    assert (right - wrong).abs().max() > 0.1
