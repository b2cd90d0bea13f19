"""The hours of the whole paper follow from the measured figures, and the docs show those hours."""

import json
from pathlib import Path

import pytest

from benchmarks.cluster import Measured, makespan_s, paper_s, table
from camri.study import recipes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measured():
    return Measured.from_benchmark(json.loads((ROOT / "reproduce/speed/engine-h200.json").read_text("utf-8")))


def test_figures_come_from_the_benchmark(measured):
    assert (round(measured.images_per_s), round(measured.set_up_s, 2), round(measured.start_s, 1)) == (
        111808,
        2.34,
        45.1,
    )
    assert measured.rate(32) == measured.images_per_s
    assert measured.rate(48) == pytest.approx(49_693, rel=1e-4)


def test_one_gpu_by_hand(measured):
    images = 8_340 * 18 * (50_000 // 64) * 64
    by_hand = 45.050794 + 1_043 * 2.336919 + images / 111808.32082
    assert paper_s(measured, 1, "fast")["cifar10"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("schedule", ["fast", "paper"])
def test_more_gpus_share_the_work_and_no_more(measured, schedule):
    one, eight, many = (sum(paper_s(measured, gpus, schedule).values()) for gpus in (1, 8, 64))
    assert one / 8 < eight < 1.02 * one / 8
    assert one / 64 < many < 1.10 * one / 64


def test_a_trial_too_many_costs_a_round_of_smaller_packs():
    plain = Measured(1.0, set_up_s=2.0, start_s=0.0)
    assert makespan_s(64, 10.0, plain, gpus=8) == 82.0
    assert makespan_s(65, 10.0, plain, gpus=8) == 2 * 2.0 + 9 * 10.0  # not two rounds of eight
    assert makespan_s(1, 10.0, plain, gpus=8) == 12.0


def test_the_docs_show_this_table(measured):
    page = (ROOT / "docs/cluster.md").read_text("utf-8")
    assert table(measured) in page
    assert [line.split(" | ")[:2] for line in table(measured).splitlines()[2:]] == [
        [f"| {schedule}", gpus] for schedule in recipes.SCHEDULES for gpus in ("1", "8", "64")
    ]
    assert "--figures reproduce/speed/engine-h200.json" in page
