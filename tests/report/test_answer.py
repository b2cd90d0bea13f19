"""The answer's words and numbers, of verdicts made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from camri.report.answer import NOTE, answer, is_sure
from camri.report.table import Cell
from camri.selection import PaperChoice
from camri.stats import Difference
from camri.study.reader import SettingResults
from camri.study.verdict import ColumnVerdict, Judged

SETTINGS = (SettingResults("c", "ce", "ce", {}, ()), SettingResults("m", "camri", "camri m=4π/64", {}, ()))


def difference(*ends, p=0.5):
    return Difference(*ends, p, np.zeros(1), 4, 9)


def judged(
    gain=(0.05, 0.01, 0.09),
    accuracy=(-0.002, -0.01, 0.006),
    plain=(0.07, 0.03, 0.11),
    p=0.02,
    chosen="m",
    num_seeds=2,
    fresh_seeds=True,
):
    """What was handed over has 40 of 50 and 31 of 50 hits, the shifted baseline 38 and 30; a fall: 1 in 8."""
    arms = {
        "chosen": SimpleNamespace(keys=(*chosen,) * num_seeds, hits=np.array([40, 31]), num=np.array([50, 50])),
        "baseline shifted": SimpleNamespace(keys=("c",), hits=np.array([38, 30]), num=np.array([50, 50])),
        "baseline": SimpleNamespace(keys=("c",), hits=np.array([1, 1]), num=np.array([50, 50])),
    }
    gains = {
        "baseline shifted": SimpleNamespace(recall=difference(*gain, p=p), accuracy=None, chance_of_fall=0.125),
        "baseline": SimpleNamespace(recall=difference(*plain), accuracy=difference(*accuracy), chance_of_fall=0.9),
    }
    judgement = SimpleNamespace(arms=arms, gains=gains, seeds=tuple(range(num_seeds)), fresh_seeds=fresh_seeds)
    return Judged(None, judgement, SETTINGS[1], None)


def column(best, title="stop", indices=(1,), settings=SETTINGS, baseline=SETTINGS[0], paper=None):
    facts = SimpleNamespace(title=title, indices=indices)
    return ColumnVerdict(facts, baseline, settings, best, {}, {}, paper or {})


def reading(methods=("ce", "camri"), told=None, rows=()):
    return SimpleNamespace(run=SimpleNamespace(note={NOTE: told}.get), methods=lambda: list(methods), rows=list(rows))


def test_a_gain_of_one_column_says_every_number():
    found = answer(reading(), [column(judged())])
    assert found.kind == "gain"
    assert found.sentence == (
        "camri m=4π/64 finds more of “stop” than cross-entropy shifted to the same accuracy: +5.0 points of recall "
        "(95 %: +1.0 to +9.0; hits 68/100 → 71/100, 2 models each), accuracy against cross-entropy −0.2 [−1.0, +0.6] "
        "points."
    )
    assert found.details == (
        "“stop”: picked camri m=4π/64; recall over shifted cross-entropy +5.0 [+1.0, +9.0] points, p = 0.02 after "
        "Holm’s correction, 2 trials; over cross-entropy as trained +7.0 [+3.0, +11.0]; accuracy −0.2 [−1.0, +0.6]; "
        "chance that accuracy is more than half a point below shifted cross-entropy’s: 12%.",
    )
    assert found.table is None


def test_one_model_has_no_test_and_says_so():
    found = answer(reading(), [column(judged(p=float("nan"), num_seeds=1, fresh_seeds=False))])
    assert found.kind == "gain"
    assert "hits 68/100 → 71/100), accuracy" in found.sentence
    assert "+5.0 [+1.0, +9.0] points, one seed: this speaks about these models only; over" in found.details[0]


@pytest.mark.parametrize(("p", "said"), [(0.0005, ", p < 0.001 after"), (0.001, ", p = 0.001 after")])
def test_a_small_p_is_not_below_and_equal(p, said):
    assert said in answer(reading(), [column(judged(p=p))]).details[0]


@pytest.mark.parametrize(
    ("how", "doubt"),
    [
        ({"p": 0.06}, "points. The interval lies above 0, but by the test it may be luck (p = 0.06)."),
        ({"accuracy": (-0.02, -0.03, -0.01)}, "points. Its accuracy fell."),
        ({"gain": (0.02, -0.01, 0.05)}, "accuracy against cross-entropy −0.2 [−1.0, +0.6] points."),
        ({"gain": (0.02, 0.0, 0.05)}, "accuracy against cross-entropy −0.2 [−1.0, +0.6] points."),
    ],
)
def test_what_is_not_sure_is_not_shown_and_says_why(how, doubt):
    found = answer(reading(), [column(judged(**how))])
    assert found.kind == "none"
    assert found.sentence.startswith("No improvement is shown for “stop”: over the shifted cross-entropy +")
    assert found.sentence.endswith(doubt)


def test_no_doubt_is_held_against_a_gain_whose_accuracy_may_be_the_same():
    assert is_sure(judged(accuracy=(-0.01, -0.02, 0.0)), 0.02)
    assert not is_sure(judged(gain=(0.02, 0.0, 0.05)), 0.02)
    assert not is_sure(judged(), 0.05)
    assert not is_sure(None, 0.01)
    lucky = answer(reading(), [column(judged(p=0.2, accuracy=(-0.01, -0.02, 0.0)))]).sentence
    assert "it may be luck" in lucky
    assert "accuracy fell" not in lucky


def test_the_table_says_which_gain_is_not_bold_for_its_accuracy():
    fell = judged(p=0.01, accuracy=(-0.0022, -0.004, -0.0003))
    unsure = judged(p=0.9, accuracy=(-0.0022, -0.004, -0.0003))
    found = answer(reading(), [column(judged(p=0.01), "stop"), column(fell, "yield"), column(unsure, "limit")])
    assert [row[1].bold for row in found.table.groups[0]] == [True, False, False]
    assert found.table.groups[0][1][4].text == "−0.2 [−0.4, 0.0]"
    assert found.table.notes[1].endswith(
        " does not lie below 0. “yield” is not: its accuracy fell, −0.22 [−0.40, −0.03] points."
    )


def test_a_kept_baseline_is_told_by_its_shift():
    found = answer(reading(), [column(judged(chosen="c", gain=(0, 0, 0)))])
    assert found.kind == "none"
    assert found.sentence == (
        "No improvement: for “stop” no setting beat shifted cross-entropy on validation data; a shift alone gives +7.0 "
        "[+3.0, +11.0] points over cross-entropy as trained; accuracy against cross-entropy −0.2 [−1.0, +0.6] points."
    )
    assert found.details == (
        "“stop”: no setting beat shifted cross-entropy on validation data, 2 trials; the shift alone gives +7.0 [+3.0, "
        "+11.0] points of recall over cross-entropy as trained, accuracy −0.2 [−1.0, +0.6].",
    )


def test_several_columns_count_those_that_are_sure_and_the_table_has_all():
    verdicts = [
        column(judged(p=0.01), "stop"),
        column(judged(p=0.03, gain=(0.04, 0.02, 0.06)), "yield"),  # 0.06 of Holm: the third of three, twice
        column(judged(p=0.9, chosen="c", gain=(0, 0, 0), num_seeds=3), "limit"),
    ]
    found = answer(reading(), verdicts)
    assert found.kind == "gain"
    assert found.sentence == (
        "For 1 of 3 important classes the chosen setting has a higher recall than cross-entropy shifted to the "
        "same accuracy. Recall: “stop” +5.0 [+1.0, +9.0] points."
    )
    assert len(found.details) == 3
    assert "p = 0.06 after" in found.details[1]
    accuracy, plain = "−0.2 [−1.0, +0.6]", "+7.0 [+3.0, +11.0]"
    assert found.table.rows == [
        tuple(map(Cell, texts, bold))
        for texts, bold in [
            (("stop", "+5.0 [+1.0, +9.0]", "0.03", plain, accuracy, "12%", "2", "camri m=4π/64"), (0, 1, *[0] * 6)),
            (("yield", "+4.0 [+2.0, +6.0]", "0.06", plain, accuracy, "12%", "2", "camri m=4π/64"), (0, 0, *[0] * 6)),
            (
                ("limit", "–", "–", plain, accuracy, "12%", "3", "cross-entropy, shifted: nothing beat it"),
                (0, 0, *[0] * 6),
            ),
        ]
    ]
    assert found.table.header == (
        "important", "recall over shifted cross-entropy", "p (Holm)", "recall over cross-entropy",
        "accuracy against cross-entropy", "chance of a fall", "trials", "picked (seeds)",
    )  # fmt: skip
    assert found.table.words == ("picked (seeds)",)
    bold = "Bold: the interval lies above 0, p is below 0.05, and accuracy’s interval does not lie below 0."
    assert found.table.notes == ("A fall: accuracy more than half a point below shifted cross-entropy’s.", bold)


def test_several_settings_that_were_picked_are_told_in_words_but_in_a_table():
    several = judged(chosen="mcm", num_seeds=1)
    found = answer(reading(), [column(several)])
    words = "camri m=4π/64 (2 seeds), ce (1 seed)"
    assert found.sentence.startswith(f"{words} finds more")
    assert found.details[0].startswith(f"“stop”: picked {words}; recall")
    table = answer(reading(), [column(several), column(several)]).table
    assert [row[-1].text for row in table.rows] == ["camri m=4π/64 (2), ce (1)"] * 2


def test_several_columns_without_a_gain_name_all_of_them():
    found = answer(reading(), [column(judged(p=0.9), "stop, yield", (1, 2)), column(judged(p=0.9), "limit", (0,))])
    assert found.kind == "none"
    assert found.sentence == (
        "No improvement is shown: for none of 2 sets of classes is the chosen setting sure to have a higher recall "
        "than cross-entropy shifted to the same accuracy. Recall: “stop, yield” +5.0 [+1.0, +9.0] points; “limit” +5.0 "
        "[+1.0, +9.0] points."
    )
    assert [row[0].text for row in found.table.rows] == ["stop, yield", "limit"]
    kept = column(judged(chosen="c"), "ring", (2,))
    found = answer(reading(), [kept, column(judged(p=0.9), "limit", (0,)), kept])
    assert found.sentence.endswith(
        ". Recall: “limit” +5.0 [+1.0, +9.0] points; nothing beat it on validation data for “ring”, “ring”."
    )


def test_what_a_fit_told_is_told_again():
    told = {"kind": "gain", "sentence": "Handed over.", "details": ["one", "two"]}
    found = answer(reading(told=told), [column(judged(p=0.9))])
    assert (found.kind, found.sentence, found.details) == ("gain", "Handed over.", ("one", "two"))


def test_before_the_classes_are_found_there_is_no_answer_yet():
    found = answer(reading(), [])
    assert found.kind == "unknown"
    assert found.sentence.startswith("No answer yet: the important classes are found from cross-entropy trials")


def test_one_column_that_lacks_something_is_enough_for_no_answer():
    begun, bare = column(judged()), column(judged(), settings=(), baseline=None)
    assert answer(reading(), [begun, bare]).sentence.startswith("No answer yet: no cross-entropy trial has ended well")
    assert answer(reading(["camri"]), [begun, bare]).sentence.startswith("No answer: this run has no cross-entropy")
    alone = column(judged(), settings=SETTINGS[:1])
    kept = column(judged(chosen="c"), settings=SETTINGS[:1])
    assert answer(reading(), [begun, kept]).kind == "gain", "one column has what to compare"
    assert answer(reading(), [alone, alone]).sentence.startswith("No answer yet: only cross-entropy trials")


def test_without_validation_data_the_best_of_the_paper_s_choices_is_told(monkeypatch):
    def measure(one, indices):
        assert (one, indices) == (SETTINGS[0], (1,))
        return SimpleNamespace(recall=np.array([0.5, 0.6]))

    monkeypatch.setattr("camri.report.answer.measure", measure)

    def cell(key, recall):
        return PaperChoice(key, recall, 0.8)

    settings = (*SETTINGS, SettingResults("w", "wce", "wce w=4", {}, ()))
    chosen = {"ce": cell("c", 0.99), "wce": cell("w", 0.6), "camri": cell("m", 0.7), "arcface": None}
    blank = {"ce": cell("c", 0.6), "camri": None}
    verdicts = [
        column(None, "yield", settings=settings, paper=blank),
        column(None, "stop", settings=settings, paper=chosen),
    ]
    found = answer(reading(), verdicts)
    assert found.kind == "unknown"
    assert found.sentence.endswith(
        "and part of it is luck. “yield”: no setting kept cross-entropy’s accuracy; “stop”: camri m=4π/64 +15.0 points "
        "of recall."
    )
    mixed = answer(reading(), [column(judged()), verdicts[1]])
    assert mixed.kind == "unknown"
