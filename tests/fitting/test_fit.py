"""A whole fit: what it leaves, that its figures are right, that it repeats, resumes, stops and never peeks at test."""

import html
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import camri
from camri.data import DataSet, Split, hold_out, load
from camri.decision import Arm, Caution, Share, load_answer, wilson
from camri.fitting import Unfinished, baseline, budget, finals, fit, handover, saved
from camri.models import build
from camri.report.fit_card import own_figures, write_card
from camri.report.page import write_page
from camri.study.store import open_run
from tests.fitting.conftest import ASKED, IMPORTANT, facts, interrupt, weights_of


@pytest.fixture(scope="module")
def digits():
    return hold_out(load("digits"), "val", 0.2, 0)


def as_table(images):
    """The data set as rows of features."""
    splits = {
        name: Split(split.inputs.flatten(start_dim=1).float(), split.labels) for name, split in images.splits.items()
    }
    return replace(images, splits=splits)


def seeds_in(folder):
    with open_run(folder) as run:
        return {row.seed for row in run.rows(status=None)}


def test_what_it_leaves(fitted):
    names = {path.name for path in fitted.out.iterdir()}
    assert names == {
        "answer.json", "examples.npz", "fit.json", "model", "outcomes.sqlite", "report.html", "run.lock", "trainings",
    }  # fmt: skip
    files = {path.name for path in fitted.model_path.iterdir()}
    assert files == {"README.md", "config.json", "model.onnx", "model.safetensors"}
    assert json.loads((fitted.out / "fit.json").read_text())["finished"] is True
    assert (fitted.answer.made.effort.num_failed, fitted.finished) == (0, True)
    assert fitted.answer.made.effort.num_trials <= ASKED["num_trials"]
    assert load_answer(fitted.out / "answer.json").to_json() == fitted.answer.to_json()


def test_the_model_handed_over_does_what_is_said_of_it(fitted, digits):
    model = camri.load(fitted.model_path)
    test = digits.splits["test"]
    labels = [digits.classes[index] for index in test.labels.tolist()]
    said = model.predict(test.inputs.numpy())
    right = [one == label for one, label in zip(said, labels, strict=True)]
    after = fitted.answer.made.handed.after
    assert (sum(right), len(right)) == (after.accuracy.hits, after.accuracy.num)
    own = [one for one, label in zip(right, labels, strict=True) if label == IMPORTANT]
    (recall,), (precision,) = after.recalls, after.precisions
    assert (sum(own), len(own)) == (recall.hits, recall.num)
    assert after.accuracy.low < np.mean(right) < after.accuracy.high
    alarms = sum(one == IMPORTANT != label for one, label in zip(said, labels, strict=True))
    assert (precision.num, after.false_alarms.hits) == (said.count(IMPORTANT), alarms)
    assert model.important == (IMPORTANT,)
    for text in (f"Finds {recall.hits} of {recall.num} “9”", f"{alarms} false alarm"):
        assert text in str(fitted).splitlines()[0]


def test_it_is_the_median_on_validation_data_of_its_setting(fitted):
    """Of all its models with the common rule, as many are better as are worse, or one more."""
    with open_run(fitted.out) as run:
        models = {row.seed: run.scores(row, "val", (9,)) for row in run.rows(key=fitted.setting.key)}
    shift = fitted.answer.made.handed.rule.values[9]
    rank = {seed: (float(one.recall(shift)[0]), one.accuracy(shift)) for seed, one in models.items()}
    mine = rank[fitted.answer.made.handed.seed]
    better, worse = (sum(one > mine for one in rank.values()), sum(one < mine for one in rank.values()))
    assert better <= len(models) // 2
    assert worse <= (len(models) - 1) // 2


def test_before_is_the_median_of_plain_cross_entropy(fitted):
    with open_run(fitted.out) as run:
        rows = run.rows(method="ce")
    before = fitted.answer.made.handed.before
    assert (before.recall, before.accuracy.value) in [
        (pytest.approx(row.recall["test"][9]), pytest.approx(row.accuracy["test"])) for row in rows
    ]
    arm = fitted.answer.evidence.arm("baseline")
    assert arm.recall == pytest.approx(np.mean([row.recall["test"][9] for row in rows]))
    assert arm.accuracy.value == pytest.approx(np.mean([row.accuracy["test"] for row in rows]))
    assert fitted.answer.evidence.num_seeds == len(rows)


