"""The program computes what was recorded: numbers and names, not wording or module layout.

    CAMRI_RECORD=1 pytest tests/golden     record anew, after a change that is meant; the diff of *.json shows it
    CAMRI_GOLDEN=all pytest tests/golden   the whole `camri demo` too (a minute); with CAMRI_RECORD=1 it is recorded too

Everything goes through the command line. Trained numbers are the same on
machines of one kind only: on another they are left out, with a reason.
"""

import csv
import dataclasses
import functools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COUNTED, TRAINED = 1e-9, 1e-5  # relative: of figures made of counts, and of what the training's arithmetic made

# What is not compared, by its key: sentences and titles, times, places, versions, digests.
SENTENCES = {"about", "caution", "details", "error", "line", "row", "sentence", "title", "warnings"}
NOT_OF_RESULTS = {"commit", "created", "environment", "fingerprint", "format", "identity", "key", "out"}
LEFT_OUT = SENTENCES | NOT_OF_RESULTS | {"model_path", "page_path", "sha256", "version", "weights_sha256"}
SETTINGS = {"important", "setting"}  # strings with spaces that are names all the same: "camri m=8π/64 s=8"
NAME = re.compile(r"[\w.+:-]{1,32}")
NO_NAME = re.compile(r"[0-9a-f]{12,}|\d+\.\d+\.\d+.*")  # a digest, a version
NOTHING = object()


def facts(value, key=""):
    """The numbers, truths and names of JSON-like data; NOTHING for what is not compared."""
    if key in LEFT_OUT or key.endswith("_s"):
        return NOTHING
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        kept = {str(name): facts(one, str(name)) for name, one in value.items()}
        return {name: one for name, one in kept.items() if one is not NOTHING}
    if isinstance(value, list | tuple):
        return [one for one in (facts(one, key) for one in value) if one is not NOTHING]
    if isinstance(value, str):
        is_name = NAME.fullmatch(value) and not NO_NAME.fullmatch(value)
        return value if is_name or key in SETTINGS else NOTHING
    return value if value is None or isinstance(value, bool | int | float) else NOTHING


def differences(was, now, tolerance, place=""):
    """'place: recorded, found' of everything that differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in [*was, *(name for name in now if name not in was)]:
            one, other = was.get(name, NOTHING), now.get(name, NOTHING)
            if one is NOTHING or other is NOTHING:
                yield f"{place}/{name}: {'new' if one is NOTHING else 'gone'}"
            else:
                yield from differences(one, other, tolerance, f"{place}/{name}")
    elif isinstance(was, list) and isinstance(now, list):
        if len(was) != len(now):
            yield f"{place}: {len(was)} entries, {len(now)}"
        for number, (one, other) in enumerate(zip(was, now, strict=False)):
            yield from differences(one, other, tolerance, f"{place}/{number}")
    elif is_number(was) and is_number(now):
        both_nan = math.isnan(was) and math.isnan(now)
        if not both_nan and not math.isclose(was, now, rel_tol=tolerance, abs_tol=1e-3 * tolerance):
            yield f"{place}: {was!r}, {now!r}"
    elif type(was) is not type(now) or was != now:
        yield f"{place}: {was!r}, {now!r}"


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def check(name, found, tolerance):
    """Compare with what is recorded under the name, or record it."""
    now = facts(found)
    path = HERE / f"{name}.json"
    if os.environ.get("CAMRI_RECORD"):
        path.write_text(json.dumps(now, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    wrong = list(differences(json.loads(path.read_text(encoding="utf-8")), now, tolerance))
    shown = "\n".join(wrong[:20])
    assert not wrong, f"{len(wrong)} of {name} differ (place: recorded, found):\n{shown}"


def run(folder, *words):
    """What the command prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "camri", *map(str, words)],
        cwd=folder, env=environment, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(cell):
    """A cell of a table as what it says."""
    if cell in ("True", "False"):
        return cell == "True"
    try:
        return int(cell)
    except ValueError:
        try:
            return float(cell)
        except ValueError:
            return cell


def tables(text):
    """Of CSV tables with a blank line between, the rows of each by the names of its columns."""
    return [
        [{name: number(cell) for name, cell in row.items()} for row in csv.DictReader(part.splitlines())]
        for part in re.split(r"\n\s*\n", text.strip())
    ]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


# The same kind of machine, or not.


