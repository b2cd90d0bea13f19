"""The table of methods: the paper's grids, equal settings, and what a setting trains with."""

import json
import math

import numpy as np
import pytest
import torch

from camri import methods
from camri.errors import InputError
from camri.methods import METHODS, Setting, setting
from camri.study.recipes import METHODS_OF_THE_PAPER
from camri.study.spec import Grid

UNIT = math.pi / 64
KEYS = {  # as stored
    "two_sided_logits": "7367e133e2136726",
    "two classes": "4f34a6123636b525",
    "one_vs_rest": "daea88a89cd501be",
}


def grid(name, important=0):
    return Grid.of(name).settings(((important, 1.0),))


def test_the_papers_grids():
    assert [s.knobs[0][1][0] for s in grid("wce", 3)] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    costs = [s.knobs[0][1][0] for s in grid("wasserstein", 3)]
    assert costs == pytest.approx([1 + 0.2 * i for i in range(16)])
    crwwce = [(s.knobs[0][1][0], s.knobs[1][1][0]) for s in grid("crwwce", 3)]
    assert crwwce == [(fn, fp) for fn in (1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40) for fp in costs]
    camri = [(s.knobs[0][1][0], s.knobs[1][1]) for s in grid("camri", 3)]
    assert camri == [(i * UNIT, 2.0**j) for i in range(9) for j in range(7)]
    assert [(s.knobs[0][1], s.knobs[1][1]) for s in grid("arcface")] == camri


def test_a_data_set_of_the_paper_has_834_settings_once_duplicates_are_counted_once():
    keys = set()
    for name in METHODS_OF_THE_PAPER:
        for important in (0, 3, 5):
            keys |= {s.key for s in grid(name, important)}
    assert len(keys) == 834


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (setting("camri", 3, m=0.0, s=8), setting("l2softmax", s=8)),
        (setting("arcface", m=0.0, s=8), setting("l2softmax", s=8)),
        (setting("cosface", 3, m=0.0, s=8), setting("l2softmax", s=8)),
        (setting("two_sided", 3, m=0.0, s=8), setting("l2softmax", s=8)),
        (setting("two_sided_logits", 3, m=0.0), setting("ce")),
        (setting("wce", 3, w=1.0), setting("ce")),
        (setting("crwwce", 3, fn=1.0, fp=1.0), setting("crwwce", 5, fn=1.0, fp=1.0)),
        (setting("wasserstein", 3, c=1.0, entropy=0.01), setting("wasserstein", 5, c=1.0, entropy=0.01)),
        (setting("camri", [3, 5], m=[0.2, 0.0], s=8), setting("camri", 3, m=0.2, s=8)),
        (setting("camri", [5, 3], m=[0.1, 0.2], s=8), setting("camri", [3, 5], m={3: 0.2, 5: 0.1}, s=8)),
        (setting("focal", 3, gamma=0.0, w=1.0), setting("ce")),
        (setting("two_sided_logits", 3, m=0.0, w=0.0, g=0.0), setting("ce")),
        (
            setting("two_sided_logits", [3, 5], m=1.0, w=[0.5, 0.0]),
            setting("two_sided_logits", [5, 3], m=1.0, w=[0.0, 0.5]),
        ),
        (setting("logit_adjusted", 3, d=0.0, tau=0.0), setting("ce")),
        (setting("vector_scaling", 3, delta=1.0, d=0.0), setting("ce")),
        (setting("ldam", 3, m=0.0, max_m=0.0, s=8), setting("l2softmax", s=8)),
    ],
)
def test_settings_that_train_the_same_are_equal_and_do_train_the_same(one, same):
    assert one.key == same.key
    assert one.canonical() == same.canonical()
    outputs, labels = torch.tanh(torch.randn(30, 10)), torch.arange(30) % 10
    torch.testing.assert_close(one.criterion(10)(outputs, labels), same.criterion(10)(outputs, labels))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (setting("camri", 3, m=0.1, s=8), setting("camri", 5, m=0.1, s=8)),
        (setting("camri", 3, m=0.1, s=8), setting("camri", 3, m=0.1, s=16)),
        (setting("camri", 3, m=0.1, s=8), setting("arcface", m=0.1, s=8)),
        (setting("focal", 3, gamma=2.0, w=1.0), setting("ce")),
        (setting("focal", 3, gamma=0.0, w=2.0), setting("ce")),
        (setting("logit_adjusted", 3, d=0.0, tau=1.0), setting("ce")),
        (setting("crwwce", 3, fn=1.0, fp=1.0), setting("ce")),
        (setting("crwwce", 3, fn=1.0, fp=2.0), setting("crwwce", 3, fn=2.0, fp=1.0)),
    ],
)
def test_settings_that_train_differently_differ(one, other):
    assert one.key != other.key


def test_the_key_is_the_same_for_ever():
    """Stores on disk hold these: a change here orphans every outcome people have."""
    assert setting("camri", 3, m=4 * UNIT, s=16).key == "74053d46f5d94415"
    assert setting("ce").key == "92affecc1a7750a0"


