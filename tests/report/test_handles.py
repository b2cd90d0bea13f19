"""The pages of a comparison and of a triage: curves with a band, two handles that count what anybody counts."""

import html
import json
import re

import numpy as np
import pytest

import camri
from camri.report.decision_page import render
from camri.report.handles import make_curves, make_handles, shown_at
from camri.report.words import VALUE, triage_code
from tests.decision.three_cases import CLASSES, made

HOSTILE = ("benign", "</script><img src=x onerror=alert(1)>")


@pytest.fixture(scope="module")
def table():
    labels, tables, _ = made(1500, 2.0, 2.6, 2.2)
    return labels, tables


@pytest.fixture(scope="module")
def triage(table):
    labels, (scores, *_) = table
    return camri.audit(scores, labels, 1, classes=CLASSES, clear_misses_at_most=0.05, alarm_precision=0.8)


@pytest.fixture(scope="module")
def compared(table):
    labels, (old, new, third) = table
    return camri.compare(old, {"a": new, "b": third}, labels, 1, classes=CLASSES, at_least=0.9)


def test_every_state_of_the_handles_is_what_the_code_gives(table, triage):
    labels, (scores, *_) = table
    one = make_handles(triage)
    data = json.loads(one.data.replace("\\u003c", "<"))
    assert VALUE in data["code"]
    assert data["code"].replace(VALUE, data["states"][one.low][0]).replace("HIGH", data["states"][one.high][0]) == (
        triage_code(triage)
    )
    probability = 1 / (1 + np.exp(-scores[:, 1]))
    for number, above, found in data["states"][:: max(1, len(data["states"]) // 50)]:
        called = probability > float(number)
        assert (called.sum(), called[labels == 1].sum()) == (above, found)
    work = triage.workload
    assert one.texts == {
        "cleared": f"{100 * work.cleared.value:.1f}",
        "missed": f"{100 * work.missed.value:.1f}",
        "missed-count": str(work.missed.hits),
        "alarms": f"{100 * work.alarms.value:.1f}",
        "right": f"{100 * work.precision.value:.1f}",
        "person": f"{100 * work.person.value:.1f}",
    }
    assert shown_at(data["states"][one.low], data["states"][one.high], one.num, one.num_rows) == one.texts


def test_curves_are_those_of_each_model_and_the_band_holds_the_difference(table, compared):
    labels, (old, new, _) = table
    for candidate, scores in zip(compared.candidates, (old, new), strict=False):
        own, other = np.sort(scores[labels == 1, 1])[::-1], scores[labels == 0, 1]
        for point in candidate.curve[::10]:
            cut = own[int(np.ceil(point.recall * len(own) - 1e-9)) - 1]
            assert point.false_alarms == pytest.approx((other >= cut).sum() / len(labels), abs=1e-9)
    best = compared.candidates[1]
    for point, before in zip(best.curve, compared.candidates[0].curve, strict=True):
        assert point.change.value == pytest.approx(point.false_alarms - before.false_alarms)
        assert point.change.low <= point.change.value <= point.change.high
    curves = make_curves(compared)
    assert [len(one.lines) for one in curves] == [3, 1]
    assert curves[1].band
    assert not curves[0].band


def test_the_pages_say_what_the_terminal_says_and_escape_names(table, triage, compared):
    for found in (triage, compared):
        text = html.unescape(render(found, "new.csv", ["camri", "it"]))
        assert all(line.removeprefix("- ") in text for line in str(found).splitlines()[1:4])
    labels, (scores, new, _) = table
    for found in (
        camri.audit(scores, labels, 1, classes=HOSTILE, clear_misses_at_most=0.05),
        camri.compare(scores, {"<b>new": new}, labels, 1, classes=HOSTILE),
    ):
        page = render(found, "<i>.csv")
        assert "<img src=x" not in page
        assert "<b>new" not in page
        assert "<img src=x" not in found._repr_html_()
    none = camri.audit(scores, labels, 1, classes=CLASSES, clear_misses_at_most=0.001)
    assert "Cannot clear any row" in render(none, "new.csv")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_handles_move_by_keyboard_and_push_each_other(tmp_path, look, triage, compared, width):
    page, complaints, requests = look(triage.report(tmp_path / "triage.html"), width)
    low, high = page.locator("[data-handle=low]"), page.locator("[data-handle=high]")
    person = page.locator(".handles [data-show=person]")
    before = float(person.text_content())
    low.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert float(person.text_content()) > before
    high.focus()
    page.keyboard.press("End")
    assert low.input_value() == high.input_value()
    assert person.text_content() == "0.0"
    page.get_by_role("button", name="As advised").click()
    assert float(person.text_content()) == before
    assert re.search(r"own > [\d.]+\)", page.locator(".handles [data-code]").text_content())
    other, more, asked = look(compared.report(tmp_path / "compare.html"), width)
    assert other.locator(".curves svg path.line").count() >= 4
    for one in (page, other):
        assert one.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert (complaints, more) == ([], [])
    assert all(url.startswith("file:") for url in requests + asked)
