"""The page: its text for every kind of run, and its behaviour in a real browser."""

import html
import itertools
import json
import re
import sqlite3
from importlib.metadata import version

import numpy as np
import pytest
import vl_convert

from camri.decision import audit
from camri.report import html as page_html
from camri.report.decision_page import write_answer
from camri.report.page import render, write_page
from camri.study.reader import RunReader
from camri.study.store import STORE_FILE, sign
from tests.report.conftest import CLASSES, METHODS, edit_store, make_run, rows_of

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "שלטי אזהרה \u202eabc",
    "🛑" * 40,
    "a very long name " * 12 + "x" * 120,
)
CE = {("ce", seed) for seed in range(2)}


def text_of(folder):
    with RunReader(folder) as reading:
        return render(reading)


def lead(page):
    return re.search(r'<p class="lead"><bdi dir="ltr">(.*?)</bdi>', page).group(1)


def test_a_true_gain_is_reported_with_its_uncertainty(gain_page):
    page = gain_page.read_text(encoding="utf-8")
    assert re.match(r"Significant gain for 2 of 2 classes.*“column” \+\d+\.\d \[\+\d", lead(page))
    assert "Holm" in page
    assert "Still running" not in page
    assert "Not finished" not in page
    assert len(page.encode()) < 3_000_000


def test_the_script_of_charts_is_made_once_and_kept(tmp_path, monkeypatch):
    made, text = [], "let a = '</script>' + 'é';"
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: made.append(1) or text)
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / "cache"))
    bundle = page_html._bundle.__wrapped__
    assert bundle() == bundle() == r"let a = '<\/script>' + 'é';"
    assert len(made) == 1
    (kept,) = (tmp_path / "cache").iterdir()
    assert version("vl-convert-python") in kept.name  # another version's is not taken
    whole = kept.read_bytes()
    for damaged in (b"\xff", whole[:-3], b""):
        kept.write_bytes(damaged)
        assert bundle() == bundle() == r"let a = '<\/script>' + 'é';"
        assert kept.read_bytes() == whole
    assert len(made) == 4
    (tmp_path / "a file").touch()
    monkeypatch.setenv("CAMRI_CACHE", str(tmp_path / "a file"))
    assert bundle() == bundle()
    assert len(made) == 6


def test_the_answer_has_a_table(gain_page):
    page = gain_page.read_text(encoding="utf-8")
    start = page.index('<section id="answer"')
    table = page[start : page.index("</section>", start)]
    assert re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', table) == ["column", "ring"]
    assert len(re.findall(r"<strong><bdi>\+\d+\.\d \[\+\d", table)) == 2
    assert '<td class="text"><bdi>camri m=' in table
    assert "<li>" not in table


def test_no_gain_is_stated_plainly(no_gain):
    page = text_of(no_gain)
    assert lead(page).startswith("No significant gain")
    assert 'class="answer none"' in page
    assert "2 of 24 trials failed" in page
    assert "the loss became nan &lt;/script&gt;" in page


def test_without_validation_data_nothing_is_claimed(no_validation):
    page = text_of(no_validation)
    assert lead(page).startswith("No verdict: the study held out no validation data")
    assert "chosen on the test set: optimistic" in lead(page)


def test_where_cross_entropy_is_kept_no_gain_of_zero_is_shown(tmp_path):
    make_run(tmp_path, important=("column", "ring"), seeds=3, sharpness={"camri": -1.0, "wce": -1.0})
    page = text_of(tmp_path)
    assert "with a shift on validation data for “column”, “ring”." in lead(page)
    assert "0.0 " not in lead(page)
    assert "Not shown: Classes (no method was chosen on validation data)" in page


