"""The words and symbols of a page, explained on it: what a reader needs who has not read the docs."""

from collections.abc import Iterable

from camri.report.titles import TITLES
from camri.words import Noun

WORDS = (
    ("recall", "of the {many} of the important class, the share that is found; of several such classes the mean"),
    ("accuracy", "of all {many}, the share that gets its right class"),
    ("false alarm", "one of the {many} of no important class that is taken for one"),
    ("precision", "of the {many} that are taken for the important class, the share that is of it"),
    ("point", "one of a hundred: from 0.70 to 0.71 is one point"),
    ("hits / n", "important {many} that were found, of how many; summed over trials, which see the same {many}"),
    ("trial, seed", "a trial is one trained model; its seed is the number that its random draws start from"),
    (
        "setting",
        "a method with values for its knobs, such as a margin of 4π/64 and a scale of 8; with commas, one a class",
    ),
    ("shift", "a constant added to the important class’s score before the largest score wins; it needs no training"),
    ("validation, test", "{many} that choices are made on, and {many} that judge them: no choice has seen these"),
    ("[low, high]", "a 95 % interval: 95 of 100 such intervals hold the true value. With 0 in it, it may be chance"),
    ("±", "one standard deviation between trials: what another training may do"),
    ("p (Holm)", "how often chance alone would show as much, corrected for how many were looked at; below 0.05 counts"),
    ("CE, ce", "cross-entropy, the usual training that treats every class alike: the baseline"),
)

SCALE = "what cosines are multiplied by"
# For each method what its knobs do; of camri.methods, which needs torch.
KNOBS = {
    "ce": {},
    "wce": {"w": "how many times the important class counts"},
    "crwwce": {
        "fn": "price of missing the important class",
        "fp": "price of a wrong guess from or to the important class",
    },
    "wasserstein": {"c": "cost of a mistake from or to the important class", "entropy": "weight of the entropy term"},
    "l2softmax": {"s": SCALE},
    "arcface": {"m": "margin of every class, an angle", "s": SCALE},
    "camri": {"m": "margin of the important class, an angle (π/64 is 2.8 degrees)", "s": SCALE},
    "cosface": {"m": "margin of the important class, in cosine", "s": SCALE},
    "two_sided": {"m": "margin on both sides of the important class’s boundary, in cosine", "s": SCALE},
    "ldam": {"m": "extra margin of the important class, in cosine", "max_m": "margin of the rarest class", "s": SCALE},
    "focal": {
        "gamma": "how much less counts what is right already",
        "w": "how many times the important class counts",
    },
    "one_vs_rest": {"w": "weight of the second question: important or not?"},
    "logit_adjusted": {
        "d": "handicap of the important score in training",
        "tau": "share of the class frequencies taken out",
    },
    "vector_scaling": {
        "delta": "what the important score is multiplied by in training",
        "d": "what is then taken from it",
    },
}


def explain(methods: Iterable[str], noun: Noun) -> list[tuple[str, str]]:
    """Terms with their meaning: the general ones, then the knobs of the methods.

    >>> told = explain(["wce", "ce"], Noun("row", "rows"))
    >>> told[1]
    ('accuracy', 'of all rows, the share that gets its right class')
    >>> told[-1]
    ('WCE (wce)', 'w: how many times the important class counts')
    """
    knobs = [(name, KNOBS.get(name, {})) for name in methods]
    shown = [(name, "; ".join(f"{knob}: {what}" for knob, what in found.items())) for name, found in knobs if found]
    general = [(name, text.format(many=noun.many)) for name, text in WORDS]
    return [*general, *((f"{TITLES[name]} ({name})", text) for name, text in shown)]
