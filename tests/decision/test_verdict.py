"""The table of verdicts: each row by evidence to which exactly it applies, and the sign of each figure."""

from dataclasses import replace

import numpy as np
import pytest

from camri.decision import verdict as verdicts
from camri.decision.compare import Arm, Change, Comparison, Evidence, Share
from camri.decision.goals import AtLeast, LeastCost, MostRecall
from camri.decision.verdict import TABLE, Context, conclude, gather_facts

UP, WIDE, FLAT, DOWN = (0.05, 0.02, 0.08), (0.05, -0.02, 0.12), (0.0, -0.01, 0.01), (-0.05, -0.08, -0.02)
COSTS = LeastCost(np.array([[0, 1], [9, 0]]))


def share(value=0.5):
    return Share(value, 250, 500)


def evidence(num_seeds=5, accuracy=0.01, alarms=FLAT, cost=None, **recalls):
    """Comparisons by "arm_over", each (value, low, high) of recall; the others are the same for all."""
    known = Change(accuracy, accuracy - 0.02, accuracy + 0.02)
    pairs = {tuple(pair.split("_")): values for pair, values in recalls.items() if values is not None}
    if ("method", "redecided") in pairs:
        pairs[("method", "baseline")] = pairs[("method", "redecided")]
    dear = None if cost is None else Change(*cost)
    made = tuple(Comparison(*pair, Change(*values), known, Change(*alarms), dear) for pair, values in pairs.items())
    arms = (Arm("baseline", "", num_seeds, (share(),), (share(),), share(), share()),)
    return Evidence(1000, num_seeds, None, "redecided", arms, made, ())


def fit(**changes):
    return Context(**{"trains": True, **changes})


def audit(**changes):
    return Context(**changes)


CAMRI = {"method": "CAMRI"}
# Row of the table, evidence, context, verdict, reason.
CASES = [
    (0, evidence(tuned_argmax=UP), audit(is_guaranteed=False), "cannot_guarantee", "not_guaranteed"),
    (1, evidence(tuned_argmax=UP), audit(is_guaranteed=True, is_changed=False), "keep_the_decision", ""),
    (2, evidence(tuned_argmax=DOWN), audit(is_guaranteed=True), "change_the_decision", ""),
    (3, evidence(method_redecided=UP), fit(learnt=False, **CAMRI), "cannot_tell", "not_learnt"),
    (4, evidence(method_redecided=UP, num_seeds=4), fit(**CAMRI), "cannot_tell", "few_seeds"),
    (5, evidence(method_redecided=UP), fit(num_rows=19, **CAMRI), "cannot_tell", "few_rows"),
    (5, evidence(tuned_argmax=UP), audit(num_rows=19), "cannot_tell", "few_rows"),
    (6, evidence(method_redecided=UP, redecided_baseline=UP), fit(**CAMRI), "train_with", ""),
    (6, evidence(method_redecided=UP, method_control=UP), fit(**CAMRI), "train_with", ""),
    (6, evidence(method_redecided=UP, method_shifted=UP, accuracy=0.03), fit(**CAMRI), "train_with", ""),
    (7, evidence(method_redecided=FLAT, redecided_baseline=UP), fit(**CAMRI), "change_the_decision", ""),
    (8, evidence(redecided_baseline=UP), fit(), "change_the_decision", ""),
    (8, evidence(redecided_baseline=UP, method_redecided=UP), fit(), "change_the_decision", ""),
    (8, evidence(redecided_baseline=UP, bolder_baseline=UP), fit(), "change_the_decision", ""),
    (8, evidence(redecided_baseline=UP), fit(still_improving=True, has_rivals=False), "change_the_decision", ""),
    (8, evidence(tuned_argmax=UP), audit(), "change_the_decision", ""),
    (9, evidence(tuned_argmax=UP, accuracy=-0.03), audit(), "at_a_price", "accuracy_dropped"),
    (10, evidence(redecided_baseline=DOWN), fit(still_improving=True), "cannot_tell", "still_improving"),
    (10, evidence(method_redecided=FLAT), fit(still_improving=True, **CAMRI), "cannot_tell", "still_improving"),
    (11, evidence(redecided_baseline=FLAT), fit(is_changed=False, has_rivals=False), "cannot_tell", "no_rivals"),
    (12, evidence(redecided_baseline=FLAT, bolder_baseline=UP), fit(is_changed=False), "cannot_tell", "not_chosen"),
    (12, evidence(redecided_baseline=DOWN, bolder_baseline=WIDE), fit(), "cannot_tell", "not_chosen"),
    (12, evidence(redecided_baseline=FLAT, method_redecided=WIDE), fit(is_changed=False), "cannot_tell", "not_chosen"),
    (12, evidence(method_redecided=FLAT, bolder_baseline=UP), fit(**CAMRI), "cannot_tell", "not_chosen"),
    (13, evidence(method_redecided=FLAT, redecided_baseline=FLAT), fit(**CAMRI), "nothing_to_gain", ""),
    (13, evidence(redecided_baseline=DOWN), fit(), "nothing_to_gain", ""),
    (13, evidence(redecided_baseline=FLAT), fit(is_changed=False), "nothing_to_gain", ""),
    (13, evidence(redecided_baseline=FLAT, bolder_baseline=FLAT), fit(is_changed=False), "nothing_to_gain", ""),
    (13, evidence(bolder_baseline=UP, accuracy=-0.03), fit(is_changed=False), "nothing_to_gain", ""),
    (13, evidence(method_redecided=(-0.01, -0.05, 0.03)), fit(is_changed=False), "nothing_to_gain", ""),
    (13, evidence(tuned_argmax=FLAT), audit(), "nothing_to_gain", "not_significant"),
    (14, evidence(method_redecided=WIDE, redecided_baseline=UP), fit(**CAMRI), "cannot_tell", "not_significant"),
    (14, evidence(redecided_baseline=WIDE), fit(), "cannot_tell", "not_significant"),
    (14, evidence(method_redecided=UP, method_control=DOWN), fit(**CAMRI), "cannot_tell", "control_as_good"),
    (14, evidence(method_redecided=UP, method_shifted=UP), fit(**CAMRI), "cannot_tell", "shift_as_good"),
    (14, evidence(method_redecided=UP, accuracy=-0.03), fit(**CAMRI), "cannot_tell", "accuracy_dropped"),
    (14, evidence(redecided_baseline=UP, accuracy=-0.03), fit(), "cannot_tell", "accuracy_dropped"),
]


