"""What nobody foresaw is one sentence too, with the details in a file."""

import re
from pathlib import Path

import pytest

import camri.cli


def run(capsys, *words):
    """The exit code and stderr of the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["camri", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            camri.cli.run()
    return end.value.code, capsys.readouterr().err


@pytest.fixture
def broken(monkeypatch):
    def fail():
        raise RuntimeError("first line\nthe last \x1b[31mline")

    monkeypatch.setattr("camri.cli.study_view.print_recipes", fail)


def test_an_unforeseen_error_is_a_sentence_and_a_log(capsys, broken, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, said = run(capsys, "study", "list")
    assert code == 70
    assert re.fullmatch(r"camri: RuntimeError: the last \S*line\. This is a fault of camri; .*\.log\n", said)
    assert "\x1b" not in said
    (log,) = tmp_path.iterdir()
    assert str(log) in said
    text = Path(log).read_text()
    assert "Traceback (most recent call last)" in text
    assert "'study' 'list'" in text


def test_without_room_for_a_log_the_details_are_printed(capsys, broken, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    code, said = run(capsys, "study", "list")
    assert code == 70
    assert "Traceback" in said
