"""A whole fit: what it leaves, that its figures are right, that it repeats, resumes, stops and never peeks at test."""

import html
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
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
from camri.fitting import Handed, Interval, Unfinished, answer, fit, outputs
from camri.metrics import pool
from camri.models import build
from camri.report.answer import answer as answer_of
from camri.report.page import render, write_page
from camri.report.tables import steps_table
from camri.study.reader import RunReader
from camri.study.store import open_run
from tests.fitting.conftest import ASKED, IMPORTANT, interrupt, told, weights_of


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
    assert (fitted.num_trainings, fitted.num_failed, fitted.finished) == (5, 0, True)
    assert fitted.num_trials <= ASKED["num_trials"]


def test_the_model_handed_over_does_what_is_said_of_it(fitted, digits):
    model = camri.load(fitted.model_path)
    test = digits.splits["test"]
    labels = [digits.classes[index] for index in test.labels.tolist()]
    right = [said == label for said, label in zip(model.predict(test.inputs.numpy()), labels, strict=True)]
    handed = fitted.handed
    assert (sum(right), len(right)) == (handed.num_right, handed.num_images)
    own = [one for one, label in zip(right, labels, strict=True) if label == IMPORTANT]
    assert ((sum(own),), (len(own),)) == (handed.hits, handed.num)
    assert handed.accuracy.estimate == pytest.approx(np.mean(right))
    assert handed.accuracy.low < np.mean(right) < handed.accuracy.high
    said = model.predict(test.inputs.numpy())
    alarms = sum(one == IMPORTANT != label for one, label in zip(said, labels, strict=True))
    assert (handed.called, handed.num_false_alarms) == ((said.count(IMPORTANT),), alarms)
    assert handed.false_alarms.estimate == pytest.approx(alarms / len(labels))
    assert model.important == (IMPORTANT,)
    assert model.trained.shift == fitted.shift


def test_it_is_the_best_on_validation_data_of_its_setting(fitted, digits):
    """The shift is that of all its models, by a prior; of models at or above the floor with it, the best recall."""
    nine = digits.class_index(IMPORTANT)
    with open_run(fitted.out) as run:
        baseline = pool([run.scores(row, "val", (nine,)) for row in run.rows(method="ce")])
        mine = {row.seed: run.scores(row, "val", (nine,)) for row in run.rows(key=fitted.setting.key)}
    floor, share = baseline.accuracy(), float((baseline.predict() == nine).mean())
    found = choose_shift(list(mine.values()), accuracy_floor=floor, negative=True, prior=Prior(floor, share, 500))
    assert fitted.shift == (found.shift if found is not None else (0.0,))
    worth = {}
    for seed, scores in mine.items():
        accuracy = scores.accuracy(fitted.shift)
        worth[seed] = (float(scores.recall(fitted.shift)[0]) if accuracy >= floor - 1e-9 else -1.0, accuracy)
    assert worth[fitted.handed.seed] == max(worth.values())


def test_before_is_plain_cross_entropy_as_trained(fitted, digits):
    nine = digits.class_index(IMPORTANT)
    folder = fitted.out if fitted.training_name == "plain" else fitted.out / "trainings" / "before"
    with open_run(folder) as run:
        rows = [row for row in run.rows(method="ce") if row.seed in seeds_in(fitted.out)]
    assert len(rows) == fitted.num_seeds >= 2
    assert fitted.before.recall == pytest.approx(np.mean([row.recall["test"][nine] for row in rows]))
    assert fitted.before.accuracy == pytest.approx(np.mean([row.accuracy["test"] for row in rows]))
    assert fitted.before.num == fitted.num_seeds * fitted.handed.num[0]


