"""`camri predict` and `camri export`: every input in its order, bad ones named, nothing that acts on a terminal."""

import csv
import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from camri.cli import app
from camri.data import load as load_data
from camri.decision import Shift
from camri.errors import InputError
from camri.export import Model, load, save
from camri.export.inputs import CHUNK_ROWS, Images, find_inputs, predict
from camri.export.model import preprocessing_of
from camri.methods import setting
from camri.text import csv_cell, csv_path, visible
from tests.export.conftest import made_trained

NAMES = [f"a{i}.png" for i in range(4)]


@pytest.fixture
def rows(data):
    return data.splits["test"].inputs.numpy()


@pytest.fixture
def photos(rows, tmp_path, monkeypatch):
    """A folder of four images of the model's size, a broken one, a text; the working folder is beside it."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for name, image in zip(NAMES, rows, strict=False):
        Image.fromarray(image[..., 0]).save(folder / name)
    (folder / "more" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (folder / "notes.txt").write_text("notes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return folder


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def read_csv(text):
    return list(csv.DictReader(text.splitlines()))


def names(model, *words):
    groups, left_out = find_inputs([str(word) for word in words], model.trained)
    return [one.name for one in predict(model, groups)], len(left_out)


def test_a_folder_is_predicted_as_its_pixels_are(saved, photos, rows):
    done = run("predict", saved, "photos", "--csv", "out.csv")
    assert done.exit_code == 1, done.output
    table = read_csv(Path("out.csv").read_text())
    assert [row["file"] for row in table] == [f"photos/{name}" for name in [*NAMES, "more/broken.png"]]
    model = load(saved)
    expected = model.predict_proba(rows[:4])
    for row, probabilities, predicted in zip(table, expected, model.predict(rows[:4]), strict=False):
        found = [float(row[f"p:{name}"]) for name in model.classes]
        np.testing.assert_allclose(found, probabilities, atol=1e-5)
        assert row["predicted"] == predicted
        assert float(row["probability"]) == max(found)
        assert row["problem"] == row["row"] == ""
    assert table[-1]["problem"] == "it is not an image of a known kind"
    assert table[-1]["predicted"] == table[-1]["p:stop"] == ""
    assert "4 of 5 predicted in out.csv: " in done.output
    assert "1 other file in the folders left out (.txt)" in done.output
    assert "photos/more/broken.png: it is not an image of a known kind" in done.output
    assert sorted(os.listdir(".")) == ["out.csv", "photos"]


def test_the_kinds_of_files_that_were_left_out_are_reported(saved, photos):
    for name in ("b.HEIC", "c.heic", "d"):
        (photos / name).write_text("no image")
    done = run("predict", saved, "photos")
    assert "4 other files in the folders left out (.heic, .txt, no ending)" in done.output


def test_the_terminal_s_table(saved, photos, rows):
    done = run("predict", saved, *[f"photos/{name}" for name in NAMES])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    model = load(saved)
    assert lines[0].split() == ["file", "predicted", "probability", "p(stop)"]
    for line, name, probabilities in zip(lines[1:], NAMES, model.predict_proba(rows[:4]), strict=False):
        best = int(probabilities.argmax())
        expected = [model.classes[best], f"{probabilities[best]:.3f}", f"{probabilities[1]:.3f}"]
        assert line.split()[1:] == expected
        assert line.startswith(f"photos/{name} ")
    assert max(map(len, lines)) <= 80


def test_standard_output_is_csv_alone(saved, photos):
    done = run("predict", saved, "photos", "--csv", "-")
    assert [row["file"] for row in read_csv(done.stdout)] == [f"photos/{name}" for name in [*NAMES, "more/broken.png"]]
    assert done.stderr.startswith("4 of 5 predicted: ")


def test_images_are_decoded_as_for_training(saved, photos, rows):
    """Colour, alpha, size and orientation become what the model was trained on."""
    model = load(saved)
    big = Image.fromarray(rows[0, ..., 0]).resize((40, 24), Image.Resampling.NEAREST).convert("RGB")
    big.save("big.png")
    sideways = big.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways.save("turned.png", exif=exif)
    groups, _ = find_inputs(["big.png", "turned.png"], model.trained)
    upright, turned = (one.probabilities for one in predict(model, groups))
    expected = np.asarray(big.convert("L").resize((8, 8), Image.Resampling.LANCZOS))[None, ..., None]
    np.testing.assert_allclose(upright, model.predict_proba(expected)[0], atol=1e-6)
    np.testing.assert_allclose(turned, upright, atol=1e-6)


def test_the_order_is_that_of_the_words_and_each_file_comes_once(saved, photos):
    model = load(saved)
    heard = []
    list(predict(model, find_inputs(["photos", "*.gif", "no.npy"], model.trained)[0], on_progress=heard.append))
    assert heard == [*sorted(heard[:-2]), 6, 7]
    found, _ = names(model, "photos/a2.png", "no.png", "photos/a*.png", "*.gif", photos / "a1.png", "photos/more")
    assert found == [
        "photos/a2.png",
        "no.png",
        "photos/a0.png",
        "photos/a1.png",
        "photos/a3.png",
        "*.gif",
        "photos/more/broken.png",
    ]
    assert names(model, "photos") == ([f"photos/{name}" for name in [*NAMES, "more/broken.png"]], 1)


def test_what_is_not_there_is_named_and_the_rest_continues(saved, photos):
    (photos / "empty").mkdir()
    shutil.copy(photos / "a0.png", photos / "[x].png")
    done = run("predict", saved, "no.png", "*.gif", photos / "empty", "no.npy", photos / "a0.png", photos / "[x].png")
    assert done.exit_code == 1
    assert "2 of 6 predicted" in done.output
    for said in (
        "no.png: there is no such file",
        "*.gif: no file matches this pattern",
        "empty: the folder holds no images",
        "no.npy: there is no such file",
    ):
        assert said in done.output.replace("\n", "")


def test_arrays_and_tables_of_images(saved, photos, rows):
    model = load(saved)
    expected = model.predict_proba(rows[:3])
    np.save("x.npy", rows[:3])
    np.savez("x.npz", images=rows[:3, ..., 0], labels=[0, 1, 2])
    content = [(photos / name).read_bytes() for name in NAMES[:2]]
    pq.write_table(pa.table({"image": content, "label": [0, 1]}), "bytes.parquet")
    (photos / "list.csv").write_text("path,label\na0.png,x\ngone.png,x\na2.png,y\n")
    for file, wanted in (("x.npy", expected), ("x.npz", expected), ("bytes.parquet", expected[:2])):
        groups, _ = find_inputs([file], model.trained)
        found = list(predict(model, groups))
        np.testing.assert_allclose([one.probabilities for one in found], wanted, atol=1e-6)
        assert [one.name for one in found] == [f"{file}:{row}" for row in range(len(wanted))]
    groups, _ = find_inputs([str(photos / "list.csv")], model.trained)
    first, gone, last = predict(model, groups)
    assert gone.problem == "there is no such file"
    assert gone.row == 1
    np.testing.assert_allclose([first.probabilities, last.probabilities], expected[[0, 2]], atol=1e-6)


def test_paths_are_found_as_in_training_and_a_bad_table_is_named_once(saved, photos, rows):
    model = load(saved)
    shutil.copy(photos / "a0.png", photos / "more" / "a0.png")
    (photos / "odd.csv").write_text("path\n  a0.png \nmore\\a0.png\n")
    found = list(predict(model, find_inputs([str(photos / "odd.csv")], model.trained)[0]))
    assert [one.problem for one in found] == [None, None]
    np.testing.assert_allclose([one.probabilities for one in found], model.predict_proba(rows[[0, 0]]), atol=1e-6)
    (photos / "latin.csv").write_bytes(b"path\n\xe9.png\n")
    ((only,), _) = find_inputs([str(photos / "latin.csv")], model.trained)
    assert only.why == "is not UTF-8 text (byte 0xe9); save it as UTF-8"


def test_the_column_of_paths_is_that_of_training(saved, photos, rows):
    trained = dataclasses.replace(load(saved).trained, preprocessing={"path_column": "scan"})
    shutil.copy(photos / "a0.png", photos / "7")  # a name that is a number stays text
    (photos / "t.csv").write_text("path,scan\nnowhere.png,7\n")
    (photos / "u.csv").write_text("path\na0.png\n")
    pq.write_table(pa.table({"scan": [1.5], "path": ["a0.png"]}), photos / "v.parquet")
    groups, _ = find_inputs([str(photos / name) for name in ("t.csv", "u.csv", "v.parquet")], trained)
    found = [one.probabilities for one in predict(Model(trained), groups)]
    np.testing.assert_allclose(found, load(saved).predict_proba(rows[[0, 0, 0]]), atol=1e-6)


FEATURES = made_trained("mlp", setting("ce"), (3,))


@pytest.fixture
def features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = {"feature_columns": ["a", "b", "c"], "num_feature_columns": 3, "label_column": "kind"}
    path = save(made_trained_with(named), tmp_path / "model", card="", onnx=False)
    return load(path)


def made_trained_with(preprocessing):
    return dataclasses.replace(FEATURES, preprocessing=preprocessing)


def test_each_of_many_features_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"f{column}" for column in range(60)]
    rows = "".join(f"{row % 2},{','.join(str(row + column) for column in range(60))}\n" for row in range(8))
    Path("train.csv").write_text(f"label,{','.join(names)}\n{rows}")
    told = preprocessing_of(load_data("train.csv", cache=False))
    trained = dataclasses.replace(made_trained("mlp", setting("ce"), (60,)), preprocessing=told)
    swapped = [*names[:-2], names[-1], names[-2]]
    Path("t.csv").write_text(f"id,{','.join(swapped)}\n7,{','.join(name[1:] for name in swapped)}\n")
    ((found,), _) = find_inputs(["t.csv"], trained)
    assert found.array.tolist() == [list(range(60))]


def test_texts_and_missing_values_are_encoded_as_in_training(features):
    rows = "".join(f"{city},{age},{label}\n" for city, age, label in [("Rome", 3, "a"), ("Oslo", "", "b")] * 3)
    Path("train.csv").write_text(f"city,age,label\n{rows}")
    told = preprocessing_of(load_data("train.csv", cache=False))
    trained = dataclasses.replace(made_trained("mlp", setting("ce"), (4,)), preprocessing=told)
    Path("t.csv").write_text("age,id,city\n7,x,Oslo\n,y,Bern\n")
    ((found,), _) = find_inputs(["t.csv"], trained)
    assert found.array.tolist() == [[1, 0, 7, 0], [0, 0, 3, 1]]
    Path("u.csv").write_text("age,city\nold,Oslo\n")
    ((bad,), _) = find_inputs(["u.csv"], trained)
    assert bad.why == "column 'age' holds string, and it had numbers in training"


def test_features_are_found_by_the_names_they_had_in_training(features):
    Path("t.csv").write_text("id,c,a,b\nx7,3,1,2\nx8,,5,6\nx9,9,7,8\n")
    done = run("predict", "model", "t.csv", "--csv", "-")
    assert done.exit_code == 1
    first, bad, last = read_csv(done.stdout)
    expected = features.predict_proba(np.array([[1, 2, 3], [7, 8, 9]]))
    for row, wanted in ((first, expected[0]), (last, expected[1])):
        np.testing.assert_allclose([float(row[f"p:{name}"]) for name in features.classes], wanted, atol=1e-5)
    assert [row["row"] for row in (first, bad, last)] == ["0", "1", "2"]
    assert bad["problem"] == "feature 'c' is missing; it must be a number within ±3.4e+38"
    Path("u.csv").write_text("a,b\n1,2\n")
    groups, _ = find_inputs(["u.csv"], features.trained)
    assert [one.problem for one in predict(features, groups)] == [
        "it has no column 'c', which the model was trained on"
    ]


def test_a_column_that_has_become_a_date_is_no_number(features):
    Path("t.csv").write_text("a,b,c\n1,2026-11-16,3\n")
    (found,) = predict(features, find_inputs(["t.csv"], features.trained)[0])
    assert found.problem == "column 'b' holds times (2026-11-16), and features are numbers"


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy", "npz", "list.parquet"])
def test_features_from_every_kind_of_file(ending, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Model(made_trained_with({}))
    rows = np.random.default_rng(0).normal(size=(CHUNK_ROWS + 5, 3)).astype(np.float32)
    file = f"t.{ending}"
    table = pa.table({"f0": rows[:, 0], "label": ["a"] * len(rows), "f1": rows[:, 1], "f2": rows[:, 2]})
    if ending == "csv":
        pc.write_csv(table, file)
    elif ending == "parquet":
        pq.write_table(table, file)
    elif ending == "list.parquet":
        pq.write_table(pa.table({"label": ["a"] * len(rows), "embedding": rows.tolist()}), file)
    else:
        np.save(file, rows) if ending == "npy" else np.savez(file, features=rows, labels=np.zeros(len(rows)))
    groups, _ = find_inputs([file], model.trained)
    found = list(predict(model, groups))
    np.testing.assert_allclose([one.probabilities for one in found], model.predict_proba(rows), atol=1e-5)
    assert found[-1].row == CHUNK_ROWS + 4


def test_bad_rows_of_a_later_chunk_are_named_and_the_others_keep_their_places(tmp_path):
    rows = np.random.default_rng(0).normal(size=(2 * CHUNK_ROWS + 3, 3))
    bad = {CHUNK_ROWS: "feature 1 is missing", 2 * CHUNK_ROWS + 1: "feature 2 is -1e+300"}
    rows[CHUNK_ROWS, 1:], rows[2 * CHUNK_ROWS + 1, 2] = np.nan, -1e300
    np.save(tmp_path / "t.npy", rows)
    model, heard = Model(FEATURES), []
    found = list(predict(model, find_inputs([str(tmp_path / "t.npy")], FEATURES)[0], on_progress=heard.append))
    assert heard == [CHUNK_ROWS, 2 * CHUNK_ROWS, 2 * CHUNK_ROWS + 3]
    assert [one.row for one in found] == list(range(len(rows)))
    problems = {one.row: one.problem for one in found if one.problem is not None}
    assert problems == {row: f"{said}; it must be a number within ±3.4e+38" for row, said in bad.items()}
    good = [row for row in range(len(rows)) if row not in bad]
    np.testing.assert_allclose(
        [found[row].probabilities for row in good], model.predict_proba(rows[good].astype(np.float32)), atol=1e-6
    )


@pytest.mark.parametrize("count", [CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_more_images_than_one_chunk(saved, rows, tmp_path, count):
    model = load(saved)
    for row in range(3):
        Image.fromarray(rows[row, ..., 0]).save(tmp_path / f"{row}.png")
    files = [str(tmp_path / f"{row % 3}.png") for row in range(count)]
    heard = []
    found = list(predict(model, [Images(files, [None] * count, files)], on_progress=heard.append))
    assert heard == sorted(heard)
    assert heard[-1] == count
    expected = model.predict_proba(rows[:3])
    assert len(found) == count
    np.testing.assert_allclose([one.probabilities for one in found], expected[np.arange(count) % 3], atol=1e-6)


def test_hostile_names_reach_neither_terminal_nor_spreadsheet(saved, photos):
    hostile = [
        "=cmd|'x'!A1.png",
        "+1.png",
        "-x.png",
        "@SUM(A1).png",
        "red\x1b[31m\n.png",
        "a\u202egnp.png",
        "[b]x.png",
    ]
    os.mkdir("bad")
    for name in hostile:
        shutil.copy(photos / "a0.png", os.path.join("bad", name))
    shutil.copy(photos / "a0.png", os.fsencode("bad/latin-") + b"\xe9.png")
    os.chdir("bad")
    done = run("predict", saved, "*.png", "--csv", "-")
    assert done.exit_code == 0, done.output
    files = [row["file"] for row in read_csv(done.stdout)]
    assert len(files) == 8
    assert not [name for name in files if name[0] in "=+-@"]
    for name in ("./=cmd|'x'!A1.png", "./-x.png"):
        assert name in files
        assert os.path.exists(name), "the cell no longer leads to the file"
    table = run("predict", saved, "*.png")
    for output in (done.output, table.output):
        assert not [sign for sign in output if sign in "\x1b\u202e\r\udce9"]
        assert r"red\x1b[31m\n.png" in output
        assert r"latin-\xe9.png" in output
        assert "[b]x.png" in output


@pytest.mark.parametrize("text", ["=1", " =1", "+a", "-a", "@a"])
def test_cells_are_no_formulas(text):
    assert csv_cell(text).startswith("'")
    assert csv_path(text).startswith("./")


def test_numbers_and_plain_names_stay_as_they_are():
    assert [csv_cell(text) for text in ("-1", "+2.5", "stop", "a=b", "")] == ["-1", "+2.5", "stop", "a=b", ""]
    assert csv_cell("\t=1") == r"\t=1", "a tab that is written out is harmless"
    assert visible("Ünï 🛑\u202f.png") == "Ünï 🛑\u202f.png"


def test_a_place_that_cannot_be_written_is_refused_before_the_work(saved, photos):
    done = run("predict", saved, "photos", "--csv", "no/such/out.csv")
    assert isinstance(done.exception, InputError)
    assert "no/such/out.csv cannot be written (No such file or directory)" in str(done.exception)


def test_predictions_are_kept_when_it_is_interrupted(saved, photos, monkeypatch):
    def break_off(model, groups, batch_size, on_progress):
        found = predict(model, groups, batch_size)
        yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr("camri.export.inputs.predict", break_off)
    done = run("predict", saved, "photos", "--csv", "out.csv")
    assert done.exit_code != 0
    assert "out.csv.part" in done.output
    assert [row["file"] for row in read_csv(Path("out.csv.part").read_text())] == ["photos/a0.png"]
    assert not os.path.exists("out.csv")


def test_export_writes_the_requested_files(saved, tmp_path):
    done = run("export", saved, "--torch-export", tmp_path / "m.pt2")
    assert done.exit_code == 0, done.output
    assert "inputs uint8 (N, 8, 8, 1) -> logits, probabilities, prediction" in done.output
    assert (tmp_path / "m.pt2").stat().st_size > 1000
    done = run("export", saved)
    assert "nothing to write; give --onnx FILE, --torch-export FILE or --out FOLDER" in str(done.exception)


def test_a_rule_set_by_hand_is_followed(saved, photos, tmp_path):
    def predicted(folder):
        done = run("predict", folder, "photos", "--csv", "-")
        return [row for row in read_csv(done.stdout) if not row["problem"]]

    folder = tmp_path / "careful"
    highest = max(float(row["p:stop"]) for row in predicted(saved))
    done = run("export", saved, "--out", folder, "--threshold", f"stop={highest + 1e-4}")
    assert done.exit_code == 0, done.output
    assert {row["predicted"] for row in predicted(folder)}.isdisjoint({"stop"})
    assert "Set by hand: “stop” is predicted where its probability is above" in (folder / "README.md").read_text()
    run("export", saved, "--out", folder, "--threshold", "stop=0")
    rows = predicted(folder)
    assert {row["predicted"] for row in rows} == {"stop"}
    assert all(row["probability"] == row["p:stop"] for row in rows)
    assert {tuple(load(folder).predict(np.zeros((2, 8, 8, 1), np.uint8)))} == {("stop", "stop")}
    run("export", saved, "--out", folder, "--shift", "limit=99")
    assert load(folder).trained.rule == Shift({0: 99.0})
    assert {row["predicted"] for row in predicted(folder)} == {"limit"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "stop=1.5"], "the threshold stop=1.5 is not allowed; give probabilities, from 0 to 1"),
        (["--shift", "limit=inf"], "the shift limit=inf is not allowed; give finite numbers"),
        (["--threshold", "halt=0.5"], "the rule's 'halt' is not a class"),
        (["--threshold", "stop"], "'stop' is not CLASS=NUMBER; for example stop=0.2"),
        (["--threshold", "stop=0.5", "--shift", "stop=1"], "a rule is thresholds or shifts"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(saved, tmp_path, words, said):
    done = run("export", saved, "--out", tmp_path / "new", *words)
    assert done.exit_code != 0
    assert said in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_the_model_itself_is_not_overwritten(saved):
    files = {file.name: file.read_bytes() for file in saved.iterdir()}
    done = run("export", saved, "--threshold", "stop=0.2", "--out", saved / ".." / saved.name)
    assert str(done.exception).endswith("is the model itself and would be overwritten; choose another folder")
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == files


def test_the_card_says_one_decision_however_often_a_rule_was_set(saved, tmp_path):
    """What the card said before is told apart, since its decision and figures are of another rule."""
    model, first, second, third = (tmp_path / name for name in ("model", "first", "second", "third"))
    shutil.copytree(saved, model)
    (model / "README.md").write_text("# Signs\n\n- recall of stop 0.9\n## Use\n```\n# a comment\n```\n")
    run("export", model, "--threshold", "stop=0.2", "--out", first)
    run("export", first, "--shift", "limit=1.5", "--out", second)
    run("export", second, "--out", third)
    card = (second / "README.md").read_text()
    assert (third / "README.md").read_text() == card, "without a rule of its own it stays"
    now, before = card.split("## Before this rule\n")
    assert "Set by hand: 1.5 is added to the logit of “limit”, then the largest wins.\n" in now
    assert "- classes: limit, stop" in now
    assert "0.9" not in now
    assert before.endswith("\n### Signs\n\n- recall of stop 0.9\n#### Use\n```\n# a comment\n```\n")
    assert "0.2" not in card
    lines = now.splitlines()
    assert all(not lines[place - 1] for place, line in enumerate(lines) if place and line.startswith("#"))


def test_the_npz_that_a_model_was_trained_on_can_be_predicted(model, saved, data, tmp_path):
    parts = {part: split.inputs.numpy()[:7, ..., 0] for part, split in data.splits.items()}
    labels = {f"y_{part}": split.labels.numpy()[:7] for part, split in data.splits.items()}
    file = tmp_path / "x.npz"
    np.savez(file, **{f"x_{part}": images for part, images in parts.items()}, **labels)
    groups, _ = find_inputs([str(file)], model.trained)
    found = list(predict(model, groups))
    assert [(one.file, one.row) for one in found] == [(f"{file}:x_{part}", row) for part in parts for row in range(7)]
    expected = np.concatenate([model.predict_proba(images) for images in parts.values()])
    np.testing.assert_array_equal([one.probabilities for one in found], expected)
    done = CliRunner().invoke(app, ["predict", str(saved), str(file), "--csv", str(tmp_path / "p.csv")])
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + 7 * len(parts)
