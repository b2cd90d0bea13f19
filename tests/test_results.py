"""Every table and picture of the docs that is made from reproduce/ is what its numbers say; the whole way there."""

import contextlib
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from camri.cli import app
from camri.errors import InputError
from camri.report.results import without_places, write_results
from tests.report import conftest as made_runs
from tests.report.conftest import made_data, make_run
from tools import docs
from tools.docs import make_block, open_site
from tools.paper_print import compare_table_one, compare_table_two, describe, facts_table, headline
from tools.releases import unpacked

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "reproduce").glob("**/README.md"))]


def stale(pages, root):
    """The pages and pictures that differ from the results."""
    return [str(path.relative_to(root)) for path in docs.outdated(pages, root)]


def test_the_docs_are_made_from_the_results():
    assert stale(PAGES, ROOT) == [], "run `make docs`"


def texts_of_store(path):
    """All that a store says in words: its blobs are arrays, whose bytes may look like anything."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in tables for row in store.execute(f"SELECT * FROM {name}")]
    return "\n".join(value for row in rows for value in row if isinstance(value, str))


def test_results_are_small_and_plain():
    assert sum(path.stat().st_size for path in (ROOT / "reproduce" / "scores").iterdir()) < 20_000_000
    for path in filter(Path.is_file, (ROOT / "reproduce").rglob("*")):
        if path.name.endswith(".sqlite.xz"):
            with unpacked(path) as store:
                assert without_places(text := texts_of_store(store)) == text, path
            continue
        if path.suffix not in (".json", ".csv", ".md", ".toml"):
            continue  # code, whose first line may be a path
        data = path.read_bytes()
        assert len(data) <= 2_000_000, path
        text = data.decode() if path.suffix != ".sqlite" else texts_of_store(path)
        assert without_places(text) == text, path
        if path.suffix == ".json":
            assert b"NaN" not in data, path
            json.loads(data)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Made results of CIFAR-10's name: cat gains, dog does not."""
    root = tmp_path_factory.mktemp("site")
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog")
    run = make_run(root / "run", classes=classes, important=("cat", "dog"), sharpness={"camri": 1.0}, num_images=600)
    (root / "docs").mkdir()
    write_results(run, root / "results" / "cifar10", commit="1a2b3c4")
    path = root / "results" / "cifar10" / "verdict.json"
    verdict = json.loads(path.read_text())
    training = {**verdict["training"], "model": "paper"}
    path.write_text(json.dumps({**verdict, "data": "cifar10", "training": training}))
    return root


def page(root, name, *keys):
    path = root / name
    path.write_text("".join(f"before\n<!-- made: {key} -->\nold\n<!-- end -->\nafter\n" for key in keys))
    return path


def test_blocks_are_filled_once_and_seen_to_be_stale(cifar):
    readme = page(cifar, "README.md", "headline cifar10", "curve cifar*")
    table = page(cifar, "docs/a.md", "honest cifar10", "table1 cifar10", "table2 cifar10", "figure5 *", "facts *")
    pages = [readme, table]
    assert stale(pages, cifar) == [
        "README.md",
        "docs/a.md",
        "docs/img/curve-cifar10.png",
        "docs/img/figure5-cifar10.png",
    ]
    written = [str(path.relative_to(cifar)) for path in docs.write(pages, cifar)]
    assert written == ["README.md", "docs/a.md", "docs/img/curve-cifar10.png", "docs/img/figure5-cifar10.png"]
    assert stale(pages, cifar) == []
    assert docs.write(pages, cifar) == []
    assert "![The curve: what recall costs](docs/img/curve-cifar10.png)" in readme.read_text()
    assert "](img/figure5-cifar10.png)" in table.read_text()
    assert (cifar / "docs/img/curve-cifar10.png").read_bytes().startswith(b"\x89PNG")
    text = table.read_text()
    assert text.startswith("before\n<!-- made: honest cifar10 -->\n**Honest comparison")
    assert text.count("old\n") == 0
    assert "1a2b3c4" in text

    changed = text.replace("| CAMRI |", "| CAMRI, better |", 1)
    assert changed != text
    table.write_text(changed)
    assert stale(pages, cifar) == ["docs/a.md"]
    docs.write(pages, cifar)

    path = cifar / "results/cifar10/curves.json"
    curves = json.loads(path.read_text())
    kept = path.read_text()
    curves[0]["lines"][0]["mean"][0] += 0.001
    path.write_text(json.dumps(curves))
    assert stale(pages, cifar) == ["docs/img/curve-cifar10.png"]
    path.write_text(kept)
    assert stale(pages, cifar) == []


