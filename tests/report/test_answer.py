"""The answer: its kind and its numbers, of verdicts made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from camri.decision import Verdict
from camri.decision.stats import Difference
from camri.errors import InputError
from camri.report.answer import NOTE, answer
from camri.report.fit_words import compose
from camri.report.tables import Cell
from camri.study.reader import ColumnVerdict, Judged, SettingResults
from tests.report.test_fit_words import make_answer

SETTINGS = (SettingResults("c", "ce", "ce", {}, ()), SettingResults("m", "camri", "camri m=4π/64", {}, ()))


def difference(*ends, p=0.5):
    return Difference(*ends, p, np.zeros(1), 4)


def judged(
    gain=(0.05, 0.01, 0.09),
    accuracy=(-0.002, -0.01, 0.006),
    plain=(0.07, 0.03, 0.11),
    p=0.02,
    chosen="m",
    num_seeds=4,
    important=(1,),
):
    """The chosen setting has 40 of 50 and 31 of 50 hits, cross-entropy with a shift 38 and 30; a drop: 1 in 8."""
    arms = {
        "chosen": SimpleNamespace(keys=(*chosen,) * num_seeds, hits=np.array([40, 31]), num=np.array([50, 50])),
        "baseline shifted": SimpleNamespace(keys=("c",), hits=np.array([38, 30]), num=np.array([50, 50])),
        "baseline": SimpleNamespace(keys=("c",), hits=np.array([1, 1]), num=np.array([50, 50])),
    }
    gains = {
        "baseline shifted": SimpleNamespace(recall=difference(*gain, p=p), accuracy=None, chance_of_fall=0.125),
        "baseline": SimpleNamespace(recall=difference(*plain), accuracy=difference(*accuracy), chance_of_fall=0.9),
    }
    seeds = tuple(range(num_seeds))
    return Judged(None, SimpleNamespace(arms=arms, gains=gains, seeds=seeds, important=important), SETTINGS[1], None)


def column(best, title="stop", number=0, settings=SETTINGS, baseline=SETTINGS[0]):
    facts = SimpleNamespace(title=title, indices=(1,), number=number)
    return ColumnVerdict(facts, baseline, settings, best, {}, {}, {})


def reading(methods=("ce", "camri"), note=None, rows=()):
    return SimpleNamespace(run=SimpleNamespace(note={NOTE: note}.get), methods=lambda: list(methods), rows=list(rows))


def gap(number=0, alarms=-0.0078, p=0.0001, num_trials=10, setting="camri m=4π/64"):
    numbers = {"alarms": alarms, "alarms_of_ce": 0.0709, "p_alarms_holm": p, "num_trials": num_trials}
    return {"column": number, "setting": setting, **numbers}


def test_a_gain_of_one_column_says_every_number():
    found = answer(reading(), [column(judged())])
    assert found.kind == "gain"
    assert found.sentence == (
        "camri m=4π/64 raises recall of “stop”: +5.0 points over cross-entropy with a shift (95 % CI +1.0 to +9.0; "
        "hits 68/100 → 71/100, 4 seeds); accuracy vs cross-entropy −0.2 [−1.0, +0.6] points."
    )
    assert found.details == ()
    accuracy, plain = "−0.2 [−1.0, +0.6]", "+7.0 [+3.0, +11.0]"
    shown = ["stop", "+5.0 [+1.0, +9.0]", "0.02", plain, accuracy, "12%", "–", "4", "camri m=4π/64"]
    assert [cell.text for cell in found.table.rows[0]] == shown


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_below_three_seeds_there_is_no_interval_no_p_and_no_praise(num_seeds):
    """One model is not a test; two give intervals such as [−48, +80]."""
    few = judged(p=0.001, num_seeds=num_seeds)
    for verdicts in ([column(few)], [column(few, "stop"), column(few, "yield", 1)]):
        found = answer(reading(), verdicts, [gap(num_trials=num_seeds)])
        assert found.kind == "unknown"
        assert "at least 3 seeds" in found.sentence
        assert "+5.0" in found.sentence
        texts = [found.sentence, *(cell.text for row in found.table.rows for cell in row)]
        assert not [text for text in texts if "[" in text or "CI" in text or "p =" in text or "false alarms" in text]
        assert not any(cell.bold for row in found.table.rows for cell in row)
        assert {row[2].text for row in found.table.rows} == {"–"}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"p": 0.049}, "gain"),
        ({"p": 0.05}, "none"),
        ({"p": 0.0001, "gain": (-0.05, -0.09, -0.01)}, "none"),
        ({"p": 0.0001, "accuracy": (-0.02, -0.03, -0.01)}, "gain"),
        ({"p": 0.9, "gain": (0.02, -0.01, 0.05)}, "none"),
    ],
)
def test_the_kind_follows_the_corrected_p_over_cross_entropy_with_a_shift(how, kind):
    found = answer(reading(), [column(judged(**how))])
    assert found.kind == kind
    assert ("No significant gain" in found.sentence) == (kind == "none")
    assert found.table.rows[0][1].bold == (kind == "gain")
    assert ("significantly lower" in found.sentence) == ("accuracy" in how), "a drop of accuracy is named beside it"


def test_significantly_fewer_false_alarms_are_named():
    gaps = [gap(), gap(alarms=-0.002, setting="wce w=4"), gap(number=1), gap(alarms=-0.05, p=0.06), gap(alarms=0.05)]
    found = answer(reading(), [column(judged(p=0.9))], gaps)
    assert found.kind == "none"
    assert found.sentence.endswith("false alarms than cross-entropy at equal recall: “stop” −11 % with camri m=4π/64.")
    assert found.table.rows[0][6].text == "−11 %"
    assert "false alarms" not in answer(reading(), [column(judged())], [gap(p=0.06)]).sentence


def test_a_kept_baseline_is_named_by_its_shift():
    found = answer(reading(), [column(judged(chosen="c", gain=(0, 0, 0)))])
    assert found.kind == "none"
    assert found.sentence.startswith("No gain for “stop”: no setting beat cross-entropy with a shift")
    assert "+7.0 [+3.0, +11.0] points; accuracy vs cross-entropy −0.2 [−1.0, +0.6]" in found.sentence
    assert [cell.text for cell in found.table.rows[0]][1:3] == ["–", "–"]


def test_several_columns_count_those_that_are_significant_and_the_table_has_all():
    verdicts = [
        column(judged(p=0.01), "stop"),
        column(judged(p=0.03, gain=(0.04, 0.02, 0.06)), "yield"),  # 0.06 of Holm: the third of three, twice
        column(judged(p=0.9, chosen="c", gain=(0, 0, 0), num_seeds=3), "limit"),
    ]
    found = answer(reading(), verdicts)
    assert found.kind == "gain"
    assert found.sentence == (
        "Significant gain for 1 of 3 classes (p < 0.05 after Holm). Points of recall over cross-entropy with a shift: "
        "“stop” +5.0 [+1.0, +9.0]."
    )
    accuracy, plain, chosen = "−0.2 [−1.0, +0.6]", "+7.0 [+3.0, +11.0]", "camri m=4π/64"
    kept = "CE + shift: no setting beat it"
    assert found.table.rows == [
        tuple(map(Cell, texts, (False, bold, *[False] * 7)))
        for texts, bold in [
            (("stop", "+5.0 [+1.0, +9.0]", "0.03", plain, accuracy, "12%", "–", "4", chosen), True),
            (("yield", "+4.0 [+2.0, +6.0]", "0.06", plain, accuracy, "12%", "–", "4", chosen), False),
            (("limit", "–", "–", plain, accuracy, "12%", "–", "3", kept), False),
        ]
    ]
    assert found.table.words == ("setting",)


def test_several_settings_that_were_picked_are_shown_with_their_seeds():
    found = answer(reading(), [column(judged(chosen="mcm", num_seeds=3))])
    assert found.sentence.startswith("camri m=4π/64 (6 seeds), ce (3 seeds) raises recall")


def test_several_columns_without_a_gain_name_all_of_them():
    several = [
        column(judged(p=0.9, important=(1, 2)), "stop + yield"),
        column(judged(chosen="c", p=0.9), "limit"),
        column(judged(chosen="c", p=0.9), "ring"),
    ]
    found = answer(reading(), several)
    assert found.kind == "none"
    assert found.sentence == (
        "No significant gain for any of the 3 sets of classes (p > 0.05 after Holm). Points of recall over "
        "cross-entropy with a shift: “stop + yield” +5.0 [+1.0, +9.0]. No setting beat cross-entropy with a shift on "
        "validation data for “limit”, “ring”."
    )


def test_a_fit_s_answer_is_repeated():
    """Its store holds the record; the sentences are made from it."""
    made = make_answer()
    found = answer(reading(note=made.to_json()), [column(judged(p=0.9))])
    assert [found.sentence, *found.details] == compose(made)
    assert found.kind == "gain"
    unsure = make_answer(verdict=Verdict("cannot_tell", "few_seeds"))
    assert answer(reading(note=unsure.to_json()), []).kind == "none"
    with pytest.raises(InputError, match="the answer of the fit"):
        answer(reading(note={"kind": "gain", "sentence": "Handed over.", "details": []}), [])


def test_what_is_missing_for_an_answer_is_named():
    begun, bare = column(judged()), column(judged(), settings=(), baseline=None)
    alone = column(judged(), settings=SETTINGS[:1])
    kept = column(judged(chosen="c"), settings=SETTINGS[:1])
    for verdicts, methods, said in (
        ([], ("ce", "camri"), "important classes are found from cross-entropy trials"),
        ([bare], ("ce", "camri"), "no trial has finished"),
        ([begun, bare], ("ce", "camri"), "no cross-entropy trial has succeeded"),
        ([begun, bare], ("camri",), "no cross-entropy trials to compare with"),
        ([alone, alone], ("ce", "camri"), "No answer yet: only cross-entropy was trained"),
        ([alone, alone], ("ce",), "No answer: only cross-entropy was trained"),
        ([begun, column(None)], ("ce", "camri"), "no validation data"),
    ):
        found = answer(reading(methods), verdicts)
        assert found.kind == "unknown", said
        assert said in found.sentence
    assert answer(reading(rows=["failed"]), [bare]).sentence.endswith("no trial has succeeded.")
    assert answer(reading(), [begun, kept]).kind == "gain", "one column has what to compare"
