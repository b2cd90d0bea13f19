"""Images per second with the images on the GPU, streamed from memory, and streamed from a file.

    CAMRI_DATA=… python -m benchmarks.streaming              # a GPU; about 3 minutes
    python -m benchmarks.streaming --device cpu --quick      # does it run at all

The authors' CNN on CIFAR-10, eight models side by side, and the small CNN on made images of 224 pixels in a file on
disk. Images/s are those of each epoch after the first, with shuffling and validation, and end to end: upload, capture,
all epochs and the last evaluation, but not compiling. Beside them a tutorial's loop over torch's DataLoader with worker
processes, and the speed of the parts: reading rows of the file in random order, copying pinned memory to the GPU.
Prints JSON; `--json` also keeps what is measured so far in a file.
"""

import argparse
import contextlib
import itertools
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.engine import wait
from camri.data import DataSet, Split, hold_out, load
from camri.data.dataset import to_float
from camri.data.parallel import num_cores
from camri.data.rows import Rows, Stored, num_bytes
from camri.engine import FAST, Job, Training, Trial, train
from camri.engine.replica import make
from camri.engine.spec import describe_environment
from camri.methods import setting

MADE_CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", default="cifar10", help="data set of the first part")
    parser.add_argument("--images", type=int, default=60_000, help="made images of 224 pixels; 0: leave them out")
    parser.add_argument("--models", type=int, default=8, help="models side by side, each with a seed of its own")
    parser.add_argument("--epochs", type=int, default=3, help="of the first part; the first one is not counted")
    parser.add_argument("--loader-s", type=float, default=3.0, help="seconds of each measurement of a DataLoader")
    parser.add_argument("--folder", help="where the made images are written (9 GB); default: a temporary folder")
    parser.add_argument("--json", help="write the JSON to this file after every part")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    found: dict[str, Any] = {"environment": describe_environment(device), "date": time.strftime("%Y-%m-%d")}
    found["cores"] = num_cores()

    def keep(part: str, result: dict[str, Any]) -> None:
        found[part] = result
        print(part, json.dumps(result), flush=True)
        if asked.json:
            Path(asked.json).write_text(json.dumps(found, indent=1), encoding="utf-8")

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        small, small_training = small_images(asked, device, keep)
        if asked.images:
            large, large_training = large_images(asked, device, Path(folder), keep)
        # Last: they matter least if the time runs out.
        loader_s = 1.0 if asked.quick else asked.loader_s
        keep("DataLoader", with_loader(Memory(small.splits["train"]), small, small_training, device, loader_s))
        if asked.images:
            source = File(large.splits["train"])
            keep("DataLoader, file", with_loader(source, large, large_training, device, loader_s))
    found["wall_s"] = round(time.perf_counter() - began, 1)
    print(json.dumps(found, indent=1))


Keep = Callable[[str, dict[str, Any]], None]


def small_images(asked: argparse.Namespace, device: torch.device, keep: Keep) -> tuple[DataSet, Training]:
    """The authors' CNN: on the device, from a tensor in memory, from the cache's file."""
    name = "digits" if asked.quick else asked.data
    loaded = load(name)
    data = loaded if "val" in loaded.splits else hold_out(loaded)
    some = num_bytes(data.splits["train"].inputs) - 1  # val and test fit, train does not
    cases = {"resident": data, "from memory": replace(data, resident=some)}
    if not asked.quick:  # digits have no cache
        on_disk = load(name, resident=some)
        cases["from a file"] = on_disk if "val" in on_disk.splits else hold_out(on_disk)
    training = FAST.with_(epochs=asked.epochs, model="small" if asked.quick else "paper")
    keep(name, compare(cases, training, asked.models, device))
    return data, training


def large_images(asked: argparse.Namespace, device: torch.device, folder: Path, keep: Keep) -> tuple[DataSet, Training]:
    """The small CNN on made images of 224 pixels that lie in a file."""
    num, side = (600, 24) if asked.quick else (asked.images, 224)
    began = time.perf_counter()
    data = made(folder / "images", num, side)
    made_s = round(time.perf_counter() - began, 1)
    training = Training(model="small", epochs=2, batch_size=64)
    train_bytes = num_bytes(data.splits["train"].inputs)
    parts = speeds(data.splits["train"].inputs, device)
    keep("parts", {"made_s": made_s, "GB": round(train_bytes / 1e9, 3), **parts})
    cases = {"resident": data, "from a file": replace(data, resident=train_bytes - 1)}
    keep(f"{side} px", compare(cases, training, min(4, asked.models), device))
    return data, training


