"""A model of cropped images: boxes of a table are used, and whole images give a warning."""

import csv
import dataclasses

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from camri.cli import app
from camri.data import load as load_data
from camri.export import load, save
from camri.export.model import preprocessing_of
from camri.methods import setting
from tests.data.test_official import write_gtsrb
from tests.export.conftest import made_trained

WARNING = "warning: the model was trained on images cropped to the object, and"


@pytest.fixture(scope="module", params=["kaggle", "parquet", "official"])
def signs(request, tmp_path_factory):
    """GTSRB cropped to the signs, a model of such images, the table of the test images, and GTSRB as it is."""
    root = tmp_path_factory.mktemp("signs")
    write_gtsrb(root / "g", request.param)
    data, whole = (load_data(root / "g", roi=roi, size=8, cache=False) for roi in (True, False))
    made = made_trained("small", setting("ce"), (8, 8, 3))
    made = dataclasses.replace(made, preprocessing=preprocessing_of(data))
    model = save(made, root / "model", card="# Signs\n", onnx=False)
    table = root / "g" / {"kaggle": "Test.csv", "parquet": "test-00000-of-00001.parquet"}.get(request.param, "")
    if request.param == "official":
        table = root / "g" / "GTSRB" / "Final_Test" / "Images" / "GT-final_test.csv"
        (root / "g" / "GT-final_test.csv").rename(table)
    return data, model, table, whole


def run(*words):
    return CliRunner().invoke(app, ["predict", *map(str, words)])


def test_the_boxes_of_a_table_are_cropped_to_as_in_training(signs, tmp_path):
    data, model, table, whole = signs
    done = run(model, table, "--csv", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert WARNING not in done.output
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    found = np.array([[float(row[f"p:{name}"]) for name in load(model).classes] for row in rows])
    expected = load(model).predict_proba(data.splits["test"].inputs.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(load(model).predict_proba(whole.splits["test"].inputs.numpy()) - expected).max() > 1e-3


def test_whole_images_are_warned_of_by_default(signs, tmp_path):
    _, model, table, _ = signs
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", np.zeros((3, 8, 8, 3), np.uint8))
    done = run(model, tmp_path / "a.png", tmp_path / "b.npy", tmp_path / "none.png", "--csv", "-")
    assert f"{WARNING} 5 of 5 are taken whole" in done.stderr
    assert "say --cropped" in done.stderr
    assert done.stdout.startswith("file,row,predicted")
    mixed = run(model, tmp_path / "a.png", table)
    assert f"{WARNING} 1 of " in mixed.stderr
    told = run(model, tmp_path / "a.png", "--cropped")
    assert told.exit_code == 0
    assert WARNING not in told.output


def test_a_row_without_a_box_is_a_problem_of_its_own(signs, tmp_path):
    _, model, _, _ = signs
    for name in "ab":
        Image.new("RGB", (20, 20), "red").save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text(
        "path,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,Width,Height\na.png,5,5,14,14,20,20\nb.png,,5,14,14,20,20\n"
        "a.png,5,5,4,14,20,20\na.png,5,14,14,5,20,20\nb.png,5,5,14,14,20,20\n"
    )
    done = run(model, tmp_path / "t.csv", "--csv", tmp_path / "out.csv")
    assert done.exit_code == 1
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["problem"] for row in rows] == ["", *["its box to crop to is missing or empty"] * 3, ""]


def test_the_card_says_it_and_other_cards_stay(signs, saved, tmp_path):
    _, model, _, _ = signs
    assert load(model).trained.is_cropped is True
    card = (model / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Signs\n\n## Cropped images\n")
    assert "roi_x1, roi_y1, roi_x2, roi_y2, width and height" in card
    assert (saved / "README.md").read_text(encoding="utf-8") == "# The card\n"
    for number in range(2):
        exported = CliRunner().invoke(
            app, ["export", str(model), "--shift", "stop=1", "--out", str(tmp_path / f"{number}")]
        )
        assert exported.exit_code == 0, exported.output
        model = tmp_path / f"{number}"
        assert (model / "README.md").read_text(encoding="utf-8").count("## Cropped images") == 1


def test_only_what_was_cropped_is_cropped(signs, saved, tmp_path):
    data, _, _, _ = signs
    assert preprocessing_of(data) == {"size": [8, 8], "mode": "RGB", "resize": "lanczos", "roi": True}
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / f"{number}.png")
    folder = load_data(tmp_path / "photos", cache=False)
    assert "roi" not in preprocessing_of(folder)
    assert load(saved).trained.is_cropped is False
    assert WARNING not in run(saved, tmp_path / "photos").output
