"""scikit-learn: `ImportantClassifier` tunes the decision of any classifier, `DecisionDisplay` draws its curve."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.utils import _safe_indexing, column_or_1d, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from camri.decision.curve import trace
from camri.decision.goals import AtLeast, Goal, LeastCost, Within, parse_goal
from camri.decision.guarantee import Guarantee
from camri.decision.rules import LowestCost, argmax_of, log_of
from camri.decision.scores import Scores, exact
from camri.decision.stats import FEWEST_ROWS
from camri.decision.tune import OperatingPoint, Tuner
from camri.decision.where import make_where, weights_of
from camri.errors import InputError, closest, require


def find_important(important: Any, classes: np.ndarray) -> dict[int, float | None]:
    """Class index -> strength, or None if only a label was given; in ascending order.

    >>> find_important({"yield": 0.1, "stop": 0.3}, np.array(["limit", "stop", "yield"]))
    {1: 0.3, 2: 0.1}
    """
    if important is None:
        return {}
    if isinstance(important, Mapping):
        given = dict(important)
    else:
        is_collection = isinstance(important, (list, tuple, set, frozenset, np.ndarray))
        given = dict.fromkeys(important if is_collection else [important])
    known = classes.tolist()
    for label in given:
        if label not in known:
            same = [name for name in known if str(name) == str(label)]
            hint = f"give {same[0]!r}, as y has it" if same else closest(label, known)
            if isinstance(label, str) and known == list(range(len(known))):
                hint += "; a tool such as VotingClassifier may have numbered your labels in sorted order"
            raise InputError(f"important={label!r} is not a label of y; {hint}", argument="important")
    if len({strength is None for strength in given.values()}) > 1:
        wrong = "has a strength for some classes only; give one for each, or none"
        raise InputError(f"important={important!r} {wrong}", argument="important")
    if len(given) == len(known):
        wrong = f"names all {len(known)} classes; leave at least one out"
        raise InputError(f"important={important!r} {wrong}", argument="important")
    return dict(sorted((known.index(label), strength) for label, strength in given.items()))


def _has(method: str) -> Callable[["ImportantClassifier"], bool]:
    return lambda wrapper: hasattr(getattr(wrapper, "estimator_", wrapper.estimator), method)


def score_rows(estimator: Any, X: Any, classes: np.ndarray) -> tuple[np.ndarray, str]:
    """The estimator's scores, float (N, C), and their kind, "probabilities" or "logits"."""
    kind = "probabilities" if hasattr(estimator, "predict_proba") else "logits"
    if kind == "logits" and not hasattr(estimator, "decision_function"):
        wrong = f"{type(estimator).__name__} has no predict_proba and no decision_function"
        raise InputError(f"{wrong}; give a classifier that has one", argument="estimator")
    scores = np.asarray(estimator.predict_proba(X) if kind == "probabilities" else estimator.decision_function(X))
    if scores.ndim == 1:  # two classes: the score of the second
        scores = np.stack([np.zeros(len(scores)), scores], axis=1)
    known = estimator.classes_
    if scores.shape[1] != len(known):
        wrong = f"decision_function gives {scores.shape[1]} columns for {len(known)} classes"
        raise InputError(f"{wrong}; give a classifier with one score for each (SVC: probability=True)", "estimator")
    if np.array_equal(known, classes):
        return scores, kind
    lowest = 0.0 if kind == "probabilities" else scores.min(initial=0.0) - 50.0  # for classes that a fold lacks
    whole = np.full((len(scores), len(classes)), lowest)
    whole[:, _codes(known, classes)] = scores
    return whole, kind


