"""Fill the blocks of Markdown pages from results: make docs, or python -m tools.docs README.md [PAGE...]

A block stands between the lines <!-- made: KEY --> and <!-- end -->. A key is a kind of `KINDS` and names of results
folders, such as "honest cifar10*". Results are read from results/ and pictures written to docs/img/ beside README.md.
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
from camri.methods import title_of
from camri.report.charts import Figure, draw, export
from camri.report.results import VERDICT, Results, open_results
from camri.report.tables import (
    BLANK,
    Columns,
    Table,
    paper_table,
    span,
    table_of_alarms,
    table_of_angles,
    table_of_epochs,
    table_of_gaps,
    table_of_honest,
    table_of_trained,
    tabulate,
    to_markdown,
)
from tools import paper_print
from tools.columns import columns_figure, columns_table, ranked_table
from tools.contours import contours

RESULTS, IMAGES = "results", "docs/img"
BLOCK = re.compile(r"^<!-- made: (?P<key>[^\n]+?) -->\n(?P<body>.*?)^<!-- end -->$", flags=re.M | re.S)
OPENING = re.compile(r"^<!-- made: ", flags=re.M)
COMMANDS = {  # what makes the results whose name begins so
    "cifar10": "paper.cifar10",
    "gtsrb": "paper.gtsrb",
    "awa2": "paper.awa2",
    "mnist": "paper.mnist_2d",
    "digits": "digits",
}
ARMS = {  # of results/benchmarks/prize-*.json, that are no methods
    "hardest": "margin against the strongest rival",
    "head_ce": "new cross-entropy head, frozen trunk",
    "head_l2softmax": "new L2-softmax head, frozen trunk",
    "head_camri": "new CAMRI head, frozen trunk",
    "head_wce": "new WCE head, frozen trunk",
    "learned_final": "margin learned under the final accuracy",
    "learned_epoch": "margin learned under each epoch’s accuracy",
    "sam": "sharpness-aware steps",
    "sam_important": "sharpness-aware steps, uphill for the class",
    "ensemble_ce": "five cross-entropy models",
    "ensemble_l2softmax": "five L2-softmax models",
    "ensemble_camri": "five CAMRI models",
    "distilled_ce": "cross-entropy, distilled from five",
    "distilled_l2softmax": "L2-softmax, distilled from five",
    "distilled_camri": "CAMRI, distilled from five",
}


@dataclass
class Site:
    """The results that blocks are made of, their folder, and the pictures that blocks need: name -> figure."""

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
    parts = KINDS[kind](site, patterns)
    if not parts:
        study = next((study for name, study in COMMANDS.items() for p in patterns if p.startswith(name)), None)
        command = (
            "" if study is None else f": `camri study run {study} --out runs/{study.split('.')[-1].split('_')[0]}`"
        )
        return f"*Not run yet*{command}\n"
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
        for one in site.find(patterns):
            try:
                shown.append(picture(site, f"{name}-{one.name}", draw(part, one)))
            except InputError:  # these results have nothing to draw
                continue
        return shown

    return block


def each(part: str, make: Callable[[Any], Table | None]) -> Maker:
    """A block with a table for each results folder."""

    def block(site: Site, patterns: Sequence[str]) -> list[Table]:
        found = [(one, make(one.records(part))) for one in site.find(patterns) if one.records(part)]
        return [screened(table, one) if part == "honest" else table for one, table in found if table is not None]

    return block


def screened(table: Table, one: Results) -> Table:
    """The table with a note on what its settings were chosen from."""
    screening = one.verdict["screening"]
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
    is_one_set = len({one.verdict["data"] for one in found}) < len(found)
    runs = [[{**r, "data": one.name} if is_one_set else r for r in one.records("paper")] for one in found]
    return [paper_table(runs)] if any(runs) else []


def united(make: Callable[[Sequence[Mapping[str, Any]]], Table | None]) -> Maker:
    """A block with one table of the columns of all results; of several data sets each column names its own."""

    def block(site: Site, patterns: Sequence[str]) -> list[Table]:
        found = site.find(patterns)
        names = {one.name: paper_print.DATA_TITLES.get(one.verdict["data"], one.verdict["data"]) for one in found}
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

    return block


def contour_block(site: Site, patterns: Sequence[str]) -> list[Picture]:
    # Computed and not measured: the last digits depend on the machine, so its numbers are not in the stamp.
    return [picture(site, "figure2", replace(contours(), records=()))]


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


def ranked_block(site: Site, patterns: Sequence[str]) -> list[Table]:
    return [ranked_table(site.folder / name) for name in patterns]


def tries_block(site: Site, patterns: Sequence[str]) -> list[Table]:
    return [table_of_tries(site.folder / "benchmarks" / f"prize-{name}.json") for name in patterns]


def table_of_tries(path: Path) -> Table:
    """Accuracy and false alarms at equal recall of every arm of a prize-*.json, vs cross-entropy and its control."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None

    def gap(figure: str, is_control: bool) -> Callable[[Any], str]:
        def show(arm: Any) -> str:
            other = control(arm) if is_control else arm["against"][0]
            if figure not in other:  # no control, or no seed that both have
                return BLANK
            return span(*(other[figure][end] for end in ("estimate", "low", "high")), decimals=2)

        return show

    def control(arm: Any) -> dict[str, Any]:
        """The nearest one, which is the last: the same without a margin."""
        return arm["against"][-1] if len(arm["against"]) > 1 else {}

    columns: Columns = {
        "arm": lambda arm: arm_title(arm["arm"]),
        "Δ accuracy vs CE": gap("mean", is_control=False),
        "Δ accuracy vs control": gap("mean", is_control=True),
        "Δ false alarms vs CE": gap("alarms", is_control=False),
        "Δ false alarms vs control": gap("alarms", is_control=True),
        "control": lambda arm: arm_title(control(arm)["arm"]) if control(arm) else BLANK,
        "trials": lambda arm: str((control(arm) or arm["against"][0])["num"]),
    }
    low, high = found["recall_range"]
    return tabulate(
        [arm for arm in found["arms"] if arm["against"]],
        f"Accuracy and false alarms at equal recall of “{found['about']['class']}”, vs cross-entropy (CE).",
        columns,
        f"Test data; every model is shifted to the same recalls, mean over recalls from {low:.3f} to {high:.3f}. A "
        "false alarm is an input of another class that is predicted as this one, in % of all inputs. Δ: percentage "
        "points, with 95 % confidence intervals over seeds and test data, not corrected for"
        f" {found['num_looks']} arms.",
        words=("arm", "control"),
    )


