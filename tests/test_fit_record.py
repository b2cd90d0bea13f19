"""A fit's record: its JSON, and the sentences made from it."""

from dataclasses import replace

import pytest

from camri.errors import InputError
from camri.fit_record import (
    ANSWER_FILE,
    Arm,
    Change,
    ClassChange,
    Comparison,
    Counts,
    Effort,
    Evidence,
    FitRecord,
    Goal,
    HandedOver,
    Length,
    Verdict,
    compose,
    headline,
    lost_recall,
    read_record,
    rule_text,
    show,
    verdict,
)

BEFORE = Counts((50,), (54,), (52,), 2, 526, 539)
AFTER = Counts((53,), (54,), (56,), 3, 528, 539)
GAIN = Change(0.041, 0.012, 0.07)


def make_record(**changes):
    arms = tuple(
        Arm(name, title, recall, 0.98, 0.004, 530, 540, (0.95,))
        for name, title, recall in [
            ("baseline", "baseline", 0.926),
            ("redecided", "baseline, tuned", 0.940),
            ("method", "two-sided margin, m=1, tuned", 0.981),
        ]
    )
    gains = tuple(
        Comparison(arm, over, GAIN, Change(0.001, -0.001, 0.003), Change(0.0, -0.001, 0.001))
        for arm, over in [("redecided", "baseline"), ("method", "redecided"), ("method", "baseline")]
    )
    losses = (ClassChange("3", Change(-0.02, -0.03, -0.01)), ClassChange("7", Change(-0.01, -0.02, 0.0)))
    record = FitRecord(
        data="digits",
        noun=("image", "images"),
        num_rows={"train": 1006, "val": 252, "test": 539},
        classes=tuple("0123456789"),
        important=(9,),
        goal=Goal(),
        handed=HandedOver(
            "two_sided_logits", "two-sided margin, m=1", 503, "small", 40,
            {"rule": "shift", "values": {"9": 0.43}}, BEFORE, AFTER,
        ),
        verdict=Verdict("train_with", method="two-sided margin, m=1", arm="method", over="redecided", gain=GAIN),
        evidence=Evidence(10, arms, gains, losses),
        effort=Effort((Length(20, 0.97), Length(40, 0.98)), False, "plain", 11, 60, 0, 61.0, "--budget 3m"),
        cautions=(),
        command="camri fit digits",
        finished=True,
    )  # fmt: skip
    return replace(record, **changes)


def test_the_first_line_is_about_the_model_handed_over():
    assert compose(make_record())[0] == (
        "Finds 53 of 54 “9” (before: 50), with 3 false alarms among 485 others (before: 2); "
        "accuracy 98.0 % (before: 97.6 %)."
    )


def test_an_undertrained_answer_begins_with_it():
    effort = replace(make_record().effort, still_improving=True)
    assert headline(make_record(effort=effort)).startswith("Still improving when the time was up. Finds 53")
    counted = replace(effort, enough="--trials 40")
    assert headline(make_record(effort=counted)).startswith("Still improving when the trials were used up. Finds 53")


