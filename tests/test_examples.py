"""The examples run as they stand and do what they say: losses fall, the important class is found on unseen data."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from camri.report.records import gap_records, honest_records, paper_records
from camri.study.reader import RunReader, judge_columns

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def load_example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_is_short_and_says_how_it_is_run(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert re.search(rf'^""".*?Run it: `(python|torchrun .*) examples/{path.name}`\n.*?"""', text, flags=re.S)


def test_is_documented():
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"(../examples/{path.name})" not in page] == []


def test_plain_loop():
    found = load_example("plain_loop").main()
    assert found["val_losses"][-1] < 0.3 * found["val_losses"][0]
    assert found["recall"] > 0.85
    assert found["shifted"] >= found["recall"]
    assert found["accuracy"] > 0.95
    assert "np." not in repr(found)  # it is printed


@pytest.mark.parametrize(("name", "at_least"), [("sklearn_pipeline", 0.8), ("sklearn_prefit", 0.9)])
def test_scikit_learn(name, at_least):
    if name == "sklearn_prefit":
        pytest.importorskip("skl2onnx")
    found = load_example(name).main()
    assert found["plain"] < at_least <= found["recall"]


def test_own_method(monkeypatch, tmp_path):
    """As if installed: trained in worker processes, whichever module comes first; reported without the package."""
    package, site = ROOT / "examples" / "own_method", tmp_path / "site"
    project = (package / "pyproject.toml").read_text(encoding="utf-8")
    told = re.findall(r'^\[project.entry-points."(.*)"\]\n(\w+) = "(.*)"', project, flags=re.M)
    assert len(told) == 2
    facts = site / "own_method-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-method\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {place}\n" for group, name, place in told))
    shutil.copy(package / "own_method.py", site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    words = ["study", "run", f"{package}/study.toml", "--out", f"{tmp_path}/run", "--device", "cpu", "--workers", "2"]
    code = f"import own_method, sys; sys.argv[1:] = {words}; import camri.cli; camri.cli.main()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    with RunReader(tmp_path / "run") as reading:
        (column,) = reading.columns
        assert [(one.title, len(one.rows)) for one in reading.settings(column, "poly")] == [
            ("poly eps=1", 2),
            ("poly eps=2", 2),
        ]
        verdicts = judge_columns(reading)
        for records in (paper_records, honest_records, gap_records):
            assert [one.get("method") for one in records(reading, verdicts)].count("poly") == 1


def test_lightning_module(monkeypatch, tmp_path):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    example = load_example("lightning_module")
    options = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    first = example.main(num_epochs=1, **options)[1]
    module, last = example.main(num_epochs=8, **options)
    assert last["val_loss"] < 0.4 * first["val_loss"]
    assert last["val_recall_8"] > 0.8
    assert module.loss.step == 8 * 13  # validation batches did not move the ramp
    assert not list(tmp_path.iterdir())


def test_huggingface_trainer(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    example = load_example("huggingface_trainer")
    trainer = example.main()
    val_losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(val_losses) == 12
    assert val_losses[-1] < 0.3 * val_losses[0]
    found = trainer.predict(trainer.eval_dataset)
    right = found.predictions.argmax(axis=1) == found.label_ids
    assert right.mean() > 0.85
    assert right[found.label_ids == 8].mean() > 0.7
    assert abs(found.predictions).max() <= 1 + 1e-6
    assert trainer.loss.step == trainer.state.global_step == 12 * 32  # evaluation did not move the ramp

    batch = trainer.eval_dataset[:16]
    mean = trainer.compute_loss(trainer.model.eval(), dict(batch))
    trainer.current_gradient_accumulation_steps = 4
    share = trainer.training_step(trainer.model, dict(batch), torch.tensor(64))
    assert share < 0.5 * mean  # a quarter, plus the margin's part

    trainer.model.eval().save_pretrained(tmp_path / "model")
    images = batch["pixel_values"]
    again = example.CosineViT.from_pretrained(tmp_path / "model")
    assert torch.equal(again(images).logits, trainer.model(images).logits)
    trainer.model.vit.save_pretrained(tmp_path / "trunk")  # as a published checkpoint: without a classifier
    fresh = example.CosineViT.from_pretrained(tmp_path / "trunk", num_labels=10).classifier.weight
    assert fresh.isfinite().all()
    assert fresh.abs().max() > 0.1


class TimmLike(nn.Module):
    """What the example needs of a timm model: `create_model` with these arguments, and `get_classifier`."""

    def __init__(self, name, pretrained, in_chans):
        super().__init__()
        assert (name, pretrained) == ("resnet10t", False)
        self.body = nn.Sequential(nn.Conv2d(in_chans, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
        self.num_features, self.num_classes = 64 * 25, 1000
        self.fc = nn.Linear(self.num_features, 1000)

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


@pytest.mark.parametrize("real", [True, False], ids=["timm", "stand-in"])
def test_timm_model(real, monkeypatch):
    if real:
        try:
            import timm  # noqa: F401
        except (ImportError, RuntimeError) as error:  # a torchvision that does not fit torch breaks timm
            pytest.skip(f"timm cannot be imported: {error}")
    else:
        monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=TimmLike))
    found = load_example("timm_model").main()
    assert found["last"] < 0.3 * found["first"]
    assert found["accuracy"] > 0.85
    assert found["recall"] > 0.7


def test_ddp():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(3):  # PyTorch's own threads abort a process that has ended well, now and then under load
        done = subprocess.run([*command, ROOT / "examples" / "ddp.py"], capture_output=True, text=True, timeout=300)
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    weights = dict(re.findall(r"rank (\d): weights (\w{64})", done.stdout))
    assert set(weights) == {"0", "1"}
    assert weights["0"] == weights["1"]
    accuracy, recall = map(float, re.search(r"accuracy ([\d.]+) recall ([\d.]+)", done.stdout).groups())
    assert accuracy > 0.93
    assert recall > 0.75


def test_frozen_features():
    found = load_example("frozen_features").main()
    assert found["recall"] > 0.9
    assert found["accuracy"] > 0.95
    assert found["same"]
