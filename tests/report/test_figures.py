"""What the charts draw: their records and specifications, not their pixels."""

import json
from dataclasses import replace

import numpy as np
import pytest

from camri.errors import InputError
from camri.losses import cross_entropy as torch_cross_entropy
from camri.losses import margin_softmax as torch_margin_softmax
from camri.report import charts
from camri.report.charts import PAGE, draw_circle, draw_curves, export, specification
from camri.report.records import (
    BACK,
    DEPTH,
    circle_records,
    confusion_records,
    curve_records,
    penalty_records,
    recover,
    room,
)
from camri.study.reader import measure
from tests.report.conftest import make_run, rows_of
from tools import contours


def test_the_curve_holds_every_method_and_its_points_lie_on_the_trials_own(opened, gain):
    reading, verdicts = opened(gain)
    figure = draw_curves(curve_records(reading, verdicts))
    assert [panel.title for panel in figure.panels] == ["“column”", "“ring”"]
    assert {record["method"] for record in figure.records} == {"CAMRI", "WCE", "L2-softmax", "cross-entropy"}
    one = verdicts[0]
    ce = [record for record in figure.records if record["setting"] == "ce"][: len(figure.records) // 8]
    place = ce[len(ce) // 2]
    scores = [reading.scores(row, "test", one.column) for row in one.baseline.rows]
    wanted = []
    for score in scores:  # by brute force: the least shift that reaches the recall
        shifts = np.linspace(-4, 6, 4001)
        reached = next(s for s in shifts if score.recall(s).mean() >= place["recall"] - 1e-9)
        wanted.append(score.accuracy(reached))
    assert place["accuracy"] == pytest.approx(np.mean(wanted), abs=2e-3)
    assert place["low"] < place["accuracy"] < place["high"]
    assert place["trials"] == 8
    baseline = np.mean(measure(one.baseline, one.column.indices).accuracy)
    assert min(record["accuracy"] for record in figure.records) >= baseline - DEPTH - 1e-4
    least = min(np.mean(measure(one.shown(m), one.column.indices).recall) for m in ("ce", "wce", "l2softmax", "camri"))
    assert min(record["recall"] for record in figure.records[:100]) >= least - BACK - 1e-3


def test_of_many_methods_only_two_have_a_band(opened, gain, monkeypatch):
    def banded(figure):
        drawn = figure.panels[0].chart.to_dict(validate=False)
        (values,) = {json.dumps(rows_of(drawn, one)) for one in drawn["layer"] if one["mark"]["type"] == "area"}
        return {one["method"] for one in json.loads(values)}

    reading, verdicts = opened(gain)
    figure = draw_curves(curve_records(reading, verdicts))
    assert banded(figure) == {"CAMRI", "cross-entropy"}
    assert "± one standard deviation of CAMRI and cross-entropy" in figure.caption
    assert {record["method"] for record in figure.records} == {"CAMRI", "WCE", "L2-softmax", "cross-entropy"}
    monkeypatch.setattr(charts, "MOST_BANDS", 4)
    assert banded(draw_curves(curve_records(reading, verdicts))) == {"CAMRI", "WCE", "L2-softmax", "cross-entropy"}


def test_the_curve_says_whose_recall_it_is(opened, gain):
    traced = curve_records(*opened(gain))
    assert [one["num_important"] for one in traced] == [1, 1]
    texts = []
    for several in (
        traced[:1],
        [{**traced[0], "num_important": 2}],
        [{k: traced[0][k] for k in traced[0] if k != "num_important"}],
    ):
        drawn = draw_curves(several).panels[0].chart.to_dict(validate=False)
        texts += {one["encoding"]["x"]["title"] for one in drawn["layer"] if "x" in one["encoding"]}
    one, both = "recall of the important class", "mean recall of the important classes"
    assert texts == [one, both, one], "results of earlier versions do not say, and have one class"


def test_a_better_method_lies_above_and_a_biased_one_does_not(opened, gain, no_gain):
    def height(folder, method):
        reading, verdicts = opened(folder)
        records = [
            r
            for r in draw_curves(curve_records(reading, verdicts[:1])).records
            if r["method"] in (method, "cross-entropy")
        ]
        recalls = {r["recall"] for r in records if r["method"] == method}
        shared = recalls & {r["recall"] for r in records if r["method"] == "cross-entropy"}
        mean = {
            m: np.mean([r["accuracy"] for r in records if r["method"] == m and r["recall"] in shared])
            for m in (method, "cross-entropy")
        }
        return mean[method] - mean["cross-entropy"]

    assert height(gain, "CAMRI") > 0.02
    assert abs(height(no_gain, "CAMRI")) < 0.002


def test_confusion_and_differences_are_shares_of_each_row(opened, gain):
    reading, verdicts = opened(gain)
    figure = charts.draw_confusion(confusion_records(reading, verdicts))
    assert [panel.title[:4] for panel in figure.panels] == ["(a) ", "(b) ", "(c) "]
    for name in reading.classes:
        row = [
            record["percent"]
            for record in figure.records
            if record["column"] == "cross-entropy" and record["true"] == name
        ]
        assert sum(row) == pytest.approx(100, abs=0.2)
    changes = {(r["true"], r["predicted"]): r["percent"] for r in figure.records if r["column"] == "column"}
    setting = verdicts[0].in_table_one("camri")
    wanted = 100 * (np.mean(measure(setting, (1,)).recall) - np.mean(measure(verdicts[0].baseline, (1,)).recall))
    assert changes["column", "column"] == pytest.approx(wanted, abs=0.01)
    assert wanted > 5


def test_the_penalty_figure_has_means_and_bands_at_one_scale(opened, gain):
    reading, verdicts = opened(gain)
    figure = charts.draw_penalty(penalty_records(reading, verdicts))
    assert [panel.title for panel in figure.panels] == [
        "“column”: WCE", "“column”: CAMRI, s = 8", "“ring”: WCE", "“ring”: CAMRI, s = 8",
    ]  # fmt: skip
    camri = [
        r for r in figure.records if r["method"] == "camri" and r["figure"] == "recall" and r["column"] == "column"
    ]
    assert [record["penalty"] for record in camri] == [0, 4, 8], "m = 0 is L2-softmax's trials, and counts"
    plain = measure(next(s for s in verdicts[0].of("l2softmax")), (1,)).recall
    assert camri[0]["mean"] == pytest.approx(np.mean(plain), abs=1e-4)
    assert camri[0]["high"] - camri[0]["mean"] == pytest.approx(np.std(plain, ddof=1), abs=1e-4)


def test_the_penalty_figure_begins_without_the_penalty(opened, gain):
    reading, verdicts = opened(gain)
    wce = [r for r in penalty_records(reading, verdicts) if r["method"] == "wce" and r["column"] == "column"]
    assert (wce[0]["setting"], wce[0]["penalty"], wce[0]["figure"]) == ("ce", 1, "recall")
    assert wce[0]["mean"] == pytest.approx(np.mean(measure(verdicts[0].baseline, (1,)).recall), abs=1e-4)
    assert [r["penalty"] for r in wce] == sorted(r["penalty"] for r in wce)
    margins = tuple(s for s in verdicts[0].settings if s.method != "camri" or s.value("m") > 0)
    without = [replace(verdicts[0], settings=margins)]  # m = 0 was not asked for, L2-softmax was
    camri = [r["penalty"] for r in penalty_records(reading, without) if r["method"] == "camri"]
    assert camri == [0, 0, 4, 4, 8, 8]
    one = tuple(s for s in margins if s.method != "camri" or s.value("m") < 0.3)
    found = penalty_records(reading, [replace(verdicts[0], settings=one)])
    (left_out,) = [r for r in found if r["method"] == "camri"]
    assert left_out["why"] == "a single penalty"
    caption = charts.draw_penalty(found).caption
    assert caption.endswith("Not drawn: CAMRI of “column”, a single penalty.")
    assert "m = 0" not in caption, "what is not drawn is not explained"
    assert "Not drawn" not in charts.draw_penalty(penalty_records(reading, verdicts)).caption


def test_changes_of_recall_show_every_class_the_important_first(opened, gain, monkeypatch):
    reading, verdicts = opened(gain)
    figure = charts.draw_changes(reading, verdicts)
    against = [r for r in figure.records if r["column"] == "column" and r["against"] == "cross-entropy + shift"]
    assert against[0]["class"] == "column"
    assert {record["class"] for record in against} == set(reading.classes)
    found = verdicts[0].best.judgement.gains["baseline shifted"].by_class
    for record in against:
        difference = found[reading.classes.index(record["class"])]
        assert record["gain"] == pytest.approx(100 * difference.value, abs=1e-3)
        assert record["low"] <= record["gain"] <= record["high"]
    gains = verdicts[0].best.judgement.gains["baseline"].by_class
    others = sorted(set(gains) - {1}, key=lambda index: gains[index].value)
    assert others != sorted(others)
    assert [record["class"] for record in against] == [reading.classes[index] for index in (1, *others)]
    monkeypatch.setattr(charts, "MOST_CLASSES", 3)
    least = min(others, key=lambda index: abs(gains[index].value))
    shown = [r["class"] for r in charts.draw_changes(reading, verdicts[:1]).records if r["against"] == "cross-entropy"]
    assert shown == [reading.classes[index] for index in (1, *others) if index != least]


def test_fig_2_is_computed_from_the_losses_of_this_package():
    import torch

    features = np.random.default_rng(0).normal(size=(50, 2))
    labels = torch.zeros(50, dtype=torch.long)
    logits = torch.tensor(features @ contours.WEIGHTS.T)
    np.testing.assert_allclose(contours.cross_entropy(features), torch_cross_entropy(logits, labels), rtol=1e-6)
    cos = logits / torch.tensor(features).norm(dim=1, keepdim=True)
    margins = torch.tensor([contours.MARGIN_RAD, 0.0, 0.0])
    wanted = torch_margin_softmax(cos.float(), labels, margins, contours.SCALE)
    np.testing.assert_allclose(contours.margin_softmax(features, contours.MARGIN_RAD), wanted, rtol=2e-3, atol=1e-4)


def test_fig_2_colours_are_the_loss_at_the_levels_without_the_penalty():
    figure = contours.contours(steps=41)
    assert [panel.title for panel in figure.panels] == list(contours.LOSSES)
    largest = contours.cross_entropy(contours.EXTENT * np.array([-1.0, -1.0]))
    for panel, weight in ((figure.panels[0], 1.0), (figure.panels[2], contours.WEIGHT)):
        field = panel.chart.layer[0].data["values"]
        middles = np.array([[one["x"] + one["x2"], one["y"] + one["y2"]] for one in field]) / 2
        wanted = np.minimum(1.0, contours.cross_entropy(middles, weight) / largest)
        np.testing.assert_allclose([one["part"] for one in field], wanted, atol=1e-3)
    for tie in contours.boundaries():
        scores = np.sort(contours.WEIGHTS @ np.array([tie["x2"], tie["y2"]]))
        assert scores[-1] == pytest.approx(scores[-2], abs=1e-5)


def test_fig_6_finds_the_features_again():
    drawn = np.random.default_rng(0)
    weight, features = drawn.normal(size=(10, 2)), drawn.normal(size=(30, 2))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    logits = (16 * features @ unit.T).astype(np.float16)
    np.testing.assert_allclose(recover(logits, weight), features, atol=2e-3)


def test_fig_6_of_a_run_that_kept_logits_and_weights(opened, tmp_path):
    reading, _ = opened(make_run(tmp_path, seeds=1, num_images=40, keep=True))
    figure = draw_circle(circle_records(reading))
    assert [panel.title.split(":")[0] for panel in figure.panels] == ["L2-softmax", "CAMRI"]
    spokes = {r["class"]: (r["x"], r["y"]) for r in figure.records if r["line"] and r["panel"] == "camri"}
    assert spokes["column"] == pytest.approx((0.0, 1.0), abs=1e-9)
    dots = [r for r in figure.records if not r["line"] and r["class"] == "column"]
    assert dots
    assert all(
        (r["x"], r["y"], r["kind"]) == (pytest.approx(0, abs=1e-2), pytest.approx(1, abs=1e-2), "important")
        for r in dots
    )
    assert export(figure, "svg").startswith(b"<svg")


def test_fig_6_draws_the_model_of_median_accuracy_and_names_every_models_room(opened, tmp_path):
    reading, _ = opened(make_run(tmp_path, seeds=3, num_images=40, keep=True))
    panels = {one["method"]: one for one in circle_records(reading)}
    for method, panel in panels.items():
        rows = next(iter(reading.settings(reading.columns[0], method))).rows
        accuracies = [row.accuracy["val"] for row in rows]
        assert sorted(accuracies)[1] == accuracies[panel["drawn"]]
        assert len(set(accuracies)) == 3
        assert [one["accuracy"] for one in panel["models"]] == [row.accuracy["test"] for row in rows]
        assert [one["room"] for one in panel["models"]] == pytest.approx([180.0] * 3)  # four classes, evenly
    caption = draw_circle(list(panels.values())).caption
    assert "Room of “column”" in caption
    assert "; CAMRI 180.0° (" in caption
    left_out = "ArcFace (not trained), camri m=4π/64 s=8, camri m=8π/64 s=8"
    assert caption.endswith(f"Shared evenly it would be 180°. Not drawn: {left_out}.")


def test_of_two_models_fig_6_draws_the_better_one(opened, tmp_path):
    reading, _ = opened(make_run(tmp_path, seeds=2, num_images=40, keep=True))
    for panel in circle_records(reading):
        rows = next(iter(reading.settings(reading.columns[0], panel["method"]))).rows
        drawn, other = sorted(rows, key=lambda row: row.seed != panel["drawn"])
        assert drawn.accuracy["val"] >= other.accuracy["val"]


@pytest.mark.parametrize("name", ["3", "5", "6", "curve", "gaps", "training"])
def test_figures_as_pdf_are_small(name, tmp_path):
    """At most 300 kB, which journals and mail take; of a run with many classes, settings and dots."""
    from camri.cli import app
    from camri.cli.report import MOST_PDF

    classes = tuple(f"class {number}" for number in range(21))

    def val_hits(method, seed):
        return np.random.default_rng(seed).integers(0, 20, size=(300, 21))

    run = make_run(
        tmp_path, classes=classes, important=classes[:3], seeds=2, num_images=2100, keep=True, val_hits=val_hits
    )
    out = tmp_path / "figure.pdf"
    app(["report", str(run), "--figure", name, "--format", "pdf", "--out", str(out)], standalone_mode=False)
    assert 1000 < out.stat().st_size <= MOST_PDF


def test_the_room_of_a_weight_vector_is_that_to_its_two_neighbours():
    angles = np.radians([10.0, 350.0, 80.0, 200.0])
    weight = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array([[1.0], [3.0], [0.5], [2.0]])
    assert [room(weight, index) for index in range(4)] == pytest.approx([90.0, 170.0, 190.0, 270.0])


def test_fig_6_says_what_it_lacks(opened, gain):
    reading, _ = opened(gain)
    with pytest.raises(
        InputError, match=r"Fig\. 6 needs features, and the outcomes of .* keep none; run the study with"
    ):
        circle_records(reading)


def test_every_figure_has_a_caption_and_a_specification_for_the_page(opened, gain):
    reading, verdicts = opened(gain)
    for figure in (
        draw_curves(curve_records(reading, verdicts), PAGE),
        charts.draw_changes(reading, verdicts, PAGE),
        charts.draw_confusion(confusion_records(reading, verdicts), PAGE),
        charts.draw_penalty(penalty_records(reading, verdicts), PAGE),
    ):
        assert len(figure.caption) > 80
        for panel in figure.panels:
            found = specification(panel, PAGE)
            assert found["width"] == "container"
            assert "#" not in str(found["config"]), "the page's colours are CSS variables"


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_export_without_a_browser(opened, gain, form, start):
    assert export(draw_curves(curve_records(*opened(gain))), form).startswith(start)


def test_unknown_figure_formats_are_refused(opened, gain):
    with pytest.raises(InputError, match=r"'gif' is not for a figure; did you mean 'pdf'|choices: png, svg, pdf"):
        export(draw_curves(curve_records(*opened(gain))), "gif")


@pytest.mark.parametrize("num_classes", [12, 13])
def test_a_confusion_map_without_numbers_has_a_legend_of_each_colour(num_classes):
    names = [f"class {number:02}" for number in range(num_classes)]
    cells = [{"column": "x", "true": names[0], "predicted": names[1], "percent": percent} for percent in (5.0, -8.0)]
    panels = [
        {"title": "(a)", "is_change": False, "cells": cells[:1]},
        {"title": "(b)", "is_change": True, "cells": cells},
    ]
    found = {"classes": names, "num_classes": num_classes, "panels": panels}
    figure, shown = charts.draw_confusion(found, PAGE), []
    for panel in figure.panels:
        drawn = panel.chart.to_dict(validate=False)
        rects = [one for one in drawn["layer"] if one["mark"]["type"] == "rect"]
        shown.append([])
        for one in rects:
            opacity = one["encoding"]["opacity"]
            legend = opacity["legend"] and opacity["legend"]["symbolType"]
            sign = one["transform"][0]["filter"]
            shown[-1].append((opacity["title"], one["mark"]["color"], sign, opacity["scale"]["domain"][1], legend))
        has_text = any(one["mark"]["type"] == "text" for one in drawn["layer"])
        assert has_text == (num_classes == 12)
        assert drawn.get("resolve") == (
            None if num_classes == 12 else {"scale": {"opacity": "independent", "color": "independent"}}
        )
    legend = None if num_classes == 12 else "square"
    assert shown == [
        [("percent of the row’s class", "var(--up)", "datum.percent >= 0", 5.0, legend)],
        [
            ("points more", "var(--up)", "datum.percent >= 0", 8.0, legend),
            ("points fewer", "var(--down)", "datum.percent < 0", 8.0, legend),
        ],
    ]
    assert (b"role-legend" in export(charts.draw_confusion(found), "svg")) == (legend is not None)
