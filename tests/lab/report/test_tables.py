from __future__ import annotations

import csv
import io

import pandas as pd
import pytest
from rich.console import Console

from gence.lab.report.frame import Setting
from gence.lab.report.style import ACCURACY, NLL, loss_title, marks_for
from gence.lab.report.tables import Cell, Row, Table, difference_table, loss_table, run_table
from gence.lab.report.verdict import judge

NASTY = "a|b *c* <script> $x_1$ & 50% \\ {y}"


def small_setting():
    rows = [("ce", 0, 0.5, 1.5), ("ce", 1, 0.6, float("nan")), ("gence", 0, 0.75, 1.0)]
    return Setting("digits", pd.DataFrame(rows, columns=["loss", "seed", "accuracy", "nll"]).assign(status="done"))


def test_missing_cells_say_how_many_there_are():
    table = loss_table(small_setting(), [ACCURACY, NLL])
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert texts == [["GenCE", "1 of 2", "75.0", "1.000"], ["CE", "2", "55.0 ± 7.1", "1.500 (1 of 2)"]]
    # Accuracy is of other seeds, NLL is of seed 0 for both.
    assert [cell.best for cell in table.rows[0].cells] == [False, False, False, True]
    assert "over 1 to 2 seeds (see the column Runs)" in table.caption
    assert "marked, among losses that have a number for every seed" in table.caption


def test_the_best_is_marked_among_losses_that_have_every_seed():
    rows = [(loss, seed, 0.5 + 0.1 * (loss == "ce")) for loss in ("ce", "mae") for seed in range(3)]
    rows += [("gence", 0, 0.9), ("gence", 1, 0.9)]
    frame = pd.DataFrame(rows, columns=["loss", "seed", "accuracy"]).assign(status="done")
    marked = {row.loss: row.cells[2].best for row in loss_table(Setting("digits", frame), [ACCURACY]).rows}
    assert marked == {"gence": False, "ce": True, "mae": False}
    two = frame[frame["loss"] != "mae"]
    assert not any(row.cells[2].best for row in loss_table(Setting("digits", two), [ACCURACY]).rows)
    apart = frame[(frame["loss"] == "ce") & (frame["seed"] == 2) | (frame["loss"] == "gence") & (frame["seed"] == 0)]
    table = loss_table(Setting("digits", apart), [ACCURACY])
    assert "over 1 seed, not the same for all losses;" in table.caption
    assert not any(cell.best for row in table.rows for cell in row.cells)


def test_numbers_in_csv_files_can_be_read():
    rows = [("gence", 0, 0.4), ("gence", 1, 0.5), ("ce", 0, 0.6), ("ce", 1, 0.7)]
    frame = pd.DataFrame(rows, columns=["loss", "seed", "nll"]).assign(status="done")
    table = difference_table(judge(frame, quantities=[NLL]))
    read = list(csv.reader(io.StringIO(table.csv())))[1]
    assert float(read[2]) == -0.2
    assert table.rows[0].cells[2].text == "−0.200"
    assert "−0.200" in table.markdown()
    assert Cell(text="−1 °C", value="−1 °C").plain() == "−1 °C"  # a name stays what it is


def test_a_metric_nobody_has_is_missing():
    frame = small_setting().frame.drop(columns="nll")
    table = loss_table(Setting("digits", frame), [NLL])
    assert [row.cells[-1].text for row in table.rows] == ["missing (0 of 1)", "missing (0 of 2)"]


def test_markdown_latex_csv_and_terminal_show_the_same_rows():
    frame = small_setting().frame
    table = loss_table(Setting("digits", frame[frame["seed"] == 0]), [ACCURACY])
    assert table.markdown().splitlines()[:3] == [
        "| Loss | Runs | Accuracy, % ↑ |",
        "| --- | ---: | ---: |",
        "| GenCE | 1 | **75.0** |",
    ]
    assert r"\textbf{75.0}" in table.latex()
    spread = loss_table(small_setting(), [ACCURACY])
    assert r"CE & 2 & 55.0 $\pm$ 7.1 \\" in spread.latex()
    assert list(csv.reader(io.StringIO(spread.csv())))[1] == ["GenCE", "1 of 2", "75.0"]
    console = Console(file=io.StringIO(), width=100)
    console.print(spread.rich())
    assert "55.0 ± 7.1" in console.file.getvalue()
    console.print(table.rich(bold=False))
    assert "*75.0" in console.file.getvalue()
    assert "*" not in table.csv()


