"""Damaged files of every format: read, or refused in a sentence; never a traceback, a hang or another answer.

A few mutations of each format in every run, 1,000 with `make attacks`. A mutation is known by its format and number.
"""

import dataclasses
import io
import json
import random
import shutil
import signal
import sqlite3
import tarfile
import traceback
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import camri
from camri.data import load
from camri.decision import judge, make_goal
from camri.decision.read import read_file
from camri.decision.where import Where
from camri.errors import MOST_SIGNS, InputError
from camri.export import load as load_model
from camri.export import save
from camri.export.inputs import find_inputs
from camri.methods import setting
from camri.study.finalists import status
from camri.study.store import STORE_FILE, open_run
from camri.study.study_file import find_study
from tests.data.pictures import picture, write_folder
from tests.export.conftest import made_trained
from tests.study.test_cli import EXAMPLE

MOST_S = 20  # for one damaged file


def mutate(content, drawn):
    """The bytes with one to four changes: a bit flipped, a piece overwritten, cut out, doubled, or the end cut."""
    content = bytearray(content)
    for _ in range(drawn.choice((1, 1, 2, 4))):
        if not content:
            break
        place = drawn.randrange(len(content))
        piece = content[place : place + drawn.choice((1, 2, 4, 16, 200))]
        other = drawn.randrange(len(content))
        match drawn.randrange(7):
            case 0:
                content[place] ^= 1 << drawn.randrange(8)
            case 1:
                content[place : place + len(piece)] = drawn.randbytes(len(piece))
            case 2:
                del content[place : place + len(piece)]
            case 3:
                content[other:other] = piece
            case 4:
                content[other : other + len(piece)] = piece
            case 5:
                content[place : place + len(piece)] = drawn.choice((b"\0", b"\xff", b"9", b'"', b"-1e308,")) * len(
                    piece
                )
            case 6:
                del content[place:]
    return bytes(content)


def table_bytes():
    rows = [f"{i * 0.37 % 5:.3f},{i * 0.71 % 3:.2f},{'cat' if i % 3 else 'dog'}" for i in range(40)]
    return ("a,b,label\n" + "\n".join(rows)).encode()


def scores_bytes():
    drawn = np.random.default_rng(0)
    rows = drawn.dirichlet((1, 1, 1), 60)
    lines = [",".join(f"{value:.4f}" for value in row) + f",{'abc'[i % 3]}" for i, row in enumerate(rows)]
    return ("a,b,c,label\n" + "\n".join(lines)).encode()


def parquet_bytes():
    file = io.BytesIO()
    images = [image_bytes("PNG", i) for i in range(6)]
    pq.write_table(pa.table({"image": pa.array(images, pa.binary()), "label": ["é", "dog"] * 3}), file)
    return file.getvalue()


def npz_bytes():
    file = io.BytesIO()
    np.savez_compressed(file, x_train=np.arange(60.0).reshape(20, 3), y_train=np.array(["a", "b"] * 10))
    return file.getvalue()


def image_bytes(kind, seed=0):
    file = io.BytesIO()
    Image.fromarray(picture(seed, 24, 20)).save(file, kind)
    return file.getvalue()


def archive_bytes(kind):
    file = io.BytesIO()
    files = {f"pets/{name}/{i}.png": image_bytes("PNG", i) for i in range(3) for name in ("cat", "dog")}
    if kind == "shard":
        files = {f"{i}.{end}": image_bytes("PNG", i) if end == "png" else b"01"[i % 2 :][:1]
                 for i in range(6) for end in ("png", "cls")}  # fmt: skip
    if kind.startswith("zip"):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA if kind == "zip-lzma" else zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=file, mode=f"w:{kind.partition('.')[2]}") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def read_data(path):
    load(path, cache=False)


def read_audit(path):
    rows = read_file(path, "a")
    judge(rows, make_goal(rows, Where()))


