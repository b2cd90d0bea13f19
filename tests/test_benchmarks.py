"""The benchmarks run and say what they must; their timings are nobody's test."""

import copy
import doctest
import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import audit as auditing
from benchmarks import guarantee, promises
from benchmarks.prize import pack as prize_pack
from benchmarks.prize.__main__ import main as run_prize
from benchmarks.prize.arms import ARMS, choose_arms
from benchmarks.prize.ensembles import put_together, teachers_of
from benchmarks.prize.judge import judge, show
from benchmarks.prize.margins import CosineMargin, hardest_margin
from benchmarks.prize.replica import LARGEST_MARGIN_RAD, RHO, Replica
from benchmarks.prize.store import Folder, Kept
from benchmarks.prize.workshop import Workshop
from camri import losses
from camri.auditing import audit
from camri.data import hold_out, load
from camri.decision import assure
from camri.engine import Training, Trial, train
from camri.engine.replica import make
from camri.errors import InputError
from camri.losses import two_sided_margin_softmax
from camri.metrics import condense
from camri.selection import compare_curves, recall_range
from camri.study import runner
from camri.study.executor import LocalExecutor
from camri.study.spec import study
from camri.study.store import open_run
from tests.references import over_rows, softmax
from tests.references import two_sided_margin_softmax as slow_two_sided_margin

ROOT = Path(__file__).parents[1]


def test_promises_are_counted_on_fresh_rows_and_on_the_test_images_of_a_run(tmp_path, capsys, monkeypatch):
    def told(*words):
        monkeypatch.setattr(sys, "argv", ["guarantee", *words])
        guarantee.main()
        return {(one.get("setting"), one["rule"]): one for one in json.loads(capsys.readouterr().out)["found"]}

    found = told("--tables", "60", "--rows", "1000")
    assert found[None, "promised"]["made"] == "60/60"
    assert found[None, "promised"]["kept"] >= 0.9 > 0.7 > found[None, "seen"]["kept"]
    assert found[None, "promised"]["recall"] > found[None, "seen"]["recall"]
    assert found[None, "promised"]["accuracy"] < found[None, "seen"]["accuracy"] < 0

    spec = study("s", "digits", ["9"], {"ce": {}}, seeds=[0, 1], training=Training(model="small", epochs=1))
    data = hold_out(load("digits"), fraction=0.3)
    runner.run(spec, tmp_path, LocalExecutor("cpu", workers=1), data=data)
    (promised, seen) = told("--run", str(tmp_path), "--at-least", "0.8").values()
    with open_run(tmp_path) as run:
        rows = run.rows()
        shifts = [assure(run.scores(row, "val", (9,)), 0.8).shift for row in rows]
        tests = [run.scores(row, "test", (9,)) for row in rows]
    recalls = [test.recall(shift)[0] for test, shift in zip(tests, shifts, strict=True) if shift is not None]
    assert promised["made"] == f"{len(recalls)}/2" == "2/2"
    assert promised["kept"] == np.mean([recall >= 0.8 for recall in recalls])
    assert promised["recall"] == pytest.approx(np.mean(recalls))
    assert seen["made"] == "2/2"


def test_audits_are_judged_by_what_their_shift_truly_gives(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["audit", "--tables", "6", "--rows", "1000"])
    monkeypatch.setattr(auditing.parts, "NUM_FOLDS", 10)
    auditing.main()
    shown = [float(word.strip("()").replace(",", "")) for word in capsys.readouterr().out.splitlines()[3].split()]

    fresh, labels = auditing.made_rows(100_000, -0.8, np.random.default_rng(99))
    hit, own = fresh.argmax(axis=1) == labels, labels == auditing.IMPORTANT
    true, held, called, told = [], [], [], []
    for seed in range(6):
        one = audit(*auditing.made_rows(1000, -0.8, np.random.default_rng([seed, 1000])), auditing.IMPORTANT)
        after = (fresh + one.shift * np.eye(4)[auditing.IMPORTANT]).argmax(axis=1) == labels
        recall, accuracy = after[own].mean() - hit[own].mean(), after.mean() - hit.mean()
        true.append([100 * recall, 100 * accuracy, accuracy < -0.005])
        held.append([one.recall.low <= recall <= one.recall.high, recall < one.recall.low,
                     one.accuracy.low <= accuracy <= one.accuracy.high, accuracy < one.accuracy.low])  # fmt: skip
        called.append(one.kind == "gain")
        told.append(one.accuracy.chance_of_fall(0.005))
    assert 0 < sum(called) < 6, "the tables are to be of both kinds"
    gains = np.array(true)[called].mean(axis=0)
    chance = np.array(told)[called].mean()
    expected = [-0.8, 1000, *np.mean(true, axis=0), np.mean(called), *gains, chance, *np.mean(held, axis=0)]
    assert shown == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
