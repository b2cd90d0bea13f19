"""Images per second of the engine, and of what a user would run instead.

    python benchmarks/engine.py --device cuda          # the authors' CNN on CIFAR-sized images
    python benchmarks/engine.py --device cpu           # the small CNN on digits
    python benchmarks/engine.py --kinds paper small    # where a step's time goes on a GPU: kernels by kind

Prints a table and a JSON object. The alternatives train the same model on the same rows in the same precision: a
tutorial's loop with the data on the device, the same compiled, and Lightning's Trainer if it is installed. The
engine's figure is end to end: it includes shuffling, validation after every epoch and the final evaluation; set-up
(compiling, capturing) is listed separately.
"""

import argparse
import functools
import json
import platform
import re
import time
from collections.abc import Callable
from typing import Any

import torch

from camri.backbones import Preprocessing, is_backbone
from camri.data import DataSet, Split, hold_out, load
from camri.data.dataset import to_float
from camri.engine import FAST, PAPER, Job, Training, Trial, train
from camri.engine.loop import ADAM_EPS
from camri.engine.replica import make
from camri.engine.spec import describe_environment
from camri.methods import setting

CPU_TRIALS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", help="cifar10, digits or a path; made-up pixels of CIFAR-10's shape if not given")
    parser.add_argument("--packs", default="1,4,8,16", help="numbers of models side by side (GPU)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs that the engine's figure is taken over")
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each rival")
    parser.add_argument("--json", help="write the JSON object to this file")
    parser.add_argument("--others", action="store_true", help="time further models too (GPU)")
    parser.add_argument("--kinds", nargs="+", metavar="MODEL", help="only time the kernels of these models (GPU)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if asked.kinds:
        found: dict[str, Any] = {model: {n: kinds_of(model, n, device) for n in (1, 8)} for model in asked.kinds}
    else:
        found = on_cuda(asked, device) if device.type == "cuda" else on_cpu(asked)
    found = {"environment": describe_environment(device), "date": time.strftime("%Y-%m-%d"), **found}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            file.write(text)


class Rows(dict[str, float]):
    """Images per second by name, each printed as it is measured."""

    def __setitem__(self, name: str, rate: float) -> None:
        print(f"{name:44s} {rate:>12,.0f} images/s", flush=True)
        super().__setitem__(name, rate)


def made_up(train_rows: int, other_rows: int, side: int = 32) -> DataSet:
    def split(rows: int, seed: int) -> Split:
        drawn = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8, generator=drawn)
        return Split(images, torch.randint(0, 10, (rows,), generator=drawn), None)

    splits = {"train": split(train_rows, 0), "val": split(other_rows, 1), "test": split(2 * other_rows, 2)}
    return DataSet("made-up", tuple("abcdefghij"), splits, "made-up", {})


def data_of(asked: argparse.Namespace, cpu: bool) -> DataSet:
    if asked.data:
        data = load(asked.data)
        return data if "val" in data.splits else hold_out(data)
    if cpu:
        return hold_out(load("digits"))
    return made_up(640, 100) if asked.quick else made_up(45_000, 5_000)


class UserLoop:
    """A careful user's loop: data on the device, autocast, fused Adam, shuffled batches, no DataLoader."""

    def __init__(self, trial: Trial, job: Job, device: torch.device, compiled: bool):
        self.model, self.criterion = (part.to(device) for part in make(trial, job))
        self.model = self.model.to(memory_format=torch.channels_last).train()
        self.call: Callable[..., torch.Tensor] = torch.compile(self.model) if compiled else self.model
        train_split = job.data.splits["train"]
        self.images, self.labels = train_split.inputs.to(device), train_split.labels.to(device)
        fused = device.type == "cuda"
        self.optimise = torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=ADAM_EPS, fused=fused)
        self.size, self.device = job.batch_size, device
        self.order = torch.randperm(len(self.labels), device=device)
        self.at = 0

    def step(self) -> None:
        if self.at + self.size > len(self.labels):
            self.order, self.at = torch.randperm(len(self.labels), device=self.device), 0
        rows = self.order[self.at : self.at + self.size]
        self.at += self.size
        x = to_float(self.images[rows])
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            outputs = self.call(x)
        loss = self.criterion(outputs, self.labels[rows])
        self.optimise.zero_grad(set_to_none=True)
        loss.backward()
        self.optimise.step()


