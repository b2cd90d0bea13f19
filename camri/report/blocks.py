"""Parts of the docs that are made from results folders: a key such as "honest cifar10" -> Markdown and pictures."""

import fnmatch
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from camri.errors import InputError, closest
from camri.report import compare, figures, printed
from camri.report.angles import table_of_angles
from camri.report.contours import contours
from camri.report.epochs import table_of_epochs
from camri.report.gaps import table_of_alarms, table_of_gaps, table_of_trained
from camri.report.records import VERDICT, Results, open_results
from camri.report.table import Table, to_markdown
from camri.report.tables import paper_table, table_of_honest
from camri.report.theme import Figure, export
from camri.report.tries import table_of_tries

# What would make results whose name begins so.
COMMANDS = {
    "cifar10": "camri study run paper.cifar10 --out runs/cifar10",
    "gtsrb": "camri study run paper.gtsrb --out runs/gtsrb",
    "awa2": "camri study run paper.awa2 --out runs/awa2",
    "mnist": "camri study run paper.mnist_2d --out runs/mnist",
    "digits": "camri study run digits --out runs/digits",
}


@dataclass
class Site:
    """The results that blocks are made of, the folder they are in, and the pictures they need: name -> figure."""

    results: list[Results]
    pictures: dict[str, Figure] = field(default_factory=dict)
    folder: Path = Path()

    def find(self, patterns: Sequence[str]) -> list[Results]:
        """The results whose names match any pattern, in the order of patterns and names."""
        found = {one.name: one for p in patterns for one in self.results if fnmatch.fnmatch(one.name, p)}
        return list(found.values())


def open_site(folder: Path) -> Site:
    """All results in a folder of them; none where it does not exist."""
    return Site([open_results(path.parent) for path in sorted(folder.glob(f"*/{VERDICT}"))], folder=folder)


def make_block(key: str, site: Site, images: str) -> str:
    """The Markdown of a block; `images` is the way from its page to the folder of pictures."""
    kind, *patterns = key.split()
    if kind not in KINDS:
        raise InputError(f"block {key!r} is of no known kind; {closest(kind, KINDS)}")
    return KINDS[kind](site, patterns, images).rstrip("\n") + "\n"


def not_run(patterns: Sequence[str]) -> str:
    """What stands where results are still to be made."""
    command = next((line for name, line in COMMANDS.items() for p in patterns if p.startswith(name)), None)
    return f"*Not run yet*{'' if command is None else f': `{command}`'}\n"


def stamp(figure: Figure) -> bytes:
    """What a picture's file says of the numbers it was made of."""
    text = json.dumps([figure.caption, [dict(one) for one in figure.records]], sort_keys=True)
    return b"camri\0figure " + hashlib.sha256(text.encode()).hexdigest()[:32].encode()


