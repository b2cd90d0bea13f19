"""A study on a Ray cluster ends with the table of a local run, also when workers are killed."""

import dataclasses
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import types
import warnings

import numpy as np
import pytest
import torch

from camri.engine.shipping import ship, unship
from camri.errors import InputError
from camri.study import crew, runner
from camri.study.cluster import RayExecutor
from camri.study.executor import Hooks, LocalExecutor, Work, find_executor
from camri.study.remote import Answer, Hello, code_digest
from camri.study.store import open_run
from tests.study.conftest import TRAINING, first_trials, made_outcome
from tests.study.test_cli import EXAMPLE, camri
from tests.study.test_runner import assert_same_table, table

pytestmark = pytest.mark.xdist_group("ray")  # one cluster for all of them
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
TENSORBOARD = importlib.util.find_spec("tensorboard") is not None
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'camri[cluster]'"
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
    """Look at the source anew: somebody may be editing it while the tests run."""
    code_digest.cache_clear()


@pytest.fixture
def greeted(monkeypatch):
    """The first words of the workers, as they come."""
    heard = []
    greet = crew.Crew._greet

    def listen(self, hand, hello):
        heard.append(hello)
        greet(self, hand, hello)

    monkeypatch.setattr(crew.Crew, "_greet", listen)
    return heard


@needs_ray
def test_two_nodes_end_with_the_table_of_a_local_run(cluster, data, longer, local, tmp_path, greeted):
    reports = []
    result = runner.run(longer, tmp_path, find_executor("ray"), data=data, on_report=reports.append)
    assert (result.finished, result.done, result.failed, result.new) == (True, 6, 0, 6)
    assert_same_table(tmp_path, local)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outcomes.sqlite", "run.lock"]
    assert len(greeted) == 2  # a worker takes one pack after the other
    assert max(report.running for report in reports) == 2
    assert (reports[-1].done, reports[-1].part) == (6, 1.0)


@needs_ray
def test_the_same_with_a_worker_killed_in_the_middle(cluster, data, longer, local, tmp_path, greeted):
    killed = []

    def kill_one(report):
        halfway = list(tmp_path.glob("checkpoints/*.safetensors"))
        if report.done >= 1 and halfway and not killed:
            killed.append(greeted[0].pid)
            os.kill(greeted[0].pid, signal.SIGKILL)

    executor = RayExecutor(checkpoint_every_s=0.0)
    result = runner.run(longer, tmp_path, executor, data=data, on_report=kill_one)
    assert killed
    assert (result.finished, result.done, result.failed) == (True, 6, 0)
    assert len(greeted) == 3
    assert_same_table(tmp_path, local)
    with open_run(tmp_path) as run:
        assert {row.attempts for row in run.rows()} == {1}


@needs_ray
def test_a_signal_stops_the_workers_in_good_order(cluster, data, small, tmp_path):
    def interrupt(report):
        if report.running == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    endless = small.with_(training=TRAINING.with_(epochs=100_000))
    result = runner.run(endless, tmp_path, find_executor("ray"), data=data, on_report=interrupt)
    assert (result.finished, result.done, result.pending) == (False, 0, 6)
    assert [path.suffix for path in (tmp_path / "checkpoints").iterdir()] == [".safetensors"] * 2


@needs_ray
def test_from_the_command_line(cluster, tmp_path):
    words = f"run {EXAMPLE} --methods ce --trials 2 --out {tmp_path / 'run'} --on ray"
    said = camri(f"{words} --track tensorboard={tmp_path / 'board'}" if TENSORBOARD else words)
    assert "2 done, 2 of them now" in said.replace("\n", "")
    assert not TENSORBOARD or sorted(path.name for path in (tmp_path / "board").iterdir()) == [
        "ce, seed 0",
        "ce, seed 1",
    ]


SCRIPT = """
    import pickle, sys
    from pathlib import Path
    from camri.study import runner
    from camri.study.executor import find_executor

    study, data = pickle.loads(Path(sys.argv[1]).read_bytes())
    runner.run(study, sys.argv[2], find_executor(sys.argv[3]), data=data)
"""