def test_costs_are_in_the_first_line():
    record = make_record()
    costs = replace(record.handed, before=replace(BEFORE, cost=0.5), after=replace(AFTER, cost=0.25))
    assert headline(replace(record, handed=costs)).endswith("; mean cost 0.25 (before: 0.5).")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            Verdict("train_with", method="CAMRI", arm="method", over="redecided", gain=GAIN),
            "Train with CAMRI: recall +4.1 points (95 % CI +1.2 to +7.0) over cross-entropy with a tuned decision "
            "(10 seeds).",
        ),
        (
            Verdict("change_the_decision", arm="redecided", over="baseline", gain=GAIN),
            "Change the decision; no retraining needed: recall +4.1 points (95 % CI +1.2 to +7.0) over argmax "
            "(10 seeds).",
        ),
        (
            Verdict("change_the_decision", method="two-sided margin", arm="redecided", over="baseline", gain=GAIN),
            "Change the decision; no retraining needed: recall +4.1 points (95 % CI +1.2 to +7.0) over argmax "
            "(10 seeds). Two-sided margin adds less than 2 points.",
        ),
        (
            Verdict("nothing_to_gain", method="CAMRI", arm="method", over="redecided", gain=Change(0.0, -0.01, 0.01)),
            "Nothing to gain: on test data CAMRI gives recall 0.0 points (95 % CI −1.0 to +1.0) over cross-entropy "
            "with a tuned decision (10 seeds); 2 points are excluded.",
        ),
        (
            Verdict("nothing_to_gain"),
            "Nothing to gain: no method and no decision rule was better than plain cross-entropy without losing "
            "accuracy.",
        ),
        (
            Verdict("cannot_tell", "not_significant", "CAMRI", "method", "redecided", Change(0.1, -0.1, 0.3), 60, 0.1),
            "Cannot tell yet: CAMRI gives recall +10.0 points (95 % CI −10.0 to +30.0) over cross-entropy with a tuned "
            "decision, which may be chance. About 60 more test images of “9” would settle a difference of 10 points.",
        ),
        (
            Verdict("cannot_tell", "shift_as_good", "CAMRI", "method", "redecided", GAIN),
            "Cannot tell yet: CAMRI gives recall +4.1 points (95 % CI +1.2 to +7.0) over cross-entropy with a tuned "
            "decision, but cross-entropy shifted to the same recall may be as accurate.",
        ),
        (
            Verdict("cannot_tell", "not_chosen", arm="method", over="redecided", gain=GAIN),
            "Cannot tell yet: on test data two-sided margin, m=1, tuned gives recall +4.1 points (95 % CI +1.2 to "
            "+7.0) over cross-entropy with a tuned decision, but it was not the best on validation data. Add "
            "validation images, or allow a drop: --max-accuracy-drop 0.005.",
        ),
        (
            Verdict("cannot_tell", "not_chosen", arm="bolder", over="baseline", gain=GAIN),
            "Cannot tell yet: a larger shift than validation data chose may find 2 points more on test data without "
            "losing accuracy. Add validation images, or allow a drop: --max-accuracy-drop 0.005.",
        ),
        (
            Verdict("cannot_tell", "few_rows"),
            "Cannot tell yet: fewer than 20 validation or test images of an important class. Label more images of it.",
        ),
        (
            Verdict("cannot_tell", "not_learnt"),
            "Cannot tell yet: cross-entropy is no better than guessing, so nothing can be compared with it. The "
            "same command with --budget 3m resumes.",
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_every_verdict_is_a_sentence(given, words):
    assert verdict(make_record(verdict=given)) == words


def test_a_recall_that_is_reached_is_not_called_false_alarms():
    record = make_record(goal=Goal("at_least", recall=0.95))
    recall = next(one.recall for one in record.evidence.comparisons if one.arm == "redecided")
    given = Verdict("change_the_decision", arm="redecided", over="baseline", gain=recall)
    assert "needed: recall +" in verdict(replace(record, verdict=given))
    given = replace(given, gain=Change(-0.01, -0.02, -0.005))
    assert "needed: false alarms −1.00 points" in verdict(replace(record, verdict=given))


def test_a_baseline_that_has_learnt_nothing_is_not_shown_as_before():
    assert "before" in headline(make_record())
    assert "before" not in headline(make_record(verdict=Verdict("cannot_tell", "not_learnt")))


def test_few_seeds_are_named_and_have_no_interval():
    record = make_record(verdict=Verdict("cannot_tell", "few_seeds"))
    record = replace(record, evidence=replace(record.evidence, num_seeds=1))
    few = "Cannot tell yet: 1 seed trained, 5 are needed."
    assert verdict(record) == f"{few} The same command with --budget 3m resumes."
    counted = replace(record, effort=replace(record.effort, enough="--trials 40"))
    assert verdict(counted) == f"{few} Give --trials 40 and a new --out."
    assert show(Change(0.05)) == "+5.0 points"


def test_only_significant_losses_are_named():
    assert lost_recall(make_record()) == "Classes that lost recall: “3” −2.0 points (95 % CI −3.0 to −1.0)."


def test_a_rule_is_named():
    record = make_record()
    assert rule_text(record) == "shift +0.43 on “9”"
    threshold = replace(record.handed, rule={"rule": "threshold", "values": {"9": 0.213}})
    assert rule_text(replace(record, handed=threshold)) == "predicts “9” above a probability of 0.213"
    plain = replace(record.handed, rule={"rule": "shift", "values": {"9": 0.0}})
    assert rule_text(replace(record, handed=plain)) == "ordinary argmax"


def test_a_record_comes_back_from_its_file(tmp_path):
    assert read_record(tmp_path) is None
    record = make_record()
    record.write(tmp_path)
    assert read_record(tmp_path) == record
    (tmp_path / ANSWER_FILE).write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        read_record(tmp_path)
