"""Tables: the paper's own numbers come out as printed, hand-made runs as known; every format shows text as text."""

import csv
import dataclasses
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from camri.methods import setting
from camri.report.records import angle_records, angle_settings, honest_records, paper_records
from camri.report.tables import (
    BLANK,
    FORMATS,
    NOT_BETTER,
    Cell,
    Table,
    cells,
    paper_table,
    table_of_angles,
    table_of_honest,
    to_terminal,
    write,
)
from camri.selection import Measured, PaperChoice
from camri.study import recipes
from camri.study.reader import (
    ColumnVerdict,
    RunReader,
    SettingResults,
    choose_paper,
    control_among,
    picked,
)
from tests.report.conftest import make_run
from tools import paper_print

COLUMNS = [name for _, name, _ in paper_print.COLUMNS]
DATA = [recipes.TITLES[data] for data, *_ in paper_print.COLUMNS]


def ten(mean, sd):
    """Ten numbers of exactly this mean and standard deviation."""
    return tuple(mean + sd * np.sqrt(0.9) * np.array([1, -1] * 5))


def papers_column(place):
    """A verdict with the paper's numbers, each of ten rows; beside each shown setting, two that must not be chosen."""
    measured, settings = {}, []
    for method in paper_print.TABLE_ONE:
        cell = paper_print.cell(method, place)
        # One of less recall, and one that buys more of it with accuracy.
        numbers = {"too costly": (ten(0.999, 0.01), ten(0.6, 0.01))} if method != "ce" else {}
        if cell is not None:
            accuracy = ten(cell.accuracy, cell.accuracy_sd)
            numbers |= {"shown": (ten(cell.recall, cell.recall_sd), accuracy)}
            numbers |= {"less": (ten(0.05, 0.01), accuracy)} if method != "ce" else {}
        measured[method] = [Measured(f"{method} {name}", *both) for name, both in numbers.items()]
        for one in measured[method]:
            rows = tuple(
                SimpleNamespace(recall={"test": [recall]}, accuracy={"test": accuracy})
                for recall, accuracy in zip(one.recall, one.accuracy, strict=True)
            )
            settings.append(SettingResults(one.key, method, one.key, {}, rows))
    column = SimpleNamespace(number=place, title=COLUMNS[place], indices=(0,))
    baseline = next(one for one in settings if one.method == "ce")
    return ColumnVerdict(column, baseline, tuple(settings), None, {}, {}, choose_paper(measured))


def test_the_papers_numbers_give_the_papers_table_with_its_blanks_and_bold_cells():
    methods, runs = paper_print.TABLE_ONE, {}
    for place, data in enumerate(DATA):
        runs.setdefault(data, []).append(papers_column(place))
    readings = {data: SimpleNamespace(name=data, methods=lambda: list(methods)) for data in runs}
    table = paper_table([paper_records(readings[data], verdicts) for data, verdicts in runs.items()])
    assert table.header == ("method", *COLUMNS)
    assert table.spans == (("CIFAR-10", 3), ("GTSRB", 3), ("AwA2", 3))
    bold = {}
    for (method, (recalls, _)), group in zip(methods.items(), table.groups, strict=True):
        texts = recalls.split()
        wanted = [BLANK if m == "-" else f"0.{m} ± 0.{sd}" for m, sd in zip(texts[::2], texts[1::2], strict=True)]
        assert [cell.text for cell in group[0][1:]] == wanted
        assert [cell.text == BLANK for cell in group[1][1:]] == [text == BLANK for text in wanted]
        assert not any(cell.bold for cell in group[1])
        bold |= {column: method for column, cell in zip(COLUMNS, group[0][1:], strict=True) if cell.bold}
    assert bold == {column: "wce" if column == "cat" else "camri" for column in COLUMNS}
    assert "chosen on the test set: optimistic" in table.caption


