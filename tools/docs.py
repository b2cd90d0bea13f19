"""Fill the blocks of Markdown pages from results: make docs, or python -m tools.docs [README.md PAGE...]

A block stands between the lines <!-- made: KEY --> and <!-- end -->. A key is a kind of `KINDS` and names of results
folders, such as "honest cifar10*". Results are read from reproduce/ and pictures written to docs/img/ beside README.md.
"""

import fnmatch
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from camri.errors import InputError, closest
from camri.report.charts import Figure, draw, export
from camri.report.results import VERDICT, Results, open_results
from camri.report.tables import (
    Table,
    paper_table,
    table_of_alarms,
    table_of_angles,
    table_of_epochs,
    table_of_gaps,
    table_of_honest,
    table_of_own,
    table_of_thresholds,
    table_of_trained,
    to_markdown,
)
from camri.study import recipes
from tools import paper_print
from tools.columns import columns_figure, columns_table, ranked_table
from tools.contours import contours

IMAGES = "docs/img"
PAGES = ("README.md", "docs/*.md", "reproduce/**/README.md")
BLOCK = re.compile(r"^<!-- made: (?P<key>[^\n]+?) -->\n(?P<body>.*?)^<!-- end -->$", flags=re.M | re.S)
OPENING = re.compile(r"^<!-- made: ", flags=re.M)


@dataclass
class Site:
    """The results that blocks are made of, their folder, and the pictures that blocks need: name -> figure."""

    results: list[Results]
    pictures: dict[str, Figure] = field(default_factory=dict)
    folder: Path = Path()

    def find(self, patterns: Sequence[str]) -> list[Results]:
        """The results whose names match any pattern, in the order of patterns and names."""
        found = {run.name: run for p in patterns for run in self.results if fnmatch.fnmatch(run.name, p)}
        return list(found.values())

    def file(self, name: str) -> Path:
        """A file by its results' name and its own, such as "variants/ranked.json"."""
        return next(self.folder.glob(f"*/{name}"), self.folder / name)


