"""The variants of two-sided/methods against slow references, their gradients, and the whole way to a ranking."""

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from camri.heads import LinearHead
from camri.models import Classifier, SmallCNN
from camri.report.ranking import rank_column
from camri.study.reader import RunReader
from tests import references

VARIANTS = [
    "margin_annealed",
    "margin_confused",
    "margin_hard",
    "margin_weighted",
    "margin_one_vs_rest",
    "margin_sharp",
    "margin_two_centres",
    "margin_three_centres",
    "ce_smoothed",
    "margin_extra",
    "margin_hard_one_vs_rest",
    "margin_beside_one_vs_rest",
]
FOLDER = Path(__file__).parents[1] / "reproduce" / "two-sided" / "methods"


@pytest.fixture(scope="module")
def variants():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("class_variants")
    sys.path.remove(str(FOLDER))


def batch(seed=0, num=12, num_classes=5):
    drawn = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num, num_classes, generator=drawn, dtype=torch.float64)
    return logits, torch.arange(num) % num_classes


MARGINS = torch.tensor([0.0, 1.5, 0.0, 0.5, 0.0], dtype=torch.float64)
COSTS = torch.tensor([0.0, 2.0, 0.0, 0.5, 0.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 1.0, 1.5, 1.0], dtype=torch.float64)


def moved(row, label, against):
    """The logits of one sample under the margin, from its words."""
    rest = [k for k in range(len(row)) if k != label]
    total, top = sum(math.exp(row[k]) for k in rest), max(row[k] for k in rest)
    part = {
        "all": lambda k: 1.0,
        "confused": lambda k: math.exp(row[k]) / total,
        "hard": lambda k: float(row[k] == top),
    }[against]
    raised = {k: row[k] + float(MARGINS[k]) * part(k) for k in rest}
    return [raised.get(k, row[k] - float(MARGINS[k])) for k in range(len(row))]


def reference(logits, labels, against, one_vs_rest, weights, smoothing):
    def loss(row, label):
        h = references.softmax(moved(row, label, against))
        y = references.one_hot(label, len(row), smoothing)
        total = -sum(y[k] * math.log(h[k]) for k in range(len(row)))
        for k, cost in enumerate(COSTS.tolist() if one_vs_rest else []):
            total -= cost * (y[k] * math.log(h[k]) + (1 - y[k]) * math.log(1 - h[k]))
        return total * (float(WEIGHTS[label]) if weights else 1.0)

    return references.over_rows(logits, labels, loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("against", ["all", "confused", "hard"])
@pytest.mark.parametrize(("one_vs_rest", "weights"), [(False, False), (True, False), (False, True), (True, True)])
def test_margin_variants(variants, against, one_vs_rest, weights, smoothing):
    logits, labels = batch()
    options = {
        "one_vs_rest": COSTS if one_vs_rest else None,
        "weights": WEIGHTS if weights else None,
        "against": against,
        "label_smoothing": smoothing,
    }
    wanted = reference(logits, labels, against, one_vs_rest, weights, smoothing)
    torch.testing.assert_close(variants.margin_variant(logits, labels, MARGINS, **options), wanted)
    torch.testing.assert_close(
        variants.margin_variant(logits.float(), labels, MARGINS.float(), **options).double(),
        wanted,
        rtol=2e-5,
        atol=2e-5,
    )
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: variants.margin_variant(x, labels, MARGINS, **options), logits)


def test_one_vs_rest_beside_the_margin(variants):
    logits, labels = batch()

    def loss(row, label):
        h, moved_h = references.softmax(row), references.softmax(moved(row, label, "all"))
        total = -math.log(moved_h[label])
        for k, cost in enumerate(COSTS.tolist()):
            total -= cost * math.log(h[k] if k == label else 1 - h[k])
        return total

    def beside(x):
        return variants.margin_variant(x, labels, MARGINS, COSTS, beside=True)

    torch.testing.assert_close(beside(logits), references.over_rows(logits, labels, loss))
    assert torch.autograd.gradcheck(beside, logits.requires_grad_())


def test_smoothing_among_the_other_classes(variants):
    logits, labels = batch()

    def loss(row, label):
        h, others = references.softmax(moved(row, label, "all")), [0, 2, 4]
        y = [float(k == label) for k in range(5)]
        if label in others:
            y = [0.9 * (k == label) + 0.1 / 3 * (k in others) for k in range(5)]
        return -sum(y[k] * math.log(h[k]) for k in range(5))

    def sharp(x):
        return variants.sharp_margin(x, labels, MARGINS, (MARGINS == 0).double(), smoothing=0.1)

    torch.testing.assert_close(sharp(logits), references.over_rows(logits, labels, loss))
    assert torch.autograd.gradcheck(sharp, logits.requires_grad_())


