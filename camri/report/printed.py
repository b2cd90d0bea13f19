"""What the paper prints, to stand beside what is measured here.

Source: Nishiyama, Fukuchi, Akimoto, Sakuma, "CAMRI Loss: Improving Recall of a Specific Class without Sacrificing
Accuracy", IJCNN 2022, Tables I and II (ten trials each, 300 epochs); CIFAR-10's accuracies with four decimals are from
the authors' poster.
"""

from dataclasses import dataclass

# Table I's columns: data set, class, and its index there. The recipes are `paper.<data set>.<class>`.
COLUMNS = (
    ("cifar10", "cat", 3), ("cifar10", "dog", 5), ("cifar10", "airplane", 0),
    ("gtsrb", "limit-80-end", 6), ("gtsrb", "no-passing-end", 41), ("gtsrb", "limit-80", 5),
    ("awa2", "mouse", None), ("awa2", "beaver", None), ("awa2", "moose", None),
)  # fmt: skip
DATA_TITLES = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "awa2": "AwA2"}
# Recall and its sd in thousandths, then accuracy and its sd, column by column; "-": a blank cell. Printed, ArcFace's
# accuracy on dog (.878, by the poster .8797) is below cross-entropy's, and its cell would be blank.
TABLE_ONE = {
    "camri": (
        "792 027 850 019 917 018 835 033 960 035 995 002 129 046 238 053 645 053",
        ".8821 .004 .8821 .001 .8798 .002 .980 .002 .984 .003 .981 .001 .667 .013 .663 .014 .655 .025",
    ),
    "arcface": (
        "765 040 842 031 910 028 808 038 941 070 993 002 101 061 187 052 612 046",
        ".8805 .004 .8797 .006 .8805 .004 .980 .003 .982 .002 .981 .003 .671 .008 .666 .009 .676 .008",
    ),
    "wasserstein": (" ".join(["-"] * 18), " ".join(["-"] * 18)),
    "crwwce": ("- - - - - - 796 030 923 047 - - - - - - - -", "- - - - - - .980 .002 .980 .004 - - - - - - - -"),
    "wce": (
        "802 034 - - - - 829 038 945 038 - - - - - - - -",
        ".8797 .002 - - - - .980 .002 .981 .004 - - - - - - - -",
    ),
    "ce": (
        "738 041 834 030 888 022 760 049 870 097 989 003 118 051 145 045 559 066",
        " ".join([".8796 .005"] * 3 + [".980 .002"] * 3 + [".651 .013"] * 3),
    ),
}
# Table II, CIFAR-10: sd in radians of the important class, the least and the median of the others.
TABLE_TWO = {
    "cat": {"camri": (0.0695, 0.0948, 0.1143), "ce": (0.0842, 0.0570, 0.0806)},
    "dog": {"camri": (0.0717, 0.0919, 0.1116), "ce": (0.0815, 0.0570, 0.0806)},
    "airplane": {"camri": (0.0367, 0.0439, 0.0558), "ce": (0.0806, 0.0570, 0.0815)},
}


@dataclass(frozen=True)
class Printed:
    """A cell of Table I: means and standard deviations."""

    recall: float
    recall_sd: float
    accuracy: float
    accuracy_sd: float


def cell(method: str, place: int) -> Printed | None:
    """A method's cell in the column of that place in `COLUMNS`; None where it is blank.

    >>> cell("camri", 0)
    Printed(recall=0.792, recall_sd=0.027, accuracy=0.8821, accuracy_sd=0.004)
    >>> cell("wce", 1) is None
    True
    """
    recall, accuracy = (text.split()[2 * place : 2 * place + 2] for text in TABLE_ONE[method])
    if recall[0] == "-":
        return None
    return Printed(int(recall[0]) / 1000, int(recall[1]) / 1000, float(accuracy[0]), float(accuracy[1]))