def test_pictures_can_be_opened(cifar):
    from PIL import Image

    docs.write([page(cifar, "README.md", "figure3 cifar10")], cifar)
    with Image.open(cifar / "docs/img/figure3-cifar10.png") as picture:
        picture.verify()  # every chunk's checksum
    with Image.open(cifar / "docs/img/figure3-cifar10.png") as picture:
        picture.load()
        assert picture.text["camri"].startswith("figure ")


def test_what_is_not_run_says_so_with_its_command():
    table = compare_table_one([])
    assert [row[2].text for row in table.rows] == ["not run yet"] * 9
    assert table.rows[3][-1].text == "camri study run paper.gtsrb.limit-80-end --out runs/limit-80-end"
    assert len(compare_table_two([]).rows) == 3


def test_our_numbers_stand_beside_the_papers(cifar):
    (site,) = open_site(cifar / "results").results
    table = compare_table_one([site])
    cat, dog, airplane = (dict(zip(table.header, row, strict=True)) for row in table.rows[:3])
    assert cat["the paper"].text == "0.738 → 0.792 (+5.4)"
    by_method = {one["method"]: one for one in site.records("paper") if one["column"] == 0}
    ce, camri = by_method["ce"]["recall_mean"], by_method["camri"]["recall_mean"]
    shown = cat["here, as the paper counts"].text
    assert shown.startswith(f"{ce:.3f} → {camri:.3f} ({100 * (camri - ce):+.1f}), camri m=")
    honest = next(one for one in site.records("honest") if one["row"] == "CAMRI" and one["column"] == 1)
    low = f"{100 * honest['gain_over_shifted_ce_low']:+.1f}"
    assert f"[{low}, " in dog["here, honest: Δ recall, CAMRI + shift vs CE + shift"].text
    assert (cat["trials"].text, cat["from"].text) == ("4", "results/cifar10")
    assert airplane["here, as the paper counts"].text == "not run yet"
    # Table II's made angles: 0.1 + 0.01 · class + 0.0015; cat is class 3, the least other is class 0.
    row = [cell.text for cell in compare_table_two([site]).rows[0]]
    assert row[1:] == ["0.73", "1.48", *[f"{0.1315 / 0.1015:.2f}"] * 3, "test data", "results/cifar10"]


def test_columns_of_several_results_are_one_table_and_name_their_data(cifar, tmp_path):
    (first,) = open_site(cifar / "results").results
    shutil.copytree(first.folder, tmp_path / "results" / "b")
    shutil.copytree(first.folder, tmp_path / "results" / "a")
    text = make_block("trained a b", open_site(tmp_path / "results"), "img")
    assert (text.count("| method |"), text.count("*important: cat*"), text.count("*important: dog*")) == (1, 2, 2)
    path = tmp_path / "results" / "b" / "verdict.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": "mine"}))
    text = make_block("gaps a b", open_site(tmp_path / "results"), "img")
    assert (text.count("| method |"), text.count("| CAMRI |")) == (1, 4)
    assert [text.count(f"*important: cat ({name})*") for name in ("CIFAR-10", "mine")] == [1, 1]


