"""How a fit's baseline grows, with runs whose accuracy is made up and a clock that the tests move."""

from dataclasses import replace

import pytest

from camri.engine import Pool
from camri.fitting import baseline
from camri.fitting.baseline import Baseline
from camri.fitting.budget import Budget
from camri.fitting.trainer import Trainer
from tests.fitting.test_budget import clock as clock
from tests.fitting.test_request import ask

STEP = 0.01  # of accuracy: a rise that counts


class Made:
    """A run of made accuracy; training it moves the clock."""

    def __init__(self, world, names, epochs):
        self.world, self.folder, self.names, self.epochs = world, "+".join(names) + f"-{epochs}", tuple(names), epochs

    def train(self, points, seeds, until_s, *, weights, least=0):
        world = self.world
        if self.folder in world.known:
            return True
        world.trained.append((self.names, self.epochs))
        took_s = self.epochs * world.cost.get(self.names[-1:] and self.names[-1], 1.0)
        ends_s = min(world.clock[0] + took_s, until_s)
        is_complete, world.clock[0] = ends_s == world.clock[0] + took_s, ends_s
        world.known |= {self.folder} if is_complete else set()
        for _ in seeds:
            world.budget.record_end(took_s, self.epochs)
        return is_complete

    def rows(self, setting):
        return []

    def column(self):
        return ((1, 1.0),)

    def models(self, setting, important):
        return [self.world.accuracy(self.names, self.epochs)] if self.folder in self.world.known else []

    def has_learnt(self, models):
        return self.world.learnt


class World:
    def __init__(self, accuracy, clock, budget_s=1000.0, num_trials=None, known=(), learnt=True, **asked):
        self.accuracy, self.clock, self.known, self.learnt = accuracy, clock, set(known), learnt
        self.trained, self.cost = [], {}
        timed = {"budget": budget_s} if num_trials is None else {"num_trials": num_trials}
        request = ask(**timed, **asked)
        if "epochs" not in asked:  # as a plan has it
            request = replace(request, plain=request.plain.with_(epochs=20))
        self.budget = Budget(request.budget_s, num_trials, began=0.0, epoch_s=1.0, num_parallel=2)
        trainer = Trainer(request, self.budget, None, lambda: False, Pool())
        self.baseline = Baseline(trainer, lambda names, epochs: Made(self, names, epochs), range(10), None)
        self.first = self.baseline.epochs

    def run(self):
        self.baseline.train_out()
        return [(names, epochs / self.first) for names, epochs in self.trained]


@pytest.fixture(autouse=True)
def made(monkeypatch):
    monkeypatch.setattr(baseline, "rises", lambda mine, its: bool(mine) and mine[0] > its[0] + STEP)
    monkeypatch.setattr(baseline, "accuracy_of", lambda models: models[0])
    monkeypatch.setattr(baseline, "statuses_of", lambda folders: {})
    monkeypatch.setattr(baseline, "refuse_failures", lambda rows, what, out: None)
    monkeypatch.setattr(Baseline, "_num_missing", lambda self, run: 0 if run.folder in run.world.known else 2)
    monkeypatch.setattr(Made, "rows", lambda self, setting: self.models(setting, []))


def flat(names, epochs):
    return 0.5


def test_what_does_not_help_is_tried_once_and_lengths_end_after_two_that_do_not_help(clock):
    world = World(flat, clock, budget_s=100_000.0)
    assert world.run() == [
        ((), 1), (("smooth",), 1),
        ((), 2),
        *[((name,), 1) for name in ("moved", "wide")],  # smooth was tried at this length; wider only after wide
        ((), 4),
    ]  # fmt: skip
    made = world.baseline
    assert (made.names, made.epochs, made.is_rising) == ([], world.first, False)
    assert [epochs / world.first for epochs, _ in made.lengths] == [1, 2, 4]


def test_a_change_that_helps_stays_and_longer_trainings_follow(clock):
    def accuracy(names, epochs):
        useful = min(epochs / 20, 8 if "moved" in names else 2)  # moved images are worth longer training
        return 0.5 + 0.02 * useful + 0.02 * ("moved" in names)

    world = World(accuracy, clock, budget_s=100_000.0)
    moved = ("moved",)
    assert world.run() == [
        ((), 1), (("smooth",), 1), ((), 2), ((), 4),  # no better than twice the first
        (moved, 2), (moved, 4), (moved, 8), (moved, 16),  # no better than eight times the first
        ((*moved, "wide"), 8), ((*moved, "smooth"), 8),
        (moved, 32),
    ]  # fmt: skip
    assert (world.baseline.names, world.baseline.epochs, world.baseline.is_rising) == (["moved"], 160, False)


