"""Results beside what the paper prints, and how the results were made.

Source: Nishiyama, Fukuchi, Akimoto, Sakuma, "CAMRI Loss: Improving Recall of a Specific Class without Sacrificing
Accuracy", IJCNN 2022, Tables I and II (ten trials each, 300 epochs); CIFAR-10's accuracies with four decimals are from
the authors' poster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from camri.methods import title_of
from camri.report.results import Results
from camri.report.tables import ANGLES_OF, BLANK, Cell, Columns, Table, cells, gap_of, interval_of, spread, tabulate
from camri.study import recipes
from camri.study.reader import list_environment
from camri.text import points

# Table I's columns: data set, name, and class by name or index. The recipes are `paper.<data set>.<name>`.
COLUMNS = [(data, name, own) for data, columns in recipes.COLUMNS.items() for name, own in columns.items()]
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
NOT_RUN = "not run"


NO_IMAGES = {"awa2": "no images here"}  # AwA2's 13 GB cannot be had where the studies run
# Where a column's numbers come from, the best first: folders of results that may not exist yet.
SOURCES = {
    "cat": ("cat-300", "cifar10-winners", "cifar10-rows"),
    "dog": ("cifar10-winners", "cifar10-rows"),
    "airplane": ("cifar10-rows", "cifar10"),
    "gtsrb": ("gtsrb-rows", "gtsrb"),
}
CONCLUSIONS = {
    "cat": "Half of the paper’s gain at 18 epochs; a shift of cross-entropy gives more, at as little accuracy.",
    "dog": "At least the paper’s gain; a shift gives nearly as much.",
    "airplane": "Half of the paper’s gain; a shift gives more, at 0.3 points less accuracy.",
    "limit-80-end": "A gain that is not significant after correction; five real signs.",
    "no-passing-end": "Within chance; two real signs.",
    "limit-80": "Nothing to gain: recall is 0.99.",
    "awa2": "Unknown.",
}


def describe(training: Mapping[str, Any]) -> str:
    """A training in a few words.

    >>> describe({"model": "paper", "epochs": 18, "flip": True, "translate_px": 2, "average": 0.0})
    '18 epochs, flip, shift 2 px'
    """
    words = [f"{training['epochs']} epochs"]
    words += [f"{training['model']} model"] if training.get("model", "paper") != "paper" else []
    words += ["flip"] if training.get("flip") else []
    words += [f"shift {training['translate_px']} px"] if training.get("translate_px") else []
    words += [f"smoothing {training['label_smoothing']:g}"] if training.get("label_smoothing") else []
    words += [f"averaging {training['average']:g}"] if training.get("average") else []
    return ", ".join(words)


def hardware(run: Results) -> str:
    """The GPU, or else the processor and its cores."""
    found = run.verdict["environment"]
    return " / ".join(found["gpu"]) if "gpu" in found else list_environment(found, ("processor", "cores"))


def called(run: Results) -> str:
    """A results folder as it is called in the repository."""
    parts = run.folder.parts
    tops = [place for place, part in enumerate(parts) if part in ("results", "reproduce")]
    return "/".join(parts[tops[-1] :]) if tops else run.name


def plain_runs(results: Sequence[Results], place: int) -> Iterator[tuple[Results, int]]:
    """Results with the paper's model and data, and the number of their column that has that place in Table I."""
    data, _, own = COLUMNS[place]
    for run in results:
        training = run.verdict["training"]
        is_plain = training["model"] == "paper" and not training.get("model_options") and not run.verdict["altered"]
        changed = any(training.get(name) for name in ("flip", "translate_px", "label_smoothing", "average"))
        for number, column in enumerate(run.verdict["columns"]):
            is_same = column["indices"] == [own] or column["important"] == own
            if run.verdict["data"] == data and is_plain and not changed and is_same:
                yield run, number


def matching(results: Sequence[Results], place: int) -> Iterator[tuple[Results, int]]:
    """Results with the paper's model and data, and the number of their column that has that place in Table I.

    The paper's: the authors' CNN, no ensembles of it, no class thinned, whole images, with CAMRI among its methods.
    """
    data, _, own = COLUMNS[place]
    for run in results:
        training = run.verdict["training"]
        is_plain = training["model"] == "paper" and not training.get("model_options") and not run.verdict["altered"]
        has_camri = any(record["method"] == "camri" for record in run.verdict["gaps"])
        for number, column in enumerate(run.verdict["columns"]):
            is_same = column["indices"] == [own] or column["important"] == own
            if run.verdict["data"] == data and is_plain and has_camri and is_same:
                yield run, number


