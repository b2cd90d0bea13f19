"""The store gives back what was put in, to the bit, and says what is wrong with a file."""

import contextlib
import dataclasses
import json
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from camri.decision.scores import condense
from camri.engine.spec import Trial
from camri.errors import InputError
from camri.methods import setting
from camri.study.combine import merge
from camri.study.run_folder import facts_of
from camri.study.store import STORE_FILE, UNCHECKED, Store, all_but_first, open_run, remove, restrict_scores
from tests.study.conftest import TRAINING, first_trials, made_outcome, put, stored_outcome


def flat(value, name=""):
    """Everything in an outcome by path, so that two can be compared field by field."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {path: leaf for key, one in value.items() for path, leaf in flat(one, f"{name}/{key}").items()}
    return {name: value}


def assert_same(one, other):
    mine, theirs = flat(one), flat(other)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == theirs[path].dtype, path
            assert value.shape == theirs[path].shape, path
            assert value.tobytes() == theirs[path].tobytes(), path
        else:
            assert value == theirs[path], path


def test_outcomes_come_back_to_the_bit(store, data, small):
    trials = first_trials(small)
    given = [
        made_outcome(data, trials[0]),
        made_outcome(data, trials[1], status="failed"),
        made_outcome(data, trials[2], important=()),
        dataclasses.replace(
            made_outcome(data, trials[3]),
            logits={"val": np.ones((40, 3), np.float16)},
            weights={"head.weight": np.full((3, 2), 1e-40, np.float32), "steps": np.array(3)},
        ),
        made_outcome(data, Trial(setting("camri", [0, 2], m=[0.1, 0.2], s=8.0), 0), important=(0, 2)),
    ]
    names = [put(store, outcome) for outcome in given]
    with open_run(store.path.parent) as run:
        rows = {row.identity: row for row in run.rows(status=None)}
        for name, outcome in zip(names, given, strict=True):
            assert_same(stored_outcome(run, rows[name]), outcome)
        assert len(run.rows()) == 4
        assert len(run.rows(status=None)) == 5
        assert run.statuses() == {name: outcome.status for name, outcome in zip(names, given, strict=True)}


def test_rows_say_what_people_filter_by(store, data, small):
    ce, camri = first_trials(small)[0], first_trials(small)[3]
    outcome = made_outcome(data, camri)
    put(store, made_outcome(data, ce))
    name = put(store, outcome)
    with open_run(store.path) as run:
        (row,) = run.rows(method="camri")
        assert (row.identity, row.key, row.seed, row.status, row.attempts) == (name, camri.setting.key, 0, "done", 1)
        assert row.title == "camri m=4.074π/64 s=8"
        assert row.setting == {"method": "camri", "important": [1], "knobs": {"m": [0.2], "s": 8.0}}
        assert row.accuracy == {"val": outcome.accuracy("val"), "test": outcome.accuracy("test")}
        assert row.recall["test"][1] == outcome.recall(1)
        assert run.confusion(row).tolist() == outcome.confusion["test"].tolist()
        assert (run.classes, run.splits, run.fingerprint) == (data.classes, ("val", "test"), "made-fingerprint")
        assert run.labels("val").tolist() == data.splits["val"].labels.tolist()
        (column,) = run.columns()
        assert (column.indices, column.names, column.strengths, column.title) == ((1,), ("column",), (1.0,), "column")
        plan = run.plan(0)
        assert [one.title for one in plan] == ["ce", "l2softmax s=8", "camri m=0π/64 s=8", "camri m=4.074π/64 s=8"]
        assert plan[1].key == plan[2].key  # trained once, counts for both
        assert run.rows(key=plan[3].key) == [row]
        assert [spec["name"] for spec in run.studies] == ["small"]


def test_reading_needs_no_torch(store, data, small):
    put(store, made_outcome(data, first_trials(small)[0]))
    script = (
        "import sys\nfrom camri.study.store import open_run\n"
        "run = open_run(sys.argv[1])\nrow = run.rows()[0]\nprint(run.scores(row, 'val', (1,)).recall().shape)\n"
        "assert not {'torch', 'pydantic', 'rich', 'typer', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(store.path.parent)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "(1,)\n"), done.stderr


def test_readers_see_what_is_written_meanwhile(store, data, small):
    with open_run(store.path.parent) as run:
        assert run.rows() == []
        put(store, made_outcome(data, first_trials(small)[0]))
        assert len(run.rows()) == 1
        with pytest.raises(InputError, match="readonly"):
            run._select("DELETE FROM outcomes")


def test_a_retried_trial_takes_its_place_and_is_counted(store, data, small):
    trial = first_trials(small)[0]
    put(store, made_outcome(data, trial, status="failed"))
    assert [(row.status, row.attempts, row.error) for row in store.rows(status=None)] == [
        ("failed", 1, "the loss became nan")
    ]
    put(store, made_outcome(data, trial))
    assert [(row.status, row.attempts, row.error) for row in store.rows(status=None)] == [("done", 2, None)]


def test_a_store_is_on_the_disk_in_full(store):
    assert store._select("PRAGMA journal_mode") == [("wal",)]
    assert store._select("PRAGMA synchronous") == [(2,)]


def test_a_store_stays_small(store, data, small):
    for trial in first_trials(small):
        put(store, made_outcome(data, trial))
    largest = store._select("SELECT max(length(arrays)) FROM outcomes")[0][0]
    assert largest < 6000  # 13 arrays of 90 images; a tenth of it is data, the rest the .npz file's own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other"}, r"other data \(made, made-fingerp, and not made, other\); choose another folder"),
        ({"training": TRAINING.with_(epochs=9).to_json()}, r"another training \(epochs=2\)"),
    ],
)
def test_a_run_takes_no_strangers(store, data, small, change, said):
    with pytest.raises(InputError, match=said):
        Store.open(store.path.parent, dataclasses.replace(facts_of(small, data), **change))


def edit(store, statement):
    with sqlite3.connect(store.path) as connection:
        connection.execute(statement)
    connection.close()


def reopened(store, data, small):
    return reopened_in(store.path.parent, data, small)


def reopened_in(folder, data, small):
    return Store.open(folder, facts_of(small, data))


def test_a_store_of_another_version_is_refused(store, data, small):
    store.close()
    edit(store, "PRAGMA user_version=7")
    for open_it in (lambda: reopened(store, data, small), lambda: open_run(store.path)):
        with pytest.raises(InputError, match="store version 7, but this camri reads version 2"):
            open_it()


def test_a_store_without_checksums_is_read_and_merged_but_not_written_to(store, data, small, tmp_path):
    name = put(store, made_outcome(data, first_trials(small)[0]))
    store.close()
    edit(store, "DROP TABLE checks")
    edit(store, f"PRAGMA user_version={UNCHECKED}")
    with pytest.raises(InputError, match="has store version 1; `camri study merge` copies it into a new folder"):
        reopened(store, data, small)
    assert merge([store.path.parent], tmp_path / "new").added == 1
    with reopened_in(tmp_path / "new", data, small) as copy:
        assert copy.statuses() == {name: "done"}


def test_another_sqlite_file_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / STORE_FILE) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(InputError, match="not the outcomes of a study"):
        open_run(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        open_run(tmp_path)
    (tmp_path / STORE_FILE).touch()
    with pytest.raises(InputError, match="has no outcomes yet"):
        open_run(tmp_path)


@pytest.mark.parametrize("where", ["head", "page", "blob"])
def test_a_damaged_file_is_named(store, data, small, where):
    name = put(store, made_outcome(data, first_trials(small)[0]))
    store.close()
    if where == "blob":
        edit(store, "UPDATE outcomes SET arrays = zeroblob(100)")
        with pytest.raises(InputError, match=r"outcomes.sqlite is damaged .*recover"), open_run(store.path) as run:
            run.arrays(name)
        return
    content = bytearray(store.path.read_bytes())
    start = 0 if where == "head" else 4096
    content[start : start + 3000] = b"\xff" * 3000
    store.path.write_bytes(content)
    before = store.path.read_bytes()
    with pytest.raises(InputError, match=r"outcomes.sqlite is damaged .*recover"):
        reopened(store, data, small)
    assert store.path.read_bytes() == before


@pytest.mark.parametrize("statement", ["INSERT OR REPLACE INTO outcomes", "COMMIT"])
def test_a_full_disk_loses_nothing(store, data, small, statement):
    trials = first_trials(small)
    put(store, made_outcome(data, trials[0]))

    class Full:
        """The connection on a disk that fills up at one statement."""

        def __init__(self, connection):
            self.connection = connection

        def execute(self, text, *values):
            if text.startswith(statement):
                raise sqlite3.OperationalError("database or disk is full")
            return self.connection.execute(text, *values)

        def __getattr__(self, name):
            return getattr(self.connection, name)

    real, store._connection = store._connection, Full(store._connection)
    with pytest.raises(InputError, match="the disk is full; what was stored is safe"):
        put(store, made_outcome(data, trials[1]))
    store._connection = real
    assert len(store.rows()) == 1
    put(store, made_outcome(data, trials[1]))
    assert len(store.rows()) == 2


def test_a_disk_that_is_really_full(store, data, small):
    """SQLite's own page limit stands for the disk's end."""
    pages = store._select("PRAGMA page_count")[0][0]
    store._select(f"PRAGMA max_page_count={pages}")
    trials = first_trials(small)
    with pytest.raises(InputError, match="the disk is full"):
        [put(store, made_outcome(data, trial)) for trial in trials]
    kept = len(store.rows())
    store._select("PRAGMA max_page_count=1000000")
    for trial in trials[kept:]:
        put(store, made_outcome(data, trial))
    assert len(store.rows()) == len(trials)


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a file without tables"])
def test_a_run_broken_off_before_its_tables_begins_anew(tmp_path, data, small, left):
    if left != "nothing":
        (tmp_path / STORE_FILE).touch()
    if left == "a file without tables":
        with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    with Store.open(tmp_path, facts_of(small, data)) as store:
        assert store.classes == data.classes
    assert [path.name for path in tmp_path.iterdir()] == [STORE_FILE]


def test_a_log_of_a_store_that_is_gone_is_not_read_into_another(tmp_path, data, small):
    """SQLite would take it for the new store's own."""
    first, kept = tmp_path / "first", tmp_path / "kept"
    for folder in (first, kept):
        folder.mkdir()
    with Store.open(first, facts_of(small, data)) as store:
        put(store, made_outcome(data, first_trials(small)[0]))
        shutil.copy(first / f"{STORE_FILE}-wal", kept)
    with Store.open(kept, facts_of(small, data)) as store:
        assert store.rows() == []
    with Store.open(first, facts_of(small, data)) as store:
        put(store, made_outcome(data, first_trials(small)[0]))
        remove(store.path)
        assert list(first.iterdir()) == []


