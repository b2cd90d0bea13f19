"""Features of a frozen backbone beside a plain loop of `model(batch)`: images/s on the cores at hand. Prints JSON.

    CAMRI_DATA=… taskset -c 0,1 python -m benchmarks.features          # 29,500 photos of 64 px, resnet10t at 96 px
    python -m benchmarks.features --rows 2000 --device cuda

Both get the same decoded uint8 images in batches of 64. The plain loop is the network in eval mode under
`torch.inference_mode`, torch's threads as they are. Ours is `camri.data.features.embed` with an empty cache: it also
looks for copies of images, and writes the cache. The two take turns, `--repeats` times; the medians are printed.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from camri.backbones import decoding, find
from camri.data import DataSet, load
from camri.data.dataset import to_float
from camri.data.features import BATCH_ROWS, embed
from camri.data.parallel import num_cores
from camri.engine.spec import describe_environment
from camri.models import build


@torch.inference_mode()
def plain(network: torch.nn.Module, images: torch.Tensor, device: str) -> None:
    """The loop that everybody writes."""
    network.eval().to(device)
    for batch in images.split(BATCH_ROWS):
        network(to_float(batch.to(device))).cpu()


def seconds(data: DataSet, model: str, options: dict[str, object], device: str) -> tuple[float, float]:
    """Seconds of the plain loop and of `embed`."""
    height, width, channels = data.input_shape
    network = build(model, (channels, height, width), torch.Generator().manual_seed(0), **options)
    start = time.perf_counter()
    plain(network, data.splits["train"].inputs, device)
    middle = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        embed(data, model, options, device=device, cache=Path(cache))
        return middle - start, time.perf_counter() - middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=29_500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    folder, model = Path(os.environ["CAMRI_DATA"]), "timm:resnet10t"
    found = find(model, weights=folder / "backbone-resnet10t" / "resnet10t.safetensors", size=96)
    options, how = decoding(found, {})
    data = load(folder / "tiny-imagenet-animals64", **how)
    train = data.splits["train"]
    rows = np.linspace(0, len(train) - 1, min(given.rows, len(train))).astype(np.int64)
    data = replace(data, splits={"train": train.rows(rows)})
    times = [seconds(data, model, options, given.device) for _ in range(given.repeats)]
    rates = {
        name: [round(len(rows) / took[place], 1) for took in times] for place, name in enumerate(("plain", "embed"))
    }
    print(
        json.dumps(
            {
                "rows": len(rows),
                "images_per_s": {name: statistics.median(each) for name, each in rates.items()},
                "all": rates,
                "cores": num_cores(),
                "threads_of_torch": torch.get_num_threads(),
                "load_average": os.getloadavg()[0],
                "environment": describe_environment(torch.device(given.device)),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
