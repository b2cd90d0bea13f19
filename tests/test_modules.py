"""The losses as objects: parameters, the ramp, eval, the counter's travels."""

import copy
import math

import numpy as np
import pytest
import torch

import camri
from camri import losses, modules, penalties
from camri.errors import InputError
from tests import cases

COS = torch.tanh(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
LABELS = torch.arange(20) % 4
NAMES = ["cat", "dog", "owl", "ant"]
W = torch.tensor([1.0, 2.0, 0.5, 1.0])


def is_it(index):
    """Torch's two-class cross-entropy of one class against the rest, a sample."""
    h, truth = COS.softmax(dim=1)[:, index], LABELS.eq(index).float()
    return torch.nn.functional.binary_cross_entropy(h, truth, reduction="none")


OBJECTS = {
    "ce": (modules.CrossEntropyLoss(), losses.cross_entropy(COS, LABELS)),
    "wce": (
        camri.WeightedCrossEntropyLoss(4, {"dog": 8.0}, classes=NAMES),
        losses.weighted_cross_entropy(COS, LABELS, torch.tensor([1.0, 8, 1, 1])),
    ),
    "crwwce": (
        modules.RealWorldWeightCrossEntropyLoss(4, {1: 8.0}, {1: 2.0}),
        losses.real_world_weight_cross_entropy(
            COS, LABELS, torch.tensor([1.0, 8, 1, 1]), penalties.important_matrix(4, {1: 2.0})
        ),
    ),
    "one_vs_rest": (
        camri.TwoSidedMarginLoss(
            4, {"dog": 0.0, "cat": 0.0}, one_vs_rest={"dog": 0.5, "cat": 2.0}, margin=0, classes=NAMES
        ),
        losses.cross_entropy(COS, LABELS) + 2.0 * is_it(NAMES.index("cat")) + 0.5 * is_it(NAMES.index("dog")),
    ),
    "wasserstein": (
        modules.WassersteinLoss(4, {1: 2.0}, entropy=0.1),
        losses.wasserstein(COS, LABELS, penalties.important_matrix(4, {1: 2.0}), 0.1),
    ),
    "l2softmax": (modules.L2SoftmaxLoss(4, 8.0), losses.margin_softmax(COS, LABELS, torch.zeros(4), 8.0)),
    "arcface": (modules.ArcFaceLoss(4, 0.3, 8.0), losses.margin_softmax(COS, LABELS, torch.full((4,), 0.3), 8.0)),
    "camri": (
        camri.CamriLoss(4, {"dog": 0.3}, 8.0, classes=NAMES),
        losses.margin_softmax(COS, LABELS, torch.tensor([0, 0.3, 0, 0]), 8.0),
    ),
    "cosface": (
        modules.CosFaceLoss(4, {1: 0.2}, 8.0),
        losses.cosine_margin_softmax(COS, LABELS, torch.tensor([0, 0.2, 0, 0]), 8.0),
    ),
    "two_sided": (
        modules.TwoSidedCosineLoss(4, {1: 0.2}, 8.0),
        losses.two_sided_margin_softmax(COS, LABELS, torch.tensor([0, 0.2, 0, 0]), 8.0),
    ),
    "two_sided_logits": (
        camri.TwoSidedMarginLoss(4, {"dog": 0.7}, one_vs_rest=0, margin=0, classes=NAMES),
        losses.two_sided_margin(COS, LABELS, torch.tensor([0, 0.7, 0, 0])),
    ),
    "two_sided_combined": (
        camri.TwoSidedMarginLoss(4, {"dog": 0.7, "owl": 0.2}, one_vs_rest=0.5, margin=1.5, classes=NAMES),
        losses.two_sided_margin(
            COS, LABELS, torch.tensor([0, 0.7, 0.2, 0]), torch.tensor([0, 0.5, 0.5, 0]), torch.tensor(1.5)
        ),
    ),
    "ldam": (
        modules.LdamLoss(4, {1: 0.1}, class_counts=[16, 256, 16, 256], max_margin=0.4, weights=W),
        losses.ldam(COS, LABELS, torch.tensor([0.4, 0.3, 0.4, 0.2]), 30.0, W),
    ),
    "focal": (
        modules.FocalLoss(4, {1: 3.0}, 1.5),
        losses.focal(COS, LABELS, 1.5, torch.tensor([1.0, 3, 1, 1])),
    ),
    "logit_adjusted": (
        camri.LogitAdjustedLoss(4, {1: 2.0}, class_counts=[1, 1, 1, 5], tau=0.5),
        losses.logit_adjusted(
            COS, LABELS, 0.5 * torch.tensor([1, 1, 1, 5]).div(8).log() - torch.tensor([0.0, 2, 0, 0])
        ),
    ),
    "vector_scaling": (
        modules.VectorScalingLoss(4, {1: 0.8}, {1: 1.5}, weights=W),
        losses.vector_scaling(COS, LABELS, torch.tensor([1, 0.8, 1, 1]), torch.tensor([0, -1.5, 0, 0]), W),
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_object_equals_function_and_reduces(name):
    loss, per_sample = OBJECTS[name]
    torch.testing.assert_close(loss(COS, LABELS), per_sample.mean())
    for reduction, want in {"none": per_sample, "sum": per_sample.sum()}.items():
        loss.reduction = reduction
        torch.testing.assert_close(loss(COS, LABELS), want)
    loss.reduction = "mean"


@pytest.mark.parametrize("name", OBJECTS)
def test_object_compiles_without_a_graph_break_and_counts_the_steps_of_a_ramp(name):
    loss, per_sample = copy.deepcopy(OBJECTS[name])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(COS, LABELS), per_sample.mean())
    assert loss.step.item() == 0, "there is no ramp"
    loss.ramp = (0, 1)
    compiled(COS, LABELS)
    assert loss.step.item() == 1
    torch.testing.assert_close(compiled(COS, LABELS), per_sample.mean())


@pytest.mark.parametrize("name", OBJECTS)
def test_object_may_be_transformed_by_torch_func(name):
    loss, _ = OBJECTS[name]
    outputs = COS.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(outputs, LABELS), outputs)
    torch.testing.assert_close(torch.func.grad(loss)(COS, LABELS), wanted)


def test_compiled_the_gradient_is_that_of_the_steps_own_margin():
    slopes = []
    for compiled in (False, True):
        loss = camri.CamriLoss(2, {0: 0.4}, scale=4.0, ramp=4)
        run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
        for _ in range(6):
            cos = torch.tensor([[0.3, 0.1]], requires_grad=True)
            run(cos, torch.tensor([0])).backward()
            slopes.append(cos.grad)
    torch.testing.assert_close(slopes[6:], slopes[:6])
    assert not torch.isclose(slopes[1], slopes[2]).any(), "the margin grows, and the slope with it"


def test_defaults_are_the_articles():
    assert camri.CamriLoss(4, {1: 0.2}).options == {"scale": 8.0, "beyond_pi": "monotone"}
    assert modules.CosFaceLoss(4, {1: 0.2}).options == {"scale": 8.0}
    assert modules.LdamLoss(4, {}, class_counts=[1, 2, 3, 4]).options == {"scale": 30.0}
    assert modules.FocalLoss(4, {}).gamma.item() == 2.0
    cost = penalties.important_matrix(4, {1: 2.0})
    torch.testing.assert_close(
        modules.WassersteinLoss(4, {1: 2.0})(COS, LABELS), losses.wasserstein(COS, LABELS, cost, 0.0).mean()
    )


def margin_of(loss):
    """The margin in force, read back from the loss of one image at 90°."""
    scale = loss.options["scale"]
    value = loss.loss(torch.zeros(1, 2), torch.tensor([0]), loss._parameters_at(loss.strength())["margins"], scale)
    return math.asin(math.log(math.exp(value.item()) - 1) / scale)


def test_ramp_grows_from_nothing_to_the_full_margin_and_is_off_in_eval():
    loss = camri.CamriLoss(2, {0: 0.4}, scale=4.0, ramp=(2, 6))
    margins = []
    for _ in range(8):
        margins.append(margin_of(loss))
        loss(torch.zeros(1, 2), torch.tensor([0]))
    assert margins == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.4], abs=1e-6)
    loss.eval()
    assert margin_of(loss) == pytest.approx(0, abs=1e-6)
    assert loss.step.item() == 8
    loss(torch.zeros(1, 2), torch.tensor([0]))
    assert loss.step.item() == 8  # evaluation is not a step