@functools.cache
def arithmetic():
    """Which torch this is, and digits of a small training without camri: they tell machines of two kinds apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            images, labels = torch.rand(256, 1, 8, 8), torch.arange(256) % 10
            model = torch.nn.Sequential(
                torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10),
            )  # fmt: skip
            steps = torch.optim.Adam(model.parameters(), lr=0.01)
            for start in [*range(0, 256, 64)] * 4:
                steps.zero_grad()
                batch = slice(start, start + 64)
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                steps.step()
            last = model(images).double()
    finally:
        torch.set_num_threads(threads)
    return {"torch": torch.__version__.partition("+")[0], "loss": loss.item(), "sum": last.abs().sum().item()}


@pytest.fixture(scope="module")
def same_machine():
    """Leave a test out on a machine whose training gives other last digits than that of the record."""
    path = HERE / "machine.json"
    if os.environ.get("CAMRI_RECORD"):
        path.write_text(json.dumps(arithmetic()) + "\n", encoding="utf-8")
    elif read(path) != arithmetic():
        pytest.skip(f"recorded with the arithmetic {read(path)}, and here it is {arithmetic()}")


# The fit and its model.


def fit_facts(folder):
    """All that a fit has decided, from what it left in folder/fit, and what its model says of some digits."""
    np.save(folder / "some.npy", (load_digits().images[:24, :, :, None] * 255 / 16).astype("uint8"))
    run(folder, "report", "fit", "--results", "results")
    config = read(folder / "fit" / "model" / "config.json")
    del config["checksum"]  # of the rest
    return {
        "answer": read(folder / "fit" / "answer.json"),
        "fit": read(folder / "fit" / "fit.json"),
        "config": config,
        "predicted": tables(run(folder, "predict", "fit/model", "some.npy", "--csv", "-")),
        "outcomes": tables((folder / "results" / "outcomes.csv").read_text(encoding="utf-8")),
    }


def test_a_fit_decides_the_same(same_machine, tmp_path):
    words = "--important 8 --important 3 --strength 3=0.5 --max-accuracy-drop 0.01 --trials 24 --epochs 5 --device cpu"
    run(tmp_path, "fit", "digits", *words.split(), "--out", "fit")
    check("fit", fit_facts(tmp_path), TRAINED)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("CAMRI_GOLDEN") != "all", reason="takes a minute: CAMRI_GOLDEN=all runs it")
def test_the_demo_decides_the_same(same_machine, tmp_path):
    run(tmp_path, "demo", "--out", "fit")
    check("demo", fit_facts(tmp_path), TRAINED)


# The audit: no training, so the same on every machine.


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """A folder with scores.csv: five classes of unequal size and difficulty, in groups of one to five rows."""
    folder = tmp_path_factory.mktemp("scores")
    drawn = np.random.default_rng(20)
    names = ["go", "left", "right", "stop", "yield"]
    labels = drawn.choice(5, 900, p=[0.4, 0.2, 0.15, 0.15, 0.1])
    ease = np.array([2.5, 2.0, 2.0, 1.5, 1.0])
    values = np.round(drawn.normal(size=(900, 5)) + ease[labels][:, None] * np.eye(5)[labels], 4)
    groups = np.repeat(np.arange(900), drawn.integers(1, 6, 900))[:900]
    with open(folder / "scores.csv", "w", newline="", encoding="utf-8") as file:
        rows = ([names[label], f"film{group}", *row] for label, group, row in zip(labels, groups, values, strict=True))
        csv.writer(file).writerows([["label", "film", *names], *rows])
    return folder


AUDITS = {
    "audit-stop": "--important stop",
    "audit-pair": "--important stop --important yield --max-accuracy-drop 0.01",
    "audit-films": "--important yield --group film",
    "audit-promise": "--important stop --at-least 0.9 --confidence 0.9",
    "audit-promise-films": "--important yield --at-least 0.8 --group film",
}


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_finds_the_same(scores, name):
    check(name, json.loads(run(scores, "audit", "scores.csv", *AUDITS[name].split(), "--json")), COUNTED)


@pytest.mark.parametrize("name", ["audit-stop", "audit-promise-films", "audit-refused", "audit-costs"])
def test_an_audit_says_the_same(scores, name):
    """The words of each kind of answer, once: other tests look at records."""
    words = {**AUDITS, "audit-refused": "--important stop --at-least 0.999",
             "audit-costs": "--important yield --cost-matrix costs.csv"}[name]  # fmt: skip
    names = ["go", "left", "right", "stop", "yield"]
    lines = [
        ",".join([one, *(str(0 if one == other else 5 if one == "yield" else 1) for other in names)]) for one in names
    ]
    (scores / "costs.csv").write_text("\n".join([",".join(["", *names]), *lines]), encoding="utf-8")
    told, path = run(scores, "audit", "scores.csv", *words.split()), HERE / f"{name}.txt"
    if os.environ.get("CAMRI_RECORD"):
        path.write_text(told, encoding="utf-8")
    assert told == path.read_text(encoding="utf-8")


# Two studies on digits: their results, tables and the choice of finalists.

STUDY = """
seeds = {seeds}
columns = {columns}
data = "digits"
[split]
val_fraction = 0.3
[training]
model = "small"
epochs = {epochs}
[training.model_options]
width = 8
[methods]
ce = {{}}
{methods}
"""


def train(folder, study, out):
    run(folder, "study", "run", study, "--out", out, "--workers", "1", "--device", "cpu")


def check_results(name, folder, found):
    """The results folder and the two tables of a run; what is made of counts to more digits."""
    results = folder / "results"
    outcomes = tables((results / "outcomes.csv").read_text(encoding="utf-8"))
    found |= {one: read(results / f"{one}.json") for one in ("verdict", "study")} | {"outcomes": outcomes}
    for table in ("paper", "honest"):
        found[table] = tables(run(folder, "report", "run", "--table", table, "--format", "csv"))
    check(name, found, COUNTED)
    angles = {one: read(results / f"{one}.json") for one in ("angles", "figures", "curves")}
    angles["table2"] = tables(run(folder, "report", "run", "--table", "2", "--format", "csv"))
    check(f"{name}-angles", angles, TRAINED)


def test_a_study_of_margins_has_the_same_verdict(same_machine, tmp_path):
    methods = """wce = { w = [4, 8] }
