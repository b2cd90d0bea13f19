"""Coverage of three intervals of recall on simulated tables whose rows come in groups.

python benchmarks/groups.py        # two minutes on one core
"""

import argparse
from itertools import product

import numpy as np

from camri.decision.stats import design_effect, wilson

NUM_DRAWS = 400


def made_groups(
    recall: float, correlation: float, num_groups: int, are_alike: bool, drawn: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Simulated hits and groups of rows: each group's recall is drawn from a beta distribution."""
    sizes = np.full(num_groups, 6)
    if not are_alike:
        sizes = np.maximum(1, np.round(drawn.lognormal(1.2, 1.0, num_groups))).astype(int)
    rest = (1 - correlation) / correlation if correlation else 0.0
    own = drawn.beta(recall * rest, (1 - recall) * rest, num_groups) if correlation else np.full(num_groups, recall)
    groups = np.repeat(np.arange(num_groups), sizes)
    return drawn.random(len(groups)) < own[groups], groups


def intervals(hit: np.ndarray, groups: np.ndarray, drawn: np.random.Generator) -> list[tuple[float, float]]:
    """Wilson's; Wilson's with the effective number of rows; the percentile bootstrap of whole groups."""
    hits, num = int(hit.sum()), len(hit)
    effect = design_effect(hit, groups)
    sizes, own = np.bincount(groups), np.bincount(groups, hit)
    weights = drawn.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=NUM_DRAWS)
    low, high = np.quantile((weights @ own) / (weights @ sizes), [0.025, 0.975])
    return [wilson(hits, num), wilson(hits / effect, num / effect), (float(low), float(high))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=600)
    asked = parser.parse_args()
    print("recall  correlation  groups  sizes    within: rows  worth  bootstrap   width: rows  worth  bootstrap")
    shares = []
    for recall, correlation, num_groups, are_alike in product(
        (0.6, 0.9, 0.98), (0.0, 0.3, 0.8), (5, 10, 20, 50), (True, False)
    ):
        drawn = np.random.default_rng([int(100 * recall), int(10 * correlation), num_groups, are_alike])
        found = np.array(
            [
                intervals(*made_groups(recall, correlation, num_groups, are_alike, drawn), drawn)
                for _ in range(asked.tables)
            ]
        )
        within = ((found[..., 0] <= recall) & (recall <= found[..., 1])).mean(axis=0)
        width = (found[..., 1] - found[..., 0]).mean(axis=0)
        shares.append(within)
        print(
            f"{recall:6.2f} {correlation:12.1f} {num_groups:7}  {'alike' if are_alike else 'unlike':8}"
            + "{:13.3f} {:6.3f} {:10.3f} {:13.2f} {:6.2f} {:10.2f}".format(*within, *width),
            flush=True,
        )
    print("lowest and highest".ljust(37) + "".join(f"  {low:.3f} – {high:.3f}" for low, high in _ends(shares)))


def _ends(shares: list[np.ndarray]) -> list[tuple[float, float]]:
    return list(zip(np.min(shares, axis=0).tolist(), np.max(shares, axis=0).tolist(), strict=True))


if __name__ == "__main__":
    main()