def test_steps_add_up_to_the_whole_gain(fitted):
    names = [step.name for step in fitted.steps]
    assert names[0] == "before"
    assert names[-1] == "together"
    assert "shift" in names
    assert ("method" in names) == (fitted.setting.method != "ce")
    for gain, figure in (
        ("recall_gain", "recall"),
        ("accuracy_gain", "accuracy"),
        ("false_alarms_added", "false_alarms"),
    ):
        single = [getattr(step, gain).estimate for step in fitted.steps[1:-1]]
        assert sum(single) == pytest.approx(getattr(fitted, gain).estimate)
        difference = getattr(fitted.after, figure) - getattr(fitted.before, figure)
        assert getattr(fitted, gain).estimate == pytest.approx(difference)


def test_the_claim_is_made_with_seeds_that_nothing_was_chosen_by(fitted):
    decided = json.loads((fitted.out / "fit.json").read_text())
    assert seeds_in(fitted.out) == set(range(500, 500 + decided["final_seeds"]))
    for name in decided["trainings"]:
        found = seeds_in(fitted.out / "trainings" / name)
        assert found == set(range(len(found)))


def test_the_page_shows_the_steps_and_is_made_again_from_the_store(fitted):
    page = (fitted.out / "report.html").read_text(encoding="utf-8")
    assert "What each step gave" in page
    assert fitted.steps[0].title in page
    assert "camri fit digits --important 9 --trials 30" in page
    assert "Not finished" not in page
    with RunReader(fitted.out) as reading:
        again = render(reading)
    assert again == page


def test_the_answer_and_the_card_say_the_figures(fitted):
    before, after = fitted.before, fitted.after
    assert f"{before.recall:.3f} → {after.recall:.3f}" in fitted.answer
    assert f"hits {before.hits}/{before.num} → {after.hits}/{after.num}" in fitted.answer
    halves = "halves of the seeds picked different settings"
    known = replace(fitted, over_shifted=Interval(0.01, -0.01, 0.03), gain_is_shown=False, is_unanimous=False)
    assert halves in answer.verdict(known)
    assert "+1.0 points [−1.0, +3.0] of recall. That a method was needed is not shown" in answer.verdict(known)
    assert halves not in answer.verdict(replace(known, is_unanimous=True))
    assert "earns its keep" in answer.verdict(replace(known, gain_is_shown=True))
    kept = answer.verdict(replace(known, over_shifted=None, shift=(0.5,)))
    assert kept.startswith("No method beat cross-entropy with a shift on validation data, so that is what you get: ")
    assert kept.endswith("cross-entropy and a constant added to the important scores. It needs no special loss.")
    bare = answer.verdict(replace(known, over_shifted=None, shift=(0.0,)))
    assert bare.endswith(
        "cross-entropy, whose best shift for all models together is none; in the steps each has its own. It needs no "
        "special loss."
    )
    card = (fitted.model_path / "README.md").read_text(encoding="utf-8")
    for text in ("Limits", f"{fitted.handed.hits[0]}/{fitted.handed.num[0]}", fitted.steps[1].title, "camri predict"):
        assert text in card
    digits = load("digits")
    assert "About the data" not in answer.card(replace(fitted, caution=None), digits)
    for data, one, several in (
        (digits, "8x8x1 images, uint8", "images"),
        (as_table(digits), "64 features, float32", "rows"),
    ):
        text = " ".join(answer.card(fitted, data).split())
        assert f"inputs are {one}; 1,258 train, 539 test. Trained by camri" in text
        assert f"This one model on 539 test {several} that nothing was chosen on: " in text
        assert f"Intervals are 95 %, over {several}. The procedure" in text
        assert f"on the same {several}, differences with 95 % intervals over seeds and {several}: |" in text
        assert f"The figures hold for data like the test {several}. " in text
    names = [f"pixel {place}" for place in range(64)]
    named = replace(as_table(digits), provenance={"feature_columns": names})
    assert (
        "model.predict(rows)  # numbers (N, 64)\n```\n\n"
        "The 64 columns in their order, which `camri predict` finds by name: "
        "`pixel 0`, `pixel 1`, "
    ) in answer.card(fitted, named)
    assert "`pixel 48`, …, `pixel 63`. `config.json` has all of them.\n\nPreprocessing" in answer.card(fitted, named)
    few = replace(as_table(digits), provenance={"feature_columns": ["embedding"]})
    for data in (few, digits):
        assert "columns in their order" not in answer.card(fitted, data)
    shifted = [answer.card(replace(fitted, shift=(shift,)), digits) for shift in (0.5, 0.0)]
    assert ["Preprocessing and the shift are inside" in text for text in shifted] == [True, False]
    assert ["Preprocessing is inside" in text for text in shifted] == [False, True]
    assert ["those of the shifted" in text for text in shifted] == [True, False]
    assert "\ncamri predict 'my run/model' FILES…\n" in answer.card(
        replace(fitted, model_path=Path("my run/model")), load("digits")
    )
    assert answer.shift_text(replace(fitted, shift=(-0.5094,))) == "shift −0.509 on “9”"
    assert answer.shift_text(replace(fitted, shift=(0.0,))) == "no shift"


