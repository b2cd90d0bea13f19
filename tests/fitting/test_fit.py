"""A whole fit: what it leaves, that its figures are right, that it repeats, resumes, stops and never peeks at test."""

import html
import json
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
from camri.cli import fit_view
from camri.data import DataSet, Split, hold_out, load
from camri.decision import Prior, choose_shift
from camri.fitting import Unfinished, answer, fit, outputs
from camri.fitting.result import Gains, Handed, Step
from camri.metrics import pool
from camri.models import build
from camri.report.answer import answer as answer_of
from camri.report.page import render, write_page
from camri.report.tables import steps_table
from camri.stats import Estimate
from camri.study.reader import RunReader
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
    assert names == {"fit.json", "model", "outcomes.sqlite", "report.html", "run.lock", "trainings"}
    files = {path.name for path in fitted.model_path.iterdir()}
    assert files == {"README.md", "config.json", "model.onnx", "model.safetensors"}
    assert json.loads((fitted.out / "fit.json").read_text())["finished"] is True
    assert (fitted.effort.num_trainings, fitted.effort.num_failed, fitted.finished) == (5, 0, True)
    assert fitted.effort.num_trials <= ASKED["num_trials"]


def test_the_model_handed_over_does_what_is_reported(fitted, digits):
    model = camri.load(fitted.model_path)
    test = digits.splits["test"]
    labels = [digits.classes[index] for index in test.labels.tolist()]
    right = [said == label for said, label in zip(model.predict(test.inputs.numpy()), labels, strict=True)]
    handed = fitted.handed
    assert (sum(right), len(right)) == (handed.num_right, handed.num_images)
    own = [one for one, label in zip(right, labels, strict=True) if label == IMPORTANT]
    assert ((sum(own),), (len(own),)) == (handed.hits, handed.num)
    assert handed.accuracy.value == pytest.approx(np.mean(right))
    assert handed.accuracy.low < np.mean(right) < handed.accuracy.high
    said = model.predict(test.inputs.numpy())
    alarms = sum(one == IMPORTANT != label for one, label in zip(said, labels, strict=True))
    assert (handed.called, handed.num_false_alarms) == ((said.count(IMPORTANT),), alarms)
    assert handed.false_alarms.value == pytest.approx(alarms / len(labels))
    assert model.important == (IMPORTANT,)
    assert model.trained.shift == fitted.handed.shift


def test_it_is_the_best_on_validation_data_of_its_setting(fitted, digits):
    """The shift is that of all its models, by a prior; of models at or above the floor with it, the best recall."""
    nine = digits.class_index(IMPORTANT)
    with open_run(fitted.out) as run:
        baseline = pool([run.scores(row, "val", (nine,)) for row in run.rows(method="ce")])
        mine = {row.seed: run.scores(row, "val", (nine,)) for row in run.rows(key=fitted.handed.setting.key)}
    floor, share = baseline.accuracy(), float((baseline.predict() == nine).mean())
    found = choose_shift(list(mine.values()), accuracy_floor=floor, negative=True, prior=Prior(floor, share, 500))
    assert fitted.handed.shift == (found.shift if found is not None else (0.0,))
    worth = {}
    for seed, scores in mine.items():
        accuracy = scores.accuracy(fitted.handed.shift)
        worth[seed] = (float(scores.recall(fitted.handed.shift)[0]) if accuracy >= floor - 1e-9 else -1.0, accuracy)
    assert worth[fitted.handed.seed] == max(worth.values())


def test_before_is_plain_cross_entropy_as_trained(fitted, digits):
    nine = digits.class_index(IMPORTANT)
    folder = fitted.out if fitted.training_name == "plain" else fitted.out / "trainings" / "before"
    with open_run(folder) as run:
        rows = [row for row in run.rows(method="ce") if row.seed in seeds_in(fitted.out)]
    assert len(rows) == fitted.evidence.num_seeds >= 2
    assert fitted.evidence.before.recall == pytest.approx(np.mean([row.recall["test"][nine] for row in rows]))
    assert fitted.evidence.before.accuracy == pytest.approx(np.mean([row.accuracy["test"] for row in rows]))
    assert fitted.evidence.before.num == fitted.evidence.num_seeds * fitted.handed.num[0]


def test_steps_add_up_to_the_whole_gain(fitted):
    names = [step.name for step in fitted.evidence.steps]
    assert names[0] == "before"
    assert names[-1] == "together"
    assert "shift" in names
    assert ("method" in names) == (fitted.handed.setting.method != "ce")
    for figure in ("recall", "accuracy", "false_alarms"):
        single = [getattr(step.gains, figure).value for step in fitted.evidence.steps[1:-1]]
        whole = getattr(fitted.evidence.gains, figure).value
        assert sum(single) == pytest.approx(whole)
        difference = getattr(fitted.evidence.after, figure) - getattr(fitted.evidence.before, figure)
        assert whole == pytest.approx(difference)