def test_the_claim_uses_seeds_that_chose_nothing(fitted):
    decided = json.loads((fitted.out / "fit.json").read_text())
    assert decided["winner"] is not None
    assert seeds_in(fitted.out) == set(range(500, 500 + decided["final_seeds"]))
    for folder in (fitted.out / "trainings").glob("*-*"):
        found = seeds_in(folder)
        assert found == set(range(len(found)))


def test_the_examples_are_rows_that_the_model_gets_wrong(fitted, digits):
    model, test = camri.load(fitted.model_path), digits.splits["test"]
    said = np.array(model.predict(test.inputs.numpy()))
    with np.load(fitted.out / "examples.npz") as file:
        found = {name: file[name] for name in file.files}
    assert np.array_equal(found["test_labels"], test.labels.numpy())
    (recall,) = fitted.answer.made.handed.after.recalls
    assert len(found["missed"]) == min(24, recall.num - recall.hits)
    assert all(said[row] != "9" and test.labels[row] == 9 for row in found["missed"])
    assert all(said[row] == "9" and test.labels[row] != 9 for row in found["false_alarms"])
    assert np.array_equal(found["missed_inputs"], test.inputs[found["missed"]].numpy())


def test_the_page_is_made_again_from_the_folder(fitted):
    page = (fitted.out / "report.html").read_text(encoding="utf-8")
    assert "camri fit digits --important 9 --trials 30" in page
    assert "Not finished" not in page
    assert html.escape(str(fitted).splitlines()[0], quote=False) in page
    assert write_page(fitted.out, fitted.out.parent / "again.html").read_text(encoding="utf-8") == page


def card_of(fitted, data):
    return write_card(fitted.answer, data, fitted.training, fitted.model_path)


def test_the_card_describes_the_model_and_its_inputs(fitted):
    card = (fitted.model_path / "README.md").read_text(encoding="utf-8")
    (recall,) = fitted.answer.made.handed.after.recalls
    for text in ("Limits", f"{recall.hits}/{recall.num}", "camri predict", str(fitted).splitlines()[0]):
        assert text in card
    for arm in fitted.answer.evidence.arms:
        assert f"| {arm.title} | {100 * arm.recall:.1f} % |" in card
    digits = load("digits")
    for data, kind, several in (
        (digits, "8x8x1 images, uint8", "images"),
        (as_table(digits), "64 features, float32", "rows"),
    ):
        text = " ".join(card_of(fitted, data).split())
        assert f"inputs are {kind}; 1,258 train, 539 test." in text
        assert f"on 539 test {several} that nothing was chosen on: " in text
    names = [f"pixel {place}" for place in range(64)]
    named = card_of(fitted, replace(as_table(digits), provenance={"feature_columns": names}))
    assert "model.predict(rows)  # numbers (N, 64)\n```\n\nThe 64 columns in order" in named
    assert "`pixel 48`, …, `pixel 63`. `config.json` has all of them.\n\nPreprocessing" in named
    few = replace(as_table(digits), provenance={"feature_columns": ["embedding"]})
    for data in (few, digits):
        assert "columns in order" not in card_of(fitted, data)
    assert "\ncamri predict 'my run/model' FILES…\n" in card_of(replace(fitted, out=Path("my run")), digits)


def test_figures_of_a_model_have_intervals_and_a_class_never_predicted_has_no_precision():
    recalls, precisions = (
        (Share(0.9, 9, 10, *wilson(9, 10)), Share(0.0, 0, 4, *wilson(0, 4))),
        (
            Share(0.75, 9, 12, *wilson(9, 12)),
            Share(None, 0, 0, 0.0, 1.0),
        ),
    )
    accuracy, alarms = Share(0.9, 90, 100, *wilson(90, 100)), Share(0.02, 2, 100, *wilson(2, 100))
    assert own_figures(("8", "9"), Arm("after", "", 1, recalls, precisions, accuracy, alarms)) == (
        "recall of “8” 90.0 % (9/10; 95 % CI 59.6 to 98.2), precision 75.0 % (9/12; 95 % CI 46.8 to 91.1), "
        "recall of “9” 0.0 % (0/4; 95 % CI 0.0 to 49.0), precision none (never predicted), "
        "accuracy 90.0 % (90/100; 95 % CI 82.6 to 94.5), false alarms 2.00 % (2/100; 95 % CI 0.55 to 7.00)"
    )


