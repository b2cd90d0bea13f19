"""The operating-point slider: what it shows is what anybody counts who runs the code it shows."""

import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy

from camri.decision import Shift, Threshold, audit
from camri.report.decision_page import render, slider_of, write_answer
from camri.report.slider import MOST_STATES, VALUE, make_slider
from camri.report.words import codes
from tests.decision.made import rows, softmax

CLASSES = ("limit", "stop", "yield", "entry")
HOSTILE = ("limit", "</script><img src=x onerror=alert(1)>", "yield", "entry")


def made(num):
    return rows(num, spread=2.5, held_back=[1])


def follow(code, scores):
    """Predictions of the numpy code that a slider shows."""
    names = {"np": np, "scipy": scipy, "logits": scores.copy(), "p": scores.copy()}
    exec(code, names)
    return names["predicted"]


def figures(predicted, labels, important):
    """Recall, precision, false alarms, accuracy in percent; found, false alarms."""
    hits = [int(((labels == i) & (predicted == i)).sum()) for i in important]
    alarm = np.isin(predicted, important) & ~np.isin(labels, important)
    recall = np.mean([hit / (labels == i).sum() for hit, i in zip(hits, important, strict=True)])
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.mean([np.divide(hit, (predicted == i).sum()) for hit, i in zip(hits, important, strict=True)])
    shown = ["–" if np.isnan(one) else f"{100 * one:.1f}" for one in (recall, precision, alarm.mean())]
    return (*shown, f"{100 * (predicted == labels).mean():.1f}", tuple(hits), int(alarm.sum()))


@pytest.mark.parametrize("important", [["stop"], ["stop", "entry"]])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "rounded"])
@pytest.mark.parametrize("rule", [Shift, Threshold])
def test_every_state_is_what_its_code_gives(kind, important, rule):
    logits, labels = made(400)
    scores = {"logits": logits, "probabilities": softmax(logits), "rounded": softmax(logits).round(3)}[kind]
    own = [CLASSES.index(name) for name in important]
    found = audit(scores, labels, important, classes=CLASSES)
    found = replace(found, point=replace(found.point, rule=rule(dict.fromkeys(own, 0.25))))
    slider, code = slider_of(found), codes(found)["numpy"]
    assert ("own" in code) is (rule is Threshold)
    for state in slider.states:
        predicted = follow(code.replace(VALUE, state.number), scores)
        shown = (state.recall, state.precision, state.alarm_rate, state.accuracy, state.hits, state.alarms)
        assert shown == figures(predicted, labels, own), state.number
    hits = [sum(state.hits) for state in slider.states]
    assert hits == sorted(hits)
    before = slider.before
    shown = (before.recall, before.precision, before.alarm_rate, before.accuracy, before.hits, before.alarms)
    assert shown == figures(scores.argmax(axis=1), labels, own)


def test_many_states_are_thinned_without_the_ends_and_the_advised_one():
    logits, labels = made(60_000)
    found = audit(logits, labels, "stop", classes=CLASSES)
    slider = slider_of(found)
    assert MOST_STATES // 2 < len(slider.states) <= MOST_STATES
    num = int((labels == 1).sum())
    assert (slider.states[0].hits, slider.states[-1].hits) == ((0,), (num,))
    predicted = (logits + found.shift * np.eye(4)[1]).argmax(axis=1)
    assert slider.now.hits == (((labels == 1) & (predicted == 1)).sum(),)
    below = sum(float(state.recall) < float(slider.before.recall) - 10.1 for state in slider.states)
    assert 2 <= below <= MOST_STATES // 8, "most of the way is where people choose"
    assert len(slider.data) < 400_000


def test_the_page_holds_the_states_and_no_name_as_markup():
    logits, labels = made(400)
    slider = slider_of(audit(logits, labels, HOSTILE[1], classes=HOSTILE))
    assert "<" not in slider.data
    held = json.loads(slider.data)
    assert held["states"][slider.start][1] == slider.now.recall
    text = render(audit(logits, labels, HOSTILE[1], classes=HOSTILE), "s.csv")
    assert "<img" not in text
    assert f'value="{slider.start}"' in text
    assert slider.code["PyTorch"] in html.unescape(text)


def test_a_page_without_charts_is_small():
    text = render(audit(*made(400), "stop", classes=CLASSES), "s.csv")
    assert len(text) < 100_000, "a chart library in a page without charts"


def test_a_single_state_is_a_slider_too():
    labels = np.arange(40) % 2
    scores = audit(np.eye(2)[labels] * 5.0, labels, 1).scores
    slider = make_slider(scores, Shift({1: 0.0}), ["1"], {"numpy": "VALUE"})
    assert (slider.now.recall, slider.now.alarms, slider.now.number) == ("100.0", 0, "0")


def test_in_a_browser_keys_move_every_figure(look, tmp_path):
    logits, labels = made(400)
    found = audit(logits, labels, "stop", classes=CLASSES)
    slider, path = slider_of(found), write_answer(found, tmp_path / "a.html", "s.csv")
    page, complaints, requests = look(path, width=390)
    page.get_by_label(re.compile("Operating point")).focus()
    seen = set()
    keys = {"": slider.now, "End": slider.states[-1], "ArrowLeft": slider.states[-2], "Home": slider.states[0]}
    for key, expected in [*keys.items(), ("ArrowRight", slider.states[1])]:
        if key:
            page.keyboard.press(key)
        texts = {
            name: page.locator(f"[data-show={name}]").inner_text()
            for name in ("recall", "precision", "alarm_rate", "accuracy", "found", "missed", "alarms", "passed")
        }
        code = page.locator("[data-code=numpy]").inner_text()
        predicted = follow(code, logits)
        *percents, (hits,), alarms = figures(predicted, labels, [1])
        assert [*texts.values()][:4] == percents
        counts = [int(text) for text in [*texts.values()][4:]]
        assert counts == [hits, (labels == 1).sum() - hits, alarms, (labels != 1).sum() - alarms]
        assert (percents[0], hits) == (expected.recall, expected.hits[0]), key
        spoken = page.locator("input[type=range]").get_attribute("aria-valuetext")
        assert f"{hits} of {(labels == 1).sum()} found" in spoken
        seen.add((code, page.locator("circle.now").nth(0).get_attribute("cx"), spoken))
    assert len(seen) == 5
    page.get_by_role("button", name="As advised").click()
    assert page.locator("[data-show=recall]").inner_text() == slider.now.recall
    page.get_by_role("button", name="PyTorch").click()
    assert page.locator("pre:visible").all_inner_texts() == [slider.code["PyTorch"]]
    assert complaints == []
    assert requests == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
