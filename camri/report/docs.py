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
    site = open_site(root / RESULTS)
    found = [
        str(page.relative_to(root))
        for page in pages
        if (text := page.read_text(encoding="utf-8")) != fill(text, page, root, site)
    ]
    return [*found, *(str(path.relative_to(root)) for path in _old_pictures(site, root))]


def write(pages: Sequence[Path], root: Path) -> list[Path]:
    """The pages and pictures that were written; what is up to date is left alone."""
    site = open_site(root / RESULTS)
    written = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = fill(text, page, root, site)
        if new != text:
            page.write_text(new, encoding="utf-8")
            written.append(page)
    for path, figure in _old_pictures(site, root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw(figure))
        written.append(path)
    return written


def _old_pictures(site: Site, root: Path) -> dict[Path, Figure]:
    """Of the pictures that pages need, those that are missing or made of other numbers."""
    every = {root / IMAGES / f"{name}.png": figure for name, figure in site.pictures.items()}
    return {path: one for path, one in every.items() if not path.is_file() or stamp(one) not in path.read_bytes()}


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
