"""The differences at equal recall as a picture: a dot and an interval for each method."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from camri.report.theme import PRINT, Figure, Look, Panel, drawing
from camri.report.titles import title_of
from camri.words import quoted

FIGURES = {"mean": "accuracy", "alarms": "false alarms"}  # of a gap's record
FAR = 0.1  # of accuracy: a method so much below has not trained, and would press the others into a line
ROW_HEIGHT = 22


def draw_gaps(records: Sequence[Mapping[str, Any]], look: Look = PRINT) -> Figure | None:
    """Accuracy and false alarms at equal recall against cross-entropy's, a panel each for a column; None of nothing."""
    far = dict.fromkeys(title_of(one["method"]) for one in records if _is_far(one))
    near = [one for one in records if not _is_far(one)]
    drawn = [_point(one, name) for one in near for name in FIGURES if _is_told(one, name)]
    panels = []
    for number, important in dict.fromkeys((one["column"], one["important"]) for one in near):
        for name, title in FIGURES.items():
            points = [one for one in drawn if (one["column"], one["figure"]) == (number, name)]
            if points:
                ends = [end for one in drawn if one["figure"] == name for end in (one["low"], one["high"])]
                chart = _chart(points, [one["method"] for one in near if one["column"] == number], ends, look)
                panels.append(Panel(f"{quoted(important)}: {title}", chart, ROW_HEIGHT * (len(points) + 1)))
    if not panels:
        return None
    left_out = f" Not drawn, as more than {100 * FAR:.0f} points less accurate: {', '.join(far)}." if far else ""
    return Figure(
        "gaps",
        "At equal recall",
        "Every model is shifted to the same recalls; test data, mean over the range, differences from cross-entropy in "
        "points of a hundred. Dots: each method at its best setting on validation data; lines: 95 % intervals over "
        "seeds and test data, not corrected for several rows. More accurate is further right, fewer false alarms is "
        f"further left; a line that crosses 0 may be chance.{left_out}",
        tuple(panels),
        tuple(drawn),
        across=len(FIGURES),
    )


def _is_told(one: Mapping[str, Any], name: str) -> bool:
    return one.get(name) is not None and one.get(f"{name}_low") is not None


def _is_far(one: Mapping[str, Any]) -> bool:
    return _is_told(one, "mean") and one["mean"] < -FAR


def _point(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = {"change": one[name], "low": one[f"{name}_low"], "high": one[f"{name}_high"]}
    return {
        "column": one["column"],
        "figure": name,
        "method": title_of(one["method"]),
        "setting": one["setting"],
        "trials": one["num_trials"],
        **{key: round(100 * value, 3) for key, value in values.items()},
    }


def _chart(points: Sequence[Mapping[str, Any]], methods: Sequence[str], ends: Sequence[float], look: Look) -> Any:
    """One panel; `ends` are those of all intervals of the figure, so that columns can be compared."""
    colors, _ = look.methods(methods)
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    base = drawing(points).encode(
        y=alt.Y("method:N", title=None, sort=[one["method"] for one in points]),
        color=alt.Color("method:N", scale=colors, legend=None),
        tooltip=["method:N", "setting:N", "change:Q", "low:Q", "high:Q", "trials:Q"],
    )
    zero = drawing([{"at": 0}]).mark_rule(strokeDash=[4, 3], color=look.muted).encode(x="at:Q")
    along = alt.X("low:Q", title="points of a hundred", scale=scale)
    line, dot = base.mark_rule(strokeWidth=2.5), base.mark_point(filled=True, size=70, opacity=1)
    return alt.layer(zero, line.encode(along, alt.X2("high:Q")), dot.encode(alt.X("change:Q")))
