"""Count how far a reader walks to follow a command: `python -m tools.journeys [fit] [study] [audit]`.

Runs three journeys in small, and follows every call from one module of the package to another: a fit of a folder of
images, a study with its page, and an audit. Imports do not count. For each journey it prints

- modules: those in which any function was called;
- hops: pairs of modules of which the first called the second;
- functions: those that were called from another module.
"""

import contextlib
import csv
import io
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


class Walk:
    """The calls between modules of `camri` while it is active."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, CodeType | None]] = set()
        self.modules: set[str] = set()
        self.hops: set[tuple[str, str]] = set()
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = _module(frame)
        if name is None or frame.f_code.co_name == "<module>":
            return
        caller = _inside(frame.f_back)
        link = (frame.f_code, None if caller is None else caller.f_code)
        if link in self.seen or _is_import(caller):
            return
        self.seen.add(link)
        self.modules.add(name)
        source = None if caller is None else _module(caller)
        if source is not None and source != name:
            self.hops.add((source, name))
            self.functions.add((name, frame.f_code.co_name))

    def __enter__(self) -> "Walk":
        threading.settrace(self)
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)


def _module(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__") or ""
    return name if name == "camri" or name.startswith("camri.") else None


def _inside(frame: FrameType | None) -> FrameType | None:
    """The frame, or the first of its callers, that is in the package."""
    while frame is not None and _module(frame) is None:
        frame = frame.f_back
    return frame


def _is_import(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = _inside(frame.f_back)
    return frame is not None


def follow(*commands: Sequence[str]) -> Walk:
    """Run the commands in this process and follow their calls."""
    from camri.cli import app

    walk = Walk()
    for command in commands:
        with walk, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app(list(command))
    return walk


def _write_images(folder: Path) -> None:
    digits = load_digits()
    for place, (image, label) in enumerate(zip(digits.images[:400], digits.target[:400], strict=True)):
        path = folder / f"digit {label}" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(path)


def _write_scores(file: Path) -> None:
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 3, 600)
    scores = drawn.normal(size=(600, 3)) + 2 * np.eye(3)[labels]
    names = ["go", "stop", "yield"]
    with open(file, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", *names])
        writer.writerows([names[label], *row] for label, row in zip(labels, scores.tolist(), strict=True))


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CAMRI_CACHE"] = str(folder / "cache")
        _write_images(folder / "images")
        _write_scores(folder / "scores.csv")
        fit = ["fit", str(folder / "images"), "--important", "digit 8", "--trials", "16", "--epochs", "1"]
        study = ["study", "run", "digits", "--methods", "ce,camri", "--seeds", "0-1", "--workers", "1"]
        journeys = {
            "fit": [[*fit, "--device", "cpu", "--out", str(folder / "fit")]],
            "study to page": [
                [*study, "--device", "cpu", "--out", str(folder / "run")],
                ["report", str(folder / "run")],
            ],
            "audit": [
                ["audit", str(folder / "scores.csv"), "--important", "stop", "--out", str(folder / "audit.html")]
            ],
        }
        for title, commands in journeys.items():
            if sys.argv[1:] and title.split()[0] not in sys.argv[1:]:
                continue
            walk = follow(*commands)
            print(f"{title}: {len(walk.modules)} modules, {len(walk.hops)} hops, {len(walk.functions)} functions")


if __name__ == "__main__":
    main()
