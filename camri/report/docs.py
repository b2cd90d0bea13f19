"""Fill the blocks of Markdown pages from results: python -m camri.report.docs README.md docs/*.md

A block stands between two lines of their own, <!-- made: KEY --> and <!-- end -->; keys are those of `blocks`. Results
are read from results/, pictures written to docs/img/, both beside README.md.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from camri.errors import InputError
from camri.report.blocks import Site, draw, make_block, open_site, stamp
from camri.report.theme import Figure

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
        print("usage: python -m camri.report.docs README.md docs/*.md", file=sys.stderr)
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