def test_knobs_that_came_later_leave_stored_settings_as_they_were():
    plain = setting("two_sided_logits", 3, m=1.0)
    assert plain == setting("two_sided_logits", 3, m=1.0, w=0.0, g=0.0)
    assert (plain.key, str(plain)) == (KEYS["two_sided_logits"], "two_sided_logits m=1")
    assert plain.to_json()["knobs"] == {"m": (1.0,)}
    assert setting("two_sided_logits", [3, 5], m=[1.0, 0.5]).key == KEYS["two classes"]
    combined = setting("two_sided_logits", 3, m=1.0, w=0.5, g=2.0)
    assert str(combined) == "two_sided_logits m=1 w=0.5 g=2"
    assert len({one.key for one in (plain, combined, setting("two_sided_logits", 3, m=1.0, w=0.5))}) == 3
    for name, stored in {"w": [["m", [1.0]]], "points": [["m", [1.0]]]}.items():
        grid = Grid.from_json(["two_sided_logits", stored, *([[[[1.0]]]] if name == "points" else [])])
        assert list(grid.settings(((3, 1.0),))) == [plain]
        assert grid.to_json() == ["two_sided_logits", stored]
    assert len(list(grid.of("two_sided_logits").settings(((3, 1.0),)))) == 16


def test_a_method_that_became_a_setting_can_be_read_but_not_chosen():
    former = Setting.from_json({"method": "one_vs_rest", "important": [3], "knobs": {"w": [1.0]}})
    assert (former.key, str(former), methods.title_of("one_vs_rest")) == (
        KEYS["one_vs_rest"],
        "one_vs_rest w=1",
        "one-vs-rest",
    )
    outputs, labels = torch.randn(30, 10), torch.arange(30) % 10
    now = setting("two_sided_logits", 3, m=0.0, w=1.0)
    torch.testing.assert_close(former.criterion(10)(outputs, labels), now.criterion(10)(outputs, labels))
    assert setting("one_vs_rest", 3, w=0.0).canonical() == setting("ce")
    assert "one_vs_rest" not in METHODS


def test_a_margin_at_every_class_needs_no_important_one():
    everywhere = setting("two_sided_logits", 3, m=0.0, g=2.0)
    assert everywhere.key == setting("two_sided_logits", 5, m=0.0, g=2.0).key
    assert everywhere.canonical().important == ()
    outputs, labels = torch.randn(30, 10), torch.arange(30) % 10
    wanted = torch.nn.functional.cross_entropy(outputs - 2.0 * torch.eye(10)[labels], labels)
    torch.testing.assert_close(everywhere.canonical().criterion(10)(outputs, labels), wanted)


def test_a_setting_survives_json():
    for one in (setting("camri", [3, 5], m=[0.1, 0.2], s=8), setting("ce"), setting("crwwce", 3, fn=4, fp=1.2)):
        assert Setting.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("name", METHODS)
