"""Studies are checked values: hashes that every machine agrees on, grids that merge, sentences for bad input."""

import json
import math
import subprocess
import sys

import pytest

from camri.engine import FAST, PAPER
from camri.errors import InputError
from camri.methods import MARGIN_UNIT, setting
from camri.study import recipes
from camri.study.recipes import RECIPES, digits
from camri.study.run_folder import load_data
from camri.study.spec import Column, Grid, Study, study
from camri.study.study_file import find_study

# A changed hash makes every stored study a stranger: change these only with a reason to tell.
PINNED = {
    "paper.cifar10.cat": "91a299e6dfad007b",
    "paper.gtsrb": "cd8862da57d601cd",
    "paper.mnist_2d": "c8fbca3e8c05ec3d",
    "digits.pair": "d32b8943eb74245e",
}


@pytest.mark.parametrize("name", PINNED)
def test_hashes_are_pinned(name):
    assert find_study(name).key == PINNED[name]


def test_a_study_has_its_recipes_name_a_column_that_of_its_table():
    for name in RECIPES:
        assert find_study(name).name == (name if name == "digits.pair" else ".".join(name.split(".")[:2]))


def test_a_screening_has_every_methods_settings_around_the_finals_and_other_seeds():
    found = find_study("screen.gtsrb")
    assert set(found.seeds).isdisjoint(range(10))
    assert [one.classes for one in found.important] == [(6,), (41,), (5,)]
    assert found.training == FAST.with_(epochs=9)
    axes = {grid.method: dict(grid.axes) for grid in found.methods}
    assert axes["camri"]["m"] == pytest.approx([2 * MARGIN_UNIT, 4 * MARGIN_UNIT, 8 * MARGIN_UNIT])
    assert set(axes) == {"ce", "l2softmax", "camri", "arcface", "cosface", "wce", "crwwce", "wasserstein", "ldam",
                         "logit_adjusted", "vector_scaling"}  # fmt: skip
    pair = find_study("screen.cifar10", columns=[["cat", "dog"]])
    assert [one.classes for one in pair.important] == [("cat", "dog")]


def test_a_hash_does_not_depend_on_the_process():
    script = "from camri.study.study_file import find_study; print(find_study('digits.pair').key)"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        )
        assert run.stdout.strip() == PINNED["digits.pair"], run.stderr


def test_a_hash_changes_with_everything_but_the_name():
    base = digits("8")
    changed = {
        "important": "3",
        "seeds": 4,
        "methods": ["ce"],
        "training": PAPER,
        "val_fraction": 0.2,
        "split_seed": 1,
        "important_from": "test",
        "keep_logits": True,
        "data_options": {"size": 8},
        "data": "mnist",
        "thin": {"8": 0.5},
    }
    keys = {base.with_(**{name: value}).key for name, value in changed.items()}
    assert len(keys | {base.key}) == len(changed) + 1
    assert base.with_(name="other").key == base.key
    assert base.with_(val_fraction=0).key == base.with_(val_fraction=0.0).key


def test_classes_can_be_made_rare_in_training():
    made = digits("8").with_(thin={"8": 0.1, "3": 0.5})
    assert Study.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.with_(seeds=2).thin == (("3", 0.5), ("8", 0.1))
    data, usual = load_data(made), load_data(digits("8"))
    assert data.class_counts("val").tolist() == usual.class_counts("val").tolist()
    counts = [
        round(0.1 * n) if k == 8 else round(0.5 * n) if k == 3 else n
        for k, n in enumerate(usual.class_counts("train").tolist())
    ]
    assert data.class_counts("train").tolist() == counts
    for thin in ({"8": 1.0}, {"8": 0}, {"8": "much"}):
        with pytest.raises(InputError, match="is not allowed; give a fraction between 0 and 1 for each class"):
            made.with_(thin=thin)
    with pytest.raises(InputError, match=r"thin=0.1 is not a table of classes and fractions"):
        made.with_(thin=0.1)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name):
    made = RECIPES[name]()
    again = Study.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.key == made.key


