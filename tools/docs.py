"""Parts of the docs that are made from results folders: a key such as "honest cifar10" -> Markdown and pictures.

Fill the blocks of Markdown pages from results: make docs, or
python -m tools.docs README.md docs/*.md results/README.md results/*/README.md

A block stands between two lines of their own, <!-- made: KEY --> and <!-- end -->; keys are those of `blocks`. Results
are read from results/, pictures written to docs/img/, both beside README.md.

What else was tried to train for a class: a table of results/benchmarks/prize-*.json.
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
from camri.report import figures
from camri.report.charts import table_of_epochs
from camri.report.equal_recall import table_of_alarms, table_of_gaps, table_of_trained
from camri.report.results import VERDICT, Results, open_results
from camri.report.table import BLANK, Cell, Table, cells, span, to_markdown
from camri.report.tables import paper_table, table_of_angles, table_of_honest
from camri.report.theme import Figure, export
from tools import paper_print
from tools.contours import contours

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
        f"({', '.join(map(str, screening['seeds']))}), {paper_print.describe(screening['training'])}; from so many "
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
    "compare1": _whole(paper_print.compare_table_one),
    "compare2": _whole(paper_print.compare_table_two),
    "headline": _tables(lambda found: [paper_print.headline(found)] if found else []),
    "facts": _tables(lambda found: [paper_print.facts_table(found)] if found else []),
}


RESULTS, IMAGES = "results", "docs/img"
BLOCK = re.compile(r"^<!-- made: (?P<key>[^\n]+?) -->\n(?P<body>.*?)^<!-- end -->$", flags=re.M | re.S)
OPENING = re.compile(r"^<!-- made: ", flags=re.M)


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


def stale(pages: Sequence[Path], root: Path) -> list[str]:
    """What differs from the results: pages, and pictures that are missing or made of other numbers."""
    return [str(path.relative_to(root)) for path in _outdated(pages, root)]


def write(pages: Sequence[Path], root: Path) -> list[Path]:
    """The pages and pictures that were written; what is up to date is left alone."""
    found = _outdated(pages, root)
    for path, new in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(new.encode() if isinstance(new, str) else draw(new))
    return list(found)


def _outdated(pages: Sequence[Path], root: Path) -> dict[Path, str | Figure]:
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


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, or 2 for bad input."""
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


TITLES = {  # of arms that are no methods
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


def table_of_tries(path: Path) -> Table:
    """Accuracy and false alarms at equal recall of every arm, against cross-entropy and its nearest control."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    low, high = found["recall_range"]
    return Table(
        caption=f"At equal recall of “{found['about']['class']}”: accuracy, and false alarms (the fewer the better).",
        header=(
            "what",
            "accuracy, over cross-entropy’s",
            "accuracy, over its control’s",
            "false alarms, over cross-entropy’s",
            "false alarms, over its control’s",
            "the control",
            "trials",
        ),
        groups=(tuple(_row(arm) for arm in found["arms"] if arm["against"]),),
        records=tuple(found["arms"]),
        notes=(
            f"Test data; every model is shifted until it reaches a recall, mean over recalls from {low:.3f} to "
            f"{high:.3f}. A false alarm: of another class, and taken for this one; in a hundred of all. Points of a "
            "hundred with 95 % intervals over seeds and test data, not corrected for "
            f"{found['num_looks']} arms that are made for the class.",
        ),
        words=("what", "the control"),
    )


def _row(arm: Mapping[str, Any]) -> tuple[Cell, ...]:
    over_ce, *others = arm["against"]
    own: Mapping[str, Any] = others[-1] if others else {}  # the last is the nearest: the same without a margin
    gaps = [_gap(one, figure) for figure in ("mean", "alarms") for one in (over_ce, own)]
    return cells(_title(arm["arm"]), *gaps, _title(own["arm"]) if own else BLANK, str((own or over_ce)["num"]))


def _gap(one: Mapping[str, Any], figure: str) -> str:
    if figure not in one:  # no control, no seed that both have, or written before alarms were counted
        return BLANK
    found = one[figure]
    return span(found["estimate"], found["low"], found["high"], decimals=2)


def _title(arm: str) -> str:
    """
    >>> _title("hardest_0.2"), _title("sam"), _title("two_sided_0.1")
    ('margin against the strongest rival, 0.2', 'sharpness-aware steps', 'margin on both sides, 0.1')
    """
    name, _, size = arm.rpartition("_")
    if size[:1].isdigit():
        return f"{_title(name)}, {size}"
    return TITLES.get(arm) or title_of(arm)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
