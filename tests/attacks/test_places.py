"""Paths that are no files, no room in memory and files that cannot be opened: one sentence each, exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import camri
from camri.data import load
from camri.errors import InputError
from camri.export import load as load_model
from camri.export import save
from camri.export.inputs import find_inputs
from camri.methods import setting
from camri.study.store import open_run
from camri.study.study_file import find_study
from tests.attacks.test_fuzz import attack
from tests.attacks.test_last_resort import run
from tests.data.pictures import write_folder
from tests.export.conftest import made_trained

TRAINED = made_trained("mlp", setting("ce"), (2,), options={"hidden": (4,)})
LONG = "x" * 256


def read_table(path):
    load(path, cache=False)


def predict(path):
    for group in find_inputs([str(path)], TRAINED)[0]:
        if hasattr(group, "why"):
            raise InputError(group.why)


READERS = {
    "t.csv": read_table, "t.parquet": read_table, "t.npz": read_table, "t.tar": read_table, "t.zip": read_table,
    "p.csv": predict, "p.npz": predict, "p.npy": predict, "study.toml": lambda path: find_study(str(path)),
    "study.json": lambda path: find_study(str(path)),
}  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="it takes Linux")
@pytest.mark.parametrize("name", READERS)
def test_a_link_to_a_file_that_never_ends_is_refused_at_once(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/kmsg")
    assert attack(READERS[name], tmp_path / name, name, most_s=5)


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="it takes Linux")
def test_among_images_and_a_model_s_files_too(tmp_path):
    write_folder(tmp_path / "pets", {"cat": 2, "dog": 2})
    (tmp_path / "pets" / "cat" / "a.png").symlink_to("/proc/kmsg")
    assert attack(read_table, tmp_path / "pets", "image", most_s=5)
    for name in ("config.json", "model.safetensors"):
        folder = save(TRAINED, tmp_path / name, card="", onnx=False)
        (folder / name).unlink()
        (folder / name).symlink_to("/proc/kmsg")
        assert attack(load_model, folder, name, most_s=5)


@pytest.mark.parametrize("read", [load, load_model, open_run, lambda path: find_study(str(path)), predict])
@pytest.mark.parametrize("name", [LONG, f"{LONG}.csv", f"{LONG}.npz", f"{LONG}/a.csv", "a\0b.csv", f"{LONG}.toml"])
def test_names_that_no_file_can_have_are_refused(tmp_path, read, name):
    assert attack(read, tmp_path / name, name[-8:])


@pytest.mark.parametrize("words", [
    "fit LONG --important a", "data show LONG.csv", "predict LONG a.png", "export LONG --onnx m.onnx",
    "report LONG", "study status LONG", "study show LONG", "study run LONG.toml --out out",
    "study export LONG --csv a.csv",
    "study merge LONG --out out", "study run digits --out LONG --num-seeds 1", "demo --out LONG",
])  # fmt: skip
def test_commands_with_names_that_no_file_can_have(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, said = run(capsys, *words.replace("LONG", LONG).split())
    assert code == 2, said
    assert said.count("\n") == 1
    assert "fault of camri" not in said


@pytest.mark.parametrize(("error", "sentence"), [
    (MemoryError(), "out of memory"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
    (OSError(36, "File name too long", "x.csv"), "x.csv: File name too long"),
    (PermissionError(13, "Permission denied", "x.csv"), "x.csv: Permission denied"),
    (OSError(28, "No space left on device"), "No space left on device"),
    (OSError(24, "Too many open files", "x" * 5000), "Too many open files"),
])  # fmt: skip
def test_what_the_system_refuses_is_not_called_a_fault_of_camri(capsys, monkeypatch, error, sentence):
    def fail():
        raise error

    monkeypatch.setattr("camri.cli.study_view.print_recipes", fail)
    code, said = run(capsys, "study", "list")
    assert code == 2
    assert sentence in said
    assert "fault" not in said
    assert said.count("\n") == 1
    assert len(said) < 2100


LITTLE = """
import resource, sys
from camri.cli import main
import camri.cli.data, numpy, pyarrow, torch
with open("/proc/self/statm") as pages:
    used = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux")
def test_without_memory_a_command_says_so(tmp_path):
    with open(tmp_path / "t.npz", "wb") as file:
        np.savez(file, x_train=np.zeros((150_000, 400), np.float32), y_train=np.arange(150_000) % 2)
    environment = {**os.environ, "PYTHONPATH": str(Path(camri.__file__).parents[1]), "CAMRI_CACHE": str(tmp_path)}
    words = [sys.executable, "-c", LITTLE, "data", "show", str(tmp_path / "t.npz")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "fault" not in done.stderr


def test_class_names_that_are_no_text_are_refused(tmp_path):
    for name, classes in (("classes", [b"\xff", b"a"]), ("names", [[1, 2], [3, 4]])):
        np.savez(tmp_path / "t.npz", x_train=np.eye(20), y_train=np.arange(20) % 2, **{name: np.array(classes)})
        assert attack(read_table, tmp_path / "t.npz", name)
    np.savez(tmp_path / "t.npz", x_train=np.eye(20), y_train=np.arange(20) % 2, classes=np.array(["é".encode(), b"a"]))
    assert load(tmp_path / "t.npz", cache=False).classes == ("é", "a")


def test_a_problem_with_a_line_of_a_table_is_named_once(tmp_path):
    path = tmp_path / "openquote.csv"
    path.write_text("a,b\n" + "1,2\n" * 30 + '1,"2\n' + "1,2\n" * 9)
    (found,), _ = find_inputs([str(path)], TRAINED)
    assert found.why == "line 32: a quote is opened and never closed; close or remove it"
