"""Class names that Markdown, HTML or a terminal would act on are shown as they are."""

import dataclasses

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from camri.cli import app
from camri.decision import Shift
from camri.export import load, save
from camri.export.card import card_with_rule
from camri.methods import setting
from camri.report.tables import Table, to_markdown
from camri.text import quoted
from tests.export.conftest import made_trained

NAMES = (
    "![x](http://evil.example/a.png)", "[click](http://evil.example)", "<img src=http://evil.example/a>", "a|b",
    "**bold**_x_", "`code`", "![x][1]", "<http://evil.example>", "\\", "![y](http://evil.example)" * 9,
)  # fmt: skip
ACTS = {"image", "link_open", "html_inline", "html_block", "code_inline", "strong_open", "em_open"}


def kinds(text):
    """The kinds of Markdown elements in the text, and the number of cells in each row of its tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    rows = [0]
    for token in tokens:
        if token.type == "tr_open":
            rows.append(0)
        rows[-1] += token.type in ("td_open", "th_open")
    return {token.type for token in (*tokens, *inner)} & ACTS, set(rows[1:])


@pytest.mark.parametrize("name", NAMES)
def test_names_in_a_card_are_text(tmp_path, name):
    trained = made_trained("mlp", setting("camri", 1, m=0.2, s=8.0), (3,), options={"hidden": (4,)})
    trained = dataclasses.replace(trained, classes=("limit", name, "yield"), rule=Shift({1: 2.0}), important=(1,))
    card = (
        f"# A model that must not miss {quoted(name)}\n\n| class | recall |\n| --- | --- |\n| {quoted(name)} | 0.9 |\n"
    )
    path = save(trained, tmp_path / "model", card=card, onnx=False)
    again = save(
        trained, tmp_path / "again", card=card_with_rule(load(path), (path / "README.md").read_text()), onnx=False
    )
    for folder in (path, again):
        assert kinds((folder / "README.md").read_text(encoding="utf-8")) == (set(), {2})
    rendered = MarkdownIt("commonmark").render((path / "README.md").read_text(encoding="utf-8"))
    shown = quoted(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert shown in rendered.replace("&quot;", '"')


@pytest.mark.parametrize("name", NAMES)
def test_names_in_a_table_are_text(name):
    text = to_markdown(Table(name, ("a", name), (), (), notes=(name,)))
    assert kinds(text)[0] <= {"strong_open"}
    assert kinds(text)[1] == {2}


FIT = pytest.param("fit --important LABEL --trials 1", marks=pytest.mark.long)


@pytest.mark.parametrize("command", ["data show", "fit --important cat", FIT])
def test_a_label_of_two_million_letters_is_not_printed_whole(tmp_path, command):
    label = "x" * 2_000_000
    (tmp_path / "t.csv").write_text("a,label\n" + "".join(f"{i},{'dog' if i % 2 else label}\n" for i in range(20)))
    words = [label if word == "LABEL" else word for word in command.split()]
    out = ["--out", str(tmp_path / "out")] if "fit" in words else []
    done = CliRunner().invoke(app, [*words, str(tmp_path / "t.csv"), *out])
    assert len(done.output) < 5_000
    assert len(str(done.exception)) <= 2_100


def test_a_prediction_s_long_name_is_not_printed_whole(tmp_path):
    trained = made_trained("mlp", setting("ce"), (1,), options={"hidden": (4,)})
    trained = dataclasses.replace(trained, classes=("x" * 100_000, "y" * 100_000, "z" * 100_000))
    path = save(trained, tmp_path / "model", card="", onnx=False)
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 3)
    done = CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "t.csv")])
    assert done.exit_code == 0
    assert len(done.output) < 5_000
