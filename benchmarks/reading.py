"""Time and memory of reading labelled scores, beside pyarrow's own read of the same file and numpy's sort of a column.

    python benchmarks/reading.py --folder /tmp/reading --csv 1_000_000 --parquet 10_000_000 --npy 1_000_000x1000

Each figure is of a fresh process; the file was read once before, so that it lies in the system's cache. Prints JSON.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

NUM_CLASSES = 10
ROWS_AT_ONCE = 1_000_000
NAMES = [f"class{k}" for k in range(NUM_CLASSES)]


def draw(num_rows: int, num_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, C) of a model that is right for most rows, and labels."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, num_classes, num_rows)
    logits = drawn.standard_normal((num_rows, num_classes), dtype=np.float32)
    logits[np.arange(num_rows), labels] += 2.5
    return logits, labels


def to_table(num_rows: int, seed: int):
    import pyarrow as pa

    logits, labels = draw(num_rows, NUM_CLASSES, seed)
    odds = np.exp(logits.astype(np.float64))
    shares = odds / odds.sum(axis=1, keepdims=True)
    return pa.table({"label": np.array(NAMES)[labels], **dict(zip(NAMES, shares.T.round(9), strict=True))})


def make_csv(path: Path, num_rows: int) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(to_table(num_rows, 0), path)


def make_parquet(path: Path, num_rows: int) -> None:
    import pyarrow.parquet

    path.mkdir()
    for part, first in enumerate(range(0, num_rows, ROWS_AT_ONCE)):
        table = to_table(min(ROWS_AT_ONCE, num_rows - first), part)
        pyarrow.parquet.write_table(table, path / f"part-{part:04d}.parquet")


def make_npy(path: Path, num_rows: int, num_classes: int) -> None:
    scores = np.lib.format.open_memmap(path, "w+", np.float32, (num_rows, num_classes))
    labels = np.empty(num_rows, np.int64)
    for first in range(0, num_rows, 50_000):
        rows = slice(first, min(first + 50_000, num_rows))
        scores[rows], labels[rows] = draw(rows.stop - first, num_classes, first)
    np.save(path.with_suffix(".labels.npy"), labels)


def read_ours(path: Path) -> int:
    from camri.decision.read import read_file

    labels = path.with_suffix(".labels.npy") if path.suffix == ".npy" else None
    return len(read_file(path, 1 if labels else NAMES[1], labels=labels))


def read_limit(path: Path) -> int:
    """What another library needs to read the same file: pyarrow, and for an .npy numpy's sum of its rows."""
    if path.suffix == ".csv":
        import pyarrow.csv

        return pyarrow.csv.read_csv(path).num_rows
    if path.suffix == ".npy":
        scores = np.load(path, mmap_mode="r")
        return len(scores.sum(axis=1))
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).num_rows


def sort_column(num_rows: int) -> int:
    return len(np.sort(np.random.default_rng(0).standard_normal(num_rows)))


def measure(what: str, argument: str) -> dict[str, float]:
    """Seconds and MiB of a function in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--only", what, argument], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def peak_mib() -> float:
    """The most memory this process held; getrusage would count what its parent held before it, on Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def run_only(what: str, argument: str) -> None:
    made = {"ours": read_ours, "limit": read_limit}
    start = time.perf_counter()
    num = sort_column(int(argument)) if what == "sort" else made[what](Path(argument))
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "rows": num, "seconds": round(seconds, 3), "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "max_rss_mib": round(peak_mib()),
    }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("reading"))
    parser.add_argument("--csv", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--parquet", type=int, nargs="*", default=[10_000_000])
    parser.add_argument("--npy", nargs="*", default=["1_000_000x1000"], metavar="ROWSxCLASSES")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        run_only(*chosen.only)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for num in chosen.csv:
        cases.append((chosen.folder / f"{num}.csv", make_csv, (num,)))
    for num in chosen.parquet:
        cases.append((chosen.folder / f"{num}-parts", make_parquet, (num,)))
    for size in chosen.npy:
        num, num_classes = map(int, size.split("x"))
        cases.append((chosen.folder / f"{num}x{num_classes}.npy", make_npy, (num, num_classes)))
    found = []
    for path, make, sizes in cases:
        if not path.exists():
            make(path, *sizes)
        runs = [measure("ours", str(path)) for _ in range(chosen.repeats)]
        found.append({
            "file": path.name,
            "ours": min(runs, key=lambda one: one["seconds"]),
            "slowest_s": max(one["seconds"] for one in runs),
            "limit": min((measure("limit", str(path)) for _ in range(chosen.repeats)), key=lambda one: one["seconds"]),
            "sort": measure("sort", str(sizes[0])),
        })  # fmt: skip
    told = {
        "processor": platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "repeats": chosen.repeats,
    }
    print(json.dumps({**told, "cases": found}, indent=2))


if __name__ == "__main__":
    main()
