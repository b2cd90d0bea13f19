"""What files, folders, patterns and tables lead to: groups and chunks by value."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from camri.export.inputs import CHUNK_ROWS, Images, Problem, Ready, count_whole, find_inputs
from camri.methods import setting
from tests.export.conftest import made_trained

FEATURES = made_trained("mlp", setting("ce"), (3,))
WIDE = made_trained("small", setting("ce"), (6, 9, 3), options={"width": 2})


def only_chunk(group, trained):
    (chunk,) = group.chunks(trained, lambda num_read: None)
    return chunk


def test_an_image_becomes_as_high_and_as_wide_as_the_model_s(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    chunk = only_chunk(Images(["a"], [None], [str(tmp_path / "a.png")]), WIDE)
    np.testing.assert_array_equal(chunk.inputs, pixels[None])


@pytest.mark.filterwarnings("error")  # what float32 cannot hold is told by the problem alone
def test_a_row_with_a_problem_is_zeros_of_the_model_s_kind(tmp_path):
    (tmp_path / "no.png").write_text("no")
    rows = np.array([[1.0, 2.0, 3.0], [1.0, -1e300, np.nan]])
    for trained, kind in ((WIDE, np.uint8), (FEATURES, np.float32)):
        chunk = only_chunk(Problem("x", "it is bad"), trained)
        assert (chunk.inputs.dtype, chunk.inputs.shape) == (kind, (1, *trained.input_shape))
        assert not chunk.inputs.any()
        assert (chunk.files, chunk.rows, chunk.problems) == (["x"], [None], {0: "it is bad"})
    chunk = only_chunk(Images(["x"], [None], [str(tmp_path / "no.png")]), WIDE)
    assert (chunk.inputs.shape, chunk.inputs.any()) == ((1, 6, 9, 3), False)
    chunk = only_chunk(Ready("t", rows), FEATURES)
    np.testing.assert_array_equal(chunk.inputs, np.float32([[1, 2, 3], [0, 0, 0]]))
    assert chunk.problems == {1: "feature 1 is -1e+300; it must be a number within ±3.4e+38"}
    assert np.isnan(rows[1, 2]), "the user's array was changed"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_image(name, colour="red"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 6), colour).save(name)
    return name


def told(*words, trained=WIDE):
    """What the words lead to: the files of each group of images, the file of every other; how many were left out."""
    groups, left_out = find_inputs(words, trained)
    return [list(one.files) if isinstance(one, Images) else one.file for one in groups], len(left_out)


def whys(*words, trained=WIDE):
    groups, _ = find_inputs(words, trained)
    return [one.why for one in groups if isinstance(one, Problem)]


def test_images_are_gathered_until_a_table_or_a_problem_comes_between(here):
    a, b, c = (made_image(f"{name}.png") for name in "abc")
    np.save("t.npy", np.zeros((2, 6, 9, 3), np.uint8))
    assert told(a, b, "t.npy", c, "*.gif", a, "t.npy", "./b.png") == ([[a, b], "t.npy", [c], "*.gif"], 0)
    groups, _ = find_inputs([a, b], WIDE)
    assert [(list(one.rows), list(one.sources), one.boxes, len(one)) for one in groups] == [
        ([None] * 2, [a, b], None, 2)
    ]


def test_files_left_out_are_counted_over_all_words_folders_and_patterns(here):
    for folder in ("one", "two", "three/deep"):
        made_image(f"{folder}/a.PNG")
        Path(folder, "notes.txt").touch()
        Path(folder, ".hidden").touch()
    Path("none").mkdir()
    for name in ("x.txt", "y.txt", "t.csv"):
        Path("none", name).touch()
    assert told("one", "two") == ([["one/a.PNG", "two/a.PNG"]], 2)
    assert told("t*") == ([["three/deep/a.PNG", "two/a.PNG"]], 2)
    assert told("**/*.PNG") == ([["one/a.PNG", "three/deep/a.PNG", "two/a.PNG"]], 0)
    assert told("none") == (["none"], 3)
    assert whys("none") == ["the folder holds no images"]
    assert told("[nt]*") == (["none", ["three/deep/a.PNG", "two/a.PNG"]], 5)


def test_an_image_in_a_folder_is_found_by_what_it_is_where_its_name_does_not_say(here):
    """Training takes images by any name; here they must not be left out silently."""
    for name in ("a.png", "b.png", "c.png"):
        made_image(f"photos/{name}")
    Path("photos/b.png").rename("photos/b")
    Path("photos/c.png").rename("photos/c.jpg_large")
    Path("photos/d").write_text("no image")
    Path("photos/e.heic").write_bytes(b"\0\0\0\x18ftypheic")
    groups, left_out = find_inputs(["photos"], WIDE)
    assert [list(one.files) for one in groups] == [["photos/a.png", "photos/b", "photos/c.jpg_large"]]
    assert left_out == ["photos/d", "photos/e.heic"]


def test_a_model_of_features_takes_the_tables_of_a_folder(here):
    made_image("mixed/a.png")
    Path("mixed/b.CSV").write_text("a,b,c\n1,2,3\n")
    np.save("mixed/c.npy", np.ones((2, 3)))
    Path("mixed/c.npy").rename("mixed/c.NPY")
    assert told("mixed", trained=FEATURES) == (["mixed/b.CSV", "mixed/c.NPY"], 1)
    assert whys("mixed", trained=FEATURES) == []
    made_image("images/a.png")
    assert told("images", trained=FEATURES) == (["images"], 1)
    assert whys("images", trained=FEATURES) == ["the folder holds no tables (.npy, .npz, .csv, .tsv, .parquet)"]
    tables = "this model takes features, from a table: .npy, .npz, .csv, .tsv, .parquet"
    assert whys("images/a.png", trained=FEATURES) == [tables]
    assert whys("no.csv", trained=FEATURES) == ["there is no such file"]


def test_the_home_folder_is_found_and_a_loop_of_links_is_a_problem(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    made_image("photos/a.png")
    assert told("~/photos/*.png", "~/photos/a.png") == ([[str(here / "photos" / "a.png")]], 0)
    Path("photos/back").symlink_to(here / "photos")
    assert told("photos") == (["photos"], 0)
    (why,) = whys("photos")
    assert why.startswith("photos/back ")
    assert "loop" in why


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": [1, 2], "X": np.full((2, 3), 5), "data": np.zeros((2, 3))}, 5),  # x is a more usual name than data
        ({"whatever": np.full((2, 3), 7)}, 7),
        (
            {"some": np.ones((2, 3)), "other": np.ones((2, 3))},
            "it holds some, other; call the array of inputs 'inputs'",
        ),
        ({}, "it holds nothing; call the array of inputs 'inputs'"),
        ({"x": np.ones((2, 4))}, "it holds float64 (2, 4), and the model takes numbers (N, 3)"),
        ({"x": np.ones(3)}, "it holds float64 (3,), and the model takes numbers (N, 3)"),
        ({"x": np.full((2, 3), "1")}, "it holds <U1 (2, 3), and the model takes numbers (N, 3)"),
        ({"x": np.full((2, 3), 1j)}, "it holds complex128 (2, 3), and the model takes numbers (N, 3)"),
        (
            {"x": np.array([{}])},  # a pickle
            "it cannot be read as plain arrays: Object arrays cannot be loaded when allow_pickle=False",
        ),
    ],
)
def test_the_array_of_inputs_of_several(here, arrays, said):
    np.savez("t.npz", **arrays)
    ((found,), _) = find_inputs(["t.npz"], FEATURES)
    if isinstance(said, str):
        assert found.why == said
    else:
        np.testing.assert_array_equal(found.array, np.full((2, 3), said))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 no more"])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_files_that_are_no_arrays_are_problems(here, content, ending):
    Path(f"t.{ending}").write_bytes(content)
    (why,) = whys(f"t.{ending}", trained=FEATURES)
    assert why.startswith("it cannot be read as plain arrays: ") or (why == "is empty; give a file" and not content)


@pytest.mark.parametrize("kind", [np.float16, np.int64, np.uint8, bool])
def test_numbers_of_every_kind_are_features(here, kind):
    np.save("t.npy", np.ones((2, 3), kind))
    ((found,), _) = find_inputs(["t.npy"], FEATURES)
    assert only_chunk(found, FEATURES).inputs.tolist() == [[1.0] * 3] * 2


def test_grey_images_may_lack_their_channel_and_colour_may_not(here):
    grey = made_trained("small", setting("ce"), (6, 9, 1), options={"width": 2})
    np.save("g.npy", np.arange(108, dtype=np.uint8).reshape(2, 6, 9))
    ((found,), _) = find_inputs(["g.npy"], grey)
    np.testing.assert_array_equal(found.array, np.arange(108).reshape(2, 6, 9, 1))
    assert isinstance(found.array, np.memmap), "an array of any size is read chunk by chunk"
    assert whys("g.npy") == ["it holds uint8 (2, 6, 9), and the model takes uint8 images (N, 6, 9, 3)"]
    Path("g.npy").rename("G.NPY")
    ((found,), _) = find_inputs(["G.NPY"], grey)
    assert len(found) == 2
    single = made_trained("mlp", setting("ce"), (1,))
    assert whys("G.NPY", trained=single) == ["it holds uint8 (2, 6, 9), and the model takes numbers (N, 1)"]
    np.save("s.npy", np.zeros((2, 6, 9, 3), np.int16))
    assert whys("s.npy") == ["it holds int16 (2, 6, 9, 3), and the model takes uint8 images (N, 6, 9, 3)"]


CROPPED = dataclasses.replace(WIDE, preprocessing={"roi": True})


def test_boxes_are_fractions_and_only_a_model_of_crops_takes_them(here):
    made_image("a.png")
    head = "path,ROI.x1,roi_y1,Roi.X2,Roi_Y2,WIDTH,Height"
    Path("t.csv").write_text(f"{head}\na.png,1,2,4,4,10,20\na.png,0,0,9,19,10,20\n")
    ((cropped,), _) = find_inputs(["t.csv"], CROPPED)
    np.testing.assert_allclose(cropped.boxes, [[0.1, 0.1, 0.5, 0.25], [0, 0, 1, 1]])
    ((whole,), _) = find_inputs(["t.csv"], WIDE)
    assert whole.boxes is None
    Path("u.csv").write_text(f"{head.removesuffix(',Height')}\na.png,1,2,4,4,10\n")
    ((partly,), _) = find_inputs(["u.csv"], CROPPED)
    assert partly.boxes is None
    np.save("v.npy", np.zeros((3, 6, 9, 3), np.uint8))
    groups, _ = find_inputs(["t.csv", "u.csv", "v.npy", "no.npy"], CROPPED)
    assert [count_whole([one]) for one in groups] == [0, 1, 3, 0]
    assert count_whole(groups) == 4


def test_the_images_of_a_table_are_its_rows(here):
    made_image("sub/a.png")
    Path("sub/t.csv").write_text("label,file_name\nx,a.png\ny,\n")
    ((found,), _) = find_inputs(["sub/t.csv"], WIDE)
    assert (found.files, list(found.rows), found.sources) == (["sub/t.csv"] * 2, [0, 1], ["sub/a.png", "sub"])
    assert list(only_chunk(found, WIDE).problems) == [1]
    pq.write_table(pa.table({"path": ["a.png", None]}), "sub/u.parquet")
    ((found,), _) = find_inputs(["sub/u.parquet"], WIDE)
    assert found.sources == ["sub/a.png", "sub"]
    pq.write_table(pa.table({"photo": [Path("sub/a.png").read_bytes()] * 2, "path": ["x.png"] * 2}), "t.parquet")
    ((found,), _) = find_inputs(["t.parquet"], WIDE)
    assert (found.files, list(found.rows)) == (["t.parquet"] * 2, [0, 1])
    assert only_chunk(found, WIDE).inputs[1, 0, 0].tolist() == [255, 0, 0]
    pq.write_table(pa.table({f"c{k}": [k] for k in range(13)}), "u.parquet")
    names = ", ".join(f"c{k}" for k in range(11)) + ", …, c12"
    assert whys("u.parquet") == [f"it has no column with images or their paths among {names}"]


def features_of(table, trained=FEATURES, **preprocessing):
    """The features that a model takes from a table, or why it does not."""
    pq.write_table(pa.table(table), "t.parquet")
    ((found,), _) = find_inputs(["t.parquet"], dataclasses.replace(trained, preprocessing=preprocessing))
    return found.why if isinstance(found, Problem) else found.array.tolist()


NUMBERS = {"a": [1], "b": [2.0], "c": [True]}


def test_features_are_all_numbers_beside_the_usual_roles(here):
    roles = {"Label": [9], "group": [8], "split": [7], "path": [6]}
    assert features_of({**roles, **NUMBERS, "id": ["x7"]}) == [[1, 2, 1]]
    assert features_of({"kind": [3], **NUMBERS}, label_column="kind") == [[1, 2, 1]]
    assert features_of({"who": pa.array(["x7"]).dictionary_encode(), **NUMBERS}) == [[1, 2, 1]]  # pandas' categories
    four = "it has 4 columns of numbers, and the model takes 3 features"
    assert features_of({"kind": [3], **NUMBERS}) == four
    # A model of many columns knows the names of the first ones.
    assert features_of(NUMBERS, feature_columns=["a", "b"]) == [[1, 2, 1]]
    three = "it has 3 columns of numbers, and the model takes 3 features"
    assert features_of(NUMBERS, feature_columns=["b", "a"]) == three
    assert features_of({"x1": [1], **NUMBERS}, feature_columns=["a", "b"]) == four
    assert features_of({"a": [1], "b": ["2"], "c": [3]}, feature_columns=["a", "b", "c"]) == [[1, 2, 3]]
    single = made_trained("mlp", setting("ce"), (1,))
    assert features_of({"label": ["x", "y"], "a": [1.0, 2.0]}, single) == [[1.0], [2.0]]
    worded = features_of({"a": [1, 1], "b": ["", "two"], "c": [3, 3]}, feature_columns=["a", "b", "c"])
    assert worded == "column 'b' holds 'two', and features are numbers"
    empty = features_of({"a": [1, 1], "b": ["2", ""], "c": [3, 3]}, feature_columns=["a", "b", "c"])
    assert empty == "column 'b' holds '', and features are numbers"


def test_features_of_a_list_are_found_by_name_or_as_the_only_list(here):
    lists = {"old": [[4.0, 5.0, 6.0]], "new": [[1.0, 2.0, 3.0]]}
    assert features_of(lists, feature_columns=["new"]) == [[1, 2, 3]]
    assert features_of({"label": [[0.0]], "z": [5], "new": lists["new"]}) == [[1, 2, 3]]
    assert features_of({"label": ["x"], "new": lists["new"]}, feature_columns=["gone"]) == [[1, 2, 3]]
    assert features_of(lists) == "it has 0 columns of numbers, and the model takes 3 features"
    assert features_of({"e": [[{"x": 1}] * 3]}) == "column 'e' holds {'x': 1}, and features are numbers"
    nested = "column 'e' holds lists of lists, and the model takes a list of numbers a row"
    assert features_of({"e": [[[1.0], [2.0], [3.0]]]}) == nested
    assert features_of({"e": [[1.0, 2.0]]}) == "it holds float64 (1, 2), and the model takes numbers (N, 3)"


def test_a_list_that_is_missing_or_short_is_a_problem_of_its_row_alone(here):
    pq.write_table(pa.table({"e": [[1.0, 2.0, 3.0], None, [4.0, None, 6.0], [7.0]]}), "t.parquet")
    ((found,), _) = find_inputs(["t.parquet"], FEATURES)
    assert only_chunk(found, FEATURES).problems == {
        1: "its list is missing, and the model takes 3 numbers",
        2: "feature 1 is missing; it must be a number within ±3.4e+38",
        3: "its list is 1 long, and the model takes 3 numbers",
    }
    assert only_chunk(found, FEATURES).inputs[0].tolist() == [1, 2, 3]
    # The model says how long a list is, not the rows; and a problem stays with its row in a later chunk.
    many = [[1.0]] * CHUNK_ROWS + [[1.0, 2.0, 3.0], []]
    pq.write_table(pa.table({"e": many}), "t.parquet")
    ((found,), _) = find_inputs(["t.parquet"], FEATURES)
    first, last = found.chunks(FEATURES, lambda num: None)
    assert set(first.problems.values()) == {"its list is 1 long, and the model takes 3 numbers"}
    assert len(first.problems) == CHUNK_ROWS
    assert last.problems == {1: "its list is 0 long, and the model takes 3 numbers"}
    assert last.inputs[0].tolist() == [1, 2, 3]
    none = features_of({"e": pa.array([None, None], pa.list_(pa.float64()))})
    assert none == "it holds float64 (2, 0), and the model takes numbers (N, 3)"


def test_what_is_wrong_with_a_table_is_reported_without_its_name(here):
    for text, said in (("a,a\n1,2\n", "has two columns"), ("a,b\n", "has no rows")):
        Path("t.csv").write_text(text)
        (why,) = whys("t.csv", trained=FEATURES)
        assert why.startswith(said)
        assert told("t.csv", trained=FEATURES) == (["t.csv"], 0)
