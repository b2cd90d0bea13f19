"""Important classes: from the names in a study to class indices."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from camri.errors import InputError, closest
from camri.study.spec import SYMBOLS, Column, Grid, Point, Resolved, Study
from camri.study.store import Run, all_but_first

Pair = Sequence[str | int | float]  # a class and its strength


def resolve(study: Study, classes: Sequence[str], found: Mapping[str, int] | None = None) -> list[Resolved] | None:
    """Class indices and strengths of every column; None while "worst", "second" or "median" is not in `found`.

    Digits that are no class name are an index. A name that is no class is refused.
    """
    columns = [resolve_column(column, classes, found) for column in study.important]
    first: dict[Resolved, int] = {}
    for number, column in enumerate(study.important):
        # "worst" may turn out to be a class that has a column already; both are kept.
        if not set(column.classes) & set(SYMBOLS) and first.setdefault(tuple(sorted(columns[number])), number) < number:
            raise _refusal(f"{list(column.classes)} is a column twice; give each once")
    return None if study.symbols - set(found or {}) else columns


def place_into(run: Run, study: Study) -> Study:
    """The study with the run's columns instead of its own; refused if the run lacks one of its columns.

    Settings that depend on important classes are placed in the columns that the study has; the others, which serve all
    columns alike, in every one.
    """
    if [study.to_json()["important"], study.important_from] == run.asked:
        return study
    asked, split = run.asked
    found = [one.resolved for one in run.columns()]
    own: list[list[int]] = [[] for _ in asked]  # the study's columns that are the run's column of this place
    for number, column in enumerate(study.important):
        is_sought = bool(set(column.classes) & set(SYMBOLS))
        named = zip(column.classes, column.strengths, strict=True)
        by_name = [] if is_sought and study.important_from != split else _places(named, asked)
        by_index = _places(resolve_column(column, run.classes), found)
        if not by_name and not by_index:
            raise _not_there(run, study)
        for place in {*by_name, *by_index}:
            own[place].append(number)
    return study.with_(
        important=[Column(*zip(*column, strict=True)) for column in asked],
        important_from=split,
        methods=[Grid.at(grid.method, [_points(grid, numbers, study) for numbers in own]) for grid in study.methods],
    )


def _places(wanted: Iterable[Pair], columns: Sequence[Iterable[Pair]]) -> list[int]:
    pairs = set(map(tuple, wanted))
    return [place for place, column in enumerate(columns) if set(map(tuple, column)) == pairs]


def _points(grid: Grid, numbers: Sequence[int], study: Study) -> list[Point]:
    served = numbers or ([] if grid.per_column else range(len(study.important)))
    return list(dict.fromkeys(point for number in served for point in grid.tried(number)))


def _not_there(run: Run, study: Study) -> InputError:
    here, asked = run.asked, f"{', '.join(map(str, study.important))} from {study.important_from}"
    theirs = f"{', '.join(str(Column(*zip(*column, strict=True))) for column in here[0])} from {here[1]}"
    if not run.columns():
        why = f"its important classes ({theirs}) are not known until its cross-entropy trials end"
        return InputError(f"{run.path}: {why}; run a study of {asked} into it after that, or choose another folder")
    why = f"holds a study of other important classes ({theirs}, and not {asked})"
    return InputError(f"{run.path} {why}; choose another folder, or some of its columns")


def name_column(column: Resolved, classes: Sequence[str]) -> Column:
    """The column by its classes' names; by index if a name would mean something else.

    >>> name_column(((1, 1.0), (0, 0.5)), ["worst", "cat"])
    Column(classes=('cat', 0), strengths=(1.0, 0.5))
    """

    def name(index: int) -> str | int:
        found = classes[index]
        return found if found not in SYMBOLS and list(classes).index(found) == index else index

    return Column(tuple(name(index) for index, _ in column), tuple(strength for _, strength in column))


def resolve_column(column: Column, classes: Sequence[str], found: Mapping[str, int] | None = None) -> Resolved:
    """Class indices and strengths of a column; "worst", "second" and "median" are -1 unless they are in `found`."""
    indices: dict[int, float] = {}
    named: dict[int, str | int] = {}
    for name, strength in zip(column.classes, column.strengths, strict=True):
        if name in SYMBOLS:
            index = (found or {}).get(str(name), -1)
        elif isinstance(name, int):
            if not 0 <= name < len(classes):
                raise _refusal(f"{name} is not a class; there are {len(classes)}, 0 to {len(classes) - 1}")
            index = name
        elif name in classes:
            index = list(classes).index(name)
        elif name.isdecimal() and int(name) < len(classes):
            index = int(name)
        else:
            raise _refusal(f"{name!r} is not a class; {closest(name, [*classes, *SYMBOLS])}")
        if name not in SYMBOLS and named.setdefault(index, name) != name:
            raise _refusal(f"{named[index]!r} and {name!r} are the same class; give it once")
        indices.setdefault(index, strength)  # "worst" may turn out to be a class that is named beside it
    return tuple(indices.items())


def _refusal(problem: str) -> InputError:
    return InputError(f"important={problem}", argument="important")


def rank_classes(recalls: Sequence[Sequence[float]]) -> dict[str, int]:
    """The classes with the worst, second worst and median mean recall over several trials.

    Ties go to the lower index. With an even number of classes the median is the lower middle one, which makes airplane
    the median of CIFAR-10, as in the paper. Classes without images are left out.

    >>> rank_classes([[0.9, 0.7, 0.8, 1.0]])
    {'worst': 1, 'second': 2, 'median': 2}
    """
    means = np.mean(np.array(recalls, dtype=np.float64), axis=0)
    order = [int(index) for index in np.argsort(means, kind="stable") if np.isfinite(means[index])]
    if len(order) < 2:
        raise InputError("fewer than two classes have data to rank by recall; name the important classes")
    return {"worst": order[0], "second": order[1], "median": order[(len(order) - 1) // 2]}


def kept_classes(columns: Sequence[Resolved], num_classes: int) -> tuple[int, ...]:
    """The classes whose scores outcomes keep: those of all columns."""
    union = sorted({index for column in columns for index, _ in column})
    return tuple(union) if len(union) < num_classes else all_but_first(num_classes)
