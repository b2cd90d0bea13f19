"""The calibration table: the judged arms' own reliability, computed again from the run's scores."""

import numpy as np
import pytest

from camri.decision.counts import reliability
from camri.report.records import calibration_records
from camri.report.tables import table_of_calibration
from camri.study.reader import RunReader, judge_columns


def test_the_baselines_error_is_that_of_its_scores(gain):
    with RunReader(gain) as reading:
        verdicts = judge_columns(reading)
        table = table_of_calibration(calibration_records(reading, verdicts))
        column = reading.columns[0]
        scores = [reading.run.scores(row, "test", important=column.indices) for row in reading.run.rows(method="ce")]
    confidence = np.concatenate([one.confidence() for one in scores])
    correct = np.concatenate([one.correct() for one in scores])
    found = {record["model"]: record for record in table.records if record["important"] == column.title}
    assert list(found) == ["cross-entropy", "cross-entropy + shift", "chosen + shift"]
    assert found["cross-entropy"]["ece"] == pytest.approx(reliability(confidence, correct).ece)
    assert found["cross-entropy"]["accuracy"] == pytest.approx(correct.mean())
    assert table.rows[0][1].text == f"{found['cross-entropy']['ece']:.4f}"


def test_without_a_choice_there_is_no_table(no_validation):
    with RunReader(no_validation) as reading:
        assert table_of_calibration(calibration_records(reading, judge_columns(reading))) is None
