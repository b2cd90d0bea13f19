"""A study on a Ray cluster ends with the table of a local run, also when workers are killed."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import types

import pytest

from camri.errors import InputError
from camri.study import ray_driver, runner
from camri.study.ray_driver import RayExecutor, connect
from camri.study.ray_worker import code_digest
from camri.study.runner import LocalExecutor, find_executor
from camri.study.store import open_run
from tests.study.conftest import TRAINING
from tests.study.test_cli import EXAMPLE, camri
from tests.study.test_runner import assert_same_table, table

pytestmark = pytest.mark.xdist_group("ray")  # one cluster for all of them
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
TENSORBOARD = importlib.util.find_spec("tensorboard") is not None
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'camri-loss[cluster]'"
)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each on this machine; this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80_000_000}
        port = free_port()
        head = {**node, "include_dashboard": False, "ray_client_server_port": port}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="WARNING")
        yield port
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def longer(small):
    """Six trials of half a second or so each."""
    return small.with_(training=TRAINING.with_(epochs=60, average=0.9))


@pytest.fixture(scope="module")
def local(data, longer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    assert runner.run(longer, folder, LocalExecutor("cpu", workers=1), data=data).finished
    return folder


@pytest.fixture(autouse=True)
def fresh_digest():
    """Read the source again: it may be edited while the tests run."""
    code_digest.cache_clear()


@pytest.fixture
def greeted(monkeypatch):
    """The first words of the workers, as they come."""
    heard = []
    greet = ray_driver.Crew._greet

    def listen(self, hand, hello):
        heard.append(hello)
        greet(self, hand, hello)

    monkeypatch.setattr(ray_driver.Crew, "_greet", listen)
    return heard


@needs_ray
def test_two_nodes_end_with_the_table_of_a_local_run(cluster, data, longer, local, tmp_path, greeted):
    reports = []
    result = runner.run(longer, tmp_path, find_executor("ray"), data=data, on_progress=reports.append)
    assert (result.finished, result.done, result.failed, result.new) == (True, 6, 0, 6)
    assert_same_table(tmp_path, local)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outcomes.sqlite", "run.lock"]
    assert len(greeted) <= 2  # a worker takes one pack after the other; a slow one may come when all is done
    assert (reports[-1].done, reports[-1].part) == (6, 1.0)


@needs_ray
def test_the_same_with_the_only_worker_killed_in_the_middle(cluster, data, longer, local, tmp_path, greeted):
    killed = []

    def kill_one(report):
        halfway = list(tmp_path.glob("checkpoints/*.safetensors"))
        if report.done >= 1 and halfway and not killed:
            killed.append(greeted[0].pid)
            os.kill(greeted[0].pid, signal.SIGKILL)

    executor = RayExecutor(workers=1, checkpoint_every_s=0.1)  # a second would have ended the rest before a third came
    result = runner.run(longer, tmp_path, executor, data=data, on_progress=kill_one)
    assert killed
    assert (result.finished, result.done, result.failed) == (True, 6, 0)
    assert len(greeted) == 2
    assert_same_table(tmp_path, local)
    with open_run(tmp_path) as run:
        assert {row.attempts for row in run.rows()} == {1}


@needs_ray
def test_a_signal_stops_the_workers_cleanly(cluster, data, small, tmp_path):
    def interrupt(report):
        if report.running == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    endless = small.with_(training=TRAINING.with_(epochs=100_000))
    result = runner.run(endless, tmp_path, find_executor("ray"), data=data, on_progress=interrupt)
    assert (result.finished, result.done, result.pending) == (False, 0, 6)
    assert [path.suffix for path in (tmp_path / "checkpoints").iterdir()] == [".safetensors"] * 2


@needs_ray
def test_from_the_command_line(cluster, tmp_path):
    words = f"run {EXAMPLE} --methods ce --num-seeds 2 --out {tmp_path / 'run'} --on ray"
    said = camri(f"{words} --track tensorboard={tmp_path / 'board'}" if TENSORBOARD else words)
    assert "".join(said.split()).endswith("2done,2ofthemnow")  # wrapped anywhere
    assert not TENSORBOARD or sorted(path.name for path in (tmp_path / "board").iterdir()) == [
        "ce, seed 0",
        "ce, seed 1",
    ]


SCRIPT = """
    import pickle, sys
    from pathlib import Path
    from camri.study import ray_driver, runner
    from camri.study.runner import find_executor

    ray_driver.CONNECT_S = 120.0  # on busy cores a head may need more than a user should wait
    study, data = pickle.loads(Path(sys.argv[1]).read_bytes())
    runner.run(study, sys.argv[2], find_executor(sys.argv[3]), data=data)
"""


def num_stored(folder):
    with contextlib.suppress(InputError):  # it has only just begun
        return len(table(folder))
    return 0


@needs_ray
@pytest.mark.slow
def test_a_killed_driver_at_a_distance_has_stored_what_had_ended(cluster, data, longer, local, tmp_path):
    import pickle

    plan, out = tmp_path / "plan", tmp_path / "run"
    plan.write_bytes(pickle.dumps((longer, data)))
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), plan, out, f"ray://127.0.0.1:{cluster}"],
        stderr=(tmp_path / "errors").open("w"),
    )
    while num_stored(out) < 2:
        assert driver.poll() is None, f"the driver ended by itself: {(tmp_path / 'errors').read_text()[-3000:]}"
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    stored = num_stored(out)
    result = runner.run(longer, out, LocalExecutor("cpu", workers=1), data=data)
    assert result.new == 6 - stored
    assert_same_table(out, local)


@needs_ray
def test_an_unreachable_cluster_is_refused_in_a_sentence(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tries for half a minute"))
    address = f"ray://127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match=f"on='{address}' cannot be reached .*ray start --head") as told:
        find_executor(address)
    assert "\n" not in str(told.value)


@needs_ray
@pytest.mark.parametrize("address", ["ray://", "ray://head", "ray://head:http"])
def test_an_address_without_host_or_port_is_refused(address, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match="has no host or no port; give ray://HOST:PORT"):
        find_executor(address)


@pytest.mark.parametrize(("failures", "tries"), [(0, 1), (1, 2), (9, 3)])
def test_a_head_that_fails_to_answer_is_asked_again(monkeypatch, failures, tries):
    asked = []

    def init(address, **_):
        asked.append(address)
        if len(asked) <= failures:
            raise ConnectionAbortedError("Initialization failure from server:\nRuntimeError: it failed")

    pretended = types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", pretended)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"ray://127.0.0.1:{head.getsockname()[1]}"
        if failures < 3:
            assert connect(address) is pretended
        else:
            with pytest.raises(InputError, match=r"cannot be used \(Initialization failure .*it failed\)"):
                connect(address)
    assert asked == [address] * tries


def test_missing_ray_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'camri-loss\[cluster\]'"):
        find_executor("ray")


def test_an_unknown_place_is_refused():
    with pytest.raises(InputError, match="on='slurm' is unknown; choices: local, ray, ray://HOST:PORT"):
        find_executor("slurm")


@needs_ray
@pytest.mark.parametrize(
    ("device", "said"), [("cuda", "the cluster has no GPU"), ("cuda:1", "choices: auto, cpu, cuda")]
)
def test_a_device_the_cluster_has_not_is_refused(cluster, device, said):
    with pytest.raises(InputError, match=said):
        find_executor("ray", device)