@pytest.mark.parametrize(
    ("ramp", "wanted"), [(1, [0, 1, 1, 1]), (2, [0, 0.5, 1, 1]), ((1, 2), [0, 0, 1, 1]), ((2, 2), [0, 0, 1, 1])]
)
def test_a_short_ramp_is_full_from_its_end_on(ramp, wanted):
    loss, strengths = camri.CamriLoss(2, {0: 0.4}, ramp=ramp), []
    for _ in wanted:
        strengths.append(float(loss.strength()))
        loss(torch.zeros(1, 2), torch.tensor([0]))
    assert strengths == wanted


def test_the_ramp_resumes_after_a_checkpoint_and_margins_are_the_constructors():
    first = camri.CamriLoss(2, {0: 0.4}, scale=4.0, ramp=4)
    for _ in range(2):
        first(torch.zeros(1, 2), torch.tensor([0]))
    assert list(first.state_dict()) == ["step"]
    second = camri.CamriLoss(2, {0: 0.4}, scale=4.0, ramp=4)
    second.load_state_dict(first.state_dict())
    assert margin_of(second) == pytest.approx(0.2, abs=1e-6)


def test_without_a_ramp_a_checkpoint_does_not_depend_on_the_loss():
    model = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2), "loss": camri.CamriLoss(2, {0: 0.4})})
    assert list(model.state_dict()) == ["net.weight", "net.bias"]


