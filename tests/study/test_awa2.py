"""The AwA2 column from a tree of files in AwA2's layout to Table I: the images themselves are not needed for it."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from camri.cli import app
from camri.engine.spec import FAST
from camri.study import recipes
from camri.study.store import open_run
from camri.study.study_file import override

COUNTS = {"mouse": 20, "beaver": 24, "moose": 28, "walrus": 28}  # 100: 30 to test, 7 to val, 63 to train


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Pictures of unequal sizes, each class of another colour under noise, below $CAMRI_DATA/awa2."""
    root = tmp_path / "data" / "awa2" / "Animals_with_Attributes2"
    drawn = np.random.default_rng(0)
    for number, (name, count) in enumerate(COUNTS.items()):
        (root / "JPEGImages" / name).mkdir(parents=True)
        colour = np.array([(number & 1) * 90, (number >> 1) * 90, 60])
        for k in range(count):
            size = (*drawn.integers(60, 90, 2), 3)
            pixels = (colour + drawn.integers(0, 100, size)).astype(np.uint8)
            Image.fromarray(pixels).save(root / "JPEGImages" / name / f"{name}_{10001 + k}.jpg", quality=90)
    lines = [f"      {number}\t{name}\n" for number, name in enumerate(COUNTS, start=1)]
    (root / "classes.txt").write_text("".join(lines))
    monkeypatch.setenv("CAMRI_DATA", str(tmp_path / "data"))
    return root


def test_the_column_goes_from_pictures_to_table_1(tree, tmp_path):
    short = FAST.with_(epochs=2, model="small")  # the authors' CNN trains four such images a second and core
    asked = override(recipes.awa2(schedule=short, num_seeds=2), "ce,l2softmax,camri", ["m=4pi/64", "s=8"])
    assert [one.classes for one in asked.important] == [("mouse",), ("beaver",), ("moose",)]
    file, run = tmp_path / "awa2.json", tmp_path / "run"
    file.write_text(json.dumps(asked.to_json()))
    call = CliRunner().invoke
    done = call(app, ["study", "run", str(file), "--out", str(run), "--workers", "1"])
    assert done.exit_code == 0, done.output
    with open_run(run) as stored:
        rows = stored.rows()
        assert sorted({row.method for row in rows}) == ["camri", "ce", "l2softmax"]
        assert len(rows) == 2 * (1 + 1 + 3)  # ce and l2softmax once for all three columns
        counts = {part: np.bincount(stored.labels(part)).tolist() for part in ("val", "test")}
    assert sum(counts["test"]) == 30
    assert sum(counts["val"]) == 7
    printed = call(app, ["report", str(run), "--table", "1"])
    assert printed.exit_code == 0, printed.output
    for name in ("mouse", "beaver", "moose", "CAMRI", "cross-entropy"):
        assert name in printed.output
    assert call(app, ["report", str(run)]).exit_code == 0
    assert "mouse" in (run / "report.html").read_text(encoding="utf-8")