def test_an_extra_output_asks_for_the_class_alone_and_moves_its_log_odds(variants):
    outputs, labels = batch(num_classes=6)
    labels = labels % 5
    margins, extra, costs = (torch.tensor([0.0, value, 0, 0, 0, 0], dtype=torch.float64) for value in (1.5, 0.5, 2.0))

    def loss(row, label):
        logits = [z + (1.5 if label != 1 else -1.5) * (k == 1) for k, z in enumerate(row[:5])]
        lead = row[5] - 0.5 if label == 1 else -(row[5] + 0.5)
        return -math.log(references.softmax(logits)[label]) + 2.0 * math.log1p(math.exp(-lead))

    def found(x):
        return variants.margin_with_extra(x, labels, margins, extra, costs)

    torch.testing.assert_close(found(outputs), references.over_rows(outputs, labels, loss))
    assert torch.autograd.gradcheck(found, outputs.clone().requires_grad_())

    before = outputs[:, :5]
    after = variants.ExtraOutputLoss(5, {1: 1.5}, {1: 0.5}, {1: 2.0}).logits(outputs)
    others = [0, 2, 3, 4]
    assert torch.equal(after[:, others], before[:, others])
    odds = [z[:, 1] - z[:, others].logsumexp(dim=1) for z in (before, after)]
    torch.testing.assert_close(odds[1], (odds[0] + outputs[:, 5]) / 2)


def test_sub_centres_add_their_odds(variants):
    head = variants.ThreeCentres(4, 3, torch.Generator().manual_seed(0)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    parts = [torch.nn.functional.linear(x, one.weight, one.bias).exp() for one in (head, *head.more)]
    torch.testing.assert_close(head(x).exp(), sum(parts))
    assert not torch.equal(head.weight, head.more[0].weight)
    assert sum(p.numel() for p in head.parameters()) == 3 * (3 * 4 + 3)


def test_self_distillation_adds_the_divergences_from_the_teacher(variants):
    outputs, labels = batch(num_classes=10)
    labels = labels % 5

    def loss(row, label):
        h, t = references.softmax(row[:5]), references.softmax(row[5:])
        total = -math.log(references.softmax(moved(row[:5], label, "all"))[label])
        total += 0.7 * sum(t[k] * math.log(t[k] / h[k]) for k in range(5))
        for k, cost in enumerate(COSTS.tolist()):
            total += cost * (t[k] * math.log(t[k] / h[k]) + (1 - t[k]) * math.log((1 - t[k]) / (1 - h[k])))
        return total

    def found(x):
        return variants.self_distilled(x, labels, MARGINS, torch.tensor(0.7), COSTS)

    torch.testing.assert_close(found(outputs), references.over_rows(outputs, labels, loss))
    teacher = outputs[:, 5:]
    assert torch.autograd.gradcheck(
        lambda own: found(torch.cat([own, teacher], dim=1)), outputs[:, :5].clone().requires_grad_()
    )
    certain = torch.tensor([[200.0, 0, 0, 0, 0, 0, 0, 0, 0, 200.0]], requires_grad=True)
    one = variants.self_distilled(certain, torch.tensor([4]), MARGINS.float(), torch.tensor(1.0), COSTS.float())
    one.sum().backward()
    assert one.isfinite().all()
    assert certain.grad.isfinite().all()
    assert not certain.grad[:, 5:].any()  # the teacher is not taught


def test_the_teacher_is_the_average_of_the_student_and_does_not_change_it(variants):
    def make(kind, head):
        drawn = torch.Generator().manual_seed(3)
        trunk = kind(in_channels=1, generator=drawn)
        return Classifier(trunk, head(trunk.num_features, 5, drawn)).train()

    taught, plain = make(variants.SelfTaughtCNN, variants.TaughtHead), make(SmallCNN, LinearHead)
    # Not Adam, which enlarges rounding where a gradient is 0 but for it: a bias before batch norm.
    optimizers = [torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1) for net in (taught, plain)]
    kept = []
    for step in range(4):
        x, labels = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(step)), torch.arange(8) % 5
        kept.append(plain.head.weight.detach().clone())
        for net, optimizer in zip((taught, plain), optimizers, strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x)[:, :5], labels).backward()
            optimizer.step()
    x = torch.rand(8, 1, 8, 8)
    torch.testing.assert_close(taught.eval()(x), plain.eval()(x))
    average = kept[0]
    for step, weight in enumerate(kept):
        average = average.lerp(weight, 1 - min(0.999, (1 + step) / (10 + step)))
    torch.testing.assert_close(taught.head.teacher.weight, average)
    assert taught.trunk.teacher.norm.running_mean.abs().sum() > 0


