"""What methods are called in tables and charts, and their order there."""

from collections.abc import Iterable

BASELINE = "ce"
# The titles of camri.methods, which needs torch; in the order of the paper's Table I, the paper's rivals after it.
TITLES = {
    "camri": "CAMRI",
    "arcface": "ArcFace",
    "wasserstein": "Wasserstein",
    "crwwce": "CRWWCE",
    "wce": "WCE",
    "l2softmax": "L2-softmax",
    "cosface": "CosFace on the important class",
    "two_sided": "margin on both sides",
    "ldam": "LDAM",
    "focal": "focal loss",
    "one_vs_rest": "one-vs-rest",
    "logit_adjusted": "logit adjustment",
    "vector_scaling": "vector scaling",
    "ce": "cross-entropy",
}


def title_of(method: str) -> str:
    """The method's title; of one that another package brought, its name."""
    return TITLES.get(method, method)


def in_order(methods: Iterable[str]) -> list[str]:
    """The methods in the order of Table I, those of other packages before cross-entropy, which is last.

    >>> in_order(["ce", "poly", "camri"])
    ['camri', 'poly', 'ce']
    """
    places = list(TITLES)
    return sorted(methods, key=lambda name: (places.index(name) if name in TITLES else len(places) - 1.5, name))