FORMATS = {
    "csv": (table_bytes(), "t.csv", read_data),
    "scores": (scores_bytes(), "scores.csv", read_audit),
    "parquet": (parquet_bytes(), "t.parquet", read_data),
    "npz": (npz_bytes(), "t.npz", read_data),
    "zip": (archive_bytes("zip"), "t.zip", read_data),
    "zip-lzma": (archive_bytes("zip-lzma"), "t.zip", read_data),
    "shard": (archive_bytes("shard"), "t.tar", read_data),
    **{kind: (archive_bytes(kind), f"t.{kind}", read_data) for kind in ("tar", "tar.gz", "tar.bz2", "tar.xz")},
    **{kind: (image_bytes(kind), None, read_data) for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP")},
    "toml": (EXAMPLE.read_bytes(), "study.toml", lambda path: find_study(str(path))),
}


class Hang(BaseException):
    """Not an Exception: what reads files takes those, and TimeoutError as an OSError, for a file that is damaged."""


def within_time(number, frame):
    raise Hang


def attack(read, path, name, most_s=MOST_S):
    """Whether the file was refused; anything but a sentence fails the test with the mutation's name."""
    signal.signal(signal.SIGALRM, within_time)
    signal.alarm(most_s)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except InputError as error:
        if "\n" in str(error) or len(str(error)) > MOST_SIGNS:
            pytest.fail(f"{name} is refused in more than a sentence: {str(error)[:500]}")
        return True
    except (Exception, Hang):
        pytest.fail(f"{name}: {traceback.format_exc()}")
    finally:
        signal.alarm(0)
    return False


SOME = [pytest.param(25, id="some"), pytest.param(1000, id="many", marks=pytest.mark.long)]


@pytest.mark.parametrize("num", SOME)
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files(tally, tmp_path, kind, num):
    content, name, read = FORMATS[kind]
    path, target = tmp_path / (name or "pets"), tmp_path / (name or "pets/cat/bad.png")
    if name is None:
        write_folder(path, {"cat": 2, "dog": 2})
    target.write_bytes(content)
    assert not attack(read, path, kind)
    refused = 0
    for number in range(num):
        target.write_bytes(mutate(content, random.Random(f"{kind} {number}")))
        refused += attack(read, path, f"{kind} {number}")
    assert refused
    count(tally, "damaged files, mutations", refused, num)


def count(tally, attack, reported, num, otherwise="read"):
    tally(attack, "reported", reported)
    tally(attack, otherwise, num - reported)


@pytest.mark.parametrize("num", SOME)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_damaged_models(tally, tmp_path, file, num):
    trained = made_trained("small", setting("camri", 1, m=0.2, s=8.0), (6, 5, 3))
    folder = save(trained, tmp_path / "model", card="# card\n", onnx=False)
    write_folder(tmp_path / "images", {"x": 2})
    content = (folder / file).read_bytes()

    def predict(path):
        model = load_model(path)
        for group in find_inputs([str(tmp_path / "images")], model.trained)[0]:
            for chunk in group.chunks(model.trained, lambda num: None):
                assert np.isfinite(model.predict_proba(chunk.inputs)).all()

    assert not attack(predict, folder, "whole")
    reported = 0
    for number in range(num):
        (folder / file).write_bytes(mutate(content, random.Random(f"{file} {number}")))
        reported += attack(predict, folder, f"{file} {number}")
    count(tally, "damaged files, mutations", reported, num)


@pytest.mark.parametrize("num", [pytest.param(60, id="some"), pytest.param(550, id="many", marks=pytest.mark.long)])
def test_a_model_with_a_flipped_bit_is_reported_or_as_before(tally, tmp_path, num):
    trained = made_trained("small", setting("camri", 1, m=0.2, s=8.0), (6, 5, 3))
    folder = save(trained, tmp_path / "model", card="# card\n", onnx=False)
    whole, told = read_model(folder), 0
    for file in ("config.json", "model.safetensors"):
        content = (folder / file).read_bytes()
        for number in range(num):
            drawn, changed, seen = random.Random(f"{file} {number}"), bytearray(content), []
            changed[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
            (folder / file).write_bytes(changed)
            if attack(lambda path, seen=seen: seen.append(read_model(path)), folder, f"{file}, bit {number}"):
                told += 1
            else:
                assert seen == [whole], f"bit {number} of {file} changes the model"
        (folder / file).write_bytes(content)
    assert told
    count(tally, "model, one bit flipped", told, 2 * num, "no effect")


def read_model(folder):
    """All of a model, as text."""
    trained = load_model(folder).trained
    weights = {name: array.tobytes() for name, array in trained.weights.items()}
    return repr((dataclasses.replace(trained, weights=None), weights))


def everything(path):
    """All that a run's store holds, as text; also what its commands show."""
    with open_run(path.parent) as run:
        rows = run.rows(status=None)
        held = [run.facts(), run.columns(), run.plan(), run.studies, run.note("verdict"), rows]
        held += [{name: array.tobytes() for name, array in run.arrays(row).items()} for row in rows]
        held += [(run.important(row), run.logits(row), run.weights(row)) for row in rows]
        held += [run.rows(key=row.key) for row in rows]
    return repr((held, status(path.parent)))


# Bits of the sort that once had an effect in silence come first: text of a row, a plan, an index, a page's head.
@pytest.mark.parametrize("num", [pytest.param(40, id="some"), pytest.param(550, id="many", marks=pytest.mark.long)])
def test_a_store_with_a_flipped_bit_is_reported_or_as_before(tally, tmp_path, run_file, num):
    content, told, same = run_file.read_bytes(), 0, 0
    path = tmp_path / STORE_FILE
    shutil.copy(run_file, path)
    whole = everything(path)
    for number in range(num):
        drawn, changed, seen = random.Random(number), bytearray(content), []
        changed[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        path.write_bytes(changed)
        if attack(lambda path, seen=seen: seen.append(everything(path)), path, f"bit {number}"):
            told += 1
        else:
            assert seen == [whole], f"bit {number} changes what is read"
            same += 1
    assert told
    assert told + same == num
    count(tally, "store, one bit flipped", told, num, "no effect")


@pytest.mark.parametrize("num", SOME)
def test_a_damaged_store(tally, tmp_path, run_file, num):
    path, reported = tmp_path / STORE_FILE, 0
    for number in range(num):
        path.write_bytes(mutate(run_file.read_bytes(), random.Random(number)))
        reported += attack(everything, path, f"store {number}")
    count(tally, "damaged files, mutations", reported, num)


EDITS = [
    "UPDATE outcomes SET setting = '{'",
    "UPDATE outcomes SET environment = 'null' WHERE seed = 0",
    "UPDATE outcomes SET val_recall = '[1, 2'",
    "UPDATE outcomes SET important = '[]'",
    "UPDATE outcomes SET arrays = zeroblob(100)",
    "UPDATE outcomes SET test_accuracy = 0.999",
    "UPDATE outcomes SET seed = 'one' WHERE seed = 1",
    "DELETE FROM outcomes WHERE seed = 1",
    "DELETE FROM plan",
    "UPDATE plan SET setting = 'x' || setting",
    "UPDATE studies SET spec = '[]'",
    "UPDATE meta SET value = '{' WHERE name = 'data'",
    'UPDATE meta SET value = \'["a", "b", "c"]\' WHERE name = \'classes\'',
    "DELETE FROM meta WHERE name = 'columns'",
    "UPDATE labels SET arrays = x'00'",
    "DELETE FROM checks",
    "DROP TABLE plan",
    "DROP TABLE checks",
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("version", [1, 2])
def test_a_store_edited_by_hand(tally, tmp_path, run_file, edit, version):
    path = tmp_path / STORE_FILE
    shutil.copy(run_file, path)
    with sqlite3.connect(path) as connection:
        if version == 1:  # without checksums
            connection.execute("DROP TABLE checks")
            connection.execute("PRAGMA user_version = 1")
            if "checks" in edit:
                return
        connection.execute(edit)
    connection.close()
    is_reported = attack(everything, path, edit)
    assert is_reported or version == 1
    tally("store, edited by SQL", "reported" if is_reported else "read (version 1, without checksums)")


NUMBERS = ("", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "-0.0", "9" * 400, "1e999", "-1", "0x1F", "1,5", "½")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", ["table", "scores", "array"])
def test_bad_numbers(tally, tmp_path, kind, number):
    """In one cell, and in all of a column: refused in a sentence, or every figure of the answer is finite."""
    for cells in (1, 40):
        if kind == "array":
            values = np.arange(120.0).reshape(40, 3)
            try:
                values[:cells, 0] = float(number or "nan")
            except ValueError:
                continue
            path = tmp_path / f"{cells}.npz"
            np.savez(path, x_train=values, y_train=np.array(["a", "b"] * 20))
        else:
            lines = (table_bytes() if kind == "table" else scores_bytes()).decode().splitlines()
            for place in range(1, cells + 1):
                lines[place] = f'"{number}",' + lines[place].partition(",")[2]
            path = tmp_path / f"{cells}.csv"
            path.write_text("\n".join(lines))
        refused = attack(read_finite if kind != "scores" else audit_finite, path, f"{kind} {number!r} {cells}")
        tally("tables, fits, audits of bad numbers", "reported" if refused else "read")


def read_finite(path):
    inputs = load(path, cache=False).splits["train"].inputs.numpy()
    assert np.isfinite(inputs).all()


def audit_finite(path):
    rows = read_file(path, "a")
    json.dumps(judge(rows, make_goal(rows, Where())).to_json(), allow_nan=False)


@pytest.mark.parametrize(("scale", "reason"), [(float("nan"), "is nan"), (float("inf"), "is "), (3e38, "too large")])
def test_a_fit_of_features_that_are_not_finite_is_refused(tmp_path, rows, scale, reason):
    part = rows.splits["train"]
    inputs = part.inputs.clone()
    inputs[:, 1] = torch.where(torch.arange(len(inputs)) % 4 == 0, scale, -scale)
    bad = dataclasses.replace(rows, splits={"train": dataclasses.replace(part, inputs=inputs)})
    with pytest.raises(InputError, match=reason):
        camri.fit(bad, "storm", tmp_path / "out", num_trials=16, epochs=2, device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e30, 3e38, -3e38, float("nan"), float("inf")])
def test_fits_of_bad_numbers(tally, tmp_path, rows, without_files, scale):
    """One of the two features times such a number."""
    part = rows.splits["train"]
    inputs = part.inputs * torch.tensor([1.0, scale])

    def fit(path):
        bad = dataclasses.replace(rows, splits={"train": dataclasses.replace(part, inputs=inputs)})
        fitted = camri.fit(bad, "storm", path, num_trials=16, epochs=2, device="cpu")
        assert np.isfinite(load_model(fitted.model_path).predict_proba(np.ones((2, 2), np.float32))).all()

    refused = attack(fit, tmp_path / "out", f"fit {scale}", most_s=300)
    tally("tables, fits, audits of bad numbers", "reported" if refused else "read")
