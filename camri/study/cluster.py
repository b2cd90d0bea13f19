"""A study on a Ray cluster: a worker for each GPU, or each core, trains packs; the driver alone writes the store."""

import dataclasses
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from typing import Any

from camri.engine import Trial
from camri.engine.packs import PACK_SIZE
from camri.engine.shipping import ship
from camri.errors import InputError
from camri.study.crew import Crew
from camri.study.executor import Hooks, Work
from camri.study.packing import cut
from camri.study.remote import Plan, Worker

PROBE_S = 5.0
TRIES = 3  # a head's client server now and then dies as it starts (ray-project/ray#63202): 5 of 23 times here


class RayExecutor:
    """The GPUs of a Ray cluster, or its cores where it has no GPU.

    `address` is "ray" (a cluster that runs on this machine, or one begun for this process) or "ray://HOST:PORT".
    `workers` limits how many there are at a time; `pack_size` is the number of models side by side on a GPU.
    """

    def __init__(
        self,
        address: str = "ray",
        device: str = "auto",
        workers: int | None = None,
        pack_size: int | None = None,
        checkpoint_every_s: float = 120.0,
    ):
        self.ray = connect(address)
        self.device = self._pick_device(device)
        self.workers = workers
        self.pack_size = (pack_size or PACK_SIZE) if self.device == "cuda" else 1
        self.checkpoint_every_s = checkpoint_every_s
        if not self._num_slots():
            raise InputError("the cluster has no node to train on; see `ray status`")

    def train(self, trials: Sequence[Trial], work: Work, hooks: Hooks) -> bool:
        """Whether all trials came to an end; False if they were stopped in good order."""
        assert work.checkpoints is not None
        folder = work.checkpoints.resolve()
        plan = Plan(self.device, f"shared-{uuid.uuid4().hex}", self.checkpoint_every_s)
        bare = dataclasses.replace(work, data=None, checkpoints=folder)  # type: ignore[arg-type]
        manifest = self.ray.put(
            ship(work.data, lambda name, array: array)
        )  # a node fetches it once, for all its workers
        resources = {"num_cpus": 1, "num_gpus": int(self.device == "cuda")}
        actor = self.ray.remote(Worker).options(**resources, max_restarts=0)
        packs = cut(len(trials), self.pack_size, self._num_slots())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / plan.token).touch()
        try:
            crew = Crew(
                self.ray, lambda: actor.remote(plan, bare, manifest), self._num_slots, trials, packs, work, hooks
            )
            return crew.run()
        finally:
            (folder / plan.token).unlink(missing_ok=True)

    def _pick_device(self, device: str) -> str:
        has_gpus = self.ray.cluster_resources().get("GPU", 0) >= 1
        if device == "auto":
            return "cuda" if has_gpus else "cpu"
        if device not in ("cpu", "cuda"):
            raise InputError(f"device={device!r} is not for a cluster; choices: auto, cpu, cuda")
        if device == "cuda" and not has_gpus:
            raise InputError("device='cuda' was asked for, but the cluster has no GPU; choices: auto, cpu")
        return device

    def _num_slots(self) -> int:
        there = int(self.ray.cluster_resources().get("GPU" if self.device == "cuda" else "CPU", 0))
        return there if self.workers is None else min(there, self.workers)


def connect(address: str) -> Any:
    """The module `ray`, connected; a connection that this process has already is kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the coming default; without it Ray warns
    try:
        import ray
    except (ImportError, RuntimeError) as error:
        raise InputError(f"on={address!r} needs Ray ({error}); install it with: pip install 'camri[cluster]'") from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
    if address == "ray":
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(address="local", include_dashboard=False, **quiet)
        return ray
    _refuse_unreachable(address)
    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(address=address, **quiet)
            break
        except Exception as error:  # Ray has a dozen kinds: other versions, a port of something else, no grpcio, …
            if isinstance(error, ConnectionAbortedError) and tries_left:
                continue
            text = " ".join(str(error).split())
            raise InputError(f"on={address!r} cannot be used ({text[-300:]}); see docs/cluster.md") from error
    return ray


def _refuse_unreachable(address: str) -> None:
    """Nothing, if something listens there: Ray itself would try for half a minute and say it in many lines."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"on={address!r} has no host or no port; give ray://HOST:PORT (Ray's own port is 10001)")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"on={address!r} cannot be reached ({error}); is the cluster up (`ray start --head`) and the port open?"
        ) from None
