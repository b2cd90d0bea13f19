"""LaTeX of every table: it compiles (with a TeX where one is installed), its caption is short, nothing is lost."""

import re
import shutil
import subprocess
import unicodedata

import pytest

from camri.cli import app
from camri.cli.report import TABLES as NAMES
from camri.report import latex
from camri.report.tables import FORMATS, TABLES, Cell, Table, cells, make_table, write
from camri.study.reader import RunReader
from tests.report.conftest import make_run
from tests.report.test_tables import NASTY

MOST_WORDS = 30
KNOWN = {
    "begin", "end", "centering", "small", "footnotesize", "scriptsize", "setlength", "tabcolsep", "caption", "label",
    "toprule", "midrule", "bottomrule", "multicolumn", "textbf", "textit", "shortstack", "textbackslash", "textless",
    "textgreater", "textbar", "textasciicircum", "textasciitilde", "ldots", "pm", "times", "rightarrow", "leq", "geq",
    "circ", "cdot", "ss", "o", "O", "ae", "AE", "l", "L", "i", "oe", "OE", *latex.GREEK.split(),
    *(name.capitalize() for name in latex.CAPITALS), "r", "v", "c", "k", "u", "H",
}  # fmt: skip
ENGINE = next(filter(None, map(shutil.which, ("pdflatex", "lualatex", "xelatex", "tectonic"))), None)


def cells_of(line):
    """The cells of a row; a & in a \\shortstack or escaped is none."""
    return re.split(r"(?<!\\)&", line)


def check(text):
    """Refuse what would stop LaTeX: letters it does not know, open braces or dollars, rows of another length."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert text.isascii()
    assert not re.search(r"(?<!\\)[#^~%]", code.replace("$^\\circ$", "")), "a sign that LaTeX takes for its own"
    open_ = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", code):
        if kind == "begin":
            open_.append(name)
        else:
            assert open_.pop() == name
    assert not open_
    depth = 0
    for sign in re.sub(r"\\[\\{}$]", "", code):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)\$", code)) % 2 == 0
    for math in re.findall(r"(?<!\\)\$(.*?)(?<!\\)\$", code):
        assert re.fullmatch(r"-|'|\^\\circ|_\d|\\\w+", math), math
    assert set(re.findall(r"\\([A-Za-z]+)", code.replace("\\\\", " "))) <= KNOWN
    (columns,) = re.findall(r"\\begin\{tabular\}\{(.*)\}$", code, flags=re.M)
    num = len(re.sub(r"p\{.*?\}", "p", columns))
    body = code.partition("\\toprule\n")[2].partition("\\bottomrule")[0]
    for line in body.splitlines():
        if line != "\\midrule":
            assert line.endswith(r" \\")
            widths = [int(re.match(r"\s*\\multicolumn\{(\d+)\}", cell)[1]) if "\\multicolumn" in cell else 1
                      for cell in cells_of(line)]  # fmt: skip
            assert sum(widths) == num, line
    caption = re.search(r"\\caption\{(.*)\}$", code, flags=re.M)[1]
    assert len(caption.split()) <= MOST_WORDS, caption


def compiles(text, folder):
    """Compile a page with the table."""
    page = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{text}\end{{document}}"
    (folder / "page.tex").write_text(page)
    words = (
        [ENGINE, "page.tex"]
        if "tectonic" in ENGINE
        else [ENGINE, "-halt-on-error", "-interaction=batchmode", "page.tex"]
    )
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that every table has data for."""
    import numpy as np

    def val_hits(method, seed):
        return np.random.default_rng(seed).integers(50, 100, size=(12, 4))

    folder = tmp_path_factory.mktemp("whole")
    return make_run(folder, sharpness={"camri": 1.0}, important=("column", ("row", "ring")), val_hits=val_hits)


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_sound_latex_with_a_label_and_a_short_caption(whole, name, tmp_path, capsys):
    out = tmp_path / f"{name}.tex"
    app(["report", str(whole), "--table", name, "--out", str(out)], standalone_mode=False)
    text = out.read_text()
    check(text)
    assert f"\\label{{tab:{name}}}" in text
    assert text.count("\\begin{tabular}") == 1, "one table a file"
    if ENGINE is not None:
        compiles(text, tmp_path)


def test_the_command_names_all_tables():
    assert list(NAMES) == list(TABLES)


def test_all_tables_go_into_a_folder_one_a_file_and_the_lacking_are_named(whole, gain, tmp_path, capsys):
    app(
        ["report", str(whole), "--table", "all", "--format", "latex", "--out", str(tmp_path / "t")],
        standalone_mode=False,
    )
    assert sorted(path.stem for path in (tmp_path / "t").iterdir()) == sorted(TABLES)
    assert "no " not in capsys.readouterr().err
    app(["report", str(gain), "--table", "all", "--format", "csv", "--out", str(tmp_path / "g")], standalone_mode=False)
    assert "no training: " in capsys.readouterr().err
    assert {path.suffix for path in (tmp_path / "g").iterdir()} == {".csv"}
    assert (tmp_path / "g" / "own.csv").read_text().startswith("column,important,method,setting,num_images,recall_mean")


