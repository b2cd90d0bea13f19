"""A run resumes, refuses company, stops in time, and ends with the same table however often it is killed."""

import contextlib
import dataclasses
import errno
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
import types

import pytest

from camri.decision.counts import recall
from camri.engine import Outcome, Trial
from camri.errors import InputError
from camri.files import take_lock
from camri.methods import setting
from camri.study import run_folder, runner
from camri.study.finalists import status
from camri.study.runner import LocalExecutor
from camri.study.spec import rank_classes, study
from camri.study.store import open_run
from tests.study.conftest import TRAINING, made_outcome, stored_outcome
from tests.study.test_store import assert_same


class Pretender:
    """An executor that makes outcomes up, and keeps what it was asked for."""

    def __init__(self, fails=(), stop_after=None):
        self.fails, self.stop_after = fails, stop_after
        self.calls = []

    def train(self, trials, job, hooks):
        self.calls.append((list(trials), job))
        for place, trial in enumerate(trials):
            if self.stop_after == place or hooks.should_stop():
                return False
            status = "failed" if trial.seed in self.fails else "done"
            hooks.on_outcome(made_outcome(job.data, trial, job.training, job.important, status))
        return True

    @property
    def trained(self):
        return [trial for trials, _ in self.calls for trial in trials]


@pytest.fixture(scope="module")
def undisturbed(data, small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    result = runner.run(small, folder, LocalExecutor("cpu", workers=1), data=data)
    assert (result.finished, result.done, result.failed, result.pending, result.new) == (True, 6, 0, 0, 6)
    return folder


def table(folder):
    with open_run(folder) as run:
        return {row.identity: stored_outcome(run, row) for row in run.rows(status=None)}


def assert_same_table(one, other):
    mine, theirs = table(one), table(other)
    assert mine.keys() == theirs.keys()
    for name, outcome in mine.items():
        for field in ("wall_s", "device_s", "environment"):
            object.__setattr__(theirs[name], field, getattr(outcome, field))
        assert_same(outcome, theirs[name])


def test_every_setting_is_trained_once_and_stored(undisturbed, small, data):
    with open_run(undisturbed) as run:
        rows = run.rows()
        assert sorted((row.title, row.seed) for row in rows) == [
            ("camri m=4.074π/64 s=8", 0), ("camri m=4.074π/64 s=8", 1),
            ("ce", 0), ("ce", 1), ("l2softmax s=8", 0), ("l2softmax s=8", 1),
        ]  # fmt: skip
        assert run.scores(rows[0], "val").important == (1,)
        assert {len(run.rows(key=one.key)) for one in run.plan()} == {2}
    assert sorted(path.name for path in undisturbed.iterdir()) == ["outcomes.sqlite", "run.lock"]


@pytest.mark.parametrize("important", ["corner", ["row", "corner"], ["worst", "second", "median"]])
def test_every_class_may_be_important_the_last_one_too(data, important):
    grids = {"ce": {}, "camri": {"m": [0.2], "s": [8]}, "ldam": {"m": [0.1], "max_m": [0.5], "s": [8]}}
    runner.check(study("last", "made", important, grids, training=TRAINING), data)


def test_classes_yet_to_be_found_may_be_more_than_there_are(data):
    two = dataclasses.replace(data, classes=("row", "rest"), splits={
        name: dataclasses.replace(split, labels=split.labels.clamp(max=1)) for name, split in data.splits.items()
    })  # fmt: skip
    important = ["worst", "second", "median"]
    runner.check(study("found", "made", important, {"ce": {}, "camri": {"m": [0.2], "s": [8]}}, training=TRAINING), two)


def test_what_is_done_is_not_done_again(undisturbed, small, data):
    pretender = Pretender()
    result = runner.run(small, undisturbed, pretender, data=data)
    assert (result.finished, result.done, result.new) == (True, 6, 0)
    assert pretender.calls == []


def test_a_wider_study_trains_only_what_is_new(data, small, tmp_path):
    runner.run(small, tmp_path, Pretender(), data=data)
    more = Pretender()
    wider = small.with_(seeds=3, methods={"ce": {}, "camri": {"m": [0.2, 0.3], "s": [8]}})
    runner.run(wider, tmp_path, more, data=data)
    assert [(trial.setting.method, trial.seed) for trial in more.trained] == [
        ("ce", 2), ("camri", 0), ("camri", 1), ("camri", 2), ("camri", 2),
    ]  # fmt: skip
    with open_run(tmp_path) as run:
        assert [spec["seeds"] for spec in run.studies] == [[0, 1], [0, 1, 2]]
        assert len(run.plan()) == 5


def test_failed_trials_are_kept_and_retried_when_asked(data, small, tmp_path):
    assert runner.run(small, tmp_path, Pretender(fails=[1]), data=data).failed == 3
    idle = Pretender()
    assert runner.run(small, tmp_path, idle, data=data).failed == 3
    assert idle.calls == []
    again = Pretender()
    result = runner.run(small, tmp_path, again, data=data, retry_failed=True)
    assert [trial.seed for trial in again.trained] == [1, 1, 1]
    assert (result.done, result.failed, result.new) == (6, 0, 3)
    with open_run(tmp_path) as run:
        assert sorted(row.attempts for row in run.rows()) == [1, 1, 1, 2, 2, 2]


def test_the_worst_class_is_found_from_cross_entropy(data, small, tmp_path):
    symbolic = small.with_(important=["worst", {"second": 1.0, "median": 0.5}])
    first = Pretender(stop_after=1)
    result = runner.run(symbolic, tmp_path, first, data=data)
    assert (result.finished, result.done, result.pending) == (False, 1, 7)
    assert first.calls[0][1].important == (1, 2)  # any class may turn out to be wanted
    with open_run(tmp_path) as run:
        assert run.columns() == []
    second = Pretender()
    assert runner.run(symbolic, tmp_path, second, data=data).finished
    assert [trial.setting.method for trial in second.calls[0][0]] == ["ce"]
    with open_run(tmp_path) as run:
        ranked = rank_classes([row.recall["val"] for row in run.rows(method="ce")])
        worst, pair = run.columns()
        assert worst.indices == (ranked["worst"],)
        assert pair.indices == tuple(dict.fromkeys([ranked["second"], ranked["median"]]))
        ce = run.rows(method="ce")[0]
        for column in (worst, pair):
            recalls = run.scores(ce, "test", column.indices).recall()
            assert recalls.tolist() == [ce.recall["test"][index] for index in sorted(column.indices)]


def test_what_was_found_is_never_decided_again(data, small, tmp_path):
    symbolic = small.with_(important="worst")
    runner.run(symbolic, tmp_path, Pretender(), data=data)
    with open_run(tmp_path) as run:
        recalls = [row.recall["val"] for row in run.rows(method="ce")]
        (worst,) = run.columns()

    def ranked_with(seed):
        return rank_classes([*recalls, recall(made_outcome(data, Trial(setting("ce"), seed)).confusion["val"])])

    seed = next(seed for seed in range(2, 200) if (ranked_with(seed)["worst"],) != worst.indices)
    more = Pretender()
    runner.run(symbolic.with_(seeds=[0, 1, seed]), tmp_path, more, data=data)
    assert {trial.seed for trial in more.trained} == {seed}
    assert {trial.setting.important for trial in more.trained} == {(), worst.indices}
    with open_run(tmp_path) as run:
        assert run.columns() == [worst]


def test_the_papers_rule_looks_at_the_test_images(data, small, tmp_path):
    runner.run(small.with_(important="worst", important_from="test"), tmp_path, Pretender(), data=data)
    with open_run(tmp_path) as run:
        by_split = {s: rank_classes([row.recall[s] for row in run.rows(method="ce")])["worst"] for s in ("val", "test")}
        assert run.columns()[0].indices == (by_split["test"],)
        assert by_split["val"] != by_split["test"]  # so that this test can fail


def test_ranks():
    assert rank_classes([[0.5, 0.9, 0.2, 0.7], [0.5, 0.7, 0.4, 0.9]]) == {"worst": 2, "second": 0, "median": 0}
    assert rank_classes([[0.3, float("nan"), 0.3, 0.9, 0.8]]) == {"worst": 0, "second": 2, "median": 2}
    with pytest.raises(InputError, match="fewer than two classes"):
        rank_classes([[0.3, float("nan")]])


def test_all_classes_may_be_important(data, small, tmp_path):
    everything = small.with_(important=["row", "column", "corner"])
    pretender = Pretender()
    assert runner.run(everything, tmp_path, pretender, data=data).finished
    assert pretender.calls[0][1].important == (1, 2)
    with open_run(tmp_path) as run:
        assert run.scores(run.rows()[0], "val", (0,)).important == (0,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"important": "colum"}, "important='colum' is not a class; did you mean 'column'"),
        ({"important": 3}, "important=3 is not a class; there are 3, 0 to 2"),
        ({"important": ["column", "row", 1]}, r"important=\[1\] is a column twice; give each once"),
        ({"important": [["row", "column"], ["1", 0]]}, r"important=\['1', 0\] is a column twice"),
        ({"important": [{"column": 1.0, "row": 1.0, 1: 0.5}]}, "important='column' and 1 are the same class; give it"),
        ({"training": TRAINING.with_(model_options=(("widht", 2),))}, "widht"),
        ({"methods": {"camri": {"m": [0.1], "s": [-1]}}}, "-1"),
    ],
)
def test_bad_input_leaves_nothing_behind(data, small, tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        runner.run(small.with_(**changes), tmp_path / "new", Pretender(), data=data)
    assert not (tmp_path / "new").exists()


def test_a_folder_of_other_things_is_refused(data, small, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"holds other files \(thesis.tex"):
        runner.run(small, tmp_path, Pretender(), data=data)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_refused(data, small, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written .*choose another folder"):
        runner.run(small, tmp_path / "file" / "run", Pretender(), data=data)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"), run_folder.hold(tmp_path):
        pass


def test_a_full_disk_under_the_checkpoints_is_a_sentence(data, small, tmp_path):
    class Full(Pretender):
        def train(self, trials, job, hooks):
            super().train(trials[:2], job, hooks)
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match="the disk is full; what was stored is safe"):
        runner.run(small, tmp_path, Full(), data=data)
    assert len(table(tmp_path)) == 2
    assert runner.run(small, tmp_path, Pretender(), data=data).new == 4


def test_max_wall_stops_cleanly(data, small, tmp_path, monkeypatch):
    """By a clock that a busy machine cannot disturb: every look at it takes a tenth of a second."""
    looks = itertools.count()
    monkeypatch.setattr(runner, "time", types.SimpleNamespace(monotonic=lambda: next(looks) / 10))
    slow = small.with_(training=TRAINING.with_(epochs=4000))
    result = runner.run(slow, tmp_path, LocalExecutor("cpu", workers=1), data=data, max_wall_s=20.0)
    assert (result.finished, result.done, result.pending) == (False, 0, 6)
    assert 15.0 < next(looks) / 10 < 15.5
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1  # the trial in flight goes on from here


def test_listeners_get_what_is_stored(data, small, tmp_path):
    heard = []

    def listen(outcome):
        with open_run(tmp_path) as run:
            heard.append((outcome.trial.seed, len(run.rows())))

    runner.run(small, tmp_path, Pretender(), data=data, listeners=[listen])
    assert heard == [(0, 1), (1, 2), (0, 3), (0, 4), (1, 5), (1, 6)]
    assert isinstance(next(iter(table(tmp_path).values())), Outcome)


def test_progress_counts_earlier_calls(data, small, tmp_path):
    runner.run(small, tmp_path, Pretender(stop_after=3), data=data)
    reports = []
    executor = LocalExecutor("cpu", workers=1)
    runner.run(small, tmp_path, executor, data=data, on_progress=reports.append)
    assert {report.total for report in reports} == {6}
    assert reports[0].done >= 3
    assert reports[0].part >= 0.5
    assert reports[-1].part == 1.0


# Forked from a process that has done nothing but import: a fork of this one would inherit locks that threads of other
# tests hold, and under Python 3.13 it hung.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["camri.study.runner", "camri.study.runner", "camri.engine", "tests.study.test_runner"])


def start(*arguments):
    """A process of its own."""
    process = SERVER.Process(target=_run_quietly, args=arguments)
    process.start()
    return process


def wait_until(condition, process, most_s=120.0):
    """Nothing, once the condition holds; fails where the process ends before, or takes too long."""
    end = time.monotonic() + most_s
    while not condition():
        assert process.exitcode is None, f"the process ended with {process.exitcode}"
        assert time.monotonic() < end, f"waited for {most_s:g} s"
        time.sleep(0.01)


def _run_quietly(spec, folder, data):
    with contextlib.suppress(KeyboardInterrupt):
        runner.run(spec, folder, LocalExecutor("cpu", workers=1, checkpoint_every_s=0.0), data=data)


def test_a_second_process_is_refused_until_the_first_is_gone(data, small, tmp_path):
    first = start(small.with_(training=TRAINING.with_(epochs=10_000)), tmp_path, data)
    wait_until(lambda: run_folder.holder(tmp_path) == first.pid, first)
    with pytest.raises(InputError, match=rf"is in use by another process \(pid {first.pid}\)"):
        runner.run(small, tmp_path, Pretender(), data=data)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    with run_folder.hold(tmp_path):
        assert run_folder.holder(tmp_path) == os.getpid()
    assert run_folder.holder(tmp_path) is None


def test_a_lock_that_a_dying_process_leaves_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    """Killed while it asks git for the commit, a process has a child that holds its lock until it has become git."""
    handle = os.open(tmp_path / run_folder.LOCK_FILE, os.O_RDWR | os.O_CREAT)
    take_lock(handle)
    assert run_folder.holder(tmp_path) is not None
    clock = types.SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: os.close(handle))
    monkeypatch.setattr(run_folder, "time", clock)
    with run_folder.hold(tmp_path):
        assert run_folder.holder(tmp_path) == os.getpid()


