"""Per-image scores of published runs, and the results that are made from them.

    python -m tools.releases rebuild [FOLDER] [--names NAME…]   # check the files, write results anew from them
    python -m tools.releases add NAME RUN [--folder FOLDER]     # pack a run's scores, note their checksum
    python -m tools.releases add OTHER RUN --compared           # test scores only, to be compared with another file's:
    python -m tools.releases add NAME RUN --compared --against "five models=OTHER" --num-seeds 6

The scores that tables rest on are in reproduce/scores/NAME.sqlite.xz: a run's store with lead, spread and rightness of
each image as float16, for the columns that a trial serves. Screenings are too large for the repository; FOLDER holds
those. GTSRB's columns and three animals at once are in its history. reproduce/releases.json has the checksums and that
commit.
"""

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from camri.errors import InputError, closest
from camri.report.ranking import rank_column, rank_runs
from camri.report.results import write_results
from camri.study.reader import RunReader
from camri.study.store import SCORE_PARTS, STORE_FILE, open_run, sign
from tools.docs import folder_of_results

# So that results name the methods of reproduce/two-sided/methods by their titles everywhere.
sys.path.append(str(Path(__file__).parents[1] / "reproduce/two-sided/methods"))
LIST, SCORES = "releases.json", "scores"
# Values of two bytes: contexts by the place in them save 3 % (1.43 -> 1.38 MB for 24 trials).
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]


def read_list(results: Path) -> dict[str, dict[str, Any]]:
    """Name -> file, bytes, sha256 and commit of every release file.

    "ranked": it is a screening. "compared": it has test scores only. "against": title -> name of files whose
    cross-entropy is compared with its own. "in_commit": the commit whose results/scores has the file, if not this one.
    """
    path = results / LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def home(results: Path, name: str) -> Path:
    """The folder of some results: where it is already, in a claim's folder or not."""
    return next((path for path in results.glob(f"*/{name}") if path.is_dir()), results / name)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pack(store: Path, target: Path, is_compared: bool = False, num_seeds: int | None = None) -> None:
    """Write a store as an .xz file with the scores of each trial's own columns; logits and weights are left out.

    `is_compared`: only test scores are kept, which a comparison of runs needs. `num_seeds`: of the first seeds only.
    """
    with tempfile.TemporaryDirectory() as folder, open_run(store) as run:
        copy = Path(shutil.copyfile(store, Path(folder) / STORE_FILE))
        copy.chmod(0o644)
        classes = {column.number: column.indices for column in run.columns()}
        serves: dict[str, set[int]] = {}
        for planned in run.plan():
            serves.setdefault(planned.key, set()).update(classes[planned.column])
        seeds = sorted({row.seed for row in run.rows()})[:num_seeds]
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            for row in run.rows():
                if row.seed not in seeds:
                    connection.execute("DELETE FROM outcomes WHERE identity = ?", (row.identity,))
                    connection.execute("DELETE FROM checks WHERE what LIKE ?", (f"%/{row.identity}",))
                    continue
                wanted, arrays = sorted(serves[row.key]), run.arrays(row)
                splits = ["test"] if is_compared else list(run.important(row))
                arrays = {name: array for name, array in arrays.items() if not name.startswith("scores.")}
                for split in splits:
                    found = run.scores(row, split, wanted)
                    arrays |= {f"scores.{split}.{part}": getattr(found, part) for part in SCORE_PARTS}
                file = io.BytesIO()
                np.savez(file, **arrays)  # type: ignore[arg-type]  # not compressed: xz does it better
                values = {"arrays": file.getvalue(), "important": json.dumps(dict.fromkeys(splits, wanted))}
                for name, value in {**values, "logits": None, "weights": None}.items():
                    connection.execute(f"UPDATE outcomes SET {name} = ? WHERE identity = ?", (value, row.identity))
                    connection.execute("DELETE FROM checks WHERE what = ?", (f"{name}/{row.identity}",))
                signed = [(f"{name}/{row.identity}", sign([value])) for name, value in values.items()]
                connection.executemany("INSERT INTO checks VALUES (?, ?)", signed)
            connection.commit()
            connection.execute("VACUUM")
        target.write_bytes(lzma.compress(copy.read_bytes(), filters=PACKING))


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The store in a release file, as a plain file for as long as the context lasts."""
    if path.suffix != ".xz":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / STORE_FILE
        store.write_bytes(lzma.decompress(path.read_bytes()))
        yield store


def add(
    name: str,
    run: Path,
    results: Path,
    folder: Path | None = None,
    ranked: bool = False,
    compared: bool = False,
    against: Mapping[str, str] | None = None,
    num_seeds: int | None = None,
) -> None:
    """Pack a run's scores into reproduce/scores, or copy its store into the folder; note it in the list."""
    store = run if run.suffix == ".sqlite" else run / STORE_FILE
    target = (folder or results / SCORES) / (f"{name}.sqlite" if folder else f"{name}.sqlite.xz")
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder is None:
        pack(store, target, compared, num_seeds)
    elif store.resolve() != target.resolve():
        shutil.copyfile(store, target)
    with RunReader(store) as reading:
        commit = " / ".join(reading.environment().get("commit", [])) or None
    entry = {"file": target.name, "bytes": target.stat().st_size, "sha256": checksum(target), "commit": commit}
    more = {"ranked": ranked, **({"compared": True} if compared else {}), **({"against": against} if against else {})}
    found = {**read_list(results), name: {**entry, **more}}
    (results / LIST).write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")


