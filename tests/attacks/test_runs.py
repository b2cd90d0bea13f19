"""The main process is killed, its disk fills, its clock jumps: nothing is lost, trained twice or different."""

import contextlib
import datetime
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import camri
from camri.errors import InputError
from camri.fitting import handover, trainer
from camri.study import runner
from camri.study import store as store_module
from camri.study.finalists import status
from camri.study.runner import LocalExecutor
from camri.study.store import STORE_FILE, open_run
from tests.attacks.test_fuzz import mutate
from tests.fitting.conftest import facts, weights_of
from tests.study.test_cli import EXAMPLE
from tests.study.test_runner import SERVER, assert_same_table, longer, table, wait_until

pytestmark = pytest.mark.long
FIT = {"num_trials": 16, "epochs": 4, "device": "cpu"}
KILLS = 10  # in one test
YEAR_S = 365 * 86_400


def begin(target, *arguments):
    """A process of its own that calls the function; for bad input its exit code is 2, and `said` has the sentence."""
    said, writer = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_call, args=(writer, target, *arguments))
    process.said = said
    process.start()
    return process


def _call(writer, target, *arguments):
    try:
        target(*arguments)
    except InputError as error:
        writer.send(str(error))
        sys.exit(2)


def run_study(folder, spec, data, max_bytes=None, jumps=None):
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
    if jumps is not None:
        _let_the_clock_jump(random.Random(jumps))
    runner.run(spec, folder, LocalExecutor("cpu", workers=1, checkpoint_every_s=0.0), data=data)


def run_fit(folder, rows, max_bytes=None):
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
    trainer.Trainer.workers = 1
    handover.write_page = lambda folder: folder
    camri.fit(rows, "storm", folder, **FIT)


def end(process):
    process.join()
    return process.exitcode


def kill_within(process, seconds):
    """Kill it after `seconds`; return whether it was killed (it may have ended before)."""
    process.join(timeout=seconds)
    if process.exitcode is not None:
        assert process.exitcode == 0
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


@pytest.fixture(scope="module")
def whole(data, small, tmp_path_factory):
    """The study without disturbance: its spec, folder and seconds."""
    spec, folder = longer.__wrapped__(small), tmp_path_factory.mktemp("whole") / "run"
    began = time.monotonic()
    assert end(begin(run_study, folder, spec, data)) == 0
    return spec, folder, time.monotonic() - began


def kill_once(folder, whole, data, drawn):
    """Run the study into the folder and kill it as some outcomes are stored, before the last one."""
    spec, undisturbed, _ = whole
    process, some = begin(run_study, folder, spec, data), drawn.randrange(1, len(table(undisturbed)))
    wait_until(lambda: num_stored(folder) >= some, process)
    assert kill_within(process, drawn.uniform(0, 0.05))


def num_stored(folder):
    """The number of outcomes in the store of a running process."""
    with contextlib.suppress(sqlite3.OperationalError):
        connection = sqlite3.connect(f"file:{folder / STORE_FILE}?mode=ro", uri=True)
        with contextlib.closing(connection):
            return connection.execute("SELECT count(*) FROM outcomes").fetchone()[0]
    return 0