def test_how_it_was_made(gain_page):
    page = gain_page.read_text(encoding="utf-8")
    for said in (
        "made-fingerprint",
        "0, 1, 2, 3, 4, 5, 6, 7",
        "torch 2.13.0",
        "&lt;made&gt; &amp; by hand",
        "test 400",
    ):
        assert said in page, said
    assert "<code>camri study run study.json --out runs/again</code>" in page
    assert "<dd><bdi>camri 0.1.0, torch 2.13.0</bdi></dd>" in page, "versions are no command"
    assert re.search(r"<dd><bdi>2\d{3}-\d\d-\d\d \d\d:\d\d:\d\d – 2\d{3}-.* UTC</bdi>", page)
    assert "ramp 0.0 to 0.3, " in page
    assert "flip no" in page
    shown = html.unescape(re.search(r'<pre tabindex="0">(.*?)</pre>', page, flags=re.S).group(1))
    assert json.loads(shown)["name"] == "made by hand"  # what the command asks for is there


def test_an_unfinished_and_a_running_study_say_so(tmp_path):
    from camri.study import run_folder

    make_run(tmp_path, seeds=2, leave_out={("camri", 1)})
    assert "<strong>Not finished:</strong> 10 of 12 trials have finished" in text_of(tmp_path)
    with run_folder.hold(tmp_path):
        assert "<strong>Still running:</strong> 10 of 12 trials have finished" in text_of(tmp_path)


def add_study(folder, **changes):
    """Note a second study, which differs from the first in that."""
    with sqlite3.connect(folder / STORE_FILE) as connection:
        ((spec,),) = connection.execute("SELECT spec FROM studies")
        changed = json.dumps({**json.loads(spec), **changes})
        connection.execute("INSERT INTO studies VALUES ('more', 'more', ?, '')", (changed,))
        rows = connection.execute("SELECT key, spec FROM studies ORDER BY rowid").fetchall()
        crc = sign(value for row in rows for value in row)
        connection.execute("UPDATE checks SET crc = ? WHERE what = 'studies'", (crc,))


def test_a_run_of_several_studies_does_not_say_that_it_is_not_finished(tmp_path):
    """How many trials studies of different seeds plan together is not known."""
    make_run(tmp_path, seeds=4)
    add_study(tmp_path, seeds=[0, 1])
    page = text_of(tmp_path)
    assert "Not finished" not in page
    assert "<code>camri study run study.json --out runs/again</code>" in page


def test_below_three_seeds_no_table_and_no_chart_has_an_interval(tmp_path):
    make_run(tmp_path, seeds=2, sharpness={"camri": 1.2})
    page = text_of(tmp_path)
    tables = re.findall(r"<td[^>]*>(.*?)</td>", page.split("<script")[0])
    assert [text for text in tables if re.search(r"[+−]\d.*\[", text)] == []
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', page, re.DOTALL).group(1))
    points = [
        value
        for name in ("changes-0", "equal-recall-0")
        for layer in charts[name]["layer"]
        for value in rows_of(charts[name], layer)
        if "low" in value
    ]
    assert len(points) > 8
    assert all(point["low"] == point["high"] for point in points)


def test_a_run_without_baseline_or_with_one_seed_has_a_page(tmp_path):
    make_run(tmp_path / "a", methods={name: METHODS[name] for name in ("l2softmax", "camri")}, seeds=2)
    assert lead(text_of(tmp_path / "a")).startswith("No answer: this run has no cross-entropy trials")
    make_run(tmp_path / "b", seeds=1, sharpness={"camri": 1.5})
    assert "at least 3 seeds" in lead(text_of(tmp_path / "b"))


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    make_run(tmp_path, leave_out={(method, seed) for method in METHODS for seed in range(4)})
    page = text_of(tmp_path)
    assert "0 of 24 trials have finished" in page
    assert lead(page) == "No answer yet: no trial has finished."
    assert "<p>No trial has finished yet.</p>" in page
    assert f"<dt><bdi>to resume it</bdi></dt><dd><code>camri study run study.json --out {tmp_path}</code>" in page


def test_with_cross_entropy_alone_nothing_is_claimed(tmp_path):
    make_run(tmp_path / "early", seeds=2, leave_out={(method, seed) for method in METHODS for seed in range(2)} - CE)
    page = text_of(tmp_path / "early")
    assert lead(page).startswith("No answer yet: only cross-entropy was trained")
    assert "held out no validation data" not in page
    make_run(tmp_path / "only", seeds=2, methods={"ce": {}})
    assert lead(text_of(tmp_path / "only")).startswith("No answer: only cross-entropy was trained")
    make_run(tmp_path / "failed", seeds=2, failing={(method, seed) for method in METHODS for seed in range(2)})
    assert lead(text_of(tmp_path / "failed")).startswith("No answer yet: no trial has succeeded")
    make_run(tmp_path / "late", seeds=2, failing=CE)
    assert lead(text_of(tmp_path / "late")).startswith("No answer yet: no cross-entropy trial has succeeded")