@needs_ray
@pytest.mark.slow
def test_a_killed_driver_at_a_distance_has_stored_what_had_ended(cluster, data, longer, local, tmp_path):
    import pickle

    plan, out = tmp_path / "plan", tmp_path / "run"
    plan.write_bytes(pickle.dumps((longer, data)))
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), plan, out, f"ray://127.0.0.1:{cluster}"],
    )
    while not (out / "outcomes.sqlite").exists() or len(table(out)) < 2:
        assert driver.poll() is None, "the driver ended by itself"
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    num_stored = len(table(out))
    result = runner.run(longer, out, LocalExecutor("cpu", workers=1), data=data)
    assert result.new == 6 - num_stored
    assert_same_table(out, local)


# The driver's side alone, with workers that are made up.


class Lost(Exception):
    pass


class Call:
    """A call under way: made when its result is asked for."""

    def __init__(self, function, given):
        self.function, self.given = function, given


class Remote:
    """A method of an actor."""

    def __init__(self, function):
        self.function = function

    def remote(self, *given):
        return Call(self.function, given)


class Ray:
    """As much of Ray as the driver uses, in this process: calls are made when they are asked for."""

    exceptions = types.SimpleNamespace(RayError=Lost)

    def __init__(self):
        self.killed = []

    def wait(self, calls, timeout):
        return calls[:1], calls[1:]

    def get(self, call):
        return call.function(*call.given)

    def kill(self, actor):
        self.killed.append(actor)


class Actor:
    """A worker that makes outcomes up, one a call."""

    def __init__(self, data, poison=(), hello=None, dies="lost"):
        self.data, self.poison, self.dies = data, poison, dies
        self.first = hello or Hello("node", 1, code_digest(), {"torch": torch.__version__})
        self.packs, self.left, self.stored = [], [], 0
        self.hello, self.hear = Remote(self._hello), Remote(self._hear)

    def _hello(self):
        if self.dies == "at birth":
            raise Lost("The actor died.\n\n  ModuleNotFoundError: No module named 'camri'\n")
        return self.first

    def _hear(self, pack, stored, stop):
        assert stored == self.stored
        if pack is not None:
            assert not self.left
            self.packs.append(pack)
            self.left = list(pack)
        if any(trial in self.poison for trial in self.left):
            if self.dies == "lost":
                raise Lost("The actor died.\n  pid=1\nIts process got signal 9.\n")
            return Answer(ended=True, error="RuntimeError: CUDA error")
        if stop or not self.left:
            return Answer(ended=True)
        self.stored += 1
        return Answer((made_outcome(self.data, self.left.pop(0)),))


def gather(data, small, *, size=8, slots=2, should_stop=lambda: False, **about):
    """Whether it ended, the outcomes, the actors and Ray of a made-up call."""
    trials, actors, outcomes, ray = first_trials(small), [], [], Ray()

    def hire():
        actors.append(Actor(data, **about))
        return actors[-1]

    hooks = Hooks(outcomes.append, lambda progress: None, should_stop)
    work = Work(TRAINING, data, (1,), False, False, None)
    ended = crew.Crew(ray, hire, lambda: slots, trials, crew.cut(len(trials), size, slots), work, hooks).run()
    assert set(ray.killed) == set(actors)
    return ended, outcomes, actors


def test_every_trial_is_trained_once(data, small):
    ended, outcomes, actors = gather(data, small)
    assert ended
    assert len(actors) == 2
    assert [len(actor.packs) for actor in actors] == [1, 1]
    assert sorted(o.trial.key for o in outcomes) == sorted(trial.key for trial in first_trials(small))


def test_no_more_workers_than_packs(data, small):
    assert len(gather(data, small, slots=50)[2]) == 6
    assert len(gather(data, small, slots=1)[2]) == 1