def test_class_names_may_be_a_mapping_from_the_data_set():
    loss = camri.TwoSidedMarginLoss(3, {"stop": 1.0}, classes={"yield": 2, "limit": 0, "stop": 1})
    assert loss.margins.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="2 names, but num_classes=3"):
        camri.TwoSidedMarginLoss(3, {"stop": 1.0}, classes={0: "limit", 1: "stop"})
    with pytest.raises(InputError, match="is not a list"):
        camri.TwoSidedMarginLoss(2, {"stop": 1.0}, classes={"limit", "stop"})


def test_scalings_and_adjustments_are_off_in_eval_but_weights_stay():
    plain = losses.cross_entropy(COS, LABELS).mean()
    torch.testing.assert_close(modules.VectorScalingLoss(4, {1: 0.8}, {1: 2.0}).eval()(COS, LABELS), plain)
    torch.testing.assert_close(camri.LogitAdjustedLoss(4, {1: 2.0}).eval()(COS, LABELS), plain)
    weighted = camri.WeightedCrossEntropyLoss(4, {1: 8.0})
    torch.testing.assert_close(weighted.eval()(COS, LABELS), weighted.train()(COS, LABELS))


def test_a_settled_bias_gives_each_important_class_its_frequency():
    drawn = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (400,), generator=drawn)
    logits = 2 * torch.randn(400, 4, generator=drawn) + 3 * torch.nn.functional.one_hot(labels, 4)
    logits[:, 1] -= 2.0
    loss = camri.TwoSidedMarginLoss(4, {"dog": 1.0, "owl": 0.0}, one_vs_rest=0.5, classes=NAMES)
    shift = loss.settle(logits, labels)
    means = (logits + shift).softmax(dim=1).mean(dim=0)
    for index in (1, 2):
        torch.testing.assert_close(means[index], (labels == index).float().mean(), atol=1e-5, rtol=0)
    assert shift[1] > 1.0, "the class whose logit was lowered"
    assert shift[[0, 3]].tolist() == [0.0, 0.0]
    assert shift.dtype == logits.dtype
    without = camri.TwoSidedMarginLoss(4, {1: 1.0}, one_vs_rest=0, margin=0).settle(logits, labels)
    assert without.nonzero().flatten().tolist() == [1]
    assert camri.TwoSidedMarginLoss(4, {1: 0.0}, one_vs_rest=0).settle(logits, labels).tolist() == [0.0] * 4
    for wrong, words in {0: "no row of class 1", 1: "only rows of class 1"}.items():
        with pytest.raises(InputError, match=words):
            camri.TwoSidedMarginLoss(4, {1: 1.0}).settle(logits, torch.full((400,), wrong))


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"margin": -1.0}, "margin=-1.0 is not allowed; give a finite number of at least 0"),
        ({"margin": math.nan}, "margin=nan is not allowed"),
        ({"margin": True}, "margin=True is not allowed"),
        ({"one_vs_rest": -0.5}, "one_vs_rest=-0.5 is not allowed"),
        ({"one_vs_rest": "0.5"}, "one_vs_rest='0.5' is not allowed"),
        ({"one_vs_rest": {"owl": 0.5}}, "one_vs_rest has class 'owl', which is not in important"),
        ({"one_vs_rest": {"dog": -0.5}}, "strength -0.5 of class 'dog' is not allowed"),
    ],
)
def test_knobs_of_the_two_sided_loss_are_checked(knobs, words):
    with pytest.raises(InputError, match=words):
        camri.TwoSidedMarginLoss(4, {"dog": 1.0}, classes=NAMES, **knobs)


