"""CamriClassifier: scikit-learn's own checks, its tools, and what the important class gains."""

import json
import re
import threading
import warnings

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, recall_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import camri
from camri import CamriClassifier, InputError
from camri.decision import MostRecall, tune
from camri.engine import Stopped
from camri.fitting import classifier

QUICK = {"epochs": 10, "random_state": 0}
SHALLOW = {**QUICK, "model_options": {"hidden": (128,)}}  # leaves a shift something to gain


def rare(num_rows, classes=("fine", "odd", "stop"), **options):
    """Rows and labels of three classes, of which the last has a tenth, and as many again to test on."""
    X, y = make_classification(
        2 * num_rows, 12, n_informative=6, n_classes=3, weights=[0.5, 0.4], class_sep=0.9, random_state=0, **options
    )
    names = np.array(classes)
    return X[:num_rows], names[y[:num_rows]], X[num_rows:], names[y[num_rows:]]


def recall(model, X, y, label="stop"):
    return recall_score(y, model.predict(X), labels=[label], average=None)[0]


def test_scikit_learn_finds_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells which checks want pandas
        results = check_estimator(CamriClassifier())
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 45


def test_scikit_learn_finds_nothing_when_a_class_is_important(monkeypatch):
    monkeypatch.setattr(classifier, "find_important", lambda important, classes: {0: None})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(CamriClassifier(epochs=20))
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_recall_rises_with_the_margin():
    X, y, X_test, y_test = rare(800)
    plain, *others = (
        CamriClassifier("stop", shift=None, epochs=20, random_state=0, model_options={"hidden": (128,)}, **options).fit(
            X, y
        )
        for options in ({"method": "ce"}, {"margin": 0.0}, {"margin": 0.2}, {"margin": 0.4})
    )
    without, some, more = (recall(model, X_test, y_test) for model in others)
    assert some > without + 0.05
    assert more > some
    assert some > recall(plain, X_test, y_test) + 0.05
    assert others[1].score(X_test, y_test) > plain.score(X_test, y_test) - 0.01


def test_shift_is_chosen_on_rows_that_were_held_out():
    X, y, X_test, y_test = rare(1500)
    without = CamriClassifier("stop", method="ce", shift=None, **SHALLOW).fit(X, y)
    model = CamriClassifier("stop", method="ce", validation_fraction=0.4, **SHALLOW).fit(X, y)
    found = model.validation_
    assert found["num_rows"] == 600
    assert found["accuracy"] >= found["accuracy_before"]
    assert found["recall"][0] > found["recall_before"][0]
    assert model.shift_[2] > 0
    assert model.shift_[:2].tolist() == [0, 0]
    assert without.validation_ is None
    assert not without.shift_.any()
    # The model itself is the one of all rows: the shift is all that differs.
    np.testing.assert_allclose(
        model.decision_function(X_test), without.decision_function(X_test) + model.shift_, rtol=0, atol=1e-12
    )
    assert recall(model, X_test, y_test) > recall(without, X_test, y_test)
    assert sum(model.trained_.class_counts) == len(X)


def test_the_shift_is_what_a_prior_allows(monkeypatch):
    asked = []
    monkeypatch.setattr(classifier, "tune", lambda scores, goal: asked.append((scores, goal)) or tune(scores, goal))
    X, y, *_ = rare(2000)
    model = CamriClassifier("stop", method="ce", validation_fraction=0.4, **SHALLOW).fit(X, y)
    ((scores, goal),) = asked
    assert goal == MostRecall()
    free, held = (tune(scores, goal, prior_rows=rows).rule for rows in (0, 500))
    assert 0 < model.shift_[2] == held.values[2] < free.values[2]
    assert model.validation_["accuracy"] == scores.accuracy(held)
    called = [scores.predict(rule) == 2 for rule in (0.0, held)]
    alarms = [float((one & (scores.labels != 2)).mean()) for one in called]
    assert [model.validation_[name] for name in ("false_alarms_before", "false_alarms")] == alarms
    assert alarms[0] < alarms[1]


