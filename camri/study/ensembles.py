"""Ensembles of trials already trained, as a run of their own: tables, curves and the page take it like any other."""

import hashlib
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from camri.engine.outcome import Outcome
from camri.engine.spec import Training, Trial
from camri.errors import InputError
from camri.methods import Setting
from camri.metrics import Array, condense, confusion
from camri.study.finalists import rows_by_key
from camri.study.records import Row
from camri.study.spec import Study
from camri.study.store import Run, open_run
from camri.study.writer import Store


@dataclass(frozen=True)
class Ensembles:
    """What was made: ensembles of each setting, of so many members, and the seeds that were left over."""

    num_settings: int
    num_each: int
    size: int
    left_over: tuple[int, ...]


def average(logits: Sequence[Array]) -> Array:
    """Log of the members' mean probabilities: some (N, C) -> float32 (N, C). Logits, as good as any, for a shift.

    >>> np.exp(average([np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])])).round(3)
    array([[0.7, 0.3]], dtype=float32)
    """
    stacked = np.asarray(logits, dtype=np.float64)  # (members, N, C)
    log_h = stacked - np.logaddexp.reduce(stacked, axis=-1, keepdims=True)
    return (np.logaddexp.reduce(log_h, axis=0) - np.log(len(stacked))).astype(np.float32)


def make_ensembles(source: str | Path, out: str | Path, size: int) -> Ensembles:
    """Ensembles of `size` trials of each setting, no trial in two of them, as a new run in `out`.

    The trials must have kept their logits. Seeds that every setting has are grouped in their order, so that ensemble
    number k has the same seeds in every method and differences are paired. Its training has `ensemble` among the
    model's options: nothing else can be trained into that run.
    """
    folder = Path(out)
    with open_run(source) as run:
        by_setting = _by_setting(run)
        seeds = sorted(set.intersection(*(set(rows) for rows in by_setting.values())))
        if size < 2 or len(seeds) < size:
            raise InputError(
                f"ensembles of size={size} cannot be made: {run.path} has {len(seeds)} seeds of every setting; "
                f"give a size from 2 to {len(seeds)}"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not empty" if folder.is_dir() else "is no folder"
            raise InputError(f"{folder} {what}; choose a new folder with --out")
        _refuse_without_logits(run, [rows[seed] for rows in by_setting.values() for seed in seeds])
        groups = [seeds[start : start + size] for start in range(0, len(seeds) - size + 1, size)]
        training = _training(run, size)
        whole = folder.absolute()  # "." has no name of its own
        part = whole.with_name(f"{whole.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be written ({error.strerror}); choose a new folder with --out") from None
        with Store.open(part, replace(run.facts(), training=training.to_json())) as store:
            columns = [one.resolved for one in run.columns()]
            for spec in run.studies:
                study = Study.from_json(spec)
                name = f"{study.name}, ensembles of {size}"
                store.add_study(study.with_(name=name, training=training, seeds=list(range(len(groups)))), columns)
            command = ["camri", "study", "ensembles", str(source), "--size", str(size), "--out", str(out)]
            store.write_note("command", shlex.join(command))
            important = sorted({index for column in columns for index, _ in column})
            for rows in by_setting.values():
                for number, group in enumerate(groups):
                    members = [rows[seed] for seed in group]
                    store.add(_identity(members), _united(run, members, number, training, important))
    os.replace(part, whole)
    return Ensembles(len(by_setting), len(groups), size, tuple(seeds[len(groups) * size :]))


def _by_setting(run: Run) -> dict[str, dict[int, Row]]:
    found = {key: {row.seed: row for row in rows} for key, rows in rows_by_key(run).items()}
    if not found:
        raise InputError(f"{run.path} has no trial that ended well; see `camri study status`")
    if not run.columns():
        raise InputError(f"{run.path}: its important classes are not known yet; let its cross-entropy trials end first")
    return found


def _refuse_without_logits(run: Run, rows: Sequence[Row]) -> None:
    for row in rows:
        if not run.logits(row):
            raise InputError(
                f"{run.path}: {row.title} with seed {row.seed} kept no logits; train with `logits = true` under [keep]"
            )


def _training(run: Run, size: int) -> Training:
    training = Training.from_json(run.training)
    return training.with_(model_options=(*training.model_options, ("ensemble", size)))


def _united(run: Run, members: Sequence[Row], number: int, training: Training, important: Sequence[int]) -> Outcome:
    kept = [run.logits(row) for row in members]
    logits = {split: average([one[split] for one in kept]) for split in run.splits}
    labels = {split: run.labels(split) for split in run.splits}
    num_classes = len(run.classes)
    return Outcome(
        trial=Trial(Setting.from_json(members[0].setting), number),
        training=training,
        fingerprint=run.fingerprint,
        status="done",
        epochs_done=members[0].epochs_done,
        confusion={split: confusion(one.argmax(axis=1), labels[split], num_classes) for split, one in logits.items()},
        scores={split: condense(one, labels[split], tuple(important)) for split, one in logits.items()},
        logits={split: one.astype(np.float16) for split, one in logits.items()},
        wall_s=sum(row.wall_s for row in members),
        device_s=sum(row.device_s for row in members),
        environment=members[0].environment,
    )


def _identity(members: Sequence[Row]) -> str:
    text = "ensemble/" + "/".join(row.identity for row in members)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
