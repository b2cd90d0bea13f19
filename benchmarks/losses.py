"""Time and memory of a cosine head with a margin loss: ours and other implementations.

    PYTHONPATH=. python benchmarks/losses.py --json losses.json

Every contender takes the same features (B, D) and weight (C, D), both with gradients, and gives the mean loss:

- `camri`: `CosineHead` + `margin_softmax`, a margin at one class in ten;
- `camri-arcface`: the same with a constant margin, which is what the others compute;
- `pml`: pytorch-metric-learning's `ArcFaceLoss`, left out where that is not installed;
- `arccos`: a plain ArcFace, gather the label's cosine, arccos, add the margin, cos, scatter it back;
- `one-hot`: the same with a one-hot mask and the arccos of every cosine.

Contenders take turns in random order, one step each, so that other load on the machine affects all alike and no step
finds warm caches. Peak memory is what one step allocates beyond weight, features and labels: on CUDA by the
allocator's statistics, on the CPU by the profiler's record of allocations (the matrix library's scratch is in neither).

On a CPU with C up to 1,000, tell glibc to keep what it is given, or medians show whose turn it was to fault fresh
pages in (with C = 100,000 do not: what it keeps then is all the memory there is):

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=34359738368 MALLOC_TOP_PAD_=268435456
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from camri.heads import CosineHead
from camri.losses import margin_softmax

MARGIN, SCALE, DIM = 0.3, 16.0, 512
SIZES = [(64, 10), (1024, 10), (64, 1_000), (1024, 1_000), (64, 100_000), (1024, 100_000)]
COMPILED_SIZES = [(64, 10), (1024, 1_000), (1024, 100_000)]
QUICK_SIZES = [(8, 10), (16, 50)]
OURS = ("camri", "camri-arcface")
MEASURED = ("camri/heads.py", "camri/losses.py", "camri/checks.py", "benchmarks/losses.py")


class Arccos(nn.Module):
    """ArcFace as a competent user writes it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        cos = F.linear(F.normalize(features), F.normalize(self.weight))
        index = labels[:, None]
        theta = torch.acos(cos.gather(1, index).clamp(-1 + 1e-7, 1 - 1e-7))
        return F.cross_entropy(SCALE * cos.scatter(1, index, torch.cos(theta + MARGIN)), labels)


