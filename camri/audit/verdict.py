"""Scores and labels -> what the important classes' recall is, what a shift would add for free, and how sure that is."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from camri.audit.calibration import Calibration
from camri.audit.change import compare_rows
from camri.audit.parts import tune_and_judge
from camri.audit.result import Alarms, Audit, ClassResult, Price, Promise, Rate
from camri.audit.scores import Checked, check, exact, rows_of
from camri.errors import InputError
from camri.guarantee import assure
from camri.metrics import Array, Scores
from camri.posthoc import PRIOR_ROWS, Curve, Prior, choose_shift, trace
from camri.stats import FALL

FEWEST_ROWS = 20  # of an important class: with fewer an interval of its recall is wider than .4
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 1.0)  # recalls whose price is told


def audit(
    scores: ArrayLike,
    labels: ArrayLike,
    important: str | int | Sequence[str | int],
    *,
    classes: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    kind: str | None = None,
    tolerance: float = 0.0,
    at_least: float | None = None,
    confidence: float = 0.95,
) -> Audit:
    """What a trained model's important classes could gain from a shift, judged on rows it was not tuned on.

    scores: (N, C), logits or probabilities (told apart unless `kind` says which); labels: names or indices (N,).
    split: "val" or "test" for each row: the shift is then tuned on val and judged on test. Without it each tenth of
    the rows is judged with the shift that the other nine tenths tuned; what is recommended is tuned on all of them.
    groups: the patient, film or track of each row (N,), names or numbers. Groups are then tuned on or judged whole, and
    intervals count rows for as many as they are worth. Without it rows count as independent.
    tolerance: accuracy that may be given up, 0.01 for a point.
    at_least: a recall to promise of new rows, with such a confidence (`camri.guarantee.assure`): the smallest shift for
    it and what it costs. It is made of all rows, with a split of those of val.

    Of 200 made tables each (300 to 4,000 rows, a tenth of them important, with and without something to gain) the
    recommended shift's true change lay within the 95 % intervals for .86 to 1.0 and below them for up to .045. Halves
    that tune for each other: .76 to 1.0 and up to .095, for a half chooses another shift than the whole. With eight
    rows a group, half of their noise shared: .925 to 1.0 and up to .02 told the groups, .83 to .99 and up to .08 not
    told (benchmarks/audit.py).

    >>> drawn = np.random.default_rng(0)
    >>> labels = drawn.integers(0, 3, 600)
    >>> scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 1.5, 0]
    >>> found = audit(scores, labels, "stop", classes=["limit", "stop", "yield"])
    >>> found.kind, round(found.shift, 2), round(found.recall.estimate, 2), round(found.accuracy.estimate, 2)
    ('gain', 2.41, 0.43, 0.02)
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance={tolerance!r} (--keep-accuracy) is not allowed; give 0 to 1, 0.01 for a point")
    checked = check(scores, labels, important, classes, kind, groups)
    _doubt_empty(checked)
    every = exact(checked.logits, checked.labels, checked.important)
    parts, tuned_on = tune_and_judge(checked, split)
    judged = np.sort(np.concatenate([rows for _, rows in parts]))
    _refuse_empty(checked, every, judged, parts)
    predicted, tuned = every.predict(), np.zeros(len(every), dtype=bool)
    expected = np.zeros(len(every))
    for tuning, rows in parts:
        tuned[tuning] = True
        part_shift, calibration = _tune(rows_of(every, tuning), checked.logits[tuning], tolerance)
        part = rows_of(every, rows)
        predicted[rows] = part.predict(part_shift)
        moved = predicted[rows] != part.predict()
        expected[rows[moved]] = calibration.gain(checked.logits[rows[moved]], every.important)
    whole = np.flatnonzero(tuned)
    here = rows_of(every, judged)
    before, after = here.correct(), here.is_right(predicted[judged])
    own = np.isin(here.labels, every.important)
    marks = checked.groups_of(judged)
    recall = compare_rows(before[own], after[own], here.labels[own], checked.groups_of(judged[own]))
    accuracy = compare_rows(before, after, groups=marks).expecting(float(expected[judged].mean()), PRIOR_ROWS)
    enough = min(int(here.num.min()), int(rows_of(every, whole).num.min())) >= FEWEST_ROWS
    shift, _ = _tune(rows_of(every, whole), checked.logits[whole], tolerance)
    is_free = accuracy.high >= -tolerance and accuracy.chance_of_fall(tolerance + FALL) < 0.5
    curve = trace(here)
    return Audit(
        classes=checked.classes,
        important=tuple(checked.classes[index] for index in checked.important),
        scores_are=checked.kind,
        num_rows=len(every),
        tuned_on=tuned_on,
        tolerance=tolerance,
        kind="unknown" if not enough else "gain" if shift > 0 and recall.low > 0 and is_free else "none",
        shift=shift,
        recall=recall,
        accuracy=accuracy,
        accuracy_before=Rate.of(before, marks),
        accuracy_after=Rate.of(after, marks),
        alarms=_alarms(here, predicted[judged], marks),
        by_class=tuple(_by_class(checked, judged, before, after)),
        prices=tuple(_prices(curve, here)),
        curve=curve,
        num_groups=None if checked.groups is None else len(checked.group_names),
        promise=None if at_least is None else _promise(checked, every, whole, judged, at_least, confidence),
    )


