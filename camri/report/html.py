"""One self-contained page: everything inline, no request leaves it."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

import camri
from camri.errors import InputError
from camri.files import cache_folder, replacing
from camri.report.slider import Slider, script_json
from camri.report.table import Table, span

if TYPE_CHECKING:
    from camri.report.charts import Figure
    from camri.report.handles import Curves, Handles

MOST_BARS = 12


@dataclass(frozen=True, eq=False)
class Section:
    """A heading with what stands under it; pictures are (data URI, text). `text` says why it is empty, where it is.

    label: its name in the list of contents.
    """

    name: str
    title: str
    label: str = ""
    figure: "Figure | None" = None
    tables: tuple[Table, ...] = ()
    text: str = ""
    slider: Slider | None = None
    curves: "tuple[Curves, ...]" = ()
    handles: "Handles | None" = None
    pictures: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def is_empty(self) -> bool:
        drawn = self.curves or self.handles or self.slider
        return not (self.figure or self.tables or drawn or self.pictures or self.note)


@dataclass(frozen=True)
class Bar:
    """A class's change of recall: text, places of its value and interval in 200 units, and "down", "up" or ""."""

    name: str
    text: str
    end: float | None
    low: float | None
    high: float | None
    kind: str


@dataclass(frozen=True)
class Bars:
    """Changes of recall, a row each; those whose interval does not exclude 0 are without colour."""

    caption: str
    rows: tuple[Bar, ...]
    zero: float | None
    note: str


def make_bars(changes: Mapping[str, tuple[float, float | None, float | None]], caption: str) -> Bars | None:
    """Bars of changes (value, low, high) by class, the worst first; None without any."""
    if not changes:
        return None
    shown = sorted(changes, key=lambda name: changes[name][0])[:MOST_BARS]
    ends = [end for name in shown for end in changes[name] if end is not None]
    left, right = min(0.0, *ends), max(0.0, *ends)

    def place(value: float | None) -> float | None:
        return None if value is None else round(4 + 192 * (value - left) / max(right - left, 1e-9), 1)

    def kind(low: float | None, high: float | None) -> str:
        return "down" if (high or 0.0) < 0 else "up" if (low or 0.0) > 0 else ""

    rows = tuple(
        Bar(name, span(value, low, high), place(value), place(low), place(high), kind(low, high))
        for name in shown
        for value, low, high in [changes[name]]
    )
    lost = sum(kind(low, high) == "down" for _, low, high in changes.values())
    note = f"{lost or 'None'} of {len(changes):,} significantly lost recall (coloured). Lines: 95 % intervals."
    more = f" The {len(changes) - len(shown):,} others lost less." if len(changes) > len(shown) else ""
    return Bars(caption, rows, place(0.0), note + more)


def put(text: str, path: Path) -> Path:
    """Write the text, whole or not at all, and return the path."""
    with replacing(path, "; choose another file with --out") as part:
        part.write_text(text, encoding="utf-8")
    return path


def fill(template: str, found: Sequence[Section], folded: Sequence[Section] = (), **values: Any) -> str:
    """A page of the sections with their charts, style and scripts inline; everything in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("camri.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from camri.report.charts import PAGE, specification, style_of_methods  # here: a page without charts needs no altair

    charts_by_id = {
        f"{section.name}-{place}": specification(panel, PAGE)
        for section in (*found, *folded)
        for place, panel in enumerate(section.figure.panels if section.figure else ())
    }
    return environment.get_template(template).render(
        **values,
        sections=[section for section in found if not section.is_empty],
        left_out=[section for section in found if section.is_empty],
        folded=[section for section in folded if section.text or not section.is_empty],
        version=camri.__version__,
        charts=script_json(charts_by_id),
        style=(style_of_methods() if charts_by_id else "") + _asset("page.css"),
        script=_asset("page.js") + _asset("slider.js") + _asset("handles.js"),
        bundle=_bundle() if charts_by_id else "",
    )


def _asset(name: str) -> Markup:
    return Markup(resources.files("camri.report").joinpath("templates").joinpath(name).read_text("utf-8"))


@cache
def _bundle() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script. It is kept with its hash: making it takes 2 s of a page's 3."""
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    digest, text = "", ""
    with contextlib.suppress(OSError, ValueError):
        digest, text = kept.read_text(encoding="utf-8").split("\n", 1)
    if digest != f"//{hashlib.sha256(text.encode()).hexdigest()}":
        import vl_convert

        text = vl_convert.javascript_bundle()  # type: ignore[call-arg]
        digest = f"//{hashlib.sha256(text.encode()).hexdigest()}"
        with contextlib.suppress(OSError, InputError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as part:
                part.write_text(f"{digest}\n{text}", encoding="utf-8", newline="\n")
    return Markup(text.replace("</script", "<\\/script"))
