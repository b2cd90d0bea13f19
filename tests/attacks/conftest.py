"""Attacks: killed processes, damaged content, fuzzed files, foreign code. Fixtures are those of the other tests.

Hostile input of one reader or writer is tested beside it: pickles in tests/data/test_official.py, archives, tables and
image formats in tests/data/test_bad_input.py, models and cards in tests/export/test_files.py, formulas in
tests/report/test_tables.py and tests/export/test_predict.py, the chart library in tests/report/test_page.py.
"""

from tests.engine.conftest import data, training, trials  # noqa: F401
from tests.fitting.conftest import rows, without_files  # noqa: F401
from tests.study.conftest import small  # noqa: F401
