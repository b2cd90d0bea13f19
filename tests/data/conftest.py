"""A fresh cache for every test, a small image folder, and the real data sets where they are at hand."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import camri.data
from camri.data import DataSet

from .pictures import write_folder

Loader = Callable[..., DataSet]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that no other test has seen."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CAMRI_CACHE", str(folder))
    return folder


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder of three cats and three dogs."""
    write_folder(tmp_path / "pets", {"cat": 3, "dog": 3})
    return tmp_path / "pets"


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Loads a real data set, decoded once a session; skips where CAMRI_DATA does not name their folder."""
    if not os.environ.get("CAMRI_DATA"):
        pytest.skip("CAMRI_DATA is not set to the folder with the real data sets")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real-cache"  # one for all workers
    return lambda name, **options: camri.data.load(name, cache=folder, **options)