def made(path: Path, num: int, side: int) -> DataSet:
    """A data set of `num` images of random pixels in a file."""
    shape = (num, side, side, 3)
    drawn = np.random.default_rng(0)
    block = drawn.integers(0, 256, (max(1, min(num, 2**28 // math.prod(shape[1:]))), *shape[1:]), dtype=np.uint8)
    with path.open("wb") as file:
        for start in range(0, num, len(block)):
            file.write(block[: num - start].data)
    rows, labels = Rows(Stored(path, 0, shape)), torch.from_numpy(drawn.integers(0, MADE_CLASSES, num))
    held = max(1, num // 60)
    places = {"train": slice(2 * held, num), "val": slice(held), "test": slice(held, 2 * held)}
    splits = {part: Split(rows.take(place), labels[place]) for part, place in places.items()}
    return DataSet("made", tuple("abcdefghij"), splits, f"made-{num}-{side}")


def compare(cases: dict[str, DataSet], training: Training, num_models: int, device: torch.device) -> dict[str, Any]:
    """Images/s and peak memory of each case, after a run that compiles; shares compare the medians of the epochs."""
    trials = [Trial(setting("camri", 1, m=0.3, s=8), seed) for seed in range(num_models)]

    def images_per_s(data: DataSet, training: Training) -> dict[str, Any]:
        ends: dict[float, float] = {}  # part of the training -> when it was done
        job = Job(training, data)
        began = time.perf_counter()
        outcomes = train(
            trials, data, device, training=training, workers=1, pack_size=len(trials),
            on_progress=lambda progress: ends.setdefault(progress.part, time.perf_counter()),  # type: ignore[arg-type,return-value]
        )  # fmt: skip
        took = time.perf_counter() - began
        assert all(outcome.status == "done" for outcome in outcomes), outcomes[0].error
        images = len(trials) * job.steps_per_epoch * job.batch_size * training.epochs
        parts = itertools.pairwise(ends.items())
        epochs = [round((part - before) * images / (end - start)) for (before, start), (part, end) in parts]
        return {"epochs": epochs, "end_to_end": round(images / took)}

    train_split = cases["resident"].splits["train"]
    few = train_split.rows(np.arange(min(640, len(train_split))))  # the run that compiles makes a few steps only
    images_per_s(
        replace(cases["resident"], splits={**cases["resident"].splits, "train": few}), training.with_(epochs=1)
    )
    found: dict[str, Any] = {"models": len(trials), "rows": len(train_split)}
    for name, data in cases.items():
        with peak_memory(device) as peak:
            rates = images_per_s(data, training)
        found[name] = {**rates, **peak}
        print(name, found[name], flush=True)
    medians = {name: float(np.median(found[name]["epochs"])) for name in cases}
    found["share of resident"] = {name: round(rate / medians["resident"], 4) for name, rate in medians.items()}
    return found


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Fills a record with the peaks inside: of this process on the host, of torch's memory on the device (GiB)."""
    peak: dict[str, float] = {}
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    status = Path("/proc/self/status").read_text()
    for name in ("VmHWM", "RssAnon", "RssFile", "RssShmem"):
        if line := re.search(rf"{name}:\s+(\d+)", status):
            peak["host_peak" if name == "VmHWM" else name] = round(int(line[1]) / 2**20, 3)
    if device.type == "cuda":
        peak["device_peak"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)


def speeds(inputs: Any, device: torch.device) -> dict[str, float]:
    """GB/s of reading random rows into memory on all cores, and of copying pinned memory to the device."""
    size, num = math.prod(inputs.shape[1:]), 64
    out = torch.empty((num_cores(), num, *inputs.shape[1:]), dtype=torch.uint8, pin_memory=device.type == "cuda")
    drawn = np.random.default_rng(1)
    batches = [drawn.integers(0, len(inputs), num) for _ in range(max(8, min(400, 2 * len(inputs) // num)))]
    began = time.perf_counter()
    with ThreadPoolExecutor(num_cores()) as threads:
        # Two batches may write to one place at a time: only the speed counts here.
        list(threads.map(lambda pair: inputs.read(pair[1], out[pair[0] % len(out)].numpy()), enumerate(batches)))
    found = {"read_GB_per_s": len(batches) * num * size / (time.perf_counter() - began) / 1e9}
    if device.type == "cuda":
        there = out.to(device)
        wait()
        began = time.perf_counter()
        for _ in range(50):
            there.copy_(out, non_blocking=True)
        wait()
        found["copy_GB_per_s"] = 50 * out.numel() / (time.perf_counter() - began) / 1e9
    return {name: round(value, 2) for name, value in found.items()}


class Memory(Dataset[tuple[torch.Tensor, int]]):
    """A split in memory, image by image, as a tutorial has it."""

    def __init__(self, split: Split):
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.split.inputs[row], int(self.split.labels[row])


class File(Memory):
    """A split in a file, through a memory map, as a tutorial has it."""

    def __init__(self, split: Split):
        super().__init__(split)
        store = split.inputs.store
        self.pixels, self.index = np.memmap(store.path, np.uint8, mode="r", shape=store.shape), split.inputs.index

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.array(self.pixels[self.index[row]])), int(self.split.labels[row])


def with_loader(
    source: Memory, data: DataSet, training: Training, device: torch.device, most_s: float
) -> dict[str, float]:
    """Images/s of one model in an ordinary loop over a DataLoader with workers, and of the DataLoader alone."""
    trial = Trial(setting("camri", 1, m=0.3, s=8), 0)
    workers = min(num_cores(), 16)
    model, criterion = (part.to(device) for part in make(trial, Job(training, data)))
    model = model.to(memory_format=torch.channels_last).train()
    optimise = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "drop_last": True, "num_workers": workers}

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in DataLoader(source, pin_memory=device.type == "cuda", **options):
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            outputs = model(to_float(images))
        loss = criterion(outputs, labels)
        optimise.zero_grad(set_to_none=True)
        loss.backward()
        optimise.step()

    def rate(each: Callable[[torch.Tensor, torch.Tensor], None]) -> float:
        count, began = 0, 0.0
        for number, (images, labels) in enumerate(batches()):
            each(images, labels)
            if number == 2:  # without the start of the workers
                wait()
                began = time.perf_counter()
            elif number > 2:
                count += len(labels)
                if number % 16 == 0 and time.perf_counter() - began > most_s:
                    break
        wait()
        return round(count / (time.perf_counter() - began), 1)

    return {"workers": workers, "training": rate(step), "loading alone": rate(lambda images, labels: None)}


if __name__ == "__main__":
    main()
