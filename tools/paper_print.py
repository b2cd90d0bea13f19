"""What the paper prints, to stand beside what is measured here.

Source: Nishiyama, Fukuchi, Akimoto, Sakuma, "CAMRI Loss: Improving Recall of a Specific Class without Sacrificing
Accuracy", IJCNN 2022, Tables I and II (ten trials each, 300 epochs); CIFAR-10's accuracies with four decimals are from
the authors' poster.

Results beside what the paper prints, and how they were made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from camri.methods import title_of
from camri.report.equal_recall import gap_of
from camri.report.results import Results
from camri.report.table import BLANK, Table, cells, interval_of, points, spread
from camri.report.tables import ANGLES_OF
from camri.study.reader import list_environment

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


NOT_YET = "not run yet"


def describe(training: Mapping[str, Any]) -> str:
    """A training in a few words.

    >>> describe({"model": "paper", "epochs": 18, "flip": True, "translate_px": 2, "average": 0.0})
    '18 epochs, flip, shift 2 px'
    """
    told = [f"{training['epochs']} epochs"]
    told += [f"{training['model']} model"] if training.get("model", "paper") != "paper" else []
    told += ["flip"] if training.get("flip") else []
    told += [f"shift {training['translate_px']} px"] if training.get("translate_px") else []
    told += [f"smoothing {training['label_smoothing']:g}"] if training.get("label_smoothing") else []
    told += [f"averaging {training['average']:g}"] if training.get("average") else []
    return ", ".join(told)


def hardware(one: Results) -> str:
    """The GPU, or else the processor and its cores."""
    found = one.verdict["environment"]
    if "gpu" in found:
        return " / ".join(found["gpu"])
    return list_environment(found, ("processor", "cores"))


def matching(results: Sequence[Results], place: int) -> Iterator[tuple[Results, int]]:
    """Results with the paper's model and data, and the number of their column that has that place in Table I."""
    data, name, index = COLUMNS[place]
    for one in results:
        if one.verdict["data"] == data and _is_the_papers(one):
            for number, column in enumerate(one.verdict["columns"]):
                if column["indices"] == [index] or column["important"] == name:
                    yield one, number


def _is_the_papers(one: Results) -> bool:
    """Whether model and data are the paper's: the authors' CNN, no ensembles of it, no class thinned, whole images."""
    training = one.verdict["training"]
    plain = training["model"] == "paper" and not training.get("model_options")
    return plain and not one.verdict["altered"]


def compare_table_one(results: Sequence[Results]) -> Table:
    """For each column of Table I: CAMRI's gain over cross-entropy in the paper and here, as it counts and honestly."""
    rows, records = [], []
    for place, (data, name, _) in enumerate(COLUMNS):
        ce, camri = cell("ce", place), cell("camri", place)
        assert ce is not None
        assert camri is not None
        title = f"{DATA_TITLES[data]}: {name}"
        theirs = f"{ce.recall:.3f} → {camri.recall:.3f} ({points(camri.recall - ce.recall)})"
        found = list(matching(results, place))
        for one, number in found:
            ours, honest = _gain(one, number), _of(one, "honest", number, "camri")
            rows.append(
                cells(
                    title,
                    theirs,
                    BLANK if ours is None else ours,
                    _over_shifted(honest),
                    BLANK if honest is None else interval_of(honest, "accuracy_change"),
                    str(len(one.verdict["seeds"]) if honest is None else honest["num_trials"]),
                    f"{describe(one.verdict['training'])}; {hardware(one)}; {one.verdict['commit'] or 'not noted'}",
                    f"results/{one.name}",
                )
            )
            records.append({"data": data, "class": name, "results": one.name, "gain": ours})
        if not found:
            blanks = [NOT_YET, BLANK, BLANK, BLANK, BLANK]
            rows.append(cells(title, theirs, *blanks, f"camri study run paper.{data}.{name} --out runs/{name}"))
            records.append({"data": data, "class": name, "results": None, "gain": None})
    return Table(
        "Table I: recall of the important class, cross-entropy → CAMRI (points gained).",
        (
            "column", "the paper", "here, as the paper counts", "here, honest: CAMRI over shifted cross-entropy",
            "its accuracy against cross-entropy", "trials", "training; hardware; commit", "from",
        ),
        (tuple(rows),),
        tuple(records),
        notes=(
            "As the paper counts: of the settings whose mean test accuracy is not below cross-entropy’s, the one of "
            "the highest test recall. Honest: chosen on validation data, shifted like cross-entropy, judged on test "
            "data; in points of a hundred with 95 % intervals.",
        ),
    )  # fmt: skip


def _of(one: Results, part: str, number: int, method: str) -> Any:
    return next((r for r in one.records(part) if r["column"] == number and r.get("method") == method), None)


def _over_shifted(honest: Mapping[str, Any] | None) -> str:
    if honest is None:
        return BLANK
    is_kept = honest["gain_over_shifted_ce"] is None
    return "none: it was not better on validation" if is_kept else interval_of(honest, "gain_over_shifted_ce")


def _gain(one: Results, number: int) -> str | None:
    ce, camri = (_of(one, "paper", number, method) for method in ("ce", "camri"))
    if ce is None or camri is None:
        return None
    if camri["setting"] is None:
        return f"{ce['recall_mean']:.3f} → {BLANK} (no setting kept the accuracy)"
    gained = points(camri["recall_mean"] - ce["recall_mean"])
    return f"{ce['recall_mean']:.3f} → {camri['recall_mean']:.3f} ({gained}), {camri['setting']}"


