"""One self-contained page about a run: everything inline, no request leaves it."""

import contextlib
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

import camri
from camri.errors import InputError
from camri.files import cache_folder, replacing
from camri.fit_record import read_record
from camri.methods import METHODS, title_of
from camri.report import tables
from camri.report.answer import answer
from camri.report.charts import PAGE, Figure, draw, draw_changes, draw_gaps, specification, style_of_methods
from camri.report.records import FromRun
from camri.report.slider import Slider, script_json
from camri.report.tables import Table, span
from camri.study.reader import HARDWARE, VERSIONS, OnStep, RunReader, list_environment
from camri.text import duration, quoted

PAGE_FILE = "report.html"
NO_CHOICE = "no method was chosen on validation data"
MOST_BARS = 12
LISTED = 50  # of a list, such as the names of a table's columns


def explain(methods: Iterable[str]) -> list[tuple[str, str]]:
    """What the knobs of the methods do, for each method that has some.

    >>> explain(["wce", "ce"])
    [('WCE (wce)', 'w: weight of the important class')]
    """
    knobs = {name: METHODS[name].knobs for name in methods if name in METHODS and METHODS[name].knobs}
    return [
        (f"{title_of(name)} ({name})", "; ".join(f"{knob}: {entry.about}" for knob, entry in own.items()))
        for name, own in knobs.items()
    ]


@dataclass(frozen=True, eq=False)
class Section:
    """A heading with what stands under it; pictures are (data URI, text). `text` says why it is empty, where it is.

    label: its name in the list of contents.
    """

    name: str
    title: str
    label: str = ""
    figure: Figure | None = None
    tables: tuple[Table, ...] = ()
    text: str = ""
    slider: Slider | None = None
    pictures: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.figure or self.tables or self.slider or self.pictures or self.note)


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


def write_page(folder: str | Path, out: str | Path | None = None, *, on_step: OnStep | None = None) -> Path:
    """Write the page about a run and return its path; by default report.html in the run's folder."""
    with RunReader(folder, on_step) as reading:
        text = render(reading)
    return put(text, reading.run.path.with_name(PAGE_FILE) if out is None else Path(out))


def put(text: str, path: Path) -> Path:
    """Write the text, whole or not at all, and return the path."""
    with replacing(path, "; choose another file with --out") as part:
        part.write_text(text, encoding="utf-8")
    return path


def is_stopped(reading: RunReader) -> bool:
    """Whether planned trials of a study are missing and nothing trains them."""
    progress = reading.progress()
    return not (progress.is_running or progress.is_finished or progress.total is None)


def render(reading: RunReader) -> str:
    """The page as HTML."""
    if (record := read_record(reading.run.path.parent)) is not None:
        from camri.report.fit_page import render_fit

        return render_fit(record, reading)
    source = FromRun(reading)
    found = sections(source)
    reading.begin("writing the page")
    return fill(
        "page.html.j2",
        found,
        title=f"{reading.name}: {', '.join(quoted(column.title) for column in reading.columns) or 'important classes'}",
        answer=answer(reading, source.verdicts, source.records("gaps")),
        cautions=reading.cautions(),
        progress=reading.progress(),
        is_stopped=is_stopped(reading),
        failed=reading.failed,
        num_outcomes=len(reading.rows),
        many=reading.noun.many,
        methods=explain(reading.methods()),
        facts=facts(reading),
        studies=[json.dumps(study, indent=1, ensure_ascii=False) for study in reading.run.studies],
    )