def test_a_fit_is_judged_by_fresh_rows(monkeypatch, capsys):
    words = ["--cases", "shift", "--fits", "1", "--trials", "16", "--new", "2", "--fresh", "2000"]
    monkeypatch.setattr(sys, "argv", ["promises", *words])
    monkeypatch.setattr(promises.handover, "can_draw", lambda: False)
    promises.main()
    found = json.loads(capsys.readouterr().out)["shift"]
    assert (found["fits"], found["predicts"]) == (1, 1)
    told = {"model: recall", "model: precision", "shift: accuracy", "together: false alarms"}
    assert told <= set(found["held new"]) == set(found["held own"])
    assert -0.2 < found["accuracy"]["lowest"] == found["accuracy"]["mean"] < 0.2


def test_promises_that_hold_are_counted_among_the_fits_that_made_them():
    kept = {"held own": {"a": True, "b": False}, "claimed": True, "wrongly": True, "predicts": True, "accuracy": -0.02,
            "recall": 0.1, "fell": True}  # fmt: skip
    other = {"held own": {"a": True}, "claimed": True, "wrongly": False, "predicts": True, "accuracy": 0.01,
             "recall": 0.3, "fell": False}  # fmt: skip
    found = promises.summarise([{**one, "held new": {"a": one is kept}} for one in (kept, other)])
    assert (found["held own"], found["held new"]) == ({"a": "2/2", "b": "0/1"}, {"a": "1/2"})
    assert (found["fits"], found["claimed"], found["wrongly"], found["predicts"]) == (2, 2, 1, 2)
    spread = {"mean": pytest.approx(-0.005), "sd": pytest.approx(0.015)}
    assert (found["fell"], found["accuracy"]) == (1, {**spread, "lowest": -0.02, "lower": 1})
    assert found["recall"] == {"mean": pytest.approx(0.2), "sd": pytest.approx(0.1)}