class OneHot(Arccos):
    """ArcFace as many public codes write it."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        cos = F.linear(F.normalize(features), F.normalize(self.weight))
        widened = torch.cos(torch.acos(cos.clamp(-1 + 1e-7, 1 - 1e-7)) + MARGIN)
        one_hot = F.one_hot(labels, cos.shape[1]).to(cos.dtype)
        return F.cross_entropy(SCALE * (one_hot * widened + (1 - one_hot) * cos), labels)


@dataclass
class Contender:
    name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    weight: Tensor


@dataclass
class Row:
    """One contender in one case; times in seconds, memory in bytes."""

    device: str
    mode: str  # "eager" or "compiled"
    batch: int
    classes: int
    contender: str
    median_s: float
    fastest_s: float
    repeats: int
    peak_bytes: int | None


def make_ours(name: str, weight: Tensor, margins: Tensor) -> Contender:
    head = CosineHead(weight.shape[1], weight.shape[0]).to(weight.device)
    head.weight = nn.Parameter(weight)

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return margin_softmax(head(features), labels, margins, SCALE).mean()

    return Contender(name, loss, head.weight)


def make_pml(weight: Tensor) -> Contender | None:
    try:
        from pytorch_metric_learning.losses import ArcFaceLoss  # type: ignore[import-untyped]
    except ImportError:
        return None
    num_classes, dim = weight.shape
    theirs = ArcFaceLoss(num_classes, dim, margin=math.degrees(MARGIN), scale=SCALE).to(weight.device)
    theirs.W.data = weight.T.contiguous()
    return Contender("pml", theirs, theirs.W)


def make_contenders(weight: Tensor) -> list[Contender]:
    """All contenders that are installed, each with its own copy of the weight."""
    camri = torch.zeros(weight.shape[0], device=weight.device)
    camri[::10] = MARGIN
    arccos, one_hot = Arccos(weight.clone()), OneHot(weight.clone())
    made = [
        make_ours("camri", weight.clone(), camri),
        make_ours("camri-arcface", weight.clone(), torch.full_like(camri, MARGIN)),
        make_pml(weight),
        Contender("arccos", arccos, arccos.weight),
        Contender("one-hot", one_hot, one_hot.weight),
    ]
    return [one for one in made if one is not None]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step(one: Contender, features: Tensor, labels: Tensor) -> Tensor:
    one.weight.grad = features.grad = None
    loss = one.loss(features, labels)
    loss.backward()
    return loss


def measure_times(
    contenders: list[Contender], features: Tensor, labels: Tensor, seconds: float, least: int
) -> dict[str, list[float]]:
    """Seconds per step of each contender, taking turns for at least `seconds` and `least` rounds."""
    device = features.device
    started = time.perf_counter()
    for one in contenders:
        step(one, features, labels)
    synchronize(device)
    # Beside a queue of short kernels one wait for the device is long: several steps share it.
    short = device.type == "cuda" and (time.perf_counter() - started) < 0.01 * len(contenders)
    inner = 10 if short else 1
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    started, rounds, order = time.perf_counter(), 0, random.Random(0)
    while rounds < least or (time.perf_counter() - started < seconds and rounds < 5_000):
        # Drawn anew each round: a fixed order gives each the same neighbour's caches, 3 % apart for equal code.
        for one in order.sample(contenders, len(contenders)):
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(inner):
                step(one, features, labels)
            synchronize(device)
            times[one.name].append((time.perf_counter() - begin) / inner)
        rounds += 1
    return times


def measure_memory(one: Contender, features: Tensor, labels: Tensor) -> int:
    """Peak bytes that one step allocates."""
    one.weight.grad = features.grad = None
    if features.device.type == "cuda":
        synchronize(features.device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(one, features, labels)
        synchronize(features.device)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step(one, features, labels)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    held = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def check_agreement(contenders: list[Contender], features: Tensor, labels: Tensor) -> None:
    """Raise if the contenders do not compute the same loss; `camri` has other margins and is left out."""
    values = {one.name: step(one, features, labels).item() for one in contenders if one.name != "camri"}
    wanted = values["camri-arcface"]
    wrong = {name: value for name, value in values.items() if not math.isclose(value, wanted, rel_tol=1e-3)}
    if wrong:
        raise RuntimeError(f"camri-arcface gives a loss of {wanted}, but {wrong}")


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []:
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 8 << 30


def measure_case(
    device: torch.device, mode: str, batch: int, classes: int, dim: int, seconds: float, least: int
) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(batch, dim, generator=generator).to(device).requires_grad_()
    labels = torch.randint(classes, (batch,), generator=generator).to(device)
    contenders = make_contenders(torch.randn(classes, dim, generator=generator).to(device))
    check_agreement(contenders, features, labels)
    if mode == "compiled":
        contenders = [one for one in contenders if one.name != "camri"]  # compiles to what camri-arcface does
        torch._dynamo.reset()
        for one in contenders:
            one.loss = torch.compile(one.loss, dynamic=False)
    times = measure_times(contenders, features, labels, seconds, least)
    return [
        Row(
            device=device.type,
            mode=mode,
            batch=batch,
            classes=classes,
            contender=one.name,
            median_s=statistics.median(times[one.name]),
            fastest_s=min(times[one.name]),
            repeats=len(times[one.name]),
            peak_bytes=measure_memory(one, features, labels),
        )
        for one in contenders
    ]


def compare(rows: list[Row]) -> list[dict[str, object]]:
    """Ratio of ours to the best of the others, in median and in fastest time; below 1 ours is faster."""
    ratios: list[dict[str, object]] = []
    for row in (row for row in rows if row.contender in OURS):
        case = (row.device, row.mode, row.batch, row.classes)
        others = [o for o in rows if (o.device, o.mode, o.batch, o.classes) == case and o.contender not in OURS]
        best = min(others, key=lambda other: other.median_s)
        ratios.append(
            {
                **dict(zip(("device", "mode", "batch", "classes"), case, strict=True)),
                "contender": row.contender,
                "best_other": best.contender,
                "time_ratio": row.median_s / best.median_s,
                "fastest_ratio": row.fastest_s / min(other.fastest_s for other in others),
                "memory_ratio": row.peak_bytes / best.peak_bytes if row.peak_bytes and best.peak_bytes else None,
            }
        )
    return ratios


def show(rows: list[Row], ratios: list[dict[str, object]]) -> str:
    """The table: a line for each contender and case, with the ratio for ours."""
    lines = [f"{'device':6} {'mode':8} {'B':>5} {'C':>7}  {'contender':14} {'ms':>10} {'fastest':>10} {'n':>5} {'MB':>8}  ratio"]  # fmt: skip  # noqa: E501
    for row in rows:
        mine = [
            r for r in ratios
            if all(r[key] == getattr(row, key) for key in ("device", "mode", "batch", "classes", "contender"))
        ]  # fmt: skip
        ratio = f"{mine[0]['time_ratio']:.2f} of {mine[0]['best_other']}" if mine else ""
        memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:8.1f}"
        lines.append(
            f"{row.device:6} {row.mode:8} {row.batch:5} {row.classes:7}  {row.contender:14} "
            f"{row.median_s * 1e3:10.3f} {row.fastest_s * 1e3:10.3f} {row.repeats:5} {memory:>8}  {ratio}".rstrip()
        )
    return "\n".join(lines)


def describe_machine() -> dict[str, object]:
    """Versions, hardware, commit, threads, load and date of a measurement."""

    def package(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parents[1])
        return done.stdout.strip()

    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    packages = ("torch", "numpy", "pytorch-metric-learning")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "--short", "HEAD") or None,
        "changed_since_commit": bool(git("status", "--porcelain", "--", *MEASURED)),
        "versions": {"python": platform.python_version(), **{name: package(name) for name in packages}},
        "hardware": {
            "cpu": models[0] if models else platform.processor(),
            "num_cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "threads": torch.get_num_threads(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("MALLOC_", "OMP_", "MKL_"))},
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def parse_size(text: str) -> tuple[int, int]:
    batch, classes = text.split("x")
    return int(batch), int(classes)


def run(
    devices: list[str],
    modes: list[str],
    sizes: list[tuple[int, int]] | None,
    quick: bool,
    seconds: float,
    compile_seconds: float,
) -> dict[str, object]:
    """Everything measured, as one object ready for JSON."""
    rows: list[Row] = []
    skipped: list[str] = []
    if make_pml(torch.zeros(2, 2)) is None:
        skipped.append("pml: pytorch-metric-learning is not installed")
    dim, machine, spent = 16 if quick else DIM, describe_machine(), 0.0
    for name in devices:
        device = torch.device(name)
        for mode in modes:
            usual = QUICK_SIZES if quick else SIZES if mode == "eager" else COMPILED_SIZES
            for batch, classes in sizes or usual:
                case = f"{name} {mode} B={batch} C={classes}"
                needed = 4 * (16 * batch * classes + 12 * classes * dim)
                if needed > free_bytes(device):
                    skipped.append(f"{case}: needs about {needed / 1e9:.0f} GB")
                    continue
                if mode == "compiled" and spent > compile_seconds:
                    skipped.append(f"{case}: compiling has taken its {compile_seconds:.0f} s")
                    continue
                started = time.perf_counter()
                rows += measure_case(device, mode, batch, classes, dim, seconds, 3 if quick else 5)
                if mode == "compiled":
                    spent += time.perf_counter() - started
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    settings = {"dim": dim, "margin": MARGIN, "scale": SCALE, "dtype": "float32", "seconds_a_case": seconds}
    return {
        "benchmark": "losses",
        **machine,
        "settings": settings,
        "skipped": skipped,
        "rows": [asdict(row) for row in rows],
        "ratios": compare(rows),
        "table": show(rows, compare(rows)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    available = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--device", choices=["cpu", "cuda"], action="append", help="default: all there are")
    parser.add_argument("--mode", choices=["eager", "compiled"], action="append", help="default: both")
    parser.add_argument("--size", type=parse_size, action="append", metavar="BxC", help="default: the whole table")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, eager: a smoke test, no figures")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case, warm-up aside")
    parser.add_argument("--compile-seconds", type=float, default=40.0, help="skip compiled cases after that many")
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()
    modes = args.mode or (["eager"] if args.quick else ["eager", "compiled"])
    seconds = 0.0 if args.quick else args.seconds
    result = run(args.device or available, modes, args.size, args.quick, seconds, args.compile_seconds)
    print(result.pop("table"))
    for line in result["skipped"]:  # type: ignore[attr-defined]
        print("left out:", line)
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