def test_important_in_every_form():
    X, y, _, _ = rare(300)
    one, several, strong, weighted = (
        CamriClassifier(important, method=method, shift=None, **QUICK).fit(X, y)
        for important, method in (
            ("stop", "camri"),
            (["stop", "odd"], "camri"),
            ({"stop": 0.5, "odd": 0.1}, "camri"),
            ({"stop": 4.0}, "wce"),
        )
    )
    assert dict(one.trained_.setting.knobs) == {"m": (0.2,), "s": 8.0}
    assert one.important_.tolist() == ["stop"]
    assert dict(several.trained_.setting.knobs)["m"] == (0.2, 0.2)
    assert several.important_.tolist() == ["odd", "stop"]
    assert strong.trained_.setting.important == (1, 2)
    assert dict(strong.trained_.setting.knobs)["m"] == (0.1, 0.5)
    assert dict(weighted.trained_.setting.knobs) == {"w": (4.0,)}
    none = CamriClassifier(**QUICK).fit(X, y)
    assert none.trained_.setting.method == "l2softmax"
    assert none.important_.tolist() == []
    focal = CamriClassifier("stop", method="focal", knobs={"gamma": 2.0, "w": 1.5}, shift=None, **QUICK).fit(X, y)
    assert dict(focal.trained_.setting.knobs) == {"gamma": 2.0, "w": (1.5,)}
    numbers = CamriClassifier(np.int64(7), shift=None, **QUICK).fit(X, np.where(y == "stop", 7, 3))
    assert numbers.important_.tolist() == [7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"important": "stpo"}, "important='stpo' is not a label of y; did you mean 'stop'? choices: fine, odd, stop"),
        ({"important": ["fine", "odd", "stop"]}, "names all 3 classes"),
        ({"important": {"stop": 0.3, "odd": None}}, "has a strength for some classes only; give one for each, or none"),
        ({"important": "stop", "margin": -0.1, "shift": None}, "strength -0.1 of class 2 is not allowed"),
        ({"important": "stop", "shift": 0.5}, "shift=0.5 is unknown; choices: 'auto', None"),
        ({"important": "stop", "validation_fraction": 1.0}, "validation_fraction=1.0 must lie between 0 and 1"),
        ({"method": "camry"}, "method 'camry' is unknown; did you mean 'camri'"),
        ({"method": "focal"}, "focal needs a value for 'gamma'"),
        ({"model": "papr"}, "model='papr' is not allowed; did you mean 'paper'"),
        ({"epochs": 0}, "epochs=0 is not allowed"),
        ({"training_options": {"optimiser": "sgd"}}, "no field 'optimiser'; did you mean 'optimizer'"),
        ({"device": "tpu"}, "device='tpu' is not known"),
    ],
)
def test_refuses(options, message):
    X, y, _, _ = rare(60)
    with pytest.raises(InputError, match=re.escape(message)):
        CamriClassifier(**options).fit(X, y)


def test_refuses_arrays_it_cannot_use():
    X, y, _, _ = rare(60)
    with pytest.raises(InputError, match=r"X is float64 \(60, 3, 4\); give features"):
        CamriClassifier().fit(X.reshape(60, 3, 4), y)
    with pytest.raises(InputError, match="too large for dtype"):
        CamriClassifier().fit(X * 1e40, y)
    with pytest.raises(InputError, match="important='1' is not a label of y; give 1, as y has it"):
        CamriClassifier("1").fit(X, np.arange(60) % 3)
    with pytest.raises(InputError, match=r"choices: 0, 1, 2; a tool such as VotingClassifier"):
        cross_val_predict(CamriClassifier("stop"), X, y, method="predict_proba", cv=2)
    with pytest.raises(ValueError, match="one class"):
        CamriClassifier().fit(X, np.zeros(60))
    with pytest.raises(TypeError, match="sample_weight"):
        CamriClassifier().fit(X, y, sample_weight=np.ones(60))
    with pytest.raises(NotFittedError):
        CamriClassifier().predict(X)