def test_the_answer_and_the_card_say_what_recall_costs_in_false_alarms(fitted, capsys):
    before = replace(fitted.before, false_alarms=0.0124, precisions=(0.95,))
    after = replace(fitted.after, false_alarms=0.0148, precisions=(0.931,))
    changed = Interval(0.0024, -0.001, 0.007)
    told = replace(fitted, before=before, after=after, false_alarms_added=changed, num_seeds=5)
    assert answer.compose(told).split("\n")[2] == (
        "False alarms: 1.24 → 1.48 in a hundred, +0.24 [−0.10, +0.70]; precision of “9” 0.950 → 0.931."
    )
    assert "in a hundred, +0.24 (no interval of 2 models); precision" in answer.false_alarms(replace(told, num_seeds=2))
    several = replace(
        told,
        important=("8", "9"),
        before=replace(before, precisions=(None, 0.5)),
        after=replace(after, precisions=(0.25, None)),
    )
    assert answer.false_alarms(several).endswith(
        "; precision of “8” none (never predicted) → 0.250, of “9” 0.500 → none (never predicted)."
    )
    handed = Handed.of(fitted.setting, 1, (0.0, 0.0), [9, 0], [10, 4], 90, 100, [12, 0], 2)
    assert answer.own_figures(replace(several, handed=handed)) == (
        "recall of “8” 0.900 (9/10; 0.596 to 0.982), precision 0.750 (9/12; 0.468 to 0.911), "
        "recall of “9” 0.000 (0/4; 0.000 to 0.490), precision none (never predicted), "
        "accuracy 0.900 (90/100; 0.826 to 0.945), false alarms 2.00 in a hundred (2/100; 0.55 to 7.00)"
    )
    card = (fitted.model_path / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in card.splitlines() if line.startswith("|")]
    assert [row[5] for row in rows] == [
        "false alarms", "---", *(f"{100 * step.figures.false_alarms:.2f}" for step in fitted.steps)
    ]  # fmt: skip
    assert f"{answer.false_alarms(fitted)} A false alarm is one of the images of no important class" in card
    fit_view.print_fitted(fitted)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[2 : 2 + len(fitted.steps)]]
    for words, step in zip(shown, fitted.steps, strict=True):
        assert f"{100 * step.figures.false_alarms:.2f}" == words[words.index(f"{step.figures.accuracy:.3f}") + 1]


