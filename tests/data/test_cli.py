"""`camri data`: what it prints, what it draws, how it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from camri.cli import app
from camri.cli import run as run_command
from camri.data import load
from camri.data.dataset import DataSet, Split, assemble
from camri.data.describe import TILE_PX, _tile_shape, contact_sheet, describe

from .pictures import picture, write_folder, write_picture

RUNNER = CliRunner()


def run(*arguments: object) -> str:
    result = RUNNER.invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_prints_what_was_recognised(tmp_path: Path) -> None:
    write_folder(tmp_path / "d" / "train", {"cat": 3, "dog [old]": 2})
    write_folder(tmp_path / "d" / "test", {"cat": 1, "dog [old]": 1}, first_seed=3)
    heading, shape, *notes = run("show", tmp_path / "d").splitlines()
    assert heading == "d  image folder; 2 classes; 5 train, 2 test"
    assert shape == "images of 6 x 5 x 3 (height x width x channels); resident, 0.0 MiB"
    streamed = " ".join(run("show", tmp_path / "d", "--resident", "100").splitlines()[1:3])
    assert "; streamed from the cache, 0.0 MiB being more than resident=0.0 MiB" in streamed
    assert notes[0].startswith(
        "note: 2 of 2 test images are exact copies of train images (test/cat/000.png is train/dog [old]/000.png)"
    )
    assert notes[-3:] == ["class      train  test", "cat            3     1", "dog [old]      2     1"]


def test_show_lists_sizes_groups_splits_and_left_out_files(tmp_path: Path) -> None:
    for k in range(6):
        write_picture(tmp_path / f"{k}.png", picture(k, height=10 + k, width=12))
    (tmp_path / "5.png").write_bytes(b"no image")
    rows = "".join(f"{k}.png,{'ab'[k % 2]},{k // 2}\n" for k in range(6))
    (tmp_path / "t.csv").write_text("file,finding,patient\n" + rows)
    out = run("show", tmp_path / "t.csv", "--skip-bad", "--label-column", "finding", "--group-column", "patient")
    lines = out.replace("\n", " ")
    assert "files are 10 x 12 to 14 x 12 pixels" in lines
    assert "resized to 16x16" in lines
    assert "3 groups in train; splits keep a group together" in lines
    assert "skipped as unreadable: 1   5.png: it is not an image" in lines
    assert "test: 539 rows held out of train by class, seed 0" in run("show", "digits")


def test_show_cuts_a_long_list_of_left_out_files_and_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_picture(tmp_path / name / "good.png", picture(0))
        for k in range(11):
            (tmp_path / name / f"{k:02}.png").write_bytes(b"no image")
    out = run("show", tmp_path, "--skip-bad")
    assert "skipped as unreadable: 22\n  a/00.png: " in out
    assert "  b/08.png: " in out
    assert "b/09.png" not in out
    assert "\n  … and 2 more (--json lists all)\n" in out


def test_show_lists_copies_columns_and_what_is_doubtful(tmp_path: Path) -> None:
    for k in range(4):
        write_picture(tmp_path / f"{k}.png", picture(k % 3))
    (tmp_path / "t.csv").write_text("file,class,label\n0.png,x,Cat\n1.png,x,cat\n2.png,x,dog\n3.png,x,Cat\n")
    columns, unused, copies, note = run("show", tmp_path / "t.csv").splitlines()[2:6]
    assert columns == "label column: label, path column: file"
    assert unused == "unused columns: class"
    assert copies.startswith("copies: 1 rows of train")
    assert note.startswith("note: classes 'Cat' and 'cat'")


def test_show_lists_which_column_groups_the_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,patient,label,split\n1,p,a,train\n2,p,b,train\n3,q,a,test\n4,q,b,test\n")
    wanted = "label column: label, num feature columns: 1, group column: patient"
    lines = run("show", tmp_path / "t.csv", "--group-column", "patient").splitlines()
    assert lines[2:4] == [wanted, "1 groups in train; splits keep a group together"]


def test_warnings_are_one_line_without_a_place_in_the_code(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,label\n1.5,NA\n2.5,b\n")
    script = (
        "import sys, camri.cli\n"
        "camri.cli.data.app.command('load')(lambda source: __import__('camri.data').data.load(source) and None)\n"
        "sys.argv = ['camri', 'data', 'load', sys.argv[1]]\ncamri.cli.main()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "t.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("warning: t: 'NA' is read as a class")
    assert done.stderr.count("\n") == 1


def test_show_as_json(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 3, "b": 2})
    told = json.loads(run("show", tmp_path, "--json", "--sheet", tmp_path.parent / "s.png"))
    assert told["classes"] == {"a": [3], "b": [2]}
    assert told["rows"] == {"train": 5}
    assert told["original_sizes"] == {"smallest": [6, 5], "largest": [6, 5]}
    assert told["fingerprint"] == load(tmp_path).fingerprint


def test_the_contact_sheet_shows_the_images_of_each_class(tmp_path: Path) -> None:
    colours = {"red": (255, 0, 0), "blue": (0, 0, 255)}
    for name, colour in colours.items():
        for k in range(3):
            write_picture(tmp_path / "d" / name / f"{k}.png", np.full((32, 32, 3), colour, np.uint8))
    run("show", tmp_path / "d", "--sheet", tmp_path / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "sheet.png"))
    blue, red = ((pixels == colours[name]).all(axis=-1) for name in ("blue", "red"))
    assert blue.sum() == red.sum() == 3 * TILE_PX**2
    assert np.argwhere(blue)[:, 0].max() < np.argwhere(red)[:, 0].min()  # rows in the order of the classes


def made(num_classes: int, inputs: torch.Tensor, labels: torch.Tensor) -> DataSet:
    names = tuple(f"a very long name of a class that does not fit {k}" for k in range(num_classes))
    return assemble("made", names, {"train": Split(inputs, labels)}, {"skipped_note": "two", "notes": ["three"]})


def test_the_contact_sheet_has_names_and_images_evenly_over_the_data_in_their_shape() -> None:
    greys = torch.arange(60, dtype=torch.uint8)[:, None, None, None].expand(60, 8, 16, 1).contiguous()
    data = made(2, greys, torch.arange(60) % 2)
    image, legend = contact_sheet(data)
    assert legend == {}
    sheet = np.asarray(image).astype(int)
    tiles = sheet[60:, 270:]  # below the head, right of the names: 32 x 64 pixels and gaps of 6
    for index in range(2):
        row = tiles[index * 38 : index * 38 + 32]
        found = [row[:, left : left + 64] for left in range(0, 12 * 70, 70)]
        assert all((one == one[0, 0]).all() for one in found)
        rows = [round(step * 29 / 11) for step in range(12)]
        assert [int(one[0, 0, 0]) for one in found] == [2 * row + index for row in rows]
        names = sheet[60 + index * 38 : 60 + index * 38 + 32, 12:246]
        assert (names.min(axis=(1, 2)) < 100).sum() > 10, "the name and the counts are written"
    assert sheet[61, 1].tolist() == [255] * 3
    assert sheet[99, 1].tolist() == [0xF4] * 3, "every other row has a ground"
    assert describe(data)["notes"] == ["three"]
    assert describe(data)["skipped"] == []


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((8, 16), (32, 64)), ((40, 20), (80, 40)), ((128, 64), (64, 32)), ((1000, 1), (64, 1)), ((1, 1000), (1, 64))],
)
def test_a_tile_keeps_the_shape_and_a_small_image_s_pixels_are_whole(shape, tile) -> None:
    assert _tile_shape(*shape) == tile


def test_the_contact_sheet_stops_at_fifty_classes() -> None:
    for num, foot in ((60, 26), (50, 8)):
        data = made(num, torch.zeros(num, 8, 8, 1, dtype=torch.uint8), torch.arange(num))
        sheet = np.asarray(contact_sheet(data)[0])
        assert sheet.shape[0] == 60 + 50 * (TILE_PX + 6) + foot
        assert bool(sheet[-foot + 4 :].min() < 150) is (num > 50), "how many more there are"


def test_names_without_glyphs_are_numbers_on_the_sheet_and_in_the_legend(tmp_path: Path) -> None:
    """Class names and the title in letters that the font lacks would all be drawn as the same boxes."""
    write_folder(tmp_path / "写真", {"犬": 2, "猫": 2, "bird": 2})
    write_folder(tmp_path / "data set", {"class 1": 2, "class 2": 2, "bird": 2})
    out = run("show", tmp_path / "写真", "--sheet", tmp_path / "a.png")
    assert out.splitlines()[-3:] == [f"contact sheet: {tmp_path}/a.png", "  class 1: 犬", "  class 2: 猫"]
    run("show", tmp_path / "data set", "--sheet", tmp_path / "b.png")
    left = [np.asarray(Image.open(tmp_path / f"{name}.png"))[:, :270] for name in "ab"]
    assert np.array_equal(left[0], left[1])


def refuse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["camri", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        run_command()
    assert exit_info.value.code == 2
    return capsys.readouterr().err


def test_refusals_are_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = refuse(capsys, monkeypatch, "show", "cifar")
    assert error == (
        "camri: 'cifar' is neither a path nor a known data set; did you mean 'cifar10'? "
        "choices: digits, mnist, cifar10, gtsrb, awa2\n"
    )
    assert "must end in .png" in refuse(capsys, monkeypatch, "show", "digits", "--sheet", "x.jpg")
    assert "cannot be written" in refuse(capsys, monkeypatch, "show", "digits", "--sheet", tmp_path / "no" / "x.png")
    np.savez(tmp_path / "f.npz", features=np.eye(4), labels=[0, 1, 0, 1])
    assert "no contact sheet" in refuse(capsys, monkeypatch, "show", tmp_path / "f.npz", "--sheet", tmp_path / "x.png")
    error = refuse(capsys, monkeypatch, "get", "iris", "--to", tmp_path)
    assert error == "camri: 'iris' cannot be fetched; choices: cifar10, mnist, gtsrb, awa2\n"


def test_get_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from camri.data import download

    monkeypatch.setattr(download, "fetch_official", lambda name, to, report: (report("f", 1, 2), (to / name, False))[1])
    assert run("get", "mnist", "--to", tmp_path).splitlines() == [
        f"mnist is in {tmp_path}/mnist (11 MB, checked by md5)",
        f"Show it with: camri data show {tmp_path}/mnist",
    ]


@pytest.mark.parametrize("command", [(), ("show",), ("get",)])
def test_help_has_examples_and_loads_no_torch(command: tuple[str, ...]) -> None:
    script = (
        "import sys\nfrom camri.cli import app\n"
        f"sys.argv = ['camri', 'data', *{command!r}, '--help']\n"
        "try:\n    app()\nfinally:\n    assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    if command:
        assert f"camri data {command[0]}" in done.stdout.split("Examples")[1]
