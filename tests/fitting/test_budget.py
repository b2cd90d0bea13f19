"""What a fit does with its time, by a clock that only trials move."""

import contextlib
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from camri.cli import fit_view
from camri.errors import InputError
from camri.fitting import fit, job, plan, trainer
from camri.fitting.outputs import few_seeds
from camri.fitting.plan import POOL_START_S, RECENT, Budget, Pace, Race
from camri.report.page import render
from camri.study import executor
from camri.study.reader import RunReader
from tests.fitting.conftest import interrupt, told

WORKERS = trainer.Trainer._workers  # as it is before a fixture replaces it
PLANNED_S = 1.0  # what a trial is expected to take


@dataclass
class Clock:
    """A clock that stands still but for trials, which take `trial_s(now)` seconds, and starts of calls."""

    now: float = 0.0
    start_s: float = 0.5
    trial_s: object = lambda now: PLANNED_S
    ended: list = field(default_factory=list)
    after: dict = field(default_factory=dict)  # number of outcomes -> what is called then

    def seconds(self):
        return self.now


@pytest.fixture
def clock(monkeypatch, in_this_process, without_files):
    clock, real = Clock(), executor.train_job
    fake = SimpleNamespace(monotonic=clock.seconds, process_time=clock.seconds)
    for module in (plan, trainer, job):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(trainer, "num_cores", lambda: 1)
    monkeypatch.setattr(plan, "measure_epoch_s", lambda request, training: PLANNED_S / training.epochs)

    def train_job(trials, job, hooks, pool=None):
        clock.now += clock.start_s

        def ended(outcome):
            took = clock.trial_s(clock.now)
            clock.now += took
            clock.ended.append((job.training.key, outcome.trial.setting.key, outcome.trial.seed))
            hooks.on_outcome(replace(outcome, device_s=took))
            clock.after.get(len(clock.ended), lambda: None)()

        return real(trials, job, replace(hooks, on_outcome=ended), pool)

    monkeypatch.setattr(executor, "train_job", train_job)
    return clock


def fit_in(rows, out, budget_s=180.0):
    return fit(rows, "storm", out, budget_s=budget_s, epochs=1, device="cpu")


def decided(out):
    return json.loads((out / "fit.json").read_text())


def slower_from(when, factor):
    return lambda now: PLANNED_S * (factor if now >= when else 1.0)


def test_at_the_expected_pace_the_finals_have_the_planned_seeds_in_time(clock, rows, tmp_path):
    found = fit_in(rows, tmp_path)
    plan_of = decided(tmp_path)
    assert plan_of["planned_final_seeds"] == 11
    assert found.num_seeds >= 11
    assert clock.now <= 163.0  # 180 s less a tenth for model and page, and the trial that was going on
    assert plan_of["trainings"] == ["plain", "smoothed", "averaged", "all"]
    assert plan_of["race"] == [28, 3]
    assert plan_of["packs"] == [8, 8, 8, 4, 0]
    assert plan_of["rounds"] == 4
    assert "the finals had" not in found.answer


@pytest.mark.parametrize(
    ("when", "factor", "num_seeds", "num_trainings", "packs", "rounds"),
    [
        (0, 2.0, 10, 1, [8, 1, 0], 2),  # from the start: fewer trainings, candidates and rounds
        (20, 2.0, 12, 4, [8, 0], 1),
        (60, 2.0, 11, 4, [8, 8, 8, 4, 0], 1),
        (0, 4.0, 7, 1, [4, 0], 1),  # 40 trials in all: ten seeds of four arms are no longer to be had
    ],
)
def test_where_trials_turn_out_slower_the_search_is_cut_and_not_the_finals(
    clock, rows, tmp_path, when, factor, num_seeds, num_trainings, packs, rounds
):
    clock.trial_s = slower_from(when, factor)
    found = fit_in(rows, tmp_path)
    plan_of = decided(tmp_path)
    assert (found.num_seeds, len(plan_of["trainings"])) == (num_seeds, num_trainings)
    assert (plan_of["packs"], plan_of["rounds"]) == (packs, rounds)
    assert found.num_settings == sum(packs)
    assert clock.now <= 162.0 + factor
    said = f"Caution: the finals had {num_seeds} seeds of 11 planned, as trials took longer than was measured at first;"
    assert (said in found.answer) == (num_seeds < 10)


