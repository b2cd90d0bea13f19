"""Measure what loading a data set and feeding an epoch cost, beside an ordinary loop; print JSON.

    CAMRI_DATA=… python benchmarks/data.py            # CIFAR-10 from parquet
    python benchmarks/data.py                         # 5,000 random images of the same size

All times are from one run on one machine: quote the ratios.
"""

import io
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from camri import augment
from camri.data import DataSet, load
from camri.data.dataset import epoch_order, hold_out, to_float
from camri.data.parallel import num_cores

BATCH_ROWS = 64


def write_random_images(folder: Path) -> Path:
    """Write a parquet folder of 5,000 random 32x32 images, stored like CIFAR-10's."""
    rng = np.random.default_rng(0)
    images = []
    for pixels in rng.integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "WEBP", lossless=True, method=0)
        images.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": images, "label": np.arange(5000) % 10}), folder / "train.parquet")
    return folder


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that the work takes by this clock."""
    start = clock()
    work()
    return clock() - start


def plain_epoch(table: pa.Table) -> None:
    """Run an epoch of an ordinary loop: decode each image when its batch comes, then stack and scale."""
    order = torch.randperm(table.num_rows)
    images, labels = table.column("image"), table.column("label")
    for start in range(0, table.num_rows, BATCH_ROWS):
        rows = order[start : start + BATCH_ROWS].tolist()
        pixels = [np.asarray(Image.open(io.BytesIO(images[row].as_py()["bytes"])).convert("RGB")) for row in rows]
        torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
        torch.tensor([labels[row].as_py() for row in rows])


def camri_epoch(data: DataSet, augmented: bool) -> None:
    """Run the same epoch from the resident tensor, with or without flips and translations."""
    train, generator = data.splits["train"], torch.Generator().manual_seed(0)
    for rows in epoch_order(len(train), generator, "cpu").split(BATCH_ROWS):
        images = to_float(train.inputs[rows])
        if augmented:
            images = augment.flip(images, augment.draw_flips(len(rows), generator, "cpu"))
            images = augment.translate(images, *augment.draw_shifts(len(rows), 4, generator, "cpu"))
        _ = train.labels[rows]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        real = Path(os.environ.get("CAMRI_DATA", "")) / "cifar10"
        source = real if os.environ.get("CAMRI_DATA") and real.is_dir() else write_random_images(folder)
        first_s = seconds(lambda: load(source, cache=folder / "cache"))
        second_s = seconds(lambda: load(source, cache=folder / "cache"))
        dataset = load(source, cache=folder / "cache")
        table = pa.concat_tables([pq.read_table(file) for file in sorted(source.glob("train*.parquet"))])
        camri_epoch(dataset, augment=True)  # touches every page once
        # CPU time, the best of three interleaved rounds: other programs on the machine hardly change it.
        rounds = [
            (
                seconds(lambda: plain_epoch(table), time.process_time),
                seconds(lambda: camri_epoch(dataset, augment=False), time.process_time),
                seconds(lambda: camri_epoch(dataset, augment=True), time.process_time),
            )
            for _ in range(3)
        ]
        plain_s, epoch_s, augmented_s = (min(times) for times in zip(*rounds, strict=True))
        split_s = seconds(lambda: hold_out(dataset))
    report = {
        "source": "cifar10 parquet" if source == real else "5,000 random images",
        "rows": {part: len(split) for part, split in dataset.splits.items()},
        "cores": num_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "first_load_s": round(first_s, 2),
        "second_load_s": round(second_s, 3),
        "hold_out_s": round(split_s, 2),
        "plain_epoch_cpu_s": round(plain_s, 2),
        "camri_epoch_cpu_s": round(epoch_s, 2),
        "camri_augmented_epoch_cpu_s": round(augmented_s, 2),
        "plain_over_camri_epoch": round(plain_s / epoch_s, 1),
        "plain_over_camri_augmented_epoch": round(plain_s / augmented_s, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
