"""The page of a fit: verdict and numbers first, a slider and examples of the model handed over, the rest folded."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from camri.decision import (
    Caution,
    Change,
    ClassResult,
    HandedOver,
    Judged,
    Judging,
    Share,
    Shift,
    Threshold,
    Verdict,
    argmax_of,
    compare,
    exact,
)
from camri.decision.answer import ANSWER_FILE, EXAMPLES_FILE
from camri.report.fit_page import read_examples
from camri.report.fit_words import verdict
from camri.report.page import write_page
from tests.report.conftest import make_run
from tests.report.test_fit_words import make_answer

NAMES = ("row", "<img src=x onerror=alert(1)>", "corner", "ring")


def make_fit(folder, rule=None, shape=(8, 8, 1), finished=True, still_improving=False):
    """A finished fit: a run, a record and examples that agree."""
    make_run(folder, classes=NAMES, important=NAMES[1:2], sharpness={"camri": 1.2}, seeds=2)
    rule = rule or Shift({1: 0.7})
    drawn = np.random.default_rng(0)
    labels = np.arange(400) % 4
    logits = drawn.normal(size=(400, 4)) + 2 * np.eye(4)[labels] - [0, 1, 0, 0]

    def figures(name, decision):
        scores = exact(logits, labels, (1,))
        judged = {name: Judged.of(name, [scores], [decision.predict(scores)])}
        return compare(judged, [], Judging([scores], NAMES), name).arms[0]

    said = rule.predict(logits)
    missed, alarms = np.flatnonzero((labels == 1) & (said != 1))[:24], np.flatnonzero((labels != 1) & (said == 1))[:24]
    inputs = (255 * drawn.random((400, *shape))).astype(np.uint8 if len(shape) > 1 else np.float32)
    np.savez(
        folder / EXAMPLES_FILE, test_logits=logits, test_labels=labels, val_logits=logits, val_labels=labels,
        missed=missed, false_alarms=alarms, missed_inputs=inputs[missed], false_alarms_inputs=inputs[alarms],
    )  # fmt: skip
    plain, kept = make_answer(), Share(0.9, 9, 10)
    changes = {
        "corner": Change(-0.04, -0.06, -0.02),
        "ring": Change(-0.01, -0.03, 0.01),
        "row": Change(0.03, 0.01, 0.05),
    }
    before, after = figures("before", argmax_of((1,))), figures("after", rule)
    made = {
        "num_rows": {"train": 400, "val": 400, "test": 400},
        "handed": HandedOver("ce", "cross-entropy", 3, "small", 12, rule, before, after),
        "effort": replace(plain.made.effort, still_improving=still_improving),
        "finished": finished,
    }
    gain = Change(0.1, 0.05, 0.15)
    classes = [ClassResult(name, False, kept, kept, change) for name, change in changes.items()]
    answer = make_answer(
        made,
        {"name": "<b>photos</b>", "classes": NAMES, "important": (1,)},
        point=replace(plain.point, rule=rule),
        verdict=Verdict("change_the_decision", "", None, "redecided", "baseline", "recall", gain),
        evidence=replace(plain.evidence, classes=(ClassResult(NAMES[1], True, kept, kept, gain), *classes)),
        cautions=(Caution("few_rows", {"name": NAMES[2], "num_val": 3, "num_test": 4}),),
    )
    answer.save(folder / ANSWER_FILE)
    return answer, logits, labels


def page_of(folder):
    return write_page(folder).read_text(encoding="utf-8")


def part(page, start, end):
    return html.unescape(page.split(start)[1].split(end)[0])


def test_the_verdict_and_the_numbers_of_the_model_come_first(tmp_path):
    answer, logits, labels = make_fit(tmp_path / "fit")
    page = page_of(tmp_path / "fit")
    shown = part(page, '<section id="answer"', "</section>")
    assert verdict(answer) in shown
    said = Shift({1: 0.7}).predict(logits)
    alarm = (said == 1) & (labels != 1)
    for after in ((said == labels)[labels == 1].mean(), alarm.mean(), (said == labels).mean()):
        assert f"<strong>{100 * after:.1f} %</strong>" in shown
    assert f"{((said == 1) & (labels == 1)).sum()} of 100 found" in shown
    assert f"{alarm.sum()} of 300 others" in shown
    order = [page.index(f'id="{name}"') for name in ("answer", "point", "missed", "false_alarms", "classes", "more")]
    assert order == sorted(order)
    assert "Not finished" not in page
    assert "Caution: “corner” has 3 validation and 4 test images" in page
    assert not re.search(r"paper|Penalty|Table I\b|Fig\.", page.split("<body")[1].split("<script")[0])
    assert "<img src=x" not in page
    assert "<b>photos" not in page


@pytest.mark.parametrize("rule", [Shift({1: 0.7}), Threshold({1: 0.2})])
def test_the_slider_starts_at_the_rule_of_the_model(tmp_path, rule):
    answer, *_ = make_fit(tmp_path / "fit", rule)
    page = page_of(tmp_path / "fit")
    after = answer.made.handed.after
    slider = part(page, '<div class="slider"', "<script")
    assert f'<span data-show="found">{after.recalls[0].hits}</span>' in slider
    assert f'<span data-show="alarms">{after.false_alarms.hits}</span>' in slider
    assert f"{rule.name}s={{{NAMES[1]!r}: {rule.values[1]}}}" in slider
    assert f"camri export model --{rule.name} " in slider
    assert "test data" in slider


def test_examples_are_thumbnails_of_images_and_rows_of_tables(tmp_path):
    _, logits, _ = make_fit(tmp_path / "images", shape=(12, 8, 3))
    missed = part(page_of(tmp_path / "images"), '<section id="missed"', "</section>")
    rows = read_examples(tmp_path / "images")["missed"][:12]
    assert missed.count('<img src="data:image/png;base64,') == len(rows) == 12
    said = Shift({1: 0.7}).predict(logits)
    for row in rows:
        assert f"{NAMES[1]} → {NAMES[said[row]]}, p\u00a0=\u00a0" in missed
    make_fit(tmp_path / "table", shape=(9,))
    missed = part(page_of(tmp_path / "table"), '<section id="missed"', "</section>")
    assert '<img src="data' not in missed
    assert missed.count('<th scope="row">') == 12
    assert "The first 6 of 9 features" in missed
    (tmp_path / "table" / EXAMPLES_FILE).unlink()
    assert 'id="missed"' not in page_of(tmp_path / "table")


def test_only_classes_that_significantly_changed_are_coloured(tmp_path):
    make_fit(tmp_path / "fit")
    bars = part(page_of(tmp_path / "fit"), '<section id="classes"', "</section>")
    rows = re.findall(r'<tr class="(\w*)"><th scope="row"><bdi>(\w+)', bars)
    assert rows == [("down", "corner"), ("", "ring"), ("up", "row")]
    assert "1 of 3 significantly lost recall" in bars


@pytest.mark.parametrize(("method", "before"), [("ce", "the largest score of this model"), ("camri", "another model")])
def test_what_before_means_is_said(tmp_path, method, before):
    answer, *_ = make_fit(tmp_path / "fit")
    made = replace(answer.made, handed=replace(answer.made.handed, method=method))
    replace(answer, made=made).save(tmp_path / "fit" / ANSWER_FILE)
    assert f"Before: {before}" in part(page_of(tmp_path / "fit"), '<section id="answer"', "</section>")


def test_a_fit_that_was_cut_short_says_so_first(tmp_path):
    make_fit(tmp_path / "fit", finished=False, still_improving=True)
    first = part(page_of(tmp_path / "fit"), '<p class="lead"><bdi dir="ltr">', "</p>")
    assert first.startswith("Still improving when the time was up")
    assert "the same command resumes" in first


def test_in_a_browser_charts_are_drawn_when_they_are_unfolded(look, tmp_path):
    make_fit(tmp_path / "fit")
    page, complaints, _ = look(write_page(tmp_path / "fit"), width=390)
    assert page.evaluate("document.documentElement.dataset.charts") == "0"
    page.locator("#curve > summary").click()
    page.wait_for_function("document.documentElement.dataset.charts !== '0'")
    assert page.locator("#chart-curve-0 svg").bounding_box()["width"] > 200
    page.locator(".slider input").focus()
    page.keyboard.press("End")
    assert page.locator("[data-show=recall]").inner_text() == "100.0"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