def draw(figure: Figure) -> bytes:
    """The figure as a PNG file with its stamp: a text chunk before the last. SVG takes megabytes for contours."""
    picture, text = export(figure, "png"), stamp(figure)
    chunk = b"tEXt" + text
    end = len(picture) - 12  # of an IEND chunk: length, name and checksum, four bytes each
    return picture[:end] + struct.pack(">I", len(text)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + picture[end:]


Maker = Callable[[Site, Sequence[str], str], str]


def _tables(make: Callable[[list[Results]], list[Table]]) -> Maker:
    def block(site: Site, patterns: Sequence[str], images: str) -> str:
        tables = make(site.find(patterns))
        return "\n".join(map(to_markdown, tables)) if tables else not_run(patterns)

    return block


def _paper(found: list[Results]) -> list[Table]:
    several = len({one.verdict["data"] for one in found}) < len(found)  # of one data set: told apart by their names
    runs = [[{**r, "data": one.name} if several else r for r in one.records("paper")] for one in found]
    return [paper_table(runs)] if any(runs) else []


def _honest(found: list[Results]) -> list[Table]:
    return [_screened(table_of_honest(one.records("honest")), one) for one in found if one.records("honest")]


def _united(found: list[Results], make: Callable[[Sequence[Mapping[str, Any]]], Table | None]) -> list[Table]:
    """One table of the columns of all of them; of several data sets each column names its own."""
    names = {one.name: printed.DATA_TITLES.get(one.verdict["data"], one.verdict["data"]) for one in found}
    several = len(set(names.values())) > 1
    records = [
        {
            **record,
            "column": f"{one.name} {record['column']}",
            "important": f"{record['important']} ({names[one.name]})" if several else record["important"],
        }
        for one in found
        for record in one.records("gaps")
    ]
    table = make(records) if records else None
    return [] if table is None else [table]


def _screened(table: Table, one: Results) -> Table:
    """The table with a note on what its settings were chosen from."""
    screening = one.verdict["screening"]
    if screening is None:
        return table
    counts = [
        f"{column}: " + ", ".join(f"{method} {num}" for method, num in methods.items())
        for column, methods in screening["num_settings"].items()
    ]
    note = (
        f"Settings were chosen before, on validation data, by {screening['trials']['done']} trials of other seeds "
        f"({', '.join(map(str, screening['seeds']))}), {compare.describe(screening['training'])}; from so many "
        f"settings: {'; '.join(counts)}."
    )
    return replace(table, notes=(*table.notes, note))


def _drawn(part: str, name: str) -> Maker:
    def block(site: Site, patterns: Sequence[str], images: str) -> str:
        shown = []
        for one in site.find(patterns):
            try:
                figure = figures.draw(part, one.records(part))
            except InputError:  # these results have nothing to draw it of
                continue
            if figure is not None:
                shown.append(_picture(site, f"{name}-{one.name}", figure, images))
        return "\n".join(shown) if shown else not_run(patterns)

    return block


def _contours(site: Site, patterns: Sequence[str], images: str) -> str:
    # Computed and not measured: the last digits are the machine's, so its numbers are not in the stamp.
    return _picture(site, "figure2", replace(contours(), records=()), images)


def _picture(site: Site, name: str, figure: Figure, images: str) -> str:
    site.pictures[name] = figure
    return f"![{figure.title}]({images}/{name}.png)\n\n{figure.caption}\n"


def _answer(site: Site, patterns: Sequence[str], images: str) -> str:
    found = site.find(patterns)
    lines = [f"**{one.name}**: {one.verdict['answer']['sentence']}\n" for one in found]
    return "\n".join(lines) if lines else not_run(patterns)


def _tries(site: Site, patterns: Sequence[str], images: str) -> str:
    found = [site.folder / "benchmarks" / f"prize-{name}.json" for name in patterns]
    return "\n".join(to_markdown(table_of_tries(path)) for path in found)


def _whole(make: Callable[[Sequence[Results]], Table]) -> Maker:
    """A block about all results, or those that match."""
    return lambda site, patterns, images: to_markdown(make(site.find(patterns or ["*"])))


KINDS: Mapping[str, Maker] = {
    "table1": _tables(_paper),
    "honest": _tables(_honest),
    "trained": _tables(lambda found: _united(found, table_of_trained)),
    "gaps": _tables(lambda found: _united(found, table_of_gaps)),
    "alarms": _tables(lambda found: _united(found, table_of_alarms)),
    "table2": _tables(lambda found: [table_of_angles(one.records("angles")) for one in found]),
    "figure2": _contours,
    "figure3": _drawn("confusion", "figure3"),
    "figure5": _drawn("penalty", "figure5"),
    "figure6": _drawn("circle", "figure6"),
    "curve": _drawn("curves", "curve"),
    "gapfigure": _drawn("gaps", "gaps"),
    "training": _drawn("training", "training"),
    "epochs": _tables(lambda found: [t for one in found if (t := table_of_epochs(one.records("training")))]),
    "answer": _answer,
    "tries": _tries,
    "compare1": _whole(compare.compare_table_one),
    "compare2": _whole(compare.compare_table_two),
    "headline": _tables(lambda found: [compare.headline(found)] if found else []),
    "facts": _tables(lambda found: [compare.facts_table(found)] if found else []),
}