def test_a_fit_of_a_version_that_told_no_false_alarms_goes_on_with_its_model(fitted, trained, without_files):
    path, card = fitted.out / "fit.json", fitted.model_path / "README.md"
    decided, weights = path.read_text(), weights_of(fitted)
    old = json.loads(decided)
    del old["handed"]["called"], old["handed"]["num_false_alarms"]
    path.write_text(json.dumps(old))
    card.write_text("of an earlier version")
    with open_run(fitted.out) as run:
        steps = run.note("steps")
    for step in steps:
        del step["false_alarms"], step["precisions"], step["false_alarms_added"]
    with closing(sqlite3.connect(fitted.out / "outcomes.sqlite")) as store, store:
        store.execute("UPDATE meta SET value = ? WHERE name = 'note.steps'", (json.dumps(steps),))
    with RunReader(fitted.out) as reading:
        table = steps_table(reading)
        assert "What each step gave" in render(reading)
    place = table.header.index("false alarms")
    assert [row[place].text for row in table.rows] == ["–"] * len(fitted.steps)
    assert [one["false_alarms"] for one in table.records] == [None] * len(fitted.steps)
    assert camri.load(fitted.model_path).important == (IMPORTANT,)
    again = fit("digits", IMPORTANT, fitted.out, **ASKED)
    assert trained.trials == []
    assert told(again) == told(fitted)
    assert weights_of(again) == weights
    assert path.read_text() == decided
    assert answer.false_alarms(fitted) in card.read_text(encoding="utf-8")
    with RunReader(fitted.out) as reading:
        table = steps_table(reading)
    assert [row[place].text for row in table.rows] == [f"{100 * one.figures.false_alarms:.2f}" for one in fitted.steps]
    last = fitted.steps[-1].false_alarms_added
    assert table.records[-1]["false_alarms_added_estimate"] == last.estimate


def test_the_card_says_what_is_the_matter_with_the_data(fitted):
    digits = load("digits")
    told = replace(digits, provenance={**digits.provenance, "notes": ["3 test images are copies"]})
    assert "\n- About the data: 3 test images are copies.\n" in answer.card(fitted, told)
    mute = replace(fitted, caution="all are found")
    assert "Caution: all are found.\n" in answer.compose(replace(mute, finished=False))
    assert "\n- About the data: all are found.\n" in answer.card(mute, digits)
    assert "Caution" not in answer.compose(replace(fitted, caution=None))


def test_the_same_call_gives_the_same_result(fitted, tmp_path, without_files):
    again = fit("digits", IMPORTANT, tmp_path / "again", **ASKED)
    assert told(again) == told(fitted)
    assert weights_of(again) == weights_of(fitted)


def test_a_finished_fit_trains_nothing_more(fitted, trained, without_files):
    with pytest.MonkeyPatch.context() as patch:
        heard = []
        patch.setattr(outputs, "doubts", lambda *given: heard.append(given[1:]) or ["few rows", "at chance"])
        doubted = fit("digits", IMPORTANT, fitted.out, **ASKED)
        assert heard == [((9,), fitted.before.accuracy)]
        assert doubted.caution.endswith("few rows; at chance")
    again = fit("digits", IMPORTANT, fitted.out, **ASKED)
    assert trained.trials == []
    assert told(again) == told(fitted)
    assert again.wall_s == fitted.wall_s


def test_a_model_that_an_earlier_rule_gave_another_shift_is_saved_anew(fitted, without_files):
    path = fitted.out / "fit.json"
    kept = path.read_text()
    said = json.loads(kept)
    said["handed"]["of"][3] = said["handed"]["shift"] = [9.0]
    path.write_text(json.dumps(said))
    again = fit("digits", IMPORTANT, fitted.out, **ASKED)
    assert again.handed == fitted.handed
    assert json.loads(path.read_text())["handed"] == json.loads(kept)["handed"]


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


def test_after_a_kill_in_the_finals_the_same_command_goes_on(fitted, tmp_path, trained, without_files, in_this_process):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out"), "22"], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not (tmp_path / "out" / "model").exists()
    again = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert len(trained.trials) == len(set(trained.trials)) == fitted.num_trials - 22
    assert told(again) == told(fitted)
    assert weights_of(again) == weights_of(fitted)


def test_after_a_break_among_the_candidates_the_same_command_goes_on(fitted, tmp_path, trained, without_files):
    def break_off():
        raise MemoryError

    trained.after = {9: break_off}
    with pytest.raises(MemoryError):
        fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    again = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.num_trials
    assert told(again) == told(fitted)


