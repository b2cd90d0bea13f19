"""Replicas side by side: one step of all of them as one captured graph, each a branch on a stream of its own."""

from collections.abc import Callable

import torch

from camri.engine.branch import Forward, Replica

RUN_AHEAD = 64  # replays the host may be ahead of the device: a stop is heard within a second


class Pack:
    """R replicas that start at the same step, and the graph that moves them all one step on."""

    def __init__(self, replicas: list[Replica], forward: Forward):
        self.replicas, self.forward = replicas, forward
        self.capture()

    def capture(self) -> None:
        """Nothing; `graph` holds one step of every replica, each on a stream of its own."""
        streams = self.streams = [torch.cuda.Stream() for _ in self.replicas]
        torch.cuda.synchronize()
        for replica, stream in zip(self.replicas, streams, strict=True):
            before = {name: tensor.clone() for name, tensor in replica.state().items()}
            replica.place.zero_()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                replica.advance(self.forward)  # compiles, and makes every library's handles and work space
            torch.cuda.current_stream().wait_stream(stream)
            replica.load(before)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            main = torch.cuda.current_stream()
            for replica, stream in zip(self.replicas, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    replica.advance(self.forward)
            for stream in streams:
                main.wait_stream(stream)

    def run(self, num_steps: int, should_stop: Callable[[], bool]) -> int:
        """How many of the steps were made: all of them unless a stop was called for."""
        marks: list[torch.cuda.Event] = []
        for step in range(num_steps):
            self.graph.replay()
            if (step + 1) % RUN_AHEAD == 0:
                marks.append(torch.cuda.Event())
                marks[-1].record()
                if len(marks) > 1:
                    marks[-2].synchronize()
                if should_stop():
                    return step + 1
        return num_steps

    def validate(self) -> list[list[int]]:
        """Correctly recognised validation rows of each class, by replica; empty lists where there are no such rows."""
        if "val" not in self.replicas[0].resident:
            return [[] for _ in self.replicas]
        main, hits = torch.cuda.current_stream(), []
        for replica, stream in zip(self.replicas, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                hits.append(replica.hits("val"))
        for stream in self.streams:
            main.wait_stream(stream)
        return torch.stack(hits).tolist()
