"""How often the interval of a difference holds the truth, and how often its p rejects where nothing differs.

python benchmarks/intervals.py        # seven minutes on one core

Made tables, seeds × images, of two arms: hardness that both share, each arm's own view of an image, luck of a training,
noise of a single outcome. Few seeds, few images and recalls near 1 are the hard cases.
"""

import argparse
import warnings
from itertools import product

import numpy as np
from scipy.stats import norm, ttest_rel

from camri.stats import compare

BETTER = 0.3  # of one arm, in standard deviations of what decides an outcome
WORLDS = {  # the sd of an arm's own view of images, of luck, of single outcomes; hardness has 1
    "outcomes": (0.0, 0.0, 0.4),
    "images": (0.5, 0.1, 0.4),
}


def made_arms(
    recalls: tuple[float, float], world: str, num_seeds: int, num_images: int, drawn: np.random.Generator
) -> list[np.ndarray]:
    """Outcomes (S, N) of two arms of such recalls."""
    own, luck, noise = WORLDS[world]
    hardness = drawn.normal(size=num_images)
    arms = []
    for recall in recalls:
        view = hardness + own * drawn.normal(size=num_images) + luck * drawn.normal(size=(num_seeds, 1))
        score = view + noise * drawn.normal(size=(num_seeds, num_images))
        arms.append(score < norm.ppf(recall) * np.sqrt(1 + own**2 + luck**2 + noise**2))
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 5, 16])
    parser.add_argument("--images", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.5, 0.9, 0.97])
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")  # the t test's, where all differences are equal
    print("world     recall  seeds  images   within: equal  better   p < .05, equal: here  t over seeds  better: here")
    shares = []
    for world, recall, num_seeds, num_images in product(WORLDS, asked.recalls, asked.seeds, asked.images):
        drawn = np.random.default_rng([list(WORLDS).index(world), int(100 * recall), num_seeds, num_images])
        row = []
        for arm in (recall, float(norm.cdf(norm.ppf(recall) + BETTER))):
            marks = []
            for number in range(asked.tables):
                first, second = made_arms((arm, recall), world, num_seeds, num_images, drawn)
                found = compare(first, second, seed=number, num_draws=500)
                alone = ttest_rel(first.mean(axis=1), second.mean(axis=1)).pvalue
                marks.append((found.low <= arm - recall <= found.high, found.p < 0.05, alone < 0.05))
            row.append(np.mean(marks, axis=0))
        (within, rejected, alone), (within_better, power, _) = row
        shares.append((within, within_better, rejected, alone, power))
        print(
            f"{world:9} {recall:6.2f} {num_seeds:6} {num_images:7}"
            + "{:16.3f} {:7.3f} {:22.3f} {:13.3f} {:15.3f}".format(*shares[-1]),
            flush=True,
        )
    for name, ends in (("lowest", np.min(shares, axis=0)), ("highest", np.max(shares, axis=0))):
        print(f"{name:31}" + "{:16.3f} {:7.3f} {:22.3f} {:13.3f} {:15.3f}".format(*ends))


if __name__ == "__main__":
    main()
