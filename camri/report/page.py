"""One self-contained page about a run: everything inline, no request leaves it."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from camri.errors import InputError
from camri.methods import METHODS, title_of
from camri.report import tables
from camri.report.answer import answer
from camri.report.charts import PAGE, draw, draw_changes, draw_gaps
from camri.report.fit_words import read_fit
from camri.report.html import Section, fill, put
from camri.report.records import FromRun
from camri.study.reader import HARDWARE, VERSIONS, OnStep, RunReader, list_environment
from camri.text import duration, quoted

PAGE_FILE = "report.html"
NO_CHOICE = "no method was chosen on validation data"
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


def write_page(folder: str | Path, out: str | Path | None = None, *, on_step: OnStep | None = None) -> Path:
    """Write the page about a run and return its path; by default report.html in the run's folder."""
    with RunReader(folder, on_step) as reading:
        text = render(reading)
    return put(text, reading.run.path.with_name(PAGE_FILE) if out is None else Path(out))


def is_stopped(reading: RunReader) -> bool:
    """Whether planned trials of a study are missing and nothing trains them."""
    progress = reading.progress()
    return not (progress.is_running or progress.is_finished or progress.total is None)


def render(reading: RunReader) -> str:
    """The page as HTML."""
    if (made := read_fit(reading.run.path.parent)) is not None:
        from camri.report.fit_page import render_fit

        return render_fit(made, reading)
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
    at_equal_recall = (
        (tables.table_of_gaps(gaps), tables.table_of_alarms(gaps), tables.table_of_thresholds(gaps)) if gaps else ()
    )
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
            records("own") and tables.table_of_own(records("own")),
            with_paper and tables.paper_table([records("paper")]),
        ),
        NO_CHOICE,
    )
    add("confusion", "Confusion", lambda: (draw("confusion", source, PAGE),))
    add("calibration", "Calibration", lambda: (None, tables.table_of_calibration(records("calibration"))), NO_CHOICE)
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