def test_what_a_writer_could_not_end_is_undone_for_readers(store, data, small, tmp_path):
    name = put(store, made_outcome(data, first_trials(small)[0]))
    store.close()
    left = tmp_path / "left"
    left.mkdir()
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("UPDATE outcomes SET arrays = zeroblob(200000)")
        for path in tmp_path.glob(f"{STORE_FILE}*"):
            shutil.copy(path, left)
    assert (left / f"{STORE_FILE}-journal").stat().st_size
    with open_run(left) as run:
        assert run.confusion(name, "val").sum() == 40


def test_scores_of_all_classes_serve_any_of_them():
    drawn = np.random.default_rng(3)
    labels = drawn.integers(0, 4, 400)
    logits = (drawn.normal(size=(400, 4)) * 3).round(1)  # rounded: there are ties
    wide = condense(logits, labels, all_but_first(4))
    for important in [(0,), (2,), (0, 3), (1, 2, 3)]:
        exact, found = condense(logits, labels, important), restrict_scores(wide, important, 4)
        assert found.important == important
        assert (found.predict() == exact.predict()).all()
        assert (found.correct() == exact.correct()).all()
        assert np.abs(found.lead.astype(float) - exact.lead).max() < 0.01
        assert np.abs(found.rest_spread.astype(float) - exact.rest_spread).max() < 0.01


def test_scores_are_given_for_the_classes_asked_for(store, data, small):
    trial = first_trials(small)[0]
    name = put(store, made_outcome(data, trial, important=(1, 2)))
    assert store.scores(name, "val").important == (1, 2)
    only = store.scores(name, "val", (0,))
    assert only.important == (0,)
    confusion = store.confusion(name, "val")
    assert only.recall()[0] == confusion[0, 0] / confusion[0].sum()


def test_the_facts_are_json(store):
    assert json.loads(json.dumps(store.data)) == {
        "name": "made",
        "provenance": {"layout": "made"},
        "rows": {"train": 96, "val": 40, "test": 50},
        "input_shape": [8, 8, 1],
    }
