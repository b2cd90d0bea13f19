"""Small sets of photos and the studies that train on them from scratch, on frozen features, and by fine-tuning.

python -m benchmarks.photos --out runs/photos      # then: camri study run runs/photos/animals-tuned.toml --out …

Reads tiny-imagenet-animals64, gtsrb and backbone-resnet10t from $CAMRI_DATA. Animals: 50 training, 30 validation and
200 test images a class (the 50 published ones and 150 of the training images that are left). Signs: of every track
three frames to train on or, of a quarter of the tracks, ten to validate with; the published test images. Important
animals: the worst, second worst and median class of the fine-tuned cross-entropy on validation data, in all three
studies. Important signs: of the seven with the fewest training images the three that a linear classifier on frozen
features found least often in validation data. `--quick` writes four images a class and one epoch: a rehearsal.

    python -m benchmarks.photos --out runs/photos --augment     # writes the animals only; a GPU; about 90 s

fine-tunes cross-entropy on the animals without and with the augmentations, five seeds each, and prints their test
accuracy as JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NETWORK = """model = "timm:resnet10t"
model_options = {{ size = 96 }}
optimizer = "adamw"
learning_rate = 0.002
weight_decay = 0.05
warmup = 0.1
hold = 0.0
cosine = true
crop = 0.35
"""
TRAININGS = {
    "tuned": NETWORK + 'weights = "{weights}"\ntrunk_rate = 0.2\naverage = 0.99\nepochs = {tuned}\n{flip}',
    "scratch": NETWORK + "from_scratch = true\naverage = 0.998\nepochs = {scratch}\n{flip}",
    "frozen": 'model = "linear"\nmodel_options = {{ dropout = 0.5 }}\nhold = 0.2\nepochs = {frozen}\n',
}
BACKBONE = 'backbone = "timm:resnet10t"\nweights = "{weights}"\nsize = 96\n'
STUDY = """name = "{name}"
columns = {columns}
seeds = 5