def test_the_claim_is_made_with_seeds_that_nothing_was_chosen_by(fitted):
    decided = json.loads((fitted.out / "fit.json").read_text())
    assert seeds_in(fitted.out) == set(range(500, 500 + decided["final_seeds"]))
    for name in decided["trainings"]:
        found = seeds_in(fitted.out / "trainings" / name)
        assert found == set(range(len(found)))


def test_the_page_shows_the_steps_and_is_made_again_from_the_store(fitted):
    page = (fitted.out / "report.html").read_text(encoding="utf-8")
    assert "What each step gave" in page
    assert fitted.evidence.steps[0].title in page
    assert "camri fit digits --important 9 --trials 30" in page
    assert "Not finished" not in page
    with RunReader(fitted.out) as reading:
        again = render(reading)
    assert again == page


def changed(fitted, **changes):
    """The fit with other evidence."""
    return replace(fitted, evidence=replace(fitted.evidence, **changes))


def with_shift(fitted, *shift):
    return replace(fitted, handed=replace(fitted.handed, shift=shift))


def test_the_answer_says_the_model_first_and_what_to_expect(fitted):
    model, before, after = fitted.handed, fitted.evidence.before, fitted.evidence.after
    lines = answer.compose(fitted)
    mean = before.hits / fitted.evidence.num_seeds
    assert lines[0].startswith(f"“9”: found {model.hits[0]} of {model.num[0]} (before: {mean:.1f})")
    assert f"{100 * before.recall:.1f} % → {100 * after.recall:.1f} %" in lines[2]
    assert str(fitted) == fitted.answer == "\n".join(lines)


def test_the_verdict_is_one_of_four(fitted):
    known = changed(
        fitted, over_shifted=Estimate(0.01, -0.01, 0.03), gain_is_shown=False, is_unanimous=False, num_seeds=5
    )
    assert "+1.0 points (95 % CI −1.0 to +3.0)" in answer.verdict(known)
    assert answer.verdict(known).startswith("Cannot tell")
    assert answer.verdict(changed(known, gain_is_shown=True)).startswith("Train with")
    unsure = changed(known, over_shifted=Estimate(0.02, 0.01, 0.03), p=0.07)
    assert "p = 0.07" in answer.verdict(unsure)
    assert "Accuracy dropped" in answer.verdict(changed(unsure, p=0.01))
    assert "halves" in answer.verdict(known)
    assert "halves" not in answer.verdict(changed(known, is_unanimous=True))
    kept = changed(known, over_shifted=None)
    assert answer.verdict(with_shift(kept, 0.5)).startswith("Change the decision")
    assert answer.verdict(with_shift(kept, 0.0)).startswith("Nothing to gain")


def test_the_card_describes_the_model_and_its_inputs(fitted):
    card = (fitted.model_path / "README.md").read_text(encoding="utf-8")
    handed = fitted.handed
    for text in ("Limits", f"{handed.hits[0]}/{handed.num[0]}", fitted.evidence.steps[1].title, "camri predict"):
        assert text in card
    digits = load("digits")
    for data, kind, several in (
        (digits, "8x8x1 images, uint8", "images"),
        (as_table(digits), "64 features, float32", "rows"),
    ):
        text = " ".join(answer.card(fitted, data).split())
        assert f"inputs are {kind}; 1,258 train, 539 test." in text
        assert f"on 539 test {several} that nothing was chosen on: " in text
    names = [f"pixel {place}" for place in range(64)]
    named = answer.card(fitted, replace(as_table(digits), provenance={"feature_columns": names}))
    assert "model.predict(rows)  # numbers (N, 64)\n```\n\nThe 64 columns in order" in named
    assert "`pixel 0`, `pixel 1`, " in named
    assert "`pixel 48`, …, `pixel 63`. `config.json` has all of them.\n\nPreprocessing" in named
    few = replace(as_table(digits), provenance={"feature_columns": ["embedding"]})
    for data in (few, digits):
        assert "columns in order" not in answer.card(fitted, data)
    shifted = [answer.card(with_shift(fitted, shift), digits) for shift in (0.5, 0.0)]
    assert ["the shift are part of the model" in text for text in shifted] == [True, False]
    quoted = answer.card(replace(fitted, out=Path("my run")), digits)
    assert "\ncamri predict 'my run/model' FILES…\n" in quoted
    assert answer.shift_text(with_shift(fitted, -0.5094)) == "shift −0.509 on “9”"
    assert answer.shift_text(with_shift(fitted, 0.0)) == "no shift"
    one = replace(fitted, training=fitted.training.with_(epochs=1))
    assert ", 1 epoch)" in answer.card(one, digits)