@pytest.mark.slow
def test_losses_benchmark_runs_and_reports_every_contender(tmp_path):
    command = [sys.executable, "benchmarks/losses.py", "--quick", "--device", "cpu", "--json", tmp_path / "out.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["benchmark"] == "losses"
    assert {"date", "commit", "versions", "hardware", "threads", "settings", "skipped"} <= result.keys()
    assert result["versions"]["torch"]
    assert result["threads"] == 1

    contenders = {"camri", "camri-arcface", "pml", "arccos", "one-hot"}
    cases = {(row["batch"], row["classes"]) for row in result["rows"]}
    assert len(result["rows"]) == len(cases) * len(contenders)
    for row in result["rows"]:
        assert row["contender"] in contenders
        assert 0 < row["fastest_s"] <= row["median_s"]
        assert row["repeats"] >= 3
        assert row["peak_bytes"] >= 4 * row["batch"] * row["classes"]  # the cosines at least
        assert row["contender"] in done.stdout
    for ratio in result["ratios"]:
        assert ratio["contender"].startswith("camri")
        assert ratio["best_other"] in contenders
        assert ratio["time_ratio"] > 0
        assert ratio["memory_ratio"] > 0
    assert len(result["ratios"]) == 2 * len(cases)


# benchmarks/prize


def slow_hardest(cos, labels, margins, scale):
    m = margins.double().tolist()

    def loss(row, t):
        hardest = max((k for k in range(len(row)) if k != t), key=lambda k: row[k])
        moved = [scale * (value + m[t] * (k == hardest)) for k, value in enumerate(row)]
        return -math.log(softmax(moved)[t])

    return over_rows(cos, labels, loss)


MARGINS = {two_sided_margin_softmax: slow_two_sided_margin, hardest_margin: slow_hardest}
ONE_CLASS = torch.tensor([0.0, 0.0, 0.3, 0.0, 0.0], dtype=torch.float64)
SEVERAL = torch.tensor([0.1, 0.0, 0.3, 0.0, 0.7], dtype=torch.float64)


def some_cosines(num_rows=15):
    drawn = torch.Generator().manual_seed(1)
    return torch.rand(num_rows, 5, generator=drawn, dtype=torch.float64) * 2 - 1, torch.arange(num_rows) % 5


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("margins", [ONE_CLASS, SEVERAL])
def test_tried_margins_equal_the_slow_reference(loss, margins):
    cos, labels = some_cosines()
    torch.testing.assert_close(loss(cos, labels, margins, 8.0), MARGINS[loss](cos, labels, margins, 8.0))
    single = loss(cos.float(), labels, margins.float(), 8.0)
    torch.testing.assert_close(single.double(), MARGINS[loss](cos.float(), labels, margins, 8.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", MARGINS)
def test_tried_margins_have_the_right_slope(loss):
    cos, labels = some_cosines(5)
    assert torch.autograd.gradcheck(
        lambda c, m: loss(c, labels, m, 8.0), (cos.requires_grad_(), (SEVERAL + 0.1).requires_grad_())
    )


def test_a_two_sided_margin_is_felt_on_both_sides_and_the_hardest_one_on_the_class_alone():
    cos, labels = some_cosines()
    plain, own = losses.cross_entropy(8 * cos, labels), labels == 2
    two_sided, hardest = (loss(cos, labels, ONE_CLASS, 8.0) for loss in (two_sided_margin_softmax, hardest_margin))
    assert (two_sided > plain).all()
    assert (hardest[own] > plain[own]).all()
    assert torch.equal(hardest[~own], plain[~own])


@pytest.mark.parametrize("loss", MARGINS)
def test_tried_margins_are_ramped_in_and_off_in_eval(loss):
    cos, labels = some_cosines()
    criterion = CosineMargin(loss, 5, {2: 0.3}, 8.0, ramp=2, reduction="none")
    ramped = [criterion(cos, labels) for _ in range(3)]
    for part, found in zip((0.0, 0.5, 1.0), ramped, strict=True):
        torch.testing.assert_close(found, loss(cos, labels, part * ONE_CLASS, 8.0), rtol=1e-6, atol=1e-6)
    assert torch.equal(criterion.eval()(cos, labels), losses.cross_entropy(8 * cos, labels))


@pytest.mark.parametrize("name", ["arms", "ensembles", "margins", "replica"])
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(import_module(f"benchmarks.prize.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture
def shop(tmp_path):
    return Workshop.open(tmp_path / "trials", "digits", "8", epochs=3, ensemble=1, device=torch.device("cpu"))


def made_replica(shop, name, **changes):
    model, _ = make(Trial(ARMS[name].setting(shop.job.important), 0), shop.job)
    replica = Replica(ARMS[name], 0, shop.job, model, shop.resident, **changes)
    replica.draw(0)
    return replica


@pytest.mark.parametrize("name", ["ce", "camri"])
def test_plain_arms_train_as_the_engine_does(shop, name):
    arm = ARMS[name]
    assert shop.train_arm(arm, [0, 1], pack_size=2)
    trials = [Trial(arm.setting((8,)), seed) for seed in (0, 1)]
    outcomes = train(
        trials, shop.job.data, "cpu", training=shop.job.training, important=(8,), keep_logits=True, workers=1
    )
    for seed, outcome in enumerate(outcomes):
        mine = shop.folder.load(name, seed)
        for split in ("val", "test"):
            # Kept in half precision, whose step is 2⁻⁷ at logits of 8 to 16; another order of rows moves them by 1.
            assert np.abs(mine.logits[split].astype(float) - outcome.logits[split].astype(float)).max() < 0.02
        assert mine.notes["train_loss"] == pytest.approx(outcome.curves["train_loss"].tolist(), rel=1e-4)


def test_arms_of_one_seed_start_from_the_same_trunk_and_see_the_same_rows(shop):
    one, other = made_replica(shop, "ce"), made_replica(shop, "two_sided_0.2")
    for mine, its in zip(one.model.trunk.parameters(), other.model.trunk.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert torch.equal(one.order, other.order)
    assert one.order.unique().numel() == one.order.numel()


def test_tried_margins_train_with_the_ramp_of_the_schedule(shop):
    criterion = ARMS["two_sided_0.2"].criterion(shop.job)
    assert criterion.ramp == (0, round(0.3 * 3 * 17))  # three epochs of 17 batches
    assert criterion.margins.tolist() == pytest.approx([0.0] * 8 + [0.2, 0.0])
    assert criterion.options["scale"] == 8.0


def test_a_sharpness_aware_step_is_taken_from_uphill_and_counts_its_rows_once(shop):
    replica = made_replica(shop, "sam")
    rows = replica.order[0]
    x, labels = shop.resident["train"].inputs[rows].permute(0, 3, 1, 2) / 255, shop.resident["train"].labels[rows]
    model = copy.deepcopy(replica.model)
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), labels).backward()
    statistics = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    length = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    uphill = copy.deepcopy(model)
    with torch.no_grad():
        for moved, parameter in zip(uphill.parameters(), model.parameters(), strict=True):
            moved += RHO * parameter.grad / length
    uphill.zero_grad()
    torch.nn.functional.cross_entropy(uphill(x), labels).backward()

    first = [parameter.detach().clone() for parameter in replica.parameters]
    _, gradients = replica._slope(x, labels, None)
    for parameter, before, gradient, its, plain in zip(
        replica.parameters, first, gradients, uphill.parameters(), model.parameters(), strict=True
    ):
        assert torch.equal(parameter, before)
        torch.testing.assert_close(gradient, its.grad, rtol=1e-3, atol=1e-5)
        if parameter.dim() > 1:
            assert not torch.allclose(gradient, plain.grad, rtol=1e-3, atol=1e-5)
    for name, value in replica.model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(value, statistics[name])
    assert int(replica.criterion.step) == 1


def test_uphill_for_the_class_is_a_plain_step_where_the_batch_has_none_of_it(shop):
    replica, plain = made_replica(shop, "sam_important"), made_replica(shop, "ce")
    inputs, labels = shop.resident["train"].inputs.permute(0, 3, 1, 2) / 255, shop.resident["train"].labels
    others, own = (torch.nonzero(mark).flatten()[:32] for mark in (labels != 8, labels == 8))
    for rows, is_same in ((others, True), (torch.cat([others, own]), False)):
        found, wanted = (one._slope(inputs[rows], labels[rows], None) for one in (replica, plain))
        assert torch.allclose(found[1][0], wanted[1][0], rtol=1e-5, atol=1e-7) == is_same
        torch.testing.assert_close(found[0], wanted[0])
    # Uphill for the class's own images, not for the batch.
    both = [
        made_replica(shop, name)._slope(inputs[rows], labels[rows], None)[1][0] for name in ("sam", "sam_important")
    ]
    assert not torch.allclose(*both, rtol=1e-3)


@pytest.mark.parametrize(("floor", "then"), [(2.0, 0.0), (-1.0, LARGEST_MARGIN_RAD)])
def test_a_learned_margin_follows_accuracy_over_its_floor(shop, floor, then):
    replica = made_replica(shop, "learned_final", floors=[floor, floor])
    for epoch in range(2):
        replica.draw(epoch)
        replica.advance()
        replica.end_epoch()
    assert replica.margins_rad == pytest.approx([math.pi / 16, then])
    assert replica.criterion.margins.tolist() == pytest.approx([0.0] * 8 + [then, 0.0])


def test_several_classes_are_important_alike(tmp_path):
    shop = Workshop.open(tmp_path / "pair", "digits", "8+3", epochs=3, ensemble=1, device=torch.device("cpu"))
    assert (shop.job.important, shop.folder.about["class"]) == ((3, 8), "3 + 8")
    shop.train_arm(ARMS["ce"], [0, 1], pack_size=2)
    shop.train_arm(ARMS["camri"], [0, 1], pack_size=2)
    ce, camri = judge(shop.folder)["arms"][:2]
    both = [shop.folder.load("ce", seed).scores["test"].recall().mean() for seed in (0, 1)]
    assert (ce["arm"], ce["recall"]["mean"]) == ("ce", pytest.approx(np.mean(both)))
    assert camri["against"][0]["num"] == 2
    for name, margin in (("camri", math.pi / 16), ("two_sided_0.2", 0.2), ("hardest_0.1", 0.1)):
        margins = made_replica(shop, name).criterion.margins
        assert margins.tolist() == pytest.approx([margin if index in (3, 8) else 0.0 for index in range(10)])
    learned = made_replica(shop, "learned_final", floors=[-1.0])
    learned.advance()
    learned.end_epoch()
    assert learned.criterion.margins[[3, 8, 1]].tolist() == pytest.approx([LARGEST_MARGIN_RAD] * 2 + [0.0])
    inputs, labels = shop.resident["train"].inputs.permute(0, 3, 1, 2) / 255, shop.resident["train"].labels
    rows = torch.cat([torch.nonzero(labels == index).flatten()[:16] for index in (3, 8)])
    both = [made_replica(shop, name)._slope(inputs[rows], labels[rows], None)[1] for name in ("sam", "sam_important")]
    for mine, its in zip(*both, strict=True):  # all images are of important classes: the same step uphill
        torch.testing.assert_close(mine, its)


def test_warm_ups_leave_nothing_behind(shop):
    warm, fresh = made_replica(shop, "camri"), made_replica(shop, "camri")
    first = {name: value.clone() for name, value in warm.model.state_dict().items()}
    for _ in range(3):
        warm.advance()
    warm.forget(first)
    for replica in (warm, fresh):
        for _ in range(3):
            replica.advance()
    for mine, its in zip(warm.model.state_dict().values(), fresh.model.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    assert torch.equal(warm.loss_sum, fresh.loss_sum)
    assert torch.equal(warm.criterion.step, fresh.criterion.step)


def test_a_step_that_cannot_be_captured_trains_eagerly(shop, monkeypatch):
    tries = []

    def refuse(replicas):
        tries.append(len(replicas))
        replicas[0].advance()  # what a capture had changed must not be trained on
        raise RuntimeError("operation not permitted when stream is capturing")

    assert shop.train_arm(ARMS["ce"], [0], pack_size=1)
    shop.captures = True
    monkeypatch.setattr(prize_pack, "capture", refuse)
    wanted = shop.folder.load("ce", 0)
    (shop.folder.path / "ce-0.npz").unlink()
    shop.eager_arms.clear()
    with pytest.warns(UserWarning, match="ce: its step cannot be captured .*it trains eagerly"):
        assert shop.train_arm(ARMS["ce"], [0, 1], pack_size=1)
    assert tries == [1]  # not tried again for the next seed
    assert np.array_equal(shop.folder.load("ce", 0).logits["test"], wanted.logits["test"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if not arm.members])
def test_a_captured_step_trains_as_the_eager_one_does(tmp_path, name):
    losses_by_mode = {}
    for mode in ("graph", "eager"):
        shop = Workshop.open(tmp_path / mode, "digits", "8", epochs=2, ensemble=1, device=torch.device("cuda"))
        shop.captures = mode == "graph"
        for arm in dict.fromkeys(("ce", name)):
            assert shop.train_arm(ARMS[arm], [0, 1], pack_size=2)
        notes = [shop.folder.load(name, seed).notes for seed in (0, 1)]
        assert [one["mode"] for one in notes] == [mode, mode]
        losses_by_mode[mode] = [loss for one in notes for loss in one["train_loss"]]
    # Kernels add up in any order, so not to the bit; one of 126 validation images moves a learned margin by 0.04.
    nearly = 0.1 if ARMS[name].floor else 0.02
    assert losses_by_mode["graph"] == pytest.approx(losses_by_mode["eager"], rel=nearly)


def test_a_new_head_learns_from_the_frozen_trunk_of_its_seed(shop):
    shop.train_arm(ARMS["ce"], [0, 1], pack_size=2)
    replica, control = (shop._make(ARMS[name], 1) for name in ("head_camri", "head_ce"))
    assert [parameter.shape for parameter in replica.parameters] == [(10, 64)]
    assert torch.equal(replica.model.head.weight, control.model.head.weight)
    assert not torch.equal(shop._make(ARMS["head_camri"], 0).model.head.weight, replica.model.head.weight)
    assert replica.job.training.epochs == shop.job.training.epochs == 3
    trained = shop.folder.load("ce", 1)
    head = {name.removeprefix("head."): torch.from_numpy(v) for name, v in trained.weights.items() if "head." in name}
    logits = torch.nn.functional.linear(replica.resident["test"].inputs, head["weight"], head["bias"])
    assert np.abs(logits.numpy() - trained.logits["test"]).max() < 0.02


def test_distillation_hears_the_ensemble_of_other_seeds_and_half_of_the_labels(shop):
    shop.folder.about["ensemble"] = 2
    shop.train_arm(ARMS["ce"], range(4), pack_size=4)
    targets = shop._targets((2, 3))
    models = [shop._trained_ce(seed) for seed in (2, 3)]
    train_rows = shop.resident["train"]
    x = train_rows.inputs[:50].permute(0, 3, 1, 2) / 255
    wanted = torch.stack([model(x).softmax(dim=1) for model in models]).mean(dim=0)
    torch.testing.assert_close(targets[:50], wanted, rtol=1e-4, atol=1e-6)

    replica = shop._make(ARMS["distilled_camri"], 1)
    assert replica.targets is targets
    replica.criterion.step.fill_(10_000)  # past the ramp
    labels = train_rows.labels[:50]
    cos = replica.model(x)
    margins = torch.zeros(10).index_fill_(0, torch.tensor([8]), math.pi / 16)
    hard = losses.margin_softmax(cos, labels, margins, 8.0)
    soft = torch.nn.functional.cross_entropy(8 * cos, targets[:50], reduction="none")
    torch.testing.assert_close(replica._losses(x, labels, targets[:50]), (hard + soft) / 2)
    for seed in range(4):
        assert not {seed, seed ^ 1} & set(teachers_of(seed, range(4), 2))


def made_scores(seed, skill=2.0, num_rows=400):
    drawn = np.random.default_rng([seed, num_rows])
    labels = np.arange(num_rows) % 4
    return drawn.normal(size=(num_rows, 4)) + skill * np.eye(4)[labels], labels


def made_trial(arm, seed, skill=2.0):
    found = {split: made_scores(seed, skill, rows) for split, rows in (("val", 200), ("test", 400))}
    scores = {split: condense(*one, (3,)) for split, one in found.items()}
    return Kept(arm, seed, {"mode": "eager", "wall_s": 2.0}, scores, {split: one[0] for split, one in found.items()})


@pytest.fixture
def judged(tmp_path):
    """Three seeds of cross-entropy, of a better CAMRI and of an L2-softmax one of whose trials failed."""
    folder = Folder(tmp_path / "judged", {"important": [3], "ensemble": 2})
    for seed in range(3):
        folder.save(made_trial("ce", seed))
        folder.save(made_trial("camri", seed, skill=2.5))
        failed = Kept("l2softmax", seed, {"error": "the loss stopped being finite in epoch 1"})
        folder.save(failed if seed == 1 else made_trial("l2softmax", seed, skill=2.25))
    return folder


def test_the_verdict_compares_whole_curves_over_shared_seeds(judged):
    verdict = json.loads(json.dumps(judge(judged), allow_nan=False))
    rows = {row["arm"]: row for row in verdict["arms"]}
    assert list(rows) == ["ce", "l2softmax", "camri", "ensemble_ce", "ensemble_camri"]
    trials = {arm: [judged.load(arm, seed).scores["test"] for seed in range(3)] for arm in ("ce", "camri")}
    wanted = compare_curves(trials["camri"], trials["ce"], seed=0, recall=recall_range(trials["ce"]))
    against_ce, against_l2 = rows["camri"]["against"]
    assert (against_ce["arm"], against_ce["num"]) == ("ce", 3)
    assert against_ce["mean"] == {
        "estimate": wanted.mean.estimate, "low": wanted.mean.low, "high": wanted.mean.high
    }  # fmt: skip
    assert against_ce["lower_end"]["estimate"] == wanted.at(0).estimate
    assert against_ce["upper_end"]["estimate"] == wanted.at(-1).estimate
    assert against_ce["mean"]["estimate"] > 0.03
    assert against_ce["chance_below_0"] < 0.2
    assert against_ce["validation"]["estimate"] != against_ce["mean"]["estimate"]
    assert (against_l2["arm"], against_l2["num"]) == ("l2softmax", 2)
    sides = [[judged.load(arm, seed).scores["test"] for seed in (0, 2)] for arm in ("camri", "l2softmax")]
    over_l2 = compare_curves(*sides, seed=0, recall=recall_range(trials["ce"]))  # the range stays cross-entropy's
    assert against_l2["mean"]["estimate"] == over_l2.mean.estimate != compare_curves(*sides, seed=0).mean.estimate
    assert rows["l2softmax"]["num_failed"] == 1
    assert rows["l2softmax"]["recall"]["num"] == 2
    assert rows["ce"]["accuracy"]["mean"] == pytest.approx(np.mean([one.accuracy() for one in trials["ce"]]))
    assert rows["ce"]["accuracy"]["sd"] == pytest.approx(np.std([one.accuracy() for one in trials["ce"]], ddof=1))
    assert rows["ce"]["seconds_a_trial"] == 2.0
    assert verdict["num_looks"] == 2
    table = show(verdict)
    assert f"{100 * wanted.mean.estimate:+.2f} [{100 * wanted.mean.low:+.2f}, {100 * wanted.mean.high:+.2f}]" in table
    assert "1 failed" in table


def test_ensembles_average_probabilities_of_neighbouring_seeds(judged):
    made = put_together(judged, "ce")
    assert list(made) == [0]  # seed 2 has no neighbour
    logits = [judged.load("ce", seed).logits["test"] for seed in (0, 1)]
    h = np.mean([np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in logits], axis=0)
    wanted = condense(np.log(h), made_scores(0)[1], (3,))
    assert np.abs(made[0].scores["test"].lead.astype(float) - wanted.lead).max() < 0.01
    assert np.array_equal(made[0].scores["test"].rest_right, wanted.rest_right)


def test_a_kept_trial_comes_back_as_it_was(judged):
    saved, found = made_trial("ce", 1), judged.load("ce", 1)
    assert found.notes == saved.notes
    for split in ("val", "test"):
        for name in ("labels", "lead", "rest_right", "rest_spread"):
            assert np.array_equal(getattr(found.scores[split], name), getattr(saved.scores[split], name))
        assert np.array_equal(found.logits[split], saved.logits[split])
    assert not list(judged.path.glob("*.part"))


def test_arms_are_chosen_by_name_and_letter_and_each_names_arms_to_compare_with():
    assert [arm.name for arm in choose_arms(["e", "camri"])] == ["ce", "camri", "sam", "sam_important"]
    with pytest.raises(InputError, match="did you mean 'camri'"):
        choose_arms(["camry"])
    assert "".join(dict.fromkeys(arm.group for arm in ARMS.values())) == "controlsabdcefg"
    controls = {name: (arm.trained_alike, arm.without_margin) for name, arm in ARMS.items() if arm.is_for_the_class}
    alone = ("camri", "two_sided_0.1", "two_sided_0.2", "hardest_0.1", "hardest_0.2", "learned_final", "learned_epoch")
    assert controls == {
        **dict.fromkeys(alone, ("ce", "l2softmax")),
        "head_camri": ("head_ce", "head_l2softmax"),
        "head_wce": ("head_ce", ""),
        "sam_important": ("sam", ""),
        "ensemble_camri": ("ensemble_ce", "ensemble_l2softmax"),
        "distilled_camri": ("distilled_ce", "distilled_l2softmax"),
    }


def call_prize(monkeypatch, capsys, *words):
    """Exit code, stdout and stderr of the command."""
    monkeypatch.setattr(sys, "argv", ["prize", *map(str, words)])
    code = 0
    try:
        run_prize()
    except SystemExit as ended:
        code = ended.code
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_the_prize_runs_every_arm_goes_on_where_it_stopped_and_judges(tmp_path, monkeypatch, capsys):
    folder, out = tmp_path / "trials", tmp_path / "out.json"
    asked = ["--device=cpu", "--data=digits", "--important=8", "--epochs=2", "--ensemble=1", "--folder", folder]
    code, _, told = call_prize(monkeypatch, capsys, *asked, "--seeds", "0", "--arms", "controls,g", "--train-only")
    assert code == 0
    assert "distilled_ce: left out, for want of cross-entropy models: seeds [0]" in told
    assert sorted(file.name for file in folder.iterdir()) == [
        "about.json", "camri-0.npz", "ce-0.npz", "l2softmax-0.npz"
    ]  # fmt: skip
    times = {file: file.stat().st_mtime_ns for file in folder.glob("*.npz")}

    code, _, told = call_prize(monkeypatch, capsys, *asked, "--seeds", "0-1", "--max-wall", 0, "--train-only")
    assert code == 0
    assert "the same call again goes on" in told
    assert len(list(folder.glob("*.npz"))) == 3

    code, text, told = call_prize(monkeypatch, capsys, *asked, "--seeds", "0-1", "--out", out)
    assert code == 0
    assert {file: file.stat().st_mtime_ns for file in times} == times  # what was there was not trained again
    verdict = json.loads(text)
    assert json.loads(out.read_text()) == verdict
    rows = {row["arm"]: row for row in verdict["arms"]}
    assert list(rows) == list(ARMS)
    for arm, row in rows.items():
        assert (row["recall"]["num"], row["num_failed"]) == (2, 0)
        assert arm in told
    # An ensemble of one is that one.
    assert rows["ensemble_ce"]["against"][0]["mean"]["estimate"] == pytest.approx(0, abs=0.005)
    assert rows["ensemble_camri"]["accuracy"]["mean"] == pytest.approx(rows["camri"]["accuracy"]["mean"], abs=0.005)
    assert [one["arm"] for one in rows["distilled_camri"]["against"]] == ["ce", "distilled_ce", "distilled_l2softmax"]
    assert verdict["about"]["training"]["epochs"] == 2
    assert verdict["about"]["class"] == "8"
    seen = {arm: Folder(folder).load(arm, 0).scores["test"].lead.tobytes() for arm in ARMS if not ARMS[arm].members}
    assert len(set(seen.values())) == len(seen)  # no arm is another under a second name

    assert call_prize(monkeypatch, capsys, "--judge", folder)[1] == text

    for words, message in (
        ((*asked, "--important", 3), "holds trials of another important and class"),
        ((*asked, "--arms", "h"), "--arms 'h' is no arm"),
        ((*asked, "--pack", -1), "--pack -1 is not allowed"),
        (("--judge", tmp_path), "holds no trials"),
        ((), "give --folder to train, or --judge FOLDER"),
    ):
        code, text, told = call_prize(monkeypatch, capsys, *words)
        assert (code, text) == (2, "")
        assert message in told
