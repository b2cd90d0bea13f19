"""The command; `python -m benchmarks.prize --help`."""

import argparse
import json
import sys
import time
from pathlib import Path

import benchmarks.prize
from benchmarks.prize.arms import GROUPS, choose_arms
from benchmarks.prize.judge import judge, show
from benchmarks.prize.store import Folder
from benchmarks.prize.workshop import Workshop
from camri.engine.training import pick_device
from camri.errors import InputError
from camri.files import replacing
from camri.study.study_file import parse_seeds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prize",
        description=benchmarks.prize.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, help="where the trials are kept; the same again goes on")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge what a folder has; nothing is trained")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the verdict here too")
    parser.add_argument("--train-only", action="store_true", help="train and do not judge (that needs no GPU)")
    parser.add_argument("--arms", default=",".join(GROUPS), help="names or letters, with commas; all unless told")
    parser.add_argument("--seeds", default="0-19", help="0-19, or 0,3,7")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--data", default="cifar10", help="cifar10, digits, or what `camri fit` takes")
    parser.add_argument("--important", default="cat", help="the important class, or several: cat+dog")
    parser.add_argument("--ensemble", type=int, default=5, metavar="N", help="models in an ensemble")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pack", type=int, metavar="N", help="seeds side by side: 8 on a GPU, 1 on the CPU")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--max-wall", type=float, metavar="SECONDS", help="train nothing that would end later")
    asked = parser.parse_args()
    began = time.perf_counter()
    try:
        if asked.judge is None:
            if asked.folder is None:
                raise InputError("no folder was named; give --folder to train, or --judge FOLDER")
            folder = train(asked, began)
        else:
            folder = Folder(asked.judge)
        if not asked.train_only:
            tell(folder, asked.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def train(asked: argparse.Namespace, began: float) -> Folder:
    """The folder with every trial that was asked for, or with as many as the time allows."""
    arms, device = choose_arms(asked.arms.split(",")), pick_device(asked.device)
    seeds = parse_seeds(asked.seeds)
    for name in ("ensemble", "pack"):
        if (number := getattr(asked, name)) is not None and number < 1:
            raise InputError(f"--{name} {number} is not allowed; give a number of models from 1 on")
    shop = Workshop.open(
        asked.folder, asked.data, asked.important, epochs=asked.epochs, ensemble=asked.ensemble, device=device
    )
    shop.captures = device.type == "cuda" and not asked.eager
    until = None if asked.max_wall is None else began + asked.max_wall
    for arm in arms:
        if not shop.train_arm(arm, seeds, asked.pack or (8 if device.type == "cuda" else 1), until):
            print(f"--max-wall {asked.max_wall:g} is near; the same call again goes on", file=sys.stderr)
            break
    return shop.folder


def tell(folder: Folder, out: Path | None) -> None:
    verdict = judge(folder)
    text = json.dumps(verdict, indent=1, ensure_ascii=False)
    print(text)
    print(show(verdict), file=sys.stderr)
    if out is not None:
        with replacing(out) as part:
            part.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