@pytest.mark.parametrize(("row", "found", "context", "kind", "reason"), CASES)
def test_each_row_of_the_table_gives_its_verdict(row, found, context, kind, reason):
    facts = gather_facts(found, MostRecall(), context)
    assert next(place for place, rule in enumerate(TABLE) if rule[2](facts)) == row
    verdict = conclude(found, MostRecall(), context)
    assert (verdict.kind, verdict.reason) == (kind, reason)


def test_every_row_is_tested_and_needed(monkeypatch):
    """A row whose condition is turned round, or that is left out, changes the verdict of one of its cases."""
    assert {row for row, *_ in CASES} == set(range(len(TABLE)))
    for place, (kind, reason, applies) in enumerate(TABLE):
        mine = [case for case in CASES if case[0] == place]
        turned = (kind, reason, lambda facts, applies=applies: not applies(facts))
        for table in ((*TABLE[:place], turned, *TABLE[place + 1 :]), TABLE[:place] + TABLE[place + 1 :]):
            monkeypatch.setattr(verdicts, "TABLE", table)
            wrong = []
            for _, found, context, kind_of_case, reason_of_case in mine:
                try:
                    verdict = conclude(found, MostRecall(), context)
                except StopIteration:  # no row is left
                    wrong.append(True)
                else:
                    wrong.append((verdict.kind, verdict.reason) != (kind_of_case, reason_of_case))
            assert any(wrong), place


def flipped(change):
    return None if change is None else replace(change, value=-change.value, low=-change.high, high=-change.low)


@pytest.mark.parametrize(
    ("goal", "figure"), [(MostRecall(), "recall"), (AtLeast(0.9), "false_alarms"), (COSTS, "cost")]
)
def test_the_same_figures_with_the_other_sign_are_no_gain(goal, figure):
    """More recall is better, and fewer false alarms and less cost."""
    better = {"false_alarms": {"alarms": (-0.02, -0.03, -0.01)}, "cost": {"cost": (-2.0, -3.0, -1.0)}}.get(figure, {})
    recall = UP if figure == "recall" else FLAT
    for arm, over, context, kind in [
        ("method", "redecided", fit(**CAMRI), "train_with"),
        ("redecided", "baseline", fit(), "change_the_decision"),
        ("tuned", "argmax", audit(), "change_the_decision"),
    ]:
        found = evidence(**{f"{arm}_{over}": recall}, **better)
        verdict = conclude(found, goal, context)
        assert (verdict.kind, verdict.reason, verdict.arm, verdict.over) == (kind, "", arm, over)
        assert (verdict.figure, verdict.gain) == (figure, getattr(found.compare(arm, over), figure))
        turned = tuple(replace(one, **{figure: flipped(getattr(one, figure))}) for one in found.comparisons)
        assert conclude(replace(found, comparisons=turned), goal, context).kind not in (kind, "at_a_price")


