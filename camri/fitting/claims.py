"""From the finals' outcomes to the model to hand over, chosen on validation data, and the evidence on test images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camri.decision import SLACK
from camri.errors import InputError
from camri.fitting.result import LEAST_SEEDS, Evidence, Figures, Gains, Handed, Step
from camri.methods import Setting
from camri.metrics import Array, Scores
from camri.selection import ArmScores, Floor, Rule, Validation
from camri.stats import Estimate, compare, design_effect, wilson
from camri.study.reader import RunReader
from camri.study.store import open_run
from camri.study.verdict import SEED, ColumnVerdict, Judged, correct_for_columns, is_sure, judge_column
from camri.text import Noun

MOST_LOST = 3
LOOSE = 0.04  # ± of validation accuracy; if wider, shifts are small, and some models a point less accurate elsewhere


@dataclass(frozen=True, eq=False)
class Claim:
    """The evidence, which model to hand over with its shift, and what validation data could not decide."""

    evidence: Evidence
    setting: Setting
    seed: int
    shift: tuple[float, ...]
    cautions: tuple[str, ...]


def pick_model(setting: Validation, floor: Floor, rule: Rule) -> tuple[int, tuple[float, ...]]:
    """The seed of the setting's best model on validation data, and its shift, one number for each important class.

    The shift is tuned on all the setting's models together, and is 0 if none reaches the floor. Best: the highest
    recall of the models at or above the floor with this shift; if none is, the most accurate. Why together: with
    shifts of their own, the model that its validation rows flatter most gets the largest shift and wins. Of five
    cross-entropy models of CIFAR-10's cat, that winner lost 0.73 points of accuracy on test images; with the common
    shift it loses 0.21 (60 draws of five from the ten finals of results/cifar10-cat).
    """
    tuned = rule.tune(setting, floor)
    shift = (0.0,) * len(next(iter(setting.scores.values())).important) if tuned is None else tuned.shift

    def worth(seed: int) -> tuple[float, float]:
        scores = setting.scores[seed]
        accuracy = scores.accuracy(shift)
        return (float(scores.recall(shift).mean()) if accuracy >= floor.accuracy - SLACK else -np.inf), accuracy

    return max(sorted(setting.scores), key=worth), shift


def loose_floor(baseline: Validation, noun: Noun, groups: Array | None = None) -> str | None:
    """A caution if validation data, which may come in groups (N,), are too few to hold accuracy on; else None."""
    right = np.mean([scores.correct() for scores in baseline.scores.values()], axis=0)
    effect = 1.0 if groups is None else design_effect(right, groups)
    low, high = wilson(right.sum() / effect, len(right) / effect)
    if high - low <= 2 * LOOSE:
        return None
    return (
        f"accuracy was held on {len(right):,} validation {noun.many}, which measure it to ± {50 * (high - low):.0f} "
        f"points only; on new {noun.many} it may be a point or two lower"
    )


def measure(setting: Setting, seed: int, shift: tuple[float, ...], test: Scores, groups: Array | None = None) -> Handed:
    """The counts of one model on test images, which may come in groups (N,)."""
    right, alarms, predicted, effects = test.correct(shift), test.false_alarms(shift), test.predict(shift), []
    if groups is not None:
        whole = np.ones(len(test), dtype=bool)
        shares = [(right, test.labels == index) for index in test.important]
        shares += [(right, whole), (alarms, whole), *((right, predicted == index) for index in test.important)]
        effects = [design_effect(values[rows], groups[rows]) if rows.any() else 1.0 for values, rows in shares]
    return Handed(
        setting=setting,
        seed=seed,
        shift=shift,
        hits=tuple(test.hits(shift).tolist()),
        num=tuple(test.num.tolist()),
        called=tuple(test.called(shift).tolist()),
        num_right=int(right.sum()),
        num_images=len(test),
        num_false_alarms=int(alarms.sum()),
        effects=tuple(effects),
    )


def claim_of(folder: Path, plain: Path | None, training_title: str, num_trainings: int) -> Claim:
    """Judge the finals in the folder; `plain` is the run of plain cross-entropy, if another training was chosen.

    The setting, the seed and the shift come from validation scores alone.
    """
    with RunReader(folder) as reading:
        (column,) = reading.columns
        verdict = judge_column(reading, column)
        best = verdict.best
        if best is None or verdict.baseline is None:
            raise InputError(f"{folder}: every cross-entropy trial of the finals failed; see `camri study status`")
        # Each half of the seeds chooses for the other. If both keep cross-entropy, a method that only both halves
        # together prefer stands on too little, and the evidence would not be about it.
        final = verdict.baseline if best.keeps_baseline else best.final
        is_baseline = final.key == verdict.baseline.key
        seed, shift = pick_model(reading.validation(final, column), best.choice.final.floor, reading.rule)
        labels, groups = reading.run.labels("test"), reading.run.groups("test")
        arms = best.judgement.arms
        before = _plain(plain, best.judgement.seeds, column.indices)
        titled = [("before", "cross-entropy", before or arms["baseline"])]
        if before is not None:
            titled.append(("training", f"+ training: {training_title}", arms["baseline"]))
        elif num_trainings > 1:
            others = "1 other training was" if num_trainings == 2 else f"{num_trainings - 1} other trainings were"
            titled = [("before", f"cross-entropy ({others} no better)", arms["baseline"])]
        titled.append(("shift", "+ shift of the important scores", arms["baseline shifted"]))
        if not is_baseline:
            titled.append(("method", f"+ method: {_chosen(verdict, best)}", arms["chosen"]))
        (p,) = correct_for_columns([verdict])
        num_seeds = len(best.judgement.seeds)
        evidence = Evidence(
            steps=make_steps(titled, labels, groups, column.indices),
            lost=find_lost(
                titled[-1][2].correct, titled[0][2].correct, labels, groups, column.indices, reading.classes
            ),
            over_shifted=None if is_baseline else best.gain.plain,
            p=p,
            gain_is_shown=not is_baseline
            and num_seeds >= LEAST_SEEDS
            and is_sure(best, p, reading.rule.max_accuracy_drop),
            is_unanimous=is_baseline or set(arms["chosen"].keys) == {final.key},
            num_seeds=num_seeds,
        )
        loose = loose_floor(reading.validation(verdict.baseline, column), reading.noun, reading.run.groups("val"))
        cautions = tuple(filter(None, [reading.mute_validation, loose]))
        return Claim(evidence, final.setting, seed, shift, cautions)


def _chosen(verdict: ColumnVerdict, best: Judged) -> str:
    """The settings chosen for the seeds, the most frequent first; if several, with their numbers of seeds."""
    keys = best.judgement.arms["chosen"].keys
    counts = sorted({key: keys.count(key) for key in keys}.items(), key=lambda pair: -pair[1])
    titles = [(verdict.find(key, best.final.method).title, num) for key, num in counts]
    return titles[0][0] if len(titles) == 1 else ", ".join(f"{title} ({num})" for title, num in titles)


def _plain(folder: Path | None, seeds: Sequence[int], important: Sequence[int]) -> ArmScores | None:
    """Plain cross-entropy on test images, a row per seed; None if it is the finals' own."""
    if folder is None:
        return None
    with open_run(folder) as run:
        rows = {row.seed: row for row in run.rows(method="ce")}
        if missing := [seed for seed in seeds if seed not in rows]:
            raise InputError(
                f"{folder}: plain cross-entropy has no trial of seed {missing[0]}; see `camri study status`"
            )
        own = [rows[seed] for seed in seeds]
        return ArmScores.of([run.scores(row, "test", important) for row in own], [(row.key, (0.0,)) for row in own])