def seconds(step: Callable[[], None], num_steps: int, warm_up: int) -> float:
    for _ in range(warm_up):
        step()
    wait()
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    wait()
    return (time.perf_counter() - began) / num_steps


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def with_lightning(trial: Trial, job: Job, num_steps: int) -> float | None:
    """Images per second under Lightning's Trainer; None if it is not installed."""
    try:
        import lightning
    except (ImportError, RuntimeError):
        return None
    import logging

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    loop = UserLoop(trial, job, torch.device("cuda"), compiled=False)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.criterion = loop.model, loop.criterion

        def training_step(self, batch: Any, place: int) -> torch.Tensor:
            return self.criterion(self.inner(to_float(batch[0])), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.inner.parameters(), lr=1e-3, eps=ADAM_EPS, fused=True)

    def batches() -> Any:
        for _ in range(num_steps + 20):
            rows = torch.randint(0, len(loop.labels), (loop.size,), device="cuda")
            yield loop.images[rows], loop.labels[rows]

    class Clock(lightning.Callback):
        began = 0.0

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, place: int) -> None:
            if place == 19:
                wait()
                self.began = time.perf_counter()

    clock = Clock()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, precision="bf16-mixed", logger=False, callbacks=[clock],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), batches())
    wait()
    return num_steps * loop.size / (time.perf_counter() - clock.began)