def _promise(
    checked: Checked, every: Scores, tuning: Array, judged: Array, at_least: float, confidence: float
) -> Promise:
    found = assure(rows_of(every, tuning), at_least, confidence, checked.groups_of(tuning))
    here, marks, shift = rows_of(every, judged), checked.groups_of(judged), found.shift or 0.0
    right = here.correct(shift)
    own = [np.flatnonzero(here.labels == index) for index in every.important]
    return Promise(
        guarantee=found,
        recall=tuple(Rate.of(right[rows], checked.groups_of(judged[rows])) for rows in own),
        accuracy=Rate.of(right, marks),
        precision=_mean(here.precision(shift)),
        false_alarms=Rate.of(here.false_alarms(shift), marks),
    )


def _mean(shares: Array) -> float | None:
    """The mean of the shares; None where one is nan, a share of nothing."""
    return None if np.isnan(shares).any() else float(shares.mean())


def _alarms(scores: Scores, predicted: Array, groups: Array | None) -> Alarms:
    """What the scores take for an important class, and what such predictions with a shift do."""

    def precision(said: Array, index: int) -> Rate:
        own = said == index
        return Rate.of(scores.is_right(said)[own], None if groups is None else groups[own])

    now = scores.predict()
    before, after = scores.is_false_alarm(now), scores.is_false_alarm(predicted)
    return Alarms(
        Rate.of(before, groups),
        Rate.of(after, groups),
        compare_rows(before, after, groups=groups),
        tuple((precision(now, index), precision(predicted, index)) for index in scores.important),
    )


def _tune(scores: Scores, logits: Array, tolerance: float) -> tuple[float, Calibration]:
    """The shift, at least 0, with the best recall at an expected accuracy no lower than allowed; and the calibration.

    What to expect is what the rows show, and what their calibrated probabilities say as if those were 500 rows more.
    """
    calibration = Calibration.of(logits, scores.labels, scores.important)
    found = choose_shift(
        scores,
        accuracy_floor=scores.accuracy() - tolerance,
        prior=Prior.of(scores),
        gain=calibration.gain(logits, scores.important),
    )
    assert found is not None, "no shift at all keeps the accuracy as it is"
    return found.shift[0], calibration


def _doubt_empty(checked: Checked) -> None:
    """Warns where no row has the class that is predicted most: its column may hold ages, or the highest score."""
    counts = np.bincount(checked.logits.argmax(axis=1))
    most = int(counts.argmax())
    if not (checked.labels == most).any():
        warnings.warn(
            f"{checked.classes[most]!r} is predicted for {counts[most]:,} of {len(checked.labels):,} rows, and no row "
            "has that label; if its column holds no scores of a class, drop it",
            stacklevel=3,
        )


def _refuse_empty(checked: Checked, every: Scores, judged: Array, parts: Sequence[tuple[Array, Array]]) -> None:
    for index in checked.important:
        for where, rows in (("judge", judged), *(("tune on", tuning) for tuning, _ in parts)):
            num = int((every.labels[rows] == index).sum())
            if num == 0:
                name = checked.classes[index]
                own = every.labels == index
                apart = "" if checked.groups is None else f", in {len(np.unique(checked.groups[own]))} groups,"
                raise InputError(
                    f"important class {name!r} has {own.sum()} rows in all{apart} and none to {where}; give at least "
                    f"{FEWEST_ROWS}{' in several groups' if apart else ''}"
                )


def _by_class(checked: Checked, judged: Array, before: Array, after: Array) -> Iterator[ClassResult]:
    labels, predicted = checked.labels[judged], checked.logits[judged].argmax(axis=1)
    for index, name in enumerate(checked.classes):
        own = labels == index
        marks = checked.groups_of(judged[own])
        wrong = np.bincount(predicted[own & ~before], minlength=len(checked.classes))
        order = [place for place in np.argsort(-wrong, kind="stable").tolist() if wrong[place]]
        yield ClassResult(
            name,
            index in checked.important,
            Rate.of(before[own], marks),
            Rate.of(after[own], marks),
            compare_rows(before[own], after[own], groups=marks) if own.any() else None,
            tuple((checked.classes[place], int(wrong[place])) for place in order[:5]),
        )


def _prices(curve: Curve, scores: Scores) -> Iterator[Price]:
    """What more recall costs than the model has now: at the highest accuracy, then recall by recall."""
    start = int(np.flatnonzero(curve.shift == 0.0)[0])
    now = float(curve.mean_recall[start])
    states = [start + int(curve.accuracy[start:].argmax()), *(int(curve.reach(target)) for target in TARGETS)]
    last = start
    for state in states:
        # Important classes taken for each other stay so: their mean recall ends below 1.
        if last < state < len(curve.shift) and curve.mean_recall[state] > now:
            last = state
            yield Price(
                float(curve.mean_recall[state]),
                float(curve.shift[state]),
                float(curve.accuracy[state]),
                float(scores.false_alarms(curve.shift[state]).mean()),
                _mean(curve.precision[state]),
            )
