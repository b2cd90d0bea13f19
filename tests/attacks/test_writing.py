"""Where the user points: files are replaced, links stay, pipes and devices are written to, the rest is refused."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import camri
from camri.cli import app
from camri.errors import InputError
from camri.export import save
from camri.files import replacing
from camri.methods import setting
from tests.attacks.test_fuzz import table_bytes
from tests.data.pictures import write_folder
from tests.export.conftest import made_trained

ROWS = b"file,predicted\n" + b"a.png,stop\n" * 20_000  # more than a pipe holds
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices have no names there")


def write(path, content=ROWS):
    with replacing(path, "; choose another file with --csv") as part:
        part.write_bytes(content)


def kind(path):
    return stat.S_IFMT(os.lstat(path).st_mode)


@contextlib.contextmanager
def reading(path):
    """Read the pipe in a thread; yields a list that holds its content at the end."""
    found = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    yield found
    reader.join(20)
    assert not reader.is_alive(), "nothing was written to the pipe"


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with reading(tmp_path / "pipe") as found:
        write(tmp_path / "pipe")
    assert found == [ROWS]
    assert kind(tmp_path / "pipe") == stat.S_IFIFO


def test_a_pipe_without_a_reader_at_the_end_is_a_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    handle = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    threading.Timer(0.3, os.close, [handle]).start()
    with pytest.raises(InputError, match=r"pipe cannot be written \(Broken pipe\)"):
        write(tmp_path / "pipe")


@pytest.mark.parametrize("is_link", [False, True])
def test_a_device_is_written_to_and_stays_a_device(tmp_path, is_link):
    def place(device):
        if is_link:
            (tmp_path / device).symlink_to(f"/dev/{device}")
            return tmp_path / device
        number = os.stat(f"/dev/{device}").st_rdev
        with contextlib.suppress(PermissionError):
            os.mknod(tmp_path / device, stat.S_IFCHR | 0o666, number)
            return tmp_path / device
        pytest.skip("devices are made by root only")

    write(place("null"))
    before = kind(place("full") if is_link else "/dev/full")
    with pytest.raises(InputError, match=r"full cannot be written \(No space left on device\)"):
        write(tmp_path / "full" if is_link else place("full"))
    assert kind(tmp_path / "null") == kind(tmp_path / "full") == before == (stat.S_IFLNK if is_link else stat.S_IFCHR)


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    target, link, far = tmp_path / "there" / "rows.csv", tmp_path / "here" / "rows.csv", tmp_path / "far.csv"
    link.symlink_to("../there/rows.csv")
    far.symlink_to(link)
    for path, content in ((link, b"new"), (link, b"newer"), (far, b"newest")):
        write(path, content)
        assert link.is_symlink()
        assert far.is_symlink()
        assert target.read_bytes() == content
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["rows.csv"]


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("no/such/rows.csv")
    for name, why in (("loop", "Too many levels of symbolic links"), ("gone", "No such file or directory")):
        with pytest.raises(InputError, match=rf"{name} cannot be written \({why}\); choose another file"):
            write(tmp_path / name)


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_a_file_keeps_its_mode_and_owner(tmp_path, mode):
    path = tmp_path / "rows.csv"
    path.touch()
    path.chmod(mode)
    if IS_ROOT:
        os.chown(path, 12345, 54321)
    before = path.stat()
    write(path)
    after = path.stat()
    assert path.read_bytes() == ROWS
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize("what", ["read-only file", "link to one", "folder", "link to one's folder"])
def test_what_must_not_be_written_is_refused_before_anything_is_computed(tmp_path, what):
    path, target = tmp_path / "rows.csv", tmp_path / "target"
    if "folder" in what:
        target.mkdir()
    else:
        target.write_bytes(b"mine")
        target.chmod(0o444)
    path.symlink_to(target) if "link" in what else target.rename(path)
    said = r"rows\.csv cannot be written \((it is read-only|Is a directory)\); choose"
    with pytest.raises(InputError, match=said), replacing(path, "; choose another file with --csv"):
        pytest.fail("it was to be computed in vain")
    assert path.is_dir() or path.read_bytes() == b"mine"


def test_another_user_s_file_is_refused():
    """As a user who may write into the folder, but not the file."""
    if not IS_ROOT:
        pytest.skip("root only can become another user")
    with tempfile.TemporaryDirectory() as open_to_all:
        refuse_in(Path(open_to_all))


def refuse_in(tmp_path):
    code = f"""if True:
        import os
        from pathlib import Path
        from camri.errors import InputError
        from camri.files import replacing
        os.setgroups([]); os.setgid(54321); os.setuid(12345)
        try:
            with replacing(Path({str(tmp_path / "rows.csv")!r})) as part:
                part.write_bytes(b"theirs")
        except InputError as error:
            print(error)
    """
    (tmp_path / "rows.csv").write_bytes(b"mine")
    tmp_path.chmod(0o777)
    said = python(code).stdout.decode()
    assert said.endswith("rows.csv cannot be written (it is read-only)\n")
    assert (tmp_path / "rows.csv").read_bytes() == b"mine"


def python(code, **options):
    """Run the code in a process of its own."""
    root = os.path.dirname(os.path.dirname(camri.__file__))
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, check=True,
                          **{"stdout": subprocess.PIPE, **options})  # fmt: skip


INTO_STDOUT = """
from pathlib import Path
from camri.files import replacing
print("before")
with replacing(Path({path!r})) as part:
    part.write_text("rows")