def test_all_of_the_time_may_go_to_lengths_that_help(clock):
    world = World(lambda names, epochs: 0.5 + 0.02 * epochs, clock, budget_s=400.0)
    found = world.run()
    assert {names for names, _ in found} == {(), ("smooth",)}
    assert world.baseline.is_rising
    assert clock[0] > 0.7 * 400
    assert world.baseline.epochs == max(epochs for _, epochs in world.trained)


@pytest.mark.parametrize(("budget_s", "lengths"), [(400.0, [1, 2, 4]), (200.0, [1, 2])])
def test_a_second_try_to_train_longer_leaves_half_of_the_time(clock, budget_s, lengths):
    world = World(flat, clock, budget_s=budget_s)
    world.run()
    assert [epochs / world.first for epochs, _ in world.baseline.lengths] == lengths
    assert world.budget.trials_left(world.baseline.epochs) >= 5
    assert not world.baseline.is_rising


@pytest.mark.parametrize(("budget_s", "best"), [(100_000.0, 2), (150.0, 1)])
def test_a_longer_training_that_is_hardly_better_is_taken_if_there_is_plenty_of_time(clock, budget_s, best):
    world = World(lambda names, epochs: 0.5 + STEP / 100 * epochs / 20 - len(names), clock, budget_s=budget_s)
    world.run()
    assert 40 in [epochs for epochs, _ in world.baseline.lengths]
    assert world.baseline.epochs >= best * world.first
    assert (world.baseline.epochs > world.first) == (best > 1)


def test_a_change_takes_no_more_than_a_quarter_of_the_time_that_is_left(clock):
    world = World(flat, clock, budget_s=400.0)
    found = world.run()
    assert (("moved",), 1) in found
    assert (("wide",), 1) not in found  # it may take four times as long
    clock[0] = 0.0
    assert {names for names, _ in World(flat, clock, budget_s=100.0).run()} == {()}  # 76 s are left after the first
    clock[0] = 0.0
    found = World(lambda names, epochs: 0.5 + 0.02 * epochs, clock, budget_s=200.0).run()
    assert {names for names, _ in found} == {()}  # 20 of 174 s are too much for smoothing, the length still rising


def test_a_change_that_takes_too_long_ends_and_keeps_nothing(clock):
    world = World(lambda names, epochs: 0.9 if "moved" in names else 0.5, clock, budget_s=2000.0)
    world.cost["moved"] = 1000.0
    world.run()
    assert "moved" not in world.baseline.names
    assert clock[0] < 2000.0
    assert world.budget.epoch_s == 1.0  # the pace of what is kept


def test_counted_trials_try_changes_while_many_are_left(clock):
    found = World(flat, clock, num_trials=46).run()
    assert [names for names, _ in found] == [(), ("smooth",), (), ("moved",), ()]  # 44, 42 and 40 trials are left


def test_counted_trials_end_at_a_length_although_accuracy_rises(clock):
    world = World(lambda names, epochs: 0.5 + 0.02 * epochs, clock, num_trials=60)
    world.run()
    assert [epochs for names, epochs in world.trained if not names] == [20, 40, 80, 160]  # four times the usual 60: 240
    assert world.baseline.is_rising


def test_epochs_that_were_asked_for_stay_and_changes_are_tried_at_them(clock):
    world = World(lambda names, epochs: 0.5 + 0.1 * len(names), clock, budget_s=100_000.0, epochs=7)
    world.run()
    assert [names for names, _ in world.trained] == [
        (), ("moved",), ("moved", "wide"), ("moved", "wide", "wider"), ("moved", "wide", "wider", "smooth"),
    ]  # fmt: skip
    assert {epochs for _, epochs in world.trained} == {7}
    assert not world.baseline.is_rising


def test_what_was_trained_before_an_interruption_counts_without_time(clock):
    def accuracy(names, epochs):
        return 0.5 + 0.1 * ("smooth" in names)

    world = World(accuracy, clock, budget_s=400.0, known={"-20", "smooth-20"})
    clock[0] = 399.0
    world.run()
    assert world.trained == []
    assert world.baseline.names == ["smooth"]


def test_no_change_is_tried_on_a_baseline_that_has_learnt_nothing(clock):
    found = World(flat, clock, budget_s=100_000.0, learnt=False).run()
    assert {names for names, _ in found} == {()}
