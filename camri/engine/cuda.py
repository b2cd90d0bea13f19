"""Trials on a GPU: R replicas as parallel branches of one captured graph, the data on the device or streamed to it.

At batch 64 one model leaves most of the GPU idle; parallel branches use it. Measurements: docs/engine.md.
"""

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from camri.backbones import is_backbone
from camri.engine import spec
from camri.engine.cuda_replica import Forward, Replica, compiled, run_trunk
from camri.engine.feed import Feed, put_on
from camri.engine.fused_optimizer import Tables
from camri.engine.outcome import Outcome, Record, Tracker
from camri.engine.replica import PACK_SIZE, Job, in_packs, judged, make, read_checkpoint, read_notes, write_checkpoint
from camri.engine.spec import Trial
from camri.files import cache_folder
from camri.models import Backbone, Classifier
from camri.modules import Criterion

RUN_AHEAD = 64  # how many replays the host may be ahead of the device, so that a stop takes effect within a second


class Pack:
    """R replicas that start at the same step, and the captured graph of one step of all of them."""

    def __init__(self, replicas: list[Replica], forward: Forward, feed: Feed | None = None):
        self.replicas, self.forward, self.feed = replicas, forward, feed
        self.stacks = _stacks(replicas)
        self.capture()

    def capture(self) -> None:
        """Capture one step of every replica or stack, each on a stream of its own, as `graph`."""
        self.branches: Sequence[Any] = self.stacks or self.replicas
        self.streams = [torch.cuda.Stream() for _ in self.replicas]
        branches, streams = self.branches, self.streams[: len(self.branches)]
        torch.cuda.synchronize()
        for branch, stream in zip(branches, streams, strict=True):
            members: list[Replica] = branch.replicas if self.stacks else [branch]
            before = [{name: tensor.clone() for name, tensor in replica.state().items()} for replica in members]
            branch.place.zero_()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._advance(branch)  # compiles, and creates every library's handles and workspace
            torch.cuda.current_stream().wait_stream(stream)
            for replica, state in zip(members, before, strict=True):
                replica.load(state)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream()
            for branch, stream in zip(branches, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    self._advance(branch)
            for stream in streams:
                main.wait_stream(stream)

    def _advance(self, branch: Any) -> None:
        if self.stacks:
            branch.advance()
        else:
            branch.advance(self.forward)

    def drop(self, lost: Collection[Replica]) -> None:
        """Continue without these replicas. A stack still computes them, without effect on the others."""
        self.replicas = [replica for replica in self.replicas if replica not in lost]
        self.streams = self.streams[: len(self.replicas)]
        if lost and self.replicas and not self.stacks:
            first = self.replicas[0]
            # After the last step the tables have no entry to capture another step with.
            if first.record.epoch < first.job.training.epochs:
                self.capture()

    def run(self, num_steps: int, should_stop: Callable[[], bool]) -> int:
        """Run the steps and return how many were made: all of them, or fewer after a stop."""
        marks: list[torch.cuda.Event] = []
        for step in range(num_steps):
            if self.feed is not None:
                self.feed.bring()
            self.graph.replay()
            if self.feed is not None:
                self.feed.done()
            if (step + 1) % RUN_AHEAD == 0:
                marks.append(torch.cuda.Event())
                marks[-1].record()
                if len(marks) > 1:
                    marks[-2].synchronize()
                if should_stop():
                    return step + 1
        return num_steps

    def validate(self) -> list[list[int]]:
        """Correctly classified validation rows of each class, by replica; empty lists without validation data."""
        if "val" not in self.replicas[0].splits:
            return [[] for _ in self.replicas]
        main, hits = torch.cuda.current_stream(), []
        for replica, stream in zip(self.replicas, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                hits.append(replica.hits("val"))
        for stream in self.streams:
            main.wait_stream(stream)
        return torch.stack(hits).tolist()


def _stacks(replicas: list[Replica]) -> list[Any]:
    """Group the replicas in stacks if there are correct kernels for model and device; else return an empty list."""
    first = replicas[0]
    device = first.step.device
    if os.environ.get("CAMRI_STACKS") == "0" or device.type != "cuda":
        return []
    if torch.cuda.get_device_capability(device)[0] != 9:
        return []
    try:
        from camri.engine import stack
    except ImportError:  # an older Triton
        return []
    if not stack.fits(first.model.trunk, first.job):
        return []
    stacks = stack.stacks_of(replicas)
    if not stacks[0].is_right():
        warnings.warn(
            "The kernels for several models at once are wrong with this version of Triton; training without them, "
            "which is slower.",
            stacklevel=2,
        )
        for one in stacks:
            one.release()
        return []
    return stacks


# Number of evaluated rows from which compiling pays: it took 4 s and saved 1.35 µs per row (authors' CNN, H200).
WORTH_COMPILING = 3_000_000


def run(trials: Sequence[Trial], job: Job, device: torch.device, tracker: Tracker) -> None:
    """Train the trials in packs; the tracker gets each outcome as its trial ends, and says when to stop."""
    pack_size, deterministic = job.pack_size or PACK_SIZE, job.deterministic
    should_stop, say = tracker.should_stop, tracker.epochs
    if device.type == "cuda":
        # Keep compiled code for later processes; both libraries read these variables when they compile.
        for variable, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
            os.environ.setdefault(variable, str(cache_folder() / "compiled" / folder))
    with torch.cuda.device(device), _settings(deterministic):
        splits, streamed = put_on(device, job.data)
        training = job.training
        augmented = (training.flip, training.translate_px > 0, training.crop > 0, training.trivial_augment,
                     training.mixup > 0)  # fmt: skip
        shape = (job.data.input_shape, job.batch_size)
        signature = (training.model, training.model_options, shape, augmented, deterministic)
        forward = compiled(signature)
        # With `deterministic`, how rows are evaluated must not depend on the number of trials.
        judge = forward if _rows_judged(job) * len(trials) > WORTH_COMPILING and not deterministic else run_trunk
        tables = Tables(training, job.num_steps, device)
        about = {**spec.describe_environment(device), "deterministic": deterministic}
        groups = _by_start(range(len(trials)), trials, job)
        over: set[int] = set()
        is_lean = False

        def save_memory() -> bool:
            nonlocal is_lean
            was_lean, is_lean = is_lean, is_backbone(training.model)
            return is_lean and not was_lean

        def end(place: int, outcome: Outcome) -> None:
            over.add(place)
            tracker.end(place, outcome)

        with _Ahead(trials, job, [place for places in groups for place in places]) as ahead:

            def train_alike(places: list[int]) -> bool:
                replicas = []
                seeds = [trials[place].seed for place in places]
                with Feed(splits["train"].inputs, seeds, job, device) if streamed else contextlib.nullcontext() as feed:
                    for place in places:
                        record = Record(trials[place], job, {**about, "replicas": len(places)})
                        made = ahead.take(place)
                        if is_lean and isinstance(made[0].trunk, Backbone):
                            made[0].trunk.save_memory()
                        replicas.append(Replica(trials[place], job, made, splits, tables, record, judge, feed))
                        _resume(replicas[-1])
                    ahead.prepare(len(places))
                    return _train(Pack(replicas, forward, feed), places, should_stop, say, end)

            def train_pack(places: list[int]) -> bool:
                # Try again with half the replicas: some may have ended, and there may be new checkpoints.
                rest = [place for place in places if place not in over]
                return all(train_alike(alike) for alike in _by_start(rest, trials, job))

            for places in groups:
                if not in_packs(places, pack_size, train_pack, save_memory):
                    return


def _rows_judged(job: Job) -> int:
    """Number of rows a trial evaluates: validation every epoch, all splits at the end."""
    at_the_end = {name: len(judged(job.data.splits, name)) for name in job.data.splits}
    return job.training.epochs * at_the_end.get("val", 0) + sum(at_the_end.values())


class _Ahead:
    """Build untrained models on the CPU while the previous pack trains: 0.08 s each for the authors' CNN."""

    def __init__(self, trials: Sequence[Trial], job: Job, order: Sequence[int]):
        self.trials, self.job, self.waiting = trials, job, list(order)
        self.made: dict[int, Future[tuple[Classifier, Criterion]]] = {}
        self.maker = ThreadPoolExecutor(1)

    def __enter__(self) -> "_Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self.maker.shutdown(cancel_futures=True)

    def take(self, place: int) -> tuple[Classifier, Criterion]:
        if place in self.waiting:
            self.waiting.remove(place)
        return (self.made.pop(place, None) or self._make(place)).result()

    def prepare(self, num: int) -> None:
        """Start building the next `num` models."""
        for place in self.waiting[:num]:
            if place not in self.made:
                self.made[place] = self._make(place)

    def _make(self, place: int) -> "Future[tuple[Classifier, Criterion]]":
        # All in one thread: timm's models use the global generator while they are built.
        return self.maker.submit(make, self.trials[place], self.job)


def _by_start(places: Iterable[int], trials: Sequence[Trial], job: Job) -> list[list[int]]:
    """Group the indices of trials by the epoch and step at which they resume; the furthest first."""
    starts: dict[tuple[int, int], list[int]] = {}
    for place in places:
        path = job.checkpoint_of(trials[place])
        notes = None if path is None else read_notes(path, engine="cuda")
        start = (0, 0) if notes is None else (notes["epoch"], notes["step_in_epoch"])
        starts.setdefault(start, []).append(place)
    return [alike for _, alike in sorted(starts.items(), reverse=True)]


def _resume(replica: Replica) -> None:
    path = replica.job.checkpoint_of(replica.trial)
    found = None if path is None else read_checkpoint(path, engine="cuda")
    if found is not None:
        tensors, notes = found
        replica.record.restore(notes)
        replica.load(tensors)


def _save(replicas: list[Replica]) -> None:
    for replica in replicas:
        path = replica.job.checkpoint_of(replica.trial)
        if path is not None:
            tensors = {name: tensor.cpu() for name, tensor in replica.state().items()}
            write_checkpoint(path, tensors, {**replica.record.notes(), "engine": "cuda"})


def _train(
    pack: Pack,
    places: list[int],
    should_stop: Callable[[], bool],
    say: Callable[[Mapping[int, Record]], None],
    ended: Callable[[int, Outcome], None],
) -> bool:
    """Train a pack; return whether it finished. False: stopped, with checkpoints written."""
    job = pack.replicas[0].job
    place_of = dict(zip(pack.replicas, places, strict=True))
    saved_at = time.perf_counter()
    if pack.feed is not None:
        started = pack.replicas[0].record
        pack.feed.start(started.epoch * job.steps_per_epoch + started.step_in_epoch)

    while pack.replicas[0].record.epoch < job.training.epochs:
        first = pack.replicas[0].record
        for replica in pack.replicas:
            replica.draw(first.epoch)
        made = pack.run(job.steps_per_epoch - first.step_in_epoch, should_stop)
        torch.cuda.synchronize()
        stopped = first.step_in_epoch + made < job.steps_per_epoch
        for replica in pack.replicas:
            replica.record.step_in_epoch += made
            replica.record.tick(len(pack.replicas))
        if stopped:
            _save(pack.replicas)
            return False
        lost = []
        sums = torch.stack([replica.loss_sum for replica in pack.replicas]).tolist()
        for replica, loss_sum, hits in zip(pack.replicas, sums, pack.validate(), strict=True):
            record = replica.record
            if not math.isfinite(loss_sum):
                error = f"the loss stopped being finite in epoch {record.epoch + 1}; {record.last_finite()}"
                ended(place_of[replica], record.failed(error))
                lost.append(replica)
                continue
            record.end_epoch(loss_sum / job.steps_per_epoch, hits)
            replica.loss_sum.zero_()
        for branch in pack.branches:
            branch.place.zero_()
        pack.drop(lost)
        if not pack.replicas:
            return True
        say({place_of[replica]: replica.record for replica in pack.replicas})
        due = time.perf_counter() - saved_at > job.checkpoint_every_s
        if due and pack.replicas[0].record.epoch < job.training.epochs:
            _save(pack.replicas)
            saved_at = time.perf_counter()
        if should_stop() and pack.replicas[0].record.epoch < job.training.epochs:
            _save(pack.replicas)
            return False

    for replica in pack.replicas:
        replica.record.tick(len(pack.replicas))
        ended(place_of[replica], replica.record.done(replica.evaluate, replica.weights))
    return True


@contextlib.contextmanager
def _settings(deterministic: bool) -> Iterator[None]:
    """Set torch's switches for this engine; restore them afterwards.

    cuDNN's benchmark mode is off: it picks the kernel that is fastest alone, which was 3 % slower with eight branches.
    TF32 is off: it would make the cosines wrong in the third digit.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    cudnn = torch.backends.cudnn
    before: tuple[Any, ...] = (
        cudnn.benchmark,
        cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
    cudnn.benchmark, cudnn.deterministic = False, deterministic
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before[:2]
        torch.use_deterministic_algorithms(before[2])
        torch.set_float32_matmul_precision(before[3])
