"""The README and the docs hold: code runs and prints what is shown, links and command lines lead somewhere."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import camri
from camri import losses, methods
from camri.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "reproduce").glob("**/README.md"))]
# A Python block, and the text block right behind it, if there is one: what the code prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n*^```text\n(.*?)^```\n)?", flags=re.S | re.M)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.S | re.M)


def read(path):
    return path.read_text(encoding="utf-8")


def blocks(path):
    text = read(path)
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 2
        yield pytest.param(path, line, *match.groups(), id=f"{path.relative_to(ROOT)}:{line}")


@pytest.mark.parametrize(("path", "line", "code", "shown"), [block for page in PAGES for block in blocks(page)])
def test_block_runs_and_prints_what_is_shown(path, line, code, shown, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "__readme__"})
    if shown is not None:
        assert [row.rstrip() for row in printed.getvalue().splitlines()] == shown.splitlines()


def test_the_readme_names_the_two_commands_and_ci_runs_one_of_them():
    readme = read(ROOT / "README.md")
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in read(ROOT / ".ci" / "run")


def anchors(path):
    """The names GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", read(path)), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", FENCE.sub("", read(path))):
        if "://" in target:
            continue
        file = path.parent / target if target else path
        assert file.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{path.name}: {target}#{anchor}"


def test_every_page_of_the_docs_is_in_their_index():
    index = read(ROOT / "docs" / "README.md")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index, path.name


def command_lines():
    for path in PAGES:
        for language, code in FENCE.findall(read(path)):
            if language in ("sh", ""):
                lines = re.findall(r"^(?:\S+=\S+ )*camri .*$", code.replace("\\\n", " "), flags=re.M)
                yield from (pytest.param(line, id=f"{path.relative_to(ROOT)}: {line}") for line in lines)


@pytest.mark.parametrize("line", list(command_lines()))
def test_command_line_is_one_that_exists(line):
    words = shlex.split(line, comments=True)
    words = words[words.index("camri") + 1 :]
    words = words[: words.index("|")] if "|" in words else words
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{words[0]!r} is no command"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known | {"-h", "--help"}, f"{word} is no option"


def test_the_readme_shows_what_its_audit_prints(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (make_scores,) = (code for code, _ in BLOCK.findall(read(ROOT / "docs/start-own-data.md")) if "scores.csv" in code)
    exec(make_scores, {"__name__": "__readme__"})
    fences = [code for _, code in FENCE.findall(read(ROOT / "README.md"))]
    place = next(i for i, code in enumerate(fences) if "camri audit" in code)
    command = next(line for line in fences[place].splitlines() if line.startswith("camri audit"))
    result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
    printed = " ".join(result.output.split())
    for line in fences[place + 1].splitlines():
        assert line in printed


def cards():
    parts = re.split(r"^## (.*)$", read(ROOT / "docs" / "methods.md"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", methods.METHODS)
def test_method_has_a_card_with_its_module_setting_and_source(name):
    found = [text for title, text in cards().items() if f"`{name}`" in title]
    assert len(found) == 1, f"docs/methods.md needs a section titled … `{name}`"
    card = found[0]
    entry = methods.METHODS[name]
    outputs, labels = torch.tensor([[0.6, 0.3, -0.1], [0.2, 0.5, 0.1]]), torch.tensor([0, 1])
    module, given, function = re.search(r"^\*\*Code\.\*\* `(.*)`, `(.*)`, `losses\.(.*)`\.$", card, flags=re.M).groups()
    loss, chosen = eval(module, {"camri": camri}), eval(given, {"setting": methods.setting})
    assert callable(getattr(losses, function))
    assert chosen.method == name
    torch.testing.assert_close(loss(outputs, labels), chosen.criterion(3, [100, 400, 1600])(outputs, labels))
    for part in ("**Idea.**", "**Knobs.**", "**Fails when", "**Whose.**", "```math"):
        assert part in card, f"{name}: {part}"
    described = card.split("**Knobs.**")[1].split("**Fails")[0]
    for knob in entry.knobs:
        assert f"`{knob}`" in described, f"{name}: {knob}"
