"""Which trials stand together, as an ensemble or as somebody's teachers."""

from collections.abc import Iterable

from benchmarks.prize.store import SPLITS, Folder, Kept
from camri.metrics import condense
from camri.study.combine import average


def groups_of(seeds: Iterable[int], size: int) -> dict[int, list[int]]:
    """The full groups of `size` neighbouring seeds, by number; no seed is in two.

    >>> groups_of([0, 1, 2, 3, 5, 6], 2)
    {0: [0, 1], 1: [2, 3]}
    """
    found: dict[int, list[int]] = {}
    for seed in sorted(seeds):
        found.setdefault(seed // size, []).append(seed)
    return {number: group for number, group in found.items() if len(group) == size}


def teachers_of(seed: int, seeds: Iterable[int], size: int) -> list[int]:
    """The next full group of seeds after a student's own, the first one after the last; none where there is no other.

    >>> teachers_of(3, range(6), 2), teachers_of(5, range(6), 2), teachers_of(1, range(2), 2)
    ([4, 5], [0, 1], [])
    """
    groups, own = groups_of(seeds, size), seed // size
    others = sorted(number for number in groups if number != own)
    later = [number for number in others if number > own]
    return groups[(later or others)[0]] if others else []


def put_together(folder: Folder, members: str) -> dict[int, Kept]:
    """Ensembles of an arm's trials, by the first seed of each: so they pair with each other and with single models."""
    trials, size = folder.load_arm(members), folder.about["ensemble"]
    made = {}
    for group in groups_of([seed for seed, trial in trials.items() if trial.logits], size).values():
        first = trials[group[0]]
        scores = {
            split: condense(
                average([trials[seed].logits[split] for seed in group]),
                first.scores[split].labels,
                first.scores[split].important,
            )
            for split in SPLITS
        }
        made[group[0]] = Kept(f"ensemble of {members}", group[0], {"members": group}, scores)
    return made