def test_how_results_were_made_is_recorded_in_full(cifar):
    (site,) = open_site(cifar / "results").results
    site.verdict.update(trials={"done": 5, "failed": 2, "planned": 9}, device_s=10.2, commit=None)
    site.verdict["screening"] = {"trials": {"done": 30}, "device_s": 50.6}
    table = facts_table([site])
    row = {name: cell.text for name, cell in zip(table.header, table.rows[0], strict=True)}
    assert (row["trials"], row["device time"]) == ("5, 2 failed, 2 not run; screened by 30 more", "0:01:01")
    assert (row["hardware"], row["commit"]) == ("processor <made> & by hand", "not noted")
    assert row["to repeat it"] == "camri study run results/cifar10/study.json --out runs/cifar10"
    # With seeds of several studies it is not known how many were planned.
    site.verdict.update(trials={"done": 5, "failed": 0, "planned": None}, screening=None, device_s=3600.0)
    site.verdict["environment"] = {**site.verdict["environment"], "gpu": ["H200", "A100"]}
    assert [cell.text for cell in facts_table([site]).rows[0]][3:6] == ["5", "1:00:00", "H200 / A100"]
    site.verdict["trials"] = {"done": 4, "failed": 1, "planned": 5}
    assert facts_table([site]).rows[0][3].text == "4, 1 failed"


def test_a_training_in_a_few_words():
    told = {"epochs": 8, "flip": False, "translate_px": 0, "label_smoothing": 0.1, "average": 0.99}
    assert describe({"model": "small", **told}) == "8 epochs, small model, smoothing 0.1, averaging 0.99"
    assert describe({"model": "paper", "epochs": 300}) == "300 epochs"


def test_the_headline_says_recall_at_its_accuracy_and_what_the_shift_leaves(cifar):
    (site,) = open_site(cifar / "results").results
    table = headline([site])
    assert [row[0].text for row in table.rows] == ["CIFAR-10: cat", "CIFAR-10: dog"]
    _, ce, shifted, _, gain, _, trials = (cell.text for cell in table.rows[1])
    by_row = {one["row"]: one for one in site.records("honest") if one["column"] == 1}
    for text, name in ((ce, "control: cross-entropy"), (shifted, "control: cross-entropy, shifted")):
        one = by_row[name]
        assert text.startswith(f"{one['recall_mean']:.3f} ± ")
        assert text.endswith(f" at {one['accuracy_mean']:.3f}")
    assert ce != shifted
    camri = by_row["CAMRI"]
    assert gain.startswith(f"{100 * camri['gain_over_shifted_ce']:+.1f} [")
    assert trials == str(camri["num_trials"]) == "4"
    camri["gain_over_shifted_ce"] = None
    assert headline([site]).rows[1][4].text == "none: not better on validation"
    camri["row"] = "ArcFace"
    assert [row[0].text for row in headline([site]).rows] == ["CIFAR-10: cat"]


def test_a_method_that_kept_no_accuracy_or_was_not_tried_is_reported_as_such(cifar):
    (site,) = open_site(cifar / "results").results
    one = next(one for one in site.records("paper") if one["column"] == 0 and one["method"] == "camri")
    ce = next(one for one in site.records("paper") if one["column"] == 0 and one["method"] == "ce")
    one["setting"] = None
    assert compare_table_one([site]).rows[0][2].text == f"{ce['recall_mean']:.3f} → – (no setting kept the accuracy)"
    one["method"] = "arcface"
    for other in site.records("honest"):
        if other["column"] == 0 and other.get("method") == "camri":
            other["method"] = "arcface"
    assert [cell.text for cell in compare_table_one([site]).rows[0]][2:6] == ["–", "–", "–", "4"]


def test_a_column_is_found_by_its_class_alone(cifar):
    (site,) = open_site(cifar / "results").results
    site.verdict["columns"] = [{"important": "cat + dog", "indices": [3, 5], "strengths": [1, 1]}]
    assert [row[2].text for row in compare_table_one([site]).rows[:2]] == ["not run yet"] * 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": "small"},
        {"model_options": {"ensemble": 5}},
        {"model_options": {"num_features": 2}},
    ],
)
def test_another_model_is_not_shown_beside_the_papers(cifar, change):
    (site,) = open_site(cifar / "results").results
    assert len(compare_table_one([site]).rows[0][2].text) > len("not run yet")
    site.verdict["training"].update(change)
    assert [row[2].text for row in compare_table_one([site]).rows[:2]] == ["not run yet"] * 2
    assert [row[3].text for row in compare_table_two([site]).rows] == ["not run yet"] * 3


