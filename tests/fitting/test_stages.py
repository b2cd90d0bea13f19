"""What the stages of a fit decide and say, without training."""

import contextlib
from types import SimpleNamespace

import pytest

from camri.engine import Training
from camri.fitting import job
from camri.fitting.budget import Budget
from camri.fitting.job import Stages
from camri.fitting.request import Journal
from camri.fitting.search import CE
from camri.fitting.trainer import Interrupted, setting_of
from camri.study.store import STORE_FILE as STORE

CAMRI, STEEPER, WEIGHED = ("camri", (0.2, 8.0)), ("camri", (0.2, 16.0)), ("wce", (4.0,))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The stages of a fit of so many trials, of which none is stored, with what was decided so far."""
    monkeypatch.setattr(job, "trainings_for", lambda data, plain: {"plain": plain, "flip": plain.with_(flip=True)})

    def stages_of(num_trials=100, seed=0, classes=("go", "stop", "worst"), **decided):
        data = SimpleNamespace(classes=classes)
        request = SimpleNamespace(
            out=tmp_path, data=data, plain=Training(model="small"), seed=seed, max_accuracy_drop=0.0
        )
        trainer = SimpleNamespace(budget=Budget(None, num_trials, began=0.0))
        decided = {"spent_s": 0.0, "training": "plain", "important": [[1, 1.0]], **decided}
        return Stages(request, Journal(tmp_path, decided), trainer)

    return stages_of


def test_seeds_of_choice_and_of_finals_have_nothing_in_common_with_each_other_or_another_fit(make):
    for seed in (0, 3):
        found = make(seed=seed)
        assert (found.search_seeds, found.final_seeds) == (
            range(1000 * seed, 1000 * seed + 500),
            range(1000 * seed + 500, 1000 * seed + 1000),
        )


@pytest.mark.parametrize(
    ("num_trials", "training", "finalists", "num_seeds"),
    [
        # Arms: cross-entropy, the finalists, L2-softmax at each scale; plain cross-entropy after another training.
        (48, "plain", [CAMRI, STEEPER, WEIGHED], 8),
        (12, "plain", [CAMRI, STEEPER, WEIGHED], 2),
        (11, "plain", [CAMRI, STEEPER], 2),
        (10, "plain", [CAMRI, STEEPER], 2),
        (9, "plain", [CAMRI], 3),
        (12, "flip", [CAMRI, STEEPER], 2),
        (11, "flip", [CAMRI], 2),
        (1, "plain", [CAMRI], 2),
    ],
)
def test_finalists_are_given_up_before_the_finals_have_too_few_seeds(make, num_trials, training, finalists, num_seeds):
    found = make(num_trials, training=training, finalists=[CAMRI, STEEPER, WEIGHED])
    found._plan_finals()
    assert (found.finalists, found.journal.get("final_seeds")) == (finalists, num_seeds)


@pytest.mark.parametrize(
    ("decided", "where"),
    [
        ({"training": None}, "comparing trainings"),
        ({}, "trying candidates"),
        ({"finalists": [CAMRI]}, "trying candidates"),
        ({"finalists": [CAMRI], "final_seeds": 4}, "0 of 4 seeds"),
    ],
)
def test_a_stopped_fit_says_where_it_was(make, tmp_path, decided, where):
    found = make(**decided)
    found.budget.num_ended = 1234
    for text in (where, "1,234 trials", str(tmp_path), "the same command resumes"):
        assert text in found.missing()


def test_a_seed_is_complete_when_every_arm_has_ended(make, tmp_path, monkeypatch):
    found = make(finalists=[CAMRI], final_seeds=4)
    arms = [CE.key, *(setting_of(point, found.column).key for point in (CAMRI, ("l2softmax", (8.0,))))]
    ended = dict(zip(arms, ({500, 501, 502}, {501, 500}, {501, 503}), strict=True))
    rows = [SimpleNamespace(key=key, seed=seed) for key, seeds in ended.items() for seed in seeds]
    run = SimpleNamespace(rows=lambda status: rows)
    monkeypatch.setattr(job, "open_run", lambda folder: contextlib.nullcontext(run))
    (tmp_path / STORE).touch()
    assert found._complete_seeds() == {501}
    assert "1 of 4 seeds" in found.missing()
    with pytest.raises(Interrupted):
        found.hand_over(is_finished=False)


def test_a_finished_fit_notes_nothing_more(make):
    found = make(finished=True, wall_s=5.0)
    found.note(wall_s=9.0)
    assert found.journal.get("wall_s") == 5.0
    assert not found.journal.path.exists()


def test_a_class_called_like_a_symbol_is_meant_by_its_number(make):
    found = make(important=[[2, 0.5], [1, 1.0]])
    column = found._finals_in(found.training, found.before).important
    assert (column.classes, column.strengths) == ((2, "stop"), (0.5, 1.0))
