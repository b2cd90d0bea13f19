"""Intervals and tests: by hand, against scipy, and by simulation with noise of seeds and of images."""

import math
import time

import numpy as np
import pytest
from scipy import stats as reference

from camri.errors import InputError
from camri.stats import (
    _draw_images,
    _draw_mean,
    _draw_seeds,
    compare,
    debias_choice,
    design_effect,
    flip_signs,
    holm,
    mcnemar,
    paired_t,
    summarise,
    wilson,
)


def made_outcomes(rng, num_seeds, num_images, *, seed_sd, image_sd, own_sd, means=(0.8, 0.6), shared=0.0):
    """Outcomes of two arms, (S, N) each, and the true difference of their means.

    An image is right where arm + seed + difficulty (the same for both arms) + the arm's own view of the image + noise
    of one cell is above 0. All are normal, so the truth is known. `shared` is what a seed does alike to both arms.
    """
    difficulty = rng.normal(0, image_sd, num_images)
    common = rng.normal(0, seed_sd * math.sqrt(shared), (num_seeds, 1))
    arms = []
    for mean in means:
        seed_effect = rng.normal(0, seed_sd * math.sqrt(1 - shared), (num_seeds, 1)) + common
        own = rng.normal(0, own_sd, num_images)
        cells = rng.normal(0, 1, (num_seeds, num_images))
        arms.append(mean + seed_effect + difficulty + own + cells > 0)
    sd = math.sqrt(1 + seed_sd**2 + image_sd**2 + own_sd**2)
    return *arms, reference.norm.cdf(means[0] / sd) - reference.norm.cdf(means[1] / sd)


def test_summary_by_hand():
    summary = summarise([0.5, 0.7, 0.9, 0.7])
    assert summary.num == 4
    np.testing.assert_allclose((summary.mean, summary.sd), (0.7, math.sqrt(0.08 / 3)))
    np.testing.assert_allclose(summary.high - summary.mean, 3.182446 * summary.sd / 2, rtol=1e-6)
    np.testing.assert_allclose(summary.mean - summary.low, summary.high - summary.mean)
    assert math.isnan(summarise([0.5]).sd)
    with pytest.raises(InputError, match="give at least one number"):
        summarise([])


@pytest.mark.parametrize(("hits", "num"), [(0, 10), (10, 10), (7, 54), (500, 1000)])
def test_wilson_against_scipy(hits, num):
    expected = reference.binomtest(hits, num).proportion_ci(0.95, method="wilson")
    np.testing.assert_allclose(wilson(hits, num), (expected.low, expected.high), atol=1e-12)


@pytest.mark.parametrize(("hits", "num"), [(11, 10), (-1, 10), (0, 0)])
def test_wilson_refuses_what_cannot_be(hits, num):
    with pytest.raises(InputError, match=f"hits={hits} of num={num}"):
        wilson(hits, num)


def test_design_effect_by_hand():
    """Groups of 2 and 3 and 3 rows with 2, 1 and 3 hits; p = 6/8."""
    hit, groups = [1, 1, 1, 0, 0, 1, 1, 1], ["a", "a", "b", "b", "b", "c", "c", "c"]
    together = 3 / 2 * ((2 - 1.5) ** 2 + (1 - 2.25) ** 2 + (3 - 2.25) ** 2)
    alone = 8 / 7 * 8 * 0.75 * 0.25
    whole = (4 + 9 + 9) / 8  # rows that repeat themselves within their group
    t = [reference.t.ppf(0.975, num - 1) for num in (64 / 22, 8)]
    expected = (together + whole) / (alone + 1) * (t[0] / t[1]) ** 2
    assert design_effect(hit, groups) == pytest.approx(expected)
    # Nothing differs, so nothing shows how alike rows are: they may be copies.
    assert design_effect([1] * 8, groups) == pytest.approx(whole * (t[0] / t[1]) ** 2)


def test_design_effect_of_a_mean_over_parts():
    """Classes of 2 and 4 rows; the first has a weight of 1/4 a row, the second of 1/8."""
    values, parts, groups = [1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], [1, 2, 1, 1, 2, 2]
    weighed = np.array([0.5 / 4, -0.5 / 4, 0.25 / 8, 0.25 / 8, -0.75 / 8, 0.25 / 8])
    together = 2 * (weighed[[0, 2, 3]].sum() ** 2 + weighed[[1, 4, 5]].sum() ** 2)
    alone = 6 / 5 * (weighed**2).sum()
    rows, whole = 2 / 16 + 4 / 64, 0.5**2 + 0.5**2
    t = [reference.t.ppf(0.975, 1 / share - 1) for share in (whole, rows)]
    expected = (together + whole / 6) / (alone + rows / 6) * (t[0] / t[1]) ** 2
    assert design_effect(values, groups, parts) == pytest.approx(expected)


