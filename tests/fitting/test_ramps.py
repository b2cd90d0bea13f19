"""Ramps compared with the finalists: which is chosen, who takes part, what it costs, and a whole fit that does so."""

import json
from dataclasses import replace

import numpy as np
import pytest

import camri
from camri.data import hold_out, load
from camri.engine import Training, Trial, train
from camri.fitting import Unfinished, answer, fit, plan, ramps
from camri.fitting.plan import plan_finals, plan_race, plan_ramps, plan_trainings
from camri.fitting.ramps import EARLY, RAMPS, choose_ramp, depends_on_ramp
from camri.methods import setting
from camri.metrics import condense
from camri.report.page import render
from camri.selection import Validation
from camri.study.reader import RunReader
from camri.study.store import open_run
from tests.fitting.conftest import IMPORTANT, interrupt, told, weights_of

LABELS = np.arange(400) % 4
SEEDS = (0, 1, 2)
ASKED = {"num_trials": 44, "epochs": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def digits():
    return hold_out(load("digits"), "val", 0.2, 0)


def made(seed, sharpness=0.0, important=(1,), bias=0.0, hopeless=0.0):
    """Scores of four classes; `sharpness` tells the important ones better apart, in a way that no shift does.

    One image of each important class is taken so much for the others that finding it costs all of them.
    """
    logits = 1.5 * np.eye(4)[LABELS] + np.random.default_rng(seed).normal(size=(len(LABELS), 4))
    for index in important:
        logits[:, index] += bias + sharpness * (index == LABELS)
        logits[index, index] -= hopeless
    return condense(logits, LABELS, important)


def finalists(*sharpness, stream=0, important=(1,), **how):
    """A finalist for each number, with three seeds."""
    return [
        Validation(str(place), {seed: made([stream, place, seed], value, important, **how) for seed in SEEDS})
        for place, value in enumerate(sharpness)
    ]


CE = Validation("ce", {seed: made([9, 0, seed]) for seed in SEEDS})


def test_a_ramp_must_surpass_the_early_one():
    early = finalists(0.0, 0.0)
    better, best = finalists(0.8, 0.8, stream=1), finalists(1.6, 1.6, stream=2)
    assert choose_ramp(CE, {EARLY: early, "late": best, "at once": better}) == "late"
    assert choose_ramp(CE, {EARLY: early, "late": better, "at once": best}) == "at once"
    assert choose_ramp(CE, {EARLY: best, "late": better, "at once": early}) == EARLY
    assert choose_ramp(CE, {EARLY: early, "late": best, "at once": best}) == "late", "of equals the more promising"
    assert choose_ramp(CE, {EARLY: early}) == EARLY
    assert choose_ramp(CE, {EARLY: early, "late": early}) == EARLY


def test_a_hair_better_is_not_enough():
    """One image of 400 more, in one of six models: less than a standard error."""
    early = finalists(0.0, 0.0)
    one = early[0].scores[0]
    wrong = np.flatnonzero(~one.correct() & (LABELS != 1))[:1]
    lead, right = one.lead.copy(), one.rest_right.copy()
    lead[wrong], right[wrong] = -5.0, True
    better = Validation("0", {**early[0].scores, 0: replace(one, lead=lead, rest_right=right)})
    assert better.scores[0].accuracy() == one.accuracy() + 1 / 400
    assert choose_ramp(CE, {EARLY: early, "late": [better, early[1]]}) == EARLY


def test_all_finalists_count_and_not_the_best_alone():
    early = finalists(0.5, 0.5)
    assert choose_ramp(CE, {EARLY: early, "late": finalists(1.5, 1.5, stream=1)}) == "late"
    assert choose_ramp(CE, {EARLY: early, "late": finalists(1.5, -1.5, stream=1)}) == EARLY


def test_a_shift_alone_is_no_reason():
    """Finalists of another bias lie elsewhere on the same curves."""
    assert choose_ramp(CE, {EARLY: finalists(0.0, 0.0), "late": finalists(0.0, 0.0, bias=-1.0)}) == EARLY
    assert choose_ramp(CE, {EARLY: finalists(0.0, 0.0, bias=-1.0), "late": finalists(0.0, 0.0)}) == EARLY


def test_they_are_compared_where_cross_entropy_is_and_not_where_a_finalist_overshot():
    """Where every image of the class is found, all of the others are lost under both ramps."""
    overshot = {"bias": 30.0, "hopeless": 20.0}
    early, late = finalists(0.0, 0.0, **overshot), finalists(1.6, 1.6, stream=1, **overshot)
    found = [scores for one in (*early, *late) for scores in one.scores.values()]
    assert {(scores.recall()[0], scores.accuracy()) for scores in found} == {(1.0, 0.25)}
    assert choose_ramp(CE, {EARLY: early, "late": late}) == "late"


def test_a_ramp_under_which_a_trial_failed_is_passed_over():
    early, late = finalists(0.0, 0.0), finalists(1.6, 1.6, stream=1)
    assert choose_ramp(CE, {EARLY: early, "late": [late[0], late[1].of({0, 1})]}) == EARLY
    # What failed under the early ramp too says nothing about the late one.
    assert choose_ramp(CE, {EARLY: [early[0], early[1].of({0, 1})], "late": late}) == "late"
    assert choose_ramp(CE, {EARLY: [one.of(()) for one in early], "late": late}) == EARLY


def test_without_cross_entropy_there_is_nothing_to_compare_at():
    found = {EARLY: finalists(0.0), "late": finalists(1.6, stream=1)}
    assert choose_ramp(Validation("ce", {}), found) == EARLY


def test_ramps_are_early_late_and_at_once():
    assert RAMPS == {"early": (0.0, 0.3), "late": (0.5, 0.8), "at once": (0.0, 0.0)}
    assert list(RAMPS) == ["early", "late", "at once"]
    assert ramps.describe_ramp("early") == "early (0 to 30 % of the training)"


class FakeBench:
    """A bench that has every trial of five seeds; the fifth, of which nothing was asked, tells another story."""

    def __init__(self, sharpness):
        self.sharpness, self.trained = sharpness, []

    def train(self, points, seeds, step):
        self.trained.append((list(points), list(seeds), step))

    def validation(self, one, important):
        assert important == [1]
        sharpness = 0.0 if one.method == "ce" else self.sharpness
        scores = {seed: made([seed, one.method == "ce"], sharpness) for seed in SEEDS}
        return Validation(one.key, {**scores, 4: made(4, -9.0)})


def test_finalists_are_trained_under_every_ramp_but_the_early_one_and_compared_with_the_race_s_seeds():
    points = [("camri", (0.2, 8.0)), ("cosface", (0.1, 8.0))]
    benches = {EARLY: FakeBench(0.0), "late": FakeBench(0.8), "at once": FakeBench(1.6)}
    assert ramps.compare_ramps(benches, points, ((1, 1.0),), SEEDS) == "at once"
    trained = {name: bench.trained for name, bench in benches.items()}
    asked = {name: [(points, list(SEEDS), f"ramps: {name}")] for name in ("late", "at once")}
    assert trained == {EARLY: [], **asked}


def test_ramps_are_judged_by_the_early_bench_s_cross_entropy_and_the_race_s_seeds_alone(monkeypatch):
    heard = []
    monkeypatch.setattr(ramps, "choose_ramp", lambda baseline, reached: heard.append((baseline, reached)))
    points = [("camri", (0.2, 8.0)), ("cosface", (0.1, 8.0))]
    benches = {EARLY: FakeBench(0.0), "late": FakeBench(0.8)}
    ramps.compare_ramps(benches, points, ((1, 1.0),), SEEDS)
    ((baseline, reached),) = heard
    assert (baseline.key, sorted(baseline.scores)) == (setting("ce").key, [0, 1, 2])
    assert {name: [sorted(one.scores) for one in ones] for name, ones in reached.items()} == {
        EARLY: [[0, 1, 2]] * 2,
        "late": [[0, 1, 2]] * 2,
    }
    recalls = [[one.scores[0].recall()[0] for one in ones] for ones in reached.values()]
    assert recalls[0] == [made([0, 0], 0.0).recall()[0]] * 2
    assert recalls[1] == [made([0, 0], 0.8).recall()[0]] * 2


def test_several_important_classes_need_not_all_be_reached():
    """Of two important classes no shift finds all images: recalls end where the worst model does."""
    both = (1, 2)
    early, late = finalists(0.0, 0.0, important=both), finalists(1.6, 1.6, stream=1, important=both)
    ce = Validation("ce", {seed: made([9, 0, seed], 3.0, both) for seed in SEEDS})
    assert choose_ramp(ce, {EARLY: early, "late": late}) == "late"


def test_only_losses_with_parameters_of_training_take_part(digits):
    depending = {
        "camri": {"m": 0.2, "s": 8.0},
        "cosface": {"m": 0.2, "s": 8.0},
        "ldam": {"m": 0.2, "max_m": 0.5, "s": 8.0},
        "logit_adjusted": {"d": 1.0, "tau": 0.0},
        "vector_scaling": {"delta": 0.8, "d": 0.0},
    }
    for name, knobs in depending.items():
        assert depends_on_ramp(setting(name, 9, **knobs), digits), name
    for one in (
        setting("ce"),
        setting("wce", 9, w=4.0),
        setting("l2softmax", s=8.0),
        setting("camri", 9, m=0.0, s=8.0),
        setting("vector_scaling", 9, delta=1.0, d=0.0),
    ):
        assert not depends_on_ramp(one, digits), one


def test_what_has_none_trains_the_same_under_every_ramp(digits):
    """So cross-entropy need not be repeated, and plain cross-entropy stays what gains are claimed over."""
    settings = [setting("ce"), setting("wce", 9, w=4.0), setting("l2softmax", s=8.0), setting("camri", 9, m=0.4, s=8.0)]
    trials = [Trial(one, 0) for one in settings]
    found = [
        train(trials, digits, "cpu", training=Training(model="small", epochs=1, ramp=ramp), important=[9], workers=1)
        for ramp in RAMPS.values()
    ]
    for place, one in enumerate(settings):
        same = {outcomes[place].scores["val"].lead.tobytes() for outcomes in found}
        assert len(same) == (3 if one.method == "camri" else 1), one


def test_other_ramps_are_tried_where_the_finals_keep_enough():
    def tried(num, num_arms):
        trainings = plan_trainings(num, 5)
        left = num - trainings.num * trainings.num_seeds
        race = plan_race(left, trainings.num_seeds)
        rounds = race.rounds()
        left -= sum(rounds) + max(0, len(rounds) - trainings.num_seeds)
        found = plan_ramps(left, 2, race.num_finalists, len(rounds), num_arms)
        return found, plan_finals(left - found * race.num_finalists * len(rounds), num_arms)

    for num_arms in (4, 5, 6):
        plans = {num: tried(num, num_arms) for num in range(16, 600)}
        assert {plans[num][0] for num in range(16, 90)} == {0}  # the demo has 72
        assert {plans[num][0] for num in range(200, 600)} == {2}
        assert min(seeds for found, seeds in plans.values() if found) == plan.ENOUGH_FINAL_SEEDS == 10
    assert plan_ramps(1000, 2, 0, 3, 5) == 0  # no finalist depends on a ramp
    assert plan_ramps(1000, 2, 3, 1, 5) == 0


@pytest.fixture
def preferring_late(monkeypatch):
    """The finals can spare trials; and the late ramp wins, whatever came of it. What it was compared by is heard."""
    heard = []

    def choose(baseline, reached):
        heard.append((baseline, reached))
        return "late"

    monkeypatch.setattr(plan, "ENOUGH_FINAL_SEEDS", 2)
    monkeypatch.setattr(ramps, "choose_ramp", choose)
    return heard


def rows_of(folder, **which):
    with open_run(folder) as run:
        return run.rows(status=None, **which)


def test_a_fit_whose_finals_have_another_ramp(
    preferring_late, digits, tmp_path, trained, monkeypatch, without_files, in_this_process
):
    found = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    decided = json.loads((found.out / "fit.json").read_text())
    assert (decided["ramps"], decided["ramp"]) == (["early", "late", "at once"], "late")
    assert (found.ramp_name, found.ramps) == ("late", ("early", "late", "at once"))
    num_rounds = len(plan.Race(*decided["race"]).rounds())
    assert num_rounds >= 2

    # Finalists that depend on a ramp were trained under both others with the race's seeds, and nothing else was.
    with open_run(found.out / "trainings" / decided["training"]) as run:
        raced = {row.key for row in run.rows() if row.seed == num_rounds - 1}
    for name in ("late", "at-once"):
        rows = rows_of(found.out / "trainings" / f"ramp-{name}")
        methods = {row.setting["method"] for row in rows}
        assert methods
        assert methods <= {"camri", "cosface", "logit_adjusted", "vector_scaling"}
        assert {row.key for row in rows} <= raced
        assert len(rows) == num_rounds * len({row.key for row in rows})
        assert {row.seed for row in rows} == set(range(num_rounds))
    assert len(trained.trials) == len(set(trained.trials)) == found.num_trials <= ASKED["num_trials"]

    # They were compared on validation images.
    ((baseline, reached),) = preferring_late
    assert list(reached) == ["early", "late", "at once"]
    val = digits.splits["val"].labels.numpy()
    for one in (baseline, *reached["early"], *reached["late"], *reached["at once"]):
        assert sorted(one.scores) == list(range(num_rounds))
        assert all(np.array_equal(scores.labels, val) for scores in one.scores.values())
    by_hand = {
        row.seed: row.accuracy["val"]
        for row in rows_of(found.out / "trainings" / "ramp-late", key=reached["late"][0].key)
    }
    assert {seed: one.accuracy() for seed, one in reached["late"][0].scores.items()} == pytest.approx(by_hand)

    # The finals have the late ramp, all arms, and the model says so.
    with open_run(found.out) as run:
        assert run.training["ramp"] == [0.5, 0.8]
        arms = {row.setting["method"] for row in run.rows()}
    assert "ce" in arms
    assert found.training.ramp == camri.load(found.model_path).trained.training.ramp == (0.5, 0.8)
    assert json.loads((found.model_path / "config.json").read_text())["training"]["ramp"] == [0.5, 0.8]
    said = (
        "Ramps of the penalties, compared on validation data: early (0 to 30 % of the training), late (50 to 80 % of "
    )
    said += "the training), at once; late was better, and the finals have it."
    assert said in found.answer.splitlines()
    with RunReader(found.out) as reading:
        page = render(reading)
    assert said in page
    card = answer.card(replace(found, setting=setting("camri", 9, m=0.2, s=8.0)), digits)
    assert "penalties in late (50 to 80 % of the training)" in card
    assert "penalties in" not in answer.card(replace(found, setting=setting("ce")), digits)
    stayed = answer.ramp_text(replace(found, ramp_name="early"))
    assert stayed.endswith("at once; none was better than early.")

    # Before is plain cross-entropy of the finals' seeds, which no ramp changes.
    plain = Training(model="small", epochs=ASKED["epochs"])
    seeds = sorted({row.seed for row in rows_of(found.out)})
    trials = [Trial(setting("ce"), seed) for seed in seeds]
    outcomes = train(trials, digits, "cpu", training=plain, important=[9], workers=1)
    assert found.before.recall == pytest.approx(np.mean([one.recall(9) for one in outcomes]))
    assert found.before.accuracy == pytest.approx(np.mean([one.accuracy() for one in outcomes]))
    single = [step.recall_gain.estimate for step in found.steps[1:-1]]
    assert sum(single) == pytest.approx(found.recall_gain.estimate)

    # Broken off among the ramps, it goes on to the same end and trains nothing twice; stopped there, it says where.
    ended, trained.calls, trained.ended = list(trained.ended), [], []
    at_once = found.training.with_(ramp=RAMPS["at once"]).key
    first = next(number for number, key in enumerate(ended, start=1) if key[0] == at_once)
    trained.after = {first: interrupt}
    with pytest.raises(Unfinished, match=f"stopped while ramps were compared.*; {first} trials are stored"):
        fit("digits", IMPORTANT, tmp_path / "again", **ASKED)
    assert not (tmp_path / "again" / "model").exists()
    monkeypatch.setattr(plan, "plan_ramps", lambda *counts: 0)  # it was planned, and is not planned anew
    again = fit("digits", IMPORTANT, tmp_path / "again", **ASKED)
    assert len(trained.ended) == len(set(trained.ended)) == found.num_trials
    assert told(again) == told(found)
    assert weights_of(again) == weights_of(found)


def test_a_fit_of_few_trials_tries_no_other_ramp(fitted):
    assert (fitted.ramp_name, fitted.ramps) == ("early", ("early",))
    assert fitted.training.ramp == (0.0, 0.3)
    assert "Ramps" not in fitted.answer
    assert not list((fitted.out / "trainings").glob("ramp-*"))


def test_a_fit_of_an_earlier_version_that_planned_its_finals_goes_on_with_the_early_ramp(
    fitted, tmp_path, trained, without_files
):
    """Its journal says nothing about ramps."""
    out = tmp_path / "out"
    trained.after = {fitted.num_trials - 1: interrupt}
    fit("digits", IMPORTANT, out, num_trials=30, epochs=2, device="cpu")
    values = json.loads((out / "fit.json").read_text())
    del values["ramps"], values["ramp"]
    (out / "fit.json").write_text(json.dumps(values))
    again = fit("digits", IMPORTANT, out, num_trials=30, epochs=2, device="cpu")
    assert told(again) == told(fitted)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.num_trials