def test_table_one_of_a_run_has_its_means_and_blanks(opened, gain):
    reading, verdicts = opened(gain)
    table = paper_table([paper_records(reading, verdicts)])
    assert [group[0][0].text for group in table.groups] == ["CAMRI", "WCE", "cross-entropy"]
    rows = [row for row in reading.rows if row.method == "ce"]
    mean, sd = np.mean([r.recall["test"][1] for r in rows]), np.std([r.recall["test"][1] for r in rows], ddof=1)
    assert table.groups[-1][0][1].text == f"{mean:.3f} ± {sd:.3f}"
    assert [cell.bold for cell in table.groups[0][0]] == [False, True, True]


def test_several_runs_stand_side_by_side(opened, gain, no_gain):
    table = paper_table([paper_records(*opened(run)) for run in (gain, no_gain)])
    assert table.header == ("method", "column", "ring", "column")


def test_the_honest_table_has_controls_hits_and_intervals(opened, gain):
    reading, verdicts = opened(gain)
    table = table_of_honest(honest_records(reading, verdicts))
    names = [row[0].text for row in table.groups[0]]
    assert names == [
        "CAMRI",
        "WCE",
        "L2-softmax",
        "control: L2-softmax at CAMRI’s scale",
        "control: cross-entropy, shifted",
        "control: cross-entropy",
    ]
    camri = dict(zip(table.header, table.groups[0][0], strict=True))
    assert (camri["n"].text, camri["seeds"].text) == (str(np.sum(reading.run.labels("test") == 1)), "8")
    record = next(one for one in table.records if one["row"] == "CAMRI")
    assert 0 < record["gain_over_shifted_ce_low"] < record["gain_over_shifted_ce"] < record["gain_over_shifted_ce_high"]
    rows = {one["row"]: one for one in table.records if one["important"] == "column"}
    shifted = rows["control: cross-entropy, shifted"]["recall_mean"]
    assert record["gain_over_shifted_ce"] == pytest.approx(record["recall_mean"] - shifted)
    assert shifted != rows["control: cross-entropy"]["recall_mean"]
    assert camri["Δ recall vs CE + shift"].bold
    assert record["hits"] / record["num"] == pytest.approx(record["recall_mean"])


def test_a_bias_that_a_shift_gives_too_is_no_gain(opened, no_gain):
    table = table_of_honest(honest_records(*opened(no_gain)))
    for record in table.records:
        if record["gain_over_shifted_ce"] is not None:
            assert record["gain_over_shifted_ce_low"] <= 0
    assert not any(cell.bold for row in table.rows for cell in row)
    kept = [row for row in table.groups[0] if row[1].text == NOT_BETTER]
    assert kept, "a method that is not chosen has no numbers: they would be cross-entropy’s"
    assert all([cell.text for cell in row[2:7]] == [BLANK] * 5 for row in kept)
    assert (
        max(record["recall_mean"] for record in table.records if record["row"] == "control: cross-entropy, shifted") > 0
    )


def test_without_validation_data_there_is_no_honest_table(opened, no_validation):
    reading, verdicts = opened(no_validation)
    assert honest_records(reading, verdicts) == []
    assert verdicts[0].best is None
    assert len(paper_table([paper_records(reading, verdicts)]).groups) == 3


def test_the_control_has_no_margin_the_same_scale_and_all_the_seeds():
    def planned(made, seeds=(0, 1)):
        return SimpleNamespace(key=made.key, method=made.method, setting=made, seeds=seeds)

    final = planned(setting("camri", 3, m=0.2, s=8))
    others = [
        final,
        planned(setting("camri", 3, m=0.1, s=8)),
        planned(setting("camri", 3, m=0, s=16)),
        planned(setting("l2softmax", s=8), seeds=(0,)),
    ]
    for plain in (setting("camri", 3, m=0, s=8), setting("arcface", m=0, s=8), setting("l2softmax", s=8)):
        control = planned(plain, seeds=(0, 1, 2))
        assert control_among(final, [*others, control]) is control
        assert control_among(control, [control]) is None
    assert control_among(final, others) is None
    assert control_among(planned(setting("wce", 3, w=4)), others) is None


