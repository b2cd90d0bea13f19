"""The table of what else was tried, from the benchmark's JSON."""

import json

import pytest

from camri.errors import InputError
from tools.docs import Site, make_block, table_of_tries


def gap(arm, estimate, num=10):
    def interval(middle):
        return {"estimate": middle, "low": middle - 0.001, "high": middle + 0.002}

    return {"arm": arm, "num": num, "mean": interval(estimate), "alarms": interval(-2 * estimate)}


@pytest.fixture
def folder(tmp_path):
    arms = [
        {"arm": "ce", "against": []},
        {"arm": "head_ce", "against": [gap("ce", -0.0015, 9)]},
        {
            "arm": "head_camri",
            "against": [gap("ce", -0.0034), gap("head_ce", -0.002), gap("head_l2softmax", 0.0014, 7)],
        },
        {"arm": "two_sided_0.2", "against": [gap("ce", 0.0), gap("l2softmax", 0.01)]},
    ]
    found = {"about": {"class": "cat"}, "recall_range": [0.5391, 0.7694], "num_looks": 12, "arms": arms}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "prize-made.json").write_text(json.dumps(found))
    return tmp_path


def test_each_arm_stands_beside_cross_entropy_and_its_nearest_control(folder):
    table = table_of_tries(folder / "benchmarks" / "prize-made.json")
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [
        ["new cross-entropy head, frozen trunk", "−0.15 [−0.25, +0.05]", "–", "+0.30 [+0.20, +0.50]", "–", "–", "9"],
        ["new CAMRI head, frozen trunk", "−0.34 [−0.44, −0.14]", "+0.14 [+0.04, +0.34]", "+0.68 [+0.58, +0.88]",
         "−0.28 [−0.38, −0.08]", "new L2-softmax head, frozen trunk", "7"],
        ["two-sided margin, cosine, 0.2", "0.00 [−0.10, +0.20]", "+1.00 [+0.90, +1.20]",
         "0.00 [−0.10, +0.20]", "−2.00 [−2.10, −1.80]", "L2-softmax", "10"],
    ]  # fmt: skip
    assert "from 0.539 to 0.769" in table.notes[0]
    assert "not corrected for 12 arms" in table.notes[0]


def test_the_docs_make_it_of_the_results_folder(folder):
    text = make_block("tries made", Site([], folder=folder), "img")
    assert "| new CAMRI head, frozen trunk | −0.34 \\[−0.44, −0.14\\] |" in text
    with pytest.raises(InputError, match=r"prize-other\.json cannot be read"):
        make_block("tries other", Site([], folder=folder), "img")