def test_the_answer_says_what_recall_costs_in_false_alarms(fitted):
    before = replace(fitted.evidence.before, false_alarms=0.0124, precisions=(0.95,))
    after = replace(fitted.evidence.after, false_alarms=0.0148, precisions=(0.931,))
    none = Estimate(0.0, 0.0, 0.0)
    gains = Gains(none, none, Estimate(0.0024, -0.001, 0.007))
    steps = (Step("before", "", before, None), Step("together", "", after, gains))
    cost = changed(fitted, steps=steps, num_seeds=5)
    said = "false alarms 1.24 % → 1.48 %, +0.24 points (95 % CI −0.10 to +0.70); precision of “9” 95.0 % → 93.1 %."
    assert answer.expectation(cost).endswith(said)
    assert "+0.24 points (no interval: 2 seeds)" in answer.expectation(changed(cost, num_seeds=2))
    steps = (
        replace(steps[0], figures=replace(before, precisions=(None, 0.5))),
        replace(steps[1], figures=replace(after, precisions=(0.25, None))),
    )
    several = replace(changed(cost, steps=steps), important=("8", "9"))
    assert answer.expectation(several).endswith(
        "precision of “8” none (never predicted) → 25.0 %, precision of “9” 50.0 % → none (never predicted)."
    )
    model = Handed(fitted.handed.setting, 1, (0.0, 0.0), (9, 0), (10, 4), (12, 0), 90, 100, 2)
    assert answer.own_figures(replace(several, handed=model)) == (
        "recall of “8” 90.0 % (9/10; 95 % CI 59.6 to 98.2), precision 75.0 % (9/12; 95 % CI 46.8 to 91.1), "
        "recall of “9” 0.0 % (0/4; 95 % CI 0.0 to 49.0), precision none (never predicted), "
        "accuracy 90.0 % (90/100; 95 % CI 82.6 to 94.5), false alarms 2.00 % (2/100; 95 % CI 0.55 to 7.00)"
    )


def test_terminal_page_and_card_show_the_same_table_of_steps(fitted, capsys):
    steps = answer.steps_table(fitted)
    assert len(steps["rows"]) == len(fitted.evidence.steps)
    for row, step in zip(steps["rows"], fitted.evidence.steps, strict=True):
        assert row[4] == f"{100 * step.figures.false_alarms:.2f} %"
    card = (fitted.model_path / "README.md").read_text(encoding="utf-8")
    fit_view.print_fitted(fitted)
    shown = capsys.readouterr().out.splitlines()
    with RunReader(fitted.out) as reading:
        table = steps_table(reading)
    assert list(table.header) == steps["header"]
    for row, cells in zip(steps["rows"], table.rows, strict=True):
        assert [cell.text for cell in cells] == row
        assert f"| {' | '.join(row)} |" in card
        assert any(line.split() == " ".join(row).split() for line in shown)
    estimate = fitted.evidence.gains.false_alarms.value
    assert table.records[-1]["false_alarms_gain_estimate"] == estimate


def test_cautions_are_in_the_answer_and_on_the_card(fitted):
    digits = load("digits")
    noted = replace(digits, provenance={**digits.provenance, "notes": ["3 test images are copies"]})
    assert "\n- 3 test images are copies.\n" in answer.card(fitted, noted)
    mute = replace(fitted, cautions=("all are found",), finished=False)
    assert "Caution: all are found." in answer.compose(mute)
    assert "resumes" in answer.compose(mute)[-1]
    assert "\n- all are found.\n" in answer.card(mute, digits)
    assert "Caution" not in "".join(answer.compose(replace(fitted, cautions=())))


def test_a_finished_fit_trains_nothing_more(fitted, trained, without_files):
    with pytest.MonkeyPatch.context() as patch:
        heard = []
        patch.setattr(outputs, "doubts", lambda *given: heard.append(given[1:]) or ["few rows", "at chance"])
        patch.setattr(outputs, "outcome_with_weights", None)  # the model is there: it need not be trained again
        doubted = fit("digits", IMPORTANT, fitted.out, **ASKED)
        assert heard == [((9,), fitted.evidence.before.accuracy)]
        assert doubted.cautions[-2:] == ("few rows", "at chance")
    again = fit("digits", IMPORTANT, fitted.out, **ASKED)
    assert trained.trials == []
    assert facts(again) == facts(fitted)
    assert again.effort == fitted.effort


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
trainer.Trainer._workers = lambda self, num_trials: 1
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
    assert len(trained.trials) == len(set(trained.trials)) == fitted.effort.num_trials - 22
    assert facts(again) == facts(fitted)
    assert weights_of(again) == weights_of(fitted)