def test_the_settings_picked_stand_with_their_seeds_the_most_frequent_first():
    def named(*keys, **how):
        row = SimpleNamespace(
            judgement=SimpleNamespace(arms={"chosen": SimpleNamespace(keys=keys)}),
            final=SimpleNamespace(method="camri"),
        )
        verdict = SimpleNamespace(find=lambda key, method: SimpleNamespace(title=f"{method} {key}"))
        return picked(verdict, row, **how)

    assert named("a", "a") == "camri a"
    assert named("b", "a", "a") == "camri a (2), camri b (1)"
    assert named("b", "a", "a", in_words=True) == "camri a (2 seeds), camri b (1 seed)"


def test_charts_show_the_papers_setting_or_the_first_where_nothing_was_held_out(opened, no_validation, gain):
    for one in opened(no_validation)[1]:
        assert one.own == {}
        assert one.shown("camri") == (one.in_table_one("camri") or one.of("camri")[0])
        assert dataclasses.replace(one, paper={}).shown("camri") == one.of("camri")[0]
        last = one.of("camri")[-1]
        printed_last = dataclasses.replace(one, paper={"camri": PaperChoice(last.key, 0.5, 0.5)})
        assert printed_last.shown("camri") == last
        assert one.shown("focal") is None
    for one in opened(gain)[1]:
        blank = dataclasses.replace(one, paper={})
        assert {method: blank.shown(method) for method in one.own} == one.own
        assert one.own["camri"] != one.of("camri")[0]


def test_table_two_has_the_important_class_and_the_others(opened, gain):
    table = table_of_angles(angle_records(*opened(gain)))
    # Made angles: 0.1 + 0.01 · class + 0.001 · seed, seeds 0 … 7. Without class 1: minimum 0.1035, median 0.1235.
    camri = {row[0].text: row[1] for row in table.rows}
    assert camri["column (important)"] == Cell("0.1135")
    assert camri["min excl. column"] == Cell("0.1035", bold=True)
    assert camri["median excl. column"] == Cell("0.1235")
    assert camri["median excl. ring"] == Cell("0.1135")
    assert {row[2].text for row in table.rows} == {BLANK}, "no ArcFace was trained"


def test_table_two_leaves_the_important_class_out_of_the_others(opened, tmp_path):
    table = table_of_angles(angle_records(*opened(make_run(tmp_path, important=("row",), seeds=1))))
    assert [row[1].text for row in table.rows] == ["0.1000", "0.1100", "0.1200"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sd", "shown"),
    [
        ([0.1, np.nan, np.nan, np.nan], ["0.1000", BLANK, BLANK]),
        ([np.nan, 0.2, np.nan, 0.4], [BLANK, "0.2000", "0.3000"]),
    ],
)
def test_table_two_is_blank_where_classes_have_no_images(opened, tmp_path, monkeypatch, sd, shown):
    reading, verdicts = opened(make_run(tmp_path, important=("row",), seeds=1))
    monkeypatch.setattr(RunReader, "angles", lambda *_: (np.array(sd), np.array(sd)))
    records = angle_records(reading, verdicts)
    table = table_of_angles(records)
    assert [row[1].text for row in table.rows] == shown
    assert [row[1].bold for row in table.rows] == [text == min(set(shown) - {BLANK}) for text in shown]
    assert json.loads(json.dumps(records, allow_nan=False)) == records


NASTY = 'a|b <img src=x onerror=alert(1)> \\input{x} $ & _ "q", *bold* \n | c'


@pytest.mark.parametrize("form", FORMATS)
def test_names_stay_text_in_every_format(form):
    table = Table("T", ("class", "x"), ((cells(NASTY, "1"),),), ({"class": NASTY, "x": 1},))
    text = write(table, form)
    if form == "csv":
        assert list(csv.DictReader(io.StringIO(text))) == [{"class": NASTY.replace("\n", "\\n"), "x": "1"}]
    elif form == "md":
        line = text.splitlines()[-1]
        assert "<img" not in line
        assert len(line.replace("\\|", "").split("|")) == 4, "two columns"
    else:
        assert "\\input" not in text
        assert "\\textbackslash{}input\\{x\\}" in text