def test_parts_of_the_two_sided_loss_are_off_at_zero_and_weights_stay_in_eval():
    plain = losses.cross_entropy(COS, LABELS).mean()
    nothing = camri.TwoSidedMarginLoss(4, {1: 0.0}, one_vs_rest=0, margin=0)
    torch.testing.assert_close(nothing(COS, LABELS), plain)
    torch.testing.assert_close(camri.TwoSidedMarginLoss(4, {1: 1.0}, one_vs_rest=0).eval()(COS, LABELS), plain)
    both = camri.TwoSidedMarginLoss(4, {1: 1.0}, one_vs_rest=2.0).eval()
    torch.testing.assert_close(both(COS, LABELS), plain + 2.0 * is_it(1).mean())
    ramped = camri.TwoSidedMarginLoss(4, {1: 1.0}, ramp=2)
    values = [ramped(COS, LABELS).item() for _ in range(3)]
    assert values[0] < values[1] < values[2] == camri.TwoSidedMarginLoss(4, {1: 1.0})(COS, LABELS).item()


def test_one_vs_rest_is_least_at_the_true_probabilities_whatever_its_weights():
    truth = torch.tensor([0.1, 0.6, 0.25, 0.05], dtype=torch.float64)
    for weights in ({1: 4.0}, {0: 0.5, 1: 3.0}):
        logits = truth.log().repeat(4, 1).requires_grad_()
        part = camri.TwoSidedMarginLoss(4, dict.fromkeys(weights, 0.0), one_vs_rest=weights, margin=0, reduction="none")
        loss = part.double()(logits, torch.arange(4))
        (slope,) = torch.autograd.grad((truth * loss).sum(), logits)
        torch.testing.assert_close(slope.sum(0), torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    weighted = camri.WeightedCrossEntropyLoss(4, {1: 4.0}, reduction="none").double()(logits, torch.arange(4))
    (slope,) = torch.autograd.grad((truth * weighted).sum(), logits)
    assert slope.sum(0).abs().max() > 0.1, "a weight alone does change the answer"


def test_label_smoothing_reaches_every_loss():
    for name, (loss, per_sample) in OBJECTS.items():
        loss.label_smoothing = 0.2
        assert not torch.isclose(loss(COS, LABELS), per_sample.mean()), name
        loss.label_smoothing = 0.0


def test_wasserstein_with_smoothed_labels_is_the_distribution_form():
    loss = modules.WassersteinLoss(4, {1: 2.0}, entropy=0.5, label_smoothing=0.2)
    soft = 0.8 * torch.nn.functional.one_hot(LABELS, 4) + 0.05
    want = losses.wasserstein(COS, soft, penalties.important_matrix(4, {1: 2.0}), 0.5).mean()
    torch.testing.assert_close(loss(COS, LABELS), want)


@pytest.mark.parametrize("case", cases.CASES, ids=cases.IDS)
def test_the_loss_of_a_soft_label_is_the_mean_over_its_classes_weighted_by_probability(case):
    outputs, soft = case.outputs(), mixed_labels(12, cases.NUM_CLASSES)
    loss = as_module(case)
    want = torch.zeros(12, dtype=torch.float64)
    for label in range(cases.NUM_CLASSES):
        want += soft[:, label] * case.reference(outputs, torch.full((12,), label), **case.parameters)
    torch.testing.assert_close(loss(outputs, soft), want, atol=1e-6, rtol=1e-6)  # parameters are kept in float32
    assert loss(outputs[None], soft[None]).equal(loss(outputs, soft)[None])
    hard = cases.labels()
    one_hot = torch.nn.functional.one_hot(hard, cases.NUM_CLASSES)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert loss(outputs, one_hot.to(dtype)).equal(loss(outputs, hard)), "one-hot labels are labels, to the bit"
    assert torch.autograd.gradcheck(lambda cos: loss(cos, soft), (0.9 * outputs).requires_grad_())


def as_module(case):
    of_classes = {name: value for name, value in case.parameters.items() if isinstance(value, torch.Tensor)}
    options = {name: value for name, value in case.parameters.items() if name not in of_classes}
    return modules.Criterion(case.loss, of_classes, reduction="none", **options).double()


def mixed_labels(num_rows, num_classes):
    """Rows of one class, of two as Mixup gives them, and of all classes."""
    one_hot = torch.eye(num_classes, dtype=torch.float64)[torch.arange(num_rows) % num_classes]
    shares = torch.tensor([1.0, 0.5, 0.7], dtype=torch.float64).repeat(num_rows // 3)[:, None]
    soft = shares * one_hot + (1 - shares) * one_hot.roll(-1, 0)
    soft[-1] = torch.arange(num_classes).double() / sum(range(num_classes))
    return soft


def test_soft_labels_are_reduced_smoothed_and_counted_as_labels_are():
    soft = mixed_labels(12, 4).float()
    loss = camri.CamriLoss(4, {1: 0.3}, 8.0, ramp=2, reduction="none")
    assert [loss(COS[:12], soft).shape for _ in range(2)] == [(12,), (12,)]
    assert loss.step.item() == 2, "one step a call"
    per_sample = loss(COS[:12], soft)
    for reduction, want in {"mean": per_sample.mean(), "sum": per_sample.sum()}.items():
        loss.reduction = reduction
        torch.testing.assert_close(loss(COS[:12], soft), want)
    smoothed = modules.CrossEntropyLoss(label_smoothing=0.2)(COS[:12], soft)
    torch.testing.assert_close(smoothed, modules.CrossEntropyLoss()(COS[:12], 0.8 * soft + 0.2 / 4))
    assert loss(COS[:0], soft[:0]).item() == 0
    assert loss(COS[:12], soft.double()).dtype == torch.float32, "outputs decide the precision"


def test_shares_mix_soft_labels_too():
    soft, shares = mixed_labels(12, 4).float(), torch.linspace(0, 1, 12)
    loss = camri.TwoSidedMarginLoss(4, {1: 0.7})
    mixed = shares[:, None] * soft + (1 - shares[:, None]) * soft.roll(1, 0)
    torch.testing.assert_close(loss(COS[:12], soft, shares), loss(COS[:12], mixed))


def test_soft_labels_may_be_transformed_and_compiled():
    soft, loss = mixed_labels(12, 4).float(), camri.CamriLoss(4, {1: 0.3}, 8.0)
    outputs = COS[:12].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(outputs, soft), outputs)
    torch.testing.assert_close(torch.func.grad(loss)(COS[:12], soft), wanted)
    torch.testing.assert_close(torch.compile(loss, backend="eager")(COS[:12], soft), loss(COS[:12], soft))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.full((20, 4), 0.5), r"sum of labels at \(0,\) is 2; allowed: 1: a row is a distribution"),
        (torch.tensor([[1.5, -0.5, 0, 0]]).repeat(20, 1), r"labels at \(0, 1\) is -0.5; allowed: finite numbers of"),
        (torch.full((20, 4), math.nan), r"labels at \(0, 0\) is nan"),
        (torch.ones(20, 3) / 3, r"shape \(20, 3\) and dtype torch.float32 do not fit .* \(20, 4\); give one class"),
        (torch.zeros(20), r"labels of shape \(20,\) and dtype torch.float32 do not fit .*, or probabilities in the"),
        (torch.eye(4, dtype=torch.int64).repeat(5, 1), r"shape \(20, 4\) and dtype torch.int64 do not fit"),
    ],
)
def test_wrong_soft_labels_are_refused(labels, words):
    for loss in (modules.CrossEntropyLoss(), camri.CamriLoss(4, {1: 0.3})):
        with pytest.raises(InputError, match=words):
            loss(COS, labels)


