"""Reading labelled scores: what belongs together is found by its labels, or refused with the row, file and remedy."""

import csv
import heapq
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camri.decision import files
from camri.decision.read import draw_folds, read, read_file, tune_and_judge
from camri.decision.scores import exact
from camri.errors import InputError

CLASSES = ("limit", "stop", "yield", "entry")


def made(num_rows=800, seed=0, bias=-1.2, important=1):
    """Logits of a model that holds the important class back, and labels."""
    drawn = np.random.default_rng(seed)
    labels = drawn.choice(4, p=[0.4, 0.15, 0.3, 0.15], size=num_rows)
    logits = drawn.normal(size=(num_rows, 4)) + 2.5 * np.eye(4)[labels]
    logits[:, important] += bias
    return logits, labels


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


LOGITS, CODES = made()
WORDS = np.array(CLASSES)[CODES]
EXPECTED = read(LOGITS, WORDS, "stop", classes=CLASSES)


def same(found, expected=EXPECTED, rows=slice(None), atol=0.0):
    """Both hold the same rows: all that a rule is tuned on."""
    wanted = expected if rows == slice(None) else expected.take(rows)
    for name in ("labels", "rest_right", "rest"):
        np.testing.assert_array_equal(getattr(found.scores, name), getattr(wanted.scores, name))
    for name in ("lead", "rest_spread", "probability"):
        one, other = getattr(found.scores, name), getattr(wanted.scores, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    assert (found.classes, found.kind, found.scores.important) == (wanted.classes, wanted.kind, wanted.scores.important)
    for name in ("groups", "split"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    return True


# ---- what is read


def test_rows_are_what_exact_makes_of_the_table():
    scores = exact(LOGITS, CODES, (1,))
    for name in ("labels", "lead", "rest_right", "rest_spread", "rest"):
        np.testing.assert_array_equal(getattr(EXPECTED.scores, name), getattr(scores, name))
    assert EXPECTED.scores.labels.dtype == np.int32
    assert (EXPECTED.kind, EXPECTED.unit, EXPECTED.table, EXPECTED.groups) == ("logits", 1.0, None, None)
    both = read(LOGITS, WORDS, ["yield", "stop"], classes=CLASSES)
    assert both.scores.important == (1, 2)


@pytest.mark.parametrize("num_digits", [1, 2, 3, None])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_probabilities_and_percentages_are_recognised(num_digits, kind):
    shares = softmax(LOGITS)
    shares = (shares if num_digits is None else shares.round(num_digits)).astype(kind)
    found = read(shares, WORDS, "stop", classes=CLASSES)
    assert (found.kind, found.unit, found.decimals) == ("probabilities", 1.0, num_digits)
    percent = read((100 * shares).astype(kind), WORDS, "stop", classes=CLASSES)
    assert (percent.kind, percent.unit, percent.decimals) == ("probabilities", 100.0, num_digits)
    np.testing.assert_allclose(percent.scores.probability, found.scores.probability, rtol=1e-6)
    assert read(LOGITS.round(num_digits or 5), WORDS, "stop", classes=CLASSES).kind == "logits"
    assert read(shares, WORDS, "stop", classes=CLASSES, kind="logits").kind == "logits"


def test_the_table_has_the_log_scores_of_all_classes():
    assert np.array_equal(read(LOGITS, WORDS, "stop", classes=CLASSES, keeps_table=True).table, LOGITS)
    shares = softmax(40 * LOGITS).round(3)
    table = read(100 * shares, WORDS, "stop", classes=CLASSES, keeps_table=True).table
    np.testing.assert_allclose(table, np.log(np.maximum(shares, shares[shares > 0].min() / 2)), atol=1e-9)


@pytest.mark.parametrize(("first", "found"), [(0, 0), (-1, -1), (0.5, None)])
def test_two_columns_of_one_score_are_known(first, found):
    score = LOGITS[:, 1]
    assert read(np.column_stack([first * score, score]), CODES == 1, 1).first_column == found
    assert read(LOGITS, CODES, 1).first_column is None


def test_labels_are_given_back_as_they_came():
    def back(labels, classes=None, scores=LOGITS[:5]):
        return read(scores, labels, 1, classes=classes).labels_as.tolist()

    assert back(WORDS[:5], CLASSES) == list(CLASSES)
    assert back([0, 1, 2, 2, 1]) == [0, 1, 2, 3]
    assert back([0.0, 1.0, 2.0, 2.0, 1.0]) == [0.0, 1.0, 2.0, 3.0]
    assert back([5, 6, 7, 7, 6], ["5", "6", "7", "8"]) == [5, 6, 7, 8]
    assert back(["8.0", "5.0", "6.0", "5.0", "5.0"], ["5", "6", "7", "8"]) == ["5.0", "6.0", "7", "8.0"]
    assert back([True, False, True, True, True], scores=LOGITS[:5, :2]) == [False, True]


def test_labels_are_names_first_and_numbers_from_zero_else():
    def codes(labels, names):
        scores = np.random.default_rng(0).normal(size=(len(labels), len(names)))
        return read(scores, labels, 0, classes=names).scores.labels.tolist()

    assert codes(np.array(["2", "1"]), ["1", "2"]) == [1, 0]
    for labels in (np.array([2, 0]), [2.0, 0.0], ["2.0", "0.0"], np.array([2, 0], np.uint8), np.array([2, 0], object)):
        assert codes(labels, ["a", "b", "c"]) == [2, 0], "as pandas writes them"
    assert codes(["2.0", "0.0"], ["2.0", "0.0"]) == [0, 1]
    assert codes(["8.00000", "7.00000"], ["7", "8"]) == [1, 0], "as numpy.savetxt does"
    assert codes(["2.00", "1e0"], ["a", "b", "c"]) == [2, 1]
    assert codes(["01", "1"], ["1", "01"]) == [1, 0], "names, not numbers"
    assert codes(["1.0", "0.0"], ["0", "1", "01"]) == [1, 0], "two are 1: positions"
    assert codes([-(2**40), 2**40], [str(2**40), str(-(2**40))]) == [1, 0], "far apart"
    flags = np.array([True, False, True])
    for labels in (flags, flags.astype(object), flags.astype(str), np.array(["true", "false", "TRUE"])):
        for names in (["0", "1"], ["go", "stop"], ["0", "1", "2"], ["1.0", "0.0"][::-1]):
            assert codes(labels, names) == [1, 0, 1]
    assert codes(flags, ["1", "0"]) == [0, 1, 0], "names first"
    assert codes(flags, ["True", "False"]) == [0, 1, 0]
    assert codes(np.array([True, 1, 0], object), ["1", "0", "True"]) == [2, 0, 1], "True is not 1"


def test_an_important_class_may_be_a_name_a_number_or_a_whole_float():
    for one in ("stop", 1, 1.0, np.float32(1), [1.0], ["stop"], ("stop", 1)):
        assert read(LOGITS, CODES, one, classes=CLASSES).scores.important == (1,)
    assert read(LOGITS, CODES, 1.0, classes=["0", "stop", "1.0", "2"]).scores.important == (2,), "names first"


class Index:
    """As pandas' Index: it has a length and can be walked through, but is no Sequence."""

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __iter__(self):
        return iter(self.names)


@pytest.mark.parametrize(
    "classes",
    [
        {"yield": 2, "entry": 3, "stop": 1, "limit": 0},
        {3: "entry", 1: "stop", 0: "limit", np.int64(2): "yield"},
        np.array(CLASSES, dtype=object),
        list(CLASSES),
        Index(CLASSES),
    ],
)
@pytest.mark.parametrize("labels", [CODES, WORDS, WORDS.astype(object), CODES.astype(np.float32), CODES.astype("U5")])
def test_types_of_labels_and_classes_change_nothing(classes, labels):
    assert same(read(LOGITS, labels, "stop", classes=classes))


def test_tensors_are_taken_as_they_are():
    assert same(read(torch.tensor(LOGITS, requires_grad=True), torch.tensor(CODES), "stop", classes=CLASSES))
    assert same(read(LOGITS.tolist(), CODES.tolist(), "stop", classes=CLASSES))
    half = torch.tensor(LOGITS, dtype=torch.bfloat16)
    assert same(read(half, CODES, "stop", classes=CLASSES), read(half.float().numpy(), CODES, 1, classes=CLASSES))


def test_permuted_rows_columns_and_classes_give_the_same_rows():
    drawn = np.random.default_rng(3)
    rows, columns = drawn.permutation(800), drawn.permutation(4)
    moved = read(LOGITS[rows], WORDS[rows], "stop", classes=CLASSES, groups=rows)
    np.testing.assert_array_equal(moved.scores.lead, EXPECTED.scores.lead[rows])
    turned = read(LOGITS[:, columns], WORDS, "stop", classes=[CLASSES[k] for k in columns])
    np.testing.assert_array_equal(turned.scores.lead, EXPECTED.scores.lead)
    np.testing.assert_array_equal(turned.scores.rest_right, EXPECTED.scores.rest_right)
    np.testing.assert_allclose(turned.scores.rest_spread, EXPECTED.scores.rest_spread)
    assert {turned.classes[k] for k in turned.scores.important} == {"stop"}


# ---- labelled data is aligned


def frames():
    """Makers of a data frame from {name: column}, of every kind that is installed."""
    yield "mapping", lambda columns: dict(columns)
    yield "arrow", lambda columns: pa.table({name: pa.array(column) for name, column in columns.items()})
    for name in ("pandas", "polars"):
        try:
            module = __import__(name)
        except ImportError:
            continue
        yield name, module.DataFrame


FRAMES = [pytest.param(make, id=name) for name, make in frames()]


def columns_of(scores, names):
    return {name: scores[:, CLASSES.index(name)] for name in names}


@pytest.mark.parametrize("make", FRAMES)
@pytest.mark.parametrize("prefix", ["", "p_", "proba_", "score."])
def test_columns_in_another_order_are_aligned_to_the_classes(make, prefix):
    """A wrong order of columns read an accuracy of .044 instead of .911."""
    order = ["yield", "entry", "limit", "stop"]
    frame = make({prefix + name: column for name, column in columns_of(LOGITS, order).items()})
    assert same(read(frame, WORDS, "stop", classes=CLASSES))
    alone = read(frame, WORDS, "stop")
    assert alone.classes == tuple(order), "without classes the columns' names are the classes"
    np.testing.assert_array_equal(alone.scores.lead, EXPECTED.scores.lead)
    np.testing.assert_array_equal(alone.scores.rest_right, EXPECTED.scores.rest_right)


@pytest.mark.parametrize("make", FRAMES)
def test_columns_of_other_names_are_refused(make):
    frame = make(columns_of(LOGITS, CLASSES))
    for classes in (["a", "b", "c", "d"], [*CLASSES[:3], "halt"], CLASSES[:3]):
        with pytest.raises(InputError, match=r"the columns limit, stop, yield, entry are not those of the classes"):
            read(frame, WORDS, 1, classes=classes)
    with pytest.raises(InputError, match="label 'halt' is no column; choices: limit, stop"):
        read(frame, ["halt"] * 800, "stop")


def test_columns_without_names_are_positions():
    for start in ("", "column_"):
        frame = {f"{start}{k}": LOGITS[:, k] for k in range(4)}
        assert same(read(frame, WORDS, "stop", classes=CLASSES))
        assert read(frame, CODES, 1).classes == ("0", "1", "2", "3")
    turned = read({str(k): LOGITS[:, k] for k in (2, 0, 3, 1)}, CODES, "1")
    np.testing.assert_array_equal(turned.scores.lead, EXPECTED.scores.lead)


def test_labels_groups_and_split_may_be_columns():
    track, part = np.arange(800) // 2, np.where(np.arange(800) % 4 < 2, "val", "test")
    frame = pa.table({**columns_of(LOGITS, CLASSES), "is": WORDS, "film": track, "part": part})
    found = read(frame, "is", "stop", groups="film", split="part")
    assert same(found, read(LOGITS, WORDS, 1, classes=CLASSES, groups=track, split=part))
    with pytest.raises(InputError, match="groups='flim' is no column; did you mean 'film'"):
        read(frame, "is", "stop", groups="flim")
    with pytest.raises(InputError, match="labels='is' names a column, but scores are no data frame"):
        read(LOGITS, "is", 1)


def test_rows_with_an_index_are_aligned_by_it():
    pandas = pytest.importorskip("pandas")
    drawn = np.random.default_rng(0)
    names = pandas.Index([f"row {k}" for k in range(800)])
    frame, order = pandas.DataFrame(LOGITS, columns=CLASSES, index=names), drawn.permutation(800)
    film = pandas.Series(np.arange(800) // 2, index=names)
    labels = pandas.Series(WORDS, index=names)
    expected = read(LOGITS, WORDS, 1, classes=CLASSES, groups=film.to_numpy())
    found = read(frame, labels.iloc[order], "stop", groups=film.iloc[order[::-1]])
    assert same(found, expected)
    assert same(read(frame, WORDS, "stop"), EXPECTED), "an array has no index"
    assert same(read(LOGITS, labels.iloc[order], 1, classes=CLASSES), read(LOGITS, WORDS[order], 1, classes=CLASSES))
    by_labels = read(LOGITS[order], labels.iloc[order], 1, classes=CLASSES, groups=film)
    assert [by_labels.group_names[k] for k in by_labels.groups] == [str(k // 2) for k in order]
    numbered = pandas.DataFrame(LOGITS, columns=CLASSES)  # as cross_val_predict's array becomes a frame
    with pytest.raises(InputError, match=r"the numbers 0, 1, … in another order .*labels\.to_numpy\(\)"):
        read(numbered, pandas.Series(WORDS).iloc[order], "stop")
    for index in (range(800), [f"row {k}" for k in range(1, 801)], ["row 0"] * 800):
        with pytest.raises(InputError, match=r"the index of labels .* rows cannot be matched; give both the same"):
            read(frame, pandas.Series(WORDS, index=index), "stop")
        with pytest.raises(InputError, match=r"the index of groups .*groups\.to_numpy\(\)"):
            read(frame, labels, "stop", groups=pandas.Series(np.arange(800), index=index))


def test_series_in_a_mapping_are_aligned_too():
    pandas = pytest.importorskip("pandas")
    order = np.random.default_rng(0).permutation(800)
    rows = [f"row {k}" for k in range(800)]
    scores = {name: pandas.Series(LOGITS[:, k], index=rows) for k, name in enumerate(CLASSES)}
    turned = {**scores, "stop": scores["stop"].iloc[order]}
    assert same(read(turned, pandas.Series(WORDS, index=rows).iloc[order[::-1]], "stop", classes=CLASSES))
    with pytest.raises(
        InputError, match="the index of scores of 'stop' begins with 1 and that of the scores with 'row"
    ):
        read({**scores, "stop": pandas.Series(LOGITS[:, 1], index=range(1, 801))}, WORDS, "stop")
    frame = pandas.DataFrame(LOGITS, columns=["limit", "stop", "stop", "entry"])
    with pytest.raises(InputError, match="scores have two columns called 'stop'; rename one"):
        read(frame, WORDS, "stop")
    with pytest.raises(InputError, match="scores are a LazyFrame; give a data frame in memory"):
        read(pytest.importorskip("polars").LazyFrame(columns_of(LOGITS, CLASSES)), WORDS, "stop")


def test_missing_values_of_data_frames_are_seen():
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(WORDS).astype("string")
    labels[7] = pandas.NA
    with pytest.raises(InputError, match="the label of row 7 is missing"):
        read(LOGITS, labels, 1, classes=CLASSES)
    frame = pandas.DataFrame(LOGITS, columns=CLASSES).astype("Float64")
    assert same(read(frame, WORDS, "stop"))
    frame.loc[7, "stop"] = pandas.NA
    with pytest.raises(InputError, match=r"row 7: score\(stop\) = nan"):
        read(frame, WORDS, "stop")
    assert same(read(LOGITS, pandas.Series(pandas.Categorical(WORDS)), 1, classes=CLASSES))


# ---- one column of two classes


def test_one_column_is_the_second_of_two_classes():
    chance, is_stop = softmax(LOGITS)[:, 1], CODES == 1
    both = read(np.column_stack([1 - chance, chance]), is_stop, 1)
    for scores in (chance, chance[:, None], torch.tensor(chance)):
        assert same(read(scores, is_stop, 1), both)
        assert same(read(scores, is_stop.astype(int), "1"), both)
    named = read(chance, np.where(is_stop, "stop", "go"), "stop", classes=["go", "stop"])
    np.testing.assert_array_equal(named.scores.lead, both.scores.lead)
    alone = read({"p_stop": chance}, np.where(is_stop, "stop", "go"), "stop")
    assert alone.classes == ("go", "stop")
    np.testing.assert_array_equal(alone.scores.lead, both.scores.lead)
    score = LOGITS[:, 1]
    decided = read(score, np.where(is_stop, 1, -1), "1")
    assert (decided.classes, decided.kind, decided.first_column) == (("-1", "1"), "logits", 0)
    np.testing.assert_array_equal(decided.scores.lead[:, 0], score)


# ---- the messages


def nan_at(row, column):
    scores = LOGITS.copy()
    scores[row, column] = np.nan
    return scores


def shares_with(row, values, unit=1):
    scores = softmax(LOGITS) * unit
    scores[row] = np.array(values) * (1 if max(values) > 1e300 else unit)
    return scores


def negative():
    odd = softmax(LOGITS)
    odd[:, 0] += odd[:, 1] + 0.01
    odd[:, 1] = -0.01
    return odd


def half():
    return np.where(np.arange(800)[:, None] % 3 == 0, softmax(LOGITS), LOGITS)


REFUSED = [
    ({"important": "stopp"}, "important='stopp' is not a class; did you mean 'stop'"),
    ({"important": "stop+limit"}, "several are given one by one: --important stop --important limit"),
    ({"important": 7}, "important=7 is not a class"),
    ({"important": 1.5}, "important=1.5 is not a class"),
    ({"important": math.nan}, "important=nan is not a class"),
    ({"important": []}, "0 of 4 classes are important"),
    ({"important": list(CLASSES)}, "4 of 4 classes are important; name at least one and not all"),
    ({"labels": ["stop"] * 3}, "800 rows of scores and 3 labels do not fit; give one label a row"),
    ({"labels": ["halt"] * 800}, "label 'halt' is not a class; choices: limit"),
    ({"labels": [None] * 800}, r"the label of rows 0, 1, 2, … \(800 of 800\) is missing; fill it in or remove the row"),
    ({"labels": ["stop", " "] * 400}, r"the label of rows 1, 3, 5, … \(400 of 800\) is missing"),
    ({"labels": [["stop"]] + [None] * 799}, "the labels hold values of type list; give one label a row"),
    ({"labels": np.zeros((4, 2))}, r"labels of shape \(4, 2\) are not allowed; give one class a row"),
    *(({"labels": ["0.0", wrong] * 400}, f"label '{wrong}' is not a class") for wrong in ("8.5", "4", "nan", "-1")),
    ({"classes": ["a", "b"]}, "2 class names .* for 4 columns; give different ones, one each"),
    ({"classes": ["a", "b", "c", "c"]}, "give different ones"),
    ({"classes": ["a", "b\x1b[2J", "c", "d"]}, "is not printable"),
    (
        {"classes": set(CLASSES)},
        r"^classes=\{.entry., .* is not a list; give the class names as a list, in the order of",
    ),
    ({"classes": {"stop": 1, "limit": 2, "yield": 3, "entry": 4}}, "does not have each index from 0 to 3 once"),
    ({"classes": "stop"}, "classes='stop' is not a list"),
    ({"kind": "odds"}, "kind='odds' is unknown; choices: logits, probabilities"),
    ({"scores": np.zeros((0, 4))}, r"scores of shape \(0, 4\) .* give numbers \(N, C\)"),
    ({"scores": {name: [] for name in CLASSES}}, r"scores have no rows; give numbers \(N, C\)"),
    ({"scores": LOGITS.astype(str)}, r"scores of shape \(800, 4\) and type <U\d+ are not allowed"),
    ({"scores": np.stack([LOGITS] * 3)}, r"shape \(3, 800, 4\).*; give those of one model, \(N, C\)\. Several models"),
    ({"scores": LOGITS[:, 0]}, r"scores of one column do not fit 4 classes; give a column for each, \(N, 4\)"),
    ({"scores": LOGITS[:, 0], "classes": None}, r"scores of one column say nothing .* classes=\[OTHER, CLASS\]"),
    (
        {"scores": 90 * softmax(LOGITS)[:, 1], "labels": CODES == 1, "important": 1, "classes": None},
        "scores of one column, from .* are neither probabilities nor scores around 0",
    ),
    (
        {"scores": {"a": LOGITS[:, 0], "b": LOGITS[:5, 1]}, "classes": None},
        r"scores of shapes \{'a': \(800,\), 'b': \(5,\)\} do not fit",
    ),
    ({"scores": np.full((800, 4), np.nan)}, r"row 0: score\(limit\) = nan \(800 of 800 rows are like this\)\. Give"),
    ({"scores": nan_at(214, 1)}, r"^row 214: score\(stop\) = nan\. Give finite scores, or remove the rows"),
    ({"scores": shares_with(214, [0.3, float("inf"), 0.5, 0.2])}, r"^row 214: score\(stop\) = inf\."),
    ({"scores": shares_with(214, [0.3, 1e308, 0.5, 0.2])}, r"^row 214: score\(stop\) = 1e\+308\."),
    ({"scores": shares_with(214, [0.3, -0.02, 0.5, 0.22])}, r"^row 214: p\(stop\) = -0.02\. Probabilities lie between"),
    ({"scores": shares_with(214, [0.3, -0.02, 0.5, 0.22], 100)}, r"^row 214: p\(stop\) = -2\. Probabilities lie"),
    ({"scores": shares_with(214, [0.1, 0.1, 0.5, 0.1])}, r"^row 214: the probabilities sum to 0\.8\."),
    ({"scores": shares_with(214, [0.1, 0.1, 0.5, 0.1], 100)}, r"^row 214: the probabilities sum to 0\.8\."),
    ({"scores": shares_with(214, [2.5, 0.1, -3.0, 0.1])}, r"^row 214: p\(limit\) = 2\.5\."),
    ({"scores": negative()}, r"row 0: p\(stop\) = -0\.01 \(800 of 800 rows are like this\)\. Probabilities"),
    ({"scores": half()}, r"row 1: p\(.*add --logits"),
    ({"kind": "probabilities"}, r"row 0: p\(.* add --logits \(kind='logits'\)"),
    ({"groups": ["a", None] * 400}, r"the group of rows 1, 3, 5, … \(400 of 800\) is missing; fill it in, with a name"),
    ({"groups": [1.0] * 7 + [math.nan] + [2.0] * 792}, "the group of row 7 is missing; fill it in"),
    ({"groups": [" "] * 800}, "the group of rows 0, 1, 2, …"),
    ({"groups": ["a"] * 3}, r"800 rows and groups of shape \(3,\) do not fit; give one group a row"),
    ({"split": ["test"] * 5}, "800 rows and 5 split names do not fit; give one a row"),
    ({"split": ["tset"] * 800}, "'tset' is no split; did you mean 'test'"),
    (
        {
            "split": ["val"] * 10 + ["train", "val"] + ["test"] * 788,
            "groups": [f"patient {k // 2}" for k in range(800)],
        },
        "group 'patient 5' has rows in train and in val; split by group, or remove",
    ),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(change, said):
    given = {"scores": LOGITS, "labels": WORDS, "important": "stop", "classes": CLASSES, **change}
    with pytest.raises(InputError, match=said):
        read(**given)
    if said.startswith("^row 214"):
        with pytest.raises(InputError) as caught:
            read(**given)
        assert (caught.value.row, caught.value.where, caught.value.argument) == (214, None, "scores")


def test_an_error_keeps_its_row_across_processes():
    error = pickle.loads(pickle.dumps(InputError("wrong", "scores", row=3, where="a.csv")))
    assert (str(error), error.argument, error.row, error.where) == ("wrong", "scores", 3, "a.csv")


def test_a_row_far_behind_the_first_ones_is_checked_too():
    drawn = np.random.default_rng(0)
    shares = softmax(drawn.normal(size=(300_000, 4)))
    labels = drawn.integers(0, 4, 300_000)
    shares[290_000] = [0.1, 0.1, 0.5, 0.1]
    shares[299_000] = [0.1, 0.1, 0.5, 0.1]
    with pytest.raises(InputError, match=r"^row 290000: the probabilities sum to 0\.8\.") as caught:
        read(shares, labels, 1)
    assert caught.value.row == 290_000
    shares[295_000, 2] = np.nan
    with pytest.raises(InputError, match=r"^row 295000: score\(2\) = nan\."):
        read(shares, labels, 1)


# ---- columns that are no class's


def extra_of(shares, name):
    """A column that tables of probabilities have beside the classes."""
    best = np.sort(shares, axis=1)
    columns = {
        "confidence": best[:, -1],
        "margin": best[:, -1] - best[:, -2],
        "entropy": -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1),
        "loss": -np.log(np.maximum(shares[:, 0], 1e-300)),
        "constant": np.full(len(shares), 0.5),
    }
    return columns[name]


def refuses(scores, labels, names):
    """Whether a column is refused as no class's; any other error is none of this check's."""
    try:
        read(scores, labels, 0, classes=names)
    except InputError as error:
        return str(error).split(" is no ")[0] if "every row sums to" in str(error) else None


@pytest.mark.parametrize("unit", [1, 100])
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("name", ["confidence", "margin", "entropy", "loss", "constant"])
def test_a_column_beside_probabilities_is_refused_wherever_it_stands(name, place, unit):
    shares = softmax(LOGITS)
    scores = unit * np.insert(shares, place, extra_of(shares, name), axis=1)
    names = [*CLASSES[:place], name, *CLASSES[place:]]
    said = rf"column '{name}' is no class: without it every row sums to {unit}; remove it, or add --logits"
    for told in (WORDS, CODES):
        with pytest.raises(InputError, match=said):
            read(scores, told, "stop", classes=names)
    assert read(scores, WORDS, "stop", classes=names, kind="logits").kind == "logits"
    both = np.column_stack([scores, unit * extra_of(shares, "margin")])
    with pytest.raises(InputError, match=rf"columns '{name}', 'lead' are no classes: without them every row sums to"):
        read(both, WORDS, "stop", classes=[*names, "lead"])


def test_a_column_that_a_label_names_is_a_class_though_the_others_sum_to_1():
    unknown = np.random.default_rng(1).random(800)
    scores, given = np.column_stack([softmax(LOGITS), unknown]), np.where(unknown > 0.8, 4, CODES)
    names = [*CLASSES, "unknown"]
    assert read(scores, np.array(names)[given], "stop", classes=names).kind == "logits"
    assert read(scores, given, "stop", classes=names).kind == "logits"
    assert read(np.roll(scores, 1, axis=1), (given + 1) % 5, 2).kind == "logits"
    raw = np.column_stack([LOGITS[:, 0], 1 - LOGITS[:, 0], LOGITS[:, 1]])
    assert read(raw, CODES % 2, 0).kind == "logits", "two columns sum to 1, and are no probabilities"


@st.composite
def tables_of_scores(draw):
    """Scores (N, C) that are of C classes, not all of which have labels: (scores, labels, names)."""
    drawn = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_rows, num_classes = draw(st.integers(20, 60)), draw(st.integers(2, 12))
    known = draw(st.integers(2, num_classes))  # the last classes have no label
    labels = drawn.integers(0, known, num_rows)
    logits = draw(st.sampled_from([0.0, 0.3, 1, 5, 40])) * drawn.normal(size=(num_rows, num_classes))
    logits += draw(st.sampled_from([0, 2, 10])) * np.eye(num_classes)[labels]
    logits[:, known:] -= draw(st.sampled_from([0, 3, 1000]))  # their probability may be 0 in every row
    kind = draw(st.sampled_from(["logits", "probabilities", "percentages", "one-hot", "sigmoids", "votes", "log p"]))
    p = softmax(logits)
    scores = {
        "logits": logits,
        "probabilities": p,
        "percentages": 100 * p,
        "one-hot": np.eye(num_classes)[logits.argmax(axis=1)],
        "sigmoids": 1 / (1 + np.exp(-logits.clip(-700, 700))),
        "votes": np.array([drawn.multinomial(30, row) for row in p]).astype(float),
        "log p": np.log(np.maximum(p, 1e-300)),
    }[kind]
    digits = draw(st.sampled_from([None, 1, 2, 3, 6]))
    scores = scores if digits is None else scores.round(digits)
    order = drawn.permutation(num_classes) if draw(st.booleans()) else np.arange(num_classes)
    names = [f"c{k}" for k in order]
    by_name = draw(st.booleans()) or order.tolist() != sorted(order.tolist())
    return scores[:, order], np.array([f"c{k}" for k in labels]) if by_name else labels, names


@settings(max_examples=300, deadline=None)
@given(tables_of_scores())
def test_no_table_of_classes_is_refused_for_a_column(table):
    assert refuses(*table) is None


@settings(max_examples=200, deadline=None)
@given(tables_of_scores(), st.sampled_from(["confidence", "entropy", "constant"]), st.integers(0, 100))
def test_a_column_more_is_refused_if_it_changes_the_sum(table, name, place):
    scores, labels, names = table
    unit = 100 if scores.sum() > 50 * len(scores) else 1
    shares = scores / unit
    wide = unit * np.insert(shares, place % (len(names) + 1), extra_of(shares, name), axis=1)
    is_told = np.abs(wide.sum(axis=1) / unit - 1).max() > 0.06 * (len(names) + 1)  # else decimals may explain the sum
    if np.abs(shares.sum(axis=1) - 1).max() < 0.05 and shares.min() >= 0 and is_told and np.ptp(shares, axis=0).any():
        names = [*names[: place % (len(names) + 1)], name, *names[place % (len(names) + 1) :]]
        assert refuses(wide, labels, names) == f"column {name!r}"


# ---- groups, splits, folds


def test_groups_are_named_as_they_first_appear():
    found = read(LOGITS[:4], CODES[:4], 1, groups=["eve", " adam", "eve", "adam"])
    assert (found.group_names, found.groups.tolist()) == (("eve", "adam"), [0, 1, 0, 1])
    for groups in ([7, 3, 7, 3], [7.0, 3.0, 7.0, 3.0], [10**12, 3, 10**12, 3], np.array([7, 3, 7, 3], np.uint8)):
        assert read(LOGITS[:4], CODES[:4], 1, groups=groups).groups.tolist() == [0, 1, 0, 1]


def test_some_rows_are_taken():
    rows = np.array([5, 2])
    whole = read(
        LOGITS, WORDS, 1, classes=CLASSES, groups=np.arange(800), split=["val", "test"] * 400, keeps_table=True
    )
    some = whole.take(rows)
    assert (len(some), some.classes, some.split.tolist()) == (2, CLASSES, [2, 1])
    np.testing.assert_array_equal(some.scores.lead, whole.scores.lead[rows])
    np.testing.assert_array_equal(some.table, LOGITS[rows])


def test_a_split_tunes_on_val_and_judges_test():
    split = np.array(["Training", "dev", "test", "valid"] * 200)
    (tuning, judged), what = tune_and_judge(read(LOGITS, CODES, 1, split=split))
    assert what == "split"
    assert (tuning % 2 == 1).all()
    assert len(tuning) == 400
    assert (judged % 4 == 2).all()
    fold, what = tune_and_judge(read(LOGITS, CODES, 1, split=np.where(split == "Training", "train", "val")))
    assert what == "rows"
    assert ((fold < 0) == (split == "Training")).all()
    fold, what = tune_and_judge(read(LOGITS, CODES, 1, groups=np.arange(800) // 2))
    assert what == "groups"
    assert (fold[::2] == fold[1::2]).all()
    with pytest.raises(InputError, match="every row is of the train split; give val or test rows"):
        tune_and_judge(read(LOGITS, CODES, 1, split=["train"] * 800))


def dealt(labels, num_folds=10):
    """The folds of rows dealt one by one: each to the fold with the fewest rows of its class, then of all."""
    drawn, folds = np.random.default_rng(0), np.full(len(labels), -1)
    for index in np.unique(labels).tolist():
        every = np.bincount(folds[folds >= 0], minlength=num_folds).tolist()
        fullness = [(0, every[k], k) for k in range(num_folds)]
        heapq.heapify(fullness)
        for row in drawn.permutation(np.flatnonzero(labels == index)).tolist():
            least, in_all, number = fullness[0]
            folds[row] = number
            heapq.heapreplace(fullness, (least + 1, in_all + 1, number))
    return folds


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_dealt_as_one_by_one(seed):
    labels = np.random.default_rng(seed).choice(7, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01], size=203 + seed)
    np.testing.assert_array_equal(draw_folds(labels, None), dealt(labels))
    np.testing.assert_array_equal(draw_folds(labels, np.arange(len(labels)), (1,)), dealt(labels))


def test_folds_are_even_in_rows_of_the_important_class_however_large_groups_are():
    drawn = np.random.default_rng(0)
    sizes = np.maximum(1, drawn.lognormal(1.2, 0.8, 300)).astype(int)
    groups = np.repeat(np.arange(300), sizes)
    labels = np.where(drawn.random(len(groups)) < 0.1, 1, 0)
    fold = draw_folds(labels, groups, (1,))
    assert all(len(set(fold[groups == group])) == 1 for group in range(300))
    own = np.bincount(fold[labels == 1], minlength=10)
    assert own.max() - own.min() <= 2
    few = draw_folds(np.array([0, 1] * 20), np.arange(40) // 10, (1,))
    assert sorted(set(few.tolist())) == [0, 1, 2, 3]


# ---- files


def write_csv(path, header, rows, **how):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, **how).writerows([header, *rows])
    return path


def csv_of(path, names=CLASSES, labels=WORDS, scores=LOGITS, **how):
    rows = [[label, *row] for label, row in zip(labels.tolist(), scores.tolist(), strict=True)]
    return write_csv(path, ["label", *names], rows, **how)


def table_of(scores=LOGITS, labels=WORDS, **more):
    return pa.table({"label": labels, **more, **dict(zip(CLASSES, scores.T, strict=True))})


@pytest.mark.parametrize("prefix", ["", "p:", "p_", "prob_", "proba_", "logit_", "score."])
@pytest.mark.parametrize("labels", [WORDS, CODES])
def test_csv_with_names_or_numbers_as_labels(tmp_path, prefix, labels):
    assert same(read_file(csv_of(tmp_path / "s.csv", [prefix + name for name in CLASSES], labels), "stop"))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"delimiter": ";"},
        {"delimiter": "|"},
        {"quoting": csv.QUOTE_ALL},
        {"lineterminator": "\n", "quoting": csv.QUOTE_NONNUMERIC},
        {"lineterminator": "\r"},
    ],
)
@pytest.mark.parametrize("names", [CLASSES, ('the "limit"', "stop, now", "yield; here", "entry")])
def test_spellings_of_csv_give_the_same_rows(tmp_path, how, names, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 3_000)
    file = csv_of(tmp_path / "s.csv", names, np.array(names)[CODES], **how)
    found = read_file(file, 1)
    assert found.classes == tuple(names)
    np.testing.assert_array_equal(found.scores.lead, EXPECTED.scores.lead)
    np.testing.assert_array_equal(found.scores.labels, CODES)
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    np.testing.assert_array_equal(read_file(marked, 1).scores.lead, EXPECTED.scores.lead)


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "row groups", "folder", "lists", "npz", "npy", "float32"])
@pytest.mark.parametrize("size", [1_500, 2**22])
def test_files_in_pieces_hold_the_same_as_arrays_at_once(tmp_path, form, size, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", size)
    monkeypatch.setattr(files, "FEWEST_ROWS", size // 100)
    monkeypatch.setattr(files, "CELLS_AT_ONCE", 4 * (size // 100))
    film, part = np.arange(800) // 4, np.where(np.arange(800) // 4 % 3, "test", "val")
    scores = LOGITS.astype(np.float32) if form == "float32" else LOGITS
    expected = read(scores, WORDS, "stop", classes=CLASSES, groups=film, split=part)
    labels, file = None, tmp_path / f"s.{form}"
    table = table_of(scores, group=film, split=part)
    if form in ("csv", "tsv"):
        rows = zip(WORDS, film, part, *LOGITS.T, strict=True)
        how = {"delimiter": "\t"} if form == "tsv" else {}
        write_csv(file, ["label", "group", "split", *CLASSES], rows, **how)
    elif form == "folder":
        file.mkdir()
        for place, first in enumerate(range(0, 800, 300)):
            pq.write_table(table.slice(first, 300), file / f"part-{place}.parquet")
        pq.write_table(table.slice(0, 0), file / "part-9.parquet")
        (file / "_SUCCESS").touch()
    elif form == "npz":
        np.savez(file, scores=LOGITS, labels=WORDS, classes=CLASSES, groups=film, split=part)
    elif form == "npy":
        np.save(file, LOGITS)
        labels = tmp_path / "labels.npy"
        np.save(labels, CODES)
        found = read_file(file, 1, labels=labels)
        np.testing.assert_array_equal(found.scores.lead, expected.scores.lead)
        np.testing.assert_array_equal(found.scores.labels, expected.scores.labels)
        pq.write_table(pa.table({"label": CODES}), tmp_path / "labels.parquet")
        assert same(read_file(file, 1, labels=tmp_path / "labels.parquet"), found)
        return
    elif form == "lists":
        huggingface = '{"info": {"features": {"label": {"names": ["limit", "stop", "yield", "entry"]}}}}'
        columns = {"label": CODES, "group": film, "split": part, "logits": LOGITS.tolist()}
        file = file.with_suffix(".parquet")
        pq.write_table(
            pa.table(columns).replace_schema_metadata({"huggingface": huggingface}), file, row_group_size=333
        )
    else:
        file = file.with_suffix(".parquet")
        pq.write_table(table, file, row_group_size=333 if form == "row groups" else 10_000)
    assert same(read_file(file, "stop"), expected)
    assert read_file(file, "stop").group_names == tuple(map(str, range(200)))


@pytest.mark.parametrize("note", ["two\nlines", 'a "word"', 'a "word",\nand one', "\n" * 50])
def test_values_may_hold_lines_and_quotes(tmp_path, note, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 100)
    rows = [[word, note, *row] for word, row in zip(WORDS, LOGITS.tolist(), strict=True)]
    assert same(read_file(write_csv(tmp_path / "s.csv", ["label", "note", *CLASSES], rows), "stop"))


def test_progress_counts_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 5_000)
    told = []
    read_file(csv_of(tmp_path / "s.csv"), "stop", on_progress=lambda done, num: told.append((done, num)))
    assert len(told) > 5
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (800, 800)
    assert all(750 < num < 850 for _, num in told), "an estimate"
    told.clear()
    pq.write_table(table_of(), tmp_path / "s.parquet", row_group_size=300)
    read_file(tmp_path / "s.parquet", "stop", on_progress=lambda done, num: told.append((done, num)))
    assert told == [(300, 800), (600, 800), (800, 800)]


def test_labels_that_come_late_change_which_columns_are_classes(tmp_path, monkeypatch):
    """The first piece has the labels p_1 and p_2 alone, which are columns' names; later ones have 3."""
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 500)
    rows = [["p_1" if k % 2 else "p_2", 0.25, 0.5, 0.25] for k in range(100)]
    names = ["label", "p_1", "p_2", "3"]
    assert read_file(write_csv(tmp_path / "a.csv", names, rows), "p_1").classes == ("p_1", "p_2", "3")
    rows = [[1 + k % 2, 0.5, 0.5, 7.5] for k in range(100)]
    assert read_file(write_csv(tmp_path / "b.csv", names, rows), "1").classes == ("1", "2")
    sevens = [["go", 3.5, 1.5, number] for number in [7] * 40 + [7.5] * 40 + [7] * 40]
    found = read_file(write_csv(tmp_path / "d.csv", ["label", "go", "stop", "wait"], sevens), "stop")
    assert found.classes == ("go", "stop", "wait"), "not all of them are whole numbers"
    late = [["go", 3.5, 9], *[["go", 3.5, 7]] * 100, ["stop", 1.5, 9]]
    assert read_file(write_csv(tmp_path / "c.csv", ["label", "go", "stop"], late), "stop").classes == ("go", "stop")


def test_what_other_tools_write_is_read(tmp_path, monkeypatch):
    """Blank lines at the end, as text editors leave them; long strings, as polars writes them; empty row groups."""
    file = csv_of(tmp_path / "s.csv")
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" * 40_000)
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 16_000)
    assert same(read_file(file, "stop"))
    for kind in (
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ):
        table = table_of().set_column(0, "label", pa.array(WORDS).cast(pa.large_string()).cast(kind))
        with pq.ParquetWriter(tmp_path / "s.parquet", table.schema) as writer:
            for first, num in ((0, 0), (0, 300), (300, 0), (300, 500)):
                writer.write_table(table.slice(first, num))
        assert same(read_file(tmp_path / "s.parquet", "stop"))


def test_what_camri_predict_writes_can_be_read(tmp_path):
    odds = softmax(LOGITS)
    header = ["file", "row", "predicted", "probability", *(f"p:{name}" for name in CLASSES), "problem", "label"]
    rows = [[f"{i}.png", i, "x", max(p), *p, "", w] for i, (p, w) in enumerate(zip(odds.tolist(), WORDS, strict=True))]
    found = read_file(write_csv(tmp_path / "p.csv", header, rows), "stop")
    assert same(found, read(odds, WORDS, "stop", classes=CLASSES))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_pandas_is_no_class(tmp_path, name):
    rows = [[i % 200, w, *row] for i, (w, row) in enumerate(zip(WORDS, LOGITS.tolist(), strict=True))]
    assert same(read_file(write_csv(tmp_path / "s.csv", [name, "label", *CLASSES], rows), "stop"))
    columns = dict(zip([name, "label", *CLASSES], zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    assert same(read_file(tmp_path / "s.parquet", "stop"))


def test_classes_that_begin_like_a_prefix_keep_their_names(tmp_path):
    rows = [["p_1", 0.3, 0.7], ["p_2", 0.1, 0.9]]
    found = read_file(write_csv(tmp_path / "s.csv", ["label", "p_1", "p_2"], rows), "p_1")
    assert found.classes == ("p_1", "p_2")


@pytest.mark.parametrize("bare", ["p_", "P_"])
def test_a_column_that_is_a_prefix_alone_is_no_class(tmp_path, bare):
    rows = [["go", 0.9, 0.3, 0.7], ["stop", 0.9, 0.1, 0.9]]
    found = read_file(write_csv(tmp_path / "s.csv", ["label", bare, "p_go", "P_stop"], rows), "stop")
    assert found.classes == ("go", "stop")
    assert found.scores.probability.tolist() == [[0.7], [0.9]]


@pytest.mark.parametrize(
    "text",
    [
        "label,a,b,c\na,.5,.5,0\nb,.2,.8,0\n",  # a class that is never predicted, nor there
        "label,a,b,c\na,.5,.5,7\nc,.2,.8,9\n",  # a class whose scores happen to be whole
        "label,a,b,c\na,5,4,3\nb,2,8,0\n",  # votes, some for a class that no row is of
    ],
)
def test_whole_numbers_may_be_scores(tmp_path, text):
    (tmp_path / "s.csv").write_text(text)
    assert read_file(tmp_path / "s.csv", "a").classes == ("a", "b", "c")


@pytest.mark.parametrize("size", [20, 2**22])
def test_a_table_of_two_classes_may_have_one_column(tmp_path, size, monkeypatch):
    """Also where the first rows, which are read first, have one of the two labels."""
    monkeypatch.setattr(files, "BYTES_AT_ONCE", size)
    rows = [["ok", 0.25]] * 50 + [["fraud", 0.75]]
    found = read_file(write_csv(tmp_path / "s.csv", ["label", "p_fraud"], rows), "fraud")
    assert found.classes == ("ok", "fraud")
    assert found.scores.probability.tolist() == [[0.25]] * 50 + [[0.75]]
    with pytest.raises(InputError, match=r"has 1 column of numbers beside its labels; give one for each"):
        read_file(write_csv(tmp_path / "s.csv", ["label", "p_fraud"], [*rows, ["theft", 0.5]]), "fraud")


def test_a_column_of_groups_is_found_or_named(tmp_path):
    film = np.arange(800) // 5
    rows = [[w, f"{g:04d}", g, *row] for w, g, row in zip(WORDS, film.tolist(), LOGITS.tolist(), strict=True)]
    file = write_csv(tmp_path / "s.csv", ["label", "patient", "track", *CLASSES], rows)
    told = read_file(file, "stop", group_column="patient", label_column="label")
    assert told.group_names == tuple(f"{group:04d}" for group in range(160)), "0001 is not 1"
    with pytest.raises(InputError, match="has no column 'patien'; did you mean 'patient'") as caught:
        read_file(file, "stop", group_column="patien")
    assert caught.value.argument == "group_column"
    pq.write_table(table_of(patient=film), tmp_path / "a.parquet")
    told = read_file(tmp_path / "a.parquet", "stop", group_column="patient")
    assert (told.groups.tolist(), told.classes) == (film.tolist(), CLASSES), "a patient's number is no class's score"
    track = pa.table({"label": ["track", "limit"], "track": [0.9, 0.2], "limit": [0.1, 0.8]})
    pq.write_table(track, tmp_path / "b.parquet")
    assert read_file(tmp_path / "b.parquet", "limit").groups is None, "track is a class here"
    np.savez(tmp_path / "c.npz", scores=LOGITS, labels=CODES, Groups=film, patient=-film)
    assert read_file(tmp_path / "c.npz", 1).group_names[:2] == ("0", "1")
    assert read_file(tmp_path / "c.npz", 1, group_column="patient").group_names[:2] == ("0", "-1")
    with pytest.raises(InputError, match="has no array 'patients'; did you mean 'patient'"):
        read_file(tmp_path / "c.npz", 1, group_column="patients")


REFUSED_CSV = [
    ("a,b\n1,2\n", r"^{file} has no label column among a, b; name it"),
    (
        "label,a\nx,1\n",
        r"^{file} has 1 column of numbers beside its labels; give one .*; of two classes both, .* 1 − p",
    ),
    (
        'label;a;b\na;"0,5";"0,5"\n',
        r"^{file}, line 2: column 'a' holds '0,5', which is no number; save .* decimal point",
    ),
    ("label,a,b,c\na,.7,.2,.1\nb,.1,.8,.1\nc,.1,.1,-\n", r"^{file}, line 4: column 'c' holds '-', which is no number"),
    ("label,p_a,p_b\na,.7,.2\nb,,.8\nb,n/d,.8\n", r"line 4: column 'p_a' holds 'n/d', which is no number"),
    ("label,x,y\n0,.7,.2\n1,.1,.8\n1,-,.8\n", r"line 4: column 'x' holds '-', which is no number"),
    ("label,x,y\n0,.7,far\n1,.1,near\n", r"has 1 column of numbers beside its labels \('y' holds string, first far\)"),
    ("label,p_a,p_b\nc,1,2\n", r"^{file}: label 'c' is no column; choices: a, b; call each class's column by its name"),
    ("label,p_id,p_a,p_b\n0,7,.5,.5\n1,9,.2,.8\n", "column 'p_id' holds whole numbers, and no label is called that"),
    ("label,a,b\n,1,2\n", r"^{file}: the label of line 2 is missing; fill it in or remove the row"),
    ("label,a,b\na,1,2\nb,2,1\n,1,2\n,1,2\n", r"^{file}: the label of lines 4, 5 \(2 of 4\) is missing"),
    ("label,group,a,b\na,x,1,2\nb,,2,1\n", r"^{file}: the group of line 3 is missing; fill it in, with a name of its"),
    ("label,split,a,b\na,spring,1,2\n", r"^{file}, column 'split': 'spring' is no split"),
    ("label,a,b\n", "^{file} has no rows"),
    ("", "^{file} is empty; give a file"),
    ("label,a,b,a\na,1,2,3\n", "^{file} has two columns called 'a'; rename one"),
    ("label,a,b\na,1,2\nb,1\n", "^{file} cannot be read as a table: .*; give each row as many values"),
    ('label,a,b\na,1,2\n"b,1,2\n', "^{file}, line 3: a quote is opened and never closed; close or remove it"),
    ("label,a,b,patient\na,.5,.5,7\nb,.2,.8,9\n", r"column 'patient' holds whole numbers, and no .* \(--group\)$"),
    ("label,id,a,b\n0,7,.5,.5\n1,9,.2,.8\n", "column 'id' holds whole numbers, and no label is called that"),
    ("label,a,b,debt\na,.5,.5,-1\nb,.2,.8,0\n", "column 'debt' holds whole numbers"),
    ("label,a,b,confidence\na,.7,.3,.7\nb,.2,.8,.8\n", "^{file}: column 'confidence' is no class: without it"),
    ("label,a,b\na,.7,.3\nb,1.02,-0.02\n", r"^{file}, line 3: p\(a\) = 1\.02\. Probabilities lie between 0 and 1"),
    ("label,a,b\na,.7,.3\nb,,-0.02\n", r"^{file}, line 3: score\(a\) = nan\. Give finite scores"),
    ("label,a,b\na,.7,.3\nb,.25,.65\n", r"^{file}, line 3: the probabilities sum to 0\.9\."),
]


@pytest.mark.parametrize(("text", "said"), REFUSED_CSV)
@pytest.mark.parametrize("size", [2**22, 16])
def test_tables_that_cannot_be_read_are_refused(tmp_path, text, said, size, monkeypatch):
    if size == 16 and ("split" in text or "far" in text):
        pytest.skip("the first rows decide which columns are of numbers")
    monkeypatch.setattr(files, "BYTES_AT_ONCE", size)
    file = tmp_path / "s.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said.format(file=file)):
        read_file(file, 0)


@pytest.mark.parametrize("form", ["csv", "tsv", "npz", "parquet", "folder"])
def test_an_error_has_the_file_and_the_row(tmp_path, form, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 4_000)
    scores = softmax(LOGITS)
    scores[214, 1] = -0.02
    file = where = tmp_path / f"s.{form}"
    named, row = "row 214", 214
    if form == "npz":
        np.savez(file, scores=scores, labels=WORDS, classes=CLASSES)
    elif form == "parquet":
        pq.write_table(table_of(scores), file, row_group_size=100)
    elif form == "folder":
        file.mkdir()
        pq.write_table(table_of(scores).slice(0, 200), file / "a.parquet")
        pq.write_table(table_of(scores).slice(200), file / "b.parquet")
        where, named, row = file / "b.parquet", "row 14", 14
    else:
        csv_of(file, scores=scores, delimiter="\t" if form == "tsv" else ",")
        named = "line 216"
        assert "-0.02" in file.read_text(encoding="utf-8").splitlines()[216 - 1]
    with pytest.raises(InputError) as caught:
        read_file(file, "stop")
    assert str(caught.value).startswith(f"{where}, {named}: p(stop) = -0.02. Probabilities lie")
    assert (caught.value.row, caught.value.where) == (row, str(where))


def test_a_text_far_behind_the_first_rows_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 4_000)
    lines = csv_of(tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()
    lines[700] = ",".join([*lines[700].split(",")[:2], "n/d", *lines[700].split(",")[3:]])
    (tmp_path / "s.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=r"s\.csv, line 701: column 'stop' holds 'n/d', which is no number"):
        read_file(tmp_path / "s.csv", "stop")
    lines[700] = "only,two"
    (tmp_path / "s.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=r"s\.csv cannot be read as a table: .*Expected 5 columns, got 2"):
        read_file(tmp_path / "s.csv", "stop")
    (tmp_path / "s.csv").write_bytes("\n".join(lines[:700]).encode() + b"\n\xff\xfe,1,2,3,4\n")
    with pytest.raises(InputError, match=r"s\.csv is not UTF-8 text \(byte 0xff\); save it as UTF-8"):
        read_file(tmp_path / "s.csv", "stop")


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (
            [[1.0, 2.0], None, [3.0, 4.0]],
            r"column 'logits': rows without the 2 values that most rows have: row 1 \(miss",
        ),
        ([[1.0, 2.0], [3.0, 4.0], [5.0]], r"rows without the 2 values that most rows have: row 2 \(1 values\); fill"),
        (pa.array([None] * 3, pa.list_(pa.float64())), "column 'logits': no row has any values; fill the column in"),
        ([["a", "b"]] * 3, "column 'logits' holds lists of string; scores are lists of numbers"),
    ],
)
def test_lists_of_scores_that_do_not_fit_are_refused_by_their_rows(tmp_path, scores, said):
    pq.write_table(pa.table({"label": [0, 1, 0], "logits": scores}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=said):
        read_file(tmp_path / "a.parquet", 1)


def test_files_that_are_no_tables_are_refused(tmp_path):
    def refused(name, said, **how):
        with pytest.raises(InputError, match=said):
            read_file(tmp_path / name, 1, **how)

    refused("no.csv", "is not a file; give a table of scores: CSV, TSV, parquet, npz or npy")
    (tmp_path / "s.xlsx").touch()
    refused("s.xlsx", r"ends in '.xlsx'; give a table of scores")
    (tmp_path / "s.csv.gz").touch()
    refused("s.csv.gz", "is a compressed table; unpack it and give s.csv")
    (tmp_path / "s.parquet").write_bytes(b"PAR1 and nothing else")
    refused("s.parquet", r"s\.parquet cannot be read as a table: .*; save it again")
    (tmp_path / "empty").mkdir()
    refused("empty", "is a folder without parquet files")
    (tmp_path / "two").mkdir()
    pq.write_table(table_of(), tmp_path / "two" / "a.parquet")
    pq.write_table(table_of().drop_columns("stop"), tmp_path / "two" / "b.parquet")
    refused("two", r"b\.parquet has no column 'stop', which a\.parquet has; parts of a table must agree")
    np.savez(tmp_path / "s.npz", a=np.zeros(3))
    refused("s.npz", r"holds a \(3,\); call the arrays scores \(N, C\), and labels \(N,\)")
    np.savez(tmp_path / "n.npz", scores=np.zeros((3, 2)), labels=np.zeros(3, int), classes=np.array(["go"]))
    refused("n.npz", r"n\.npz names 1 classes and has scores of 2")
    np.savez(tmp_path / "u.npz", scores=np.zeros((3, 2)))
    refused("u.npz", r"holds scores \(3, 2\); call the arrays scores")
    np.savez(tmp_path / "p.npz", scores=np.array([{}], dtype=object), labels=np.zeros(1))
    refused("p.npz", r"cannot be read as plain arrays: .*; save it with numpy\.savez, text as str, not object")
    np.save(tmp_path / "s.npy", LOGITS)
    refused("s.npy", "s.npy has scores alone; give a file with their labels")
    refused("s.npy", "labels='.*no.npy' is not a file", labels=tmp_path / "no.npy")
    refused("s.npz", r"labels='.*' is for scores in an \.npy; leave it out", labels=tmp_path / "s.npy")
    np.save(tmp_path / "bad.npy", LOGITS)
    (tmp_path / "bad.npy").write_bytes((tmp_path / "bad.npy").read_bytes().replace(b"<f8'", b"'"))
    refused("bad.npy", r"cannot be read as a plain array: ", labels=tmp_path / "s.npy")
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    refused("bad.npy", r"cannot be read as a plain array: .*; save it with numpy\.save", labels=tmp_path / "s.npy")


def test_a_mapped_file_takes_no_memory(tmp_path):
    """96 MB of scores; a process that reads them all holds some blocks at a time."""
    scores = np.lib.format.open_memmap(tmp_path / "s.npy", "w+", np.float32, (24_000, 1_000))
    scores[:] = np.random.default_rng(0).standard_normal((24_000, 1_000), dtype=np.float32)
    np.save(tmp_path / "labels.npy", np.arange(24_000) % 1_000)
    script = (
        "import sys\nfrom pathlib import Path\nfrom camri.decision.read import read_file\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) / 1024\n"
        "before = peak()\nread_file(sys.argv[1] + '/s.npy', 1, labels=sys.argv[1] + '/labels.npy')\n"
        "heavy = {'torch', 'pyarrow', 'pandas', 'pydantic', 'narwhals'} & set(sys.modules)\n"
        "assert not heavy, heavy\nprint(peak() - before)"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("/proc tells the memory")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 64


def test_the_benchmark_says_what_was_read(tmp_path):
    sizes = ["--csv", "500", "--parquet", "700", "--npy", "300x20", "--repeats", "1"]
    words = ["-m", "benchmarks.reading", "--folder", str(tmp_path), *sizes]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert [(one["ours"]["rows"], one["limit"]["rows"], one["sort"]["rows"]) for one in cases] == [
        (500, 500, 500),
        (700, 700, 700),
        (300, 300, 300),
    ]
    assert all(one["ours"]["max_rss_mib"] > 10 for one in cases)
