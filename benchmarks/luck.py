"""What the paper's rule would show by luck alone: many settings that are all cross-entropy, the best one picked.

python benchmarks/luck.py runs/full                    # a run whose cross-entropy was trained at a constant rate
python benchmarks/luck.py runs/full --settings 9       # how much of it is the number of settings

Near the end of a training at a constant rate successive epochs are nearly independent draws, so the pairs of recall and
accuracy after each of them, of all cross-entropy trials, are what a trial may end with. From them ten trials are drawn
for cross-entropy and for each of the settings. Of the settings whose mean accuracy is not below cross-entropy's the one
of the highest mean recall is picked; none of them is better than cross-entropy. Prints JSON; recalls in points of a
hundred.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from camri.methods import BASELINE
from camri.report.records import LATE, trial_curves
from camri.study.reader import RunReader

SETTINGS = 63  # the paper's grid of CAMRI: nine margins and seven scales


def late_pairs(folder: Path, number: int) -> np.ndarray:
    """(N, 2): recall and accuracy on validation data after each late epoch of each cross-entropy trial."""
    with RunReader(folder) as reading:
        column = reading.columns[number]
        curves = list(trial_curves(reading, reading.settings(column, BASELINE)[0], column.indices).values())
    return np.concatenate([one[:, -(one.shape[1] // LATE) :].T for one in curves])


def gains_by_luck(pairs: np.ndarray, settings: int, trials: int, draws: int, seed: int) -> np.ndarray:
    """What the rule shows in each draw; nan where no setting keeps cross-entropy's accuracy."""
    drawn = np.random.default_rng(seed)
    found = np.full(draws, np.nan)
    for place in range(draws):
        recall, accuracy = pairs[drawn.integers(len(pairs), size=(settings + 1, trials))].mean(axis=1).T
        kept = recall[1:][accuracy[1:] >= accuracy[0]]
        if len(kept):
            found[place] = 100 * (kept.max() - recall[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--column", type=int, default=0)
    parser.add_argument("--settings", type=int, default=SETTINGS)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--at-least", type=float, default=5.4, metavar="POINTS", help="how often luck shows so much")
    asked = parser.parse_args()
    pairs = late_pairs(asked.run, asked.column)
    gains = gains_by_luck(pairs, asked.settings, asked.trials, asked.draws, seed=0)
    shown = gains[~np.isnan(gains)]
    told = {
        "settings": asked.settings,
        "trials": asked.trials,
        "pairs": len(pairs),
        "sd_recall": round(100 * float(pairs[:, 0].std(ddof=1)), 2),
        "mean_gain": round(float(shown.mean()), 2),
        "gain_5_and_95_percent": np.quantile(shown, [0.05, 0.95]).round(2).tolist(),
        f"share_at_least_{asked.at_least:g}": round(float(np.mean(shown >= asked.at_least)), 3),
        "share_blank": round(float(np.isnan(gains).mean()), 3),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