def test_a_round_is_broken_off_where_the_finals_time_begins(clock, rows, tmp_path):
    """Four times slower in the middle of the second round: its seeds count for no candidate."""
    clock.after = {52: lambda: setattr(clock, "trial_s", lambda now: 4.0)}
    found = fit_in(rows, tmp_path)
    plan_of = decided(tmp_path)
    second = sum(seed == 1 and setting != clock.ended[0][1] for _, setting, seed in clock.ended)
    assert plan_of["rounds"] == 1
    assert 0 < second < 14
    assert found.num_seeds == plan_of["final_seeds"] == 5
    assert clock.now <= 162.0 + 4.0


def test_time_that_ends_in_the_finals_ends_them_with_the_seeds_that_are_complete(clock, rows, tmp_path):
    clock.after = {108: lambda: setattr(clock, "trial_s", lambda now: 6.0)}
    found = fit_in(rows, tmp_path)
    plan_of = decided(tmp_path)
    assert clock.now <= 162.0 + 6.0
    assert (found.finished, found.num_seeds, plan_of["final_seeds"]) == (True, 7, 7)
    assert "the finals had 7 seeds of 11 planned" in found.caution

    # Asked again, it trains nothing and tells the same.
    num = len(clock.ended)
    assert told(fit_in(rows, tmp_path)) == told(found)
    assert len(clock.ended) == num

    # Less time is another request; more goes on with new seeds of the same finalists.
    with pytest.raises(InputError, match=r"another request \(budget in seconds 180.0, and not 100.0\)"):
        fit_in(rows, tmp_path, budget_s=100.0)
    clock.after, clock.trial_s = {}, lambda now: PLANNED_S
    more = fit_in(rows, tmp_path, budget_s=600.0)
    assert len(clock.ended) == len(set(clock.ended))
    assert (more.num_seeds, more.num_settings) == (20, found.num_settings)
    assert decided(tmp_path)["finalists"] == plan_of["finalists"]
    assert "the finals had" not in more.answer


@pytest.mark.parametrize("num_before", [3, 23, 30, 55, 90])
def test_a_budgeted_fit_that_is_stopped_goes_on_and_trains_nothing_twice(clock, rows, tmp_path, num_before):
    clock.after = {num_before: interrupt}
    with contextlib.suppress(job.Unfinished):
        fit_in(rows, tmp_path)
    assert len(clock.ended) == num_before
    packs = decided(tmp_path).get("packs", [])
    found = fit_in(rows, tmp_path)
    assert len(clock.ended) == len(set(clock.ended)) == found.num_trials
    assert decided(tmp_path)["packs"][: len(packs)] == packs
    assert (found.finished, found.num_seeds >= 10, clock.now <= 163.0) == (True, True, True)


def test_two_seeds_are_shown_without_intervals_and_said_to_be_too_few(clock, rows, tmp_path, capsys):
    clock.trial_s = lambda now: 15.0
    found = fit_in(rows, tmp_path)
    assert (found.num_seeds, found.has_intervals, found.gain_is_shown, found.accuracy_fell) == (2, False, False, False)
    said = (
        "the finals had 2 seeds of 11 planned, as trials took longer than was measured at first, which is too few for "
        "intervals: what was gained may be chance; the same command with a larger --budget goes on"
    )
    assert said in found.caution
    assert f"Caution: {said}" in found.answer
    first, second, *_ = found.answer.splitlines()
    assert "points (no interval of 2 models); hits" in first
    assert second.endswith("points (no interval of 2 models).")
    fit_view.print_fitted(found)
    shown = capsys.readouterr().out
    assert "; of 2 models there is no interval to tell." in shown
    assert "[..]" not in shown
    table = shown.partition("Points of a hundred")[0]
    assert "[" not in table
    with RunReader(tmp_path) as reading:
        notes = reading.run.note("steps")
        page = render(reading)
        answer = reading.run.note("answer")
    assert said in page
    assert answer["kind"] == "none"
    assert notes[0]["recall_gain"] is None
    for note, step in zip(notes[1:], found.steps[1:], strict=True):
        assert note["recall_gain"] == {"estimate": step.recall_gain.estimate, "low": None, "high": None}
        assert note["accuracy_gain"] == {"estimate": step.accuracy_gain.estimate, "low": None, "high": None}
    card = (found.model_path / "README.md").read_text()
    assert "points (no interval of 2 models) |" in card
    assert said in card


