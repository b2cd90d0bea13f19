"""The finals' outcomes -> the model to hand over, chosen on validation data, and the claim, made on test images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camri.decision import SLACK
from camri.errors import InputError
from camri.fitting.result import Figures, Handed, Interval, Step
from camri.methods import BASELINE, Setting
from camri.metrics import Array, Scores
from camri.selection import ArmScores, Floor, Rule, Validation
from camri.stats import compare, design_effect, wilson
from camri.study.reader import RunReader
from camri.study.store import open_run
from camri.study.verdict import SEED, ColumnVerdict, correct_for_columns, is_sure, judge_column, picked
from camri.text import Noun

MOST_PAID = 3
LOOSE = 0.04  # ± of validation accuracy; where wider, shifts are small, and some models a point less accurate elsewhere


@dataclass(frozen=True, eq=False)
class Claim:
    """What the finals say: steps and who paid on test images; and which model to hand over, with its shift.

    `over_shifted` is what the method adds to a shift; None where cross-entropy is handed over. `is_unanimous`: both
    halves of the seeds picked the setting that is handed over. `caution`: what validation data could not say.
    """

    steps: tuple[Step, ...]
    paid: tuple[tuple[str, Interval], ...]
    over_shifted: Interval | None
    gain_is_shown: bool
    is_unanimous: bool
    setting: Setting
    seed: int
    shift: tuple[float, ...]
    num_seeds: int
    caution: str | None


def pick_model(setting: Validation, floor: Floor, rule: Rule) -> tuple[int, tuple[float, ...]]:
    """The seed of the setting's best model on validation data, and its shift, one number for each important class.

    The shift is tuned to all the setting's models together, and is 0 where none reaches the floor. Best: the highest
    recall of those that are at or above the floor with it; where no model is, the most accurate. Why together: the
    model that its own validation rows flatter most is given the most shift and wins. Of five cross-entropy models of
    CIFAR-10's cat, each with its own shift, the winner was 0.73 points less accurate on test images than
    cross-entropy; with the common shift it is 0.21 (60 draws of five from the ten finals of results/cifar10-cat).
    """
    tuned = rule.tune(setting, floor)
    shift = (0.0,) * len(next(iter(setting.scores.values())).important) if tuned is None else tuned.shift

    def worth(seed: int) -> tuple[float, float]:
        scores = setting.scores[seed]
        accuracy = scores.accuracy(shift)
        return (float(scores.recall(shift).mean()) if accuracy >= floor.accuracy - SLACK else -np.inf), accuracy

    return max(sorted(setting.scores), key=worth), shift


def loose_floor(baseline: Validation, noun: Noun, groups: Array | None = None) -> str | None:
    """A caution where validation data, which may come in groups (N,), are too few to hold accuracy on; else None."""
    right = np.mean([scores.correct() for scores in baseline.scores.values()], axis=0)
    effect = 1.0 if groups is None else design_effect(right, groups)
    low, high = wilson(right.sum() / effect, len(right) / effect)
    if high - low <= 2 * LOOSE:
        return None
    return (
        f"accuracy was held on {len(right):,} validation {noun.many}, which tell it to ± {50 * (high - low):.0f} "
        f"points; shifts are small for that, and still on other {noun.many} it may be lower by a point or two"
    )


def measure(setting: Setting, seed: int, shift: tuple[float, ...], test: Scores, groups: Array | None = None) -> Handed:
    """The figures of one model on test images, which may come in groups (N,)."""
    right, alarms, predicted, effects = test.correct(shift), test.false_alarms(shift), test.predict(shift), []
    if groups is not None:
        whole = np.ones(len(test), dtype=bool)
        found = [(right, test.labels == index) for index in test.important]
        found += [(right, whole), (alarms, whole), *((right, predicted == index) for index in test.important)]
        effects = [design_effect(values[rows], groups[rows]) if rows.any() else 1.0 for values, rows in found]
    hits, num, called = test.hits(shift).tolist(), test.num.tolist(), test.called(shift).tolist()
    return Handed.of(setting, seed, shift, hits, num, int(right.sum()), len(test), called, int(alarms.sum()), effects)


def claim_of(folder: Path, plain: Path | None, training_title: str, num_trainings: int) -> Claim:
    """What the run in the folder says; `plain` is the run with plain cross-entropy, where another training was chosen.

    The setting, the seed and the shift come from validation scores alone.
    """
    with RunReader(folder) as reading:
        (column,) = reading.columns
        verdict = judge_column(reading, column)
        best = verdict.best
        if best is None or verdict.baseline is None:
            raise InputError(f"{folder}: no cross-entropy trial of the finals ended well; see `camri study status`")
        # Each half of the seeds picks for the other. Where both keep cross-entropy, a method that only both halves
        # together prefer stands on too little, and the claim would not be about it.
        final = verdict.baseline if best.keeps_baseline else best.final
        seed, shift = pick_model(reading.validation(final, column), best.choice.final.floor, reading.rule)
        labels, seeds = reading.run.labels("test"), best.judgement.seeds
        before = _plain(plain, seeds, column.indices)
        is_baseline = final.key == verdict.baseline.key
        steps, arms = _steps(reading, verdict, is_baseline, before, training_title, num_trainings)
        (p,) = correct_for_columns([verdict])
        loose = loose_floor(reading.validation(verdict.baseline, column), reading.noun, reading.run.groups("val"))
        return Claim(
            steps=steps,
            paid=_paid(
                arms[-1].correct, arms[0].correct, labels, reading.run.groups("test"), column.indices, reading.classes
            ),
            over_shifted=None if is_baseline else Interval.of(best.gain),
            gain_is_shown=is_sure(best, p, reading.rule.max_accuracy_drop) and not is_baseline,
            is_unanimous=is_baseline or set(best.judgement.arms["chosen"].keys) == {final.key},
            setting=Setting.from_json(final.rows[0].setting),
            seed=seed,
            shift=shift,
            num_seeds=len(seeds),
            caution="; ".join(filter(None, [reading.mute_validation, loose])) or None,
        )


def _plain(folder: Path | None, seeds: Sequence[int], important: Sequence[int]) -> ArmScores | None:
    """Plain cross-entropy on test images, a row a seed; None where it is the finals' own."""
    if folder is None:
        return None
    with open_run(folder) as run:
        rows = {row.seed: row for row in run.rows(method=BASELINE)}
        if missing := [seed for seed in seeds if seed not in rows]:
            raise InputError(
                f"{folder}: plain cross-entropy has no trial of seed {missing[0]}; see `camri study status`"
            )
        own = [rows[seed] for seed in seeds]
        return ArmScores.of([run.scores(row, "test", important) for row in own], [(row.key, (0.0,)) for row in own])