def compare_table_two(results: Sequence[Results]) -> Table:
    """For CIFAR-10's columns: the sd of the important class's angles over the least of the others, there and here."""
    rows, records = [], []
    for place, (data, name, _) in enumerate(COLUMNS):
        if name not in TABLE_TWO:
            continue
        theirs = [_ratio(TABLE_TWO[name][method]) for method in ("camri", "ce")]
        found = list(matching(results, place))
        for one, number in found:
            own = [r for r in one.records("angles") if r["column"] == number]
            three = {m: [r["sd_rad"] for r in own if r["method"] == title_of(m)] for m in ("camri", "l2softmax", "ce")}
            ours = [BLANK if None in values[:2] or not values else _ratio(values) for values in three.values()]
            where = (ANGLES_OF[own[0]["images"]] if own else BLANK, f"results/{one.name}")
            rows.append(cells(f"{DATA_TITLES[data]}: {name}", *theirs, *ours, *where))
            records.append({"class": name, "results": one.name, **three})
        if not found:
            rows.append(cells(f"{DATA_TITLES[data]}: {name}", *theirs, NOT_YET, NOT_YET, NOT_YET, BLANK, BLANK))
    return Table(
        "Table II: the important class’s spread of angles over the least of the others (below 1: the narrowest).",
        (
            "column", "the paper: CAMRI", "the paper: cross-entropy", "here: CAMRI", "here: L2-softmax",
            "here: cross-entropy", "here, of", "from",
        ),
        (tuple(rows),),
        tuple(records),
    )  # fmt: skip


def _ratio(three: Sequence[float]) -> str:
    return f"{three[0] / three[1]:.2f}"


def headline(results: Sequence[Results]) -> Table:
    """What to believe, in short: cross-entropy, cross-entropy shifted and CAMRI, a row a column."""
    rows, records = [], []
    for one in results:
        honest = one.records("honest")
        for number, column in enumerate(one.verdict["columns"]):
            by_row = {record["row"]: record for record in honest if record["column"] == number}
            camri = by_row.get(title_of("camri"))
            controls = [by_row.get(f"control: cross-entropy{end}") for end in ("", ", shifted")]
            if camri is None or None in controls:
                continue
            gap = _of(one, "gaps", number, "camri")
            shown = [
                BLANK if r is None else f"{spread(r, 'recall')} at {r['accuracy_mean']:.3f}" for r in (*controls, gap)
            ]
            title = f"{DATA_TITLES.get(one.verdict['data'], one.verdict['data'])}: {column['important']}"
            rows.append(
                cells(
                    title,
                    *shown,
                    _over_shifted(camri),
                    BLANK if gap is None else gap_of(gap, "mean"),
                    str(camri["num_trials"]),
                )
            )
            records.append({"results": one.name, "important": column["important"], **camri})
    return Table(
        "Recall of the important class at the accuracy reached, on test data; settings fixed beforehand or chosen on "
        "validation data, as shifts are; differences in points of a hundred with 95 % intervals, over the seeds that "
        "both sides have.",
        (
            "important class",
            "cross-entropy",
            "cross-entropy, shifted",
            "CAMRI",
            "recall: CAMRI, shifted too, over cross-entropy, shifted",
            "accuracy at equal recall: CAMRI over cross-entropy",
            "trials",
        ),
        (tuple(rows),),
        tuple(records),
    )


def facts_table(results: Sequence[Results]) -> Table:
    """How results were made: data, training, trials, time, hardware, versions, commit, and the way to repeat them."""
    rows = []
    for one in results:
        found = one.verdict
        trials, screening = found["trials"], found["screening"]
        failed = f", {trials['failed']} failed" if trials["failed"] else ""
        left = (trials["planned"] or 0) - trials["done"] - trials["failed"]
        screened = f"; screened by {screening['trials']['done']} more" if screening else ""
        seconds = found["device_s"] + (screening["device_s"] if screening else 0.0)
        rows.append(
            cells(
                one.name,
                f"{found['data']} {found['fingerprint'][:12]}{_how_altered(found)}",
                describe(found["training"]),
                f"{trials['done']}{failed}{f', {left} to come' if left > 0 else ''}{screened}",
                str(timedelta(seconds=round(seconds))),
                hardware(one),
                list_environment(found["environment"], ("torch", "cuda", "python")),
                found["commit"] or "not noted",
                f"camri study run results/{one.name}/study.json --out runs/{one.name}",
            )
        )
    return Table(
        "How the results were made.",
        ("results", "data", "training", "trials", "device time", "hardware", "versions", "commit", "to repeat it"),
        (tuple(rows),),
        tuple({"results": one.name} for one in results),
    )


def _how_altered(found: Mapping[str, Any]) -> str:
    told = found["altered"]
    words = [f"{name} thinned to {100 * part:g} % in training" for name, part in told.get("thinned", {}).items()]
    words += [f"size {' × '.join(map(str, told['size']))}"] if "size" in told else []
    words += ["cropped to the sign"] if "roi" in told else []
    return "".join(f"; {word}" for word in words)