def test_the_method_of_a_verdict_is_what_was_chosen():
    alone = conclude(evidence(method_redecided=FLAT, redecided_baseline=UP), MostRecall(), fit(**CAMRI))
    assert (alone.method, alone.arm, alone.over) == ("CAMRI", "redecided", "baseline")
    best = conclude(evidence(method_redecided=UP), MostRecall(), fit(**CAMRI))
    assert (best.method, best.gain, best.over) == ("CAMRI", Change(*UP), "redecided")
    none = conclude(evidence(redecided_baseline=FLAT, bolder_baseline=UP), MostRecall(), fit(is_changed=False))
    assert (none.method, none.arm, none.over, none.gain) == (None, "bolder", "baseline", Change(*UP))


def test_a_drop_that_is_allowed_is_none():
    found = evidence(redecided_baseline=UP, accuracy=-0.03)
    assert conclude(found, MostRecall(0.01), fit()).kind == "change_the_decision"
    assert conclude(found, MostRecall(0.0), fit()).reason == "accuracy_dropped"


def test_what_would_help_is_counted_in_rows():
    verdict = conclude(evidence(redecided_baseline=(0.0, -0.2, 0.2)), MostRecall(), fit())
    assert (verdict.more_rows, verdict.settles) == (300, 0.1)  # half as wide takes four times the 100 rows
    assert conclude(evidence(redecided_baseline=UP), MostRecall(), fit(num_rows=15)).more_rows == 5


def test_at_a_recall_false_alarms_decide_unless_argmax_missed_it():
    goal = AtLeast(0.9, 0.95)
    fewer = evidence(method_redecided=FLAT, redecided_baseline=UP, alarms=(-0.02, -0.03, -0.01))
    assert conclude(fewer, goal, fit(**CAMRI)).kind == "train_with"
    more = evidence(method_redecided=UP, redecided_baseline=UP, alarms=(0.02, 0.01, 0.03))
    alone = conclude(more, goal, fit(**CAMRI))
    assert (alone.kind, alone.method, alone.over) == ("change_the_decision", "CAMRI", "baseline")
    reached = conclude(more, goal, fit())
    assert (reached.kind, reached.figure, reached.gain) == ("change_the_decision", "recall", Change(*UP))


def test_below_three_seeds_there_is_no_interval_and_no_proof():
    found = evidence(num_seeds=2)
    known = Change(0.1)
    found = replace(found, comparisons=(Comparison("redecided", "baseline", known, known, known),))
    assert conclude(found, MostRecall(), fit()).reason == "few_seeds"
    assert gather_facts(found, MostRecall(), fit()).rule.reason == "not_significant"


def test_a_control_is_judged_by_the_figure_that_decides():
    """As few false alarms as its head without a margin has are no gain of the margin."""
    fewer = {"method_redecided": FLAT, "redecided_baseline": FLAT, "method_control": FLAT}
    found = evidence(**fewer, alarms=(-0.02, -0.03, -0.01))
    assert conclude(found, AtLeast(0.9), fit(**CAMRI)).kind == "train_with"
    worse = Change(0.01, 0.005, 0.015)
    turned = [replace(one, false_alarms=worse) if one.over == "control" else one for one in found.comparisons]
    assert conclude(replace(found, comparisons=tuple(turned)), AtLeast(0.9), fit(**CAMRI)).reason == "control_as_good"


def test_a_larger_shift_within_the_allowed_drop_is_worth_naming():
    found = evidence(redecided_baseline=FLAT, bolder_baseline=UP, accuracy=-0.03)
    for drop, reason in ((0.0, ""), (0.005, ""), (0.02, "not_chosen")):
        assert conclude(found, MostRecall(drop), fit(is_changed=False)).reason == reason
    found = evidence(redecided_baseline=FLAT, bolder_baseline=UP, accuracy=-0.015)  # it may cost nothing
    assert conclude(found, MostRecall(0.0), fit(is_changed=False)).reason == "not_chosen"
