"""Downloads from a local server that breaks off, sends the wrong file, or has none."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from camri.data import download, load
from camri.data.download import OFFICIAL, Official, RemoteFile, fetch
from camri.errors import InputError

from .pictures import picture, write_picture

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    """What the server has, how it misbehaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: int | None = None  # bytes of a body before the connection is cut
    breaks: int = 0  # how often
    status: int | None = None  # answered instead of the file
    knows_ranges: bool = True
    etag: str | None = '"one"'
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            if server.status or self.path not in server.files:
                self.send_error(server.status or 404)
                return
            body, start = server.files[self.path], 0
            if wanted and server.knows_ranges and self.headers.get("If-Range", server.etag) == server.etag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(body)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body) - start))
            if server.etag:
                self.send_header("ETag", server.etag)
            self.end_headers()
            piece = body[start:]
            if server.break_after is not None and server.breaks > 0:
                server.breaks -= 1
                piece = piece[: server.break_after]
            self.wfile.write(piece)
            self.close_connection = True

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE_S", 0.001)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server(files={"/data.bin": CONTENT})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as http:
        state.address = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield state
        http.shutdown()


def quiet(name: str, done: int, total: int | None) -> None:
    pass


def file_at(server: Server, name: str = "data.bin", md5: str | None = MD5) -> RemoteFile:
    return RemoteFile((f"{server.address}/{name}",), md5)


def test_a_whole_file_with_its_progress(server: Server, tmp_path: Path) -> None:
    told = []
    file = fetch(file_at(server), tmp_path, lambda *state: told.append(state))
    assert file.read_bytes() == CONTENT
    assert told[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.bin"]
    fetch(file_at(server), tmp_path, quiet)
    assert len(server.asked) == 1  # it is not fetched twice


def test_broken_connections_are_resumed(server: Server, tmp_path: Path) -> None:
    server.break_after, server.breaks = 70_000, 3
    assert fetch(file_at(server), tmp_path, quiet).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=70000-", "bytes=140000-", "bytes=210000-"]


def test_giving_up_keeps_the_part_and_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    server.break_after, server.breaks = 0, 99
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(InputError, match=r"1,000 bytes are kept: run the same command again to resume"):
        fetch(file_at(server), tmp_path, quiet)
    assert not (tmp_path / "data.bin").exists()
    server.breaks = 0
    assert fetch(file_at(server), tmp_path, quiet).read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=1000-"


def test_a_server_that_cannot_resume_starts_over(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert fetch(file_at(server), tmp_path, quiet).read_bytes() == CONTENT


def test_two_versions_are_never_joined(server: Server, tmp_path: Path) -> None:
    server.files["/data.bin"] = b"old" * 50_000
    server.break_after, server.breaks = 1000, 1
    with pytest.raises(InputError, match="answered 410"):
        fetch(file_at(server), tmp_path, lambda *_: setattr(server, "status", 410))
    assert (tmp_path / "data.bin.part").read_bytes() == (b"old" * 334)[:1000]
    server.files["/data.bin"], server.etag, server.status = CONTENT, '"two"', None
    assert fetch(file_at(server), tmp_path, quiet).read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=1000-"


@pytest.mark.parametrize("extra", [0, 10])
def test_a_part_that_is_already_whole_or_too_long(server: Server, tmp_path: Path, extra: int) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"x" * extra)
    assert fetch(file_at(server), tmp_path, quiet).read_bytes() == CONTENT


def test_a_wrong_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.files["/data.bin"] = b"<html>Please log in</html>"
    with pytest.raises(InputError, match=rf"data.bin is not the official file \(md5 {MD5}\), and was deleted"):
        fetch(file_at(server), tmp_path, quiet)
    with pytest.raises(InputError, match="is not a zip archive"):
        fetch(file_at(server, md5=None), tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_not_found(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/gone.zip answered 404 Not Found; the file may have moved"):
        fetch(file_at(server, "gone.zip"), tmp_path, quiet)
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_failing_server_is_retried_then_given_up(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(InputError, match="it answered 503 Service Unavailable"):
        fetch(file_at(server), tmp_path, quiet)
    assert len(server.asked) == download.ATTEMPTS


def test_an_unreachable_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_S", 0.001)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"could not be downloaded .*refused"):
        fetch(RemoteFile(("http://127.0.0.1:9/x.bin",), MD5), tmp_path, quiet)


def test_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    file = RemoteFile((f"{server.address}/gone.bin", f"{server.address}/data.bin"), MD5)
    assert fetch(file, tmp_path, quiet).read_bytes() == CONTENT


def test_a_disk_too_small(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(InputError, match="has 1,000 bytes free, 300,000 are needed"):
        fetch(file_at(server), tmp_path, quiet)


# Whole data sets


@pytest.fixture
def small_awa2(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """The server has an AwA2 of two classes and nine images."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("Animals_with_Attributes2/classes.txt", "1\tbat\n2\tfox\n")
        for k in range(9):
            image = write_picture(tmp_path / "images" / f"{k}.png", picture(k))
            archive.write(image, f"Animals_with_Attributes2/JPEGImages/{('bat', 'fox')[k % 2]}/{k}.png")
    server.files["/AwA2-data.zip"] = stream.getvalue()
    monkeypatch.setitem(OFFICIAL, "awa2", Official((file_at(server, "AwA2-data.zip", md5=None),), {"train": 9}))
    return server


def test_get_unpacks_checks_and_names_the_folder_last(small_awa2: Server, tmp_path: Path) -> None:
    small_awa2.break_after, small_awa2.breaks = 400, 2
    folder, was_there = download.fetch_official("awa2", tmp_path / "data", quiet)
    assert (folder, was_there) == (tmp_path / "data" / "awa2", False)
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["awa2"]
    data = load(folder)
    assert sum(len(split) for split in data.splits.values()) == 9
    assert download.fetch_official("awa2", tmp_path / "data", quiet) == (folder, True)


def test_two_at_once_do_not_write_into_one_file(small_awa2: Server, tmp_path: Path) -> None:
    def start_another(name: str, done: int, total: int | None) -> None:
        with pytest.raises(InputError, match=r"another process is downloading into .*/\.awa2\.download"):
            download.fetch_official("awa2", tmp_path / "data", quiet)

    folder, was_there = download.fetch_official("awa2", tmp_path / "data", start_another)
    assert (sorted(entry.name for entry in folder.parent.iterdir()), was_there) == (["awa2"], False)
    assert [wanted for _, wanted in small_awa2.asked] == [None]


def test_an_archive_with_images_missing_is_refused(
    small_awa2: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OFFICIAL, "awa2", Official((file_at(small_awa2, "AwA2-data.zip", md5=None),), {"train": 10}))
    with pytest.raises(InputError, match=r"has {'train': 9} images, but awa2 has {'train': 10}"):
        download.fetch_official("awa2", tmp_path / "data", quiet)
    assert not (tmp_path / "data" / "awa2").exists()
    assert list((tmp_path / "data" / ".awa2.download").iterdir()) == []


def test_an_unknown_name_and_an_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'cifar' cannot be fetched; did you mean 'cifar10'\?"):
        download.fetch_official("cifar", tmp_path, quiet)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="choose another folder with --to"):
        download.fetch_official("mnist", tmp_path / "file", quiet)


def test_the_official_addresses_and_checksums() -> None:
    assert OFFICIAL["cifar10"].files[0].md5 == "c58f30108f718f92721af3b95e74349a"
    assert [file.name for file in OFFICIAL["mnist"].files] == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]
    assert OFFICIAL["gtsrb"].unpacked_rows == {"train": 39_209, "test": 12_630}
