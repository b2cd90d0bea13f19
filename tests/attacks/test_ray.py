"""A Ray cluster whose head is dead, hangs or dies: one sentence, soon, and never another cluster in its place."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import pytest

from camri.errors import InputError
from camri.study import ray_driver
from camri.study.run_folder import read_progress
from camri.study.runner import find_executor
from tests.study.test_cluster import QUIET, free_port, needs_ray
from tests.study.test_ray_driver import gather

pytestmark = pytest.mark.xdist_group("ray")


@needs_ray
def test_a_cluster_that_is_no_more_is_refused_and_not_replaced(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tries for a quarter of an hour"))
    monkeypatch.setenv("RAY_ADDRESS", address := f"127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=rf"on='ray': the cluster at {address} cannot be reached .*`ray stop`"):
        find_executor("ray")


def test_a_head_that_hangs_is_given_up(monkeypatch):
    pretended = types.SimpleNamespace(is_initialized=lambda: False, init=lambda **_: time.sleep(60), shutdown=print)
    monkeypatch.setitem(sys.modules, "ray", pretended)
    monkeypatch.setattr(ray_driver, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"ray://127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(InputError, match=f"on='{address}' does not answer within"):
            ray_driver.connect(address)


def test_a_cluster_that_is_started_is_reported(monkeypatch):
    asked = []
    pretended = types.SimpleNamespace(is_initialized=lambda: False, init=lambda **about: asked.append(about["address"]))
    monkeypatch.setitem(sys.modules, "ray", pretended)
    monkeypatch.setattr(ray_driver, "_find_running", lambda: None)
    with pytest.warns(UserWarning, match="no Ray cluster is running on this machine; one is started"):
        ray_driver.connect("ray")
    assert asked == ["local"]


def test_a_head_that_dies_ends_the_run_with_what_was_stored(data, small, monkeypatch):
    monkeypatch.setattr(ray_driver, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(ray_driver, "HEAD_PATIENCE_S", -1.0)
    answers = iter([True, True])

    class Crew(ray_driver.Crew):
        def __init__(self, *given):
            super().__init__(*given, lambda: next(answers, False))

    monkeypatch.setattr(ray_driver, "Crew", Crew)
    monkeypatch.setattr("tests.study.test_ray_driver.Ray.kill", lambda *_: pytest.fail("it would wait for the head"))
    with pytest.raises(InputError, match=r"the head of the cluster is gone \(no answer.*what had ended is stored"):
        gather(data, small)


def test_a_node_that_dies_ends_the_run_before_ray_does(data, small, monkeypatch):
    monkeypatch.setattr(ray_driver, "NODE_EVERY_S", 0.0)
    answers = iter([True, True])

    class Crew(ray_driver.Crew):
        def __init__(self, *given):
            super().__init__(*given, is_node_up=lambda: next(answers, False))

    monkeypatch.setattr(ray_driver, "Crew", Crew)
    monkeypatch.setattr("tests.study.test_ray_driver.Ray.shutdown", lambda: None, raising=False)
    monkeypatch.setattr("tests.study.test_ray_driver.Ray.kill", lambda *_: pytest.fail("it would wait for the node"))
    with pytest.raises(InputError, match=r"the cluster's node on this machine has died; what had ended is stored"):
        gather(data, small)


def test_a_node_that_is_busy_or_unknown_lives():
    with socket.create_server(("127.0.0.1", 0)) as node:
        assert ray_driver._lives(node.getsockname())
    assert not ray_driver._lives(("127.0.0.1", free_port()))
    assert ray_driver._lives(None)
    assert ray_driver._lives(("no.such.host.invalid", 1))


@pytest.mark.parametrize("how", ["signal", "time is up", "signal after the time"])
def test_workers_that_do_not_stop_are_waited_for_a_known_time(data, small, monkeypatch, how):
    """By a clock that only waiting moves."""
    now, asked = [0.0], []
    monkeypatch.setattr(ray_driver, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def wait(self, calls, timeout):
        asked.append(1)
        if len(asked) <= 2:  # a worker says who it is, then trains for ever
            return calls[:1], calls[1:]
        if len(asked) == {"signal": 3, "time is up": 0, "signal after the time": 10}[how]:
            signal.raise_signal(signal.SIGTERM)
            now[0] = 0.0
        now[0] += timeout
        return [], calls

    monkeypatch.setattr("tests.study.test_ray_driver.Ray.wait", wait)
    ended, _, _ = gather(data, small, slots=1, should_stop=lambda: how != "signal" and len(asked) > 2)
    assert not ended
    assert now[0] == pytest.approx(30.0 if how == "time is up" else 2.5, abs=2 * ray_driver.WAIT_S)


def test_a_head_that_hangs_does_not_keep_a_run_from_stopping(data, small, monkeypatch):
    monkeypatch.setattr(ray_driver, "SIGNAL_PATIENCE_S", 0.1)
    asked = []

    def wait(self, calls, timeout):
        asked.append(1)
        if len(asked) > 2:
            signal.raise_signal(signal.SIGTERM)
            threading.Event().wait(60)
            pytest.fail("nothing has interrupted this call")
        return calls[:1], calls[1:]

    monkeypatch.setattr("tests.study.test_ray_driver.Ray.wait", wait)
    monkeypatch.setattr("tests.study.test_ray_driver.Ray.kill", lambda *_: pytest.fail("it would wait for the head"))
    with pytest.raises(AssertionError, match="set"):  # of gather: no worker was dismissed
        gather(data, small, slots=1)
    assert len(asked) == 3


# A process whose other threads and libraries end slowly, as Ray's do.
SLOW = """
import atexit, sys, threading, time, types
sys.modules["ray"] = types.ModuleType("ray")
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "goodbye")
from camri.cli import main
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["study", "list"], 0), (["report", "no-such"], 2)])
def test_a_command_on_ray_does_not_wait_for_the_end_of_python(words, code):
    ended = subprocess.run([sys.executable, "-c", SLOW, *words], capture_output=True, text=True, timeout=120)
    assert ended.returncode == code
    assert ended.stdout.endswith("goodbye\n")
    assert ("no-such" in ended.stderr) == (code == 2)