def test_after_a_break_among_the_candidates_the_same_command_resumes(fitted, tmp_path, trained, without_files):
    def break_off():
        raise MemoryError

    trained.after = {9: break_off}
    with pytest.raises(MemoryError):
        fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    again = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.effort.num_trials
    assert facts(again) == facts(fitted)


def test_nothing_is_chosen_by_test_labels(fitted, digits, tmp_path, without_files):
    """With the test labels dealt out anew, everything that is chosen stays, and only what is said of it changes."""
    test = digits.splits["test"]
    dealt = test.labels[torch.randperm(len(test), generator=torch.Generator().manual_seed(1))]
    splits = {**digits.splits, "test": Split(test.inputs, dealt)}
    blind = fit(replace(digits, splits=splits), IMPORTANT, tmp_path / "out", **ASKED)
    assert blind.handed.accuracy.value < 0.3
    assert (blind.handed.setting, blind.handed.shift, blind.handed.seed) == (
        fitted.handed.setting,
        fitted.handed.shift,
        fitted.handed.seed,
    )
    assert (blind.training, blind.evidence.num_seeds) == (fitted.training, fitted.evidence.num_seeds)
    assert weights_of(blind) == weights_of(fitted)
    mine, other = (json.loads((one.out / "fit.json").read_text()) for one in (blind, fitted))
    for name in ("training", "important", "race", "finalists", "final_seeds"):
        assert mine[name] == other[name]


def test_an_interrupt_in_the_finals_returns_the_best_so_far(fitted, tmp_path, trained, without_files, in_this_process):
    trained.after = {fitted.effort.num_trials - 1: interrupt}
    early = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert (early.finished, early.model_path.is_dir()) == (False, True)
    with open_run(tmp_path / "out") as run:
        stored = {f"{name}.safetensors" for name in run.statuses()}
    assert {path.name for path in (tmp_path / "out" / "weights").iterdir()} == stored
    assert 2 <= early.evidence.num_seeds <= fitted.evidence.num_seeds
    assert early.effort.num_trials < fitted.effort.num_trials
    assert "the same command resumes" in early.answer
    assert camri.load(early.model_path).trained.seed == early.handed.seed
    trained.after = {}
    whole = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert facts(whole) == facts(fitted)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.effort.num_trials
    assert not (tmp_path / "out" / "weights").exists()


def test_an_early_interrupt_says_what_is_missing(tmp_path, trained, without_files, in_this_process):
    trained.after = {3: interrupt}
    with pytest.raises(Unfinished, match=r"comparing trainings.*3 trials are stored.*the same command resumes"):
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
    with open_run(tmp_path / "out" / "trainings" / found.training_name) as run:
        recalls = np.mean([row.recall["val"] for row in run.rows(method="ce") if row.seed < 500], axis=0)
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
    assert abs(int((predicted == labels).sum()) - found.handed.num_right) <= 1  # scaled back and forth in float32
    assert found.handed.num == ((labels == 1).sum(), (labels == 3).sum())
    page = write_page(tmp_path / "out").read_text(encoding="utf-8")
    assert "What each step gave" in page


def test_the_page_answers_what_the_fit_answered(fitted):
    with RunReader(fitted.out) as reading:
        said = answer_of(reading, [])
    assert [said.sentence, *said.details] == answer.compose(fitted)
    assert said.kind == answer.note(fitted)["kind"]
    assert html.escape(said.sentence, quote=False) in fitted.page_path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recall_low", "accuracy_high", "allowed", "kind", "dropped"),
    [
        (0.01, -0.001, 0.0, "none", True),
        (0.01, -0.001, 0.01, "gain", False),
        (0.01, 0.0, 0.0, "gain", False),
        (0.0, 0.001, 0.0, "none", False),
    ],
)
def test_recall_bought_with_accuracy_is_no_gain(fitted, recall_low, accuracy_high, allowed, kind, dropped):
    gains = Gains(Estimate(0.05, recall_low, 0.1), Estimate(-0.02, -0.04, accuracy_high), Estimate(0, 0, 0))
    steps = (*fitted.evidence.steps[:-1], replace(fitted.evidence.steps[-1], gains=gains))
    made = replace(changed(fitted, steps=steps, num_seeds=5), max_accuracy_drop=allowed)
    assert answer.note(made)["kind"] == kind
    assert made.accuracy_dropped is dropped
    assert any("dropped by more than allowed" in line for line in answer.compose(made)) is dropped
