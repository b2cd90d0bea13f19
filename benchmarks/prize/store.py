"""A folder of trials: an .npz file for each, written whole or not at all, and about.json with what they share."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from camri.errors import InputError
from camri.files import replacing
from camri.metrics import Scores

SPLITS = ("val", "test")


@dataclass(frozen=True, eq=False)
class Kept:
    """What a trial leaves: condensed scores and, where others build on it, logits and weights."""

    arm: str
    seed: int
    notes: dict[str, Any]  # plain JSON; "error" for a trial that failed, which has no scores
    scores: dict[str, Scores] = field(default_factory=dict)
    logits: dict[str, np.ndarray] = field(default_factory=dict)  # float16 (N, C)
    weights: dict[str, np.ndarray] = field(default_factory=dict)


class Folder:
    """The trials of one data set, important class and training."""

    def __init__(self, path: str | Path, about: dict[str, Any] | None = None):
        """`about` is what trials must share to lie together; None reads what the folder says."""
        self.path = Path(path)
        told = self.path / "about.json"
        if not told.exists():
            if about is None:
                raise InputError(f"{self.path} holds no trials (it has no about.json); give the folder of a run")
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(told) as part:
                part.write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
        self.about: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        if about is not None and self.about != json.loads(json.dumps(about)):
            wrong = [name for name in about if self.about.get(name) != json.loads(json.dumps(about[name]))]
            raise InputError(
                f"{self.path} holds trials of another {' and '.join(wrong)}; choose a new folder with --folder"
            )

    def seeds(self, arm: str) -> list[int]:
        return sorted(int(file.stem.rpartition("-")[2]) for file in self.path.glob(f"{arm}-*.npz"))

    def save(self, trial: Kept) -> None:
        arrays: dict[str, np.ndarray] = {"notes": np.array(json.dumps(trial.notes))}
        for split, scores in trial.scores.items():
            arrays[f"{split}/labels"] = scores.labels.astype(np.uint16)
            arrays |= {f"{split}/{name}": getattr(scores, name) for name in ("lead", "rest_right", "rest_spread")}
        arrays |= {f"{split}/logits": logits for split, logits in trial.logits.items()}
        arrays |= {f"weights/{name}": weight for name, weight in trial.weights.items()}
        with replacing(self._file(trial.arm, trial.seed)) as part, open(part, "wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

    def load(self, arm: str, seed: int) -> Kept:
        with np.load(self._file(arm, seed), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        important = tuple(self.about["important"])
        scores = {
            split: Scores(
                labels=arrays[f"{split}/labels"].astype(np.int64),
                important=important,
                **{name: arrays[f"{split}/{name}"] for name in ("lead", "rest_right", "rest_spread")},
            )
            for split in SPLITS
            if f"{split}/labels" in arrays
        }
        return Kept(
            arm,
            seed,
            json.loads(str(arrays["notes"])),
            scores,
            {split: arrays[f"{split}/logits"] for split in SPLITS if f"{split}/logits" in arrays},
            {name.removeprefix("weights/"): value for name, value in arrays.items() if name.startswith("weights/")},
        )

    def load_arm(self, arm: str) -> dict[int, Kept]:
        """An arm's trials that ended well, by seed."""
        found = {seed: self.load(arm, seed) for seed in self.seeds(arm)}
        return {seed: trial for seed, trial in found.items() if trial.scores}

    def _file(self, arm: str, seed: int) -> Path:
        return self.path / f"{arm}-{seed}.npz"