def test_logits_are_cosines_times_scale():
    torch.testing.assert_close(camri.CamriLoss(4, {1: 0.3}, 8.0).logits(COS), 8 * COS)
    assert modules.CrossEntropyLoss().logits(COS) is COS
    precise = camri.CamriLoss(4, {1: 0.3}, 8.0).logits(COS.double() / 3)
    torch.testing.assert_close(precise, COS.double() * (8 / 3))  # float64 stays float64


def test_parameters_follow_the_module_to_another_dtype_and_nothing_is_trained():
    loss = camri.CamriLoss(4, {1: 0.3}, 8.0).double()
    assert loss.margins.dtype == torch.float64
    assert list(loss.parameters()) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: camri.CamriLoss(4, {}, 8.0), "names no class"),
        (lambda: camri.CamriLoss(5, {1: 0.3}, 8.0, classes=NAMES), "4 names, but num_classes=5"),
        (lambda: camri.CamriLoss(4, {1: 28.6}, 8.0), "28.6; allowed: 0 to π radians"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, -8.0), "scale=-8.0"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, ramp=(5, 2)), r"ramp=\(5, 2\)"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, beyond_pi="linear"), "beyond_pi='linear'"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, reduction="avg"), "reduction='avg'"),
        (lambda: modules.CrossEntropyLoss(label_smoothing=1.5), "label_smoothing=1.5"),
        (
            lambda: modules.WassersteinLoss(4, {1: 2.0}, entropy=1e-3, label_smoothing=0.2),
            "Sinkhorn misses its marginals",
        ),
        (
            lambda: modules.WassersteinLoss(4, {1: 2.0}, label_smoothing=0.1),
            r"label_smoothing=0\.1 .*entropy must be",
        ),
        (lambda: camri.CamriLoss(4, [1]), r"important=\[1\] has no strengths"),
        (lambda: camri.WeightedCrossEntropyLoss(4, "dog", classes=NAMES), "important='dog' has no strengths"),
        (lambda: modules.RealWorldWeightCrossEntropyLoss(4, [1], {1: 2.0}), "has no strengths"),
        (lambda: modules.RealWorldWeightCrossEntropyLoss(4, {1: 2.0}, [1]), "has no strengths"),
        (lambda: modules.WassersteinLoss(4, [1]), "has no strengths"),
        (lambda: modules.L2SoftmaxLoss(1, 8.0), "num_classes=1 must be a whole number of at least 2"),
        (lambda: modules.ArcFaceLoss(4.0, 0.3, 8.0), r"num_classes=4\.0 must be"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, "8"), "scale of type str"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, torch.nn.Parameter(torch.tensor(8.0))), "scale of type Parameter"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, torch.ones(4)), r"scale=tensor\(\[1"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, ramp=100.0), r"ramp=100\.0"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, ramp=(1, 2, 3)), r"ramp=\(1, 2, 3\)"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, ramp=(0.5, 2)), r"ramp=\(0\.5, 2\)"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, ramp=(-1, 2)), r"ramp=\(-1, 2\)"),
        (lambda: camri.CamriLoss(4, {1: 0.3}, label_smoothing=None), "label_smoothing=None"),
        (lambda: camri.LogitAdjustedLoss(4, {1: 1.0}, tau=1.0), "tau=1.0 needs class_counts"),
        (lambda: camri.LogitAdjustedLoss(4, {1: 1.0}, class_counts=[1, 2], tau=1.0), "class_counts has 2 counts"),
        (lambda: camri.TwoSidedMarginLoss(4, {1: -0.5}), "strength -0.5"),
        (lambda: modules.FocalLoss(4, {1: 2.0}, -1.0), "gamma"),
    ],
)
def test_wrong_input_is_refused_at_construction(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_numbers_of_numpy_are_numbers():
    loss = camri.CamriLoss(np.int64(4), {np.int64(1): np.float32(0.25)}, np.float32(8), ramp=np.int64(6))
    assert loss.margins.tolist() == [0, 0.25, 0, 0]
    assert loss.ramp == (0, 6)
    assert camri.CamriLoss(4, {1: 0.25}, ramp=[2, 6]).ramp == (2, 6)


def test_logits_are_not_taken_for_cosines():
    """Without the check the loss is NaN: sin θ of a logit is the root of a number below 0."""
    loss = camri.CamriLoss(4, {1: 0.3})
    with pytest.raises(InputError, match=r"outputs at \(2, 1\) is -3; allowed: cosines in \[-1, 1\]"):
        loss(COS.index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(-3.0)), LABELS)
    with pytest.raises(InputError, match=r"outputs at \(0, 0\) is 2"):
        modules.CosFaceLoss(4, {1: 0.3})(torch.full((1, 4), 2.0), torch.tensor([0]))
    assert loss(torch.full((1, 4), math.nan), torch.tensor([0])).isnan()  # the training tells of it
    assert loss(COS[:0], LABELS[:0]).isnan()  # as torch's mean of nothing


