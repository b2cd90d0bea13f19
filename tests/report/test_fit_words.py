"""A fit's answer in sentences; and its JSON."""

import json
from dataclasses import replace

import pytest

from camri.decision import (
    Answer,
    Arm,
    AtLeast,
    Caution,
    Change,
    ClassResult,
    Comparison,
    Effort,
    Evidence,
    Guarantee,
    HandedOver,
    Length,
    Made,
    MostRecall,
    OperatingPoint,
    Share,
    Shift,
    Source,
    Threshold,
    Verdict,
    wilson,
)
from camri.decision.answer import ANSWER_FILE
from camri.errors import InputError
from camri.report.fit_words import (
    CAUTIONS,
    cautions,
    compose,
    guarantee_lines,
    headline,
    lost_recall,
    read_fit,
    rule_text,
    show,
    verdict,
)


def share(hits, num):
    return Share(hits / num, hits, num, *wilson(hits, num))


def one_model(name, hits, called, alarms, right, cost=None):
    """The figures of a model on 539 rows, 54 of them important."""
    recalls, precisions = (share(hits, 54),), (share(hits, called),)
    return Arm(name, name, 1, recalls, precisions, share(right, 539), share(alarms, 539), cost)


BEFORE, AFTER = one_model("before", 50, 52, 2, 526), one_model("after", 53, 56, 3, 528)
GAIN, KEPT = Change(0.041, 0.012, 0.07), Change(0.001, -0.001, 0.003)


def make_answer(made=None, source=None, **changes):
    """The answer of a fit; changes of what it was made by, of its source and of itself."""
    arms = tuple(
        Arm(name, title, 10, (Share(recall, 530, 540),), (Share(0.95, 1, 1),), Share(0.98, 1, 1), Share(0.004, 1, 1))
        for name, title, recall in [
            ("baseline", "baseline", 0.926),
            ("redecided", "baseline, tuned", 0.940),
            ("method", "two-sided margin, m=1, tuned", 0.981),
        ]
    )
    gains = tuple(
        Comparison(arm, over, GAIN, KEPT, Change(0.0, -0.001, 0.001))
        for arm, over in [("redecided", "baseline"), ("method", "redecided"), ("method", "baseline")]
    )
    kept = Share(0.9, 9, 10)
    classes = (
        ClassResult("9", True, kept, kept, Change(-0.3, -0.4, -0.2)),
        ClassResult("7", False, kept, kept, Change(-0.01, -0.02, 0.0)),
        ClassResult("3", False, kept, kept, Change(-0.02, -0.03, -0.01)),
    )
    rule = Shift({9: 0.43})
    handed = HandedOver("two_sided_logits", "two-sided margin, m=1", 503, "small", 40, rule, BEFORE, AFTER)
    effort = Effort((Length(20, 0.97), Length(40, 0.98)), False, "plain", 11, 60, 0, 61.0, "--budget 3m")
    point = OperatingPoint(rule, True, (0.98,), (float("nan"),), 0.98, 0.01, None, (float("-inf"), 0.98, 0.0))
    own = Source("digits", tuple("0123456789"), (9,), 1797, 539, noun=("image", "images"))
    how = Made(handed, effort, {"train": 1006, "val": 252, "test": 539}, "camri fit digits", True)
    answer = Answer(
        source=replace(own, **(source or {})),
        goal=MostRecall(),
        point=point,
        evidence=Evidence(539, 10, None, "method", arms, gains, classes),
        verdict=Verdict("train_with", "", "two-sided margin, m=1", "method", "redecided", "recall", GAIN),
        tuned_on="split",
        made=replace(how, **(made or {})),
    )
    return replace(answer, **changes)


def with_rule(answer, rule):
    return replace(answer, point=replace(answer.point, rule=rule))


def test_the_first_line_is_about_the_model_handed_over():
    assert compose(make_answer())[0] == (
        "Finds 53 of 54 “9” (before: 50), with 3 false alarms among 485 others (before: 2); "
        "accuracy 98.0 % (before: 97.6 %)."
    )


def test_an_undertrained_answer_begins_with_it():
    effort = replace(make_answer().made.effort, still_improving=True)
    assert headline(make_answer({"effort": effort})).startswith("Still improving when the time was up. Finds 53")
    counted = replace(effort, enough="--trials 40")
    assert headline(make_answer({"effort": counted})).startswith(
        "Still improving when the trials were used up. Finds 53"
    )