@pytest.fixture
def longer(small):
    """Some seconds of work: 14 trials, for a class that is still to be found."""
    grid = {"ce": {}, "wce": {"w": [4, 8]}, "camri": {"m": [0.0, 0.1, 0.2, 0.3], "s": [8]}}
    return small.with_(important="worst", methods=grid, training=TRAINING.with_(epochs=36, average=0.9))


@pytest.mark.slow
def test_killed_ten_times_the_table_is_that_of_an_undisturbed_run(data, longer, tmp_path):
    began = time.monotonic()
    runner.run(longer, tmp_path / "whole", LocalExecutor("cpu", workers=1), data=data)
    whole_s = time.monotonic() - began
    kills = 0
    while kills < 10:
        process = start(longer, tmp_path / "killed", data)
        process.join(timeout=random.uniform(0.0, whole_s / 10))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        else:  # the machine has become faster since it was timed: look at the table, and begin anew
            assert process.exitcode == 0
            assert_same_table(tmp_path / "killed", tmp_path / "whole")
            shutil.rmtree(tmp_path / "killed")
    last = start(longer, tmp_path / "killed", data)
    last.join()
    assert last.exitcode == 0
    assert_same_table(tmp_path / "killed", tmp_path / "whole")
    with open_run(tmp_path / "killed") as run, open_run(tmp_path / "whole") as whole:
        assert run.columns() == whole.columns()
        assert {row.attempts for row in run.rows()} == {1}
        assert len(run.rows()) == 14


