"""The benchmarks run and say what they must; their timings are nobody's test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_losses_benchmark_runs_and_reports_every_contender(tmp_path):
    command = [sys.executable, "benchmarks/losses.py", "--quick", "--device", "cpu", "--json", tmp_path / "out.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["benchmark"] == "losses"
    assert {"date", "commit", "versions", "hardware", "threads", "settings", "skipped"} <= result.keys()
    assert result["versions"]["torch"]
    assert result["threads"] == 1

    contenders = {"camri", "camri-arcface", "pml", "arccos", "one-hot"}
    cases = {(row["batch"], row["classes"]) for row in result["rows"]}
    assert len(result["rows"]) == len(cases) * len(contenders)
    for row in result["rows"]:
        assert row["contender"] in contenders
        assert 0 < row["fastest_s"] <= row["median_s"]
        assert row["repeats"] >= 3
        assert row["peak_bytes"] >= 4 * row["batch"] * row["classes"]  # the cosines at least
        assert row["contender"] in done.stdout
    for ratio in result["ratios"]:
        assert ratio["contender"].startswith("camri")
        assert ratio["best_other"] in contenders
        assert ratio["time_ratio"] > 0
        assert ratio["memory_ratio"] > 0
    assert len(result["ratios"]) == 2 * len(cases)
