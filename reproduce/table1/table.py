"""Table I's cells for CIFAR-10, authors' CNN, 18 epochs, as trained: recall and accuracy, mean ± sd over trials.

    python reproduce/table1/table.py            # writes cifar10.md

All trials of one training, split and seeds; they are stored in several folders here and in outcomes.csv here.
"""

import csv
import statistics
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = [HERE / f"{name}/outcomes.csv" for name in ("cifar10", "cifar10-cat", "cifar10-winners", "cifar10-table1")]
NOTE = """Recall, accuracy (trials); mean ± sd over trials, test data, authors' CNN, 18 epochs with a falling rate, a
tenth of the training images held out: not the paper's protocol, which has 300 epochs at a constant rate."""
METHODS = {
    "cross-entropy": "ce",
    "WCE w = 2": "wce w=2",
    "CRWWCE fn = 2, fp = 1.4": "crwwce fn=2 fp=1.4",
    "Wasserstein c = 1.4": "wasserstein c=1.4 entropy=0.01",
    "L2-softmax s = 8": "l2softmax s=8",
    "ArcFace m = 4π/64, s = 8": "arcface m=4π/64 s=8",
    "CAMRI m = 4π/64, s = 8": "camri m=4π/64 s=8",
}
COLUMNS = ("cat", "dog", "airplane")


def read() -> dict[tuple[str, str], dict[int, dict[str, str]]]:
    """(setting, important class or "") -> seed -> row of the test split."""
    found: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for path in [*SOURCES, HERE / "outcomes.csv"]:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["split"] == "test" and row["status"] == "done":
                    found.setdefault((row["setting"], row["important"]), {}).setdefault(int(row["seed"]), row)
    return found


def cell(rows: dict[int, dict[str, str]], column: str) -> str:
    if not rows:
        return "not run"
    recalls, accuracies = ([float(row[name]) for row in rows.values()] for name in (f"recall:{column}", "accuracy"))
    shown = [
        f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"
        for values in (recalls, accuracies)
    ]
    return f"{shown[0]}, {shown[1]} ({len(rows)})"


def main() -> None:
    found = read()
    lines = ["# Table I's cells for CIFAR-10, as trained", ""]
    lines += [f"| method | {' | '.join(COLUMNS)} |", "|---|---|---|---|"]
    for title, setting in METHODS.items():
        cells = [cell(found.get((setting, column)) or found.get((setting, ""), {}), column) for column in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", NOTE, ""]
    (HERE / "cifar10.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
