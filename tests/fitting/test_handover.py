"""The end of a fit by value: its command, how many trials there were, and the model that is handed over."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from camri.data import DataSet, Split
from camri.decision import AtLeast, LeastCost, MostRecall, Shift
from camri.export import load, save
from camri.fitting import handover
from camri.fitting.finals import _figures, doubts
from camri.fitting.handover import can_draw
from camri.fitting.request import command
from camri.fitting.saved import score, take_model
from camri.methods import setting
from camri.models import build
from camri.study.spec import Column
from tests.fitting.test_request import ask


@pytest.fixture(scope="module")
def request_of_digits():
    return ask("digits", "9", num_trials=30)


def test_the_command_has_every_word_that_matters_and_none_that_is_usual(request_of_digits):
    asked = request_of_digits
    assert command(asked) == "camri fit digits --important 9 --trials 30 --model small --out runs/again"
    timed = replace(asked, num_trials=None, budget_s=90.0, goal=MostRecall(0.01), seed=3, epochs=5)
    assert command(timed) == (
        "camri fit digits --important 9 --budget 90s --max-accuracy-drop 0.01 --model small --epochs 5 --seed 3 "
        "--out runs/again"
    )
    assert "--at-least 0.9 " in command(replace(asked, goal=AtLeast(0.9, 0.95)))
    costs = replace(asked, goal=LeastCost(np.eye(10)))
    assert "--cost-matrix COSTS " in command(costs)
    assert "--cost-matrix 'my costs.csv' " in command(replace(costs, costs="my costs.csv"))
    several = replace(asked, source="my signs/", important=Column.of({"stop": 1.0, "no entry": 0.5}))
    words = shlex.split(command(several))
    assert words[3:9] == ["--important", "stop", "--important", "no entry", "--strength", "no entry=0.5"]
    assert command(asked, is_finished=False).endswith(f"--out {asked.out}")


def test_the_command_has_the_options_of_the_data_and_the_first_weights(request_of_digits):
    options = {"roi": True, "skip_bad": False, "size": 32, "path_column": None, "label_column": "a kind"}
    initial = (("initial", "/w/first.safetensors"), ("initial_sha256", "0" * 64), ("width", 4))
    asked = replace(
        request_of_digits,
        data_options=tuple(options.items()),
        plain=request_of_digits.plain.with_(model_options=initial),
    )
    assert command(asked) == (
        "camri fit digits --important 9 --roi --size 32 --label-column 'a kind' --trials 30 --model small "
        "--weights /w/first.safetensors --out runs/again"
    )
    for verify, word in ((True, ""), (False, "--no-verify ")):
        asked = replace(request_of_digits, data_options=(("verify", verify),))
        assert command(asked) == f"camri fit digits --important 9 {word}--trials 30 --model small --out runs/again"


def test_few_rows_of_an_important_class_and_few_groups_of_them_make_figures_doubtful():
    def part(rare, common, groups=None):
        labels = torch.tensor([0] * rare + [1] * common)
        return Split(torch.zeros(len(labels), 2), labels, None if groups is None else torch.tensor(groups))

    def made(num_val, num_test, groups=None):
        splits = {"train": part(9, 9), "val": part(num_val, 30), "test": part(num_test, 30, groups)}
        return DataSet("made", ("rare", "common"), splits, "made")

    def found(data, important):
        return [(one.code, dict(one.values)) for one in doubts(data, important)]

    assert found(made(20, 20), [0, 1]) == []
    assert found(made(19, 20), [0, 1]) == [("few_rows", {"name": "rare", "num_val": 19, "num_test": 20})]
    assert found(made(20, 1), [0]) == [("few_rows", {"name": "rare", "num_val": 20, "num_test": 1})]
    assert found(made(1, 1), [1]) == []
    assert found(made(20, 20, range(50)), [0]) == []
    assert found(made(20, 20, [row // 2 for row in range(50)]), [0]) == []
    few = found(made(20, 20, [row // 3 for row in range(50)]), [0, 1])
    assert few == [("few_groups_to_judge", {"name": "rare", "num": 20, "num_groups": 7})]


def test_a_page_is_drawn_where_all_it_needs_is_there(monkeypatch):
    for needed, is_there in ((("json", "shlex"), True), (("json", "no_such_module"), False)):
        monkeypatch.setattr(handover, "PAGE_NEEDS", needed)
        assert can_draw() is is_there


def test_the_model_is_measured_as_it_is_saved_and_needs_no_file_that_it_started_from(tmp_path):
    first = tmp_path / "first.safetensors"
    trunk = build("small", (1, 8, 8), torch.Generator().manual_seed(1))
    save_file({name: tensor.numpy() for name, tensor in trunk.state_dict().items()}, first)
    asked = ask("digits", "9", tmp_path / "out", weights=first, epochs=1)
    trained, bare = take_model(asked, asked.plain, (9,), setting("ce"), 2, Shift({9: 0.5}))
    handed, _ = score(asked, bare, 2)
    first.unlink()  # it is not needed any more
    model = load(save(trained, tmp_path / "model", card="", onnx=False))
    assert model.trained.training.model_options == ()
    assert (model.trained.rule, model.trained.seed) == (Shift({9: 0.5}), 2)
    test = asked.data.splits["test"]
    right = np.array(model.predict(test.inputs)) == np.array(asked.data.classes)[test.labels]
    own = test.labels.numpy() == 9
    found = _figures("after", handed, Shift({9: 0.5}), MostRecall(), asked.data.classes, None)
    assert (found.recalls[0].hits, found.recalls[0].num) == (right[own].sum(), own.sum())
    assert (found.accuracy.hits, found.accuracy.num, handed.seed) == (right.sum(), len(test), 2)


def test_a_fit_imports_the_report_only_to_write_and_needs_no_drawing():
    lines = [
        (path.name, line.strip())
        for path in Path(handover.__file__).parent.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "camri.report" in line
    ]
    assert lines == [
        ("handover.py", "from camri.report.fit_card import write_card"),
        ("handover.py", "from camri.report.page import write_page as write"),
    ]
    code = f"import sys, camri.fitting.job; assert not {set(handover.PAGE_NEEDS)} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