def status_of_table_one(results: Sequence[Results]) -> Table:
    """What was run of Table I: for each method and column the recall as trained, accuracy, seeds and epochs."""
    header = [f"{recipes.TITLES[data]}: {name}" for data, name, _ in COLUMNS]
    rows = []
    for method in TABLE_ONE:
        texts = [_status(results, place, method) for place in range(len(COLUMNS))]
        rows.append((Cell(title_of(method)), *texts))
    return Table(
        "What was run of Table I: recall as trained at its accuracy, seeds × epochs.",
        ("method", *header),
        (tuple(rows),),
        (),
        notes=(
            "Test data, authors’ CNN, no model shifted; the run with the most trials of the method. Bold: of its "
            "settings in that run one keeps cross-entropy’s mean accuracy, so by the paper’s rule the cell is not "
            f"blank. “{NOT_RUN}”: no trial in this column. The paper: ten seeds × 300 epochs.",
        ),
    )


def _status(results: Sequence[Results], place: int, method: str) -> Cell:
    data = COLUMNS[place][0]
    found = []
    for run, number in plain_runs(results, place):
        part = "paper" if method == "ce" else "gaps"
        own = _of(run, part, number, method)
        if own is not None and "recall_mean" in own:
            found.append((own["num_trials"], run.verdict["training"]["epochs"], run, number, own))
    if not found:
        return Cell(NO_IMAGES.get(data, NOT_RUN))
    num, epochs, run, number, own = max(found, key=lambda one: one[:2])
    longer = sorted({one[:2] for one in found if one[1] > epochs}, key=lambda one: one[1])
    also = "".join(f"; also {seeds} × {length}" for seeds, length in longer)
    counted = _of(run, "paper", number, method)
    kept = counted is not None and counted.get("setting") is not None
    return Cell(f"{own['recall_mean']:.3f} at {own['accuracy_mean']:.3f}, {num} × {epochs}{also}", bold=kept)


def beside_table_one(results: Sequence[Results]) -> Table:
    """Each column of Table I beside the paper: as trained, as the paper counts, honestly, and what to conclude."""
    rows = []
    for place, (data, name, _) in enumerate(COLUMNS):
        ce, camri = cell("ce", place), cell("camri", place)
        assert ce is not None
        assert camri is not None
        paper = f"{ce.recall:.3f} → {camri.recall:.3f} ({points(camri.recall - ce.recall)})"
        rank = {source: order for order, source in enumerate(SOURCES.get(name) or SOURCES.get(data, ()))}
        found = sorted(
            ((rank[run.name], run, number) for run, number in plain_runs(results, place) if run.name in rank),
            key=lambda one: one[0],
        )
        own = next(((run, n, gap) for _, run, n in found if (gap := _of(run, "gaps", n, "camri")) is not None), None)
        if own is None:
            why = NO_IMAGES.get(data, NOT_RUN)
            rows.append(cells(f"{recipes.TITLES[data]}: {name}", paper, why, *[BLANK] * 4, CONCLUSIONS["awa2"]))
            continue
        run, number, gap = own
        trained = f"{interval_of(gap, 'recall_change')} at {gap_of(gap, 'accuracy_change')} accuracy, {gap['setting']}"
        rows.append(
            cells(
                f"{recipes.TITLES[data]}: {name}",
                paper,
                trained,
                _gain(run, number),
                _over_shifted(_of(run, "honest", number, "camri")),
                f"{gap['num_trials']} × {run.verdict['training']['epochs']}",
                called(run),
                CONCLUSIONS[name],
            )
        )
    return Table(
        "Table I beside the paper: recall of the important class, CAMRI vs cross-entropy (CE).",
        (
            "column", "the paper: CE → CAMRI", "ours as trained: Δ recall at Δ accuracy", "as the paper counts",
            "honest: Δ recall, both shifted", "seeds × epochs", "from", "conclusion",
        ),
        (tuple(rows),),
        (),
        notes=(
            "Percentage points with 95 % intervals over seeds and test data. As the paper counts: blank (–) unless a "
            "setting’s mean accuracy is at least cross-entropy’s. Honest: chosen on validation data and shifted like "
            "cross-entropy. The paper: ten seeds × 300 epochs.",
        ),
    )  # fmt: skip


