"""Arms and seeds -> trials in a folder: what each arm needs from cross-entropy, in packs, within the time there is."""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.prize.arms import ARMS, Arm
from benchmarks.prize.ensembles import teachers_of
from benchmarks.prize.pack import train_pack
from benchmarks.prize.replica import Replica, judge_split
from benchmarks.prize.store import SPLITS, Folder, Kept
from camri.data import Split, hold_out, load
from camri.engine import FAST, Trial
from camri.engine.environment import describe_environment
from camri.engine.replica import Job, make, prepare
from camri.engine.spec import generator
from camri.errors import InputError
from camri.heads import HEADS
from camri.metrics import condense
from camri.models import Classifier
from camri.study.combine import average

CHUNK = 1000  # rows at a time when nothing is learned


class Workshop:
    """A data set on its device, and the folder its trials go to."""

    def __init__(self, folder: Folder, job: Job, device: torch.device):
        self.folder, self.job, self.device = folder, job, device
        self.captures = False
        self.eager_arms: set[str] = set()  # whose step could not be captured
        self.pack_wall_s: dict[str, float] = {}
        self.resident = {
            name: Split(split.inputs.to(device), split.labels.to(device)) for name, split in job.data.splits.items()
        }

    @staticmethod
    def open(
        folder: Path, source: str, important: str, *, epochs: int, ensemble: int, device: torch.device
    ) -> "Workshop":
        data = hold_out(load(source))
        if "test" not in data.splits:
            raise InputError(f"--data {source} has no test split; choose cifar10, digits or another that has one")
        job = Job(
            FAST.with_(model="small", epochs=epochs), data, tuple(sorted(map(data.class_index, important.split("+"))))
        )
        job.check()
        about = {
            "data": data.name,
            "fingerprint": data.fingerprint,
            "important": list(job.important),
            "class": " + ".join(data.classes[index] for index in job.important),
            "training": job.training.to_json(),
            "ensemble": ensemble,
        }
        return Workshop(Folder(folder, about), job, device)

    def train_arm(self, arm: Arm, seeds: Sequence[int], pack_size: int, until: float | None = None) -> bool:
        """Whether every seed that can be trained is; False where the time would not have been enough."""
        if arm.members:
            return True
        done = set(self.folder.seeds(arm.name))
        ready = [seed for seed in seeds if seed not in done and self._has_what_it_needs(arm, seed)]
        for at in range(0, len(ready), pack_size):
            pack = ready[at : at + pack_size]
            # A pack takes what the last of its arm took; before the first, what the slowest so far did.
            guess = self.pack_wall_s.get(arm.name, max(self.pack_wall_s.values(), default=0.0))
            if until is not None and time.perf_counter() + guess > until:
                return False
            self._train_pack(arm, pack)
        left_out = [seed for seed in seeds if seed not in done and seed not in ready]
        if left_out:
            print(f"{arm.name}: left out, for want of cross-entropy models: seeds {left_out}", file=sys.stderr)
        return True

    def _has_what_it_needs(self, arm: Arm, seed: int) -> bool:
        if arm.is_distilled:
            return bool(self._teachers(seed))
        return not arm.needs_ce or seed in self._ce

    def _train_pack(self, arm: Arm, seeds: Sequence[int]) -> None:
        began = time.perf_counter()
        captured = self.captures and arm.name not in self.eager_arms
        replicas, mode = train_pack(lambda: [self._make(arm, seed) for seed in seeds], captured)
        if mode == "eager":
            self.eager_arms.add(arm.name)
        notes = {"mode": mode, "wall_s": (time.perf_counter() - began) / len(seeds),
                 "environment": describe_environment(self.device)}  # fmt: skip
        for replica in replicas:
            self.folder.save(self._keep(replica, notes))
        if arm.name == "ce":
            self.__dict__.pop("_ce", None)  # read anew where it is next asked for
        self.pack_wall_s[arm.name] = time.perf_counter() - began
        print(
            f"{arm.name:19} seeds {', '.join(map(str, seeds))}: {self.pack_wall_s[arm.name]:.1f} s ({mode}), "
            f"last mean loss {np.mean([replica.train_loss[-1] for replica in replicas]):.4f}",
            file=sys.stderr,
            flush=True,
        )

    def _keep(self, replica: Replica, notes: dict[str, Any]) -> Kept:
        arm, seed = replica.arm, replica.trial.seed
        notes = notes | {name: getattr(replica, name) for name in ("train_loss", "val_accuracy", "margins_rad")}
        if arm.is_distilled:
            notes["teachers"] = self._teachers(seed)
        logits = {split: replica.evaluate(split).logits for split in SPLITS}
        error = replica.error
        if error is None and not all(np.isfinite(one).all() for one in logits.values()):
            error = "the trained model's scores are not finite"
        if error is not None:
            return Kept(arm.name, seed, {**notes, "train_loss": [str(loss) for loss in replica.train_loss],
                                         "error": error})  # fmt: skip
        labels = {split: self.job.data.splits[split].labels.numpy() for split in SPLITS}
        in_ensembles = any(other.members == arm.name for other in ARMS.values())
        return Kept(
            arm.name,
            seed,
            notes,
            {split: condense(logits[split], labels[split], self.job.important) for split in SPLITS},
            {split: one.astype(np.float16) for split, one in logits.items()} if in_ensembles else {},
            {name: value.cpu().numpy() for name, value in replica.model.state_dict().items()}
            if arm.name == "ce"
            else {},
        )

    def _make(self, arm: Arm, seed: int) -> Replica:
        """A replica of the arm before its first step."""
        if arm.is_head_only:
            job, model = self.job, self._trained_ce(seed)
            kind = HEADS[arm.setting(job.important).head]
            head = kind(
                model.head.get_parameter("weight").shape[1], job.data.num_classes, generator=generator(seed, "head")
            )
            # Identity, since the features come ready-made: the trunk is frozen, batch norm's statistics too.
            return Replica(arm, seed, job, Classifier(nn.Identity(), head), self._features(model.trunk))
        model, _ = make(Trial(arm.setting(self.job.important), seed), self.job)
        floors = None
        if arm.floor:
            path = self._ce[seed].notes["val_accuracy"]
            floors = path if arm.floor == "epoch" else path[-1:] * len(path)
        targets = self._targets(tuple(self._teachers(seed))) if arm.is_distilled else None
        return Replica(arm, seed, self.job, model, self.resident, targets=targets, floors=floors)

    @functools.cached_property
    def _ce(self) -> dict[int, Kept]:
        return self.folder.load_arm("ce")

    def _teachers(self, seed: int) -> list[int]:
        return teachers_of(seed, self._ce, self.folder.about["ensemble"])

    def _trained_ce(self, seed: int) -> Classifier:
        """Cross-entropy's model of a seed as it was trained, in eval mode on the device."""
        model, _ = make(Trial(ARMS["ce"].setting(self.job.important), seed), self.job)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in self._ce[seed].weights.items()})
        return model.to(self.device).eval()

    @torch.no_grad()
    def _features(self, trunk: nn.Module) -> dict[str, Split]:
        return {
            name: Split(
                torch.cat(
                    [trunk(prepare(rows, None, None, None, torch.float32)) for rows in split.inputs.split(CHUNK)]
                ),
                split.labels,
            )
            for name, split in self.resident.items()
        }

    @functools.cache  # noqa: B019 - as long-lived as the process; five models look at every train row
    def _targets(self, teachers: tuple[int, ...]) -> Tensor:
        """The mean probabilities that cross-entropy's models of these seeds give the train rows: (N, C)."""
        train = self.resident["train"]
        logits = [judge_split(self._trained_ce(seed), lambda x: x, train).logits for seed in teachers]
        return torch.from_numpy(np.exp(average(logits))).to(self.device)
