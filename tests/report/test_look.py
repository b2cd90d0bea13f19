"""Colours and dashes: methods can be told apart on every page and in print, by colour-blind readers too."""

import itertools
import re
from importlib import resources

import numpy as np
import pytest

from camri import methods
from camri.report.charts import OWN, PAGE, PRINT, shorten, style_of_methods
from camri.report.page import explain

METHODS = dict(methods.METHODS)  # camri's own: other tests load those of other packages
STYLE = style_of_methods() + resources.files("camri.report").joinpath("templates/page.css").read_text("utf-8")
LIGHT, DARK = style_of_methods().split("@media")
# Machado, Oliveira and Fernandes (2009), the severest of each kind, for linear RGB.
SIGHTS = {
    "all colours": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def colours(style):
    return {name.replace("-", "_"): value for name, value in re.findall(r"--m-([\w-]+): (#[0-9a-f]{6})", style)}


def linear(colour):
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour, sight):
    """CIE L*a*b* of a colour as somebody sees it."""
    xyz = TO_XYZ @ np.clip(np.asarray(sight) @ linear(colour), 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(colour):
    return float(TO_XYZ[1] @ linear(colour))


@pytest.mark.parametrize(
    "series",
    [colours(LIGHT), colours(DARK), {name: PRINT.shade(name) for name in METHODS}],
    ids=["light", "dark", "print"],
)
def test_methods_of_one_dash_differ_in_colour_for_every_sight(series):
    assert set(series) == set(METHODS)
    dashes = {name: tuple(entry.dash) for name, entry in METHODS.items()}
    for one, other in itertools.combinations(METHODS, 2):
        if dashes[one] == dashes[other]:
            for name, sight in SIGHTS.items():
                apart = np.linalg.norm(lab(series[one], sight) - lab(series[other], sight))
                assert apart > 25, f"{one} and {other} look alike with {name}: {apart:.0f}"


def test_lines_stand_out_from_the_page():
    for style, ground in ((LIGHT, "#ffffff"), (DARK, "#15171a")):
        assert f"--paper: {ground}" in STYLE
        for name, colour in colours(style).items():
            darker, lighter = sorted((luminance(colour), luminance(ground)))
            assert (lighter + 0.05) / (darker + 0.05) >= 3, name  # WCAG 2.2, 1.4.11


@pytest.mark.parametrize("place", [0, 1, 2], ids=["print", "light", "dark"])
def test_methods_of_ones_own_have_colours_that_differ_and_stand_out(place):
    colours_of_own = [shades[place] for shades in OWN.values()]
    for one, other in itertools.combinations(colours_of_own, 2):
        for name, sight in SIGHTS.items():
            apart = np.linalg.norm(lab(one, sight) - lab(other, sight))
            assert apart > 25, f"{one} and {other} look alike with {name}: {apart:.0f}"
    for colour in colours_of_own:
        darker, lighter = sorted((luminance(colour), luminance("#15171a" if place == 2 else "#ffffff")))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def test_a_method_of_ones_own_is_not_grey_and_another_one_has_another_colour():
    for look in (PRINT, PAGE):
        mine, camri, other = look.color_of(["mine", "camri", "another"])
        assert camri == look.shade("camri")
        assert [mine, other] == list(look.own[:2])
        assert look.muted not in (mine, other)
    assert all(f"--{name}: {shades[1]};" in LIGHT for name, shades in OWN.items())


def test_every_knob_is_explained():
    assert all(knob.about for entry in METHODS.values() for knob in entry.knobs.values())
    told = dict(explain(["ce", "camri"]))
    assert "CAMRI (camri)" in told
    assert "margin of the important class" in told["CAMRI (camri)"]
    assert "cross-entropy (ce)" not in told, "it has no knobs"


def test_short_labels_are_short_and_show_both_ends():
    names = [f"Speed limit ({speed}km/h)" for speed in (20, 80, 100, 120)] + ["Stop", "🛑" * 40]
    short = [shorten(name) for name in names]
    assert len(set(short)) == len(names)
    assert max(map(len, short)) <= 16
    assert short[4] == "Stop"
    assert short[1] == "Speed…t (80km/h)"
