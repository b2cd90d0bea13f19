"""Rebuild tables.md and figures.json from the packed scores.

    python reproduce/two-sided/tables.py

False alarms: images of other classes that are predicted as the class, at nine recalls from cross-entropy's own to half
way to 1, both sides with a threshold on the class's probability. Changes are relative to cross-entropy's mean, which is
taken as known; intervals are 95 %, over seeds and images, jointly for all classes. With one seed they are over classes.
"""

import io
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camri.decision.scores import Scores
from camri.decision.stats import compare, holm
from camri.selection import _outcomes_at

HERE = Path(__file__).parent
COMBINED = "two_sided_logits m=1 w=0.5 g=2"
RUNS = {  # run -> what it is
    "classes": "CIFAR-10, ten classes; small CNN (width 16), tuned training",
    "half": "CIFAR-10, three classes; width 8",
    "double": "CIFAR-10, three classes; width 32",
    "gtsrb": "GTSRB, ten most frequent and ten rarest signs; small CNN, tuned training",
    "animals": "Tiny ImageNet, 59 animals, 32 × 32; small CNN, training not tuned",
    "authors": "CIFAR-10, three classes; authors' CNN",
}
NAMES = {
    COMBINED: "m = 1, w = 0.5, g = 2",
    "two_sided_logits m=1": "m = 1 alone",
    "two_sided_logits m=0 g=2": "g = 2 alone",
    "two_sided_logits m=1 w=0.5": "m = 1, w = 0.5",
    "two_sided_logits m=1 g=2": "m = 1, g = 2",
}
DRAWS = 10_000


@dataclass
class Packed:
    """A packed run: records with, for each, log-odds, rest_right and predictions of all images."""

    facts: dict[str, Any]
    records: list[dict[str, Any]]
    labels: np.ndarray
    odds: np.ndarray
    right: np.ndarray
    argmax: np.ndarray

    def rows(self, column: str, setting: str) -> dict[int, int]:
        """Seed -> row."""
        found = enumerate(self.records)
        return {one["seed"]: at for at, one in found if (one["column"], one["setting"]) == (column, setting)}

    def scores(self, row: int) -> Scores:
        num, record = len(self.labels), self.records[row]
        return Scores(
            labels=self.labels.astype(np.int64),
            important=(record["index"],),
            lead=self.odds[row][:, None],
            rest_right=np.unpackbits(self.right[row], count=num).astype(bool),
            rest_spread=np.zeros(num, np.float16),
        )


def read(name: str) -> Packed:
    with np.load(io.BytesIO(lzma.decompress((HERE / "scores" / f"{name}.npz.xz").read_bytes()))) as file:
        arrays = {key: file[key] for key in file.files}
    facts, *records = json.loads(str(arrays.pop("records")))
    return Packed(facts, records, **arrays)


def columns_of(run: Packed, setting: str) -> list[str]:
    return list(dict.fromkeys(one["column"] for one in run.records if one["setting"] == setting))