def make_steps(
    titled: Sequence[tuple[str, str, ArmScores]], labels: Array, groups: Array | None, important: Sequence[int]
) -> tuple[Step, ...]:
    """The steps of (name, title, scores), each with its gains over the one before, and all together at the end."""
    (first_name, first_title, first), *rest = titled
    steps = [Step(first_name, first_title, figures_of(first), None)]
    pairs = [*zip(rest, [first, *(arm for *_, arm in rest)], strict=False)]
    for (name, title, arm), other in [*pairs, (("together", "all together", rest[-1][2]), first)]:
        steps.append(Step(name, title, figures_of(arm), compare_arms(arm, other, labels, groups, important)))
    return tuple(steps)


def compare_arms(
    arm: ArmScores, other: ArmScores, labels: Array, groups: Array | None, important: Sequence[int]
) -> Gains:
    """arm − other: recall, accuracy and false alarms."""
    own = np.isin(labels, important)
    mine, its = arm.correct[:, own], other.correct[:, own]
    return Gains(
        compare(mine, its, parts=labels[own], groups=_only(groups, own), seed=SEED).plain,
        compare(arm.correct, other.correct, groups=groups, seed=SEED).plain,
        compare(arm.false_alarms, other.false_alarms, groups=groups, seed=SEED).plain,
    )


def _only(groups: Array | None, rows: Array) -> Array | None:
    return None if groups is None else groups[rows]


def figures_of(arm: ArmScores) -> Figures:
    """The figures of several models."""
    counts = zip(arm.hits.tolist(), arm.called.tolist(), strict=True)
    return Figures(
        recall=float(arm.recall.mean()),
        hits=int(arm.hits.sum()),
        num=int(arm.num.sum()),
        accuracy=float(arm.accuracy.mean()),
        false_alarms=float(arm.false_alarms.mean()),
        precisions=tuple(hits / called if called else None for hits, called in counts),
    )


def find_lost(
    after: Array, before: Array, labels: Array, groups: Array | None, important: Sequence[int], classes: Sequence[str]
) -> tuple[tuple[str, Estimate], ...]:
    """The classes that lost most recall, the greatest loss first."""
    others = [index for index in np.unique(labels).tolist() if index not in important]
    changes = {i: float(after[:, labels == i].mean() - before[:, labels == i].mean()) for i in others}
    lost = sorted((i for i in others if changes[i] < 0), key=lambda i: changes[i])[:MOST_LOST]

    def change(i: int) -> Estimate:
        own = labels == i
        return compare(after[:, own], before[:, own], groups=_only(groups, own), seed=SEED).plain

    return tuple((classes[i], change(i)) for i in lost)
