"""The headline intervals once more, by a plain bootstrap of stored scores that shares no code with camri.stats.

    python -m benchmarks.bootstrap [--draws 2000] [NAME...]      # names of reproduce/scores

Of each draw: images and seeds with replacement, the same for both arms, and every model's threshold found anew for nine
recalls; the figure is the two-sided margin's false alarms over cross-entropy's. Cells of the table of seeds and images
carry noise of their own, which drawing both counts more than once, so these intervals are the wider ones.
"""

import argparse
import contextlib
from pathlib import Path

import numpy as np

from camri.study.reader import RunReader
from tools.docs import folder_of_results
from tools.releases import SCORES, unpacked

ROOT = Path(__file__).parents[1]
NAMES = ("columns-cifar10", "columns-small-cifar10", "small-cifar10-tuned")
METHOD = "two_sided_logits"


def alarms(odds: np.ndarray, own: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> float:
    """Share of images above the thresholds that give the recalls and are not of the class, mean over recalls.

    odds, own, weights: (N,), images by falling odds.
    """
    found = np.cumsum(weights * own)
    wrong = np.cumsum(weights * ~own)
    place = np.searchsorted(found, grid * found[-1] - 1e-9)
    return float(wrong[place].mean() / weights.sum())


def column(reading: RunReader, number: int, num_draws: int) -> tuple[float, float, float, int]:
    """The relative change of false alarms of a column with its interval, and the number of seeds."""
    facts = reading.columns[number]
    by_method = {one.method: one for one in reading.settings(facts)}
    rows = {name: {row.seed: row for row in by_method[name].rows} for name in ("ce", METHOD)}
    seeds = sorted(set(rows["ce"]) & set(rows[METHOD]))
    labels = reading.run.labels("test")
    own = labels == facts.indices[0]
    sides, starts = [], []
    for name in ("ce", METHOD):
        side = []
        for seed in seeds:
            scores = reading.scores(rows[name][seed], "test", facts)
            odds = scores.lead[:, 0].astype(np.float64) - scores.rest_spread.astype(np.float64)
            order = np.argsort(-odds, kind="stable")
            side.append((odds[order], own[order], order))
            if name == "ce":
                starts.append(float((scores.lead[own, 0] > 0).mean()))
        sides.append(side)
    start = float(np.mean(starts))
    grid = np.linspace(start, (1 + start) / 2, 9)
    rng = np.random.default_rng(0)

    def ratio(weights: np.ndarray, drawn: np.ndarray) -> float:
        ce, arm = (np.array([alarms(o, w, weights[order], grid) for o, w, order in side]) for side in sides)
        return float(arm[drawn].mean() / ce[drawn].mean() - 1)

    num = len(labels)
    estimate = ratio(np.ones(num), np.arange(len(seeds)))
    draws = [
        ratio(np.bincount(rng.integers(num, size=num), minlength=num), rng.integers(len(seeds), size=len(seeds)))
        for _ in range(num_draws)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return estimate, float(low), float(high), len(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--draws", type=int, default=2000)
    asked = parser.parse_args()
    print(f"| run | class | seeds | Δ false alarms, {asked.draws:,} draws |\n|---|---|---|---|")
    for name in asked.names:
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(unpacked(folder_of_results(ROOT) / SCORES / f"{name}.sqlite.xz"))
            reading = stack.enter_context(RunReader(store))
            for number, facts in enumerate(reading.columns):
                value, low, high, seeds = column(reading, number, asked.draws)
                shown = f"{100 * value:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}]"
                print(f"| {name} | {facts.title} | {seeds} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
