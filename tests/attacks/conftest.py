"""The small data sets, trials and studies of the other tests."""

from tests.engine.conftest import data, training, trials  # noqa: F401
from tests.fitting.conftest import rows, without_files  # noqa: F401
from tests.study.conftest import small  # noqa: F401