def test_design_effect_at_its_ends():
    rng = np.random.default_rng(0)
    hit = rng.random(1200) < 0.7
    assert design_effect(hit, rng.permutation(1200)) == 1.0, "rows on their own are rows on their own"
    assert 1 <= design_effect(hit, np.arange(1200) // 4) < 1.3, "rows of a group that are not alike count in full"
    copies = np.repeat(rng.random(300) < 0.7, 4)
    assert design_effect(copies, np.arange(1200) // 4) == pytest.approx(4, rel=0.05), "four copies are one row"
    balanced = [True, False] * 600
    assert design_effect(balanced, np.arange(1200) // 2) == pytest.approx(1, abs=0.01), "never more than the rows"
    single = design_effect([1, 0, 1, 1], ["a"] * 4)
    low, high = wilson(3 / single, 4 / single)
    assert low < 1e-3
    assert high > 1 - 1e-3, "one group tells nothing"
    with pytest.raises(InputError, match=r"values \(3,\) and groups \(2,\) do not fit"):
        design_effect([1, 0, 1], [1, 2])


@pytest.mark.parametrize("recall", [0.75, 0.95])
def test_rows_in_groups_need_the_design_effect(recall):
    """Beta-distributed recalls of 25 groups of 8: Wilson's interval is far too narrow, and the divided one holds."""
    rng = np.random.default_rng(3)
    plain = divided = 0
    for _ in range(300):
        own = rng.beta(recall, 1 - recall, 25)  # a correlation of one half
        groups = np.repeat(np.arange(25), 8)
        hit = rng.random(200) < own[groups]
        effect = design_effect(hit, groups)
        for is_divided, by in ((False, 1.0), (True, effect)):
            low, high = wilson(hit.sum() / by, 200 / by)
            divided += is_divided and low <= recall <= high
            plain += not is_divided and low <= recall <= high
    assert plain < 0.75 * 300
    assert divided > 0.93 * 300


COVERAGE = {
    "both": (10, 400, {"seed_sd": 0.15, "image_sd": 1.5, "own_sd": 0.3}),
    "few seeds": (4, 400, {"seed_sd": 0.1, "image_sd": 1.5, "own_sd": 0.3}),
    "few images": (10, 60, {"seed_sd": 0.1, "image_sd": 1.5, "own_sd": 0.5}),
    "images dominate": (10, 300, {"seed_sd": 0.02, "image_sd": 1.0, "own_sd": 0.8}),
    "cells only": (10, 300, {"seed_sd": 0.0, "image_sd": 1.5, "own_sd": 0.0}),
    "seeds act alike": (10, 300, {"seed_sd": 0.3, "image_sd": 1.5, "own_sd": 0.3, "shared": 0.7}),
}


@pytest.mark.parametrize("case", COVERAGE)
def test_95_percent_intervals_cover_95_percent(case):
    num_seeds, num_images, noise = COVERAGE[case]
    rng = np.random.default_rng(11)
    inside = []
    for trial in range(1000):
        arm, other, truth = made_outcomes(rng, num_seeds, num_images, **noise)
        found = compare(arm, other, seed=trial, num_draws=500)
        inside.append(found.low <= truth <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.97


def test_intervals_of_a_mean_over_classes_cover_too():
    rng = np.random.default_rng(12)
    groups = np.repeat([0, 1, 2], [150, 40, 80])
    inside = []
    for trial in range(700):
        arm, other, truth = made_outcomes(rng, 10, 270, seed_sd=0.1, image_sd=1.5, own_sd=0.4)
        found = compare(arm, other, seed=trial, groups=groups, num_draws=500)
        inside.append(found.low <= truth <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.97


def test_seeds_that_are_not_shared_still_cover():
    rng = np.random.default_rng(13)
    inside = []
    for trial in range(700):
        arm, other, truth = made_outcomes(rng, 10, 300, seed_sd=0.1, image_sd=1.5, own_sd=0.5)
        found = compare(arm[:8], other, seed=trial, shared_seeds=False, num_draws=500)
        inside.append(found.low <= truth <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.98  # two unknown spreads of seeds: a little wide, never narrow


def test_difference_by_hand_and_by_group():
    arm = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    other = np.array([[1, 0, 1, 0], [0, 0, 0, 0]])
    assert compare(arm, other, seed=0).estimate == 3 / 8
    # Group 0 holds image 0 alone: +.5; group 1 the others: +2/6.
    np.testing.assert_allclose(compare(arm, other, seed=0, groups=np.array([0, 1, 1, 1])).estimate, (0.5 + 2 / 6) / 2)
    assert compare(other, arm, seed=0).estimate == -3 / 8
    same = compare(arm, arm, seed=0)
    assert (same.estimate, same.low, same.high, same.chance_of_fall()) == (0, 0, 0, 0)


def test_seeds_that_are_not_shared_by_hand():
    arm, other = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]), np.array([[1, 0, 1, 0], [0, 0, 0, 0]])
    found = compare(arm, other, seed=0, shared_seeds=False)
    assert found.estimate == pytest.approx(9 / 12 - 2 / 8)
    assert (found.num_seeds, found.num_images) == (3, 4)


def test_the_image_part_is_shrunk_by_its_share_and_the_seed_part_spread_as_students_t():
    rng = np.random.default_rng(8)
    tables = [rng.random((3, 40)), rng.random((5, 40))]
    shrunk = _draw_images(tables, np.random.default_rng(0), 20_000)
    image_means = sum(table.mean(axis=0) for table in tables)
    plain = _draw_mean(image_means, np.random.default_rng(0), 20_000)
    noise = 0.0
    for table in tables:
        num_seeds = len(table)
        rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        noise += (rest**2).sum() / (num_seeds - 1) / 39 / num_seeds
    share = 1 - noise / image_means.var(ddof=1)
    assert 0 < share < 1
    np.testing.assert_allclose(shrunk, math.sqrt(share) * plain)
    assert plain.std() == pytest.approx(image_means.std() / math.sqrt(40), rel=0.02)
    # A bootstrap's variance of a mean of ten is var/10; over χ²₉/10 its expectation is var/10 · 10/(9 − 2).
    row_means = rng.normal(size=10)
    drawn = _draw_seeds(row_means, np.random.default_rng(1), 400_000)
    assert drawn.std() == pytest.approx(row_means.std() / math.sqrt(7), rel=0.01)
    assert drawn.mean() == pytest.approx(0, abs=0.005)


def test_one_seed_is_the_plain_paired_bootstrap_over_images():
    rng = np.random.default_rng(5)
    arm, other = rng.random((1, 2000)) < 0.82, rng.random((1, 2000)) < 0.8
    found = compare(arm, other, seed=0, num_draws=20000)
    se = np.std(arm.astype(float) - other, ddof=1) / math.sqrt(2000)
    np.testing.assert_allclose((found.low, found.high), found.estimate + np.array([-1.96, 1.96]) * se, atol=0.05 * se)


def test_the_same_seed_gives_the_same_interval():
    arm, other, _ = made_outcomes(np.random.default_rng(0), 5, 50, seed_sd=0.1, image_sd=1, own_sd=0.2)
    assert compare(arm, other, seed=3).draws.tolist() == compare(arm, other, seed=3).draws.tolist()
    assert compare(arm, other, seed=3).low != compare(arm, other, seed=4).low


def test_chance_of_a_fall_is_a_tail_of_the_draws():
    rng = np.random.default_rng(6)
    shares = []
    for trial in range(300):  # no difference: the chance of any fall is uniform over studies
        arm, other, _ = made_outcomes(rng, 6, 200, seed_sd=0.1, image_sd=1, own_sd=0.3, means=(0.7, 0.7))
        shares.append(compare(arm, other, seed=trial, num_draws=400).chance_of_fall())
    assert 0.44 < np.mean(shares) < 0.56
    assert reference.kstest(shares, "uniform").pvalue > 0.01
    arm, other, _ = made_outcomes(rng, 10, 2000, seed_sd=0.02, image_sd=1, own_sd=0.1, means=(0.5, 0.7))
    found = compare(arm, other, seed=0)
    assert found.chance_of_fall(0.0) > 0.99
    assert found.chance_of_fall(0.2) < 0.01


def test_ten_thousand_images_of_ten_seeds_take_no_time():
    rng = np.random.default_rng(7)
    arm, other = rng.random((10, 10_000)) < 0.8, rng.random((10, 10_000)) < 0.8
    start = time.thread_time()
    compare(arm, other, seed=0, num_draws=2000)
    assert time.thread_time() - start < 1.0  # 0.012 s measured


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 5), (2, 4)), r"outcomes \(2, 5\) and \(2, 4\) do not fit"),
        (((2, 5), (3, 5)), "2 and 3 seeds are not shared ones; give shared_seeds=False"),
        (((5,), (5,)), "do not fit"),
    ],
)
def test_tables_that_do_not_fit_are_refused(shapes, message):
    with pytest.raises(InputError, match=message):
        compare(np.zeros(shapes[0]), np.zeros(shapes[1]), seed=0)