def test_an_annealed_margin_rises_holds_and_falls_to_nothing(variants):
    loss = variants.AnnealedMarginLoss(3, {1: 2.0}, ramp=(0, 30))
    logits, labels, strengths = torch.zeros(1, 3), torch.tensor([1]), []
    for _ in range(101):
        strengths.append(float(loss.strength()))
        loss(logits, labels)
    assert strengths[0] == 0
    assert strengths[15] == pytest.approx(0.5)
    assert strengths[30:70] == [1.0] * 40
    assert strengths[85] == pytest.approx(0.5)
    assert strengths[100] == pytest.approx(0, abs=1e-6)


def run_study(folder, *options):
    """Run study.toml of a folder from the source tree, with the variants on the path."""
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER.parents[2]}{os.pathsep}{FOLDER}", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "camri", "study", "run", "study.toml", "--out", "runs", *options]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_a_study_of_variants_is_ranked_on_validation_data(variants, tmp_path):
    """Trained from the source tree without installing; the ranking holds what a count by hand gives."""
    together = (FOLDER / "screen-2.toml").read_text(encoding="utf-8").partition("margin_hard")
    study = (FOLDER / "screen.toml").read_text(encoding="utf-8") + together[1] + together[2]
    study = (
        study.replace('"cat"', '"8"')
        .replace('source = "cifar10"', 'source = "digits"')
        .replace("epochs = 8", "epochs = 1")
    )
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    names = ",".join(["ce", "two_sided_logits", *VARIANTS])
    asked = f"--seeds 1,2 --workers 1 --device cpu --methods {names} --grid m=2 weights=2 one_vs_rest=1 extra_m=1"
    run_study(tmp_path, *asked.split())
    with RunReader(tmp_path / "runs") as reading:
        (column,) = reading.columns
        by_title = {one.title: one for one in reading.settings(column)}
        ranked, quick = (rank_column(reading, column, "val", quick=how) for how in (False, True))
        for name, value in quick[-1]["threshold"].items():
            assert ranked[-1]["threshold"][name] == pytest.approx(value)
        assert {record["setting"] for record in ranked} == set(by_title)
        assert {record["method"] for record in ranked} == {"ce", "two_sided_logits", *VARIANTS}
        assert ranked[1:] == sorted(ranked[1:], key=lambda one: one["threshold"]["alarms"])
        record = next(record for record in ranked if record["setting"] == "two_sided_logits m=2")
        recall = np.array(record["recalls"])

        def alarms(title):
            """Mean share of images of other digits above the threshold that reaches each recall."""
            found = []
            for row in by_title[title].rows:
                scores = reading.scores(row, "val", column)
                odds, own = scores.odds().lead[:, 0], scores.labels == 8
                need = np.ceil(recall * own.sum() - 1e-9).astype(int)
                cuts = np.sort(odds[own])[::-1][np.maximum(need, 1) - 1]
                found.append([(odds[~own] >= cut).sum() / len(odds) for cut in cuts])
            return np.mean(found)

        change = alarms("two_sided_logits m=2") - alarms("ce")
        assert record["threshold"]["alarms"] == pytest.approx(change, abs=1e-3)


def test_self_distillation_trains_and_is_ranked_against_its_own_control(variants, tmp_path):
    study = (FOLDER / "self-taught.toml").read_text(encoding="utf-8")
    study = study.replace('"cat"', '"8"').replace('"cifar10"', '"digits"').replace("epochs = 8", "epochs = 1")
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    run_study(tmp_path, "--seeds", "1", "--workers", "1", "--device", "cpu")
    control = "self_distilled m=0 taught=0 taught_class=0"
    with RunReader(tmp_path / "runs") as reading:
        (column,) = reading.columns
        ranked = rank_column(reading, column, "val", quick=True, control=control)
    assert [record["setting"] for record in ranked].index(control) == 0
    assert len(ranked) == 8
    assert len({record["threshold"]["alarms"] for record in ranked}) > 1
