"""From the trials' own reports to one line about all of them."""

import time
from collections.abc import Callable

from camri.engine.outcome import Progress
from camri.engine.record import Record
from camri.engine.replica import Job


class Tracker:
    """Hears from each trial how far it is and tells `listener`, at most ten times a second."""

    def __init__(self, job: Job, total: int, listener: Callable[[Progress], None] | None):
        self._job = job
        self._total = total
        self._listener = listener
        self._epochs: dict[int, int] = {}  # place of a trial -> epochs done
        self._resumed: dict[int, int] = {}  # epochs a trial had already when this call began
        self._val: dict[int, list[int]] = {}
        self._ended: set[int] = set()
        self._began = time.perf_counter()
        self._told = 0.0

    def epoch(self, place: int, record: Record) -> None:
        self._resumed.setdefault(place, max(record.epoch - 1, 0))
        self._epochs[place] = record.epoch
        if record.val_hits:
            self._val[place] = record.val_hits[-1]
        self._tell()

    def end(self, place: int) -> None:
        self._ended.add(place)
        self._epochs[place] = self._job.training.epochs
        self._val.pop(place, None)
        self._tell(last=len(self._ended) == self._total)

    def _tell(self, last: bool = False) -> None:
        now = time.perf_counter()
        if self._listener is None or (now - self._told < 0.1 and not last):
            return
        self._told = now
        passed = now - self._began
        all_epochs = self._total * self._job.training.epochs
        done = sum(self._epochs.values())
        here = max(done - sum(self._resumed.values()), 0)  # epochs done by this call: the measure of its speed
        rows = self._job.steps_per_epoch * self._job.batch_size
        accuracy, recall = self._validation()
        self._listener(
            Progress(
                done=len(self._ended),
                running=len(self._epochs.keys() - self._ended),
                total=self._total,
                part=done / all_epochs,
                images_per_s=here * rows / passed,
                left_s=(all_epochs - done) * passed / here if here else float("inf"),
                accuracy=accuracy,
                recall=recall,
            )
        )

    def _validation(self) -> tuple[float | None, float | None]:
        if not self._val:
            return None, None
        counts = self._job.data.class_counts("val").tolist()
        hits = list(self._val.values())
        accuracy = sum(map(sum, hits)) / (len(hits) * max(sum(counts), 1))
        wanted = [(h[i], counts[i]) for h in hits for i in self._job.important if counts[i]]
        recall = sum(hit / count for hit, count in wanted) / len(wanted) if wanted else None
        return accuracy, recall
