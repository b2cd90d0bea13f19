"""Attacks: killed processes, damaged content, fuzzed files, foreign code. Fixtures are those of the other tests.

Hostile input of one reader or writer is tested beside it: pickles in tests/data/test_official.py, archives, tables and
image formats in tests/data/test_bad_input.py, models and cards in tests/export/test_files.py, formulas in
tests/report/test_tables.py and tests/export/test_predict.py, the chart library in tests/report/test_page.py.
"""

import importlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest


def borrow(name, package, scope="session"):
    """A fixture of another package's tests, imported when used: pytest-xdist's main process then needs no torch."""

    @pytest.fixture(scope=scope, name=name)
    def borrowed(request):
        made = getattr(importlib.import_module(f"tests.{package}.conftest"), name).__wrapped__
        return made(request.getfixturevalue("monkeypatch")) if scope == "function" else made()

    return borrowed


data, training, trials = (borrow(name, "engine") for name in ("data", "training", "trials"))
rows, small = borrow("rows", "fitting"), borrow("small", "study")
without_files = borrow("without_files", "fitting", scope="function")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory, data, small):
    """A run's store with outcomes of every kind."""
    from camri.study.run_folder import facts_of
    from camri.study.store import STORE_FILE, Store
    from tests.study.conftest import first_trials, made_outcome, put

    folder = tmp_path_factory.mktemp("run")
    with Store.open(folder, facts_of(small, data)) as store:
        store.add_study(small, [((1, 1.0),)])
        for trial in first_trials(small):
            is_failed = trial.seed and "m=" in str(trial.setting)
            put(store, made_outcome(data, trial, status="failed" if is_failed else "done"))
        store.write_note("verdict", {"number": 0.5})
    return folder / STORE_FILE


SHARED = ("pool", "whole", "whole_fit", "checkpoint")  # fixtures that take seconds


def pytest_collection_modifyitems(items):
    """Tests that share such a fixture run in one process (--dist loadgroup), long ones function by function."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for name in set(SHARED).intersection(item.fixturenames):
                is_long = item.get_closest_marker("long") is not None
                item.add_marker(pytest.mark.xdist_group(f"{name} {item.originalname}" if is_long else name))


# What the same attacks did to 3baece5, by hand: attack -> (number, result).
BEFORE = {
    "study, main process killed": (61, "0 lost, 0 doubled, 0 different"),
    "study, worker killed, class named": (8, "8 failed trials, exit code 0"),
    "study, worker killed, class worst": (2, "another study, 2 of 2"),
    "fit, main process killed": (37, "the same weights; 11 stray folders"),
    "fit, worker killed": (2, "1 of 2 another model"),
    "three writers, read-only, disk full, -wal damaged, clock jumps": (31, "resumed; 3 tracebacks"),
    "fit on a disk of 8 to 128 KiB, files of at most as much": (8, "7 could never resume"),
    "a write, sync, rename … that fails or kills, at any call": (0, ""),
    "store, one bit flipped": (550, "399 reported, 128 no effect, 13 tracebacks, 10 silent"),
    "store, edited by SQL": (27, "27 tracebacks"),
    "model, one bit flipped": (0, "config.json: silent"),
    "model, values replaced in config and header": (127, "30 raw exceptions"),
    "checkpoint damaged": (19, "8 start over, 3 silently different, 5 fail, 3 raise"),
    "hostile archives, images, pickles, models": (57, "nothing escaped; 3 tracebacks"),
    "damaged files, mutations": (1060, "58 tracebacks"),
    "class names: markup, escapes, formulas": (12, "CSV and model card not clean"),
    "tables, fits, audits of bad numbers": (82, "2 tracebacks"),
    "a method with nine faults": (20, "only those fail; with one worker a crash ends the run"),
    "Python files beside the data": (0, "executed by workers"),
    "Ray: actors, driver, client, head killed": (9, "resumed; a lost head ends in Ray's log after 61 s"),
}


@pytest.fixture
def tally(request):
    """A function that counts attacks and how they ended, for the table at the end of `make attacks`."""
    return lambda attack, ended, num=1: request.node.user_properties.append((attack, (ended, num)))


NOW, FAILED = defaultdict(Counter), set()
# Tests beside the code that they attack, by the words in their names.
BESIDE = {
    "hostile archives, images, pickles, models": (
        "tests/data/test_bad_input.py",
        "tests/data/test_official.py",
        "tests/export/test_files.py",
        "tests/data/test_decode.py",
    ),
    "class names: markup, escapes, formulas": (
        "hostile_names",
        "formula",
        "attacks/test_names.py",
        "no_html",
        "markup",
        "are_escaped",
        "latex_escapes",
    ),
    "Ray: actors, driver, client, head killed": ("tests/study/test_cluster.py", "tests/attacks/test_ray.py"),
}


def pytest_runtest_logreport(report):
    if report.failed:
        FAILED.add(report.nodeid)
    if report.when == "call" and report.passed:
        for attack, words in BESIDE.items():
            NOW[attack]["tests passed"] += any(word in report.nodeid for word in words)
    if report.when == "teardown":
        for attack, (ended, num) in report.user_properties:
            NOW[attack]["in tests that failed" if report.nodeid in FAILED else ended] += num


def pytest_terminal_summary(terminalreporter, config):
    if config.option.markexpr != "long or not long":
        return
    terminalreporter.section("attack | before (3baece5, by hand) | now")
    for attack, (num, ended) in BEFORE.items():
        now = +NOW[attack]
        results = ", ".join(f"{count:,} {how}" for how, count in now.items()) or "not run"
        terminalreporter.write_line(f"| {attack} | {num:,}: {ended} | {now.total():,}: {results} |")