def test_an_interrupt_leaves_checkpoints_and_the_next_call_resumes(data, small, tmp_path, undisturbed):
    def interrupt(report):
        os.kill(os.getpid(), signal.SIGTERM)

    executor = LocalExecutor("cpu", workers=1)
    result = runner.run(small, tmp_path, executor, data=data, on_progress=interrupt)
    assert (result.finished, result.new, result.pending) == (False, 0, 6)
    assert len(list(tmp_path.glob("checkpoints/*.safetensors"))) == 1
    assert runner.run(small, tmp_path, executor, data=data).new == 6
    assert_same_table(tmp_path, undisturbed)


def test_a_signal_as_the_cross_entropy_trials_end_stops_the_trials_after_them(data, small, tmp_path):
    """Nobody looks for a signal any more after a call's last step, and the next call would not know of it."""

    def interrupt(outcome):
        if len(table(tmp_path)) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    sought = small.with_(important="worst")
    result = runner.run(sought, tmp_path, LocalExecutor("cpu", workers=1), data=data, listeners=[interrupt])
    assert (result.finished, result.done, result.pending) == (False, 2, 4)


def test_a_file_system_without_locks_is_not_in_use(tmp_path, monkeypatch):
    def flock(handle, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("camri.files.fcntl.flock", flock)
    said = r"is on a file system that cannot lock files \(Function not implemented\); choose a folder on another"
    with pytest.raises(InputError, match=said), run_folder.hold(tmp_path):
        pass
    assert (tmp_path / run_folder.LOCK_FILE).exists()
    assert run_folder.holder(tmp_path) is None


TRACEBACK = "Traceback (most recent call last):\n  File “net.py”, line 3\nRuntimeError: size=3 is odd"


class Breaking(Pretender):
    """An executor whose every trial of some methods fails with a traceback."""

    def __init__(self, *methods):
        super().__init__()
        self.methods = methods

    def train(self, trials, job, hooks):
        for trial in trials:
            is_broken = trial.setting.method in self.methods
            made = made_outcome(job.data, trial, job.training, job.important, "failed" if is_broken else "done")
            hooks.on_outcome(dataclasses.replace(made, error=TRACEBACK) if is_broken else made)
        return True


def test_why_the_worst_class_cannot_be_found(data, small, tmp_path):
    sought = small.with_(important=["worst"])
    with pytest.raises(runner.NoBaseline) as end:
        runner.run(sought, tmp_path, Breaking("ce"), data=data)
    for part in (str(tmp_path), "worst", "RuntimeError: size=3 is odd", "--retry-failed"):
        assert part in str(end.value)
    assert runner.run(sought, tmp_path, Pretender(), data=data, retry_failed=True).failed == 0


def test_a_result_has_the_first_error(data, small, tmp_path):
    result = runner.run(small, tmp_path, Breaking("camri"), data=data)
    assert (result.failed, result.first_error) == (2, "camri m=4.074π/64 s=8 seed 0: RuntimeError: size=3 is odd")
    assert status(tmp_path).errors == tuple(
        f"camri m=4.074π/64 s=8 seed {seed}: RuntimeError: size=3 is odd" for seed in (0, 1)
    )
    assert runner.run(small, tmp_path, Pretender(), data=data, retry_failed=True).first_error is None