l2softmax = { s = [8] }
arcface = { m = ["4pi/64"], s = [8] }
camri = { m = ["4pi/64", "8pi/64"], s = [8] }
cosface = { m = [0.1], s = [8] }
two_sided = { m = [0.1], s = [8] }"""
    text = STUDY.format(seeds=3, columns='"worst"', epochs=5, methods=methods)
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    train(tmp_path, "study.toml", "run")
    run(tmp_path, "report", "run", "--results", "results")
    check_results("margins", tmp_path, {})


def test_finals_after_a_screening_have_the_same_verdict(same_machine, tmp_path):
    methods = """crwwce = { fn = [4], fp = [1.0, 2.0] }
wasserstein = { c = [2.0] }
ldam = { m = [0.2], max_m = [0.3], s = [8] }
focal = { gamma = [2.0], w = [1.0, 4.0] }
one_vs_rest = { w = [1.0] }
logit_adjusted = { d = [1.0, 3.0], tau = [0.0] }
vector_scaling = { delta = [0.8], d = [0.0, 1.0] }
camri = { m = ["4pi/64", "8pi/64"], s = [8] }"""
    columns = '["8", "3+9"]\nstrengths = { 9 = 0.5 }'
    text = STUDY.format(seeds=[100], columns=columns, epochs=3, methods=methods)
    (tmp_path / "screen.toml").write_text(text, encoding="utf-8")
    train(tmp_path, "screen.toml", "screen")
    run(tmp_path, "study", "finalists", "screen", "--out", "finals.json", "--seeds", "0-1", "--epochs", "5",
        "--methods", "crwwce,focal,logit_adjusted,camri")  # fmt: skip
    train(tmp_path, "finals.json", "run")
    run(tmp_path, "report", "run", "--results", "results", "--screening", "screen")
    run(tmp_path, "report", "screen", "--results", "screened")
    screened = tables((tmp_path / "screened" / "outcomes.csv").read_text(encoding="utf-8"))
    check_results("finals", tmp_path, {"finalists": read(tmp_path / "finals.json"), "screened": screened})


# The comparison itself sees what it is to see.


def test_a_changed_number_name_or_truth_is_seen():
    was = {"recall": 0.5, "hits": 3, "bold": True, "method": "camri", "shift": [0.0, None], "setting": "camri m=4 s=8"}
    apart = {"sentence": "Other words.", "wall_s": 4.0, "camri": "1.2.3"}
    assert list(differences(was, facts(was | apart), COUNTED)) == []
    changed = {"recall": 0.5 + 1e-8, "hits": 4, "bold": 1, "method": "wce", "shift": [1e-8, None], "setting": "ce"}
    for name, value in changed.items():
        assert len(list(differences(was, facts(was | {name: value}), COUNTED))) == 1, name
    assert list(differences(was, facts(was | {"shift": [0.0]}), COUNTED)) == ["/shift: 2 entries, 1"]
    renamed = {"recalled" if name == "recall" else name: value for name, value in was.items()}
    assert list(differences(was, facts(renamed), COUNTED)) == ["/recall: gone", "/recalled: new"]
