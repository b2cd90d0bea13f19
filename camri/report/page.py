"""The words and symbols of a page, explained on it: what a reader needs who has not read the docs.

One self-contained page about a run: everything inline, no request leaves it.
"""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

import camri
from camri.data.cache import cache_folder, write_atomically
from camri.errors import InputError
from camri.files import replacing
from camri.methods import METHODS, title_of
from camri.report import charts
from camri.report.answer import answer
from camri.report.charts import table_of_epochs
from camri.report.equal_recall import table_of_alarms, table_of_gaps, table_of_trained
from camri.report.figures import draw
from camri.report.results import FromRun
from camri.report.table import Table
from camri.report.tables import calibration_table, paper_table, steps_table, table_of_angles, table_of_honest
from camri.report.theme import PAGE, Figure, specification, style_of_methods
from camri.study.reader import HARDWARE, VERSIONS, RunReader, list_environment
from camri.study.verdict import ColumnVerdict
from camri.text import Noun, duration, quoted

WORDS = (
    ("recall", "of the {many} of the important class, the share that is found; of several such classes the mean"),
    ("accuracy", "of all {many}, the share that gets its right class"),
    ("false alarm", "one of the {many} of no important class that is taken for one"),
    ("precision", "of the {many} that are taken for the important class, the share that is of it"),
    ("point", "one of a hundred: from 0.70 to 0.71 is one point"),
    ("hits / n", "important {many} that were found, of how many; summed over trials, which see the same {many}"),
    ("trial, seed", "a trial is one trained model; its seed is the number that its random draws start from"),
    (
        "setting",
        "a method with values for its knobs, such as a margin of 4π/64 and a scale of 8; with commas, one a class",
    ),
    ("shift", "a constant added to the important class’s score before the largest score wins; it needs no training"),
    ("validation, test", "{many} that choices are made on, and {many} that judge them: no choice has seen these"),
    ("[low, high]", "a 95 % interval: 95 of 100 such intervals hold the true value. With 0 in it, it may be chance"),
    ("±", "one standard deviation between trials: what another training may do"),
    ("p (Holm)", "how often chance alone would show as much, corrected for how many were looked at; below 0.05 counts"),
    ("CE, ce", "cross-entropy, the usual training that treats every class alike: the baseline"),
)


def explain(methods: Iterable[str], noun: Noun) -> list[tuple[str, str]]:
    """Terms with their meaning: the general ones, then the knobs of the methods.

    >>> told = explain(["wce", "ce"], Noun("row", "rows"))
    >>> told[1]
    ('accuracy', 'of all rows, the share that gets its right class')
    >>> told[-1]
    ('WCE (wce)', 'w: weight of the important class')
    """
    general = [(name, text.format(many=noun.many)) for name, text in WORDS]
    knobs = {name: METHODS[name].knobs for name in methods if name in METHODS and METHODS[name].knobs}
    explained = {
        name: "; ".join(f"{knob}: {entry.about}" for knob, entry in own.items()) for name, own in knobs.items()
    }
    return [*general, *((f"{title_of(name)} ({name})", text) for name, text in explained.items())]


PAGE_FILE = "report.html"
LISTED = 50  # of a list, such as the names of a table's columns
NO_METHOD = (
    "Not shown: no setting but cross-entropy was picked on validation data, or there were none to pick on, so no "
    "method took anything from other classes."
)
NO_GAPS = "Not shown: no method has trials of the seeds that cross-entropy has."
NO_EPOCHS = "Not shown: no trial noted its epochs."
ONE_PENALTY = "Not shown: neither WCE nor CAMRI was trained with two penalties."


@dataclass(frozen=True, eq=False)
class Section:
    """A heading with a figure, tables, or a sentence that says why there is none."""

    name: str
    label: str
    title: str
    figure: Figure | None = None
    tables: tuple[Table, ...] = ()
    text: str = ""

    def specifications(self) -> list[dict[str, Any]]:
        return [] if self.figure is None else [specification(panel, PAGE) for panel in self.figure.panels]


def write_page(
    folder: str | Path, out: str | Path | None = None, *, on_step: Callable[[str, float], None] | None = None
) -> Path:
    """The path of the page written about a run: report.html in its folder unless told. Never half a page."""
    with RunReader(folder, on_step) as reading:
        text = render(reading)
    return put(text, Path(out) if out is not None else reading.run.path.with_name(PAGE_FILE))


def put(text: str, path: Path) -> Path:
    """The path, with the text in it: whole or not at all."""
    with replacing(path, "; choose another file with --out") as part:
        part.write_text(text, encoding="utf-8")
    return path


def render(reading: RunReader) -> str:
    """The page as HTML."""
    source = FromRun(reading)
    found = sections(source)
    reading.begin("writing the page")
    return fill(
        "page.html.j2",
        found,
        title=f"{reading.name}: {', '.join(quoted(column.title) for column in reading.columns) or 'important classes'}",
        answer=answer(reading, source.verdicts),
        cautions=reading.cautions(),
        progress=reading.progress(),
        failed=reading.failed,
        num_outcomes=len(reading.rows),
        words=explain(reading.methods(), reading.noun),
        facts=facts(reading),
        studies=[json.dumps(study, indent=1, ensure_ascii=False) for study in reading.run.studies],
    )