def stored(folder):
    """The outcomes in a run's store, which is checked; none if there is no store yet."""
    if not (folder / STORE_FILE).exists():
        return {}
    rows = table(folder)
    with sqlite3.connect(folder / STORE_FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_a_study_whose_process_is_killed(tally, data, whole, tmp_path, seed):
    spec, undisturbed, whole_s = whole
    drawn, folder, kills, before = random.Random(seed), tmp_path / "run", 0, {}
    while kills < KILLS:
        if kill_within(begin(run_study, folder, spec, data), drawn.uniform(0, whole_s / 4)):
            after = stored(folder)
            assert before.keys() <= after.keys(), "an outcome is lost"
            before, kills = after, kills + 1
            tally("study, main process killed", "nothing lost")
        else:
            assert_same_table(folder, undisturbed)
            shutil.rmtree(folder)
            before, whole_s = {}, whole_s * 0.8  # other programs slowed the first run down
    assert end(begin(run_study, folder, spec, data)) == 0
    assert_same_table(folder, undisturbed)
    with open_run(folder) as run, open_run(undisturbed) as other:
        assert run.columns() == other.columns()
        assert {row.attempts for row in run.rows()} == {1}
    assert not list(folder.glob("*.part"))


def test_a_command_with_workers_whose_process_is_killed(tally, tmp_path):
    """The whole command, with two worker processes: none of them outlives it."""
    environment = {**os.environ, "CAMRI_ATTACK": str(tmp_path), "PYTHONPATH": str(Path(camri.__file__).parents[1])}
    options = ["--device", "cpu", "--workers", "2"]

    def start(folder):
        words = ["study", "run", str(EXAMPLE), "--out", str(folder), *options]
        return subprocess.Popen([sys.executable, "-m", "camri", *words], env=environment, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    whole_s, drawn, kills = time.monotonic() - began, random.Random(0), 0
    while kills < 8:
        process = start(tmp_path / "killed")
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(drawn.uniform(0.3, 0.95) * whole_s) == 0
            shutil.rmtree(tmp_path / "killed")
            whole_s *= 0.8
            continue
        process.kill()
        process.wait()
        kills += 1
        patience = time.monotonic() + 20
        while left := living(f"CAMRI_ATTACK={tmp_path}"):
            assert time.monotonic() < patience, f"processes {left} outlive the one that started them"
            time.sleep(0.1)
        tally("study, main process killed", "nothing lost")
    assert start(tmp_path / "killed").wait() == 0
    assert_same_table(tmp_path / "killed", tmp_path / "whole")


def living(variable):
    """Processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def whole_fit(rows, tmp_path_factory):
    """The fit without disturbance, run again to have its record, and its seconds."""
    folder = tmp_path_factory.mktemp("fit") / "out"
    began = time.monotonic()
    assert end(begin(run_fit, folder, rows)) == 0
    return again(folder, rows), time.monotonic() - began


def again(folder, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "workers", 1)
        patch.setattr(handover, "write_page", lambda folder: folder)
        return camri.fit(rows, "storm", folder, **FIT)


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_whose_process_is_killed(tally, rows, whole_fit, tmp_path, seed):
    undisturbed, whole_s = whole_fit
    drawn, kills = random.Random(seed), 0
    for number in range(100):
        folder = tmp_path / str(number)
        while kills < KILLS and kill_within(begin(run_fit, folder, rows), drawn.uniform(0, whole_s / 3)):
            kills += 1
            tally("fit, main process killed", "the same weights")
        fitted = again(folder, rows)
        assert facts(fitted) == facts(undisturbed)
        assert weights_of(fitted) == weights_of(undisturbed)
        whole_s *= 0.9  # other programs may have slowed the first fit down
        if kills == KILLS:
            break
    assert kills == KILLS


@pytest.fixture
def disk(tmp_path):
    """A function that mounts a disk of a given size, or changes its size or options."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(options):
        options = f"remount,{options}" if mounted else options
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode and not mounted:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        assert not done.returncode, done.stderr
        mounted.append(options)
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", place], check=True)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


MISHAPS = "three writers, read-only, disk full, -wal damaged, clock jumps"


@pytest.mark.parametrize("part", [0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
def test_a_disk_that_is_full(tally, data, whole, disk, tmp_path, part):
    spec, undisturbed, _ = whole
    place = disk(f"size={max(4096, int(part * size_of(undisturbed)))}")
    folder = place / "run"
    process = begin(run_study, folder, spec, data)
    assert end(process) == 2
    said = process.said.recv()
    assert "disk is full" in said or "No space left" in said or "disk I/O error" in said, said
    disk("size=64m")
    run_study(folder, spec, data)
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")


@pytest.mark.parametrize("part", [0.02, 0.2, 0.4, 0.6, 0.8])
def test_a_limit_on_the_size_of_files(tally, data, whole, tmp_path, part):
    spec, undisturbed, _ = whole
    folder = tmp_path / "run"
    limit = int(part * (undisturbed / STORE_FILE).stat().st_size)
    process = begin(run_study, folder, spec, data, limit)
    assert end(process) == 2
    assert "\n" not in process.said.recv()
    assert end(begin(run_study, folder, spec, data)) == 0
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")


@pytest.mark.parametrize("kib", range(8, 129, 8))
@pytest.mark.parametrize("what", ["disk", "file"])
def test_a_fit_with_little_room(tally, rows, whole_fit, tmp_path, request, what, kib):
    """A disk of this size, or a limit on the size of files: one sentence, and with room the same fit."""
    undisturbed, _ = whole_fit
    place = request.getfixturevalue("disk")(f"size={kib}k") if what == "disk" else tmp_path
    folder = place / "out"
    process = begin(run_fit, folder, rows, kib * 1024 if what == "file" else None)
    if end(process) != 0:
        assert process.exitcode == 2
        assert "\n" not in process.said.recv()
    if what == "disk":
        request.getfixturevalue("disk")("size=64m")
    assert end(begin(run_fit, folder, rows)) == 0
    assert weights_of(again(folder, rows)) == weights_of(undisturbed)
    tally("fit on a disk of 8 to 128 KiB, files of at most as much", "the same weights")


@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_becomes_read_only(tally, data, whole, disk, tmp_path, seed):
    spec, undisturbed, _ = whole
    folder = disk("size=64m") / "run"
    kill_once(folder, whole, data, random.Random(seed))
    kept = stored(folder)
    disk("ro")
    with pytest.raises(InputError, match=r"(?i)cannot be written|read-only"):
        run_study(folder, spec, data)
    if kept:
        assert table(folder).keys() == kept.keys()
        assert status(folder).done == len(kept)
    disk("rw")
    run_study(folder, spec, data)
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")


@pytest.mark.parametrize("seed", range(6))
def test_several_writers_of_one_store(tally, data, whole, tmp_path, seed):
    """Three at once, one of them killed; all but one are refused, and the next gets on with it."""
    spec, undisturbed, whole_s = whole
    folder, drawn = tmp_path / "run", random.Random(seed)
    processes = [begin(run_study, folder, spec, data) for _ in range(3)]
    time.sleep(drawn.uniform(0, whole_s / 2))
    killed = drawn.choice(processes)
    killed.kill()
    ends = sorted(end(process) for process in processes)
    assert set(ends) <= {0, 2, -signal.SIGKILL}
    assert ends.count(0) <= 1 or killed.exitcode == 0
    assert end(begin(run_study, folder, spec, data)) == 0
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_write_ahead_log(tally, data, whole, tmp_path, seed):
    spec, undisturbed, _ = whole
    folder, drawn = tmp_path / "run", random.Random(seed)
    log = folder / f"{STORE_FILE}-wal"
    while not log.exists() or not log.stat().st_size:
        shutil.rmtree(folder, ignore_errors=True)
        kill_once(folder, whole, data, drawn)
    log.write_bytes(mutate(log.read_bytes(), drawn))
    assert end(begin(run_study, folder, spec, data)) == 0
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")


def _let_the_clock_jump(drawn):
    """Every look at the clock finds another year, before or after."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + drawn.uniform(-40, 40) * YEAR_S
    time.time_ns = lambda: now_ns() + drawn.randrange(-40 * YEAR_S, 40 * YEAR_S) * 10**9

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.datetime.now(zone) + datetime.timedelta(days=drawn.uniform(-15_000, 15_000))

    store_module.datetime = Clock


@pytest.mark.parametrize("seed", range(6))
def test_a_clock_that_jumps(tally, data, whole, tmp_path, seed):
    spec, undisturbed, _ = whole
    folder, drawn = tmp_path / "run", random.Random(seed)
    kill_once(folder, whole, data, drawn)
    for path in folder.rglob("*"):
        os.utime(path, (drawn.uniform(0, 100 * YEAR_S),) * 2)
    assert end(begin(run_study, folder, spec, data, None, seed)) == 0
    assert_same_table(folder, undisturbed)
    tally(MISHAPS, "reported, resumed to the same table")
