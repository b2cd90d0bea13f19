"""The plan of a fit and its time, with a clock that the tests move."""

import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from camri.data import DataSet, Split
from camri.engine import Pool
from camri.fitting import budget
from camri.fitting.budget import Budget, Plan, apply_plan, make_plan, smaller
from camri.fitting.job import Stages, TooSlow
from camri.fitting.request import Journal, fewer_rows
from camri.fitting.trainer import Trainer
from camri.text import Noun
from tests.fitting.test_request import ask


@pytest.fixture
def clock(monkeypatch):
    """Seconds that have passed, to be set."""
    now = [0.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def plan_at(monkeypatch, epoch_s, budget_s=100.0, **asked):
    """The plan when an epoch takes so long: one number, or one for each model."""
    speeds = epoch_s if isinstance(epoch_s, dict) else {"small": epoch_s}
    monkeypatch.setattr(budget, "probe", lambda request, training, *_: speeds[training.model])
    return make_plan(ask(budget=budget_s, **asked), Pool())


def test_the_first_length_is_short_whatever_the_time(monkeypatch):
    assert plan_at(monkeypatch, 0.001) == Plan("small", 1006, 20, 0.001)  # 300 steps
    assert plan_at(monkeypatch, 0.001, epochs=40) == Plan("small", 1006, 40, 0.001)


def test_the_first_length_leaves_time_for_two_doublings(monkeypatch):
    plan = plan_at(monkeypatch, 1.0)
    assert plan == Plan("small", 1006, 12, 1.0)
    assert 7 * plan.epochs <= 96 < 7 * 14


def test_lengths_double_and_the_last_takes_what_time_is_left(clock):
    spent = Budget(100.0, None, began=0.0, epoch_s=1.0, num_parallel=2)
    assert spent.longer(40, num_trials=2) == 80
    clock[0] = 20.0
    assert spent.longer(40, num_trials=2) == 68  # nine tenths of the 76 s that are left
    clock[0] = 40.0
    assert spent.longer(40, num_trials=2) is None
    assert Budget(None, 8, began=0.0, num_ended=2).longer(40, num_trials=2) == 80
    assert Budget(None, 8, began=0.0, num_ended=4).longer(40, num_trials=2) is None


def test_no_budget_is_refused_and_what_is_left_out_is_reported(monkeypatch):
    rows = plan_at(monkeypatch, 45.0)  # two fifths of 96 s for three epochs: a part of the rows
    assert (rows.num_rows, rows.epochs, rows.epoch_s) == (286, 3, pytest.approx(12.8, rel=0.01))
    assert rows.given_up == ("720 of 1,006 train images",)
    least = plan_at(monkeypatch, 100_000.0)
    assert (least.num_rows, least.epochs) == (200, 1)


def test_a_large_model_is_given_up_before_rows_are(monkeypatch):
    plan = plan_at(monkeypatch, {"resnet18": 500.0, "small": 0.5}, model="resnet18")
    assert (plan.model, plan.num_rows, plan.epochs) == ("small", 1006, 20)
    assert "the model resnet18" in plan.given_up[0]
    kept = plan_at(monkeypatch, {"resnet18": 10.0, "small": 0.5}, model="resnet18")
    assert (kept.model, kept.given_up) == ("resnet18", ())


def test_epochs_that_were_asked_for_are_kept_if_they_fit(monkeypatch):
    assert plan_at(monkeypatch, 0.5, epochs=40).epochs == 40
    short = plan_at(monkeypatch, 3.0, epochs=40)
    assert (short.epochs, short.given_up) == (12, ("28 of 40 epochs",))


def test_a_plan_that_is_too_slow_loses_epochs_then_rows():
    plan, noun = Plan("small", 1000, 8, 1.0), Noun("image", "images")
    assert smaller(plan, noun, part=0.5, left=0.5) == Plan("small", 1000, 2, 1.0)
    less = smaller(plan, noun, part=0.1, left=0.5)  # 0.4 of an epoch
    assert (less.epochs, less.num_rows, less.given_up) == (1, 400, ("600 of 1,000 train images",))
    assert smaller(plan, noun, part=0.0, left=0.0).num_rows == 200  # not one epoch, and no time


def test_counted_trials_are_not_timed(monkeypatch):
    monkeypatch.setattr(budget, "probe", None)
    assert make_plan(ask(num_trials=20), Pool()) == Plan("small", 1006, 20)
    assert make_plan(ask(num_trials=20, epochs=60), Pool()) == Plan("small", 1006, 60)


def test_the_plan_is_what_is_trained():
    request = apply_plan(ask(model="resnet18"), Plan("small", 300, 4))
    assert (request.plain.model, request.plain.epochs) == ("small", 4)
    assert abs(len(request.data.splits["train"]) - 300) <= 5
    assert len(request.data.splits["test"]) == 539


def test_fewer_rows_keep_every_class_at_its_share():
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    data = DataSet("made", ("a", "b", "c"), {"train": Split(torch.arange(1000.0)[:, None], labels)}, "made")
    less = fewer_rows(data, 0.1, ["train"])
    assert np.bincount(less.splits["train"].labels).tolist() == [90, 9, 1]
    assert less.fingerprint != data.fingerprint
    assert fewer_rows(data, 1.0) is data


def test_the_probe_measures_an_epoch_and_keeps_its_time(monkeypatch):
    request, passed, sizes = ask(budget="100s"), [0.0], []

    def train(trials, data, device, *, training, pool, workers):
        num = len(data.splits["train"])
        sizes.append(num)
        passed[0] += 0.1 + 0.001 * num * training.epochs
        assert len(trials) == workers == 2  # as they will train: side by side
        return [types.SimpleNamespace(wall_s=0.1 + 0.001 * num * training.epochs) for _ in trials]

    monkeypatch.setattr(budget, "train", train)
    monkeypatch.setattr(budget.time, "monotonic", lambda: passed[0])
    assert budget.probe(request, request.plain, 10.0, Pool(), 2) == pytest.approx(1.006, rel=0.05)
    assert passed[0] < 10.0
    assert sizes[:3] == [8, 8, 32]


def test_the_pace_is_that_of_the_latest_trials(clock):
    spent = Budget(100.0, None, began=0.0, epoch_s=5.0, num_parallel=2)
    assert spent.rounds_s(epochs=4, num_trials=3) == 40.0
    spent.record_end(8.0, epochs=4)
    assert spent.epoch_s == 2.0
    spent.record_end(40.0, epochs=4)
    spent.record_end(12.0, epochs=4)
    assert spent.epoch_s == 3.0  # the median
    for _ in range(8):
        spent.record_end(4.0, epochs=4)
    assert spent.epoch_s == 1.0
    clock[0] = 50.0
    assert spent.trials_left(epochs=4) == 22  # 46 s of 4 s on each of two cores
    assert spent.fits(4, 22)
    assert not spent.fits(4, 23)
    assert (spent.left_s(), spent.part_done()) == (50.0, 0.5)


def test_time_before_this_call_counts_and_a_slow_machine_keeps_more_for_the_page(clock):
    spent = Budget(100.0, None, began=0.0, spent_s=30.0)
    assert (spent.passed_s(), spent.end_s()) == (30.0, 96.0)
    spent.slowness = 10.0  # 30 s, of which 18 may come late
    assert spent.end_s() == 88.0
    spent.epoch_s, spent.scoring = 40.0, 0.5
    assert spent.end_s() == 68.0


def test_counted_trials_have_no_deadline():
    counted = Budget(None, 20, began=0.0, num_ended=5)
    assert (counted.end_s(), counted.left_s(), counted.part_done()) == (float("inf"), None, 0.25)
    assert (counted.trials_left(60), counted.fits(60, 5, 0.5), counted.fits(60, 6, 0.5)) == (15, True, False)


def test_a_slow_machine_starts_no_workers_and_leaves_the_page_for_later(clock):
    spent = Budget(100.0, None, began=0.0)
    assert spent.has_time_for(3.5, 0.3)
    spent.slowness = 9.0
    assert not spent.has_time_for(3.5, 0.3)
    clock[0] = 108.0
    assert not spent.is_late
    clock[0] = 110.0
    assert spent.is_late
    assert not Budget(None, 9, began=0.0).is_late


def test_a_first_length_that_takes_too_long_is_planned_anew(clock, tmp_path, monkeypatch):
    request, seen = replace(ask(budget="100s"), out=tmp_path), []
    journal = Journal(tmp_path, {"spent_s": 0.0, "plan": vars(Plan("small", 1006, 8, 1.0))})
    trainer = Trainer(request, Budget(100.0, None, began=0.0), None, lambda: False, Pool())
    stages = Stages(request, journal, trainer)

    def train_out():
        seen.append((stages.request.plain.epochs, len(stages.request.data.splits["train"])))
        if len(seen) == 1:
            clock[0] = 60.0
            raise TooSlow(part=0.1, spent_s=60.0)

    monkeypatch.setattr(stages, "_train_out", train_out)
    for stage in ("_race", "_finals", "hand_over"):
        monkeypatch.setattr(stages, stage, lambda **_: None)
    stages.run()
    assert seen[0] == (8, 1006)
    assert seen[1][0] == 1  # 0.8 epochs in 60 s: a part of the rows in the 36 s that are left
    assert abs(seen[1][1] - 0.8 * 0.9 * 36 / 60 * 1006) < 6
    assert trainer.request is stages.request
    assert "train images" in journal.get("given_up")[0]


def test_a_first_length_has_three_fifths_of_the_time(clock, tmp_path, monkeypatch):
    trainer = Trainer(
        replace(ask(budget="100s"), out=tmp_path), Budget(100.0, None, began=0.0), None, lambda: False, Pool()
    )
    stages, asked = Stages(trainer.request, Journal(tmp_path, {"spent_s": 0.0}), trainer), []

    def train(settings, seeds, until_s, *, least, weights):
        asked.append((until_s, least))
        clock[0] = until_s

    run = types.SimpleNamespace(train=train, rows=lambda setting: [], folder=tmp_path / "plain")
    run.folder.mkdir()
    monkeypatch.setattr(stages, "_run_of", lambda names, epochs: run)
    with pytest.raises(TooSlow) as slow:
        stages._train_out()
    assert asked == [(pytest.approx(0.6 * 96), 0)]
    assert slow.value.spent_s == pytest.approx(0.6 * 96)
    assert not run.folder.exists()
