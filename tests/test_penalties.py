"""Important classes to vectors and matrices, exactly as the paper sets them."""

import math

import numpy as np
import pytest
import torch

from camri import penalties
from camri.errors import InputError

NAMES = ["cat", "dog", "airplane", "bird"]


def test_vector_has_the_strength_at_the_important_classes_only():
    assert penalties.important_vector(NAMES, {"dog": 0.25}).tolist() == [0, 0.25, 0, 0]
    assert penalties.important_vector(4, {3: 8.0, 1: 2.0}, elsewhere=1.0).tolist() == [1, 2, 1, 8]
    assert penalties.important_vector(2, {0: 0.0}, elsewhere=1.0).tolist() == [0, 1]


def test_matrix_has_row_and_column_at_the_strength_ones_elsewhere_and_a_zero_diagonal():
    assert penalties.important_matrix(NAMES, {"dog": 3.5}).tolist() == [
        [0, 3.5, 1, 1],
        [3.5, 0, 3.5, 3.5],
        [1, 3.5, 0, 1],
        [1, 3.5, 1, 0],
    ]


def test_matrix_of_two_important_classes_takes_the_larger_where_they_meet_and_below_one_is_kept():
    matrix = penalties.important_matrix(4, {0: 2.0, 3: 0.5})
    assert matrix.tolist() == [[0, 2, 2, 2], [2, 0, 1, 0.5], [2, 1, 0, 0.5], [2, 0.5, 0.5, 0]]


def test_numpy_integers_are_indices():
    assert penalties.strengths({np.int64(2): 1.5}, 4) == {2: 1.5}
    assert penalties.strengths({2: np.float32(1.5), 0: np.int64(3)}, np.int64(4)) == {0: 3.0, 2: 1.5}
    assert penalties.strengths(np.int64(2), 4) == {2: 1.0}


def test_no_important_class_leaves_the_plain_vector_and_matrix():
    assert penalties.important_vector(3, {}, elsewhere=1.0).tolist() == [1, 1, 1]
    assert penalties.important_matrix(3, {}).equal(torch.ones(3, 3) - torch.eye(3))


def test_ldam_margins_and_log_priors_follow_their_formulas():
    counts = [100, 1000, 5000]
    want = [0.5 * (100 / n) ** 0.25 for n in counts]
    torch.testing.assert_close(penalties.ldam_margins(counts), torch.tensor(want))
    want = [2 * math.log(n / 6100) for n in counts]
    torch.testing.assert_close(penalties.log_priors(torch.tensor(counts), tau=2.0), torch.tensor(want))


def test_the_default_tau_is_the_articles():
    torch.testing.assert_close(penalties.log_priors([1, 3]), torch.tensor([0.25, 0.75]).log())


def test_a_name_is_found_however_its_accents_are_written():
    assert penalties.class_index("cafe\u0301", ["tea", "caf\u00e9"]) == 1
    assert penalties.class_index("cafe\u0301", ["caf\u00e9", "cafe\u0301"]) == 1  # as it stands, where it does


def test_a_mapping_is_read_by_its_indices_not_in_its_own_order():
    """As torchvision's class_to_idx and the label2id and id2label of Hugging Face."""
    by_name, by_index = {"owl": 2, "cat": 0, "dog": np.int64(1)}, {2: "owl", 0: "cat", 1: "dog"}
    for classes in (by_name, by_index):
        assert penalties.important_vector(classes, {"dog": 0.5, 2: 0.25}).tolist() == [0, 0.5, 0.25]
        assert penalties.class_index("owl", classes) == 2
        with pytest.raises(InputError, match="'dgo' is not a class; did you mean 'dog'"):
            penalties.class_index("dgo", classes)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ({"cat", "dog"}, r"classes=\{'cat', 'dog'\} is not a list; give the class names as a list, in the order of"),
        (frozenset(NAMES), "is not a list"),
        (dict.fromkeys(NAMES, 0).keys(), "is not a list"),
        ("dog", "classes='dog' is not a list"),
        (iter(NAMES), "is not a list"),
        ({"cat": 1, "dog": 2}, r"classes=\{'cat': 1, 'dog': 2\} does not have each index from 0 to 1 once"),
        ({"cat": 0, "dog": 0}, "from 0 to 1 once"),
        ({"0": "cat", "1": "dog"}, "once, as an int"),
        ({"cat": 0.0, "dog": 1.0}, "once, as an int"),
        ({f"class {k}": k + 1 for k in range(1000)}, r"classes=.{,200}; give the class names as a list"),
    ],
)
def test_names_without_an_order_are_refused(classes, words):
    with pytest.raises(InputError, match=words):
        penalties.important_vector(classes, {"dog": 1.0})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: penalties.important_vector(NAMES, {"dgo": 1.0}), "'dgo' is not a class; did you mean 'dog'"),
        (lambda: penalties.important_vector(["a", "a"], {"a": 1.0}), "is the name of 2 classes"),
        (lambda: penalties.important_vector(4, {"dog": 1.0}), "no class names are known"),
        (lambda: penalties.important_vector(4, {4: 1.0}), "4 is not a class; give an index from 0 to 3"),
        (lambda: penalties.important_vector(4, {-1: 1.0}), "-1 is not a class"),
        (lambda: penalties.important_vector(4, {True: 1.0}), "True is not a class"),
        (lambda: penalties.important_vector(NAMES, {"dog": 1.0, 1: 2.0}), "given twice"),
        (lambda: penalties.important_vector(NAMES, {"dog": -1.0}), "strength -1.0 of class 'dog'"),
        (lambda: penalties.important_vector(NAMES, {"dog": math.nan}), "strength nan"),
        (lambda: penalties.ldam_margins([3, 0]), "positive count"),
        (lambda: penalties.ldam_margins([]), r"class_counts=\[\]"),
        (lambda: penalties.log_priors([3, math.inf]), "positive count"),
        (lambda: penalties.log_priors([[3, 4]]), "positive count"),
        (lambda: penalties.important_vector(np.int64(4), {"dog": 1.0}), "no class names are known"),
    ],
)
def test_wrong_input_is_refused_by_name_and_value(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_name_of_two_classes_is_not_suggested_for_itself():
    with pytest.raises(InputError, match=r"^important class 'stop' is the name of 2 classes; give its index$"):
        penalties.class_index("stop", ["stop", "stop", "go"])
    assert penalties.class_index(1, ["stop", "stop", "go"]) == 1