def test_cautions_are_in_the_answer_and_on_the_card(fitted):
    digits = load("digits")
    noted = replace(digits, provenance={**digits.provenance, "notes": ["3 test images are copies"]})
    assert "\n- 3 test images are copies.\n" in card_of(fitted, noted)
    found = Caution("all_found", {"names": ["9"], "num": [25]})
    stopped = replace(fitted.answer.made, finished=False)
    mute = replace(fitted, answer=replace(fitted.answer, cautions=(found,), made=stopped))
    assert "Caution: cross-entropy finds every validation image of “9” (25) in every trial" in str(mute)
    assert "resumes" in str(mute).splitlines()[-1]
    assert "\n- cross-entropy finds every validation image of “9” (25) in every trial" in card_of(mute, digits)


def test_the_same_call_gives_the_same_result(fitted, tmp_path, without_files):
    again = fit("digits", IMPORTANT, tmp_path / "again", **ASKED)
    assert facts(again) == facts(fitted)
    assert weights_of(again) == weights_of(fitted)


def test_a_finished_fit_trains_nothing_more(fitted, trained, without_files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finals, "doubts", lambda data, important: [Caution("few_rows")])
        patch.setattr(saved, "outcome_with_weights", None)  # the model is there: it need not be trained again
        patch.setattr(handover, "write_card", lambda *_: "a card")
        assert fit("digits", IMPORTANT, fitted.out, **ASKED).answer.cautions[-1].code == "few_rows"
    again = fit("digits", IMPORTANT, fitted.out, **ASKED)
    assert trained.trials == []
    assert facts(again) == facts(fitted)
    assert again.answer.made.effort == fitted.answer.made.effort


def test_a_lost_model_is_trained_again_to_the_same_bits(fitted, tmp_path, without_files):
    """The weights' files are gone after a fit; on a CPU the one model comes out the same."""
    kept = weights_of(fitted)
    moved = fitted.model_path.rename(tmp_path / "moved")
    try:
        again = fit("digits", IMPORTANT, fitted.out, **ASKED)
        assert weights_of(again) == kept
    finally:
        for path in fitted.model_path.iterdir():
            path.unlink()
        fitted.model_path.rmdir()
        moved.rename(fitted.model_path)


KILLED = """
import os, sys
from camri.fitting import fit, trainer
from camri.study import runner
trainer.Trainer.workers = 1
left = [int(sys.argv[2])]
real = runner._Run._store
def store(self, outcome):
    real(self, outcome)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
runner._Run._store = store
fit("digits", "9", sys.argv[1], num_trials=30, epochs=2, device="cpu")
"""


def test_after_a_kill_in_the_finals_the_same_command_resumes(fitted, tmp_path, trained, without_files, in_this_process):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out"), "22"], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not (tmp_path / "out" / "model").exists()
    again = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert len(trained.trials) == len(set(trained.trials)) == fitted.answer.made.effort.num_trials - 22
    assert facts(again) == facts(fitted)
    assert weights_of(again) == weights_of(fitted)


def test_after_an_interruption_among_the_candidates_the_same_command_resumes(fitted, tmp_path, trained, without_files):
    def break_off():
        raise MemoryError

    trained.after = {9: break_off}
    with pytest.raises(MemoryError):
        fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    again = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.answer.made.effort.num_trials
    assert facts(again) == facts(fitted)


def test_nothing_is_chosen_by_test_labels(fitted, digits, tmp_path, without_files):
    """With shuffled test labels all choices stay the same, and only the reported figures change."""
    test = digits.splits["test"]
    dealt = test.labels[torch.randperm(len(test), generator=torch.Generator().manual_seed(1))]
    splits = {**digits.splits, "test": Split(test.inputs, dealt)}
    blind = fit(replace(digits, splits=splits), IMPORTANT, tmp_path / "out", **ASKED)
    mine, other = blind.answer.made.handed, fitted.answer.made.handed
    assert mine.after.accuracy.value < 0.3
    assert (blind.setting, mine.rule, mine.seed) == (fitted.setting, other.rule, other.seed)
    assert (blind.training, blind.answer.made.effort.lengths) == (fitted.training, fitted.answer.made.effort.lengths)
    assert weights_of(blind) == weights_of(fitted)
    mine, other = (json.loads((one.out / "fit.json").read_text()) for one in (blind, fitted))
    for name in ("epochs", "training", "important", "winner", "final_seeds"):
        assert mine[name] == other[name]