def test_names_are_escaped_in_html_and_json(tmp_path):
    make_run(tmp_path, classes=HOSTILE, important=HOSTILE[:1], seeds=2)
    page = text_of(tmp_path)
    ours = page[: page.index('<script type="application/json"')]
    assert "<img" not in ours
    assert "<script" not in ours
    body = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL).group(1)
    assert "<" not in body
    assert HOSTILE[1] in json.dumps(json.loads(body), ensure_ascii=False)


def test_nothing_is_left_behind_when_the_page_cannot_be_written(gain, tmp_path):
    with pytest.raises(ValueError, match="cannot be written"):
        write_page(gain, tmp_path / "no" / "such" / "folder.html")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def gain_page(gain):
    return write_page(gain)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    make_run(folder, classes=HOSTILE, important=(HOSTILE[0], HOSTILE[4]), seeds=3, sharpness={"camri": 1.0})
    return write_page(folder)


def test_without_javascript_the_page_says_first_why_it_has_no_charts(browser, gain_page):
    page = browser.new_page(java_script_enabled=False)
    page.goto(gain_page.as_uri())
    assert page.locator("main > :visible").first.inner_text().startswith("The charts need JavaScript")
    assert page.locator(".chart:visible").count() == 0
    assert page.locator("figcaption:visible").count() > 0
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser_all_charts_are_drawn_and_nothing_is_asked_of_the_network(look, hostile_page, width, scheme):
    page, complaints, requests = look(hostile_page, width, scheme)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [hostile_page.as_uri()]
    places = page.locator(".chart")
    assert places.count() == int(page.evaluate("document.documentElement.dataset.charts")) > 8
    assert page.locator(".chart svg").count() == places.count()
    counts = "[...document.querySelectorAll('.chart svg')].map(one => one.querySelectorAll('path, line, text').length)"
    assert min(page.evaluate(counts)) >= 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_small_phone_no_text_of_a_chart_is_cut(look, hostile_page):
    page, _, _ = look(hostile_page, width=320)
    beyond = """[...document.querySelectorAll('.chart')].flatMap(chart => {
        const ends = chart.getBoundingClientRect();
        return [...chart.querySelectorAll('svg text')].filter(text => {
            const own = text.getBoundingClientRect();
            return text.textContent && (own.right > ends.right + 1 || own.left < ends.left - 1);
        }).map(text => `${chart.id}: ${text.textContent}`);
    })"""
    assert page.evaluate(beyond) == []


def test_a_table_that_scrolls_keeps_its_first_column_in_sight(look, gain_page):
    page, _, _ = look(gain_page, width=390)
    place = page.locator("#table .scroll").first
    assert place.evaluate("one => one.scrollWidth > one.clientWidth")
    assert "linear-gradient" in place.evaluate("one => getComputedStyle(one).backgroundImage"), "a shadow says so"
    place.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    first = place.locator("tbody tr:not(.group) th").first
    assert first.bounding_box()["x"] == pytest.approx(place.bounding_box()["x"], abs=1)
    page, _, _ = look(gain_page, width=1400)
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
    assert page.evaluate(wide) == 0, "on a desk nothing needs scrolling"


def test_hostile_names_stay_text(look, hostile_page):
    page, complaints, _ = look(hostile_page)
    assert complaints == []
    assert page.locator("img").count() == 0
    assert HOSTILE[0] in page.locator("h1").inner_text()
    assert page.locator("svg text", has_text="<img src").count() > 0
    assert page.evaluate("document.scripts.length") == 3