print(" after")
"""


@pytest.mark.parametrize("path", ["-", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("into", ["pipe", "file", "socket"])
def test_standard_output_gets_the_content_in_its_place(tmp_path, monkeypatch, path, into):
    """Also a file that it is redirected to, which a new file in its place would empty.

    /dev/stdout is such a link too. It is not named here: were this to fail, root would lose it.
    """
    monkeypatch.chdir(tmp_path)
    if path == "link":
        os.symlink("/proc/self/fd/1", "link")
    if into == "pipe":
        said = python(INTO_STDOUT.format(path=path)).stdout
    elif into == "file":
        with open(tmp_path / "out", "wb") as stream:
            python(INTO_STDOUT.format(path=path), stdout=stream)
        said = (tmp_path / "out").read_bytes()
    else:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            python(INTO_STDOUT.format(path=path), stdout=theirs)
            said = ours.recv(1000)
    assert said == b"before\nrows after\n"


def test_a_pipe_that_a_shell_made_gets_the_content(tmp_path):
    read, write_to = os.pipe()
    write(Path(f"/dev/fd/{write_to}"), b"rows")
    os.close(write_to)
    assert os.read(read, 100) == b"rows"
    os.close(read)


def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path):
    for name in ("x" * 255, "é" * 127):
        write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == ROWS
        assert len(list(tmp_path.iterdir())) == 1
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"cannot be written \(File name too long\)"):
        write(tmp_path / ("x" * 256))


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    heard, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda handle: [heard.append(os.fstat(handle).st_size), fsync(handle)])
    monkeypatch.setattr("os.replace", lambda part, path: [heard.append(path), replace(part, path)])
    write(tmp_path / "rows.csv")
    assert heard == [len(ROWS), tmp_path / "rows.csv"]


ROOT = Path(camri.__file__).parent
# Where else a name is given to a file: a download that resumes, a cache that is read while it is written, a merged run.
RENAMES = {"files.py", "data/download.py", "data/cache.py", "study/combine.py", "cli/models.py"}


def test_only_one_function_puts_files_where_the_user_points():
    """Nothing else renames, and nothing opens a file to write but the temporary one that it was given."""
    names = ("os.replace(", "os.rename(", ".rename(", "shutil.move(")
    renaming = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py")
                if any(name in path.read_text(encoding="utf-8") for name in names)}  # fmt: skip
    assert renaming == RENAMES


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, InputError), done.exception
    return done


@pytest.fixture(scope="module")
def commands(tmp_path_factory, run_file):
    """The words of each command, up to the file that it writes."""
    root = tmp_path_factory.mktemp("inputs")
    trained = made_trained("mlp", setting("ce"), (2,), options={"hidden": (4,)})
    model = save(trained, root / "model", card="", onnx=False)
    (root / "rows.csv").write_bytes(table_bytes())
    write_folder(root / "pets", {"cat": 2, "dog": 2})
    np.save(root / "rows.npy", np.ones((3, 2)))
    return {
        "predict": ("predict", model, root / "rows.npy", "--csv"),
        "onnx": ("export", model, "--onnx"),
        "torch-export": ("export", model, "--torch-export"),
        "csv": ("study", "export", run_file.parent, "--csv"),
        "parquet": ("study", "export", run_file.parent, "--parquet"),
        "table": ("report", run_file.parent, "--table", "1", "--format", "csv", "--out"),
        "sheet": ("data", "show", root / "pets", "--sheet"),
    }


@pytest.mark.parametrize("name", ["predict", "onnx", "torch-export", "csv", "parquet", "table", "sheet"])
def test_every_command_writes_where_it_is_pointed(commands, tmp_path, name):
    words, ending = commands[name], ".png" if name == "sheet" else ""
    plain, link, pipe, fixed = (tmp_path / f"{kind}{ending}" for kind in ("plain", "link", "pipe", "fixed"))
    assert run(*words, plain).exit_code == 0
    expected = plain.read_bytes()
    plain.write_bytes(b"old")
    link.symlink_to(plain)
    assert run(*words, link).exit_code == 0
    os.mkfifo(pipe)
    with reading(pipe) as found:
        assert run(*words, pipe).exit_code == 0
    fixed.write_bytes(b"mine")
    fixed.chmod(0o444)
    assert "it is read-only" in str(run(*words, fixed).exception)
    assert fixed.read_bytes() == b"mine"
    assert link.is_symlink()
    for written in (plain.read_bytes(), *found, *([] if name == "sheet" else [run(*words, "-").stdout_bytes])):
        assert written == expected or (name in VARY and len(written) == len(expected))


VARY = {"torch-export"}  # what it writes holds random names
