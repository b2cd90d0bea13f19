"""The parts of a fit on made scores: which training and model are chosen, how candidates race, what is claimed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from camri.data import DataSet, Split
from camri.engine import Training
from camri.errors import InputError
from camri.fitting import claims as claiming
from camri.fitting import search as searching
from camri.fitting import trainer
from camri.fitting.budget import Budget, Race
from camri.fitting.claims import claim_of, pick_model
from camri.fitting.search import Search, weigh
from camri.fitting.trainer import choose_training, describe_training, setting_of, trainings_for
from camri.methods import MARGIN_UNIT, METHODS
from camri.metrics import condense, pool
from camri.selection import Floor, Rule, Validation
from tests.report.conftest import make_run

LABELS = np.arange(400) % 4
COLUMN = ((1, 1.0),)


def made_scores(seed, sharpness=0.0, noise=1.0):
    """Scores of four classes; `sharpness` tells the important one better apart, in a way that no shift does."""
    drawn = np.random.default_rng(seed).normal(size=(len(LABELS), 4)) * noise
    logits = 1.5 * np.eye(4)[LABELS] + drawn
    logits[LABELS == 1, 1] += sharpness
    return condense(logits, LABELS, (1,))


def baselines(**sharper):
    return {
        name: Validation("ce", {seed: made_scores(seed, noise=noise) for seed in range(4)})
        for name, noise in {"plain": 1.0, **sharper}.items()
    }


def test_a_training_must_surpass_the_plain_one():
    assert choose_training(baselines(smoothed=0.7, averaged=0.5)) == "averaged"
    assert choose_training(baselines(smoothed=0.5, averaged=0.7)) == "smoothed"
    assert choose_training(baselines(smoothed=0.5, averaged=0.5)) == "smoothed", "of equals the more promising"
    assert choose_training(baselines(smoothed=1.0, averaged=1.4)) == "plain"
    assert choose_training(baselines(smoothed=0.99)) == "smoothed"  # 9 images of 1,600: one standard error, not two
    few = baselines(smoothed=0.5, averaged=0.7)
    few["smoothed"] = few["smoothed"].of({0, 1})
    assert choose_training(few) == "smoothed", "fewer seeds are no worse"
    # A hair better is not enough: 2 images of 1,600.
    found = baselines(smoothed=1.0)
    one = found["smoothed"].scores[0]
    wrong = np.flatnonzero(~one.correct() & (LABELS != 1))[:2]
    lead, right = one.lead.copy(), one.rest_right.copy()
    lead[wrong], right[wrong] = -5.0, True
    better = type(one)(one.labels, one.important, lead, right, one.rest_spread)
    assert better.accuracy() > one.accuracy()
    found["smoothed"] = Validation("ce", {**found["smoothed"].scores, 0: better})
    assert choose_training(found) == "plain"


def test_a_training_all_of_whose_trials_failed_is_skipped():
    assert choose_training({**baselines(), "averaged": Validation("ce", {})}) == "plain"


def made_data(shape, name="made", **provenance):
    split = Split(
        torch.zeros((2, *shape), dtype=torch.uint8 if len(shape) == 3 else torch.float32), torch.tensor([0, 1])
    )
    return DataSet(name, ("a", "b"), {"train": split}, "made", provenance)


@pytest.mark.parametrize(
    ("shape", "pixels"), [((32, 32, 3), 2), ((24, 64, 3), 2), ((64, 40, 1), 2), ((8, 8, 1), 1), ((2, 2, 1), 1)]
)
def test_images_are_moved_by_a_sixteenth_of_their_shorter_side_smoothed_and_averaged(shape, pixels):
    plain = Training(model="small", epochs=2)
    extras = {"translate_px": pixels, "label_smoothing": 0.1, "average": 0.999}
    found = trainings_for(made_data(shape), plain)
    assert list(found) == ["plain", "augmented", "smoothed", "averaged", "all"]
    changes = [{}, *({name: value} for name, value in extras.items()), extras]
    assert list(found.values()) == [plain.with_(**change) for change in changes]


def test_photographs_alone_are_mirrored_and_features_not_even_moved():
    plain = Training(model="small", epochs=2)
    photographs = [made_data((32, 32, 3), "cifar10"), made_data((32, 32, 3), layout="awa2 official")]
    for data in photographs:
        found = trainings_for(data, plain)
        assert found["augmented"] == plain.with_(translate_px=2, flip=True)
        assert found["all"] == plain.with_(translate_px=2, flip=True, label_smoothing=0.1, average=0.999)
    assert not trainings_for(made_data((32, 32, 3), layout="gtsrb official"), plain)["augmented"].flip
    found = trainings_for(made_data((6,), "cifar10"), plain)
    assert list(found) == ["plain", "smoothed", "averaged", "all"]
    assert found["all"] == plain.with_(label_smoothing=0.1, average=0.999)


def test_a_training_is_named_by_what_it_adds():
    plain = Training(model="small", epochs=2)
    assert describe_training("plain", plain) == "plain training"
    assert describe_training("augmented", plain.with_(translate_px=2)) == "random shifts of up to 2 px"
    assert describe_training("augmented", plain.with_(flip=True)) == "random flips"
    assert describe_training("averaged", plain.with_(average=0.999)) == "averaged weights"
    every = plain.with_(translate_px=1, flip=True, label_smoothing=0.1, average=0.999)
    said = "random shifts of up to 1 px, random flips, label smoothing 0.1, averaged weights"
    assert describe_training("all", every) == said


def test_the_better_candidate_weighs_more_and_one_below_the_floor_least():
    ce, rule = baselines()["plain"], Rule()
    equal, sharp, poor = (
        Validation(name, {seed: made_scores(seed + 9, **how) for seed in range(2)})
        for name, how in (("equal", {}), ("sharp", {"sharpness": 1.0}), ("poor", {"noise": 4.0}))
    )
    weights = [weigh(one, ce, rule) for one in (poor, equal, sharp)]
    assert sorted(weights) == weights
    assert [one.rank[0] > 0 for one in weights[::2]] == [False, True]
    assert weights[0].missing > 0.2 > 0 >= weights[2].missing
    assert weigh(Validation("failed", {}), ce, rule) == searching.UNKNOWN


class FakeRun:
    """A store without training: camri with more margin and a scale of 8 tells the important class better apart."""

    def __init__(self):
        self.calls, self.known = [], {}

    def train(self, points, seeds, until_s, least=0):
        self.calls.append((list(points), list(seeds)))
        for point in points:
            for seed in seeds:
                method, values = point
                good = (0.1 * values[0] / MARGIN_UNIT if values[1] == 8.0 else 0.2) if method == "camri" else 0.0
                key = setting_of(point, COLUMN).key
                self.known.setdefault(key, {})[seed] = made_scores([seed, int(key, 16) % 1000], sharpness=good)
        return True

    def validation(self, setting, important):
        scores = {s: made_scores(s) for s in range(9)} if setting.method == "ce" else self.known.get(setting.key, {})
        return Validation(setting.key, scores)


def run_search(num=40, seed=0, run=None):
    """((finalists, settings tried), the run)"""
    run = run or FakeRun()
    race, budget = Race(num, 3), Budget(None, 1000, began=0.0)
    return Search(run, COLUMN, race, range(9), Rule(), seed, budget).finalists(), run


def test_a_search_finds_the_good_and_halves_the_rest():
    (finalists, num_tried), run = run_search()
    first = [points for points, seeds in run.calls if seeds == [0]]
    points = [point for pack in first for point in pack]
    assert [len(pack) for pack in first] == [8, 8, 8, 8, 8]
    assert len({setting_of(point, COLUMN).key for point in points}) == len(points) == num_tried == 40
    assert {method for method, _ in points} == set(searching.searched())
    assert points[0] == ("camri", (8 * MARGIN_UNIT, 8.0))
    assert [(len(points), seeds) for points, seeds in run.calls[5:]] == [(20, [1]), (10, [2]), (5, [3])]
    (method, (margin, scale)) = finalists[0]
    assert (method, scale) == ("camri", 8.0)
    assert margin >= 8 * MARGIN_UNIT
    # It learns: the later half proposes more of what was good than the first, in which each method has its turn.
    share = [np.mean([p[0] == "camri" for p in half]) for half in (points[:16], points[24:])]
    assert share[1] > share[0]


def test_finalists_are_of_several_methods_where_there_are_several():
    one, two, three, other = ("camri", (0.1, 8.0)), ("camri", (0.2, 8.0)), ("camri", (0.3, 8.0)), ("wce", (4.0,))
    assert searching._varied([one, two, three, other], 3) == [one, two, other]
    assert searching._varied([one, two, three], 3) == [one, two, three]


def test_a_search_repeats_and_resumes_with_the_same_proposals():
    found, run = run_search()
    assert run_search()[0] == found
    assert run_search(seed=1)[0] != found
    # With everything stored, later rounds' seeds included, it proposes the same again.
    known = FakeRun()
    known.known = run.known
    assert run_search(run=known)[0] == found
    assert known.calls == run.calls


def test_a_search_ends_where_there_is_nothing_new(monkeypatch):
    monkeypatch.setattr(searching, "searched", lambda: ["l2softmax"])
    (_, num_tried), _ = run_search(num=10)
    assert num_tried == len(METHODS["l2softmax"].knobs["s"].search)


def leads(*values):
    """Two important images and two others, with these leads of the important score."""
    return condense(np.array([[0.0, lead] for lead in values]), [1, 1, 0, 0], important=(1,))


def test_the_model_is_the_best_with_the_shift_of_all_models_of_its_setting():
    found = Validation("x", {4: leads(0.5, -2.0, -1.0, -1.0), 7: leads(0.5, -0.5, -1.0, -1.0)})
    assert pick_model(found, Floor(0.75), Rule()) == (7, (0.75,))  # more would capture both others of both


def test_a_flattered_model_is_not_given_a_shift_of_its_own():
    # Seed 4 alone could be shifted by 4 at no cost, seeds 5 and 6 cannot be shifted by more than 0.5.
    found = Validation("x", {4: leads(1, -3, -5, -5), 5: leads(1, -3, -0.5, -0.5), 6: leads(1, -0.25, -0.5, -0.5)})
    seed, shift = pick_model(found, Floor(pool(list(found.scores.values())).accuracy()), Rule())
    assert (seed, shift) == (6, (0.375,))


def test_where_no_model_is_accurate_enough_it_is_the_most_accurate_without_a_shift():
    worse = Validation("x", {4: leads(0.5, -2.0, 1.0, 1.0), 7: leads(0.5, -0.5, -1.0, 1.0)})
    assert pick_model(worse, Floor(1.0), Rule()) == (7, (0.0,))  # 2 of 4 right, and 1 of 4


def test_a_model_below_the_floor_does_not_win_by_its_recall():
    # Together they are at the floor; the one with all important images right is below it.
    found = Validation("x", {1: leads(1, 1, 1, 1), 2: leads(1, -9, -9, -9), 3: leads(1, -9, -9, -9)})
    assert pick_model(found, Floor(8 / 12), Rule()) == (2, (0.0,))


@pytest.fixture(scope="module")
def claims(tmp_path_factory):
    def make(name, **how):
        folder = make_run(tmp_path_factory.mktemp(name), important=("column",), seeds=8, **how)
        return folder, claim_of(folder, None, "label smoothing 0.1", 5)

    return make


def test_where_a_method_truly_gains_it_is_handed_over_and_shown(claims):
    _, claim = claims("gain", sharpness={"camri": 1.2})
    assert claim.setting.method == "camri"
    assert claim.evidence.gain_is_shown
    assert [step.name for step in claim.evidence.steps] == ["before", "shift", "method", "together"]
    method = claim.evidence.steps[2]
    assert method.gains.recall == claim.evidence.over_shifted
    assert method.gains.recall.low > 0.05
    assert "camri" in method.title


def test_a_claim_says_where_validation_images_could_not_tell(claims, monkeypatch):
    monkeypatch.setattr("camri.fitting.claims.LOOSE", 0.05)  # its 400 images tell accuracy to ± 4 points
    folder, claim = claims("mute")
    assert claim.cautions == ()
    monkeypatch.setattr(claiming.RunReader, "mute_validation", "they say nothing")
    assert claim_of(folder, None, "plain", 5).cautions == ("they say nothing",)


def test_where_nothing_beats_the_shifted_baseline_that_is_handed_over(claims):
    worse = {"camri": -1.0, "wce": -1.0, "l2softmax": -1.0}
    _, claim = claims("none", sharpness=worse)
    assert claim.setting.method == "ce"
    assert (claim.evidence.over_shifted, claim.evidence.gain_is_shown) == (None, False)
    assert [step.name for step in claim.evidence.steps] == ["before", "shift", "together"]
    assert claim.evidence.steps[-1].figures == claim.evidence.steps[1].figures


def test_a_gain_whose_interval_holds_zero_is_not_shown(tmp_path):
    claim = claim_of(
        make_run(tmp_path / "run", important=("column",), seeds=4, sharpness={"camri": 0.1}), None, "plain", 5
    )
    assert claim.setting.method == "camri"
    assert claim.evidence.over_shifted.low < 0 < claim.evidence.over_shifted.value
    assert not claim.evidence.gain_is_shown


def test_what_only_all_seeds_together_prefer_is_not_handed_over(claims, monkeypatch):
    """Each half of the seeds keeps cross-entropy, so the claim is about that; all of them together pick CAMRI."""
    real = claiming.judge_column

    def preferring(reading, column):
        verdict = real(reading, column)
        assert verdict.best.keeps_baseline
        return replace(verdict, best=replace(verdict.best, final=verdict.of("camri")[-1]))

    monkeypatch.setattr(claiming, "judge_column", preferring)
    _, claim = claims("halves", sharpness={"camri": -1.0, "wce": -1.0, "l2softmax": -1.0})
    assert (claim.setting.method, claim.evidence.over_shifted) == ("ce", None)


def test_plain_cross_entropy_stands_before_the_chosen_training(claims, tmp_path):
    folder, _ = claims("chosen", sharpness={"ce": 0.3})
    plain = make_run(tmp_path / "plain", important=("column",), methods={"ce": {}}, seeds=8)
    claim = claim_of(folder, plain, "label smoothing 0.1", 5)
    before, training = claim.evidence.steps[:2]
    assert training.title.endswith("label smoothing 0.1")
    assert training.gains.recall.value == pytest.approx(training.figures.recall - before.figures.recall)
    assert training.gains.recall.value > 0
    few = make_run(tmp_path / "few", important=("column",), methods={"ce": {}}, seeds=3)
    with pytest.raises(InputError, match="no trial of seed 3"):
        claim_of(folder, few, "label smoothing 0.1", 5)


def test_classes_that_lost_recall_are_those_that_lost_most(claims):
    _, claim = claims("paid", sharpness={"camri": 1.2}, bias={"camri": 2.0})
    names = [name for name, _ in claim.evidence.lost]
    assert "column" not in names
    losses = [found.value for _, found in claim.evidence.lost]
    assert losses == sorted(losses)
    assert all(loss < 0 for loss in losses)


def test_weights_are_written_whole_or_it_is_reported(tmp_path):
    path, weights = tmp_path / "weights" / "a.safetensors", {"head.weight": np.arange(6.0).reshape(2, 3).T}
    trainer.write_weights(path, weights)
    assert np.array_equal(load_file(path)["head.weight"], weights["head.weight"])
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(InputError, match=r"b\.safetensors cannot be written \(.*\); choose another folder"):
        trainer.write_weights(path / "b.safetensors", weights)