def _checked(entry: Mapping[str, Any], results: Path, folder: Path | None) -> Path | None:
    """Where the entry's file is, None where it is not there; refused if its checksum is another."""
    places = [place / entry["file"] for place in (results / SCORES, folder) if place is not None]
    path = next((place for place in places if place.is_file()), None)
    if path is not None and (found := checksum(path)) != entry["sha256"]:
        raise InputError(f"{path} has the checksum {found}, and {LIST} says {entry['sha256']}; get it again")
    return path


def where_it_is(entry: Mapping[str, Any]) -> str:
    """How to get a file that is in the history only; nothing for others.

    >>> where_it_is({"file": "a.sqlite.xz", "in_commit": "1a2b3c4"})
    '; git show 1a2b3c4:results/scores/a.sqlite.xz >FOLDER/a.sqlite.xz'
    """
    file = entry["file"]
    return f"; git show {entry['in_commit']}:results/{SCORES}/{file} >FOLDER/{file}" if "in_commit" in entry else ""


def write_json(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the records, numbers with seven digits."""
    text = json.dumps(json.loads(json.dumps(records), parse_float=lambda text: float(f"{float(text):.7g}")), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def rebuild(results: Path, folder: Path | None = None, names: Sequence[str] = ()) -> list[str]:
    """Write results anew from their files, all of the list by default; return the names of those not found."""
    missing, listed = [], read_list(results)
    for name in names or listed:
        if name not in listed:
            raise InputError(f"{name!r} is no release file; {closest(name, listed)}")
        entry = listed[name]
        others = entry.get("against", {})
        paths = [_checked(listed[one], results, folder) for one in (name, *others.values())]
        if None in paths:
            missing.append(name)
            continue
        with contextlib.ExitStack() as stack:
            store, *rivals = (stack.enter_context(unpacked(path)) for path in paths if path is not None)
            if not entry["ranked"] and not others:
                if not entry.get("compared"):
                    write_results(store, home(results, name))
                continue
            reading, *found = (stack.enter_context(RunReader(one)) for one in (store, *rivals))
            if others:
                pairs = dict(zip(others, found, strict=True))
                columns = [rank_runs(reading, pairs, number, "test") for number in range(len(reading.columns))]
            else:
                columns = [rank_column(reading, one, "val") for one in reading.columns]
        home(results, name).mkdir(exist_ok=True)
        write_json(home(results, name) / "ranked.json", [record for records in columns for record in records])
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("rebuild")
    again.add_argument("folder", type=Path, nargs="?", help="where files are that the repository lacks")
    again.add_argument("--names", nargs="*", default=[], help="only these")
    new = commands.add_parser("add")
    new.add_argument("name")
    new.add_argument("run", type=Path)
    new.add_argument("--folder", type=Path, help="put the store here, as it is, instead of reproduce/scores")
    new.add_argument("--ranked", action="store_true", help="a screening: only its ranking is shown")
    new.add_argument("--compared", action="store_true", help="test scores only, to be compared with another file's")
    new.add_argument("--num-seeds", type=int, help="the first seeds only")
    new.add_argument("--against", nargs="*", default=[], metavar="TITLE=NAME", help="release files to compare with it")
    asked = parser.parse_args()
    results = folder_of_results(Path(__file__).parents[1])
    if asked.command == "add":
        against = dict(word.split("=", 1) for word in asked.against)
        add(asked.name, asked.run, results, asked.folder, asked.ranked, asked.compared, against, asked.num_seeds)
    else:
        for name in rebuild(results, asked.folder, asked.names):
            print(f"{name}: its file is not there, left as it is{where_it_is(read_list(results)[name])}")


if __name__ == "__main__":
    main()