def test_an_interrupt_in_the_finals_hands_back_the_best_so_far(
    fitted, tmp_path, trained, without_files, in_this_process
):
    trained.after = {fitted.answer.made.effort.num_trials - 1: interrupt}
    early = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert (early.finished, early.model_path.is_dir()) == (False, True)
    with open_run(tmp_path / "out") as run:
        stored = {f"{name}.safetensors" for name in run.statuses()}
    assert stored <= {path.name for path in (tmp_path / "out" / "weights").iterdir()}
    assert 1 <= early.answer.evidence.num_seeds <= fitted.answer.evidence.num_seeds
    assert early.answer.made.effort.num_trials < fitted.answer.made.effort.num_trials
    assert "the same command resumes" in str(early)
    assert camri.load(early.model_path).trained.seed == early.answer.made.handed.seed
    trained.after = {}
    whole = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert facts(whole) == facts(fitted)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.answer.made.effort.num_trials
    assert not (tmp_path / "out" / "weights").exists()


def test_an_early_interrupt_says_what_is_missing(tmp_path, trained, without_files, in_this_process):
    trained.after = {3: interrupt}
    with pytest.raises(Unfinished, match=r"comparing rivals.*3 trials are stored.*the same command resumes"):
        fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert not (tmp_path / "out" / "model").exists()


def test_without_an_important_class_it_takes_the_worst_on_validation_data(tmp_path, without_files, in_this_process):
    """With first values from a file, which is not needed any more when the model is used."""
    first = tmp_path / "first.safetensors"
    trunk = build("small", (1, 8, 8), torch.Generator().manual_seed(7))
    save_file({name: tensor.numpy() for name, tensor in trunk.state_dict().items()}, first)
    found = fit("digits", None, tmp_path / "out", num_trials=16, epochs=2, device="cpu", weights=first)
    first.unlink()
    assert camri.load(found.model_path).trained.training.model_options == ()
    assert dict(found.training.model_options)["initial"] == str(first)
    with open_run(tmp_path / "out" / "trainings" / "plain-2") as run:
        recalls = np.mean([row.recall["val"] for row in run.rows(method="ce")], axis=0)
    assert found.important == (str(int(recalls.argmin())),)


def made_features(num_rows, seed):
    """Five classes in six columns of very different size; the last column never changes."""
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (num_rows,), generator=drawn)
    rows = torch.randn((num_rows, 6), generator=drawn) + 1.5 * torch.nn.functional.one_hot(labels, 6)
    rows = rows * torch.tensor([1e-3, 1.0, 1e4, 10.0, 1.0, 0.0]) + torch.tensor([5.0, 0.0, 1e5, 0.0, -3.0, 7.0])
    return Split(rows, labels)


def test_features_with_several_important_classes_of_several_strengths(tmp_path, without_files, in_this_process):
    data = DataSet("table", ("a", "b", "c", "d", "e"), {"train": made_features(900, 1)}, "features", {})
    asked = {"strengths": {"b": 0.5}, "max_accuracy_drop": 0.02}
    found = fit(data, ["d", "b"], tmp_path / "out", num_trials=18, epochs=3, device="cpu", **asked)
    assert found.important == ("b", "d")
    assert found.training.model == "features"
    decided = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert decided["important"] == [[3, 1.0], [1, 0.5]]
    with open_run(tmp_path / "out") as run:
        (column,) = run.columns()
        assert (column.names, column.strengths) == (("d", "b"), (1.0, 0.5))
        assert run.note("rule")["max_accuracy_drop"] == 0.02
        assert run.note("rule")["prior_rows"] == 500
    model = camri.load(found.model_path)
    mean, sd = model.trained.standardise
    assert mean[2] == pytest.approx(1e5, rel=0.05)
    assert sd[5] == 1.0
    from camri.fitting.request import prepare

    scaled = prepare(data).data.splits["test"]
    raw = scaled.inputs * torch.tensor(sd) + torch.tensor(mean)
    predicted = np.array([data.classes.index(name) for name in model.predict(raw.numpy())])
    labels = scaled.labels.numpy()
    after = found.answer.made.handed.after
    assert abs(int((predicted == labels).sum()) - after.accuracy.hits) <= 1  # scaled back and forth in float32
    assert [one.num for one in after.recalls] == [(labels == 1).sum(), (labels == 3).sum()]