@pytest.mark.parametrize("dies", ["lost", "with an error"])
def test_a_trial_that_loses_its_workers_fails_alone(data, small, dies):
    poison = first_trials(small)[1]
    ended, outcomes, actors = gather(data, small, slots=1, poison=[poison], dies=dies)
    assert ended
    (failed,) = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert failed.trial == poison
    reason = "Its process got signal 9." if dies == "lost" else "RuntimeError: CUDA error"
    assert failed.error == f"its worker was lost 3 times, at last by: {reason}"
    assert failed.environment == {"torch": torch.__version__}
    assert len(outcomes) == 6
    tried = [pack for actor in actors for pack in actor.packs]
    assert [len(pack) for pack in tried if poison in pack] == [6, 6, 1]


def test_a_stop_is_passed_on(data, small):
    calls = []

    def should_stop():
        calls.append(1)
        return len(calls) > 4

    ended, outcomes, actors = gather(data, small, slots=1, should_stop=should_stop)
    assert not ended
    assert 0 < len(outcomes) < 6
    assert actors[0].left


def test_workers_that_cannot_start_are_a_sentence(data, small):
    with pytest.raises(InputError, match=r"is camri installed on every node\? .*No module named 'camri'"):
        gather(data, small, dies="at birth")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"code": "0123456789ab"}, r"another camri than this machine \(0123456789ab, not"),
        ({"environment": {"torch": "1.0+cu9"}}, r"another torch than this machine \(1.0, not \d"),
        ({"environment": {}, "refusal": "torch sees no GPU"}, "cannot train: torch sees no GPU"),
    ],
)
def test_nodes_that_would_not_train_the_same_are_refused(data, small, changes, said):
    usual = Hello("far", 1, code_digest(), {"torch": torch.__version__})
    with pytest.raises(InputError, match=f"node far of the cluster .*{said}"):
        gather(data, small, hello=dataclasses.replace(usual, **changes))


def test_a_silent_cluster_is_remarked_on_once(data, small, monkeypatch):
    monkeypatch.setattr(crew, "SILENCE_S", -1.0)
    monkeypatch.setattr(Ray, "wait", lambda self, calls, timeout: ([], calls))
    asked = iter([False, False, True])
    with pytest.warns(UserWarning, match="no worker of the cluster has begun") as remarks:
        gather(data, small, should_stop=lambda: next(asked))
    assert len(remarks) == 1


@pytest.mark.parametrize(
    ("num", "size", "slots", "sizes"),
    [
        (100, 8, 8, [6, 6, 6, 7] * 4),  # thirteen full packs would leave three of eight idle in the second round
        (6, 1, 2, [1] * 6),
        (3, 8, 64, [1, 1, 1]),
        (64, 8, 8, [8] * 8),
        (65, 8, 8, None),
        (0, 8, 2, []),
    ],
)
def test_packs_leave_nobody_idle(num, size, slots, sizes):
    packs = crew.cut(num, size, slots)
    assert [place for pack in packs for place in pack] == list(range(num))
    assert all(1 <= len(pack) <= size for pack in packs)
    assert len(packs) == num or len(packs) % slots == 0
    if sizes is not None:
        assert sorted(map(len, packs)) == sorted(sizes)


def test_data_arrives_as_it_left_without_a_copy(data):
    left = {}

    def put(name, array):
        left[name] = array.view()
        left[name].flags.writeable = False  # as it comes from shared memory
        return name

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        came = unship(ship(data, put), left.__getitem__)
    assert (came.name, came.classes, came.fingerprint) == (data.name, data.classes, data.fingerprint)
    for name, split in came.splits.items():
        assert split.inputs.data_ptr() == left[f"{name}-inputs"].ctypes.data
        assert np.array_equal(split.labels, data.splits[name].labels)
        assert split.groups is None


@needs_ray
def test_an_unreachable_cluster_is_refused_in_a_sentence(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    address = f"ray://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(InputError, match=f"on='{address}' cannot be reached .*ray start --head") as told:
        find_executor(address)
    assert "\n" not in str(told.value)
    assert time.monotonic() - began < 5


@needs_ray
@pytest.mark.parametrize("address", ["ray://", "ray://head", "ray://head:http"])
def test_an_address_without_host_or_port_is_refused(address, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match="has no host or no port; give ray://HOST:PORT"):
        find_executor(address)


def test_missing_ray_is_said_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'camri\[cluster\]'"):
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