def test_costs_are_in_the_first_line():
    handed = make_answer().made.handed
    costs = replace(handed, before=replace(BEFORE, cost=0.5), after=replace(AFTER, cost=0.25))
    assert headline(make_answer({"handed": costs})).endswith("; mean cost 0.25 (before: 0.5).")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            Verdict("train_with", method="CAMRI", arm="method", over="redecided", figure="recall", gain=GAIN),
            "Train with CAMRI: recall +4.1 points (95 % CI +1.2 to +7.0) over cross-entropy with a tuned decision "
            "(10 seeds).",
        ),
        (
            Verdict("change_the_decision", arm="redecided", over="baseline", figure="recall", gain=GAIN),
            "Change the decision; no retraining needed: recall +4.1 points (95 % CI +1.2 to +7.0) over argmax "
            "(10 seeds).",
        ),
        (
            Verdict(
                "change_the_decision",
                method="two-sided margin",
                arm="redecided",
                over="baseline",
                figure="recall",
                gain=GAIN,
            ),
            "Change the decision; no retraining needed: recall +4.1 points (95 % CI +1.2 to +7.0) over argmax "
            "(10 seeds). Two-sided margin adds less than 2 points.",
        ),
        (
            Verdict(
                "nothing_to_gain",
                method="CAMRI",
                arm="method",
                over="redecided",
                figure="recall",
                gain=Change(0.0, -0.01, 0.01),
            ),
            "Nothing to gain: on test data CAMRI gives recall 0.0 points (95 % CI −1.0 to +1.0) over cross-entropy "
            "with a tuned decision (10 seeds); 2 points are excluded.",
        ),
        (
            Verdict("nothing_to_gain"),
            "Nothing to gain: no method and no decision rule was better than plain cross-entropy without losing "
            "accuracy.",
        ),
        (
            Verdict(
                "cannot_tell",
                "not_significant",
                "CAMRI",
                "method",
                "redecided",
                "recall",
                Change(0.1, -0.1, 0.3),
                60,
                0.1,
            ),
            "Cannot tell yet: CAMRI gives recall +10.0 points (95 % CI −10.0 to +30.0) over cross-entropy with a tuned "
            "decision, which may be chance. About 60 more test images of “9” would settle a difference of 10 points.",
        ),
        (
            Verdict("cannot_tell", "shift_as_good", "CAMRI", "method", "redecided", "recall", GAIN),
            "Cannot tell yet: CAMRI gives recall +4.1 points (95 % CI +1.2 to +7.0) over cross-entropy with a tuned "
            "decision, but cross-entropy shifted to the same recall may be as accurate.",
        ),
        (
            Verdict("cannot_tell", "not_chosen", arm="method", over="redecided", figure="recall", gain=GAIN),
            "Cannot tell yet: on test data two-sided margin, m=1, tuned gives recall +4.1 points (95 % CI +1.2 to "
            "+7.0) over cross-entropy with a tuned decision, but it was not the best on validation data. Add "
            "validation images, or allow a drop: --max-accuracy-drop 0.005.",
        ),
        (
            Verdict("cannot_tell", "not_chosen", arm="bolder", over="baseline", figure="recall", gain=GAIN),
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
    assert verdict(make_answer(verdict=given)) == words


def test_the_figure_of_the_verdict_is_named():
    """Where argmax missed the recall that was asked for, recall decides, else false alarms."""
    answer = make_answer(goal=AtLeast(0.95))
    for figure, change, words in (
        ("recall", GAIN, "needed: recall +4.1 points"),
        ("false_alarms", Change(-0.01, -0.02, -0.005), "needed: false alarms −1.00 points"),
        ("cost", Change(-0.25, -0.5, -0.125), "needed: mean cost −0.25 (95 % CI −0.5 to −0.125)"),
    ):
        given = Verdict("change_the_decision", "", None, "redecided", "baseline", figure, change)
        assert words in verdict(replace(answer, verdict=given))


@pytest.mark.parametrize("reason", ["still_improving", "no_rivals", "accuracy_dropped", "control_as_good"])
def test_every_reason_has_words(reason):
    text = verdict(make_answer(verdict=Verdict("cannot_tell", reason, "CAMRI", "method", "redecided", "recall", GAIN)))
    assert text.startswith("Cannot tell yet: ")
    assert ("--budget 3m" in text) == (reason in ("still_improving", "no_rivals"))


def test_a_baseline_that_has_learnt_nothing_is_not_shown_as_before():
    assert "before" in headline(make_answer())
    assert "before" not in headline(make_answer(verdict=Verdict("cannot_tell", "not_learnt")))


def test_few_seeds_are_named_and_have_no_interval():
    answer = make_answer(verdict=Verdict("cannot_tell", "few_seeds"))
    answer = replace(answer, evidence=replace(answer.evidence, num_seeds=1))
    few = "Cannot tell yet: 1 seed trained, 5 are needed."
    assert verdict(answer) == f"{few} The same command with --budget 3m resumes."
    effort = replace(answer.made.effort, enough="--trials 40")
    assert (
        verdict(replace(answer, made=replace(answer.made, effort=effort))) == f"{few} Give --trials 40 and a new --out."
    )
    assert show(Change(0.05)) == "+5.0 points"


def test_only_significant_losses_of_other_classes_are_named():
    assert lost_recall(make_answer()) == "Classes that lost recall: “3” −2.0 points (95 % CI −3.0 to −1.0)."


def test_a_rule_is_named():
    answer = make_answer()
    assert rule_text(answer) == "shift +0.43 on “9”"
    assert rule_text(with_rule(answer, Threshold({9: 0.213}))) == "predicts “9” above a probability of 0.213"
    assert rule_text(with_rule(answer, Shift({9: 0.0}))) == "ordinary argmax"


def test_a_guarantee_is_said_with_its_confidence_or_what_it_lacks():
    given = Guarantee((0.9,), 0.95, Threshold({9: 0.2}), (60,), (60,), (60,), (29,), (0,))
    answer = make_answer(goal=AtLeast(0.9, 0.95))
    assert guarantee_lines(answer) == []

    def said(guarantee, source=None):
        return guarantee_lines(
            make_answer(None, source, goal=answer.goal, point=replace(answer.point, guarantee=guarantee))
        )

    assert said(given) == [
        "Guaranteed by validation data, with 95 % confidence: this model finds at least 90 % of new images of “9”."
    ]
    few = replace(given, rule=None, num_units=(25,))
    assert said(few) == [
        "Not guaranteed: a recall of 90 % was reached on validation data, no more; a guarantee needs at least 4 more "
        "validation images of “9”."
    ]
    assert "4 more validation groups of “9”" in said(few, {"num_groups": 30})[0]
    assert "no rule surely finds that many" in said(replace(given, rule=None))[0]
    assert said(few)[0] in compose(make_answer(goal=answer.goal, point=replace(answer.point, guarantee=few)))


def test_every_caution_is_a_sentence_made_from_values():
    found = (
        Caution("all_found", {"names": ["9", "8"], "num": [25, 3]}),
        Caution("loose_accuracy", {"num": 252, "width": 0.1}),
        Caution("few_rows", {"name": "9", "num_val": 19, "num_test": 20}),
        Caution("few_groups_to_judge", {"name": "9", "num": 20, "num_groups": 7}),
    )
    assert {one.code for one in found} == set(CAUTIONS)
    answer = make_answer(cautions=found)
    texts = cautions(answer)
    assert texts[0].startswith("cross-entropy finds every validation image of “9” (25) and of “8” (3) in every trial")
    assert texts[1] == (
        "accuracy was held on 252 validation images, which measure it to ± 5 points only; on new images it may be a "
        "point or two lower"
    )
    assert texts[2].startswith("“9” has 19 validation and 20 test images; with fewer than 20 of either")
    assert texts[3].startswith("the 20 test images of “9” come from 7 groups; fewer than")
    assert [line for line in compose(answer) if line.startswith("Caution")] == [f"Caution: {text}." for text in texts]


def test_an_answer_comes_back_from_its_file_and_says_the_same(tmp_path):
    assert read_fit(tmp_path) is None
    answer = make_answer(cautions=(Caution("few_rows", {"name": "9", "num_val": 1, "num_test": 2}),))
    answer.save(tmp_path / ANSWER_FILE)
    again = read_fit(tmp_path)
    assert again.to_json() == answer.to_json()
    assert compose(again) == compose(answer) == str(answer).splitlines()
    assert (again.rule, again.made) == (answer.rule, answer.made)
    assert again.point.rank[0] == float("-inf")
    (tmp_path / ANSWER_FILE).write_text("{}")
    with pytest.raises(InputError, match="fit again into another folder"):
        read_fit(tmp_path)


def test_nothing_that_is_stored_is_prose(tmp_path):
    """Names, titles and commands are short; a sentence would be longer."""

    def texts(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                yield from texts(one)

    stored = json.loads(make_answer().save(tmp_path / ANSWER_FILE).read_text(encoding="utf-8"))
    assert not [text for text in texts(stored) if len(text) > 40 or text.endswith(".")]
