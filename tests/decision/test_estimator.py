"""ImportantClassifier: scikit-learn's own checks and tools, goals that are met, guarantees that hold, ONNX, plots."""

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.model_selection import GridSearchCV, GroupKFold, RepeatedStratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from camri.decision import AtLeast, DecisionDisplay, ImportantClassifier, Shift, exact, tune
from camri.decision import estimator as room
from camri.errors import InputError

NAMES = np.array(["limit", "yield", "stop"])


def rows(num=1500, seed=0, num_classes=3):
    weights = [0.6, 0.25] if num_classes == 3 else [0.85]
    X, y = make_classification(
        num, 8, n_informative=4, n_classes=num_classes, weights=weights, class_sep=0.8, random_state=seed
    )
    return X, NAMES[y] if num_classes == 3 else y


def recall_of(model, X, y, label="stop"):
    return np.mean(model.predict(X)[y == label] == label)


class RidgeRegressor(LogisticRegression):
    """Without any score."""

    predict_proba = property()
    decision_function = property()


class Scored(LogisticRegression):
    """Without probabilities."""

    predict_proba = property()
    predict_log_proba = property()


def test_scikit_learn_finds_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells which checks want pandas
        results = check_estimator(ImportantClassifier(LogisticRegression()))
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 45


def test_scikit_learn_finds_nothing_where_a_class_is_important(monkeypatch):
    monkeypatch.setattr(room, "find_important", lambda important, classes: {0: None} if len(classes) > 1 else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(ImportantClassifier(LogisticRegression(), cv=3))
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), GaussianNB()),
        HistGradientBoostingClassifier(max_iter=10),
        Perceptron(),  # decision_function alone
    ],
    ids=lambda one: type(one).__name__,
)
def test_any_classifier_reaches_the_recall_on_new_rows(estimator):
    X, y = rows(6000)
    model = ImportantClassifier(estimator, "stop", at_least=0.8).fit(X[:3000], y[:3000])
    assert model.guarantee_.num == ((y[:3000] == "stop").sum(),)
    assert recall_of(model, X[3000:], y[3000:]) >= 0.8 > recall_of(model.estimator_, X[3000:], y[3000:])
    assert set(model.predict(X)) <= set(NAMES)
    assert model.classes_.tolist() == sorted(NAMES)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_two_classes_by_decision_function_and_by_probability():
    X, y = rows(2000, num_classes=2)
    by_probability, by_score = (
        ImportantClassifier(LogisticRegression(), 1, at_least=0.9).fit(X, y),
        ImportantClassifier(Scored(), 1, at_least=0.9).fit(X, y),
    )
    assert by_score.guarantee_.hits == by_probability.guarantee_.hits
    np.testing.assert_array_equal(by_score.predict(X), by_probability.predict(X))
    assert not hasattr(by_score, "predict_proba")
    np.testing.assert_array_equal(by_probability.predict_proba(X), by_probability.estimator_.predict_proba(X))


def test_a_prefit_estimator_is_tuned_on_all_rows_and_not_fitted_again():
    from sklearn.frozen import FrozenEstimator

    X, y = rows(3000)
    fitted = LogisticRegression().fit(X[:1000], y[:1000])
    before = fitted.coef_.copy()
    tuned = ImportantClassifier(fitted, "stop", at_least=0.8, cv="prefit").fit(X[1000:], y[1000:])
    frozen = ImportantClassifier(FrozenEstimator(fitted), "stop", at_least=0.8).fit(X[1000:], y[1000:])
    scores = exact(fitted.predict_proba(X[1000:]), np.searchsorted(fitted.classes_, y[1000:]), [1], "probabilities")
    assert tuned.decision_.rule == frozen.decision_.rule == tune(scores, AtLeast(0.8, 0.95)).rule
    assert tuned.estimator_ is fitted
    np.testing.assert_array_equal(fitted.coef_, before)
    assert len(tuned.cv_results_["recall"]) == 1
    with pytest.raises(NotFittedError):
        ImportantClassifier(LogisticRegression(), "stop", cv="prefit").fit(X, y)
    with pytest.raises(InputError, match="label 'halt' of y is none of the estimator's"):
        ImportantClassifier(fitted, "stop", cv="prefit").fit(X, np.where(y == "limit", "halt", y))