def test_every_method_raises_the_price_of_missing_the_important_class(name):
    """Moving every per-class knob to its strongest grid value raises the important class's share of the loss."""
    method = METHODS[name]
    per_class = [knob for knob, k in method.knobs.items() if k.per_class]
    if not per_class:
        assert name in ("ce", "l2softmax", "arcface")
        return

    def share(strong):
        pick = {}
        for knob, k in method.knobs.items():
            strongest = min(k.grid) if knob == "delta" else max(k.grid)
            pick[knob] = (strongest if strong else k.neutral) if k.per_class else k.grid[len(k.grid) // 2]
        loss = setting(name, 1, **pick).criterion(4, reduction="none")
        cos = torch.full((4, 4), -0.2).fill_diagonal_(0.5)
        values = loss(cos if method.head == "cosine" else 4 * cos, torch.arange(4))
        return (values[1] / values.sum()).item()

    assert share(strong=True) > share(strong=False) * 1.05


def test_head_and_title_of_each_method():
    assert {name for name, m in METHODS.items() if m.head == "cosine"} == {
        "l2softmax",
        "arcface",
        "camri",
        "cosface",
        "two_sided",
        "ldam",
    }
    assert len({m.title for m in METHODS.values()}) == len(METHODS)


def test_ldam_and_logit_adjustment_use_the_class_counts():
    outputs, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    loss = setting("ldam", (), m=(), max_m=0.5, s=1.0).criterion(2, [16, 256], reduction="none")(outputs, labels)
    torch.testing.assert_close(loss, torch.tensor([0.5, 0.25]).exp().add(1).log())
    loss = setting("logit_adjusted", (), d=(), tau=1.0).criterion(2, [1, 3], reduction="none")(outputs, labels)
    torch.testing.assert_close(loss.exp(), torch.tensor([4.0, 4 / 3]))


def test_numbers_and_counts_of_numpy_and_torch_are_taken():
    plain = setting("ldam", 1, m=0.25, max_m=0.5, s=8)
    assert setting("ldam", np.int64(1), m=np.float32(0.25), max_m=0.5, s=np.int64(8)) == plain
    wanted = plain.criterion(2, [16, 256]).margins
    assert wanted.tolist() == [0.5, 0.5]
    for counts in (np.array([16, 256]), torch.tensor([16, 256])):
        assert plain.criterion(np.int64(2), counts).margins.equal(wanted)


def test_the_first_and_the_last_class_may_be_important_and_each_gets_its_own():
    def made(name, **knobs):
        return setting(name, [0, 2], **knobs).criterion(3, [256, 16, 256])

    torch.testing.assert_close(made("camri", m={0: 0.2, 2: 0.3}, s=8).margins, torch.tensor([0.2, 0.0, 0.3]))
    margins = made("ldam", m={0: 0.1, 2: 0.0}, max_m=0.5, s=8).margins
    torch.testing.assert_close(margins, torch.tensor([0.35, 0.5, 0.25]))
    adjustments = made("logit_adjusted", d={0: 1.0, 2: 2.0}, tau=0.5).adjustments
    priors = torch.tensor([256.0, 16, 256]) / 528
    torch.testing.assert_close(adjustments, 0.5 * priors.log() - torch.tensor([1.0, 0, 2]))
    scaled = made("vector_scaling", delta={0: 0.6, 2: 0.9}, d={0: 1.0, 2: 2.0})
    torch.testing.assert_close(scaled.scales, torch.tensor([0.6, 1.0, 0.9]))
    torch.testing.assert_close(scaled.shifts, torch.tensor([-1.0, 0.0, -2.0]))
    focal = made("focal", gamma=2.0, w={0: 3.0, 2: 4.0})
    torch.testing.assert_close(focal.weights, torch.tensor([3.0, 1.0, 4.0]))


def test_common_options_reach_the_loss():
    loss = setting("camri", 1, m=0.3, s=8).criterion(4, ramp=10, label_smoothing=0.1, beyond_pi="paper")
    assert (loss.ramp, loss.label_smoothing, loss.options["beyond_pi"]) == ((0, 10), 0.1, "paper")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: setting("carmi", 3, m=0.1, s=8), "'carmi' is unknown; did you mean 'camri'"),
        (lambda: setting("camri", 3, m=0.1), "camri needs a value for 's'"),
        (lambda: setting("camri", 3, m=0.1, s=8, w=2), "camri has no knob 'w'"),
        (lambda: setting("ce", s=2), "ce has no knob 's'; it has none"),
        (lambda: setting("camri", [3, 3], m=0.1, s=8), "twice"),
        (lambda: setting("camri", [3, 5], m=[0.1], s=8), "1 values for 2"),
        (lambda: setting("camri", [3, 5], m={3: 0.1}, s=8), "does not name the important classes"),
        (lambda: setting("camri", 3, m="x", s=8), "^camri m='x' is not a finite number"),
        (lambda: setting("camri", 3, m=0.1, s="x"), "^camri s='x' is not a finite number"),
        (lambda: setting("camri", 3, m=math.nan, s=8), "m=nan"),
        (lambda: setting("camri", 12, m=0.1, s=8).criterion(10), "12 is not a class; there are 10"),
        (lambda: setting("camri", 10, m=0.1, s=8).criterion(10), "10 is not a class; there are 10, 0 to 9"),
        (lambda: setting("camri", -1, m=0.1, s=8).criterion(10), "-1 is not a class"),
        (lambda: setting("camri", 3, m=True, s=8), "m=True is not a finite number"),
        (lambda: methods.method("CE"), "unknown"),
        (lambda: setting("camri", "cat", m=0.1, s=8), "important class 'cat' is no index"),
        (lambda: setting("camri", [1.7], m=0.1, s=8), r"important class 1\.7 is no index"),
        (lambda: setting("camri", 1.0, m=0.1, s=8), r"important class 1\.0 is no index"),
        (lambda: setting("ldam", 2, m=0.1, max_m=0.5, s=8).criterion(3, [4, 5]), "2 counts, but num_classes=3"),
    ],
)
def test_wrong_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_method_is_one_entry_that_study_fit_and_report_find(monkeypatch):
    from camri.fitting.rivals import list_rivals
    from camri.report.charts import style_of_methods

    knob = methods.Knob((1.0, 2.0), neutral=0.0, per_class=True, about="a knob of its own", search=(1.0, 2.0))
    entry = methods.Method(
        "a new one", METHODS["wce"].make, {"w": knob}, "ce", first=({"w": 2.0},), colors=("#123456",) * 3
    )
    monkeypatch.setitem(METHODS, "new", entry)
    assert [str(s) for s in Grid.of("new").settings(((3, 1.0),))] == ["new w=1", "new w=2"]
    assert setting("new", 3, w=0.0).canonical() == setting("ce")
    assert ("new", (2.0,)) in list_rivals(10_000)
    assert methods.title_of("new") == "a new one"
    assert methods.in_order(["ce", "new", "camri"]) == ["camri", "new", "ce"]
    assert "--m-new: #123456" in style_of_methods()
    assert setting("new", 1, w=1.0).criterion(3)(torch.zeros(1, 3), torch.tensor([1])).isfinite()
