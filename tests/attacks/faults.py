"""Every call that changes a file fails once: a process that has faults.c in it runs commands and forks for each call.

python -m tests.attacks.faults COMMANDS HOWS START:END:STEP prints a line of JSON for each fault, with what came of it.
A HOW is fail (this call alone, EIO), full (nothing is written from it on, ENOSPC) or kill (the process ends there).
"""

import ctypes
import hashlib
import json
import os
import pickle
import shutil
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from camri.decision import Shift
from camri.errors import InputError
from camri.files import replacing
from camri.methods import setting

HOW = {"fail": 1, "full": 2, "kill": 3}


class Command:
    """What is run into a folder that `prepare` has filled; `answer` is what it then holds."""

    def __init__(self):
        self.data, self.made = None, None

    def prepare(self, folder):
        folder.mkdir()

    def run(self, folder):
        raise NotImplementedError

    def answer(self, folder):
        return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in folder.rglob("*")
                if path.is_file() and ".part" not in path.name}  # fmt: skip


def digest(content):
    return hashlib.sha256(content).hexdigest()[:12]


class SaveNew(Command):
    """A model's folder that was not there."""

    def __init__(self):
        from tests.export.conftest import made_trained

        self.made = made_trained("mlp", setting("ce"), (3,), options={"hidden": (4,)})

    def run(self, folder):
        from camri.export import load, save

        save(self.made, folder / "model", card="# New", onnx=False)
        load(folder / "model")


class SaveOver(SaveNew):
    """A model in the place of another, with files beside it."""

    def prepare(self, folder):
        from camri.export import save

        weights = {name: value + np.float32(1) for name, value in self.made.weights.items()}
        folder.mkdir()
        other = replace(self.made, weights=weights, rule=Shift({1: 2.0}), important=(1,))
        save(other, folder / "model", card="# Old", onnx=False)
        (folder / "model" / "model.onnx").write_text("of the old one")
        (folder / "model" / ".env").write_text("TOKEN=1")


class Page(Command):
    """A text in the place of another, as pages, cards, tables and journals are written."""

    def prepare(self, folder):
        folder.mkdir()
        (folder / "report.html").write_text("old")

    def run(self, folder):
        with replacing(folder / "report.html") as part:
            part.write_text("new" * 5000)


class Cache(Command):
    """Decoded images; the answer does not depend on whether they could be kept."""

    def run(self, folder):
        from camri.data.cache import read_cache, write_cache

        made = {"inputs": np.arange(30_000, dtype=np.uint8).reshape(10, 3000)}
        found = read_cache(folder / "a.data")
        self.found = made if found is None else found[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_cache(folder / "a.data", {"rows": 10}, made)

    def answer(self, folder):
        return digest(self.found["inputs"].tobytes())


class NewStore(Command):
    """A run's store with an outcome that is made up."""

    def __init__(self):
        from tests.study import conftest

        self.data, self.study = conftest.data.__wrapped__(), conftest.small.__wrapped__()
        self.made = conftest.made_outcome(self.data, conftest.first_trials(self.study)[0])

    def run(self, folder):
        from camri.study.run_folder import facts_of
        from camri.study.store import Store, open_run
        from tests.study.conftest import put

        if (folder / "outcomes.sqlite").exists():  # as fits and `camri study status` do before they write
            open_run(folder).close()
        with Store.open(folder, facts_of(self.study, self.data)) as store:
            store.add_study(self.study, [((1, 1.0),)])
            put(store, self.made)

    def answer(self, folder):
        from tests.study.test_runner import table

        return digest(pickle.dumps(table(folder)))


class StudyRun(Command):
    """A study with checkpoints at every step."""

    def __init__(self):
        from tests.study import conftest

        self.data = conftest.data.__wrapped__()
        small = conftest.small.__wrapped__()
        self.study = small.with_(
            seeds=[0], methods={"ce": {}, "l2softmax": {"s": [8]}}, training=small.training.with_(epochs=1)
        )

    def run(self, folder):
        from camri.study import runner

        executor = runner.LocalExecutor("cpu", workers=1, checkpoint_every_s=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = runner.run(self.study, folder / "run", executor, data=self.data)
        assert result.finished, result
        assert not result.failed, result

    def answer(self, folder):
        from tests.study.test_runner import table

        return {name: digest(pickle.dumps((outcome.confusion, outcome.scores, outcome.curves, outcome.status)))
                for name, outcome in table(folder / "run").items()}  # fmt: skip


class Fit(Command):
    """A whole fit, without the page and the ONNX file."""

    def __init__(self):
        from camri.export import onnx_file
        from camri.fitting import handover, trainer
        from tests.fitting.conftest import rows

        self.data = rows.__wrapped__()
        trainer.Trainer.workers = 1
        handover.can_draw = onnx_file.is_installed = lambda: False

    def run(self, folder):
        import camri

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            camri.fit(self.data, "storm", folder / "out", num_trials=16, epochs=1, device="cpu")

    def answer(self, folder):
        from camri.export import load

        config = json.loads((folder / "out" / "model" / "config.json").read_text())
        weights = load(folder / "out" / "model").trained.weights
        return config["rule"], {name: digest(value.tobytes()) for name, value in weights.items()}


COMMANDS = {
    "save": SaveNew, "save over": SaveOver, "page": Page, "cache": Cache, "store": NewStore, "study": StudyRun,
    "fit": Fit,
}  # fmt: skip


def in_child(work):
    """What the function returns in a process of its own: (ended, value); ended is right, said, killed or raised."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                found = ("right", work())
            except InputError as error:
                found = ("said", str(error)) if "\n" not in str(error) else ("raised", str(error))
            except BaseException:
                found = ("raised", traceback.format_exc())
            shim.faults_begin(b"", 0, -1)
            pickle.dump(found, os.fdopen(os.dup(file.fileno()), "wb"))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            return "killed" if os.waitstatus_to_exitcode(status) == 137 else f"status {status}", None
        file.seek(0)
        return pickle.load(file)


def attack(command, root, how, number):
    """Run the command with this fault, then without: how each ended, and the answer."""
    folder = root / "place"
    for old in root.iterdir():
        shutil.rmtree(old)
    command.prepare(folder)

    def work():
        shim.faults_begin(os.fsencode(folder), how, number)
        command.run(folder)
        calls = shim.faults_calls()
        shim.faults_begin(b"", 0, -1)
        return calls, command.answer(folder)

    first = in_child(work)
    return first, in_child(lambda: [command.run(folder), command.answer(folder)][1])


def survey(name, how, which, root):
    """Attack the command at these of its calls; print what came of each."""
    command = COMMANDS[name]()
    first, again = attack(command, root, 0, -1)
    assert first[0] == again[0] == "right", (first, again)
    calls, answer = first[1]
    assert again[1] == answer
    for number in range(calls)[which]:
        first, again = attack(command, root, HOW[how], number)
        ended = [first[0], again[0]]
        if first[0] == "right" and first[1][1] != answer:
            ended[0] = "another answer"
        if again[0] == "right" and again[1] != answer:
            ended[1] = "another answer"
        about = [text for got, text in (first, again) if got not in ("right", "killed")]
        found = {"command": name, "how": how, "number": number, "calls": calls, "ended": ended, "about": about}
        print(json.dumps(found), flush=True)


def main(names, hows, which):
    place = slice(*(int(word) if word else None for word in which.split(":")))
    memory = Path("/dev/shm")  # a real disk takes its time to sync
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        for name in names.split(","):
            for how in hows.split(","):
                survey(name, how, place, Path(root))


if __name__ == "__main__":
    shim = ctypes.CDLL(None)
    main(*sys.argv[1:])
