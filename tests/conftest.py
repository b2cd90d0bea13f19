"""What all tests share."""

import random
import sys

import pytest


@pytest.fixture(autouse=True)
def same_chance():
    """Every test draws the same numbers, whatever ran before it."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Forget compiled code between tests: torch gives up after eight versions of one function."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