def outcomes(run: Packed, column: str, setting: str, figure: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arm's and cross-entropy's figure (S, N), mean over recalls, and what else an image changes (S, N)."""
    mine, its = run.rows(column, setting), run.rows(column, "ce")
    low, high, num = run.records[next(iter(its.values()))]["recalls"]
    grid, sides = np.linspace(low, high, num), []
    for rows in (mine, its):
        found = [_outcomes_at(run.scores(rows[seed]), grid, figure) for seed in sorted(mine.keys() & its.keys())]
        sides.append([np.array([one[part].mean(axis=0) for one in found]) for part in (0, 1)])
    return sides[0][0], sides[1][0], sides[0][1] - sides[1][1]


def spread(found: Any, scale: float = 100.0) -> dict[str, float]:
    return {"change": scale * found.value, "low": scale * found.low, "high": scale * found.high, "p": found.p}


def over_seeds(parts: Sequence[Sequence[np.ndarray]], scales: Sequence[float]) -> dict[str, float]:
    """The mean over classes of (arm − cross-entropy) / scale, with its interval over seeds and images."""
    seeds = min(len(part[0]) for part in parts)
    tables = [[array[:seeds] / scale for array in part] for part, scale in zip(parts, scales, strict=True)]
    mine, its, besides = (np.mean([table[place] for table in tables], axis=0) for place in range(3))
    return spread(compare(mine, its, besides=besides, seed=0))


def over_classes(changes: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """The mean of changes (K,) with these weights and an interval from drawing classes; p from a sign-flip test."""
    rng, num = np.random.default_rng(0), len(changes)
    drawn = rng.integers(num, size=(DRAWS, num))
    means = (changes * weights)[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
    value = float(np.sum(changes * weights) / weights.sum())
    signs = rng.choice([-1.0, 1.0], size=(DRAWS, num))
    p = (1 + np.sum(np.abs((signs * changes * weights).sum(axis=1)) >= abs(np.sum(changes * weights)))) / (DRAWS + 1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"change": 100 * value, "low": 100 * float(low), "high": 100 * float(high), "p": float(p)}


def judge(run: Packed, setting: str) -> dict[str, Any]:
    """False alarms and accuracy of a setting against cross-entropy: each class, the mean over classes, pooled."""
    columns = columns_of(run, setting)
    alarms, accuracy = (
        {column: outcomes(run, column, setting, figure) for column in columns} for figure in ("alarms", "accuracy")
    )
    base = {column: float(alarms[column][1].mean()) for column in columns}
    seeds = {column: len(alarms[column][0]) for column in columns}
    found: dict[str, Any] = {"setting": setting, "classes": len(columns), "seeds": sorted(set(seeds.values()))}
    found["by_class"] = [
        {"class": column, "seeds": seeds[column], "of": 100 * base[column]}
        | {name: spread(compare(part[0] / scale, part[1] / scale, besides=part[2] / scale, seed=0))
           for name, part, scale in (("alarms", alarms[column], base[column]), ("accuracy", accuracy[column], 1.0))}
        for column in columns if base[column] > 0
    ]  # fmt: skip
    if min(seeds.values()) > 1:
        found["alarms"] = over_seeds(list(alarms.values()), list(base.values()))
        whole = float(np.mean(list(base.values())))
        found["pooled"] = over_seeds(list(alarms.values()), [whole] * len(columns))
        found["accuracy"] = over_seeds(list(accuracy.values()), [1.0] * len(columns))
        return found
    change = {name: np.array([float((part[0] - part[1]).mean()) for part in parts.values()])
              for name, parts in (("alarms", alarms), ("accuracy", accuracy))}  # fmt: skip
    scale = np.array(list(base.values()))
    found["pooled"] = over_classes(np.divide(change["alarms"], scale, where=scale > 0, out=np.zeros_like(scale)), scale)
    found["accuracy"] = over_classes(change["accuracy"], np.ones(len(columns)))
    return found


def argmax_table(run: Packed) -> dict[str, Any]:
    """Argmax of cross-entropy, of the combination as trained, and with its bias settled: means over classes."""
    columns = columns_of(run, COMBINED)
    seeds = sorted(run.rows(columns[0], "ce"))

    def table(of: Callable[[np.ndarray, np.ndarray], np.ndarray], setting: str, place: int) -> np.ndarray:
        found = []
        for column in columns:
            rows, own = run.rows(column, setting), run.labels == run.records[run.rows(column, "ce")[seeds[0]]]["index"]
            found.append([of(run.argmax[rows[seed], place], own) for seed in seeds])
        return np.mean(found, axis=0)

    figures: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "recall": lambda said, own: (said == 2) * own / own.mean(),
        "false alarms": lambda said, own: 1.0 * (said == 2) * ~own,
        "accuracy": lambda said, own: np.where(own, said == 2, said == 1) * 1.0,
    }
    sides = {"cross-entropy": ("ce", 0), "as trained": (COMBINED, 0), "bias settled": (COMBINED, 1)}
    result: dict[str, Any] = {}
    for figure, of in figures.items():
        tables = {name: table(of, *side) for name, side in sides.items()}
        result[figure] = {name: 100 * float(found.mean()) for name, found in tables.items()}
        for name in ("as trained", "bias settled"):
            result[figure][f"{name}, change"] = spread(compare(tables[name], tables["cross-entropy"], seed=0))
    return result


def sweep_table(run: Packed) -> list[dict[str, Any]]:
    """Every setting of the sweep against cross-entropy on validation data, the fewest false alarms first."""
    (column,) = {one["column"] for one in run.records}
    found = []
    for setting in dict.fromkeys(one["setting"] for one in run.records if one["setting"] != "ce"):
        alarms, accuracy = (outcomes(run, column, setting, figure) for figure in ("alarms", "accuracy"))
        base = float(alarms[1].mean())
        knobs = dict(word.split("=") for word in setting.split()[1:])
        found.append(
            {name: float(knobs.get(name, 0)) for name in "mwg"}
            | {"alarms": 100 * float((alarms[0] - alarms[1]).mean()) / base}
            | {"accuracy": 100 * float((accuracy[0] - accuracy[1]).mean()), "seeds": len(alarms[0])}
        )
    return sorted(found, key=lambda one: one["alarms"])


def span(found: dict[str, float], decimals: int, unit: str = "") -> str:
    """A change with its interval, as Markdown."""

    def text(value: float) -> str:
        return f"{value:+.{decimals}f}".replace("-", "−")

    return f"{text(found['change'])}{unit} \\[{text(found['low'])}, {text(found['high'])}\\]"


def row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def header(*names: str) -> list[str]:
    return [row(*names), row(*["---"] * len(names))]


def show_runs(runs: list[dict[str, Any]]) -> list[str]:
    names = ("data, model", "setting", "classes", "seeds", "false alarms, mean over classes", "false alarms, pooled",
             "accuracy at equal recall", "p (pooled, Holm)")  # fmt: skip
    lines = header(*names)
    for one in runs:
        mean = span(one["alarms"], 1, " %") if "alarms" in one else "–"
        p = "–" if one["p_holm"] is None else f"{one['p_holm']:.2g}"
        seeds = ", ".join(map(str, one["seeds"]))
        pooled, accuracy = span(one["pooled"], 1, " %"), span(one["accuracy"], 2)
        lines.append(row(one["what"], NAMES[one["setting"]], one["classes"], seeds, mean, pooled, accuracy, p))
    return lines


def show_cells(cells: list[dict[str, Any]]) -> list[str]:
    lines = header("run", "class", "seeds", "false alarms", "of", "accuracy", "p (Holm over this table)")
    for one in cells:
        changes = span(one["alarms"], 1, " %"), f"{one['of']:.2f} %", span(one["accuracy"], 2)
        lines.append(row(one["run"], one["class"], one["seeds"], *changes, f"{one['p_holm']:.2g}"))
    return lines


def show_argmax(figures: dict[str, Any]) -> list[str]:
    lines = header("", "cross-entropy", "as trained", "change", "bias settled", "change")
    for figure, one in figures.items():
        sides = [f"{one[name]:.2f}" for name in ("cross-entropy", "as trained", "bias settled")]
        changes = [span(one[f"{name}, change"], 2) for name in ("as trained", "bias settled")]
        lines.append(row(figure, sides[0], sides[1], changes[0], sides[2], changes[1]))
    return lines


def show_sweep(sweep: list[dict[str, Any]]) -> list[str]:
    lines = header("knob", "false alarms / accuracy at equal recall, mean over all settings with that value")
    for knob in "mwg":
        cells = []
        for value in sorted({one[knob] for one in sweep}):
            same = [one for one in sweep if one[knob] == value]
            alarms, accuracy = (np.mean([one[figure] for one in same]) for figure in ("alarms", "accuracy"))
            cells.append(f"{value:g}: {alarms:+.1f} % / {accuracy:+.2f}")
        lines.append(row(knob, ", ".join(cells)).replace("-", "−"))
    lines += ["", *header("m", "w", "g", "false alarms", "accuracy")]
    for one in sweep:
        knobs = [f"{one[knob]:g}" for knob in "mwg"]
        lines.append(row(*knobs, f"{one['alarms']:+.1f} %", f"{one['accuracy']:+.2f}").replace("-", "−"))
    return lines


def show(figures: dict[str, Any]) -> str:
    parts = {
        "# The two-sided loss against cross-entropy at equal recall": show_runs(figures["runs"]),
        "## Each class, m = 1, w = 0.5, g = 2": show_cells(figures["cells"]),
        "## Argmax without a threshold: `classes`, 8 seeds, means over ten classes": show_argmax(figures["argmax"]),
        "## Sweep: cat, 15,000 validation images, small CNN, tuned training, 2 seeds": show_sweep(figures["sweep"]),
    }
    made = "Made by `python reproduce/two-sided/tables.py`, which says what the figures are."
    return "\n".join([*(line for title, lines in parts.items() for line in (title, "", *lines, "")), made, ""])


def _short(text: str) -> float:
    return float(f"{float(text):.6g}")


def main() -> None:
    runs: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    for name, what in RUNS.items():
        run = read(name)
        for setting in sorted({one["setting"] for one in run.records} & NAMES.keys(), key=list(NAMES).index):
            found = {"run": name, "what": what} | judge(run, setting)
            if setting == COMBINED and max(found["seeds"]) > 1:
                cells += [{"run": name} | one for one in found["by_class"]]
            runs.append(found | {"p_holm": None})
    for family, figure in (([one for one in runs if one["setting"] == COMBINED], "pooled"), (cells, "alarms")):
        for one, p in zip(family, holm([one[figure]["p"] for one in family]), strict=True):
            one["p_holm"] = float(p)
    figures = {"runs": runs, "cells": cells}
    figures |= {"argmax": argmax_table(read("classes")), "sweep": sweep_table(read("sweep"))}  # type: ignore[dict-item]
    text = json.dumps(json.loads(json.dumps(figures), parse_float=_short, parse_constant=lambda _: None), indent=1)
    (HERE / "figures.json").write_text(text + "\n", encoding="utf-8")
    (HERE / "tables.md").write_text(show(figures), encoding="utf-8")
    print(show(figures))


if __name__ == "__main__":
    main()