[data]
source = "{source}"
{backbone}
[training]
{training}
[methods]
ce = {{}}
two_sided_logits = {{ m = [1.0] }}
{margins}"""
ANIMALS = '["hog", "tarantula", "golden retriever"]'  # from '["worst", "second", "median"]' of animals-tuned
MARGINS = 'camri = { m = ["8pi/64"], s = [16] }\nl2softmax = { s = [16] }\n'


def animals(folder: Path, num: dict[str, int]) -> dict[str, pa.Table]:
    """Rows of each split; a class's training images are shuffled once, and the splits take one part after another."""
    train, test = (pq.read_table(folder / f"{part}-00000-of-00001.parquet") for part in ("train", "test"))
    drawn, labels = np.random.default_rng(0), np.asarray(train["label"])
    shuffled = [drawn.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    rows, start = {}, 0
    for part in ("train", "val", "test"):
        rows[part] = train.take(np.sort(np.concatenate([own[start : start + num[part]] for own in shuffled])))
        start += num[part]
    if num["test"] >= 150:
        rows["test"] = pa.concat_tables([test, rows["test"]])
    return rows


def signs(folder: Path, quick: bool) -> dict[str, pa.Table]:
    """Rows of each split; a quarter of a class's tracks validate, at least two."""
    files = sorted(folder.glob("train-*.parquet"))
    train = pa.concat_tables([pq.read_table(file, columns=["image", "label"]) for file in files])
    test = pq.read_table(folder / "test-00000-of-00001.parquet", columns=["image", "label"])
    rows: dict[str, list[int]] = {"train": [], "val": []}
    drawn = np.random.default_rng(0)
    names = [name.as_py().split(".")[0].split("_") for name in train["image"].combine_chunks().field("path")]
    for label in sorted({name[0] for name in names}):
        tracks = drawn.permutation(sorted({name[1] for name in names if name[0] == label}))[: 4 if quick else None]
        held_out = set(tracks[: max(2, len(tracks) // 4)])
        for row, (own, track, frame) in enumerate(names):
            if own == label and track in tracks:
                part, step = ("val", 3) if track in held_out else ("train", 10)
                if int(frame) % step == step - 1:
                    rows[part].append(row)
    return {part: train.take(chosen) for part, chosen in rows.items()} | {"test": test[::50] if quick else test}


def write(out: Path, data: Path, quick: bool, only: str = "") -> None:
    """Write the photos as parquet and a study file for each way of training; `only` one of the two sets."""
    num = {"train": 4, "val": 3, "test": 3} if quick else {"train": 50, "val": 30, "test": 150}
    sets: dict[str, tuple[Callable[[], dict[str, pa.Table]], str, str]] = {
        "animals": (lambda: animals(data / "tiny-imagenet-animals64", num), ANIMALS, "flip = true\n"),
        "signs": (lambda: signs(data / "gtsrb", quick), "[0, 19, 27]", ""),
    }
    weights = data / "backbone-resnet10t" / "resnet10t.safetensors"
    for name, (read, columns, flip) in sets.items():
        if only and name != only:
            continue
        rows = read()
        source = (out / name).absolute()
        source.mkdir(parents=True, exist_ok=True)
        for part, table in rows.items():
            pq.write_table(table, source / f"{part}.parquet")
        epochs = {"tuned": 20 if name == "animals" else 15, "scratch": 30, "frozen": 30}
        for kind, training in TRAININGS.items():
            values = {"weights": weights.absolute(), "flip": flip, **({kind: 1} if quick else epochs)}
            text = STUDY.format(
                name=f"{name}, {kind}",
                columns=columns,
                source=source,
                backbone=BACKBONE.format(**values) if kind == "frozen" else "",
                training=training.format(**values),
                margins=MARGINS,
            )
            (out / f"{name}-{kind}.toml").write_text(text, encoding="utf-8")
        print(name, {part: len(table) for part, table in rows.items()})


AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "crops": {},
    "crops, TrivialAugment": {"trivial_augment": True},
    "crops, mixup 0.2": {"mixup": 0.2},
    "none": {"crop": 0.0},
    "crops, TrivialAugment, mixup 0.2": {"trivial_augment": True, "mixup": 0.2},
}


def augment(out: Path, data: Path, quick: bool, num_seeds: int, limit_s: float) -> None:
    """Fine-tune on the animals with each augmentation, the last ones only if they begin within `limit_s` seconds."""
    from camri.backbones import decoding, find
    from camri.data import load
    from camri.engine import Training, Trial, train
    from camri.engine.spec import TUNED, describe_environment
    from camri.engine.training import pick_device
    from camri.methods import setting

    began, device, model = time.perf_counter(), pick_device("auto"), "timm:resnet10t"
    found: dict[str, Any] = {"environment": describe_environment(device), "seeds": num_seeds}
    weights = data / "backbone-resnet10t" / "resnet10t.safetensors"
    options, how = decoding(find(model, weights=weights, size=96), {})
    photos = load(out / "animals", **how)
    plain = Training(model=model, model_options=tuple(sorted(options.items())), epochs=1 if quick else 20, flip=True)
    trials = [Trial(setting("ce"), seed) for seed in range(num_seeds)]
    for name, changes in AUGMENTATIONS.items():
        start = time.perf_counter()
        if start - began > limit_s:
            break
        outcomes = train(trials, photos, device, training=plain.with_(**{**TUNED, **changes}))
        failed = [outcome.error for outcome in outcomes if outcome.status != "done"]
        assert not failed, failed[0]
        accuracy = [100 * np.trace(outcome.confusion["test"]) / outcome.confusion["test"].sum() for outcome in outcomes]
        loss = [float(outcome.curves["train_loss"][-1]) for outcome in outcomes]
        found[name] = {
            "accuracy": round(float(np.mean(accuracy)), 2),
            "of each seed": [round(float(each), 2) for each in accuracy],
            "last train loss": round(float(np.mean(loss)), 3),
            "wall_s": round(time.perf_counter() - start, 1),
        }
        (out / "augment.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(name, json.dumps(found[name]), flush=True)
    print(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["animals", "signs"], help="write this set of photos and no other")
    parser.add_argument("--augment", action="store_true", help="fine-tune with each augmentation")
    parser.add_argument("--seeds", type=int, default=5, help="of --augment")
    parser.add_argument("--limit-s", type=float, default=90, help="of --augment: begin no other after so many seconds")
    given = parser.parse_args()
    data = Path(os.environ["CAMRI_DATA"])
    write(given.out, data, given.quick, "animals" if given.augment else given.only or "")
    if given.augment:
        augment(given.out, data, given.quick, given.seeds, given.limit_s)


if __name__ == "__main__":
    main()