def fill(template: str, found: Sequence[Section], folded: Sequence[Section] = (), **values: Any) -> str:
    """A page of the sections with their charts, style and scripts inline; everything in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("camri.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
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
        script=_asset("page.js") + _asset("slider.js"),
        bundle=_bundle() if charts_by_id else "",
    )


def sections(source: FromRun, with_paper: bool = True) -> list[Section]:
    """What the page shows, in its order; empty ones say why. A fit's page is without the paper's tables and figures."""
    reading, verdicts, records = source.reading, source.verdicts, source.records
    if not any(one.settings for one in verdicts):
        return []
    found: list[Section] = []

    def add(name: str, label: str, make: Callable[[], tuple[Any, ...]], why_empty: str = "") -> None:
        """Add a section of what `make` returns: a figure or None, then tables, some of which may be None."""
        try:
            figure, *own = make()
        except InputError as error:
            figure, own, why_empty = None, [], str(error)
        figure = figure if figure and figure.panels else None
        title = figure.title if figure else label
        found.append(Section(name, title, label, figure, tuple(table for table in own if table), why_empty))

    gaps, honest = records("gaps"), records("honest")
    at_equal_recall = (tables.table_of_gaps(gaps), tables.table_of_alarms(gaps)) if gaps else ()
    no_pairs = "no method has trials with cross-entropy’s seeds"
    add("curve", "Curve", lambda: (draw("curves", source, PAGE), gaps and tables.table_of_trained(gaps)))
    add("changes", "Classes", lambda: (draw_changes(reading, verdicts, PAGE),), NO_CHOICE)
    add("equal-recall", "At equal recall", lambda: (draw_gaps(gaps, PAGE), *at_equal_recall), no_pairs)
    add(
        "table",
        "Every method and its controls",
        lambda: (
            None,
            honest and tables.table_of_honest(honest),
            with_paper and tables.paper_table([records("paper")]),
        ),
        NO_CHOICE,
    )
    add("confusion", "Confusion", lambda: (draw("confusion", source, PAGE),))
    add("calibration", "Calibration", lambda: (None, tables.calibration_table(verdicts)), NO_CHOICE)
    add("training", "Training", lambda: (draw("training", source, PAGE), tables.table_of_epochs(records("training"))))
    if with_paper:
        add("penalty", "Penalty", lambda: (draw("penalty", source, PAGE),))
        add("angles", "Angles", lambda: (None, tables.table_of_angles(records("angles"))))
    return found


def facts(reading: RunReader) -> list[tuple[str, str]]:
    """How it was made: data, splits, seeds, training, versions, hardware, time, and the command to repeat it."""
    run = reading.run
    studies, rows = run.studies, reading.rows
    seeds = sorted({seed for study in studies for seed in study["seeds"]})
    times = sorted(row.created[:19].replace("T", " ") for row in rows)
    environment = reading.environment()
    found = [
        ("data", reading.name),
        ("fingerprint of data and splits", run.fingerprint),
        ("provenance", _pairs(run.data.get("provenance", {}))),
        (reading.noun.many, ", ".join(f"{name} {num:,}" for name, num in run.data["rows"].items())),
        ("important classes", ", ".join(column.title for column in reading.columns) or "not known yet"),
        ("seeds", ", ".join(map(str, seeds))),
        ("training", _pairs(run.training)),
        ("versions", list_environment(environment, VERSIONS)),
        ("hardware", list_environment(environment, HARDWARE)),
        ("device time", duration(sum(row.device_s for row in rows))),
        ("first and last outcome", f"{times[0]} – {times[-1]} UTC" if times else "none"),
    ]
    for study in studies:
        split = {name: study[name] for name in ("val_fraction", "test_fraction", "split_seed", "important_from")}
        found.append((f"study {study['name']}", _pairs(split)))
    if command := run.note("command"):
        found.append(("to repeat it", command))
    else:  # exact however the study was narrowed, which a recipe's name would not be
        stopped = is_stopped(reading)
        folder = shlex.quote(str(reading.folder)) if stopped else "runs/again"
        found.append(("to resume it" if stopped else "to repeat it", f"camri study run study.json --out {folder}"))
        found.append(("study.json", "the study’s JSON at the bottom of this page"))
    found.append(("this page", f"camri report {shlex.quote(str(reading.folder))}"))
    return found


def _pairs(values: Mapping[str, Any]) -> str:
    """Names and values on one line; empty ones are left out.

    >>> _pairs({"flip": False, "options": {}, "ramp": [0.0, 0.3], "sizes": {"least": 32}, "sha256": "0123456789" * 6})
    'flip no, ramp 0.0 to 0.3, sizes (least 32), sha256 0123456789…'
    >>> _pairs({"columns": [*range(1, 1201)]})[-24:]
    '49, 50, … (1,200 in all)'
    """
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items() if value not in ({}, [], (), "", None))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return f"({_pairs(value)})"
    if isinstance(value, (list, tuple)):
        is_range = len(value) == 2 and all(isinstance(one, float) for one in value)
        more = f", … ({len(value):,} in all)" if len(value) > LISTED else ""
        return (" to " if is_range else ", ").join(map(_plain, value[:LISTED])) + more
    text = str(value)
    return f"{text[:10]}…" if len(text) >= 40 and text.isalnum() else text  # a hash: the store has it whole


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
        text = vl_convert.javascript_bundle()  # type: ignore[call-arg]
        digest = f"//{hashlib.sha256(text.encode()).hexdigest()}"
        with contextlib.suppress(OSError, InputError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as part:
                part.write_text(f"{digest}\n{text}", encoding="utf-8", newline="\n")
    return Markup(text.replace("</script", "<\\/script"))
