"""Intervals and tests: by hand, against scipy, and by simulation with noise of seeds and of images."""

import math

import numpy as np
import pytest
from scipy import stats as reference

from camri.decision.stats import (
    _cell_noise,
    _draw_seeds,
    _image_share,
    _seed_variances,
    _Variance,
    compare,
    design_effect,
    holm,
    summarise,
    wilson,
)
from camri.errors import InputError


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
    for wrong in ([], [[0.5, 0.7]]):
        with pytest.raises(InputError, match="give at least one number"):
            summarise(wrong)


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
    with pytest.raises(InputError, match=r"values \(0,\) and groups \(0,\) do not fit"):
        design_effect([], [])


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
    assert 0.93 <= np.mean(inside) <= 0.98  # a little wide for cells alone, whose noise seeds are not allowed to hide


def test_intervals_of_a_mean_over_classes_cover_too():
    rng = np.random.default_rng(12)
    groups = np.repeat([0, 1, 2], [150, 40, 80])
    inside = []
    for trial in range(700):
        arm, other, truth = made_outcomes(rng, 10, 270, seed_sd=0.1, image_sd=1.5, own_sd=0.4)
        found = compare(arm, other, seed=trial, parts=groups, num_draws=500)
        inside.append(found.low <= truth <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.97


def test_images_in_groups_are_fewer_than_they_look():
    """Forty patients of six images that turn out alike: two equal methods seem to differ to whom is not told."""
    rng, patients = np.random.default_rng(13), np.repeat(np.arange(40), 6)
    told, alone = [], []
    for trial in range(200):
        ease = 0.8 + rng.normal(size=40)
        views = [(ease + 0.5 * rng.normal(size=40))[patients] for _ in range(2)]
        arm, other = (view + 0.4 * rng.normal(size=(10, 240)) > 0 for view in views)
        for found, groups in ((told, patients), (alone, None)):
            one = compare(arm, other, seed=trial, groups=groups, num_draws=400)
            found.append((one.low <= 0 <= one.high, one.p < 0.05))
    assert 0.92 <= np.mean(told, axis=0)[0] <= 0.99
    assert np.mean(told, axis=0)[1] <= 0.08
    assert np.mean(alone, axis=0)[0] < 0.8
    same = compare(arm, other, seed=0, groups=np.arange(240), parts=patients % 2)
    assert same.draws.tolist() == compare(arm, other, seed=0, parts=patients % 2).draws.tolist()
    with pytest.raises(InputError, match=r"groups \(2,\) do not fit 240 images"):
        compare(arm, other, seed=0, groups=[0, 1])


def test_difference_by_hand_and_by_group():
    arm = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    other = np.array([[1, 0, 1, 0], [0, 0, 0, 0]])
    assert compare(arm, other, seed=0).value == 3 / 8
    # Group 0 holds image 0 alone: +.5; group 1 the others: +2/6.
    np.testing.assert_allclose(compare(arm, other, seed=0, parts=np.array([0, 1, 1, 1])).value, (0.5 + 2 / 6) / 2)
    assert compare(other, arm, seed=0).value == -3 / 8
    assert compare(arm, arm, seed=0).value == 0


def test_the_image_part_is_shrunk_by_its_share_and_the_seed_part_spread_as_students_t():
    rng = np.random.default_rng(8)
    table = rng.random((3, 40)) + rng.random(40)
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    noise = (rest**2).sum() / 2 / 39
    assert _cell_noise(table) == pytest.approx(noise)
    assert _cell_noise(table[:1]) == _cell_noise(table[:, :1]) == 0
    share = _image_share(table.mean(axis=0), noise / 3)
    assert 0 < share < 1
    assert share == pytest.approx(1 - noise / 3 / table.mean(axis=0).var(ddof=1))
    assert _image_share(table.mean(axis=0), 10.0) == 0
    # A bootstrap's variance of a mean of ten is var/10; over χ²₉/10 its expectation is var/10 · 10/(9 − 2).
    row_means = rng.normal(size=10)
    drawn = _draw_seeds(row_means, _seed_variances(row_means, 0.0)[0], np.random.default_rng(1), 400_000)
    assert drawn.std() == pytest.approx(row_means.std() / math.sqrt(7), rel=0.01)
    assert drawn.mean() == pytest.approx(0, abs=0.005)


def test_seeds_that_agree_by_chance_have_the_noise_of_their_cells():
    row_means = np.array([0.1, 0.1, 0.1])
    own, cells = _seed_variances(row_means, 0.03)
    assert own.value == pytest.approx(0)
    assert cells == _Variance(0.01, math.inf)
    drawn = _draw_seeds(row_means, cells, np.random.default_rng(0), 100_000)
    assert drawn.std() == pytest.approx(0.1, rel=0.01)
    apart = np.array([0.0, 0.1, 0.2])  # variance .01: 4.303² · .01 is as wide as 1.96² · .0482
    assert _seed_variances(apart, 0.048)[0] == pytest.approx(_Variance(0.01 / 3, 2))
    for noise, is_wider in ((0.048, False), (0.049, True)):
        own, cells = _seed_variances(apart, noise)
        assert (cells.half_width() > own.half_width()) is is_wider


def test_p_is_never_below_that_of_the_seeds_means():
    """Noise of single cells may give the wider 95 % interval and still the smaller p: its normal tails are thin."""
    rng, smaller = np.random.default_rng(5), 0
    for _ in range(40):
        arm = rng.normal(0.03, 1.0, (6, 2000))
        found = compare(arm, np.zeros_like(arm), seed=0)
        by_seeds = reference.ttest_1samp(arm.mean(axis=1), 0).pvalue
        assert found.p >= by_seeds - 2e-3
        smaller += math.erfc(abs(found.value) / (1.0 / math.sqrt(12_000)) / math.sqrt(2)) < by_seeds
    assert smaller > 10


def test_shares_of_images_of_which_none_changed_keep_an_interval():
    found = np.ones((3, 20), dtype=bool)
    same = compare(found, found, seed=0, num_draws=20_000)
    assert (same.value, same.p) == (0, 1)
    np.testing.assert_allclose((same.low, same.high), (-1.96 / 22, 1.96 / 22), rtol=0.03)  # Agresti and Min's
    two = compare(found, found, seed=0, parts=np.repeat([0, 1], 10), num_draws=20_000)
    assert two.high == pytest.approx(1.96 * math.sqrt(2 / 12**2) / 2, rel=0.03)
    many = np.ones((3, 10_000), dtype=bool)
    assert compare(many, many, seed=0).high < 0.00025
    once = found.copy()
    once[:, :2] = False  # two images, alike for all seeds: no p of 0 for seeds that agree
    assert compare(found, once, seed=0).p > 0.1
    one = np.ones((3, 1))
    assert compare(one, 0 * one, seed=0).p == pytest.approx(2 * reference.norm.sf(3))  # a single image is no certainty


def test_p_is_the_paired_t_test_where_images_add_nothing():
    seeds = np.array([0.01, -0.02, 0.05, 0.03, 0.02])
    arm = np.repeat(seeds[:, None], 500, axis=1)
    found = compare(arm, np.zeros_like(arm), seed=0)
    assert found.p == pytest.approx(reference.ttest_1samp(seeds, 0).pvalue, rel=1e-3)
    assert compare(-arm, np.zeros_like(arm), seed=0).p == found.p
    same = np.full((3, 20), 7.0)  # no shares, and nothing differs from seed to seed or image to image
    assert [compare(same + more, same, seed=0).p for more in (0.0, 1.0)] == [1.0, 0.0]
    assert math.isnan(compare(arm[:1], arm[1:2], seed=0).p)


def test_p_is_the_z_test_over_images_where_seeds_add_nothing():
    hit = np.random.default_rng(0).random(400) < 0.55
    arm, other = np.tile(hit, (4, 1)), np.tile(~hit, (4, 1))
    change = hit * 2.0 - 1
    z = change.mean() / (change.std(ddof=1) / 20)
    assert compare(arm, other, seed=0).p == pytest.approx(2 * reference.norm.sf(abs(z)), rel=0.01)


@pytest.mark.parametrize(("num_seeds", "num_images"), [(2, 30), (3, 20), (16, 30)])
def test_p_rejects_no_more_than_its_level_where_nothing_differs(num_seeds, num_images):
    """Few images, some of which one arm finds and the other does not: seeds alone cannot tell that it is luck."""
    rng = np.random.default_rng(14)
    rejected, alone, inside = [], [], []
    for trial in range(500):
        arm, other, _ = made_outcomes(
            rng, num_seeds, num_images, seed_sd=0.1, image_sd=2.5, own_sd=1.2, means=(3.5, 3.5)
        )
        found = compare(arm, other, seed=trial, num_draws=300)
        rejected.append(found.p < 0.05)
        inside.append(found.low <= 0 <= found.high)
        differences = arm.mean(axis=1) - other.mean(axis=1)
        alone.append(
            differences.any() and (np.ptp(differences) < 1e-9 or reference.ttest_1samp(differences, 0)[1] < 0.05)
        )
    assert np.mean(rejected) <= 0.06
    assert np.mean(inside) >= 0.93
    assert np.mean(alone) > 0.09  # what a paired t test over seeds does


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_intervals_cover_where_a_rare_class_is_nearly_always_found(num_seeds):
    rng = np.random.default_rng(15)
    inside = []
    for trial in range(400):
        arm, other, truth = made_outcomes(rng, num_seeds, 15, seed_sd=0.2, image_sd=2, own_sd=0.5, means=(5.2, 4.5))
        found = compare(arm, other, seed=trial, num_draws=300)
        inside.append(found.low <= truth <= found.high)
    assert np.mean(inside) >= 0.95  # .4 to .7 without a least spread


def test_what_an_image_does_besides_widens_the_interval_and_leaves_the_estimate():
    rng = np.random.default_rng(0)
    arm, other = rng.random((2, 1, 400)) < 0.7
    difference = arm.astype(float) - other
    apart = difference - difference.mean()
    plain = compare(arm, other, seed=0)
    twice, none = (compare(arm, other, seed=0, besides=times * apart) for times in (1, -1))
    assert plain.value == pytest.approx(twice.value) == pytest.approx(none.value)
    assert twice.draws.std() == pytest.approx(2 * plain.draws.std())
    # nothing is left of the images' differences, and they are still shares: Agresti and Min's least spread
    assert none.draws.std() == pytest.approx(1 / 402, rel=0.05)


def test_many_different_values_are_drawn_as_their_mean_is_distributed():
    values = np.random.default_rng(0).exponential(size=(1, 2000))
    found = compare(values, np.zeros_like(values), seed=0, num_draws=20_000)
    assert found.draws.std() == pytest.approx(values.std() / np.sqrt(2000), rel=0.03)
    assert found.draws.mean() == pytest.approx(values.mean(), abs=0.001)


def test_one_seed_is_the_plain_paired_bootstrap_over_images():
    rng = np.random.default_rng(5)
    arm, other = rng.random((1, 2000)) < 0.82, rng.random((1, 2000)) < 0.8
    found = compare(arm, other, seed=0, num_draws=20000)
    se = np.std(arm.astype(float) - other, ddof=1) / math.sqrt(2000)
    np.testing.assert_allclose((found.low, found.high), found.value + np.array([-1.96, 1.96]) * se, atol=0.05 * se)


def test_the_same_seed_gives_the_same_interval():
    arm, other, _ = made_outcomes(np.random.default_rng(0), 5, 50, seed_sd=0.1, image_sd=1, own_sd=0.2)
    assert compare(arm, other, seed=3).draws.tolist() == compare(arm, other, seed=3).draws.tolist()
    assert compare(arm, other, seed=3).low != compare(arm, other, seed=4).low


def test_chance_of_a_drop_is_a_tail_of_the_draws():
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


def test_outcomes_and_parts_that_do_not_fit_are_refused():
    for shape in ((2, 4), (3, 5), (5,)):
        with pytest.raises(InputError, match=r"outcomes \(2, 5\) and .* do not fit; give \(S, N\) of the same seeds"):
            compare(np.zeros((2, 5)), np.zeros(shape), seed=0)
    with pytest.raises(InputError, match=r"parts \(2,\) do not fit 5 images"):
        compare(np.zeros((3, 5)), np.ones((3, 5)), seed=0, parts=[0, 1])
    with pytest.raises(InputError, match="not finite"):
        compare(np.full((2, 5), np.nan), np.zeros((2, 5)), seed=0)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    given = np.array([0.01, 0.04])
    assert holm(given).tolist() == [0.02, 0.04]
    assert given.tolist() == [0.01, 0.04], "what is given stays as it is"


def test_shares_do_not_differ_by_more_than_all_of_it():
    arm, other = np.zeros((3, 40)), np.zeros((3, 40))
    arm[0], other[2, :10] = 1, 1  # seed means 1, 0, −1/4: Student's t of two degrees would go far beyond 1
    found = compare(arm, other, seed=0)
    assert (found.low, found.high) == (-1, 1)
    assert np.abs(found.draws).max() == 1
    wild = compare(10 * arm, 10 * other, seed=0)  # no shares: nothing is known of their limits
    assert wild.high > 10