def test_names_from_right_to_left_turn_no_sentence_round_and_long_ones_leave_room_for_numbers(look, tmp_path):
    names = ("שלט עצור", "X" * 200, "corner", "ring")
    run = make_run(tmp_path / "run", classes=names, important=names[:1], sharpness={"camri": 1.2}, seeds=2)
    page, _, _ = look(write_page(run), width=390)
    ways = "all => all.map(one => getComputedStyle(one).direction)"
    for place in ("h1 bdi", ".lead bdi", "h3 bdi"):
        found = page.locator(place)
        assert found.count() > 0, place
        assert set(found.evaluate_all(ways)) == {"ltr"}, place
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 4, 400)
    found = audit(drawn.normal(size=(400, 4)) + 2 * np.eye(4)[labels], labels, 0, classes=names)
    page, complaints, requests = look(write_answer(found, tmp_path / "audit.html", "scores.csv"), width=390)
    assert (complaints, len(requests)) == ([], 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    names_end = "one => one.querySelector('tbody th').offsetWidth / one.clientWidth"
    assert page.locator("#classes .scroll").evaluate(names_end) < 0.6
    ways_of_names = page.locator("#classes-all tbody th bdi").evaluate_all(ways)
    assert ways_of_names.count("rtl") == 1, "a name alone runs its own way"


def test_hovering_the_curve_shows_the_setting(look, gain_page):
    page, complaints, _ = look(gain_page)
    points = page.locator("#chart-curve-0 path[aria-roledescription=point]")
    assert points.count() > 100
    points.nth(60).hover(force=True)
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    said = tip.inner_text()
    assert re.search(r"setting\s+(ce|wce w=\d|camri m=\dπ/64 s=8|l2softmax s=8)", said), said
    assert "accuracy" in said
    assert complaints == []


def test_headings_landmarks_and_names_are_there(look, gain_page):
    page, _, _ = look(gain_page)
    for name in (
        "main",
        "header",
        "nav[aria-label]",
        "footer",
        "figure > figcaption",
        "th[scope=col]",
        "th[scope=row]",
    ):
        assert page.locator(name).count() > 0, name
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    drawn = page.locator(".chart").evaluate_all("all => all.map(one => [one.role, one.ariaLabel])")
    assert {role for role, _ in drawn} == {"img"}
    captions = page.locator("figcaption").all_inner_texts()
    assert all(any(label.endswith(caption) for caption in captions) for _, label in drawn)
    assert drawn[0][1].startswith("“column”. Adding a constant")
    ids = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href').slice(1))")
    assert page.evaluate("ids => ids.every(id => document.getElementById(id))", ids)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"


def test_dark_mode_and_print_change_the_colours_of_the_charts(look, gain_page):
    page, _, _ = look(gain_page, scheme="dark")
    ink = "getComputedStyle(document.querySelector('#chart-curve-0 svg text')).fill"
    dark = page.evaluate(ink)
    page.emulate_media(media="print")
    printed = page.evaluate(ink)
    assert (dark, printed) == ("rgb(236, 236, 236)", "rgb(27, 27, 27)")


def test_uninformative_validation_images_are_reported(tmp_path):
    make_run(tmp_path, important=("column", "ring"), seeds=2)
    place = CLASSES.index("column")
    with edit_store(tmp_path) as connection:
        rows = connection.execute("SELECT identity, val_recall FROM outcomes WHERE method = 'ce'").fetchall()
        for number, (identity, text) in enumerate(rows):
            recalls = json.loads(text)
            recalls[place] = 1.0
            recalls[CLASSES.index("ring")] = 1.0 if number else 0.9  # one trial misses some: these say something
            connection.execute("UPDATE outcomes SET val_recall = ? WHERE identity = ?", (json.dumps(recalls), identity))
    with RunReader(tmp_path) as reading:
        num = int((reading.run.labels("val") == place).sum())
        assert reading.cautions() == [
            f"cross-entropy finds every validation image of “column” ({num}) in every trial, so they cannot say how "
            "far to shift or which setting finds more; hold out more of them"
        ]
    assert f"every validation image of “column” ({num}) in every trial" in text_of(tmp_path).split('id="answer"')[0]


@pytest.mark.parametrize(
    ("shape", "one", "several"), [([8, 8, 1], "image", "images"), ([30], "row", "rows"), (None, "image", "images")]
)
def test_a_table_has_rows_and_older_runs_images(tmp_path, shape, one, several):
    make_run(tmp_path, seeds=2)
    with edit_store(tmp_path) as connection:
        ((data,),) = connection.execute("SELECT value FROM meta WHERE name = 'data'").fetchall()
        known = {name: value for name, value in json.loads(data).items() if name != "input_shape"}
        changed = json.dumps(known if shape is None else {**known, "input_shape": shape})
        connection.execute("UPDATE meta SET value = ? WHERE name = 'data'", (changed,))
        connection.execute("UPDATE outcomes SET val_recall = '[1, 1, 1, 1, 1]' WHERE method = 'ce'")
    page = text_of(tmp_path)
    assert f"cross-entropy finds every validation {one} of “" in page
    assert f"<dt><bdi>{several}</bdi></dt><dd><bdi>train " in page
    assert f"<dt>accuracy</dt><dd>share of all {several} that are classified correctly</dd>" in page
    assert ("image" in page.split("<body")[1].split("<script")[0]) == (one == "image")


def test_what_is_the_matter_with_the_data_stands_above_the_answer(tmp_path):
    make_run(tmp_path, seeds=2)
    assert "About the data" not in text_of(tmp_path)
    told = {
        "notes": ["3 of 9 test images are <copies>"],
        "skipped_note": "2 unreadable images were left out",
        "thinned": {"parts": {"ring": 0.05}},
    }
    with edit_store(tmp_path) as connection:
        ((data,),) = connection.execute("SELECT value FROM meta WHERE name = 'data'").fetchall()
        known = json.loads(data)
        changed = json.dumps({**known, "provenance": {**known["provenance"], **told}})
        connection.execute("UPDATE meta SET value = ? WHERE name = 'data'", (changed,))
    before = text_of(tmp_path).split('id="answer"')[0]
    assert 'About the data:</strong> <bdi dir="ltr">3 of 9 test images are &lt;copies&gt;</bdi>.' in before
    assert 'About the data:</strong> <bdi dir="ltr">2 unreadable images were left out</bdi>.' in before
    assert "“ring” was made rare for this study: 5 % of its train rows were kept</bdi>." in before


LINES = "[...document.querySelectorAll('#chart-curve-0 .mark-line path')]"


def opacities(page):
    """Of the curve's lines, by the method they are drawn for."""
    return page.evaluate(f"{LINES}.map(line => [line.getAttribute('stroke'), line.getAttribute('opacity')])")


def test_a_method_is_singled_out_by_the_keyboard(look, gain_page):
    page, complaints, _ = look(gain_page)
    group = page.locator("#curve .pickers").first
    assert group.get_attribute("aria-label") == "Single out a method"
    names = group.locator("button").all_inner_texts()
    assert names == page.locator("#chart-curve-0 .role-legend-label text").all_text_contents()
    assert {value for _, value in opacities(page)} == {"1"}
    group.locator("button", has_text="CAMRI").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"{LINES}.some(line => line.getAttribute('opacity') !== '1')")
    assert {value for color, value in opacities(page) if "camri" in color} == {"1"}
    assert {value for color, value in opacities(page) if "camri" not in color} == {"0.12"}
    assert group.locator("[aria-pressed=true]").all_inner_texts() == ["CAMRI"]
    page.keyboard.press("Space")
    page.wait_for_function(f"{LINES}.every(line => line.getAttribute('opacity') === '1')")
    assert {value for _, value in opacities(page)} == {"1"}
    assert group.locator("[aria-pressed=true]").count() == 0
    assert complaints == []


def test_what_is_computed_is_reported_as_progress(gain, tmp_path):
    heard = []
    write_page(gain, tmp_path / "page.html", on_step=lambda step, part: heard.append((step, round(part, 3))))
    with RunReader(gain) as reading:
        titles = [f"“{column.title}”" for column in reading.columns]
    num = len(titles)
    steps = [f"judging {title}" for title in titles] + [f"comparing the curves of {title}" for title in titles]
    parts = [round(place / (2 * num + 1), 3) for place in range(2 * num + 1)]
    assert heard == list(zip([*steps, "writing the page"], parts, strict=True))
