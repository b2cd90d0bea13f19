"""What a fit does with its time, by a clock that only trials move."""

import contextlib
import json
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from camri.cli import fit_view
from camri.errors import InputError
from camri.fitting import budget, fit, job, trainer
from camri.fitting.budget import Budget, Race, plan_finals, plan_trials
from camri.fitting.outputs import few_seeds
from camri.report.page import render
from camri.study import executor
from camri.study.reader import RunReader
from tests.fitting.conftest import facts, interrupt

WORKERS = trainer.Trainer._workers  # as it is before a fixture replaces it
PLANNED_S = 1.0  # what a trial is expected to take
END_S = 162.0  # of 180 s a tenth is kept for the model and the page


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
    for module in (budget, trainer, job):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(trainer, "num_cores", lambda: 1)
    monkeypatch.setattr(budget, "measure_epoch_s", lambda request: PLANNED_S / request.plain.epochs)

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


def fit_in(rows, out, seconds=180.0):
    return fit(rows, "storm", out, budget=seconds, epochs=1, device="cpu")


def decided(out):
    return json.loads((out / "fit.json").read_text())


def test_at_the_expected_pace_the_finals_have_the_planned_seeds_in_time(clock, rows, tmp_path):
    found = fit_in(rows, tmp_path)
    plan = decided(tmp_path)
    assert found.evidence.num_seeds >= plan["planned_final_seeds"] - 1 >= 9
    assert END_S - 10 <= clock.now <= END_S + 1  # the trial that was running may end
    assert plan["trainings"] == ["plain", "smoothed", "averaged", "all"]
    assert found.effort.num_settings == plan["race"][0] >= 20
    assert not any("the finals had" in caution for caution in found.cautions)


@pytest.mark.parametrize(("when", "factor", "least_seeds"), [(20, 2.0, 6), (0, 4.0, 4)])
def test_slower_trials_cut_every_stage_and_the_deadline_holds(clock, rows, tmp_path, when, factor, least_seeds):
    clock.trial_s = lambda now: PLANNED_S * (factor if now >= when else 1.0)
    found = fit_in(rows, tmp_path)
    assert found.evidence.num_seeds >= least_seeds
    assert found.effort.num_settings < 28
    assert clock.now <= END_S + factor


def test_a_round_is_broken_off_where_the_finals_time_begins(clock, rows, tmp_path):
    """Four times slower in the middle of the second round: its seeds count for no candidate."""
    clock.after = {52: lambda: setattr(clock, "trial_s", lambda now: 4.0)}
    found = fit_in(rows, tmp_path)
    second = sum(seed == 1 and setting != clock.ended[0][1] for _, setting, seed in clock.ended)
    assert 0 < second < 14
    assert found.evidence.num_seeds == decided(tmp_path)["final_seeds"] >= 4
    assert clock.now <= END_S + 4.0


def test_time_that_ends_in_the_finals_ends_them_with_the_seeds_that_are_complete(clock, rows, tmp_path):
    clock.after = {100: lambda: setattr(clock, "trial_s", lambda now: 12.0)}
    found = fit_in(rows, tmp_path)
    plan = decided(tmp_path)
    assert clock.now <= END_S + 12.0
    assert found.finished
    assert 2 <= plan["final_seeds"] < plan["planned_final_seeds"]
    assert found.evidence.num_seeds >= plan["final_seeds"]  # more where cross-entropy is chosen, which trains first
    with RunReader(tmp_path) as reading:
        assert reading.progress().is_finished
        assert "Not finished" not in render(reading)

    # Asked again, it trains nothing and says the same.
    num = len(clock.ended)
    assert facts(fit_in(rows, tmp_path)) == facts(found)
    assert len(clock.ended) == num

    # Less time is another request; more resumes with new seeds of the same finalists.
    with pytest.raises(InputError, match=r"another fit \(budget_s 180.0, not 100.0\)"):
        fit_in(rows, tmp_path, 100.0)
    clock.after, clock.trial_s = {}, lambda now: PLANNED_S
    more = fit_in(rows, tmp_path, 600.0)
    assert len(clock.ended) == len(set(clock.ended))
    assert (more.evidence.num_seeds, more.effort.num_settings) == (20, found.effort.num_settings)
    assert decided(tmp_path)["finalists"] == plan["finalists"]


@pytest.mark.parametrize("num_before", [3, 40, 90])  # among trainings, candidates, finals
def test_a_budgeted_fit_that_is_stopped_resumes_and_trains_nothing_twice(clock, rows, tmp_path, num_before):
    clock.after = {num_before: interrupt}
    with contextlib.suppress(job.Unfinished):
        fit_in(rows, tmp_path)
    assert len(clock.ended) == num_before
    found = fit_in(rows, tmp_path)
    assert len(clock.ended) == len(set(clock.ended)) == found.effort.num_trials
    assert (found.finished, found.evidence.num_seeds >= 9, clock.now <= END_S + 1.0) == (True, True, True)


