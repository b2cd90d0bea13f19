"""What is refused before anything is trained or written, and the defaults."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from camri.data import Split, load
from camri.decision import read_costs
from camri.engine import Training
from camri.errors import InputError
from camri.fitting import fit
from camri.fitting.request import Journal, make_request, prepare
from camri.fitting.trainer import change, changes_of, describe_training
from camri.models import build


def ask(data="digits", important="9", out=None, **changes):
    if "budget" not in changes:
        changes = {"num_trials": 20, **changes}
    return make_request(data, important, out, **{"device": "cpu", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"important": "nin"}, "important='nin' is not a class"),
        ({"important": ["9", "1O"]}, "important='1O' is not a class; did you mean"),
        (
            {"important": "8+9"},
            "important='8\\+9' is not a class; several are given one by one: --important 8 --important 9",
        ),
        ({"important": ["9", "9"]}, "none twice"),
        ({"data_options": {"label": "x"}}, "data has no option 'label'; choices: size"),
        ({"strengths": {"9": 0}}, "strengths=9=0 is not allowed"),
        ({"strengths": {"8": 0.5}}, "strengths='8' is not an important class; choices: 9"),
        ({"important": list("0123456789")}, "all 10 classes are important"),
        ({"model": "smal"}, "model='smal' is not allowed; did you mean 'small'"),
        ({"data": "no-such-folder"}, "'no-such-folder' is neither a path nor a known data set"),
        ({"budget": 60.0, "num_trials": 20}, "not both"),
        ({"budget": -1.0}, "'-1.0' is not a duration"),
        ({"budget": "soon"}, "'soon' is not a duration"),
        ({"num_trials": 0}, "at least 1"),
        ({"at_least": 1.0}, "at_least=1.0 is not allowed"),
        ({"at_least": 0.9, "max_accuracy_drop": 0.01}, "give one goal, not max_accuracy_drop and at_least"),
        ({"cost_matrix": [[0, 1], [1, 0]]}, r"cost_matrix has shape \(2, 2\); give 10 × 10"),
        ({"cost_matrix": "no-such-file.csv"}, "cost_matrix=no-such-file.csv: it cannot be read"),
        ({"max_accuracy_drop": 1.0}, "max_accuracy_drop=1.0 is not allowed"),
        ({"seed": -1}, "seed=-1 is not allowed"),
        ({"seed": 1.5}, "seed=1.5 is not allowed"),
        ({"device": "tpu"}, "device='tpu' is not known"),
        ({"weights": "no-such-file"}, "weights=no-such-file cannot be read"),
        ({"epochs": 0}, "epochs=0 is not allowed"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        ask(**changes)


def test_an_unreadable_table_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("label,x\na,1\nb,oops\n")
    with pytest.raises(InputError, match="'x'"):
        ask(data=path, important="a")


def test_a_class_that_cannot_be_judged_is_refused():
    digits = prepare("digits").data
    splits = dict(digits.splits)
    keep = (splits["val"].labels != 9).nonzero().flatten().numpy()
    splits["val"] = splits["val"].rows(keep)
    from dataclasses import replace

    with pytest.raises(InputError, match="'9' has no images in the val split"):
        ask(data=replace(digits, splits=splits))


def test_nothing_is_written_when_something_is_refused(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError):
        fit("digits", "nin", out, num_trials=20)
    assert not out.exists()
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds other files \(thesis.tex, …\) and no fit"):
        fit("digits", "9", strange, num_trials=20, device="cpu")
    assert [path.name for path in strange.iterdir()] == ["thesis.tex"]


def test_a_fit_resumes_where_a_kill_left_only_its_first_folder(tmp_path):
    (tmp_path / "trainings").mkdir()
    assert Journal.open(tmp_path, {"seed": 0}).values == {"request": {"seed": 0}, "spent_s": 0.0}


def test_data_that_changed_in_between_are_refused_in_words(tmp_path):
    Journal.open(tmp_path, {"data": "735f1c", "budget_s": None}).set()
    with pytest.raises(InputError, match="its data are others, or have changed"):
        Journal.open(tmp_path, {"data": "e8ee7d", "budget_s": None})


def test_a_folder_of_another_fit_is_refused_by_what_differs(fitted):
    with pytest.raises(InputError, match=r"another fit \(important {'9': 1.0}, not {'8': 1.0}\)"):
        fit("digits", "8", fitted.out, num_trials=30, epochs=2, device="cpu")
    with pytest.raises(InputError, match=r"goal {.*0.0}, not {.*0.01}"):
        fit("digits", "9", fitted.out, num_trials=30, epochs=2, device="cpu", max_accuracy_drop=0.01)


def test_without_the_reports_extra_there_is_a_model_and_no_page(monkeypatch, tmp_path, in_this_process):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else real(name))
    monkeypatch.setattr("camri.export.onnx_file.is_installed", lambda: False)
    found = fit("digits", "9", tmp_path / "out", num_trials=16, epochs=1, device="cpu")
    assert found.page_path is None
    assert not (tmp_path / "out" / "report.html").exists()
    assert (found.model_path / "config.json").exists()


def test_defaults():
    found = ask(important=None, num_trials=None)
    assert found.important.classes == ("worst",)
    assert found.resolved() is None
    assert (found.budget_s, found.num_trials) == (600.0, None)
    assert (found.plain.model, found.plain.epochs) == ("small", 60)
    assert {name: len(split) for name, split in found.data.splits.items()} == {"train": 1006, "val": 252, "test": 539}
    assert str(found.out) == "runs/digits-worst"
    assert ask(important=[8, "9"], strengths={"8": 2, "9": 0.5}).resolved() == ((8, 2), (9, 0.5))
    assert [ask(budget=given).budget_s for given in ("2m", 90)] == [120.0, 90.0]


def test_costs_are_read_by_the_names_of_the_classes(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("true,b,a\na,1,0\nb,0,9\n", encoding="utf-8")
    assert read_costs(path, ["a", "b"]).tolist() == [[0, 1], [9, 0]]
    for text, problem in (
        ("true,b\na,1\nb,0\n", "costs.csv: class 'a' is missing: it has no column; add one, named like it$"),
        ("true,a,b\na,0,1\n", "class 'b' is missing: it has no row; add one"),
        ("true,a,b\na,0,1\nb,9,0\na,0,5\n", "class 'a' has 2 rows; keep one"),
        ("true,a,b,a\na,0,1,2\nb,9,0,2\n", "class 'a' has 2 columns; keep one"),
        ("true,a,b\na,0,1\nb,9,0\nB,9,0\n", "row 'B' is no class; choices: a, b; rename or remove it"),
        ("true,a,b,cost\na,0,1,2\nb,9,0,2\n", "column 'cost' is no class; choices: a, b; rename"),
        ("label,a,b\na,.9,.1\nb,.3,.7\nb,.2,.8\n", "class 'b' has 2 rows; keep one"),
        ("true,a,b\na,0,1,2\nb,1,0\n", "is no table of costs .lines differ in length"),
        ("true,a,b\na,0,x\nb,1,0\n", "is no table of costs"),
        ("", "is no table of costs"),
        ("true,a,b\na,0,inf\nb,1,0\n", "finite numbers"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=problem) as end:
            read_costs(path, ["a", "b"])
        assert end.value.argument == "cost_matrix"


def test_other_trainings_widen_the_network_move_images_and_mirror_photographs_only():
    digits = ask()
    assert list(changes_of(digits.data, digits.plain)) == ["moved", "wide", "wider", "smooth"]
    moved = change(digits.data, digits.plain, ["moved"])
    assert (moved.translate_px, moved.flip, moved.label_smoothing) == (1, False, 0.0)
    whole = change(digits.data, digits.plain, ["moved", "wide", "wider", "smooth"])
    assert (whole.translate_px, whole.flip, whole.label_smoothing, whole.average) == (1, False, 0.1, 0.999)
    assert dict(whole.model_options) == {"width": 64}
    assert describe_training(whole) == "width 64, random moves of up to 1 px, label smoothing 0.1, averaged weights"
    assert describe_training(digits.plain) == "plain"
    assert changes_of(replace(digits.data, name="cifar10"), digits.plain)["moved"]["flip"]
    assert "flip" not in changes_of(replace(digits.data, name="signs"), digits.plain)["moved"]
    rows = {name: Split(torch.zeros(len(one), 3), one.labels) for name, one in digits.data.splits.items()}
    table = replace(digits.data, splits=rows)
    begun = Training(model="features", model_options=(("dropout", 0.1), ("initial", "weights.safetensors")))
    more = change(table, begun, ["dropout"])
    assert dict(more.model_options) == {"dropout": 0.3, "initial": "weights.safetensors"}
    assert list(changes_of(table, more)) == ["dropout", "smooth"]
    assert describe_training(more) == "dropout 0.3"
    own = digits.plain.with_(model_options=(("width", 8),))
    assert list(changes_of(digits.data, own)) == ["moved", "smooth"]  # a width that was asked for stays


def test_first_values_come_from_a_file(tmp_path):
    trunk = build("small", (1, 8, 8), torch.Generator().manual_seed(1))
    weights = {name: tensor.numpy() for name, tensor in trunk.state_dict().items()}
    path = tmp_path / "first.safetensors"
    whole = {f"trunk.{name}": array for name, array in weights.items()} | {"head.weight": np.zeros((3, 64), "float32")}
    for stored in (weights, whole, {**weights, "fc.weight": np.zeros((3, 64), "float32")}):
        save_file(stored, path)
        options = dict(ask(weights=path).plain.model_options)
        found = build("small", (1, 8, 8), torch.Generator().manual_seed(2), **options)
        assert all(torch.equal(a, b) for a, b in zip(found.parameters(), trunk.parameters(), strict=True))
    assert ask(weights=path).to_json()["model_options"].keys() == {"initial_sha256"}
    for wrong, message in (
        ({name: a for name, a in weights.items() if name != "dense.bias"}, "has no 'dense.bias'"),
        (
            {**weights, "dense.bias": np.zeros(3, "float32")},
            r"'dense.bias' has shape \(3,\), and the model needs \(64,\)",
        ),
        ({**weights, "extra": np.zeros(3, "float32")}, "has 'extra', which the model does not have"),
    ):
        save_file(wrong, path)
        with pytest.raises(InputError, match=message):
            ask(weights=path)
    path.write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is not a safetensors file"):
        ask(weights=path)


class TimmModel(torch.nn.Module):
    """What timm.create_model returns, as far as it is used."""

    def __init__(self, num_classes, drop_rate=0.0):
        super().__init__()
        assert num_classes == 0
        self.stem = torch.nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.stem(x).mean((2, 3))


def test_models_of_timm(monkeypatch):
    made = types.ModuleType("timm")
    made.list_models = lambda: ["resnet10t", "vit_tiny"]
    made.create_model = lambda name, pretrained, **rest: TimmModel(**rest)
    monkeypatch.setitem(sys.modules, "timm", made)
    before = torch.random.get_rng_state()
    first, same, other = (build("timm:resnet10t", (1, 8, 8), torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.net.stem.weight, same.net.stem.weight)
    assert not torch.equal(first.net.stem.weight, other.net.stem.weight)
    assert ask(model="timm:resnet10t", from_scratch=True).plain.model == "timm:resnet10t"
    with pytest.raises(InputError, match=r"weights cannot be had \(they are not published as safetensors\)"):
        ask(model="timm:resnet10t")
    with pytest.raises(InputError, match="did you mean 'resnet10t'"):
        ask(model="timm:resnet10")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="needs timm, which cannot be imported"):
        ask(model="timm:resnet10t")


def test_features_are_standardised_by_the_train_rows():
    from camri.data import DataSet, Split

    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0], [1.0, 5.0], [3.0, 5.0]] * 10)
    labels = torch.tensor([0, 1] * 20)
    data = DataSet("t", ("a", "b"), {p: Split(rows, labels) for p in ("train", "val", "test")}, "f", {})
    found = prepare(data)
    assert found.standardise == ((2.0, 5.0), (1.0, 1.0))
    assert found.data.splits["test"].inputs[:2].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert found.data.fingerprint != data.fingerprint
    assert prepare(load("digits")).standardise is None


def test_options_of_the_data_are_taken_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["size,weight,kind,batch"]
    lines += [f"{x:.3f},{y:.3f},{'ab'[n % 2]},{n // 4}" for n, (x, y) in enumerate(rng.normal(size=(240, 2)))]
    table = tmp_path / "parts.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    options = {"label_column": "kind", "group_column": "batch"}
    request = ask(str(table), "b", data_options=options)
    assert request.data.classes == ("a", "b")
    assert request.data.input_shape == (2,)
    parts = [set(split.groups.tolist()) for split in request.data.splits.values()]
    assert parts[0].isdisjoint(parts[1])
    assert request.data_options == (("group_column", "batch"), ("label_column", "kind"))
    with pytest.raises(InputError, match="label_column cannot be given for data that is loaded already"):
        ask(request.data, "b", data_options={"label_column": "kind"})


def test_a_journal_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path, {"data": "digits"})

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"fit.json cannot be written \(No space left on device\)"):
        journal.set(epochs=3)
    assert list(tmp_path.iterdir()) == []


def test_reading_is_reported(tmp_path):
    drawn = np.random.default_rng(0)
    for name in ("row", "column"):
        (tmp_path / name).mkdir()
        for number in range(30):
            Image.fromarray(drawn.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    heard = []
    prepare(tmp_path, {"cache": False}, lambda *counts: heard.append(counts))
    assert heard[-1] == (60, 60)
