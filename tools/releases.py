"""Per-image scores of published runs: files too large for the repository, and the results that are made from them.

    python -m tools.releases rebuild FOLDER [NAME…]    # check the files there, write results/ anew from them
    python -m tools.releases add NAME RUN FOLDER       # put a run's store into the folder, note its checksum

A file is a run's store: settings, seeds and, for each image, lead, spread and rightness as float16, compressed. `camri
report`, `camri study export` and benchmarks/variants/rank.py read it. results/releases.json has the checksums.
"""

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.variants import rank
from camri.errors import InputError, closest
from camri.report.results import write_results
from camri.study.reader import RunReader
from camri.study.store import STORE_FILE

LIST = "releases.json"


def read_list(results: Path) -> dict[str, dict[str, Any]]:
    """Name -> file, bytes, sha256 and commit of every release file; "ranked": it is a screening."""
    path = results / LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add(name: str, run: Path, folder: Path, results: Path, ranked: bool = False) -> None:
    """Copy a run's store into the folder and note it in the list."""
    store = run if run.suffix == ".sqlite" else run / STORE_FILE
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.sqlite"
    if store.resolve() != target.resolve():
        shutil.copyfile(store, target)
    with RunReader(target) as reading:
        commit = " / ".join(reading.environment().get("commit", [])) or None
    entry = {"file": target.name, "bytes": target.stat().st_size, "sha256": checksum(target), "commit": commit}
    found = {**read_list(results), name: {**entry, "ranked": ranked}}
    (results / LIST).write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")


def rebuild(folder: Path, results: Path, names: Sequence[str] = ()) -> list[str]:
    """Write results anew from the files in the folder, all of the list by default; return the names of missing ones."""
    missing, listed = [], read_list(results)
    for name in names or listed:
        if name not in listed:
            raise InputError(f"{name!r} is no release file; {closest(name, listed)}")
        entry, path = listed[name], folder / listed[name]["file"]
        if not path.is_file():
            missing.append(name)
            continue
        if (found := checksum(path)) != entry["sha256"]:
            raise InputError(f"{path} has the checksum {found}, and {LIST} says {entry['sha256']}; get it again")
        if not entry["ranked"]:
            write_results(path, results / name)
            continue
        with RunReader(path) as reading:
            records = [r for one in reading.columns for r in rank.rank_column(reading, one, "val", None, quick=False)]
        (results / name).mkdir(exist_ok=True)
        rank.write_json(results / name / "ranked.json", records)
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("rebuild")
    again.add_argument("folder", type=Path)
    again.add_argument("names", nargs="*")
    new = commands.add_parser("add")
    new.add_argument("name")
    new.add_argument("run", type=Path)
    new.add_argument("folder", type=Path)
    new.add_argument("--ranked", action="store_true", help="a screening: only its ranking is shown")
    asked = parser.parse_args()
    results = Path(__file__).parents[1] / "results"
    if asked.command == "add":
        add(asked.name, asked.run, asked.folder, results, asked.ranked)
    else:
        for name in rebuild(asked.folder, results, asked.names):
            print(f"{name}: not in {asked.folder}, left as it is")


if __name__ == "__main__":
    main()