def test_paired_t_against_scipy():
    differences = np.array([0.01, -0.02, 0.05, 0.03, 0.02])
    np.testing.assert_allclose(paired_t(differences), reference.ttest_1samp(differences, 0).pvalue)
    assert paired_t([0.1, 0.1]) == 0.0
    assert paired_t([0.0, 0.0]) == 1.0
    assert math.isnan(paired_t([0.1]))


def test_sign_flips_by_hand_and_by_drawing():
    assert flip_signs([1.0, 2.0, 3.0, -0.5], seed=0) == 4 / 16  # |±1 ±2 ±3 ±.5| ≥ 5.5: only 5.5 and 6.5, both signs
    assert flip_signs([0.0, 0.0], seed=0) == 1.0
    differences = np.random.default_rng(1).normal(0.4, 1, 14)
    exact = flip_signs(differences, seed=0)
    drawn = flip_signs(np.append(differences, 0.0), seed=0, num_draws=40000)  # one more seed without a difference
    np.testing.assert_allclose(drawn, exact, atol=0.01)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (1, 5), (5, 1), (10, 30), (0, 8)])
def test_mcnemar_against_the_binomial(first, second):
    found = mcnemar(first, second)
    expected = reference.binomtest(first, first + second).pvalue if first + second else 1.0
    np.testing.assert_allclose(found.exact, expected)
    tail = sum(math.comb(first + second, k) for k in range(min(first, second))) / 2 ** (first + second)
    here = math.comb(first + second, min(first, second)) / 2 ** (first + second)
    np.testing.assert_allclose(found.mid, 2 * (tail + here / 2))
    assert found == mcnemar(second, first)