def fill(template: str, found: Sequence[Section], **values: Any) -> str:
    """A page of the sections with their charts, style and scripts inline; everything in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("camri.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts_by_id = {
        f"{section.name}-{place}": one for section in found for place, one in enumerate(section.specifications())
    }
    return environment.get_template(template).render(
        **values,
        sections=found,
        version=camri.__version__,
        # "<" never stands in the JSON, so nothing in it can end the script element.
        charts=Markup(json.dumps(charts_by_id).replace("<", "\\u003c")),
        style=style_of_methods() + _asset("page.css"),
        script=_asset("page.js"),
        bundle=_bundle(),
    )


def sections(source: FromRun) -> list[Section]:
    """What the page shows, in its order; a part that cannot be drawn says why."""
    reading, verdicts = source.reading, source.verdicts
    gaps = cache(lambda: source.records("gaps"))
    made: list[tuple[str, str, Callable[[], Section]]] = [
        ("curve", "Curve", lambda: _curve(source, gaps())),
        ("equal-recall", "Equal recall", lambda: _equal_recall(gaps())),
        ("table", "Table", lambda: _tables(source)),
        ("penalty", "Penalty", lambda: _of_records(source, "penalty", why_not=ONE_PENALTY)),
        ("confusion", "Confusion", lambda: _of_records(source, "confusion")),
        ("who-paid", "Who paid", lambda: _drawn(charts.who_paid(reading, verdicts, PAGE), NO_METHOD)),
        ("calibration", "Calibration", lambda: _calibration(verdicts)),
        ("angles", "Angles", lambda: _angles(source)),
        ("training", "Training", lambda: _training(source)),
        ("cost", "Cost", lambda: _drawn(charts.cost(reading, PAGE))),
    ]
    steps = steps_table(reading)
    if steps is not None:
        made.insert(0, ("steps", "Steps", lambda: Section("", "", "What each step gave", tables=(steps,))))
    if not any(one.settings for one in verdicts):
        return []
    found = []
    for name, label, make in made:
        try:
            section = make()
        except InputError as error:
            section = Section(name, label, label, text=f"Not shown: {error}.")
        found.append(replace(section, name=name, label=label, title=section.title or label))
    return found


def _drawn(figure: Figure | None, why_not: str = "") -> Section:
    if figure is None:
        return Section("", "", "", text=why_not)
    return Section("", "", figure.title, figure)


def _of_records(source: FromRun, part: str, why_not: str = "") -> Section:
    return _drawn(draw(part, source.records(part), PAGE), why_not)


def _curve(source: FromRun, gaps: Sequence[Mapping[str, Any]]) -> Section:
    return replace(_of_records(source, "curves"), tables=(table_of_trained(gaps),) if gaps else ())


def _equal_recall(gaps: Sequence[Mapping[str, Any]]) -> Section:
    made = (table_of_gaps(gaps), table_of_alarms(gaps)) if gaps else ()
    tables = tuple(table for table in made if table is not None)
    return replace(_drawn(draw("gaps", gaps, PAGE), NO_GAPS), tables=tables)


def _tables(source: FromRun) -> Section:
    honest, paper = source.records("honest"), paper_table([source.records("paper")])
    why_not = (
        "No method but cross-entropy has ended yet, so there is nothing to choose."
        if source.reading.has_validation
        else "The study held out no validation data, so there is no honest choice to show."
    )
    shown = (table_of_honest(honest), paper) if honest else (paper,)
    return Section("", "", "The table: every method and its controls", tables=shown, text="" if honest else why_not)


def _calibration(verdicts: Sequence[ColumnVerdict]) -> Section:
    table = calibration_table(verdicts)
    text = "" if table else "Nothing was chosen on validation data, so there is nothing to compare."
    return Section("", "", "Calibration: can its probabilities be used?", tables=(table,) if table else (), text=text)


def _angles(source: FromRun) -> Section:
    section = _drawn(charts.angle_strips(source.reading, source.verdicts, PAGE))
    return replace(section, tables=(table_of_angles(source.records("angles")),))


def _training(source: FromRun) -> Section:
    section, table = _of_records(source, "training", NO_EPOCHS), table_of_epochs(source.records("training"))
    return replace(section, tables=(table,) if table else ())


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
        is_done = reading.progress().is_finished
        again = "runs/again" if is_done else shlex.quote(str(reading.folder))
        found.append(("to repeat it" if is_done else "to go on with it", f"camri study run study.json --out {again}"))
        found.append(("where study.json is", "the study’s JSON at the foot of this page"))
    found.append(("this page", f"camri report {shlex.quote(str(reading.folder))}"))
    return found


def _pairs(values: Mapping[str, Any]) -> str:
    """Names and values on one line, in words; what is empty is left out.

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
    """Vega, Vega-Lite and Vega-Embed as one script. It is kept: to make it takes 2 s, of 3 that a small page takes."""
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    try:
        text = kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = vl_convert.javascript_bundle()  # type: ignore[call-arg]
        with contextlib.suppress(OSError):
            write_atomically(kept, lambda stream: stream.write(text.encode()))
    return Markup(text.replace("</script", "<\\/script"))