def test_on_the_meta_device_a_loss_is_refused_and_a_moved_one_still_shows_itself():
    with torch.device("meta"), pytest.raises(InputError, match=r"meta device.*from_pretrained"):
        camri.CamriLoss(4, {1: 0.3})
    assert "margins=tensor of shape (4,)" in repr(camri.CamriLoss(4, {1: 0.3}).to("meta"))


def test_a_loss_of_many_classes_shows_itself_in_a_line():
    assert "margins=[0.0, 0.25, 0.0, 0.0], scale=8.0" in repr(camri.CamriLoss(4, {1: 0.25}))
    assert "cost=tensor of shape (300, 300)" in repr(modules.WassersteinLoss(300, {1: 2.0}))
    assert len(repr(camri.CamriLoss(101, {1: 0.25}))) < 200


@pytest.mark.parametrize(
    "loss",
    [
        camri.TwoSidedMarginLoss(5, {1: 1.0}),
        camri.CamriLoss(5, {1: 0.2}, scale=8.0),
        modules.WeightedCrossEntropyLoss(5, {1: 2.0}),
        modules.RealWorldWeightCrossEntropyLoss(5, {1: 2.0}, false_positive={1: 1.4}),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_classes_of_maps_are_last_and_an_error_says_so(loss):
    """PyTorch's own losses take (batch, classes, height, width)."""
    outputs, labels = torch.rand(2, 5, 4, 3) - 0.5, torch.randint(0, 5, (2, 4, 3))
    with pytest.raises(
        InputError, match=r"is the classes, and outputs of shape \(2, 5, 4, 3\) seem to have them second"
    ):
        loss(outputs, labels)
    with pytest.raises(InputError, match=r"give outputs\.movedim\(1, -1\), with labels of shape \(2, 4, 5\)"):
        loss(torch.rand(2, 5, 4, 5) - 0.5, torch.randint(0, 5, (2, 4, 5)))
    rows = outputs.movedim(1, -1)
    torch.testing.assert_close(loss(rows, labels), loss(rows.reshape(-1, 5), labels.flatten()))


@pytest.mark.parametrize("strength", [torch.tensor(1.0), torch.tensor([0.5])[0], np.float32(0.5), np.array(2.0), 2])
def test_a_strength_may_be_any_single_number(strength):
    outputs, labels = torch.randn(8, 3), torch.arange(8) % 3
    plain = camri.TwoSidedMarginLoss(3, {1: float(strength)})
    assert camri.TwoSidedMarginLoss(3, {1: strength})(outputs, labels) == plain(outputs, labels)


@pytest.mark.parametrize(
    "strength", [torch.ones(2), torch.tensor(-1.0), np.array([1.0]), torch.tensor(math.nan), np.array("1"), "1", None]
)
def test_a_strength_that_is_no_number_is_refused(strength):
    with pytest.raises(InputError, match="of class 1 is not allowed; give a finite number of at least 0"):
        camri.TwoSidedMarginLoss(3, {1: strength})