def test_few_seeds_are_told_with_what_to_do():
    assert few_seeds(10, 20, "go on") is None
    assert few_seeds(5, 0, "go on") is None
    late = "as trials took longer than was measured at first"
    assert few_seeds(9, 20, "go on") == f"the finals had 9 seeds of 20 planned, {late}; go on"
    assert few_seeds(4, 4, "go on") == "the finals had 4 seeds, and intervals of so few are wide; go on"
    assert few_seeds(4, 20, "go on") == (
        f"the finals had 4 seeds of 20 planned, {late}, and intervals of so few are wide; go on"
    )


def test_the_pace_is_that_of_the_latest_trials():
    pace = Pace(1, expected_s=3.0)
    assert (pace.trial_s, pace.takes_s(4), pace.affords(10.0)) == (3.0, 12.0, 3)
    pace.recent.extend([1.0] * RECENT)
    assert pace.affords(10.0) == 10
    pace.recent.extend([2.0] * (RECENT // 2 + 1))
    assert pace.affords(10.0) == 5
    pace.hear([2.0, 2.0, 5.0], width=1, wall_s=12.0)  # two seconds each, and six that the trials do not explain
    assert (pace.call_s, pace.takes_s(3, num_calls=2), pace.affords(22.0, num_calls=2)) == ({1: 6.0}, 18.0, 5)
    assert (Pace(2).width(5), Pace(2).affords(100.0)) == (None, 0)


def test_processes_are_started_where_they_pay_and_once():
    pace = Pace(2, expected_s=0.5)
    assert pace.pool_s == POOL_START_S
    assert [pace.width(num) for num in (9, 11)] == [1, 2]  # half of 11 × 0.5 s is more than 2.5 s
    assert [pace.takes_s(num) for num in (9, 11)] == [4.5, 5.25]
    assert (pace.takes_s(20), pace.takes_s(20, num_calls=3)) == (7.5, 7.5)
    pace.slowness = 4.0  # then starting takes longer, too
    assert (pace.pool_s, [pace.width(num) for num in (39, 41)]) == (10.0, [1, 2])
    pace.hear([0.5] * 8, width=1, wall_s=4.0)
    assert pace.pool_s == 10.0
    pace.hear([0.5] * 8, width=2, wall_s=22.0)  # with the start
    assert (pace.pool_s, pace.call_s, pace.width(2), pace.takes_s(8, num_calls=3)) == (0.0, {1: 0.0, 2: 0.0}, 2, 2.0)
    pace.hear([0.5] * 8, width=2, wall_s=3.0)
    assert (pace.call_s, pace.width(2), pace.takes_s(80, num_calls=3)) == ({1: 0.0, 2: 1.0}, 1, 23.0)
    pace.hear([0.5] * 8, width=2, wall_s=1.5)  # it took less than its trials explain
    assert pace.call_s[2] == 0.0


@pytest.mark.parametrize(("num_left", "workers"), [(2, 1), (9, 1), (11, None)])
def test_all_trials_that_are_left_may_pay_for_processes(num_left, workers):
    shop = SimpleNamespace(pace=Pace(2, expected_s=0.5), total=100 + num_left, ended=100)
    assert WORKERS(shop, num_trials=2) == workers


def test_a_slow_machine_keeps_more_time_for_the_page(monkeypatch):
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: 130.0))
    request = SimpleNamespace(budget_s=100.0, num_trials=None)
    pace = Pace(1, expected_s=1.0)
    left = Budget(request, pace, spent_s=5.0, count=lambda: 0, began=120.0)
    assert (left.passed_s(), left.left_s(), left.left(num_calls=1)) == (15.0, 75.0, 75)
    pace.slowness = 2.5
    assert left.left_s() == 65.0  # 20 s for the page
    pace.slowness = 50.0
    assert left.left_s() == 45.0  # never more than two fifths


def test_a_race_tells_its_trials_and_calls():
    race = Race(18, 3)
    assert race.rounds() == [18, 9, 5]
    assert (race.num_trials(3), race.num_trials(1), race.num_calls(8)) == (32, 34, 5)
    assert plan.largest_race(3, lambda race: race.num_candidates <= 7) == Race(7, 3)
    assert plan.largest_race(3, lambda race: False) == Race(3, 3)
