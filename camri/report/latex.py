"""A table as LaTeX for a paper: booktabs, a label, a short caption, plain ASCII. The notes stand in comments."""

import textwrap
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camri.report.tables import Cell, Table

HEADER_WIDTH = 14  # of a column's title in letters: longer ones have several lines
TEXT_WIDTH = 34  # of a column of words: longer texts have several lines
ONE_COLUMN = 62  # letters that fit into one column of a two-column page in small type; wider tables take both
SIZES = {115: r"\small", 130: r"\footnotesize"}  # letters that fit into both columns
SMALLEST = "\\scriptsize\n\\setlength{\\tabcolsep}{3pt}"
COMMENT_WIDTH = 110
SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "{*}",  # behind \\ they are an option
    "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$", "→": r"$\rightarrow$", "≤": r"$\leq$",
    "≥": r"$\geq$", "°": r"$^\circ$", "·": r"$\cdot$", "…": r"\ldots{}", "’": "'", "‘": "`", "“": "``", "”": "''",
    "\u202f": r"\,", "\xa0": "~", "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}",
    "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "œ": r"\oe{}", "Œ": r"\OE{}", "′": "$'$", "₁": "$_1$", "₂": "$_2$",
}  # fmt: skip
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r ", "\u030c": "v ",
    "\u0327": "c ", "\u0328": "k ", "\u0304": "=", "\u0306": "u ", "\u0307": ".", "\u030b": "H ",
}  # fmt: skip
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega"
)
CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}
PLAIN = str.maketrans({"±": "+-", "−": "-", "–": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "×": "x", "→": "->",
                       "Δ": "change of", "π": "pi", "≤": "<=", "≥": ">="})  # fmt: skip


def escape(text: str) -> str:
    """The text as LaTeX that every engine compiles; letters that have no form in plain LaTeX as their code.

    >>> print(escape("50 % of A_b, Δ −0.1 [é, θ, 中]"))
    50 \\% of A\\_b, $\\Delta$ $-$0.1 {[}\\'{e}, $\\theta$, U+4E2D{]}
    """
    return "".join(map(_escape_letter, " ".join(text.split())))


def _escape_letter(letter: str) -> str:
    if letter in SIGNS:
        return SIGNS[letter]
    if letter.isascii():
        return letter if letter.isprintable() else " "
    name = unicodedata.name(letter, "").lower()
    greek = name.removeprefix("greek small letter ").removeprefix("greek capital letter ").replace("lamda", "lambda")
    if name.startswith("greek") and greek in GREEK.split():
        is_capital = "capital" in name
        if greek == "omicron" or (is_capital and greek not in CAPITALS):
            return letter_of(greek, is_capital)
        return rf"$\{greek.capitalize() if is_capital else greek}$"
    base, *marks = list(unicodedata.normalize("NFD", letter))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        return rf"\{ACCENTS[marks[0]].strip()}{{{base}}}"
    return f"U+{ord(letter):04X}"


def letter_of(greek: str, is_capital: bool) -> str:
    """The Latin letter that looks as the Greek one, which LaTeX has no sign for."""
    latin = {"omicron": "o", "alpha": "A", "beta": "B", "epsilon": "E", "zeta": "Z", "eta": "H", "iota": "I"}
    latin |= {"kappa": "K", "mu": "M", "nu": "N", "rho": "P", "tau": "T", "chi": "X"}
    return latin[greek].upper() if is_capital else latin[greek]


def to_latex(table: "Table") -> str:
    """A booktabs table (needs the package booktabs only), with a rule between groups of rows.

    The notes stand above it as comments, so that a caption stays short and nothing said is lost.
    """
    plain = [note.translate(PLAIN).encode("ascii", "replace").decode() for note in table.notes]
    lines = [f"% {line}" for note in plain for line in textwrap.wrap(note, COMMENT_WIDTH)]
    # Over both columns of a page where it is too wide for one; on a page of one column that is the same.
    width = _width(table)
    floated = "table" if width <= ONE_COLUMN else "table*"
    size = next((size for most, size in SIZES.items() if width <= most), SMALLEST)
    caption = " ".join(part for part in (table.caption, table.brief) if part)
    lines += [rf"\begin{{{floated}}}", r"\centering", size, rf"\caption{{{escape(caption)}}}"]
    lines += [rf"\label{{tab:{table.name}}}"] if table.name else []
    lines += [rf"\begin{{tabular}}{{{_columns(table)}}}", r"\toprule"]
    if table.spans:
        above = (rf"\multicolumn{{{num}}}{{c}}{{{escape(text)}}}" for text, num in table.spans)
        lines.append(" & ".join(["", *above]) + r" \\")
    lines.append(" & ".join(map(_title, table.header)) + r" \\")
    for title, group in table.titled():
        lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\textit{{{escape(title)}}}}} \\")
        lines += [" & ".join(map(_cell, row)) + r" \\" for row in group]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\end{{{floated}}}"]) + "\n"


def _cell(cell: "Cell") -> str:
    return rf"\textbf{{{escape(cell.text)}}}" if cell.bold else escape(cell.text)


def _lines(title: str) -> list[str]:
    return textwrap.wrap(title, HEADER_WIDTH, break_long_words=False) or [""]


def _title(title: str) -> str:
    """A column's title; a long one in several lines."""
    lines = [escape(line) for line in _lines(title)]
    stacked = r"\\".join(lines)
    return stacked if len(lines) == 1 else rf"\shortstack{{{stacked}}}"


def _widths(table: "Table") -> list[int]:
    """The longest text of each column in letters; a column of words is cut where its lines are broken."""
    texts = [[max(map(len, _lines(name)))] for name in table.header]
    for row in table.rows:
        for place, cell in enumerate(row):
            texts[place].append(len(cell.text))
    return [
        min(max(own), TEXT_WIDTH) if name in table.words else max(own)
        for name, own in zip(table.header, texts, strict=True)
    ]


def _width(table: "Table") -> int:
    return sum(_widths(table)) + 2 * len(table.header)


def _columns(table: "Table") -> str:
    """The tabular's columns: texts on the left, numbers on the right, long texts in lines of their own width."""
    longest = [max((len(row[place].text) for row in table.rows), default=0) for place in range(len(table.header))]
    kinds = []
    for place, (name, most) in enumerate(zip(table.header, longest, strict=True)):
        is_text = place == 0 or name in table.words
        kinds.append("p{4.2cm}" if is_text and place and most > TEXT_WIDTH else "l" if is_text else "r")
    return "".join(kinds)