def test_nothing_is_chosen_by_test_labels(fitted, digits, tmp_path, without_files):
    """With the test labels dealt out anew, everything that is chosen stays, and only what is said of it changes."""
    test = digits.splits["test"]
    dealt = test.labels[torch.randperm(len(test), generator=torch.Generator().manual_seed(1))]
    splits = {**digits.splits, "test": Split(test.inputs, dealt)}
    blind = fit(replace(digits, splits=splits), IMPORTANT, tmp_path / "out", **ASKED)
    assert blind.handed.accuracy.estimate < 0.3
    assert (blind.setting, blind.shift, blind.handed.seed) == (fitted.setting, fitted.shift, fitted.handed.seed)
    assert (blind.training, blind.num_seeds) == (fitted.training, fitted.num_seeds)
    assert weights_of(blind) == weights_of(fitted)
    mine, other = (json.loads((one.out / "fit.json").read_text()) for one in (blind, fitted))
    for name in ("training", "important", "race", "finalists", "final_seeds"):
        assert mine[name] == other[name]


def test_an_interrupt_in_the_finals_hands_back_the_best_so_far(
    fitted, tmp_path, trained, without_files, in_this_process
):
    trained.after = {fitted.num_trials - 1: interrupt}
    early = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert (early.finished, early.model_path.is_dir()) == (False, True)
    with open_run(tmp_path / "out") as run:
        stored = {f"{name}.safetensors" for name in run.statuses()}
    assert {path.name for path in (tmp_path / "out" / "weights").iterdir()} == stored
    assert 2 <= early.num_seeds <= fitted.num_seeds
    assert early.num_trials < fitted.num_trials
    assert "the same command goes on" in early.answer
    assert camri.load(early.model_path).trained.seed == early.handed.seed
    trained.after = {}
    whole = fit("digits", IMPORTANT, tmp_path / "out", **ASKED)
    assert told(whole) == told(fitted)
    assert len(trained.ended) == len(set(trained.ended)) == fitted.num_trials
    assert not (tmp_path / "out" / "weights").exists()


def test_an_early_interrupt_says_what_is_missing(tmp_path, trained, without_files, in_this_process):
    trained.after = {3: interrupt}
    with pytest.raises(
        Unfinished, match=r"while trainings were compared.*3 trials are stored.*the same command goes on"
    ):
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
    found = fit(data, ["d", "b:0.5"], tmp_path / "out", num_trials=18, epochs=3, device="cpu", keep_accuracy=0.02)
    assert found.important == ("b", "d")
    assert found.training.model == "features"
    decided = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert decided["important"] == [[3, 1.0], [1, 0.5]]
    with open_run(tmp_path / "out") as run:
        (column,) = run.columns()
        assert (column.names, column.strengths) == (("d", "b"), (1.0, 0.5))
        assert run.note("rule")["tolerance"] == 0.02
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
    assert all(text in page for text in ("The curve: what recall costs", "Who paid", "What each step gave"))


def test_the_page_answers_what_the_fit_told(fitted):
    with RunReader(fitted.out) as reading:
        said = answer_of(reading, [])
    lines = fitted.answer.split("\n")
    assert said.sentence == f"{lines[0]} {lines[1]}"
    assert list(said.details) == lines[2:]
    assert said.kind == answer.note(fitted)["kind"]
    assert html.escape(lines[1], quote=False) in fitted.page_path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recall_low", "accuracy_high", "allowed", "kind", "fell"),
    [
        (0.01, -0.001, 0.0, "none", True),
        (0.01, -0.001, 0.01, "gain", False),
        (0.01, 0.0, 0.0, "gain", False),
        (0.0, 0.001, 0.0, "none", False),
    ],
)
def test_recall_that_accuracy_surely_paid_for_is_no_gain(fitted, recall_low, accuracy_high, allowed, kind, fell):
    recall, accuracy = Interval(0.05, recall_low, 0.1), Interval(-0.02, -0.04, accuracy_high)
    told = answer.note(replace(fitted, recall_gain=recall, accuracy_gain=accuracy, keep_accuracy=allowed))
    assert told["kind"] == kind
    assert told["sentence"].endswith("It fell by more than was allowed; validation data did not show it.") is fell