STUDY = """
name = "long"
columns = ["8"]
seeds = 2
data.source = "digits"
training = { model = "small", epochs = 10000 }
methods.ce = {}
"""


@pytest.fixture
def ray_folder():
    """A folder for a cluster's files, with a name that is short enough for sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.mark.long
@needs_ray
@pytest.mark.parametrize("is_client", [True, False])
@pytest.mark.parametrize("how", ["head dies", "SIGTERM"])
def test_a_run_ends_soon_and_cleanly(tmp_path, ray_folder, is_client, how):
    psutil = pytest.importorskip("psutil")
    port, client_port = free_port(), free_port()
    environment = {**os.environ, **QUIET, "RAY_TMPDIR": ray_folder, "PYTHONPATH": str(Path.cwd())}
    if not is_client:
        environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
    (tmp_path / "study.toml").write_text(STUDY)
    start = f"start --head --block --num-cpus=2 --port={port} --ray-client-server-port={client_port} "
    start += "--include-dashboard=false --object-store-memory=80000000"
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *start.split()]
    head = subprocess.Popen(ray, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: ray_driver._reach(f"127.0.0.1:{client_port}") is None)
        on = f"ray://127.0.0.1:{client_port}" if is_client else "ray"
        words = ["study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run"), "--on", on]
        run = subprocess.Popen([sys.executable, "-m", "camri", *words], env=environment, stderr=subprocess.PIPE)
        wait_until(lambda: num_running(tmp_path / "run") == 2 or run.poll() is not None)
        if is_client and run.poll() is not None:
            pytest.skip("the head's client server died as it started: ray-project/ray#63202")
        if how == "SIGTERM":
            run.send_signal(signal.SIGTERM)
        else:
            kill_all(psutil.Process(head.pid))
        _, said = run.communicate(timeout=60 if how == "head dies" else 20)  # 5 s, but for cores that are busy
        assert run.returncode == (130 if how == "SIGTERM" else 2)
        gone = b"the head of the cluster is gone" if is_client else b"the cluster's node on this machine has died"
        assert (gone in said) == (how == "head dies")
        assert b"Traceback" not in said
    finally:
        kill_all(psutil.Process(head.pid))


@pytest.mark.long
@needs_ray
@pytest.mark.parametrize("victim", ["raylet/raylet", "DashboardAgent"])
def test_a_run_whose_node_dies_ends_with_a_sentence(tmp_path, ray_folder, victim):
    """The cluster was started for the run. If its agent dies, the node ends itself."""
    psutil = pytest.importorskip("psutil")
    environment = {**os.environ, **QUIET, "RAY_TMPDIR": ray_folder, "PYTHONPATH": str(Path.cwd())}
    environment.pop("RAY_ADDRESS", None)
    (tmp_path / "study.toml").write_text(STUDY)
    words = ["study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run"), "--on", "ray"]
    run = subprocess.Popen([sys.executable, "-m", "camri", *words], env=environment, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: num_running(tmp_path / "run") or run.poll() is not None)
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if victim in words and (victim == "raylet/raylet" or "raylet/raylet" not in words):
                    process.kill()
        _, said = run.communicate(timeout=60)
        assert run.returncode == 2
        assert b"the cluster's node on this machine has died; what had ended is stored" in said
        assert b"Traceback" not in said
    finally:
        kill_all(psutil.Process(run.pid)) if run.poll() is None else None


def num_running(folder):
    """The number of trials that a run in another process is training."""
    progress = read_progress(folder)
    return 0 if progress is None else progress.running


def wait_until(is_so):
    end = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


def kill_all(process):
    import psutil

    for one in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.Error):
            one.kill()
