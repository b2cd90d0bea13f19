"""Tables that were written on another machine: their paths lead nowhere, and the images are beside them."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from camri.data import load
from camri.errors import InputError
from camri.export import Model
from camri.export.inputs import find_inputs
from camri.methods import setting
from tests.data.pictures import write_folder
from tests.data.test_official import write_gtsrb
from tests.export.conftest import made_trained

PREFIXES = ("/code/data/", "C:\\Users\\me\\", "\\\\server\\share\\", "../other/place/", "pets/", "/")
BEGINS = pytest.mark.filterwarnings("ignore:.*begin with")


def write_table(root, prefix, counts=(("cat", 3), ("dog", 3))):
    """A table whose paths have that beginning; returns it and the pixels by file."""
    written = write_folder(root, dict(counts))
    names = [prefix + (name.replace("/", "\\") if "\\" in prefix else name) for name in written]
    table = root / "table.csv"
    table.write_text("path,label\n" + "".join(f"{n},{w.split('/')[0]}\n" for n, w in zip(names, written, strict=True)))
    return table, written


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_longest_tail_that_exists_is_used_and_reported(tmp_path, prefix):
    table, written = write_table(tmp_path, prefix)
    with pytest.warns(UserWarning, match="the table's paths begin with") as told:
        data = load(table)
    assert repr(prefix.replace("\\", "/")) in str(told[0].message)
    assert np.array_equal(data.splits["train"].inputs.numpy(), np.stack(list(written.values())))


@BEGINS
def test_the_longest_tail_and_not_another_file(tmp_path):
    """Train/cat/000.png is meant, though cat/000.png is there too."""
    meant = write_folder(tmp_path / "Train", {"cat": 2, "dog": 2})
    write_folder(tmp_path, {"cat": 2, "dog": 2}, first_seed=50)
    rows = "".join(f"/code/Train/{name},{name[:3]}\n" for name in meant)
    (tmp_path / "table.csv").write_text(f"path,label\n{rows}")
    inputs = load(tmp_path / "table.csv").splits["train"].inputs.numpy()
    assert np.array_equal(inputs, np.stack(list(meant.values())))


def test_a_path_is_cut_only_where_no_path_leads_anywhere(tmp_path):
    """One missing image among others is missing: another file of its name may be another image."""
    table, _ = write_table(tmp_path, "")
    table.write_text(table.read_text() + "elsewhere/cat/000.png,cat\n")
    with pytest.raises(InputError, match=r"image elsewhere/cat/000\.png cannot be read: there is no such file"):
        load(table)


@BEGINS
def test_a_path_with_another_beginning_stays_as_it_is(tmp_path):
    table, _ = write_table(tmp_path, "/code/")
    table.write_text(table.read_text() + "/data/cat/000.png,cat\n")
    with pytest.raises(InputError, match=r"image /data/cat/000\.png cannot be read"):
        load(table)


def test_paths_that_lead_nowhere_are_shown_as_the_table_has_them(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\n/code/1.png,cat\n/code/2.png,dog\n")
    with pytest.raises(InputError, match=r"the first, /code/1\.png: there is no such file"):
        load(tmp_path / "table.csv")


@BEGINS
def test_gtsrb_as_kaggle_has_it(tmp_path):
    write_gtsrb(tmp_path / "here", "kaggle")
    write_gtsrb(tmp_path / "there", "kaggle")
    for name in ("Train.csv", "Test.csv"):
        with open(tmp_path / "there" / name, newline="") as stream:
            rows = list(csv.DictReader(stream))
        with open(tmp_path / "there" / name, "w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows({**row, "Path": f"/code/{row['Path']}"} for row in rows)
    assert load(tmp_path / "there").fingerprint == load(tmp_path / "here").fingerprint


@BEGINS
def test_parquet_with_paths_instead_of_bytes(tmp_path):
    written = write_folder(tmp_path, {"cat": 2, "dog": 2})
    images = [{"bytes": None, "path": f"/code/{name}"} for name in written]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(images, kind), "label": [name[:3] for name in written]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    inputs = load(tmp_path / "t.parquet").splits["train"].inputs.numpy()
    assert np.array_equal(inputs, np.stack(list(written.values())))


def test_predict(tmp_path):
    table, written = write_table(tmp_path, "D:\\photos\\", counts=[("cat", 2), ("dog", 2), ("cow", 1)])
    trained = made_trained("small", setting("ce"), (6, 5, 3))
    with pytest.warns(UserWarning, match="begin with 'D:/photos/'"):
        (group,), _ = find_inputs([str(table)], trained)
    (chunk,) = group.chunks(trained, lambda num: None)
    assert not chunk.problems
    assert np.array_equal(chunk.inputs, np.stack(list(written.values())))
    assert len(Model(trained).predict(chunk.inputs)) == 5