def test_a_class_too_small_to_hold_out_is_reported_and_trained():
    X, _, _, _ = rare(60)
    y = np.where(np.arange(60) < 20, "stop", "fine")
    with pytest.warns(UserWarning, match="only 4 rows of class stop would be held out, less than 5"):
        model = CamriClassifier("stop", **QUICK).fit(X, y)
    assert model.validation_ is None
    assert not model.shift_.any()
    assert sum(model.trained_.class_counts) == 60
    wider = CamriClassifier("stop", validation_fraction=0.25, **QUICK).fit(X, y)
    assert wider.validation_["num_rows"] == 15


def test_pipeline_grid_search_and_cross_validation():
    X, y, X_test, y_test = rare(500)
    scorer = make_scorer(recall_score, labels=["stop"], average="macro", pos_label=None)
    pipe = make_pipeline(PCA(10), CamriClassifier("stop", shift=None, **QUICK))
    margins = [{"camriclassifier__margin": [0.0, 0.8]}, {"camriclassifier__important": [{"stop": 0.8}]}]
    search = GridSearchCV(pipe, margins, scoring=scorer, cv=2, n_jobs=2, error_score="raise").fit(X, y)
    none, shared, own = search.cv_results_["mean_test_score"]
    assert shared > none
    assert own == shared  # {label: strength} replaces the margin
    assert search.best_params_ == {"camriclassifier__margin": 0.8}
    assert search.predict(X_test).shape == y_test.shape

    model = CamriClassifier("stop", shift=None, **QUICK)
    parts = cross_val_predict(model, X, y, cv=3)
    assert np.mean(parts == y) > 0.6
    # For probabilities scikit-learn numbers the labels, so here they have to be numbers from the start.
    numbers = np.unique(y, return_inverse=True)[1]
    probabilities = cross_val_predict(model.set_params(important=2), X, numbers, cv=3, method="predict_proba")
    assert np.array_equal(np.unique(y)[probabilities.argmax(axis=1)], parts)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_the_same_state_gives_the_same_bits_in_any_thread():
    X, y, X_test, _ = rare(300)
    model = CamriClassifier("stop", **QUICK)
    here = clone(model).fit(X, y).decision_function(X_test)
    there = {}
    threads = [
        threading.Thread(target=lambda k=k: there.update({k: clone(model).fit(X, y).decision_function(X_test)}))
        for k in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(here, there[0])
    assert np.array_equal(here, there[1])
    other = clone(model).set_params(random_state=1).fit(X, y).decision_function(X_test)
    assert not np.allclose(here, other)


def test_images():
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    model = CamriClassifier(8, epochs=6, random_state=0).fit(images[:1200], digits.target[:1200])
    assert model.trained_.training.model == "small"
    assert model.trained_.input_shape == (8, 8, 1)
    assert model.n_features_in_ == 64
    assert model.score(images[1200:], digits.target[1200:]) > 0.9
    assert recall(model, images[1200:], digits.target[1200:], 8) > 0.8
    assert np.array_equal(model.predict(images[1200:]), model.predict(images[1200:, ..., None]))
    with pytest.raises(InputError, match=r"rows of shape \(64,\); the model was trained on \(8, 8, 1\)"):
        model.predict(images.reshape(-1, 64))
    for wrong in (images / 255, images[..., None].repeat(2, axis=3), images[..., None, None]):
        said = rf"X is {wrong.dtype} {re.escape(str(wrong.shape))}; give features \(N, D\), or images as uint8"
        with pytest.raises(InputError, match=said):
            model.predict(wrong)


def test_standardises_inside():
    X, y, X_test, _ = rare(300)
    moved, scale = np.full(X.shape[1], 1e9), np.geomspace(1e-3, 1e3, X.shape[1])
    constant = np.ones((len(X), 1))
    plain = CamriClassifier("stop", **QUICK).fit(np.hstack([X, constant]), y)
    other = CamriClassifier("stop", **QUICK).fit(np.hstack([X * scale + moved * scale, constant * 7]), y)
    np.testing.assert_allclose(
        plain.decision_function(np.hstack([X_test, constant])),
        other.decision_function(np.hstack([X_test * scale + moved * scale, constant * 7])),
        atol=1e-2,  # what float64 keeps of 1e9 + x
    )


@pytest.mark.parametrize(
    "labels",
    [np.array(["fine", "odd", "stop"]), np.array([1, 5, 10]), np.array([1.0, 3.0, 7.0]), np.array(list("abc"), object)],
    ids=["text", "int", "float", "object"],
)
def test_save_and_load(labels, tmp_path):
    X, y, X_test, _ = rare(300, classes=labels)
    table = pa.table({f"x{column}": values for column, values in enumerate(X.T)})
    options = {"model_options": {"hidden": [32], "dropout": 0.1}, "training_options": {"label_smoothing": 0.1}}
    model = CamriClassifier({labels.tolist()[2]: 0.3}, **options, **QUICK).fit(table, y)
    model.save(tmp_path / "model")
    loaded = CamriClassifier.load(tmp_path / "model")
    test = pa.table({f"x{column}": values for column, values in enumerate(X_test.T)})
    assert np.array_equal(model.decision_function(test), loaded.decision_function(test))
    assert loaded.classes_.dtype == model.classes_.dtype
    assert np.array_equal(loaded.predict(test), model.predict(test))
    assert loaded.get_params() == model.get_params()
    assert loaded.feature_names_in_.tolist() == list(table.column_names)
    assert loaded.n_features_in_ == 12
    assert loaded.validation_ == model.validation_
    assert np.array_equal(loaded.shift_, model.shift_)
    assert np.array_equal(loaded.loss_curve_, model.loss_curve_)
    assert np.array_equal(clone(loaded).fit(table, y).decision_function(test), model.decision_function(test))

    by_name = camri.load(tmp_path / "model")  # as any other model of ours
    assert by_name.classes == tuple(map(str, labels))
    np.testing.assert_allclose(by_name.logits(X_test), model.decision_function(test), atol=1e-4)
    assert not [file for file in (tmp_path / "model").iterdir() if file.suffix not in (".json", ".md", ".safetensors")]
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"- important: {labels[2]}; {model.shift_[2]:.4g} is added to the logit of “{labels[2]}”, then the" in card


def test_load_refuses_what_is_not_an_estimator(tmp_path):
    X, y, _, _ = rare(60)
    model = CamriClassifier("stop", shift=None, epochs=1, random_state=np.random.RandomState(0)).fit(X, y)
    camri.export.save(model.trained_, tmp_path / "bare", card="", onnx=False)
    with pytest.raises(InputError, match=r"holds no CamriClassifier; read it with camri.load\("):
        CamriClassifier.load(tmp_path / "bare")
    path = model.save(tmp_path / "model") / "config.json"
    assert CamriClassifier.load(tmp_path / "model").random_state is None
    config = json.loads(path.read_text())
    del config["checksum"]  # as one does who edits the file
    config["preprocessing"]["estimator"]["params"]["sclae"] = 1
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"is damaged \(.*'sclae'.*\); copy"):
        CamriClassifier.load(tmp_path / "model")


def test_an_interrupt_is_an_interrupt_and_a_failure_an_error(monkeypatch):
    X, y, _, _ = rare(60)

    def stop(*args, **options):
        raise Stopped([])

    with pytest.raises(RuntimeError, match="training failed: the loss became"):
        CamriClassifier(method="ce", learning_rate=99.0, epochs=200, training_options={"optimizer": "sgd"}).fit(X, y)
    with pytest.raises(RuntimeError, match=r"^training failed: ValueError: Expected more than 1 value per channel .*$"):
        CamriClassifier(batch_size=1, epochs=1).fit(X, y)
    monkeypatch.setattr(classifier, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        CamriClassifier().fit(X, y)


def test_a_short_training_leaves_no_trace_of_initial_statistics():
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8) * 4, digits.target  # dark: a variance far below 1
    model = CamriClassifier(8, method="ce", shift=None, random_state=0).fit(images[:60], labels[:60])  # 40 steps
    assert model.score(images[:60], labels[:60]) == 1.0
    assert model.score(images[800:], labels[800:]) > 0.75  # a logistic regression has 0.79