@pytest.mark.parametrize("name", ["a\rb", "a\r", "a\r\n", "a\nb", 'a"b,c'])
def test_no_line_end_in_a_name_tears_a_row(name):
    table = Table(name="t", caption="c", columns=(name, "n"), rows=(Row(cells=(Cell(text=name, value=name),) * 2),))
    text = table.csv()
    assert list(csv.reader(io.StringIO(text, newline=""))) == [[name, "n"], [name, name]]
    assert "\r\n" not in text.replace(name, "")
    rows, before = table.markdown().partition("\n\n")[0], table.latex().partition("\\midrule\n")[2]
    assert len(rows.splitlines()) == 3
    assert len(before.partition("\\bottomrule")[0].splitlines()) == 1


def test_names_cannot_break_out_of_a_table():
    table = Table(name="t", caption="c", columns=("x",), rows=(Row(cells=(Cell(text=NASTY, value=NASTY),)),))
    line = table.markdown().splitlines()[2]
    assert "<" not in line
    assert line.replace(r"\|", "").count("|") == 2
    latex = table.latex()
    assert r"a|b *c* \textless{}script\textgreater{} \$x\_1\$ \& 50\% \textbackslash{} \{y\}" in latex
    assert list(csv.reader(io.StringIO(table.csv(), newline="")))[1] == [NASTY]
    console = Console(file=io.StringIO(), width=100)
    console.print(Table(name="t", caption="[red]c", columns=("[b]",), rows=()).rich())
    assert "[b]" in console.file.getvalue()


def test_tables_of_a_real_comparison(compared):
    chapter = compared.report.chapters[0]
    tables = {table.name: table for table in chapter.tables}
    losses, differences, runs = (tables[name] for name in ("losses", "differences", "runs"))
    assert len(losses.rows) == 3
    assert losses.columns[5] == "AUROC <b>noise<b>, % ↑"
    assert [row.cells[1].text for row in differences.rows] == ["Accuracy, % ↑"] * 2 + ["NLL ↓"] * 2 + ["ECE, % ↓"] * 2
    assert {row.cells[-1].text for row in runs.rows} == set(compared.frame["key"])
    again = difference_table(judge(chapter.setting.frame))
    assert again == differences
    assert run_table(chapter.setting.frame) == runs


def test_titles_and_marks_are_stable():
    assert loss_title("generalized_ce(q=0.5)") == "Generalised CE (q 0.5)"
    assert loss_title("my_own_loss") == "my_own_loss"
    many = ["ce", "gence", "gence(anchor=0.1)", "gence(anchor=0.3)", "cosine", "supcon", "x1", "x2", "x3", "x4", "x5"]
    marks = marks_for(many)
    assert marks["ce"] == marks_for(["mae", "ce"])["ce"]
    assert len({mark.light for mark in list(marks.values())[:10]}) == 10


def test_equal_means_are_marked_alike_and_not_at_all_if_there_is_no_other():
    rows = [("ce", 0.6), ("gence", 0.6), ("mae", 0.5), ("focal", 0.9)]
    frame = pd.DataFrame(rows, columns=["loss", "accuracy"]).assign(seed=0, status="done")
    frame.loc[frame["loss"] == "focal", "status"] = "diverged"  # and so no best, whatever its network guesses
    marked = {row.loss: row.cells[2].best for row in loss_table(Setting("digits", frame), [ACCURACY]).rows}
    assert marked == {"gence": True, "ce": True, "mae": False, "focal": False}
    same = Setting("digits", frame[frame["accuracy"] == 0.6])
    assert not any(row.cells[2].best for row in loss_table(same, [ACCURACY]).rows)