def test_mcnemar_refuses_negative_counts():
    with pytest.raises(InputError, match="counts -1 and 5"):
        mcnemar(-1, 5)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])


def test_the_correction_takes_away_luck_and_leaves_a_true_gain():
    important = np.arange(150) < 50

    def best(recall, accuracy):
        return int(recall.argmax())

    apparent, corrected, true_gain = [], [], []
    for study in range(300):
        rng = np.random.default_rng(study)
        level = 0.75 + rng.normal(0, 0.04, (21, 8, 1)) - 0.2 * rng.random(150)  # seeds and images differ
        equal = rng.random((21, 8, 150)) < level
        found = debias_choice(equal, important, best, seed=study, num_draws=60)
        apparent.append(found.apparent)
        corrected.append(found.corrected)
        level[7] += 0.12
        true_gain.append(debias_choice(rng.random((21, 8, 150)) < level, important, best, seed=study, num_draws=60))
    assert np.mean(apparent) > 0.03
    low, high = summarise(corrected)[3:]
    assert low < 0 < high
    assert high < 0.01
    assert np.mean([found.corrected for found in true_gain]) > 0.08


def test_the_correction_takes_away_the_luck_of_images_too():
    # Each setting has images of its own that suit it, whatever the seed: only images left out tell.
    apparent, corrected = [], []
    for study in range(200):
        rng = np.random.default_rng(study)
        suits = np.repeat(rng.random((21, 1, 100)) < 0.7, 6, axis=1)
        found = debias_choice(
            suits, np.arange(100) < 50, lambda recall, accuracy: int(recall.argmax()), seed=study, num_draws=60
        )
        apparent.append(found.apparent)
        corrected.append(found.corrected)
    assert np.mean(apparent) > 0.08
    assert abs(np.mean(corrected)) < 0.012


def test_the_correction_of_staying_with_the_baseline_is_nothing():
    luck = np.random.default_rng(0).random((4, 3, 40)) < 0.7
    assert debias_choice(luck, np.arange(40) < 9, lambda recall, accuracy: None, seed=0) == (0.0, 0.0)
    single = debias_choice(luck[:, :1], np.arange(40) < 9, lambda recall, accuracy: 2, seed=0)
    recalls = luck[:, 0, :9].mean(axis=1)
    np.testing.assert_allclose(single.apparent, recalls[2] - recalls[0])
    assert single.corrected == pytest.approx(single.apparent, abs=0.06)  # no choice, no luck of having chosen


def test_shares_do_not_differ_by_more_than_all_of_it():
    arm, other = np.zeros((3, 40)), np.zeros((3, 40))
    arm[0], other[2, :10] = 1, 1  # seed means 1, 0, −1/4: Student's t of two degrees would go far beyond 1
    found = compare(arm, other, seed=0)
    assert (found.low, found.high) == (-1, 1)
    assert np.abs(found.draws).max() == 1
    wild = compare(10 * arm, 10 * other, seed=0)  # no shares: nothing is known of their limits
    assert wild.high > 10
