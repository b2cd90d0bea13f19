"""A loaded model: the engine's outputs, shifted, on raw inputs; and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

from camri.data import DataSet, Split
from camri.data import load as load_data
from camri.decision import LowestCost, Probabilities, Shift
from camri.engine import Training, Trial, train
from camri.engine.cpu import one_thread
from camri.errors import InputError
from camri.export import Model, Trained, load
from camri.export.model import preprocessing_of
from camri.methods import setting
from tests.export.conftest import CLASSES, made_data, made_trained

ENGINE_BATCH = 1000  # what the engine evaluates at once: other sizes may round the last bit otherwise


def test_logits_are_the_engine_s_to_the_bit_with_the_shift_on_the_important_class_alone(saved, outcome, data):
    found = load(saved)
    rows = data.splits["test"].inputs.numpy()
    with one_thread():
        unshifted = Model(dataclasses.replace(found.trained, rule=None)).logits(rows, ENGINE_BATCH)
        shifted = found.logits(rows, ENGINE_BATCH)
    assert unshifted.dtype == shifted.dtype == np.float32
    np.testing.assert_array_equal(unshifted.astype(np.float16), outcome.logits["test"])
    np.testing.assert_array_equal(shifted, unshifted + np.float32([0, 0.75, 0]))
    assert len(set(unshifted.argmax(axis=1))) == 3, "a model that always says one class shows nothing"


@pytest.mark.parametrize("method", [setting("ce"), setting("l2softmax", s=16)], ids=["linear", "cosine"])
def test_features_are_standardised_inside_as_they_were_for_training(method):
    raw = made_data("features")
    inputs = raw.splits["train"].inputs.numpy()
    mean, sd = inputs.mean(axis=0), inputs.std(axis=0)
    splits = {
        part: dataclasses.replace(split, inputs=(split.inputs - torch.tensor(mean)) / torch.tensor(sd))
        for part, split in raw.splits.items()
    }
    training = Training(model="mlp", model_options=(("hidden", (8,)),), epochs=1, batch_size=32)
    standardised = dataclasses.replace(raw, splits=splits)
    (outcome,) = train([Trial(method, 0)], standardised, "cpu", training=training, keep_weights=True, keep_logits=True)
    model = Model(Trained.of(outcome, raw, [2], 0.0, (tuple(mean.tolist()), tuple(sd.tolist()))))
    with one_thread():
        found = model.logits(raw.splits["test"].inputs.numpy(), ENGINE_BATCH)
    np.testing.assert_array_equal(found.astype(np.float16), outcome.logits["test"])
    doubles = raw.splits["test"].inputs.numpy().astype(np.float64)
    np.testing.assert_array_equal(model.logits(doubles), model.logits(raw.splits["test"].inputs))


def test_predictions_follow_from_the_logits(model, data):
    rows = data.splits["test"].inputs.numpy()
    logits = model.logits(rows)
    odds = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(model.predict_proba(rows), odds / odds.sum(axis=1, keepdims=True), atol=1e-6)
    assert model.predict(rows) == [CLASSES[index] for index in logits.argmax(axis=1)]
    np.testing.assert_allclose(model.logits(rows, batch_size=7), logits, atol=1e-4)
    np.testing.assert_array_equal(model.logits(torch.from_numpy(rows)), logits)
    assert model.logits(rows[:0]).shape == (0, 3)
    assert model.predict(rows[:0]) == []
    assert model.important == ("stop",)
    assert "stop" in repr(model)


def test_predicting_leaves_the_model_the_inputs_and_the_random_numbers_alone(trained, data):
    rows = data.splits["test"].inputs.numpy()
    before = rows.copy()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = Model(trained)
    first = model.logits(rows)
    assert torch.equal(torch.rand(3), expected), "a model was initialised from the global generator"
    np.testing.assert_array_equal(model.logits(rows), first)
    np.testing.assert_array_equal(rows, before)
    assert not any(module.training for module in model.module.modules())
    read_only = before.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(model.logits(read_only), first)


@pytest.mark.parametrize("shape", [(9, 8, 1), (8, 9, 3)])
def test_images_are_taken_in_the_layouts_that_fit_takes(shape):
    model = Model(made_trained("small", setting("ce"), shape, options={"width": 2}))
    images = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    expected = model.logits(images)
    layouts = [images.transpose(0, 3, 1, 2), torch.from_numpy(images).permute(0, 3, 1, 2)]
    if shape[2] == 1:
        layouts += [images[..., 0], torch.from_numpy(images[..., 0])]
    for layout in layouts:
        np.testing.assert_array_equal(model.logits(layout), expected)
    assert model.predict(layouts[0]) == model.predict(images)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            r"\(2, 8, 8, 3\) do not fit this model; give uint8 images \(N, 8, 8, 1",
        ),
        (np.zeros((8, 8, 1), np.uint8), r"shape \(8, 8, 1\) do not fit"),
        (np.zeros((8, 1), np.uint8), r"shape \(8, 1\) do not fit"),
        (np.zeros((2, 8, 8, 1), np.float32), "dtype float32 do not fit this model; give uint8"),
        (np.array([["a"]]), "dtype <U1 do not fit"),
        (torch.zeros(2, 8, 8, 1), "dtype torch.float32 do not fit"),
    ],
)
def test_other_inputs_are_refused(model, inputs, said):
    with pytest.raises(InputError, match=said):
        model.predict(inputs)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([[0, 0, 0, 0, np.nan, 0]], "row 0 are not all finite"),
        ([[0] * 6, [1e300] * 6], "row 1 are not all finite in float32"),
        ([[1j] * 6], "complex128 do not fit this model; give numbers"),
        ([[0.0] * 5], r"shape \(1, 5\) do not fit this model; give numbers \(N, 6\)"),
    ],
)
@pytest.mark.filterwarnings("error")  # what float32 cannot hold is told by the refusal alone
def test_other_features_are_refused(inputs, said):
    features = Model(made_trained("mlp", setting("ce"), (6,)))
    with pytest.raises(InputError, match=said):
        features.predict(np.array(inputs))


def test_whole_numbers_and_halves_serve_as_features_and_complex_ones_do_not():
    model = Model(made_trained("mlp", setting("ce"), (6,)))
    rows = np.arange(12).reshape(2, 6)
    expected = model.logits(rows.astype(np.float32))
    for same in (rows, rows.astype(np.uint8), rows.astype(">i4"), torch.tensor(rows, dtype=torch.bfloat16)):
        np.testing.assert_array_equal(model.logits(same), expected)
    with pytest.raises(InputError, match=r"torch.complex64 do not fit this model; give numbers \(N, 6\)"):
        model.logits(torch.zeros(2, 6, dtype=torch.complex64))


def test_a_batch_has_one_row_or_more(model, data):
    rows = data.splits["test"].inputs[:3]
    np.testing.assert_allclose(model.logits(rows, batch_size=1), model.logits(rows), atol=1e-4)
    for size in (0, -1):
        with pytest.raises(InputError, match=f"batch_size={size} is not allowed; give a whole number of at least 1"):
            model.logits(rows, batch_size=size)


def test_weights_of_another_model_are_refused_by_name(trained):
    names = [name for name in trained.weights if not name.endswith("num_batches_tracked")]

    def refused(said, **change):
        weights = {name: value for name, value in {**trained.weights, **change}.items() if value is not None}
        with pytest.raises(InputError, match=said):
            Model(dataclasses.replace(trained, weights=weights))

    refused(f"the trained model has no tensor '{names[0]}'; it is not", **{names[0]: None})
    refused(rf"has no tensor '{names[0]}' \(and 1 more\); it", **dict.fromkeys(names[:2]))
    refused("the trained model has a tensor 'x' that its model does not", x=np.zeros(1))
    refused(r"has a tensor 'x' \(and 2 more\) that", x=np.zeros(1), y=np.zeros(1), z=np.zeros(1))
    shape = trained.weights[names[0]].shape
    refused(rf"tensor '{names[0]}' has shape \(1,\), and its model needs \({shape[0]}, ", **{names[0]: np.zeros(1)})


BARE = {"important": (), "rule": None, "weights": {}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"important": (0, 1), "rule": Shift({0: 0.0})}, "rule=.* give each important class one number"),
        ({"important": (0, 1), "rule": Shift({0: 0.0, 1: -3.5e38})}, r"rule=.*-3.5e\+38.* finite in float32"),
        ({"important": (0, 3), "rule": Shift({0: 0.0, 3: 0.0})}, r"important=\(0, 3\) .* classes of 0 … 2, not all"),
        ({"important": (-1, 0), "rule": Shift({-1: 0.0, 0: 0.0})}, "classes of 0 … 2"),
        ({"important": (1, 1), "rule": Shift({1: 0.0})}, "give different classes"),
        ({"important": (0, 1, 2), "rule": Shift(dict.fromkeys(range(3), 0.0))}, "not all"),
        ({"classes": ("a",), "class_counts": (1,)}, "two names or more"),
        ({"classes": ("a", "a", "b")}, "all different"),
        ({"classes": ("a", "b\x1b[2J", "c")}, "printable"),
        ({"class_counts": (1, 2)}, "class_counts="),
        ({"input_shape": (8,)}, "input_shape="),
        ({"input_shape": (8, 0, 1)}, "input_shape="),
        ({"input_shape": (2, 1, 1), "is_image": False}, r"input_shape=\(2, 1, 1\) .*\(D,\) of features"),
        ({"standardise": ((0.0,) * 64, (1.0,) * 64)}, "it is for features"),
    ],
)
def test_a_trained_model_that_cannot_be_is_refused(trained, change, said):
    with pytest.raises(InputError, match=rf"^a trained model's .*{said}"):
        dataclasses.replace(trained, **{**BARE, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ("a", "b"), "class_counts": (1, 2)},
        {"input_shape": (1, 1, 1)},
        {"important": (0, 2), "rule": Shift({0: -1.0, 2: 2.0})},
        {"important": (0, 1), "rule": Shift({0: 3.4e38, 1: -3.4e38})},
    ],
)
def test_two_classes_one_pixel_and_any_finite_shift_are_enough(trained, change):
    made = dataclasses.replace(trained, **{**BARE, **change})
    assert all(getattr(made, name) == value for name, value in change.items())


def test_of_a_long_value_that_is_refused_the_beginning_is_shown():
    with pytest.raises(InputError, match=r"standardise=\(\(0\.0, 0\.0,[0., ]+…") as said:
        made_trained("mlp", setting("ce"), (3000,), standardise=((0.0,) * 3000, (0.0,) * 3000))
    assert len(str(said.value)) < 400


@pytest.mark.parametrize(
    ("mean", "sd", "is_fine"),
    [
        ((0.0, -3.0), (1.0, 1e-9), True),
        ((0.0, 0.0), (1.0, 0.0), False),
        ((0.0, 0.0), (-1.0, 1.0), False),
        ((0.0, float("nan")), (1.0, 1.0), False),
        ((0.0, 1e39), (1.0, 1.0), False),
        ((0.0, 0.0), (1.0, 1e-50), False),
        ((0.0,), (1.0,), False),
        ((0.0, 0.0), (1.0,), False),
        ((0.0,) * 3, (1.0,) * 3, False),
    ],
)
def test_features_are_scaled_by_finite_numbers_above_zero_one_each(mean, sd, is_fine):
    bare = made_trained("mlp", setting("ce"), (2,))
    if is_fine:
        assert dataclasses.replace(bare, standardise=(mean, sd)).standardise == (mean, sd)
        return
    with pytest.raises(InputError, match=r"standardise=.* finite in float32, one number a feature, every sd above 0"):
        dataclasses.replace(bare, standardise=(mean, sd))


def test_what_an_outcome_and_its_data_say_is_kept(outcome, data):
    """One number is the shift of every important class."""
    for shift, found in ((2, (2.0, 2.0)), (0.5, (0.5, 0.5)), (np.array([1, -2]), (1.0, -2.0)), ([1, 0.0], (1.0, 0.0))):
        made = Trained.of(outcome, data, np.array([2, 0]), shift)
        assert made.shift == found
        assert {type(one) for one in (*made.shift, *made.important)} == {float, int}
    assert Trained.of(outcome, data, [1]).shift == (0.0,)
    costs = LowestCost(((0.0, 1.0, 1.0), (9.0, 0.0, 9.0), (1.0, 1.0, 0.0)), Probabilities(1.0, (0.0,) * 3), {1: 0.0})
    with pytest.raises(InputError, match="a rule of least cost cannot be exported; give a shift or a threshold"):
        Trained.of(outcome, data, [1], costs)
    assert made.important == (2, 0)
    assert (made.setting, made.seed, made.training) == (outcome.trial.setting, 3, outcome.training)
    counts = np.bincount(data.splits["train"].labels.numpy(), minlength=3)
    assert made.class_counts == tuple(counts.tolist())
    assert {type(one) for one in made.class_counts} == {int}
    assert (made.classes, made.input_shape, made.is_image) == (CLASSES, (8, 8, 1), True)
    assert made.weights is outcome.weights
    assert made.preprocessing == {"size": [8, 8], "mode": "L", "resize": "lanczos"}


@pytest.mark.parametrize("error", ["the loss was NaN in epoch 2", None])
def test_an_outcome_without_weights_says_why_or_what_to_do(outcome, data, error):
    failed = dataclasses.replace(outcome, weights=None, error=error)
    why = error or "train it with keep_weights=True"
    with pytest.raises(InputError, match=rf"camri.*, seed 3, has no weights; {why}$"):
        Trained.of(failed, data, [1])


def test_preprocessing_of_images_and_tables(tmp_path):
    assert preprocessing_of(load_data("digits")) == {"size": [8, 8], "mode": "L", "resize": "lanczos"}
    wide = Split(torch.zeros((1, 4, 7, 3), dtype=torch.uint8), torch.tensor([0]))
    made = DataSet("made", CLASSES, {"train": wide}, "made", {"label_column": "kind", "roi": False})
    assert preprocessing_of(made) == {"size": [4, 7], "mode": "RGB", "resize": "lanczos"}
    assert preprocessing_of(made_data("features")) == {}
    table = tmp_path / "t.csv"
    table.write_text("a,b,label\n" + "".join(f"{i},{-i},{i % 2}\n" for i in range(8)))
    found = preprocessing_of(load_data(table, cache=False))
    assert found == {"feature_columns": ["a", "b"], "num_feature_columns": 2, "label_column": "label"}
    made = dataclasses.replace(made, provenance={"path_column": "scan", "label_column": "kind"})
    assert preprocessing_of(made) == {"size": [4, 7], "mode": "RGB", "resize": "lanczos", "path_column": "scan"}