def open_site(folder: Path) -> Site:
    """All results in a folder of them, or in its folders; none where it does not exist."""
    found = {path.parent.name: path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{VERDICT}")}
    return Site([open_results(found[name]) for name in sorted(found)], folder=folder)


def folder_of_results(root: Path) -> Path:
    """The folder of all results of a repository."""
    return root / "results" if any((root / "results").glob(f"*/{VERDICT}")) else root / "reproduce"


def make_block(key: str, site: Site, images: str) -> str:
    """The Markdown of a block; `images` is the way from its page to the folder of pictures."""
    kind, *patterns = key.split()
    if kind not in KINDS:
        raise InputError(f"block {key!r} is of no known kind; {closest(kind, KINDS)}")
    parts = KINDS[kind](site, patterns)
    if not parts:
        raise InputError(f"block {key!r} has nothing to show: no results have such a name, or they lack that part")
    return "\n".join(to_markdown(part) if isinstance(part, Table) else part(images) for part in parts).rstrip() + "\n"


Picture = Callable[[str], str]
Maker = Callable[[Site, Sequence[str]], Sequence[Table | Picture]]


def picture(site: Site, name: str, figure: Figure) -> Picture:
    """Note the picture in the site; returns what makes its Markdown."""
    site.pictures[name] = figure
    return lambda images: f"![{figure.title}]({images}/{name}.png)\n\n{figure.caption}\n"


def drawn(part: str, name: str) -> Maker:
    """A block of figures, one for each results folder that has something to draw."""

    def block(site: Site, patterns: Sequence[str]) -> list[Picture]:
        shown = []
        for run in site.find(patterns):
            try:
                shown.append(picture(site, f"{name}-{run.name}", draw(part, run)))
            except InputError:  # these results have nothing to draw
                continue
        return shown

    return block


def each(part: str, make: Callable[[Any], Table | None]) -> Maker:
    """A block with a table for each results folder."""

    def block(site: Site, patterns: Sequence[str]) -> list[Table]:
        found = [(run, make(run.records(part))) for run in site.find(patterns) if run.records(part)]
        return [screened(table, run) if part == "honest" else table for run, table in found if table is not None]

    return block


def screened(table: Table, run: Results) -> Table:
    """The table with a note on what its settings were chosen from."""
    screening = run.verdict["screening"]
    if screening is None:
        return table
    counts = [
        f"{column}: " + ", ".join(f"{method} {num}" for method, num in methods.items())
        for column, methods in screening["num_settings"].items()
    ]
    note = (
        f"The settings were chosen on validation data by {screening['trials']['done']} trials of other seeds "
        f"({', '.join(map(str, screening['seeds']))}), {paper_print.describe(screening['training'])}; number of "
        f"settings compared: {'; '.join(counts)}."
    )
    return replace(table, notes=(*table.notes, note))


def paper_block(site: Site, patterns: Sequence[str]) -> list[Table]:
    """Table I of all results together; results of one data set are told apart by their names."""
    found = site.find(patterns)
    is_one_set = len({run.verdict["data"] for run in found}) < len(found)
    runs = [[{**r, "data": run.name} if is_one_set else r for r in run.records("paper")] for run in found]
    return [paper_table(runs)] if any(runs) else []


def united(make: Callable[[Sequence[Mapping[str, Any]]], Table | None]) -> Maker:
    """A block with one table of the columns of all results; of several data sets each column names its own."""

    def block(site: Site, patterns: Sequence[str]) -> list[Table]:
        found = site.find(patterns)
        names = {run.name: recipes.TITLES.get(run.verdict["data"], run.verdict["data"]) for run in found}
        several = len(set(names.values())) > 1
        records = [
            {
                **record,
                "column": f"{run.name} {record['column']}",
                "important": f"{record['important']} ({names[run.name]})" if several else record["important"],
            }
            for run in found
            for record in run.records("gaps")
        ]
        table = make(records) if records else None
        return [] if table is None else [table]

    return block


def both(*makers: Maker) -> Maker:
    """A block with the tables of several makers."""
    return lambda site, patterns: [table for make in makers for table in make(site, patterns)]


def columns_block(joint: bool) -> Maker:
    """A block with one table of methods in columns of one important class, or of several."""

    def block(site: Site, patterns: Sequence[str]) -> list[Table]:
        methods, *names = patterns
        found = site.find(names)
        return [columns_table(found, methods.split(","), joint)] if found else []

    return block


def columns_picture(site: Site, patterns: Sequence[str]) -> list[Picture]:
    name, methods, *names = patterns
    found = site.find(names)
    return [picture(site, name, columns_figure(found, methods.split(",")))] if found else []


KINDS: Mapping[str, Maker] = {
    "table1": paper_block,
    "honest": each("honest", table_of_honest),
    "trained": united(table_of_trained),
    "gaps": united(table_of_gaps),
    "alarms": both(united(table_of_alarms), united(table_of_thresholds)),
    "own": each("own", table_of_own),
    "table2": each("angles", table_of_angles),
    "figure2": lambda site, patterns: [picture(site, "figure2", contours())],
    "figure3": drawn("confusion", "figure3"),
    "figure5": drawn("penalty", "figure5"),
    "figure6": drawn("circle", "figure6"),
    "curve": drawn("curves", "curve"),
    "gapfigure": drawn("gaps", "gaps"),
    "training": drawn("training", "training"),
    "epochs": each("training", table_of_epochs),
    "columns": columns_block(joint=False),
    "jointcolumns": columns_block(joint=True),
    "columnfigure": columns_picture,
    "ranked": lambda site, patterns: [ranked_table(site.file(name)) for name in patterns],
    "status1": lambda site, patterns: [paper_print.status_of_table_one(site.find(patterns or ["*"]))],
    "beside1": lambda site, patterns: [paper_print.beside_table_one(site.find(patterns or ["*"]))],
    "compare1": lambda site, patterns: [paper_print.compare_table_one(site.find(patterns or ["*"]))],
    "compare2": lambda site, patterns: [paper_print.compare_table_two(site.find(patterns or ["*"]))],
    "headline": lambda site, patterns: [paper_print.headline(found)] if (found := site.find(patterns)) else [],
    "facts": lambda site, patterns: [paper_print.facts_table(found)] if (found := site.find(patterns)) else [],
}


def stamp(figure: Figure) -> bytes:
    """What a picture's file says of the numbers it was made of."""
    text = json.dumps([figure.caption, [dict(record) for record in figure.records]], sort_keys=True)
    return b"camri\0figure " + hashlib.sha256(text.encode()).hexdigest()[:32].encode()


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file with its stamp: a text chunk before the last. SVG takes megabytes for contours."""
    png, text = export(figure, "png"), stamp(figure)
    chunk = b"tEXt" + text
    end = len(png) - 12  # of an IEND chunk: length, name and checksum, four bytes each
    return png[:end] + struct.pack(">I", len(text)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[end:]


def fill(text: str, page: Path, root: Path, site: Site) -> str:
    """The page's text with every block made anew; the pictures it needs are noted in the site."""
    if len(OPENING.findall(text)) != len(BLOCK.findall(text)):
        raise InputError(f"{page} has a block that does not end: give each <!-- made: … --> its <!-- end -->")
    depth = len(page.relative_to(root).parts) - 1
    images = "/".join([".."] * depth + [IMAGES]) if page.parent != root / "docs" else Path(IMAGES).name

    def made(block: re.Match[str]) -> str:
        try:
            body = make_block(block["key"], site, images)
        except InputError as error:
            line = text[: block.start()].count("\n") + 1
            raise InputError(f"{page}, line {line}: {error}") from None
        return f"<!-- made: {block['key']} -->\n{body}<!-- end -->"

    return BLOCK.sub(made, text)


def outdated(pages: Sequence[Path], root: Path) -> dict[Path, str | Figure]:
    """What differs from the results, with what it should be: the text of pages, the figures of pictures."""
    site = open_site(folder_of_results(root))
    found: dict[Path, str | Figure] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text, page, root, site)) != text:
            found[page] = new
    for name, figure in site.pictures.items():
        path = root / IMAGES / f"{name}.png"
        if not path.is_file() or stamp(figure) not in path.read_bytes():
            found[path] = figure
    return found


def write(pages: Sequence[Path], root: Path) -> list[Path]:
    """Write the pages and pictures that differ from the results, and return their paths."""
    found = outdated(pages, root)
    for path, new in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(new.encode() if isinstance(new, str) else to_png(new))
    return list(found)


def main(arguments: Sequence[str]) -> int:
    """Fill the pages; returns the exit code: 0, or 2 for bad input."""
    root = Path(__file__).parents[1]
    pages = [Path(name).resolve() for name in arguments]
    pages = pages or list(dict.fromkeys(page for pattern in PAGES for page in sorted(root.glob(pattern))))
    readme = next((page for page in pages if page.name == "README.md"), None)
    if readme is None:
        print("usage: python -m tools.docs [README.md PAGE...]", file=sys.stderr)
        return 2
    try:
        for path in write(pages, readme.parent):
            print(path.relative_to(readme.parent))
    except InputError as error:
        print(f"camri: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
