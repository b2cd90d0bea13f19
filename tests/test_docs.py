"""Every Python block of the README and the docs runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(path):
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.S | re.M):
        line = text[: match.start()].count("\n") + 2
        yield pytest.param(path, line, match.group(1), id=f"{path.name}:{line}")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(("path", "line", "code"), [block for page in PAGES for block in blocks(page)])
def test_block_runs(path, line, code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "__readme__"})


def test_the_readme_names_the_two_commands_and_ci_runs_one_of_them():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_links_inside_the_project_lead_somewhere():
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"
