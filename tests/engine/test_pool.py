"""Processes kept between calls: the same bits, and calls do not affect each other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from camri.data import DataSet
from camri.engine import Pool, Stopped, cpu, train
from tests.engine.conftest import made_images, same

KEEP = {"important": [1], "keep_logits": True, "keep_weights": True}


def is_alive(process):
    return process.poll() is None


def test_calls_with_other_data_and_trainings_share_processes_and_end_with_the_same_bits(
    started, monkeypatch, trials, data, training
):
    saved, real = [], np.save
    monkeypatch.setattr(cpu.np, "save", lambda path, array: (saved.append(path.name), real(path, array)))
    splits = {"train": made_images(150, 4), "val": made_images(50, 5), "test": made_images(60, 6)}
    other = DataSet("other", data.classes, splits, "other-fingerprint", {})
    calls = [(data, training), (data, training.with_(epochs=2)), (other, training), (data, training)]
    with Pool() as pool:
        for place, (rows, how) in enumerate(calls):
            some = trials[place % 3 : place % 3 + 3]
            outcomes = train(some, rows, "cpu", training=how, workers=2, pool=pool, **KEEP)
            alone = train(some, rows, "cpu", training=how, workers=1, **KEEP)
            assert all(same(one, before) for one, before in zip(outcomes, alone, strict=True))
            assert [one.fingerprint for one in outcomes] == [rows.fingerprint] * 3
        assert [is_alive(one) for one in started] == [True, True]
    assert [one.returncode for one in started] == [-signal.SIGKILL] * 2
    assert len(saved) == 3 * 6  # inputs and labels of three splits, each time that the data are others


def test_a_stop_is_over_when_the_next_call_begins(started, tmp_path, trials, data, training):
    heard = []
    with Pool() as pool:
        with pytest.raises(Stopped):
            train(trials, data, "cpu", training=training.with_(epochs=300), workers=2, pool=pool, checkpoints=tmp_path,
                  on_progress=heard.append, should_stop=lambda: bool(heard))  # fmt: skip
        assert list(tmp_path.glob("*.safetensors"))
        for worker in started:
            cpu._send(worker, "stop")  # as one that comes when its trial has ended
        outcomes = train(trials[:2], data, "cpu", training=training, workers=2, pool=pool)
        assert [one.status for one in outcomes] == ["done", "done"]
        assert len(started) == 2


def test_a_worker_that_died_between_calls_is_replaced(started, trials, data, training):
    with Pool() as pool:
        train(trials[:2], data, "cpu", training=training, workers=2, pool=pool)
        started[0].kill()
        started[0].wait()
        outcomes = train(trials[:3], data, "cpu", training=training, workers=2, pool=pool)
        assert [one.status for one in outcomes] == ["done"] * 3
    assert len(started) == 3
    assert not any(map(is_alive, started))


def test_an_exception_of_the_caller_leaves_no_process_and_no_file(
    started, monkeypatch, tmp_path, trials, data, training
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(outcome):
        assert list(tmp_path.iterdir())
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"), Pool() as pool:
        train(trials, data, "cpu", training=training, workers=2, pool=pool, on_outcome=fail)
    assert [one.returncode for one in started] == [-signal.SIGKILL] * 2
    assert list(tmp_path.iterdir()) == []


def test_it_counts_the_time_of_its_trials_by_the_clock_and_of_a_core(trials, data, training):
    with Pool() as pool:
        outcomes = train(trials, data, "cpu", training=training, workers=2, pool=pool)
        assert pool.wall_s >= sum(one.wall_s for one in outcomes) > 0
        assert 0 < pool.core_s <= 1.05 * pool.wall_s
        assert (before := pool.wall_s) > 0
        train(trials, data, "cpu", training=training, workers=1, pool=pool)
        assert pool.wall_s == before  # one at a time is trained here


SCRIPT = """
import os, signal, sys
from tests.engine.conftest import made_images
from camri.data import DataSet
from camri.engine import Pool, Training, Trial, train
from camri.methods import setting
data = DataSet("made", ("row", "column", "corner"), {"train": made_images(200, 1)}, "f", {})
pool = Pool()
train([Trial(setting("ce"), 0), Trial(setting("ce"), 1)], data, "cpu", training=Training(model="small", epochs=1),
      workers=2, pool=pool)
print(*[worker.pid for worker in pool._workers], flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""  # deliberately without a __main__ guard, and the pool is not closed


@pytest.mark.parametrize("end", ["killed", "forgetful"])
def test_a_parent_that_does_not_close_its_pool_leaves_no_process(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run([sys.executable, str(script), end], capture_output=True, text=True, env=environment)
    assert ended.returncode == (-signal.SIGKILL if end == "killed" else 0), ended.stderr
    workers = [Path("/proc") / pid for pid in ended.stdout.split()]
    assert len(workers) == 2
    if not Path("/proc/self").exists():
        pytest.skip("needs Linux's list of processes")
    patience = time.monotonic() + 60
    while any(map(_is_worker, workers)) and time.monotonic() < patience:
        time.sleep(0.1)
    assert not any(map(_is_worker, workers))


def _is_worker(process):
    """Whether it runs; a zombie, which nobody has asked for its end, has no command line."""
    try:
        return b"camri.engine.cpu import work" in (process / "cmdline").read_bytes()
    except OSError:
        return False