def on_cuda(asked: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    data = data_of(asked, cpu=False)
    training = FAST.with_(epochs=1 if asked.quick else asked.epochs)
    trial = Trial(setting("camri", 3, m=0.2, s=8), 0)
    job = Job(training, data)
    num_steps = 3 if asked.quick else asked.steps
    rows = Rows()
    notes: dict[str, Any] = {"trial": str(trial.setting), "rows_train": job.num_rows, "epochs": training.epochs}

    a, b = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16)
    ceiling = 2 * 8192**3 / seconds(functools.partial(torch.mm, a, b), 20, 3)
    notes["matmul_tflop_s"] = ceiling / 1e12
    del a, b
    flop_per_image = 6 * 568e6  # 568 M multiply-adds forward, twice that backward

    for name, compiled in (("ordinary loop", False), ("ordinary loop, compiled", True)):
        loop = UserLoop(trial, job, device, compiled)
        rows[name] = job.batch_size / seconds(loop.step, num_steps, 10 if compiled else 20)
        del loop
    lightning_rate = with_lightning(trial, job, num_steps)
    if lightning_rate is not None:
        rows["Lightning's Trainer"] = lightning_rate
    large = Job(training.with_(batch_size=1024), data)
    loop = UserLoop(trial, large, device, compiled=True)
    rows["one model at batch 1024, compiled"] = large.batch_size / seconds(loop.step, max(num_steps // 5, 2), 5)
    del loop
    torch.cuda.empty_cache()

    for size in (int(text) for text in asked.packs.split(",")):
        trials = [Trial(trial.setting, seed) for seed in range(size)]
        # The first call of this kind compiles; a later pack of one epoch and one of several give epoch and set-up.
        first_s, short_s = (clocked(trials, data, device, training.with_(epochs=1), size)[0] for _ in range(2))
        torch.cuda.reset_peak_memory_stats()
        whole, accuracies = clocked(trials, data, device, training, size)
        epoch_s = (whole - short_s) / max(training.epochs - 1, 1)
        images = size * training.epochs * job.steps_per_epoch * job.batch_size
        rows[f"engine, {size} side by side, end to end"] = images / whole
        notes[f"engine_{size}"] = {
            "first_call_s": first_s,
            "whole_s": whole,
            "epoch_s": epoch_s,
            "images_per_s_within_epochs": size * job.steps_per_epoch * job.batch_size / epoch_s,
            "set_up_later_s": short_s - epoch_s if training.epochs > 1 else None,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "part_of_ceiling": images / whole * flop_per_image / ceiling,
            "test_accuracy": sum(accuracies) / len(accuracies),
            "trials_per_hour_fast": 3600 * images / whole / (FAST.epochs * job.steps_per_epoch * job.batch_size),
            "trials_per_hour_paper": 3600 * images / whole / (PAPER.epochs * job.steps_per_epoch * job.batch_size),
        }
    best = max(rate for name, rate in rows.items() if name.startswith("engine"))
    if asked.others:
        notes["others"] = beside_their_loops(asked, device, rows)
    notes["best_over_ordinary_loop"] = best / rows["ordinary loop"]
    return {"rows": rows, **notes}


OTHERS = {"resnet18": 32, "timm:resnet10t": 64}  # further models, and the side of their images


def beside_their_loops(asked: argparse.Namespace, device: torch.device, rows: Rows) -> dict[str, float]:
    """Time further models, eight side by side on made-up pixels; return how often faster than their ordinary loop."""
    ratios = {}
    for model, side in OTHERS.items():
        data = made_up(640 if asked.quick else 12_800, 100, side)
        as_they_are = (("preprocessing", Preprocessing().to_text()),) if is_backbone(model) else ()
        training = FAST.with_(model=model, model_options=as_they_are, epochs=2 if asked.quick else 4)
        job, trials = Job(training, data), [Trial(setting("camri", 3, m=0.2, s=8), seed) for seed in range(8)]
        loop = UserLoop(trials[0], job, device, compiled=False)
        rows[f"ordinary loop, {model}, {side} px"] = job.batch_size / seconds(loop.step, asked.steps, 20)
        del loop
        _, short_s = (clocked(trials, data, device, training.with_(epochs=1), 8)[0] for _ in range(2))
        epochs_s = clocked(trials, data, device, training, 8)[0] - short_s
        images = len(trials) * (training.epochs - 1) * job.steps_per_epoch * job.batch_size
        name = f"engine, 8 of {model} side by side, within epochs"
        rows[name] = images / epochs_s
        ratios[model] = rows[name] / rows[f"ordinary loop, {model}, {side} px"]
    return ratios


KINDS = {  # of kernels, by a part of their name; the first that fits
    "compiled": "^triton_",
    "update": "_update",
    "weights' gradients": "weight_gradient|add_parts|wgrad",
    "convolutions and inputs' gradients": "convolve|dgrad|fprop|cudnn|xmma|conv",
    "pooling, norms, sums": "pool|normalise|finish|average|batch_norm",
    "matrix products": "gemm|nvjet|cutlass",
}


def kinds_of(model: str, num_models: int, device: torch.device) -> dict[str, Any]:
    """Kernels of a training step by kind: how many, and their microseconds, a model; the step's own time beside them.

    Kernels of several models overlap, so that their times add up to more than the step's. Profiled are steps of the
    second epoch of `num_models` side by side, on made-up pixels of CIFAR-10's size.
    """
    from camri.engine import cuda

    run = cuda.Pack.run
    found: dict[str, Any] = {}

    def run_profiled(pack: Any, num_steps: int, should_stop: Callable[[], bool]) -> int:
        if pack.replicas[0].record.epoch == 0:
            return run(pack, num_steps, should_stop)
        wait()
        began = time.perf_counter()
        run(pack, num_steps - 20, should_stop)
        wait()
        found["step"] = (time.perf_counter() - began) / (num_steps - 20) / num_models * 1e6
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run(pack, 20, should_stop)
            wait()
        for kernel in profile.key_averages():
            kind = next((kind for kind, names in KINDS.items() if re.search(names, kernel.key)), "other")
            count, spent = found.get(kind, (0, 0))
            found[kind] = (count + kernel.count, spent + kernel.self_device_time_total)
        return num_steps

    cuda.Pack.run = run_profiled  # type: ignore[method-assign]
    try:
        trials = [Trial(setting("camri", 3, m=0.2, s=8), seed) for seed in range(num_models)]
        train(trials, made_up(12_800, 100), device, training=FAST.with_(model=model, epochs=2), pack_size=num_models)
    finally:
        cuda.Pack.run = run  # type: ignore[method-assign]
    step = found.pop("step")
    rows = {
        kind: {"kernels": count / 20 / num_models, "us": spent / 20 / num_models}
        for kind, (count, spent) in found.items()
    }
    return {"step_us": step, "images_per_s": 64e6 / step, "kinds": rows}


def clocked(
    trials: list[Trial], data: DataSet, device: torch.device, training: Training, size: int
) -> tuple[float, list[float]]:
    """Seconds from call to return, and the test accuracy of every model."""
    began = time.perf_counter()
    outcomes = train(trials, data, device, training=training, pack_size=size)
    return time.perf_counter() - began, [outcome.accuracy() for outcome in outcomes]


def on_cpu(asked: argparse.Namespace) -> dict[str, Any]:
    """Time twenty small trials in an ordinary loop, and in the engine with all cores."""
    data = data_of(asked, cpu=True)
    training = Training(model="small", epochs=1 if asked.quick else 20)
    trials = [Trial(setting("camri", 8, m=0.2, s=8), seed) for seed in range(4 if asked.quick else CPU_TRIALS)]
    job = Job(training, data)
    images = len(trials) * training.epochs * job.steps_per_epoch * job.batch_size
    times: dict[str, list[float]] = {"loop": [], "engine": []}
    for _ in range(1 if asked.quick else 3):
        began = time.perf_counter()
        for trial in trials:
            loop = UserLoop(trial, job, torch.device("cpu"), compiled=False)
            for _ in range(job.num_steps):
                loop.step()
            with torch.no_grad():
                for name in ("val", "test"):
                    loop.model.eval()(to_float(data.splits[name].inputs))
        times["loop"].append(time.perf_counter() - began)
        began = time.perf_counter()
        train(trials, data, "cpu", training=training)
        times["engine"].append(time.perf_counter() - began)
    loop_s, engine_s = (sorted(times[name])[len(times[name]) // 2] for name in ("loop", "engine"))
    rows = Rows()
    rows["ordinary loop, one trial after another"] = images / loop_s
    rows["engine, all cores"] = images / engine_s
    return {
        "rows": rows,
        "ratio": loop_s / engine_s,
        "trials": len(trials),
        "seconds": times,
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    main()