@pytest.mark.parametrize("name", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", " =1", "=cmd|'/c calc'!A1"])
def test_no_cell_of_a_csv_is_a_formula(name):
    text = write(Table("T", (), (), ({"class": name, name: 0.5},)), "csv")
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert not re.match(r"\s*[=+\-@\t]", cell), row
    assert "0.5" in text


def test_unknown_formats_are_refused_by_name():
    with pytest.raises(ValueError, match="'xlsx' is not for a table; choices: md, latex, csv"):
        write(Table("T", (), (), ()), "xlsx")


def test_progress_counts_what_is_left(opened, tmp_path):
    reading, _ = opened(make_run(tmp_path, leave_out={("camri", 3)}, failing={("wce", 0)}))
    found = reading.progress()
    assert (found.done, found.failed, found.total, found.is_running) == (20, 2, 24, False)
    assert not found.is_finished


def test_a_narrow_terminal_loses_no_digit():
    table = Table("Recall", ("class", "95 %"), ((cells("stop", "0.561–0.673"), cells("yield", "0.883–0.943")),), ())
    console = Console(width=18, file=io.StringIO())
    console.print(to_terminal(table))
    shown = "".join(re.findall(r"[\d.–]", console.file.getvalue().split("┩")[1]))
    assert shown == "0.561–0.6730.883–0.943"


def test_latex_escapes_its_signs_and_puts_a_rule_between_groups():
    table = Table("T", ("a_b", "x"), ((cells("c", "1±2"),), (cells("d", "3"),)), ())
    assert write(table, "latex").splitlines()[4:12] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & x \\",
        r"\midrule",
        r"c & 1$\pm$2 \\",
        r"\midrule",
        r"d & 3 \\",
        r"\bottomrule",
    ]


def test_markdown_shows_names_as_they_stand_under_the_titles_of_their_groups():
    groups = ((cells("a|b", "<i>"),), ((Cell("*c*"), Cell("1_0", bold=True)),))
    table = Table("T", ("name", "x"), groups, (), notes=("see [d]",), titles=("of `e`", "plain"))
    assert write(table, "md").splitlines()[2:] == [
        "| name | x |",
        "|---|---|",
        r"| *of \`e\`* |  |",
        r"| a\|b | &lt;i&gt; |",
        "| *plain* |  |",
        r"| \*c\* | **1\_0** |",
        "",
        r"see \[d\]",
    ]


def test_table_two_has_wce_at_the_papers_weight_and_l2softmax_at_camris_scale():
    def tried(method, **knobs):
        return SimpleNamespace(method=method, value=knobs.get, knobs=knobs)

    camri, ce = tried("camri", m=0.2, s=8.0), tried("ce")
    light, heavy = tried("wce", w=2.0), tried("wce", w=4.0)
    wide, margin, plain = tried("l2softmax", s=16.0), tried("arcface", m=0.2, s=8.0), tried("arcface", m=0, s=8.0)
    every = [ce, light, heavy, wide, margin, plain, camri]

    def columns(table_one, settings):
        return angle_settings(
            SimpleNamespace(
                settings=settings,
                baseline=ce,
                of=lambda method: [one for one in settings if one.method == method],
                in_table_one=table_one.get,
                shown=lambda method: next((one for one in settings if one.method == method), None),
            )
        )

    found = columns({"camri": camri}, every)
    assert list(found) == ["CAMRI", "ArcFace", "WCE (w = 4)", "L2-softmax", "cross-entropy"]
    assert list(found.values()) == [camri, margin, heavy, plain, ce]
    assert columns({}, [ce, light, wide])["WCE (w = 4)"] is None
    assert columns({}, [ce, light, wide])["L2-softmax"] is wide
    assert columns({"camri": camri}, [ce, wide, camri, margin])["L2-softmax"] is None
