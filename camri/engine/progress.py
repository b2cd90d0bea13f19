"""From the trials' own reports to one line about all of them."""

import time
from collections.abc import Callable, Mapping

from camri.engine.outcome import Outcome, Progress
from camri.engine.record import Record
from camri.engine.replica import Job


class Tracker:
    """Hears from each trial how far it is and tells `listener`, at most ten times a second.

    The clock starts with the first epoch that is heard of, and the first epochs of the trials that go side by side do
    not count: before them processes start and models are compiled. Speed is told when as many more epochs have ended.
    """

    def __init__(self, job: Job, total: int, side_by_side: int, listener: Callable[[Progress], None] | None):
        self._job = job
        self._total = total
        self._side_by_side = min(side_by_side, total)
        self._listener = listener
        self._epochs: dict[int, int] = {}  # place of a trial -> epochs done
        self._uncounted: dict[int, int] = {}  # epochs of it from before the clock, or from before this call
        self._val: dict[int, list[int]] = {}
        self._ended: set[int] = set()
        self._began: float | None = None
        self._told = 0.0

    def epochs(self, records: Mapping[int, Record]) -> None:
        """Nothing; trials that ended an epoch at the same time are heard of together, or their speed would be wrong."""
        for place, record in records.items():
            self._note(place, record.epoch, before=record.epoch - 1)
            if record.val_hits:
                self._val[place] = record.val_hits[-1]
        self._tell()

    def end(self, place: int, outcome: Outcome) -> None:
        self._note(place, outcome.epochs_done, before=0)
        self._ended.add(place)
        self._val.pop(place, None)
        self._tell(last=len(self._ended) == self._total)

    def _note(self, place: int, epochs: int, before: int) -> None:
        if self._began is None:
            self._began = time.perf_counter()
        is_of_the_first = len(self._uncounted) < self._side_by_side
        self._uncounted.setdefault(place, epochs if is_of_the_first else before)
        self._epochs[place] = epochs

    def _tell(self, last: bool = False) -> None:
        now = time.perf_counter()
        if self._listener is None or self._began is None or (now - self._told < 0.1 and not last):
            return
        self._told = now
        each, running = self._job.training.epochs, self._epochs.keys() - self._ended
        done = each * len(self._ended) + sum(self._epochs[place] for place in running)
        counted = sum(self._epochs.values()) - sum(self._uncounted.values())
        epoch_s = (now - self._began) / counted if counted >= self._side_by_side else float("inf")
        accuracy, recall = self._validation()
        self._listener(
            Progress(
                done=len(self._ended),
                running=len(running),
                total=self._total,
                part=done / (self._total * each),
                images_per_s=self._job.steps_per_epoch * self._job.batch_size / epoch_s,
                trial_s=each * epoch_s,
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