def test_names_that_are_commands_stay_text():
    table = Table("T", ("class", "x"), ((cells(NASTY, "1"), cells("[2pt]", "*")),), (), name="n")
    text = write(table, "latex")
    check(text)
    assert "\\input" not in text
    assert "\\textbackslash{}input\\{x\\}" in text
    assert "{[}2pt{]} & {*} \\\\" in text, "behind a row's end a bracket or star would be an option"


@pytest.mark.parametrize("block", [range(0x20, 0x250), range(0x370, 0x400), range(0x2000, 0x2300), [0x4E2D, 0x1F6D1]])
def test_no_letter_stops_latex_and_no_two_names_become_one(block):
    letters = [chr(code) for code in block if unicodedata.category(chr(code))[0] in "LNPSZ"]
    check(write(Table("T", ("class",), (tuple(cells(f"a{letter}b") for letter in letters),), ()), "latex"))
    names = [latex.escape(f"a{letter}b") for letter in letters if letter.isalpha()]
    lookalikes = {"Α", "Β", "Ε", "Ζ", "Η", "Ι", "Κ", "Μ", "Ν", "Ο", "Ρ", "Τ", "Χ", "ο"}
    assert len(set(names)) == len(names) - sum(letter in lookalikes for letter in letters if letter.isalpha()) or any(
        letter in lookalikes for letter in letters
    )


def test_notes_stand_as_comments_and_wide_tables_take_both_columns():
    narrow = Table("T", ("a", "b"), ((cells("x", "y"),),), (), notes=("Δ: 5 % of “it”",), name="n", brief="Short.")
    text = write(narrow, "latex")
    assert text.startswith('% change of: 5 % of "it"\n\\begin{table}\n')
    assert "\\caption{T Short.}" in text
    wide = Table("T", tuple("abcdefgh"), ((cells(*["x" * 20] * 8),),), ())
    assert "\\begin{table*}\n\\centering\n\\scriptsize\n\\setlength{\\tabcolsep}{3pt}" in write(wide, "latex")
    check(write(wide, "latex"))


def test_a_check_that_refuses_broken_latex():
    sound = write(Table("T", ("a", "b"), ((cells("x", "y"),),), ()), "latex")
    check(sound)
    for broken in (
        sound.replace("x & y", "x & y & z"),
        sound.replace("x & y", "x_{ & y"),
        sound.replace("x & y", "Δ & y"),
        sound.replace("x & y", "50 % & y"),
        sound.replace("x & y", "\\input & y"),
        sound.replace("\\end{tabular}", ""),
        sound.replace("\\caption{T}", "\\caption{" + "w " * 31 + "}"),
    ):
        assert broken != sound
        with pytest.raises(AssertionError):
            check(broken)


def test_each_methods_own_numbers_stand_before_and_after_its_shift(gain, no_gain):
    for folder in (gain, no_gain):
        with RunReader(folder) as reading:
            from camri.report.records import FromRun

            source = FromRun(reading)
            table = make_table("own", source)
            found = {(one["column"], one["method"]): one for one in table.records}
            assert {method for _, method in found} == {"camri", "wce", "l2softmax"}, "not chosen ones too"
            verdict = source.verdicts[0]
            one = found[0, "l2softmax"]
            rows = verdict.own["l2softmax"].rows
            recalls = [row.recall["test"][1] for row in rows]
            assert one["recall_mean"] == pytest.approx(sum(recalls) / len(recalls))
            control = next(row for row in verdict.by_method.values() if row.control is not None)
            shifted = control.judgement.arms[control.control.key]
            if control.judgement.seeds == tuple(row.seed for row in rows):
                assert one["recall_shifted_mean"] == pytest.approx(float(shifted.recall.mean()), abs=0.02)
            its = control.judgement.arms["baseline shifted"].recall.mean()
            assert one["recall_of_ce_shifted_mean"] == pytest.approx(float(its))
            assert one["gain_over_shifted_ce"] == pytest.approx(one["recall_shifted_mean"] - its)
            assert one["num_images"] == int((reading.run.labels("test") == 1).sum())


@pytest.mark.parametrize("form", FORMATS)
def test_the_table_of_settings_can_be_of_validation_data_at_recalls_of_ones_own(gain, form, capsysbinary):
    words = [
        "--table",
        "settings",
        "--split",
        "val",
        "--recalls",
        "0.9",
        "--control",
        "l2softmax s=8",
        "--format",
        form,
    ]
    app(["report", str(gain), *words], standalone_mode=False)
    text = capsysbinary.readouterr().out.decode()
    if form == "csv":
        lines = text.splitlines()
        assert lines[0].startswith("column,setting,method,split,num_seeds,")
        assert ",threshold_alarms," in lines[0] + ","
        assert all(",val," in line for line in lines[1:])
        assert lines[1].startswith("column,l2softmax s=8,")
    else:
        assert "Validation data." in text
        assert "0.900 to 0.900" in text


def test_bold_cells_are_bold():
    text = write(Table("T", ("a",), (((Cell("x_1", bold=True),),),), ()), "latex")
    assert r"\textbf{x\_1} \\" in text