def compare_table_one(results: Sequence[Results]) -> Table:
    """For each column of Table I: CAMRI's gain over cross-entropy in the paper and here, as it counts and honestly."""
    rows = []
    for place, (data, name, _) in enumerate(COLUMNS):
        ce, camri = cell("ce", place), cell("camri", place)
        assert ce is not None
        assert camri is not None
        paper = f"{ce.recall:.3f} → {camri.recall:.3f} ({points(camri.recall - ce.recall)})"
        found = list(matching(results, place))
        for run, number in found:
            honest, verdict = _of(run, "honest", number, "camri"), run.verdict
            ours = (
                _gain(run, number),
                _over_shifted(honest),
                BLANK if honest is None else interval_of(honest, "accuracy_change"),
                str(len(verdict["seeds"]) if honest is None else honest["num_trials"]),
                f"{describe(verdict['training'])}; {hardware(run)}; {verdict['commit'] or 'not noted'}",
                called(run),
            )
            rows.append(cells(f"{recipes.TITLES[data]}: {name}", paper, *ours))
        if not found:
            command = f"camri study run paper.{data}.{name} --out runs/{name}"
            rows.append(cells(f"{recipes.TITLES[data]}: {name}", paper, NOT_YET, *[BLANK] * 4, command))
    return Table(
        "Table I: recall of the important class, cross-entropy (CE) → CAMRI (Δ in percentage points).",
        (
            "column", "the paper", "here, as the paper counts", "here, honest: Δ recall, CAMRI + shift vs CE + shift",
            "Δ accuracy vs CE", "trials", "training; hardware; commit", "from",
        ),
        (tuple(rows),),
        (),
        notes=(
            "As the paper counts: of the settings whose mean test accuracy is not below cross-entropy’s, the one with "
            "the highest test recall. Honest: chosen on validation data, shifted like cross-entropy, judged on test "
            "data; percentage points with 95 % confidence intervals.",
        ),
    )  # fmt: skip


def _of(run: Results, part: str, number: int, method: str) -> Any:
    return next((r for r in run.records(part) if r["column"] == number and r.get("method") == method), None)


def _over_shifted(honest: Mapping[str, Any] | None) -> str:
    if honest is None:
        return BLANK
    is_kept = honest["gain_over_shifted_ce"] is None
    return "none: not better on validation" if is_kept else interval_of(honest, "gain_over_shifted_ce")


def _gain(run: Results, number: int) -> str:
    ce, camri = (_of(run, "paper", number, method) for method in ("ce", "camri"))
    if ce is None or camri is None:
        return BLANK
    if camri["setting"] is None:
        return f"{ce['recall_mean']:.3f} → {BLANK} (no setting kept the accuracy)"
    gained = points(camri["recall_mean"] - ce["recall_mean"])
    return f"{ce['recall_mean']:.3f} → {camri['recall_mean']:.3f} ({gained}), {camri['setting']}"


def compare_table_two(results: Sequence[Results]) -> Table:
    """For CIFAR-10's columns: the sd of the important class's angles over the least of the others, there and here."""
    rows = []
    for place, (data, name, _) in enumerate(COLUMNS):
        if name not in TABLE_TWO:
            continue
        paper = [_ratio(TABLE_TWO[name][method]) for method in ("camri", "ce")]
        found = list(matching(results, place))
        for run, number in found:
            own = [r for r in run.records("angles") if r["column"] == number]
            titles = map(title_of, ("camri", "l2softmax", "ce"))
            ours = [_ratio([r["sd_rad"] for r in own if r["method"] == title]) for title in titles]
            where = (ANGLES_OF[own[0]["images"]] if own else BLANK, called(run))
            rows.append(cells(f"{recipes.TITLES[data]}: {name}", *paper, *ours, *where))
        if not found:
            rows.append(cells(f"{recipes.TITLES[data]}: {name}", *paper, *[NOT_YET] * 3, BLANK, BLANK))
    return Table(
        "Table II: the important class’s spread of angles over the least of the others (below 1: the narrowest).",
        (
            "column", "the paper: CAMRI", "the paper: cross-entropy", "here: CAMRI", "here: L2-softmax",
            "here: cross-entropy", "here, of", "from",
        ),
        (tuple(rows),),
        (),
    )  # fmt: skip


