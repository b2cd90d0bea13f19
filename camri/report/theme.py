"""One look for every chart: colours that colour-blind readers tell apart, and what a figure is made of."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from camri.errors import InputError, closest
from camri.methods import METHODS, UNKNOWN_DASH, title_of

FORMATS = ("png", "svg", "pdf")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


# A legend of lines: colour and dash as they are drawn. As dots, dashed outlines look like blots.
LINES = alt.Legend(symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=600, symbolOpacity=1)


@dataclass(frozen=True)
class Look:
    """Colours by their use. On the page they are CSS variables, so that one drawing serves light, dark and print."""

    ink: str
    muted: str
    grid: str
    up: str
    down: str
    series: Mapping[str, str]

    def config(self) -> dict[str, Any]:
        """The top-level configuration of a Vega-Lite specification."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 11, "titleFontWeight": "normal"}
        return {
            "background": "transparent",
            "font": FONT,
            "view": {"stroke": None},
            "axis": {
                **text,
                "gridColor": self.grid,
                "domainColor": self.muted,
                "tickColor": self.muted,
                "titleFontSize": 12,
                "labelLimit": 190,  # the longest title of a method; the page takes less on a phone
            },
            "legend": {
                **text,
                "orient": "bottom",
                "columns": 2,
                "labelLimit": 220,
                "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},  # side by side, phones cut them
            },
            "title": {"color": self.ink, "fontSize": 13, "fontWeight": 600, "anchor": "start", "limit": 320},
            "axisQuantitative": {"tickCount": 6, "labelOverlap": True, "labelSeparation": 6},
            "text": {"color": self.ink},
            "rule": {"color": self.muted},
        }

    def methods(self, used: Sequence[str]) -> tuple[alt.Scale, alt.Scale]:
        """Scales of colour and dash for the methods used, the same in every chart."""
        domain = [title_of(name) for name in used]
        colors = [self.series.get(name, self.muted) for name in used]
        strokes = [list(METHODS[name].dash if name in METHODS else UNKNOWN_DASH) for name in used]
        return alt.Scale(domain=domain, range=colors), alt.Scale(domain=domain, range=strokes)


PRINTED = {name: entry.colors[0] for name, entry in METHODS.items()}
PRINT = Look("#1a1a1a", "#767676", "#e3e3e3", "#0072B2", "#D55E00", PRINTED)
VARIABLES = {name: f"var(--m-{name.replace('_', '-')})" for name in METHODS}
PAGE = Look("var(--ink)", "var(--muted)", "var(--grid)", "var(--up)", "var(--down)", VARIABLES)


def style_of_methods() -> str:
    """CSS that sets the colour variables of all methods, for light and dark pages."""

    def variables(place: int) -> str:
        return " ".join(f"--m-{name.replace('_', '-')}: {entry.colors[place]};" for name, entry in METHODS.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(2)} }} }}"
    return f":root {{ {variables(1)} }}\n{dark}\n"


@dataclass(frozen=True, eq=False)
class Panel:
    """One drawing, without its size."""

    title: str
    chart: Any
    height: int = 280


@dataclass(frozen=True, eq=False)
class Figure:
    """Drawings with a caption that says what to see. `records` are what is drawn, for tests and for readers.

    `across`: how many stand side by side in a file; by default it depends on their number.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    records: tuple[Mapping[str, Any], ...] = field(default=())
    across: int | None = None


def drawing(records: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """An empty chart of plain records."""
    return alt.Chart(alt.Data(values=[dict(one) for one in records]))


def tips(*fields: str) -> list[alt.Tooltip]:
    """Tooltips of fields by name; "recall .3f" is a number in that format."""
    parts = [(*field.split(), None)[:2] for field in fields]
    return [alt.Tooltip(f"{name}:Q", format=form) if form else alt.Tooltip(f"{name}:N") for name, form in parts]


def shorten(name: str, most: int = 16) -> str:
    """A label of at most so many letters, cut in its middle: long names often differ at their ends only.

    >>> shorten("Stop"), shorten("Speed limit (80km/h)")
    ('Stop', 'Speed…t (80km/h)')
    """
    head = most // 3
    return name if len(name) <= most else f"{name[:head]}…{name[head + 1 - most :]}"


def labels(names: Sequence[str]) -> str:
    """A Vega expression that shortens an axis's labels, which are full names."""
    return f"{json.dumps({name: shorten(name) for name in names})}[datum.label] || datum.label"


def specification(panel: Panel, look: Look, width: int | str = "container") -> dict[str, Any]:
    """A panel's Vega-Lite specification, to be embedded in a page."""
    drawn = panel.chart.to_dict(validate=False)  # validating a thousand plain records takes seconds
    size = {"width": width, "height": panel.height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**drawn, **size, "config": look.config()}


def export(figure: Figure, form: str, width: int = 340) -> bytes:
    """The figure as a PNG (at twice the size), SVG or PDF file; no browser is needed."""
    import vl_convert

    if form not in FORMATS:
        raise InputError(f"format={form!r} is not for a figure; {closest(form, FORMATS)}", argument="format")
    drawn = [one.chart.properties(title=one.title, width=width, height=one.height) for one in figure.panels]
    # Two or four panels read best as two columns; the paper's confusion matrices and angles stand in rows.
    columns = figure.across or (2 if len(drawn) in (2, 4) else 3)
    whole = alt.concat(*drawn, columns=columns).resolve_scale(opacity="independent").to_dict(validate=False)
    specification = {**whole, "config": {**PRINT.config(), "background": "white"}}
    if form == "svg":
        return vl_convert.vegalite_to_svg(specification).encode()
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(specification)
    return vl_convert.vegalite_to_png(specification, scale=2)
