"""What another split into training and validation images changes: the headline rows of several splits.

    python reproduce/table1/splits/summary.py runs/split-1 runs/split-2 runs/split-3      # or results folders

Each split's estimates, their mean, their sd, and the 95 % t interval over splits, which contains what the interval of
one split lacks. Three splits give a wide one: t has two degrees of freedom.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camri.decision.stats import summarise
from camri.errors import InputError
from camri.report.results import open_source
from camri.report.tables import Table, cells, span, to_markdown
from camri.text import points

FIGURES = {  # field of a gap's record -> title, decimals
    "recall_change": ("Δ recall as trained", 1),
    "mean": ("Δ accuracy at equal recall", 2),
    "relative_threshold": ("Δ false alarms, thresholds (%)", 0),
}


def summarise_splits(sources: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A record for each column, method and figure that all splits have, from their gap records."""
    by_split = [{(one["important"], one["method"]): one for one in records} for records in sources]
    shared = [key for key in by_split[0] if all(key in own for own in by_split)]
    if not shared:
        raise InputError("the runs share no column and method; give runs of one study with different splits")
    found = []
    for important, method in shared:
        own = [split[important, method] for split in by_split]
        if len({one["setting"] for one in own}) > 1:
            raise InputError(f"{method} of {important} has other settings in other splits; give runs of one setting")
        for name in FIGURES:
            values = [one[name] for one in own if one.get(name) is not None]
            if len(values) == len(own):
                whole = summarise(values)
                ends = {"mean": whole.mean, "sd": whole.sd, "low": whole.low, "high": whole.high}
                about = {"important": important, "method": method, "setting": own[0]["setting"], "figure": name}
                found.append({**about, "splits": values, **ends, "num_trials": sum(one["num_trials"] for one in own)})
    return found


def table_of_splits(records: Sequence[Mapping[str, Any]]) -> Table:
    """The records as a table: each split's estimate, their sd, and the interval over splits."""
    num = len(records[0]["splits"])
    rows = []
    for one in records:
        title, decimals = FIGURES[one["figure"]]
        shown = [points(value, decimals) for value in one["splits"]]
        interval = span(one["mean"], one["low"], one["high"], decimals)
        rows.append(
            cells(one["important"], one["setting"], title, *shown, points(one["sd"], 2).lstrip("+"), interval,
                  str(one["num_trials"]))
        )  # fmt: skip
    return Table(
        f"The headline rows in {num} splits into training and validation data.",
        (
            "important",
            "setting",
            "figure",
            *(f"split {place + 1}" for place in range(num)),
            "sd",
            "over splits",
            "trials",
        ),
        (tuple(rows),),
        tuple(records),
        notes=(
            "Percentage points against cross-entropy, test data. The splits have the same test images, so the interval "
            "is over splits and seeds, not over images.",
        ),
        name="splits",
        brief="Against cross-entropy; brackets: 95 % t intervals over splits.",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs, or results folders, of the splits: at least two")
    asked = parser.parse_args()
    try:
        if len(asked.runs) < 2:
            raise InputError("one split shows no variation; give at least two runs")
        sources = []
        for run in asked.runs:
            with open_source(run) as source:
                sources.append(source.records("gaps"))
        print(to_markdown(table_of_splits(summarise_splits(sources))), end="")
    except InputError as error:
        print(f"camri: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