def test_the_whole_paper_is_25020_trials():
    studies = [make(schedule="paper", rule="paper") for make in (recipes.cifar10, recipes.gtsrb, recipes.awa2)]
    assert [len(one.unique_settings(one.placeholders())) for one in studies] == [834] * 3
    assert sum(len(one.trials(one.placeholders())) for one in studies) == 25_020
    assert {one.training for one in studies} == {PAPER}
    assert {one.val_fraction for one in studies} == {0.0}


def test_one_column_of_the_paper():
    cat = recipes.cifar10("cat")
    counts = {grid.method: len(list(grid.settings(((3, 1.0),)))) for grid in cat.methods}
    assert counts == {
        "ce": 1, "wce": 10, "crwwce": 176, "wasserstein": 16, "l2softmax": 7, "arcface": 63, "camri": 63,
    }  # fmt: skip
    assert len(cat.unique_settings(cat.placeholders())) == 1 + 10 + 176 + 16 + 63 + 56
    assert cat.training == FAST
    assert recipes.gtsrb().important == recipes.gtsrb([6, 41, 5]).important
    assert recipes.gtsrb("limit-80-end").important[0].classes == (6,)


def test_trials_start_with_cross_entropy_and_go_seed_by_seed():
    assert study("s", "digits", "8", ["ce"], seeds=range(5, 8)).seeds == (5, 6, 7)
    made = study("s", "digits", ["8", "3"], {"camri": {"m": [0.0, 0.1], "s": [8]}, "ce": {}}, seeds=[4, 2])
    trials = made.trials(made.placeholders())
    assert [(trial.setting.method, trial.seed) for trial in trials] == [
        ("ce", 4), ("ce", 2),
        ("l2softmax", 4), ("camri", 4), ("camri", 4),
        ("l2softmax", 2), ("camri", 2), ("camri", 2),
    ]  # fmt: skip
    assert len({trial.key for trial in trials}) == len(trials)


def test_several_important_classes_have_their_own_strength():
    made = study("s", "digits", [{"8": 1, "3": 0.5}], {"camri": {"m": [0.4], "s": [8]}, "wce": {"w": [9]}})
    camri, wce = made.unique_settings([((8, 1.0), (3, 0.5))])
    assert camri == setting("camri", [3, 8], m=[0.2, 0.4], s=8.0)
    assert wce == setting("wce", [3, 8], w=[5.0, 9.0])  # half the way from 1, which does nothing


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["cmari"]}, "method 'cmari' is unknown; did you mean 'camri'"),
        ({"methods": {"camri": {"w": [1]}}}, "camri has no knob 'w'"),
        ({"methods": {"camri": {"m": ["x"]}}}, "camri m='x' is not a finite number"),
        ({"methods": {"camri": {"m": [True]}}}, "camri m=True is not a finite number"),
        ({"methods": {"camri": {"m": [math.nan]}}}, "camri m=nan is not a finite number"),
        ({"methods": {"camri": {"m": [1e300]}}}, r"camri m=1e\+300 is not a finite number"),
        ({"seeds": [2**63]}, r"seeds=\(9223372036854775808,\) is not allowed; give different .* below 2\*\*63"),
        ({"methods": {"camri": {"s": []}}}, "camri s has no values"),
        ({"methods": []}, r"methods=\(\) is not allowed"),
        ({"seeds": 0}, "seeds=0 is not allowed"),
        ({"seeds": "3"}, "seeds='3' is not allowed"),
        ({"seeds": []}, r"seeds=\(\) is not allowed; give different whole numbers of at least 0"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"important": []}, "important"),
        ({"important": {"8": 0}}, "strength 0"),
        ({"important": "worst", "methods": ["camri"]}, "add method ce"),
        *(({"val_fraction": part}, f"val_fraction={part!r} is not allowed") for part in (1.0, -0.1, "0.1", True)),
        *(({"test_fraction": part}, f"test_fraction={part!r} is not allowed") for part in (1.0, 0.0, "0.1", True)),
        ({"data_options": {"sise": 8}}, "data has no option 'sise'; did you mean 'size'"),
        ({"important_from": "train"}, "choices: val, test"),
        ({"epoch": 3}, "study has no field 'epoch'"),
    ],
)
def test_bad_studies_are_refused_with_a_sentence(changes, said):
    with pytest.raises(InputError, match=said):
        digits("8").with_(**changes)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], r"important=\[\] must name at least one class and none twice"),
        (["cat", "cat"], r"important=\['cat', 'cat'\] must name at least one class and none twice"),
        ([True], "important=True is neither a class name nor an index"),
        ([1.5], r"important=1\.5 is neither a class name nor an index"),
        *(({"cat": strength}, f"important='cat' has strength {strength}; give a number above 0")
          for strength in (0.0, -1.0, math.inf, math.nan, True)),
    ],
)  # fmt: skip
def test_columns_of_no_class_and_of_no_strength_are_refused(value, said):
    with pytest.raises(InputError, match=said):
        Column.of(value)