def arm_title(arm: str) -> str:
    """
    >>> arm_title("hardest_0.2"), arm_title("sam"), arm_title("camri_0.1")
    ('margin against the strongest rival, 0.2', 'sharpness-aware steps', 'CAMRI, 0.1')
    """
    name, _, size = arm.rpartition("_")
    if size[:1].isdigit():
        return f"{arm_title(name)}, {size}"
    return ARMS.get(arm) or title_of(arm)


KINDS: Mapping[str, Maker] = {
    "table1": paper_block,
    "honest": each("honest", table_of_honest),
    "trained": united(table_of_trained),
    "gaps": united(table_of_gaps),
    "alarms": united(table_of_alarms),
    "table2": each("angles", table_of_angles),
    "figure2": contour_block,
    "figure3": drawn("confusion", "figure3"),
    "figure5": drawn("penalty", "figure5"),
    "figure6": drawn("circle", "figure6"),
    "curve": drawn("curves", "curve"),
    "gapfigure": drawn("gaps", "gaps"),
    "training": drawn("training", "training"),
    "epochs": each("training", table_of_epochs),
    "tries": tries_block,
    "columns": columns_block(joint=False),
    "jointcolumns": columns_block(joint=True),
    "columnfigure": columns_picture,
    "ranked": ranked_block,
    "compare1": lambda site, patterns: [paper_print.compare_table_one(site.find(patterns or ["*"]))],
    "compare2": lambda site, patterns: [paper_print.compare_table_two(site.find(patterns or ["*"]))],
    "headline": lambda site, patterns: [paper_print.headline(found)] if (found := site.find(patterns)) else [],
    "facts": lambda site, patterns: [paper_print.facts_table(found)] if (found := site.find(patterns)) else [],
}


def stamp(figure: Figure) -> bytes:
    """What a picture's file says of the numbers it was made of."""
    text = json.dumps([figure.caption, [dict(one) for one in figure.records]], sort_keys=True)
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
    site = open_site(root / RESULTS)
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
    pages = [Path(name).resolve() for name in arguments]
    readme = next((page for page in pages if page.name == "README.md"), None)
    if readme is None:
        print("usage: python -m tools.docs README.md [PAGE...]", file=sys.stderr)
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