def test_two_seeds_are_shown_without_intervals_and_with_a_caution(clock, rows, tmp_path, capsys):
    clock.trial_s = lambda now: 15.0
    found = fit_in(rows, tmp_path)
    assert (found.evidence.num_seeds, found.evidence.has_intervals) == (2, False)
    assert (found.evidence.gain_is_shown, found.accuracy_dropped) == (False, False)
    caution = found.cautions[0]
    assert "2 seeds of" in caution
    assert "larger --budget" in caution
    assert f"Caution: {caution}." in found.answer.splitlines()
    assert "CI" not in found.answer.splitlines()[2]
    fit_view.print_fitted(found)
    shown = capsys.readouterr().out
    assert "no intervals with 2 seeds" in shown
    with RunReader(tmp_path) as reading:
        steps, page, answer = reading.run.note("steps"), render(reading), reading.run.note("answer")
    assert caution in page
    assert answer["kind"] == "none"
    assert not any("[" in cell for row in steps["rows"] for cell in row[1:])
    assert "recall_gain_low" not in steps["records"][-1]
    assert steps["records"][-1]["recall_gain_estimate"] == found.evidence.gains.recall.value
    assert caution in (found.model_path / "README.md").read_text()


def test_few_seeds_are_a_caution_with_what_to_do():
    assert few_seeds(5, 20) == []
    (text,) = few_seeds(4, 20)
    assert "4 seeds of 20 planned" in text
    assert "larger --budget" in text
    (text,) = few_seeds(4, 4)
    assert "planned" not in text
    assert "too few for intervals" in few_seeds(2, 4)[0]


def made_budget(monkeypatch, seconds=100.0, **options):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now.s))
    return Budget(seconds, None, began=0.0, **options), now


def test_the_pace_is_that_of_the_latest_trials_with_all_overhead(monkeypatch):
    made, now = made_budget(monkeypatch, expected_s=3.0)
    assert (made.trial_s, made.trials_left()) == (3.0, 30)
    for _ in range(budget.RECENT):
        now.s += 1.0
        made.record_end()
    assert (made.trial_s, made.num_ended, made.trials_left()) == (1.0, 8, 82)
    now.s += 9.0  # eight seconds between two calls count
    made.record_end()
    assert made.trial_s == 2.0
    assert made.fits(10, until_s=37.0)
    assert not made.fits(11, until_s=37.0)
    assert made.fits(10**6, math.inf)


def test_time_before_this_call_counts_and_a_slow_machine_keeps_more_for_the_page(monkeypatch):
    made, now = made_budget(monkeypatch, expected_s=1.0, spent_s=5.0)
    now.s = 10.0
    assert (made.passed_s(), made.end_s(), made.trials_left(), made.left_s()) == (15.0, 90.0, 75, 85.0)
    made.slowness = 2.5
    assert made.end_s() == 80.0  # 20 s for the page
    made.slowness = 50.0
    assert (made.end_s(), made.end_s(0.5)) == (60.0, 30.0)  # never more than two fifths


def test_counted_trials_have_no_deadline():
    made = Budget(None, 20, began=0.0, num_ended=15)
    assert (made.end_s(), made.trials_left(), made.trial_s, made.left_s()) == (math.inf, 5, None, None)


@pytest.mark.parametrize(
    ("num_left", "has_pool", "workers"), [(2, False, 1), (9, False, 1), (11, False, None), (2, True, None)]
)
def test_processes_are_started_where_they_pay_and_once(monkeypatch, num_left, has_pool, workers):
    """Half of 11 × 0.5 s is more than the 2.5 s that they take to start."""
    monkeypatch.setattr(trainer, "num_cores", lambda: 2)
    left = SimpleNamespace(trials_left=lambda: num_left, slowness=1.0)
    made = SimpleNamespace(is_cpu=True, alone_s=0.5, pool=SimpleNamespace(wall_s=float(has_pool)), budget=left)
    assert WORKERS(made, num_trials=2) == workers


def test_plans_spend_what_there_is():
    for num in range(16, 400, 7):
        plan = plan_trials(num, num_trainings=5)
        spent = plan.num_trainings * plan.training_seeds
        assert spent <= 0.2 * num
        assert plan_trials(num - spent, training_seeds=plan.training_seeds).race == plan.race
        searched = plan.race.num_trials(plan.training_seeds)
        assert plan.race.num_candidates == 4 or searched <= 0.4 * (num - spent)
        assert num - spent - searched >= 2 * 4  # two seeds of cross-entropy, plain too, a finalist and its control
        assert plan.final_seeds == plan_finals(num - spent - searched, plan.race.num_finalists + 3)
    assert [plan_trials(num).race.num_finalists for num in (49, 50, 159, 160)] == [2, 3, 3, 4]


def test_a_race_counts_its_trials():
    race = Race(18, 3)
    assert race.rounds() == [18, 9, 5]
    assert (race.num_trials(3), race.num_trials(1)) == (32, 34)
