"""Replicas of one arm side by side: one captured graph with a branch for each, or one after the other."""

import functools
import warnings
from collections.abc import Callable

import torch

from benchmarks.prize.replica import Replica

NUM_WARM_UPS = 3  # before a capture, as PyTorch's notes on CUDA graphs do


def train_pack(make: Callable[[], list[Replica]], captured: bool) -> tuple[list[Replica], str]:
    """The trained replicas and how they were trained, "graph" or "eager".

    A step that cannot be captured is no reason to end: it warns, makes the replicas anew and trains them eagerly.
    """
    replicas, advance = make(), None
    if captured:
        try:
            advance = capture(replicas)
        except RuntimeError as error:
            arm = replicas[0].arm.name
            warnings.warn(f"{arm}: its step cannot be captured ({error}); it trains eagerly", stacklevel=2)
            replicas = make()
    job = replicas[0].job
    for epoch in range(job.training.epochs):
        for replica in replicas:
            replica.draw(epoch)
        for _ in range(job.steps_per_epoch):
            if advance is not None:
                advance()
                continue
            for replica in replicas:
                replica.advance()
        for replica in replicas:
            replica.end_epoch()
    return replicas, "eager" if advance is None else "graph"


def capture(replicas: list[Replica]) -> Callable[[], None]:
    """What moves all replicas one step on: the replay of a graph that has a branch for each of them."""
    streams = side_streams(len(replicas))
    torch.cuda.synchronize()
    for replica, stream in zip(replicas, streams, strict=True):
        first = {name: tensor.clone() for name, tensor in replica.model.state_dict().items()}
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):  # makes the optimiser's state, every library's handles and work space
                replica.step.zero_()
                replica.place.zero_()
                replica.advance()
        torch.cuda.current_stream().wait_stream(stream)
        replica.forget(first)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for replica, stream in zip(replicas, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                replica.advance()
        for stream in streams:
            main.wait_stream(stream)
    return graph.replay


@functools.cache
def side_streams(num: int) -> list[torch.cuda.Stream]:
    """The same streams every time: torch has 32 and hands them out in turn, the one it captures on among them."""
    return [torch.cuda.Stream() for _ in range(num)]