def _ratio(three: Sequence[float | None]) -> str:
    """The first over the second, where both are known.

    >>> _ratio([0.1, 0.2, 0.3]), _ratio([0.1, None, None]), _ratio([])
    ('0.50', '–', '–')
    """
    own, least = (*three[:2], *[None] * 2)[:2]
    return BLANK if own is None or least is None else f"{own / least:.2f}"


def headline(results: Sequence[Results]) -> Table:
    """The comparison in short: cross-entropy, cross-entropy with a shift, and CAMRI, one row per column."""
    records = []
    for run in results:
        for number, column in enumerate(run.verdict["columns"]):
            by_row = {record["row"]: record for record in run.records("honest") if record["column"] == number}
            camri, ce, shifted = (
                by_row.get(row)
                for row in (title_of("camri"), "control: cross-entropy", "control: cross-entropy, shifted")
            )
            if camri is not None and ce is not None and shifted is not None:
                data = recipes.TITLES.get(run.verdict["data"], run.verdict["data"])
                arms = {"ce": ce, "shifted": shifted, "camri": camri, "gap": _of(run, "gaps", number, "camri")}
                records.append({"class": f"{data}: {column['important']}", **arms})

    def recall(name: str) -> Any:
        return lambda row: (row[name] and f"{spread(row[name], 'recall')} at {row[name]['accuracy_mean']:.3f}") or BLANK

    columns: Columns = {
        "important class": lambda row: row["class"],
        "cross-entropy (CE)": recall("ce"),
        "CE + shift": recall("shifted"),
        "CAMRI": recall("gap"),
        "Δ recall, CAMRI + shift vs CE + shift": lambda row: _over_shifted(row["camri"]),
        "Δ accuracy at equal recall, CAMRI vs CE": lambda row: gap_of(row["gap"], "mean") if row["gap"] else BLANK,
        "trials": lambda row: str(row["camri"]["num_trials"]),
    }
    return tabulate(
        records,
        "Recall of the important class at the accuracy reached, on test data. Settings are fixed beforehand or chosen "
        "on validation data, as shifts are. Δ: percentage points with 95 % confidence intervals, over the seeds that "
        "both sides have.",
        columns,
    )


def facts_table(results: Sequence[Results]) -> Table:
    """How results were made: data, training, trials, time, hardware, versions, commit, and the way to repeat them."""

    def trials(run: Results) -> str:
        counts, screening = run.verdict["trials"], run.verdict["screening"]
        left = (counts["planned"] or 0) - counts["done"] - counts["failed"]
        parts = [str(counts["done"])]
        parts += [f"{counts['failed']} failed"] if counts["failed"] else []
        parts += [f"{left} not run"] if left > 0 else []
        return ", ".join(parts) + (f"; screened by {screening['trials']['done']} more" if screening else "")

    def device_time(run: Results) -> str:
        parts = [run.verdict, *([run.verdict["screening"]] if run.verdict["screening"] else [])]
        return str(timedelta(seconds=round(sum(part["device_s"] for part in parts))))

    columns: Columns = {
        "results": lambda run: run.name,
        "data": lambda run: "; ".join([f"{run.verdict['data']} {run.verdict['fingerprint'][:12]}", *_altered(run)]),
        "training": lambda run: describe(run.verdict["training"]),
        "trials": trials,
        "device time": device_time,
        "hardware": hardware,
        "versions": lambda run: list_environment(run.verdict["environment"], ("torch", "cuda", "python")),
        "commit": lambda run: run.verdict["commit"] or "not noted",
        "to repeat it": lambda run: f"camri study run {called(run)}/study.json --out runs/{run.name}",
    }
    return tabulate(results, "How the results were made.", columns)


def _altered(run: Results) -> list[str]:
    changes = run.verdict["altered"]
    words = [f"{name} thinned to {100 * part:g} % in training" for name, part in changes.get("thinned", {}).items()]
    words += [f"size {' × '.join(map(str, changes['size']))}"] if "size" in changes else []
    return words + (["cropped to the sign"] if "roi" in changes else [])
