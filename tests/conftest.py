"""What all tests share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Forget compiled code between tests: torch gives up after eight versions of one function."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
