"""What all tests share."""

import os
import random
import subprocess
import sys

import hypothesis
import pytest

hypothesis.settings.register_profile("same chance", derandomize=True)
hypothesis.settings.load_profile("same chance")

# What a terminal or a CI service sets, and what changes the commands' output: tests read it as a pipe gets it.
for _name in ("COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)


EXPENSIVE = ("fitted", "example_run", "undisturbed", "cifar10", "gtsrb")  # fixtures that take seconds


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Tests that share an expensive fixture run in one process, which makes it once (--dist loadgroup)."""
    for item in items:
        for name in set(EXPENSIVE).intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(name))
    yield
    for item in items if config.getoption("loadgroup", False) else ():
        groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):  # pytest 9.2 ignores what pytest-xdist 3.8 does to this end
            item._id = type(item._id).parse(item.nodeid + suffix)


@pytest.fixture(autouse=True)
def same_chance():
    """Seed every test, so that it draws the same numbers in any order."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Forget compiled code between tests: torch gives up after eight versions of one function."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def started(monkeypatch):
    """The processes that pools of the engine start, in order."""
    found, real = [], subprocess.Popen

    def start(command, **options):
        process = real(command, **options)
        if any("camri.engine.cpu import work" in word for word in command):
            found.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    return found
