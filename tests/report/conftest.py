"""Runs made by hand: outcomes with known differences, written through the study's own writer."""

import contextlib
import shutil
import sqlite3

import numpy as np
import pytest
import torch

from camri.data import DataSet, Split
from camri.decision.counts import confusion
from camri.decision.scores import condense
from camri.engine.outcome import Outcome
from camri.engine.spec import Training, identity
from camri.study.reader import RunReader, judge_columns
from camri.study.run_folder import facts_of
from camri.study.spec import study
from camri.study.store import STORE_FILE, UNCHECKED, Store

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CLASSES = ("row", "column", "corner", "ring")
METHODS = {
    "ce": {},
    "wce": {"w": [4, 8]},
    "l2softmax": {"s": [8]},
    "camri": {"m": [0.0, np.pi / 16, np.pi / 8], "s": [8]},
}
TRAINING = Training(model="small", epochs=2, batch_size=32)


def made_data(classes, with_val, num_images, group_rows=None):
    drawn = torch.Generator().manual_seed(0)

    def split(num):
        labels = torch.arange(num) % len(classes)
        groups = None if group_rows is None else torch.arange(num) // group_rows
        labels = labels[torch.randperm(num, generator=drawn)]
        return Split(torch.zeros((num, 8, 8, 1), dtype=torch.uint8), labels, groups)

    splits = {"train": split(num_images), "test": split(num_images)} | ({"val": split(num_images)} if with_val else {})
    return DataSet("made", tuple(classes), splits, "made-fingerprint", {"layout": "made by hand"})


def made_logits(labels, num_classes, seed, important, bias, sharpness):
    """Scores of a model: `bias` is added to the important classes, `sharpness` where an image is of such a class."""
    images = np.random.default_rng(9).normal(size=(len(labels), num_classes))
    noise = np.random.default_rng([seed, 1]).normal(size=(len(labels), num_classes))
    logits = 1.2 * np.eye(num_classes)[labels] + 0.6 * images + 0.4 * noise
    logits[:, important] += bias
    logits[np.isin(labels, important)] += sharpness * np.isin(np.arange(num_classes), important)
    return logits


def made_weight(num_classes):
    """Weight vectors of two features, evenly around the circle, not of length 1."""
    angles = 2 * np.pi * np.arange(num_classes) / num_classes
    return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def made_cosines(labels, num_classes):
    """Scaled cosines of features that point along their class's weight vector."""
    unit = made_weight(num_classes) / 3
    return (8 * unit[labels] @ unit.T).astype(np.float16)


def rows_of(drawn, layer):
    """The records of one layer of a chart's specification."""
    return drawn["datasets"][layer["data"]["name"]]


@contextlib.contextmanager
def edit_store(folder):
    """A connection to change a run's store by hand; it becomes one of the version without checksums."""
    with contextlib.closing(sqlite3.connect(folder / STORE_FILE)) as connection, connection:
        yield connection
        connection.execute(f"PRAGMA user_version = {UNCHECKED}")


def make_run(
    folder,
    *,
    classes=CLASSES,
    important=("column",),
    methods=METHODS,
    seeds=4,
    num_images=400,
    group_rows=None,
    with_val=True,
    sharpness=None,
    bias=None,
    failing=(),
    leave_out=(),
    keep=False,
    val_hits=None,
):
    """A run in the folder. `sharpness` and `bias`: method -> number; `failing` and `leave_out`: {(method, seed)};
    `val_hits`: (method, seed) -> hits of each class after each epoch.
    """
    data = made_data(classes, with_val, num_images, group_rows)
    asked = study(
        "made by hand",
        "made",
        list(important),
        methods,
        seeds=seeds,
        training=TRAINING,
        val_fraction=0.1 if with_val else 0.0,
        important_from="val" if with_val else "test",
        keep_logits=keep,
        keep_weights=keep,
    )
    columns = [
        tuple((classes.index(name), 1.0) for name in ([one] if isinstance(one, str) else one)) for one in important
    ]
    kept = tuple(sorted({index for column in columns for index, _ in column}))
    folder.mkdir(exist_ok=True)
    with Store.open(folder, facts_of(asked, data)) as store:
        store.add_study(asked, columns)
        for trial in asked.trials(columns):
            method = trial.setting.method
            if (method, trial.seed) in leave_out:
                continue
            name = identity(trial, TRAINING, data.fingerprint)
            common = {"trial": trial, "training": TRAINING, "fingerprint": data.fingerprint, "epochs_done": 2}
            common["environment"] = {
                "camri": "0.1.0",
                "torch": "2.13.0",
                "processor": "<made> & by hand",
                "device": "cpu",
            }
            if (method, trial.seed) in failing:
                store.add(name, Outcome(**common, status="failed", error="the loss became nan </script>"))
                continue
            target = trial.setting.important or kept
            drift = (bias or {}).get(method, 0.0), (sharpness or {}).get(method, 0.0)
            labels = {split: data.splits[split].labels.numpy() for split in ("val", "test") if split in data.splits}
            logits = {s: made_logits(found, len(classes), trial.seed, target, *drift) for s, found in labels.items()}
            store.add(
                name,
                Outcome(
                    **common,
                    status="done",
                    confusion={s: confusion(v.argmax(axis=1), labels[s], len(classes)) for s, v in logits.items()},
                    scores={s: condense(v, labels[s], kept) for s, v in logits.items()},
                    angle_mean={s: np.full(len(classes), 0.3) for s in logits},
                    angle_sd={s: 0.1 + 0.01 * np.arange(len(classes)) + 0.001 * trial.seed for s in logits},
                    logits={s: made_cosines(found, len(classes)) for s, found in labels.items()} if keep else {},
                    weights={"head.weight": made_weight(len(classes))} if keep else None,
                    curves={} if val_hits is None else {"val_hits": val_hits(method, trial.seed)},
                    wall_s=2.0,
                    device_s=1.0 + (method == "camri"),
                ),
            )
    return folder


@pytest.fixture(scope="session")
def no_gain(tmp_path_factory):
    """All methods are equal but for a bias, which a shift gives too."""
    return make_run(tmp_path_factory.mktemp("no_gain"), bias={"wce": 0.4, "camri": 0.3}, failing={("wce", 1)})


@pytest.fixture(scope="session")
def gain(tmp_path_factory):
    """CAMRI truly separates the important class better: no shift of cross-entropy follows it."""
    return make_run(tmp_path_factory.mktemp("gain"), important=("column", "ring"), sharpness={"camri": 1.2}, seeds=8)


@pytest.fixture(scope="session")
def no_validation(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("no_validation"), with_val=False, bias={"camri": 0.2})


@pytest.fixture
def opened():
    """Opens runs as (reading, verdicts), and closes them."""
    readings = []

    def open_(folder):
        readings.append(RunReader(folder))
        return readings[-1], judge_columns(readings[-1])

    yield open_
    for reading in readings:
        reading.run.close()


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: the page is not opened in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        yield opened
        opened.close()


@pytest.fixture
def look(browser):
    """Opens a page and returns (page, complaints, requests)."""
    opened = []

    def open_(path, width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        complaints, requests = [], []
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-charts]", timeout=30_000)
        return page, complaints, requests

    yield open_
    for page in opened:
        page.close()
