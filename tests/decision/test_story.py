"""The story from audit to check runs as an example, and its GitHub Actions as a script."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import camri
from tests.decision.three_cases import CLASSES, made, write

ROOT = Path(__file__).parents[2]


def test_the_example_finds_the_better_model_and_the_broken_decision(capsys):
    spec = importlib.util.spec_from_file_location("decision_story", ROOT / "examples" / "decision_story.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() == {"compare": "better", "february": "holds", "march": "broken"}
    _, compared, *months = capsys.readouterr().out.splitlines()
    shown = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("compare.md", "check.md")}
    assert compared.replace("new is", "new.csv is") in shown["compare.md"]
    assert all(line.partition(": ")[2] in shown["check.md"] for line in months)


def steps():
    """The commands of the workflow's steps, without the installation."""
    yaml = pytest.importorskip("yaml")
    stored = yaml.safe_load((ROOT / "examples" / "ci" / "decision.yml").read_text(encoding="utf-8"))
    commands = [one["run"] for one in stored["jobs"]["decision"]["steps"] if "run" in one]
    assert commands[0].startswith("pip install")
    return commands[1:]


def save(path, labels, scores):
    path.write_text(re.sub(r"(?m)^(id|row \d+),", "", write(path, labels, scores).read_text()))


@pytest.mark.parametrize(
    ("new", "moved", "num", "codes"),
    [(2.6, 0.0, 2000, (0, 0)), (1.0, 0.0, 2000, (1, 0)), (2.6, -2.0, 2000, (0, 1)), (2.6, 0.0, 40, (0, 0))],
)
def test_the_workflow_runs_as_a_script(tmp_path, new, moved, num, codes):
    scores = tmp_path / "scores"
    scores.mkdir()
    labels, (present, changed), _ = made(2000, 2.0, new)
    save(scores / "present.csv", labels, present)
    save(scores / "new.csv", labels, changed)
    month, (fresh,), _ = made(num, 2.0, seed=4)
    fresh[month == 1, 1] += moved
    save(scores / "this_month.csv", month, fresh)
    camri.audit(present, labels, "melanoma", classes=CLASSES, at_least=0.9).save(tmp_path / "decision.json")
    shim = tmp_path / "camri"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m camri "$@"\n')
    shim.chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = [
        subprocess.run(["bash", "-e", "-c", step], cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True)
        for step in steps()
    ]
    assert [one.returncode for one in done] == list(codes), [one.stdout + one.stderr for one in done]
    if num == 40:
        assert "::warning::" in done[1].stdout
