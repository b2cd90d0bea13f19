"""The driver's and the worker's side of a cluster without Ray: packs, losses, stops, what is refused."""

import dataclasses
import os
import socket
import types
import warnings

import numpy as np
import pytest
import torch

from camri.engine import Hooks, Job
from camri.engine.cpu import ship, unship
from camri.errors import InputError
from camri.study import ray_driver, ray_worker
from camri.study.ray_driver import cut
from camri.study.ray_worker import Answer, Hello, Worker, code_digest
from tests.study.conftest import TRAINING, first_trials, made_outcome


@pytest.fixture(autouse=True)
def fresh_digest():
    """Read the source again: it may be edited while the tests run."""
    code_digest.cache_clear()


# A worker alone, in this process.


@pytest.fixture
def make_worker(data, tmp_path):
    def make(token="mark"):
        (tmp_path / "mark").touch()
        job = Job(TRAINING.with_(epochs=3), None, (1,), checkpoints=tmp_path, checkpoint_every_s=0.0, device="cpu")
        return Worker(job, ship(data, lambda name, tensor: tensor.numpy()), token)

    return make


def hear_until(worker, condition, *first):
    """The first answer that the condition holds for."""
    answer = worker.hear(*(first or (None, 0, False)))
    while not condition(answer):
        answer = worker.hear(None, 0, False)
    return answer


def test_a_worker_keeps_the_checkpoint_until_the_outcome_is_stored(make_worker, small, tmp_path):
    worker, (one, other) = make_worker(), first_trials(small)[:2]
    (outcome,) = hear_until(worker, lambda a: a.outcomes, [one, other], 0, False).outcomes
    assert (outcome.trial, outcome.status) == (one, "done")
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert not worker.hear(None, 0, False).outcomes  # it waits, and sends nothing twice
    answer = worker.hear(None, 1, False)
    while not answer.outcomes:
        answer = worker.hear(None, 1, False)
    assert answer.outcomes[0].trial == other
    assert worker.hear(None, 2, False).ended
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_worker_that_does_not_share_the_folder_writes_no_checkpoints(make_worker, small, tmp_path):
    hear_until(make_worker(token="other"), lambda a: a.outcomes, first_trials(small)[:1], 0, False)
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_a_worker_stops_when_asked_and_says_what_broke(make_worker, small, tmp_path, monkeypatch):
    worker = make_worker()
    worker.job = dataclasses.replace(worker.job, training=TRAINING.with_(epochs=100_000))
    assert not worker.hear(first_trials(small)[:1], 0, False).ended
    stopped = hear_until(worker, lambda a: a.ended, None, 0, True)
    assert (stopped.outcomes, stopped.error) == ((), None)

    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(ray_worker, "train_job", broken)
    assert "RuntimeError: CUDA error" in hear_until(worker, lambda a: a.ended, first_trials(small)[:1], 0, False).error


def test_a_worker_says_who_it_is_and_why_it_cannot_train(make_worker, monkeypatch):
    worker = make_worker()
    hello = worker.hello()
    assert (hello.host, hello.pid, hello.code) == (socket.gethostname(), os.getpid(), code_digest())
    assert (hello.environment["torch"], hello.refusal) == (torch.__version__, None)

    def no_gpu(device):
        raise InputError(f"device={device!r}: torch sees no GPU")

    monkeypatch.setattr(ray_worker, "pick_device", no_gpu)
    hello = worker.hello()
    assert (hello.pid, hello.environment, hello.refusal) == (os.getpid(), {}, "device='cpu': torch sees no GPU")


def test_a_worker_reports_the_progress_of_this_pack_alone(make_worker, small, monkeypatch):
    def report(pack, job, hooks):
        if pack[0].seed == 0:
            hooks.on_progress("half")

    monkeypatch.setattr(ray_worker, "train_job", report)
    worker, (one, other) = make_worker(), first_trials(small)[:2]
    assert (one.seed, other.seed) == (0, 1)
    assert hear_until(worker, lambda a: a.ended, [one], 0, False).progress == "half"
    assert hear_until(worker, lambda a: a.ended, [other], 0, False).progress is None


TRAINS = ("losses.py", "engine/loop.py", "study/ray_worker.py")
DOES_NOT_TRAIN = (
    "study/store.py",
    "study/runner.py",
    "report/page.py",
    "cli/study.py",
    "fitting/plan.py",
    "__main__.py",
    "losses.txt",
)


def test_a_node_is_of_other_code_where_what_trains_differs(tmp_path, monkeypatch):
    for name in ("__init__.py", *TRAINS, *DOES_NOT_TRAIN):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    monkeypatch.setattr(ray_worker.camri, "__file__", str(tmp_path / "__init__.py"))

    def digest():
        code_digest.cache_clear()
        return code_digest()

    seen = [digest()]
    assert len(seen[0]) == len(bytes.fromhex(seen[0])) * 2 == 12
    for name in DOES_NOT_TRAIN:
        (tmp_path / name).write_text("# changed")
        assert digest() == seen[0]
    for name in TRAINS:
        (tmp_path / name).write_text("# changed")
        seen.append(digest())
    (tmp_path / "losses.py").rename(tmp_path / "gains.py")
    seen.append(digest())
    assert len(set(seen)) == 5


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
    job = Job(TRAINING, data, (1,))
    packs = [[trials[place] for place in pack] for pack in cut(len(trials), size, slots)]
    ended = ray_driver.Crew(ray, hire, lambda: slots, packs, job, hooks).run()
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
    assert "3 times" in failed.error
    assert reason in failed.error
    assert failed.environment == {"torch": torch.__version__, "ended_by": "loss of its workers"}
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
    monkeypatch.setattr(ray_driver, "SILENCE_S", -1.0)
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
def test_packs_leave_no_worker_idle(num, size, slots, sizes):
    packs = cut(num, size, slots)
    assert [place for pack in packs for place in pack] == list(range(num))
    assert all(1 <= len(pack) <= size for pack in packs)
    assert len(packs) == num or len(packs) % slots == 0
    if sizes is not None:
        assert sorted(map(len, packs)) == sorted(sizes)


def test_data_arrives_as_it_left_without_a_copy(data):
    left = {}

    def put(name, tensor):
        left[name] = tensor.numpy().view()
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