def _steps(
    reading: RunReader,
    verdict: ColumnVerdict,
    is_baseline: bool,
    plain: ArmScores | None,
    training_title: str,
    num_trainings: int,
) -> tuple[tuple[Step, ...], list[ArmScores]]:
    """The steps, and what each does with the test images. Cross-entropy has no step of a method."""
    assert verdict.best is not None
    best, important = verdict.best, verdict.column.indices
    labels, groups = reading.run.labels("test"), reading.run.groups("test")
    arms = best.judgement.arms
    found: list[tuple[str, str, ArmScores]] = []
    if plain is not None:
        found.append(("before", "cross-entropy, plain training", plain))
        found.append(("training", f"+ better training: {training_title}", arms["baseline"]))
    else:
        none = f" ({num_trainings - 1} others were no better)" if num_trainings > 1 else ""
        found.append(("before", f"cross-entropy, plain training{none}", arms["baseline"]))
    found.append(("shift", "+ shift of the important scores", arms["baseline shifted"]))
    if not is_baseline:
        found.append(("method", f"+ method: {picked(verdict, best)}", arms["chosen"]))
    steps = []
    for place, (name, title, arm) in enumerate(found):
        changes = _changes(arm, found[place - 1][2], labels, groups, important) if place else (None, None, None)
        steps.append(Step(name, title, _figures(arm), *changes))
    last = found[-1][2]
    changes = _changes(last, found[0][2], labels, groups, important)
    steps.append(Step("together", "all together", _figures(last), *changes))
    return tuple(steps), [arm for _, _, arm in found]


def _changes(
    arm: ArmScores, other: ArmScores, labels: Array, groups: Array | None, important: Sequence[int]
) -> tuple[Interval, Interval, Interval]:
    """What the arm adds to the other's recall, accuracy and false alarms."""
    own = np.isin(labels, important)
    mine, its = arm.correct[:, own], other.correct[:, own]
    return (
        Interval.of(compare(mine, its, parts=labels[own], groups=_only(groups, own), seed=SEED)),
        Interval.of(compare(arm.correct, other.correct, groups=groups, seed=SEED)),
        Interval.of(compare(arm.false_alarms, other.false_alarms, groups=groups, seed=SEED)),
    )


def _only(groups: Array | None, rows: Array) -> Array | None:
    return None if groups is None else groups[rows]


def _figures(arm: ArmScores) -> Figures:
    return Figures(
        recall=float(arm.recall.mean()),
        hits=int(arm.hits.sum()),
        num=int(arm.num.sum()),
        accuracy=float(arm.accuracy.mean()),
        false_alarms=float(arm.false_alarms.mean()),
        precisions=tuple(
            hits / called if called else None
            for hits, called in zip(arm.hits.tolist(), arm.called.tolist(), strict=True)
        ),
    )


def _paid(
    after: Array,
    before: Array,
    labels: Array,
    groups: Array | None,
    important: Sequence[int],
    classes: Sequence[str],
) -> tuple[tuple[str, Interval], ...]:
    """The classes that lost most recall, with intervals, the greatest loss first."""
    others = [index for index in np.unique(labels).tolist() if index not in important]
    changes = {i: float(after[:, labels == i].mean() - before[:, labels == i].mean()) for i in others}
    lost = sorted((i for i in others if changes[i] < 0), key=lambda i: changes[i])[:MOST_PAID]

    def change(i: int) -> Interval:
        own = labels == i
        return Interval.of(compare(after[:, own], before[:, own], groups=_only(groups, own), seed=SEED))

    return tuple((classes[i], change(i)) for i in lost)
