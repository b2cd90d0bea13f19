"""One way to say durations everywhere, with no jump where the unit changes; and what inputs are called."""

import pytest

from camri.cli import fit_view, study_view
from camri.report import fit_words, page
from camri.text import duration, noun_of


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (605, "10 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3725.4, "1 h 02 min"),
        (7199, "2 h 00 min"),
        (72 * 3600 - 1, "3.0 days"),
        (float("inf"), "?"),
        (float("nan"), "?"),
    ],
)
def test_no_unit_is_full(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize("place", [fit_words, fit_view, page, study_view])
def test_everything_says_it_in_the_same_way(place):
    assert place.duration is duration


def test_a_shape_tells_what_inputs_are_called():
    assert noun_of((30,)) == ("row", "rows")
    assert noun_of([8, 8, 1]) == noun_of(()) == ("image", "images")