@pytest.mark.parametrize(
    ("provenance", "altered", "told"),
    [
        (
            {"thinned": {"parts": {"cat": 0.05}, "rows": 9}},
            {"thinned": {"cat": 0.05}},
            "; cat thinned to 5 % in training",
        ),
        ({"options": {"size": [48, 32], "roi": False}}, {"size": [48, 32]}, "; size 48 × 32"),
        ({"options": {"roi": True, "verify": True}}, {"roi": True}, "; cropped to the sign"),
        ({"options": {"roi": False, "verify": True}}, {}, ""),
    ],
)
def test_altered_data_are_not_shown_beside_the_papers(tmp_path, monkeypatch, provenance, altered, told):
    def made_so(*given):
        data = made_data(*given)
        return replace(data, name="cifar10", provenance={**data.provenance, **provenance})

    monkeypatch.setattr(made_runs, "made_data", made_so)
    training = made_runs.TRAINING.with_(model="paper")
    monkeypatch.setattr(made_runs, "TRAINING", training)
    classes = ("airplane", "automobile", "bird", "cat")
    run = make_run(tmp_path / "run", classes=classes, important=("cat",), num_images=80, seeds=2)
    write_results(run, tmp_path / "results" / "cifar10")
    (site,) = open_site(tmp_path / "results").results
    assert site.verdict["altered"] == altered
    assert (compare_table_one([site]).rows[0][2].text == "not run yet") == bool(altered)
    assert (compare_table_two([site]).rows[0][3].text == "not run yet") == bool(altered)
    assert facts_table([site]).rows[0][1].text == f"cifar10 made-fingerp{told}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n<!-- made: honest x -->\nb\n", "has a block that does not end"),
        ("<!-- made: honest x -->\n<!-- end -->\n", "line 1: block 'honest x' has nothing to show: no results"),
        (
            "a\n<!-- made: honst x -->\n<!-- end -->\n",
            r"line 2: block 'honst x' is of no known kind; did you mean 'honest'",
        ),
    ],
)
def test_bad_blocks_are_refused_by_their_place(tmp_path, text, said):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(InputError, match=said):
        docs.write([tmp_path / "README.md"], tmp_path)
    assert (tmp_path / "README.md").read_text() == text


def test_the_whole_way_from_a_screening_to_the_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "screen.toml").write_text(
        'columns = "worst"\nseeds = [100]\ndata = "digits"\n[split]\nval_fraction = 0.3\n'
        '[training]\nmodel = "small"\nepochs = 2\n[training.model_options]\nwidth = 4\n'
        "[methods]\nce = {}\nwce = { w = [4, 8] }\ncamri = { m = [0.2, 0.4], s = [8, 16] }\n"
    )

    def camri(line):
        app(shlex.split(line), standalone_mode=False)

    camri("study run screen.toml --out screen --workers 1 --device cpu")
    camri("study finalists screen --out finals.json --seeds 0-1")
    camri("study run finals.json --out finals --workers 1 --device cpu")
    camri("report finals --results results/digits --screening screen --commit 1a2b3c4")
    shutil.rmtree(tmp_path / "finals")  # the results are enough
    readme = page(
        tmp_path, "README.md", "table1 digits", "honest digits", "table2 digits", "facts digits", "curve digits"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs", "README.md"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "README.md\ndocs/img/curve-digits.png\n"), done.stderr
    text = readme.read_text()
    finals = json.loads((tmp_path / "finals.json").read_text())
    important = finals["important"][0][0][0]
    assert f"| *important: {important}* |" in text
    assert "chosen on validation data by 7 trials of other seeds (100), 2 epochs" in text
    assert f"{important}: ce 1, wce 2, camri 4." in text
    assert "camri study run results/digits/study.json --out runs/digits" in text
    study = json.loads((tmp_path / "results/digits/study.json").read_text())
    assert study == finals
    assert stale([readme], tmp_path) == []