def test_goals_and_rules():
    X, y = rows()
    base = LogisticRegression()
    free = ImportantClassifier(base, "stop").fit(X, y)
    assert isinstance(free.decision_.rule, Shift)
    results = free.cv_results_
    assert results["recall"].shape == (5, 1)
    assert results["num_rows"].sum() == len(X)
    assert results["recall"].mean() >= results["recall_before"].mean()
    costs = 1.0 - np.eye(3)
    costs[1, [0, 2]] = 10.0  # of missing "stop", the second in the order of classes_
    costly = ImportantClassifier(base, "stop", cost_matrix=costs).fit(X, y)
    codes = np.searchsorted(costly.classes_, y)

    def cost(model):
        return costs[codes, np.searchsorted(costly.classes_, model.predict(X))].mean()

    assert cost(costly) < cost(costly.estimator_)
    several = ImportantClassifier(base, ["stop", "yield"], at_least=0.5, rule="shift").fit(X, y)
    assert isinstance(several.decision_.rule, Shift)
    assert set(several.decision_.rule.values) == {1, 2}
    assert min(several.decision_.recall) >= 0.5
    seen = ImportantClassifier(base, "stop", at_least=0.8, confidence=None).fit(X, y)
    assert seen.guarantee_.confidence is None  # on average
    promised = ImportantClassifier(base, "stop", at_least=0.8).fit(X, y)
    assert promised.decision_.recall > seen.decision_.recall


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_least": 0.9, "max_accuracy_drop": 0.1}, "give one goal, not max_accuracy_drop and at_least"),
        ({"at_least": 1.5}, "at_least=1.5 is not allowed"),
        (
            {"at_least": 0.99},
            r"a recall of 0.99 of 'stop' cannot be guaranteed: it takes \d+ more of 'stop' \(has \d+\) rows; give",
        ),
        ({"cost_matrix": np.eye(2)}, r"cost_matrix has shape \(2, 2\); give 3 × 3"),
        ({"important": "halt"}, "important='halt' is not a label of y"),
        ({"important": {"stop": 2.0}}, "has strengths; give labels"),
        ({"rule": "best"}, "rule='best' is unknown"),
        ({"estimator": RidgeRegressor()}, "RidgeRegressor has no predict_proba and no decision_function"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    X, y = rows(600)
    model = ImportantClassifier(**{"estimator": LogisticRegression(), "important": "stop", **options})
    with pytest.raises(InputError, match=message):
        model.fit(X, y)


def test_probabilities_of_zero_are_not_promised():
    """A forest of three trees gives many rows a probability of 0, which no threshold finds."""
    X, y = rows(1500)
    model = ImportantClassifier(RandomForestClassifier(3, random_state=0), "stop", at_least=0.95)
    with pytest.raises(InputError, match=r"no cut-off finds more than \d+/\d+ of the held-out rows"):
        model.fit(X, y)


def test_groups_are_held_out_whole_and_counted_once(monkeypatch):
    X, y = rows(1500)
    X, y, groups = X.repeat(4, axis=0), y.repeat(4), np.repeat(np.arange(1500), 4)
    seen = []
    real = room._score_fold

    def watched(estimator, X, y, fitted, held_out, *others):
        seen.append((fitted, held_out))
        return real(estimator, X, y, fitted, held_out, *others)

    monkeypatch.setattr(room, "_score_fold", watched)
    model = ImportantClassifier(LogisticRegression(), "stop", at_least=0.8).fit(X, y, groups=groups)
    assert len(seen) == 5
    assert all(not set(groups[fitted]) & set(groups[held_out]) for fitted, held_out in seen)
    assert model.guarantee_.num_units == (model.guarantee_.num[0] // 4,)
    repeated = ImportantClassifier(
        LogisticRegression(), "stop", at_least=0.8, cv=RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    ).fit(X[::4], y[::4])
    assert repeated.guarantee_.num == (2 * repeated.guarantee_.num_units[0],)


def test_weights_reach_the_estimator_and_the_figures():
    X, y = rows()
    weights = np.where(y == "stop", 5.0, 1.0)
    weighed = ImportantClassifier(LogisticRegression(), "stop").fit(X, y, sample_weight=weights)
    expected = LogisticRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(weighed.estimator_.coef_, expected.coef_)
    model = ImportantClassifier(expected, "stop", max_accuracy_drop=0.02, cv="prefit").fit(X, y, sample_weight=weights)
    right = model.predict(X) == y
    assert model.decision_.accuracy == pytest.approx(right @ weights / weights.sum())
    assert model.decision_.accuracy != pytest.approx(right.mean())
    with pytest.raises(InputError, match="sample_weight is 0 for every row of 'stop'"):
        ImportantClassifier(LogisticRegression(), "stop").fit(X, y, sample_weight=np.where(y == "stop", 0.0, 1.0))


def test_metadata_is_routed_through_a_search():
    X, y = rows(900)
    groups, weights = np.arange(900) // 3, np.where(y == "stop", 5.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression().set_fit_request(sample_weight=True)
        model = ImportantClassifier(inner, "stop", cv=GroupKFold(3)).set_fit_request(groups=True)
        model.set_score_request(sample_weight=False)
        search = GridSearchCV(model, {"estimator__C": [0.1, 1.0]}, cv=3)
        search.fit(X, y, groups=groups, sample_weight=weights)
        best = search.best_estimator_
        expected = clone(inner).set_params(C=best.estimator.C).fit(X, y, sample_weight=weights)
        np.testing.assert_allclose(best.estimator_.coef_, expected.coef_)
        alone = ImportantClassifier(LogisticRegression(), "stop", at_least=0.5).fit(X, y, groups=groups)
        assert alone.guarantee_.num_units[0] < alone.guarantee_.num[0]
        with pytest.raises(ValueError, match="sample_weight"):  # nobody asked for it
            ImportantClassifier(LogisticRegression(), "stop").fit(X, y, sample_weight=weights)


def test_it_works_in_pipelines_and_cross_validation():
    X, y = rows(900)
    model = make_pipeline(StandardScaler(), ImportantClassifier(LogisticRegression(), "stop", at_least=0.5))
    assert cross_val_score(model, X, y, cv=2, scoring="recall_macro").min() > 0.5
    params = ImportantClassifier(LogisticRegression(C=3.0), "stop", at_least=0.7).get_params()
    assert (params["estimator__C"], params["at_least"], params["cv"]) == (3.0, 0.7, 5)


def test_a_prefit_guarantee_is_kept_as_often_as_it_says_and_what_was_seen_is_not():
    fresh_X, fresh_y = rows(6000, seed=1, num_classes=2)
    fitted = LogisticRegression().fit(fresh_X[:1000], fresh_y[:1000])
    scores = fitted.predict_proba(fresh_X[1000:])[:, 1]
    pool_X, pool_y = fresh_X[1000:], fresh_y[1000:]
    kept = {0.95: 0, None: 0}
    drawn = np.random.default_rng(0)
    for _ in range(60):
        some = drawn.integers(0, len(pool_y), 600)  # with replacement: the pool is the population
        for confidence in kept:
            model = ImportantClassifier(fitted, 1, at_least=0.85, cv="prefit", confidence=confidence)
            threshold = model.fit(pool_X[some], pool_y[some]).decision_.rule.values[1]
            kept[confidence] += np.mean(scores[pool_y == 1] > threshold) >= 0.85
    assert kept[0.95] >= 54
    assert kept[None] <= 45


@pytest.mark.parametrize(
    ("classes", "options"),
    [
        (NAMES, {"at_least": 0.8}),
        (NAMES, {}),
        (np.array([3, 5, 9]), {"max_accuracy_drop": 0.03, "important": [3, 9]}),
        (np.array([3, 5, 9]), {"important": [9], "rule": "shift", "at_least": 0.7}),
    ],
)
def test_onnx_follows_the_rule(classes, options):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx")
    from camri.export import to_onnx

    X, y = rows(2000)
    X, y = X.astype(np.float32), classes[np.searchsorted(sorted(NAMES), y)]
    important = options.pop("important", classes[1])
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    model = ImportantClassifier(pipeline, important, **options).fit(X, y)
    session = onnxruntime.InferenceSession(to_onnx(model, X).SerializeToString(), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["label", "probabilities"]
    label, probabilities = session.run(None, {session.get_inputs()[0].name: X})
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-5)
    assert (label == model.predict(X)).mean() > 0.998  # float32 at the threshold
    assert (label != model.estimator_.predict(X)).any(), "the rule changes nothing here"


def test_onnx_says_what_is_missing(monkeypatch):
    from camri.export import to_onnx

    X, y = rows(600)
    model = ImportantClassifier(LogisticRegression(), "stop").fit(X, y)
    with pytest.raises(InputError, match="give a fitted ImportantClassifier"):
        to_onnx(ImportantClassifier(LogisticRegression()), X)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *others: None)
    with pytest.raises(InputError, match=r"needs? skl2onnx, which is not installed: pip install 'camri-loss\[onnx\]'"):
        to_onnx(model, X)


def test_the_display_draws_the_curve_and_both_points():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = rows(900)
    model = ImportantClassifier(LogisticRegression(), "stop", at_least=0.5).fit(X, y)
    display = DecisionDisplay.from_estimator(model, X, y, color="red")
    assert display.line_.get_color() == "red"
    alarms, recall = display.points["tuned"]
    predicted = model.predict(X)
    assert recall == np.mean(predicted[y == "stop"] == "stop")
    assert alarms == np.mean((predicted == "stop") & (y != "stop"))
    on_curve = np.isclose(display.recall, recall) & np.isclose(display.false_alarms, alarms)
    assert on_curve.any()
    assert display.ax_.get_legend_handles_labels()[1] == ["LogisticRegression", "as it is", "tuned"]
    again = DecisionDisplay.from_estimator(model, X, y, ax=display.ax_, name="again")
    assert again.figure_ is display.figure_
    with pytest.raises(InputError, match="no important class"):
        DecisionDisplay.from_estimator(ImportantClassifier(LogisticRegression()).fit(X, y), X, y)