def _codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The index of each label in `classes`."""
    places = {label: place for place, label in enumerate(classes.tolist())}
    try:
        return np.array([places[label] for label in labels.tolist()], dtype=np.int64)
    except KeyError as error:
        wrong = f"label {error.args[0]!r} of y is none of the estimator's"
        raise InputError(f"{wrong}; {closest(error.args[0], classes.tolist())}", argument="y") from None


class ImportantClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Tune the decision of any classifier, so that it misses its important classes less often.

    Parameters
    ----------
    estimator : classifier or pipeline
        Has predict_proba or decision_function.
    important : label or list of labels, optional
        Without any, the classifier is not changed.
    at_least : float or {label: recall}, optional
        Goal: this recall of every important class, with the fewest false alarms.
    max_accuracy_drop : float, optional
        Goal: the most recall at no more than this loss of expected accuracy, 0.01 for one percentage point. The default
        goal, with 0.
    max_false_alarms : float, optional
        Goal: the most recall with at most this share of all rows as false alarms on new rows, with `confidence`.
    cost_matrix : array (C, C), data frame, mapping or CSV file, optional
        Goal: the least cost; row = true class, column = predicted class. An array is in the order of `classes_`.
    confidence : float or None
        Of the guarantee that new rows have the recall `at_least`; None: on average over calibration sets.
    prevalence : {label: share}, optional
        How frequent classes are where the rule will run, if not as in y: for accuracy, false alarms and costs.
    rule : "auto", "shift" or "threshold"
        A shift loses the least accuracy, a threshold has the fewest false alarms; "auto" goes by the goal.
    cv : int, splitter or "prefit"
        Folds; "prefit" for a fitted estimator (as `FrozenEstimator`), tuned on all rows.
    n_jobs : int, optional
        Folds that are fitted in parallel.

    Attributes
    ----------
    decision_ : OperatingPoint
        The rule, its figures on held-out rows, the spread of its value, and the guarantee.
    guarantee_ : Guarantee or None
        If `at_least` has a confidence.
    cv_results_ : dict
        Recall, accuracy and false alarms before and after tuning, one entry per fold.
    estimator_, classes_
        The estimator, fitted on all rows unless it was prefit, and its labels.

    Notes
    -----
    The guarantee is exact for a prefit estimator, tuned on rows it was not fitted on: new rows like these have a recall
    of at least `at_least` with this confidence, for any distribution of the scores and any number of rows. With
    `groups`, new groups do, on average over groups. With folds it is approximate: the scores are those of models fitted
    on fewer rows than `estimator_`, and the rows of one fold share a model. It was kept on 97.5 % of 200 simulated
    tables (benchmarks/decision.py).

    The rule is the one that `audit` finds on the same held-out rows. `fit` passes `sample_weight` to the estimator and
    uses it in figures and goals; a guarantee ignores it. With fewer than 20 rows of an important class nothing is
    tuned, unless a recall is guaranteed.

    See Also
    --------
    audit : the same for a table of scores, with intervals and a verdict.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = make_classification(2000, weights=[0.9], class_sep=0.3, random_state=0)
    >>> model = ImportantClassifier(LogisticRegression(), important=1, at_least=0.8).fit(X, y)
    >>> model.decision_.rule, model.guarantee_.hits, model.guarantee_.num
    (Threshold(values={1: 0.04801}), (177,), (208,))
    """

    decision_: OperatingPoint | None
    guarantee_: Guarantee | None
    cv_results_: dict[str, np.ndarray]

    def __init__(
        self,
        estimator: Any,
        important: Any = None,
        *,
        at_least: float | Mapping[Any, float] | None = None,
        max_accuracy_drop: float | None = None,
        max_false_alarms: float | None = None,
        cost_matrix: Any = None,
        prevalence: Mapping[Any, float] | None = None,
        confidence: float | None = 0.95,
        rule: str = "auto",
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.important = important
        self.at_least = at_least
        self.max_accuracy_drop = max_accuracy_drop
        self.max_false_alarms = max_false_alarms
        self.cost_matrix = cost_matrix
        self.prevalence = prevalence
        self.confidence = confidence
        self.rule = rule
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, *, groups: Any = None, **params: Any) -> "ImportantClassifier":
        """Tune the rule on rows that the estimator was not fitted on, then fit the estimator on all rows.

        groups: patients or films (N,): each is held out as a whole, and the promise is about new groups. params: for
        the estimator's `fit`, by metadata routing if enabled.
        """
        X, y = indexable(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        for_fit = params
        if sklearn.get_config().get("enable_metadata_routing"):
            passed = params if groups is None else {**params, "groups": groups}
            for_fit = process_routing(self, "fit", **passed).estimator.fit
        if self._is_prefit:
            check_is_fitted(self.estimator)
        self.classes_ = np.asarray(self.estimator.classes_) if self._is_prefit else np.unique(y)
        names = [str(label) for label in self.classes_]
        important = find_important(self.important, self.classes_)
        if any(strength is not None for strength in important.values()):
            raise InputError(f"important={self.important!r} has strengths; give labels", argument="important")
        asked = (self.max_accuracy_drop, self.at_least, self.cost_matrix, self.confidence)
        goal = parse_goal(names, *asked, [names[index] for index in important], self.max_false_alarms)
        self.estimator_ = self.estimator if self._is_prefit else clone(self.estimator).fit(X, y, **for_fit)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.decision_, self.guarantee_, self.cv_results_ = None, None, {}
        if important:
            self._tune(goal, tuple(important), X, y, groups, for_fit, params.get("sample_weight"))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row by the tuned rule."""
        check_is_fitted(self)
        if self.decision_ is None:
            return self.estimator_.predict(X)
        return self.classes_[self.decision_.rule.predict(*score_rows(self.estimator_, X, self.classes_))]

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """The estimator's own probabilities; `predict` follows the rule, not the largest probability."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The estimator's own log-probabilities."""
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> np.ndarray:
        """The estimator's own scores."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)

    def get_metadata_routing(self) -> MetadataRouter:
        """The metadata that `fit` passes to the estimator and to the splitter."""
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self).add(estimator=self.estimator, method_mapping=to_fit)
        if not self._is_prefit:
            to_split = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=check_cv(self.cv, classifier=True), method_mapping=to_split)
        return router

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = inner.input_tags, inner.classifier_tags
        return tags

    @property
    def _is_prefit(self) -> bool:
        is_word = isinstance(self.cv, str) and self.cv == "prefit"
        return is_word or type(self.estimator).__name__ == "FrozenEstimator"

    def _tune(
        self,
        goal: Goal,
        important: tuple[int, ...],
        X: Any,
        y: np.ndarray,
        groups: Any,
        for_fit: Mapping[str, Any],
        weights: Any,
    ) -> None:
        codes = _codes(y, self.classes_)
        if self._is_prefit:
            parts = [np.arange(len(codes))]
            scored = [score_rows(self.estimator_, X, self.classes_)]
        else:
            pairs = list(self._splits(X, y, groups))
            parts = [held_out for _, held_out in pairs]
            jobs = (delayed(_score_fold)(clone(self.estimator), X, y, *pair, for_fit, self.classes_) for pair in pairs)
            scored = Parallel(n_jobs=self.n_jobs)(jobs)
        rows, kind = np.concatenate(parts), scored[0][1]
        table = np.concatenate([part for part, _ in scored])
        scores = exact(table, codes[rows], important, kind)
        units = None if groups is None else np.asarray(groups)[rows]
        if units is None and len(np.unique(rows)) < len(rows):  # repeated folds
            units = rows
        counted = None if weights is None else np.asarray(weights, dtype=np.float64)[rows]
        self._refuse_unweighted(scores, counted)
        where = make_where([str(label) for label in self.classes_], scores.labels, self.prevalence)
        if where.prevalence:
            there = weights_of(scores.labels, where)
            counted = there if counted is None or there is None else counted * there
        is_factor = kind == "probabilities"
        how: dict[str, Any] = {"groups": units, "weights": counted, "as_factor": is_factor, "rule": self.rule}
        if isinstance(goal, Within) and set(important) <= set(where.prevalence):
            how["prevalence"] = sum(where.prevalence[index] for index in important)
        if isinstance(goal, LeastCost):
            how["table"] = log_of(table) if is_factor else table
        self.decision_ = self._choose(goal, scores, how)
        self.guarantee_ = self.decision_.guarantee
        ends = np.cumsum([len(part) for part in parts])
        folds = [scores.take(np.arange(end - len(part), end)) for part, end in zip(parts, ends, strict=True)]
        self.cv_results_ = {"num_rows": np.array([len(part) for part in parts])}
        plain = argmax_of(important)
        for suffix, rule in (("_before", plain), ("", self.decision_.rule)):
            if isinstance(rule, LowestCost):
                continue
            self.cv_results_ |= {
                f"recall{suffix}": np.array([fold.recall(rule) for fold in folds]),
                f"accuracy{suffix}": np.array([fold.accuracy(rule) for fold in folds]),
                f"false_alarms{suffix}": np.array([fold.false_alarms(rule).mean() for fold in folds]),
            }

    def _choose(self, goal: Goal, scores: Scores, how: Mapping[str, Any]) -> OperatingPoint:
        """The operating point; a goal that no rule meets is refused, and too few rows change nothing."""
        tuner = Tuner(scores, goal, **how)
        chosen = tuner.choose()
        if not chosen.has_met:
            raise InputError(self._refusal(goal, tuner.point(chosen), how["groups"]), argument="at_least")
        few = [index for index, num in zip(scores.important, scores.num, strict=True) if num < FEWEST_ROWS]
        if few and not isinstance(goal, (AtLeast, Within)):
            names = ", ".join(repr(self.classes_.tolist()[index]) for index in few)
            warnings.warn(
                f"the decision is not changed: {names} has fewer than {FEWEST_ROWS} rows to tune on; give more rows",
                stacklevel=4,
            )
            return tuner.point(tuner.plain())
        return tuner.point(chosen, num_draws=20)

    def _refuse_unweighted(self, scores: Scores, weights: Any) -> None:
        for index in scores.important:
            if weights is not None and not weights[scores.labels == index].any():
                label = self.classes_.tolist()[index]
                raise InputError(f"sample_weight is 0 for every row of {label!r}, which is important", "sample_weight")

    def _splits(self, X: Any, y: np.ndarray, groups: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        is_number = isinstance(self.cv, (int, np.integer)) and not isinstance(self.cv, bool)
        if groups is not None and is_number:
            return StratifiedGroupKFold(int(self.cv)).split(X, y, groups)
        splitter = check_cv(self.cv, y, classifier=True)
        return splitter.split(X, y) if groups is None else splitter.split(X, y, groups)

    def _refusal(self, goal: Goal, point: OperatingPoint, groups: Any) -> str:
        """Message that no rule meets the goal, why, and what to do."""
        if isinstance(goal, Within):
            return "no cut-off surely keeps the budget on new rows; give a larger max_false_alarms, or more rows"
        if not isinstance(goal, AtLeast):
            return "no threshold keeps the accuracy; give rule='shift' or a larger max_accuracy_drop"
        important = list(find_important(self.important, self.classes_))
        names, recalls = (
            [repr(self.classes_.tolist()[index]) for index in important],
            [goal.of(k) for k in range(len(important))],
        )
        asked = ", ".join(f"{recall:g} of {name}" for recall, name in zip(recalls, names, strict=True))
        made = point.guarantee
        if made is None:
            return f"a recall of {asked} cannot be reached by any cut-off; give a lower at_least"
        units, remedy = "rows" if groups is None else "groups", "or confidence=None to reach it on the rows seen only"
        if made.obstacle == "few_units":
            missing = ", ".join(
                f"{num:,} more of {name} (has {has:,})"
                for num, name, has in zip(made.missing, names, made.num_units, strict=True)
                if num
            )
            return (
                f"a recall of {asked} cannot be guaranteed: it takes {missing} {units}; give a lower at_least, {remedy}"
            )
        found = ", ".join(f"{hits}/{num}" for hits, num in zip(made.hits, made.num, strict=True))
        wrong = f"a recall of {asked} cannot be guaranteed: no cut-off finds more than {found} of the held-out rows"
        return f"{wrong}; give a lower at_least, {remedy}"


def _score_fold(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    fitted: np.ndarray,
    held_out: np.ndarray,
    for_fit: Mapping[str, Any],
    classes: np.ndarray,
) -> tuple[np.ndarray, str]:
    """Fit on one side of a split and score the other."""
    own = {
        name: _safe_indexing(value, fitted) if hasattr(value, "__len__") and len(value) == len(y) else value
        for name, value in for_fit.items()
    }
    estimator.fit(_safe_indexing(X, fitted), y[fitted], **own)
    return score_rows(estimator, _safe_indexing(X, held_out), classes)


@dataclass(eq=False, kw_only=True)
class DecisionDisplay:
    """Plot of recall against false alarms for every value of a rule; made by `from_estimator`.

    false_alarms, recall: of each state of the rule (K,), as a share of all rows, and mean over the important classes.
    points: {name: (false alarms, recall)}, "as it is" and "tuned".
    """

    false_alarms: np.ndarray
    recall: np.ndarray
    points: Mapping[str, tuple[float, float]]
    name: str

    @classmethod
    def from_estimator(
        cls, estimator: ImportantClassifier, X: Any, y: Any, *, name: str | None = None, ax: Any = None, **line: Any
    ) -> "DecisionDisplay":
        """Plot the curve of a fitted `ImportantClassifier` on some rows; `line` is passed to matplotlib's `plot`."""
        check_is_fitted(estimator)
        if estimator.decision_ is None:
            raise InputError("the classifier has no important class and no rule; give it `important`", "estimator")
        rule, codes = estimator.decision_.rule, _codes(np.asarray(y), estimator.classes_)
        table, kind = score_rows(estimator.estimator_, X, estimator.classes_)
        scores = exact(table, codes, tuple(rule.values), kind)
        if isinstance(rule, LowestCost):
            raise InputError(
                "a decision by costs has no curve; draw one with at_least or max_accuracy_drop", "estimator"
            )
        curve = trace(scores, rule.name)
        points = {
            title: (float(scores.false_alarms(decision).mean()), float(scores.recall(decision).mean()))
            for title, decision in (("as it is", argmax_of(scores.important)), ("tuned", rule))
        }
        display = cls(
            false_alarms=curve.alarms / curve.total,
            recall=curve.mean_recall,
            points=points,
            name=name or type(estimator.estimator).__name__,
        )
        return display.plot(ax=ax, **line)

    def plot(self, ax: Any = None, *, name: str | None = None, **line: Any) -> "DecisionDisplay":
        """Draw into `ax`, or into new axes; sets `ax_`, `figure_` and `line_`."""
        require("a display", "matplotlib", install="matplotlib")
        from matplotlib import pyplot

        if ax is None:
            _, ax = pyplot.subplots()
        (self.line_,) = ax.plot(self.false_alarms, self.recall, **{"label": name or self.name, **line})
        for (title, (alarms, recall)), marker in zip(self.points.items(), "os", strict=True):
            how = {"color": self.line_.get_color(), "fillstyle": "none" if marker == "o" else "full"}
            ax.plot(alarms, recall, marker, label=title, **how)
        ax.set(xlabel="False alarms (share of all rows)", ylabel="Recall of the important classes")
        ax.legend(loc="lower right")
        self.ax_, self.figure_ = ax, ax.figure
        return self
