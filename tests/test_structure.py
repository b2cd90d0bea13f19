"""The house keeps its shape: directions of imports, public names, a command line that starts without torch."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import camri

ROOT = Path(camri.__file__).parent

# Each module may import what stands on its own floor or below. A package is named by its first part.
FLOORS = [
    {"errors", "imports", "text"},
    {"names", "files"},
    {"tables"},
    {"decision"},
    {"checks", "penalties"},
    {"backbones"},
    {"augment", "losses", "models"},
    {"modules", "heads", "selection", "data"},
    {"methods"},
    {"engine"},
    {"study"},
    {"report"},
    {"export"},
    {"fitting"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
# On one floor, modules do not import each other.


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "__init__":
            yield pytest.param(path, parts[0], id="/".join(parts))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "camri":
                yield from (f"camri.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize(("path", "name"), list(modules()))
def test_imports_point_one_way(path, name):
    assert name in FLOOR, f"{name} has no floor: add it to FLOORS where it belongs"
    for module in imported(path):
        parts = module.split(".")
        if parts[0] == "camri" and len(parts) > 1 and parts[1] != name and not parts[1].startswith("__"):
            assert FLOOR[parts[1]] < FLOOR[name], f"{name} may not import {parts[1]}"


def test_a_cluster_compares_all_code_below_the_studies():
    from camri.study.ray_worker import APART

    assert set(APART) == {name for name, floor in FLOOR.items() if floor >= FLOOR["study"]}


@pytest.mark.parametrize("package", ["report"])
def test_the_report_needs_no_torch(package):
    for path in (ROOT / package).rglob("*.py"):
        assert not [module for module in imported(path) if module.split(".")[0] == "torch"], path


def test_public_names():
    assert len(camri.__all__) <= 18
    assert dir(camri) == sorted(camri.__all__)
    for name in camri.__all__:
        assert getattr(camri, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'CamriLos'"):
        _ = camri.CamriLos


@pytest.mark.parametrize("name", ["data", "engine", "export", "fitting"])
def test_packages_have_the_names_that_they_list(name):
    package = importlib.import_module(f"camri.{name}")
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, one) for one in package.__all__)
    with pytest.raises(AttributeError, match=f"'camri.{name}' has no attribute 'lod'"):
        _ = package.lod


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["audit", "--help"],
        ["check", "--help"],
        ["compare", "--help"],
        ["data", "--help"],
        ["demo", "--help"],
        ["fit", "--help"],
        ["export", "--help"],
        ["predict", "--help"],
        ["report", "--help"],
        ["study", "--help"],
        ["study", "run", "--help"],
    ],
)
def test_help_and_version_start_without_torch(arguments):
    script = (
        "import sys\n"
        "from camri.cli import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'pyarrow', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert camri.__version__ in done.stdout if arguments == ["--version"] else "Usage" in done.stdout


def test_reports_and_audits_start_without_what_is_slow_to_import():
    script = (
        "import sys\nimport camri.decision, camri.report.words, camri.report.page\n"
        "assert not {'torch', 'scipy.stats', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