def test_points_belong_to_their_column():
    grid = Grid.at("camri", [[(0.1, 8)], [(0.2, 16), (0.3, 8)]])
    column = ((0, 1.0), (2, 0.5))
    assert list(grid.settings(column)) == [setting("camri", [0, 2], m=[0.1, 0.05], s=8)]
    assert list(grid.settings(column, 1)) == [
        setting("camri", [0, 2], m=[0.2, 0.1], s=16),
        setting("camri", [0, 2], m=[0.3, 0.15], s=8),
    ]
    assert Grid.from_json(json.loads(json.dumps(grid.to_json()))) == grid


def test_margin_units():
    assert digits().methods[-1].axes[0] == ("m", (4 * MARGIN_UNIT, 8 * MARGIN_UNIT))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("paper.cifar", {}, "neither a recipe nor a TOML or JSON file; did you mean 'paper.cifar10'"),
        ("paper.cifar10", {"schedule": "slow"}, "schedule='slow' is unknown; choices: fast, paper"),
        ("paper.cifar10", {"rule": "nice"}, "rule='nice' is unknown"),
        ("paper.cifar10.cat", {"columns": "dog"}, "paper.cifar10.cat does not take columns"),
        ("digits", {"rule": "paper"}, "digits does not take rule"),
    ],
)
def test_bad_recipes_are_refused_with_a_sentence(name, given, said):
    with pytest.raises(InputError, match=said):
        find_study(name, **given)


def test_studies_need_little():
    """They run on machines where torch is and little else: what is not there may not be imported."""
    script = (
        "import sys\n"
        "absent = ('pydantic', 'typer', 'rich', 'pyarrow', 'pandas', 'sklearn', 'ray', 'PIL')\n"
        "sys.modules.update(dict.fromkeys(absent))\n"  # importing one now raises ImportError
        "from camri.study import combine, export, recipes, runner, spec, store, study_file\n"
        "print(len(recipes.RECIPES))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{len(RECIPES)}\n"), done.stderr


def test_a_studys_json_file_is_the_study(tmp_path):
    narrowed = find_study("digits", num_seeds=3)
    path = tmp_path / "study.json"
    path.write_text(json.dumps(narrowed.to_json()))
    assert find_study(str(path)) == narrowed
    with pytest.raises(InputError, match="num_seeds=5 cannot be given beside it"):
        find_study(str(path), num_seeds=5)
    path.write_text('{"name": "half"}')
    with pytest.raises(InputError, match="does not hold a study's JSON"):
        find_study(str(path))
    path.write_text("[1, 2")
    with pytest.raises(InputError, match="does not hold a study's JSON"):
        find_study(str(path))
    with pytest.raises(InputError, match="does not exist"):
        find_study(str(tmp_path / "none.json"))