@pytest.mark.parametrize(
    ("asked", "figure", "rule"),
    [({"at_least": 0.9}, "false_alarms", "threshold"), ({"cost_matrix": [[0, 1], [8, 0]]}, "cost", "shift")],
    ids=["recall", "costs"],
)
def test_the_goal_decides_the_rule_the_record_and_what_the_model_predicts(
    rows, tmp_path, without_files, in_this_process, asked, figure, rule
):
    found = fit(rows, "storm", tmp_path / "out", num_trials=16, epochs=8, device="cpu", **asked)
    made = found.answer.made
    assert found.answer.goal.figure == figure
    assert (made.handed.rule.name, found.answer.rule) == (rule, made.handed.rule)
    before, after = made.handed.before, made.handed.after
    assert after.recalls[0].hits > before.recalls[0].hits  # a storm is missed by argmax, and misses are dear
    if figure == "false_alarms":
        found_all = found.answer.guarantee.is_given
        words = (
            "Guaranteed by validation data, with 95 % confidence" if found_all else "Not guaranteed: a recall of 90 %"
        )
        assert words in str(found)
    if figure == "cost":
        assert after.cost < before.cost
        assert "; mean cost " in str(found).splitlines()[0]
    from camri.fitting.request import prepare

    inputs = prepare(rows)
    mean, sd = map(torch.tensor, inputs.standardise)
    test = inputs.data.splits["test"]
    said = np.array(found.load().predict((test.inputs * sd + mean).numpy()))
    right = said == np.array(rows.classes)[test.labels.numpy()]
    assert abs(int(right.sum()) - after.accuracy.hits) <= 1  # scaled back and forth in float32


@pytest.mark.parametrize(
    ("helps", "kept", "tried"),
    [
        ((), [], {"plain-2", "moved-2", "wide-2", "smooth-2"}),
        (("width", "label_smoothing"), ["wide", "wider", "smooth"],
         {"plain-2", "moved-2", "wide-2", "wide+wider-2", "wide+wider+smooth-2"}),
    ],
)  # fmt: skip
def test_a_change_of_the_training_that_helps_stays_for_the_next(
    helps, kept, tried, tmp_path, monkeypatch, without_files, in_this_process
):
    monkeypatch.setattr(baseline, "CHANGES_FROM", 4)
    knobs = ("translate_px", "width", "width", "label_smoothing") if helps else ("translate_px", "width", "smooth")
    verdicts = iter([one in helps for one in knobs])
    monkeypatch.setattr(baseline, "rises", lambda models, before: next(verdicts))
    found = fit("digits", "9", tmp_path / "out", num_trials=14, epochs=2, device="cpu")
    assert json.loads((found.out / "fit.json").read_text())["training"] == kept
    assert {path.name for path in (found.out / "trainings").iterdir() if path.is_dir()} == tried
    width = {"width": 64} if kept else {}
    assert (dict(found.training.model_options), found.training.translate_px) == (width, 0)
    assert found.training.label_smoothing == (0.1 if kept else 0.0)
    assert ("(width 64, label smoothing 0.1, averaged weights)" in str(found)) == bool(kept)


def test_more_time_lets_a_baseline_grow_that_was_still_improving(tmp_path, monkeypatch, without_files, in_this_process):
    monkeypatch.setattr(budget.Budget, "trials_left", lambda self, epochs: 0)  # no rivals, no more seeds
    monkeypatch.setattr(budget, "probe", lambda *_: 0.01)
    monkeypatch.setattr(baseline.Baseline, "_can_try", lambda *_: False)
    lengths = iter([None, None, None])
    monkeypatch.setattr(budget.Budget, "longer", lambda self, epochs, num_trials: next(lengths))
    short = fit("digits", "9", tmp_path / "out", budget=60, device="cpu")
    assert short.answer.made.effort.still_improving
    assert str(short).startswith("Still improving when the time was up. ")
    option = re.search(r"2 seeds trained, 5 are needed. The same command with --budget (\d+)m resumes", str(short))
    assert 1 <= int(option[1]) <= 5
    again = fit("digits", "9", tmp_path / "out", budget=60, device="cpu")
    assert str(again) == str(short)
    lengths = iter([2 * short.training.epochs, None])
    monkeypatch.setattr(baseline, "rises", lambda models, before: True)
    values = iter([0.5, 0.9, 0.9, 0.5])  # the first length, the longer one, and both again
    monkeypatch.setattr(baseline, "accuracy_of", lambda models: next(values))
    longer = fit("digits", "9", tmp_path / "out", budget=90, device="cpu")
    assert longer.training.epochs == 2 * short.training.epochs
    with open_run(tmp_path / "out") as run:
        assert run.training["epochs"] == longer.training.epochs
    assert longer.load().trained.training.epochs == longer.training.epochs
