"""The tables of reproduce/two-sided: rebuilt from packed scores, and packed from runs as its studies describe them."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from camri.decision.scores import condense
from camri.modules import TwoSidedMarginLoss
from camri.study.study_file import find_study

HERE = Path(__file__).parents[1] / "reproduce" / "two-sided"
SEVERAL = ("classes", "half", "double", "authors")


def script(name):
    spec = importlib.util.spec_from_file_location(f"two_sided_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables():
    return script("tables")


@pytest.fixture(scope="module")
def figures():
    return json.loads((HERE / "figures.json").read_text(encoding="utf-8"))


def test_a_run_is_judged_as_the_stored_figures_say(tables, figures):
    found = tables.judge(tables.read("half"), tables.COMBINED)
    (stored,) = (one for one in figures["runs"] if one["run"] == "half")
    for name in ("alarms", "pooled", "accuracy"):
        assert found[name] == pytest.approx(stored[name], rel=1e-4)


def test_the_page_shows_the_stored_figures(tables, figures):
    assert tables.show(figures) == (HERE / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(HERE.glob("*.toml")), ids=lambda path: path.stem)
def test_a_study_file_is_a_study_with_the_settings_that_were_packed(path, tables):
    study = find_study(str(path))
    if path.stem in ("short", "classes-margin"):
        return  # not packed by itself
    run = tables.read(path.stem)
    assert {one["seed"] for one in run.records if one["setting"] == tables.COMBINED} <= set(study.seeds)
    assert run.facts["training"]["epochs"] == study.training.epochs
    assert run.facts["training"]["model_options"] == dict(study.training.model_options)


def test_packed_predictions_use_the_bias_that_the_loss_settles_on():
    import torch

    pack = script("pack")
    drawn = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=drawn)
    logits = torch.randn(300, 3, generator=drawn) + 2.0 * torch.nn.functional.one_hot(labels, 3)
    logits[:, 1] -= 1.5
    scores = condense(logits.numpy(), labels.numpy(), (1,))
    shift = pack.settled(scores)
    assert shift == pytest.approx(TwoSidedMarginLoss(3, {1: 1.0}).settle(logits, labels)[1].item(), abs=1e-3)
    predicted = (logits + torch.tensor([0.0, shift, 0.0])).argmax(dim=1).numpy()
    wanted = np.where(predicted == 1, 2, (predicted == labels.numpy()) | ((predicted != 1) & scores.rest_right))
    assert (pack.predictions(scores, shift) != wanted).sum() <= 1  # leads are half precision
