"""When the marginal leaves its place while the networks of the remedies train: counts, table and figure."""

from __future__ import annotations

import math

import pytest
from gence.paper.studies.drift_course import OUT, Course, course_block, course_figure, course_shown

from gence.lab.report.figures.svg import as_svg
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.page import render_page
from gence.paper.registry import shown
from tests.paper.remedies_records import ROW, run_of

OTHER = "cifar10-vgg19-paper"


def trained(store: Store, row: str, name: str, drifts: list[list[float]]) -> None:
    """Write a cell's runs, one a seed, with the drift of each epoch."""
    for seed, drift in enumerate(drifts):
        result = RunResult(metrics={"accuracy": 0.5}, curves={"marginal_kl": drift})
        store.write(run_of(name, row, seed), result)


def test_a_course_says_when_it_was_out() -> None:
    course = Course((0.2, 3.0, math.nan, OUT, 2.0))
    assert course.epochs_out == (2, 3, 5)
    assert course.out_at_end
    assert Course((0.2, 3.0, OUT)).epochs_out == (2,)
    assert not Course((0.2, 3.0, OUT)).out_at_end
    assert not Course((0.2, 0.1)).out_at_end


def test_three_quarters_in_one_of_ten_classes_are_about_out() -> None:
    uniform = [0.1] * 10
    one_class = [0.75] + [0.25 / 9] * 9
    found = sum(p * math.log(p / q) for p, q in zip(uniform, one_class, strict=True))
    assert found == pytest.approx(OUT, abs=0.1)


def test_the_table_counts_runs_of_all_settings(writer) -> None:
    trained(writer.store, ROW, "gence", [[0.1, 4.0, 4.0, 0.5], [0.1, 0.2, 5.0, 5.0]])
    trained(writer.store, OTHER, "gence", [[0.3, 0.3, 0.3, 0.3], [2.0, 0.1, 0.1, 0.1]])
    trained(writer.store, OTHER, "ce", [[0.1, 0.1, 0.1, 0.1]])
    table, notes = course_shown(writer.store)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["CE", "1", "0", "–", "–", "0"],
        ["GenCE", "4", "3", "2", "2", "1"],
    ]
    assert "Runs of 2 settings" in table.caption
    assert notes == [
        "The marginal left its place with GenCE in 3 of 4 runs, in each of them by epoch 3, for 2 of 4 epochs "
        "(median), and was out at the end in 1; with CE in none of 1 runs."
    ]
    assert shown("remedies_course", writer.store, rows=[OTHER], seeds=1)[0].rows[1].cells[1].text == "1"


def test_the_figure_has_a_line_a_run(writer) -> None:
    assert course_figure(writer.store) is None
    assert "no figure" in course_block(writer.store)
    assert course_shown(writer.store)[1] == []
    trained(writer.store, ROW, "gence", [[0.1, 4.0], [0.1, 0.0]])
    trained(writer.store, OTHER, "anchor-0.1", [[0.1, 0.0]])
    figure = course_figure(writer.store)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-100, VGG-19, paper", "CIFAR-10, VGG-19, paper"]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert [0.1, 4.0] in drawn
    assert [0.1, 1e-3] in drawn  # 0 has no place on a logarithmic axis
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain GenCE", "anchor 0.1 (batch labels)"]
    assert as_svg(figure, "one") == as_svg(course_figure(writer.store), "one")
    assert "$" not in as_svg(figure, "one")  # a power in a formula would be shown as its source
    assert "](figures/remedies-course.svg)" in course_block(writer.store)


def test_its_figure_has_the_whole_width_of_the_paper_s_page(writer) -> None:
    trained(writer.store, ROW, "ce", [[0.1, 0.1]])
    section = render_page(writer.store).split('<section id="remedies_course">')[1].split("</section>")[0]
    assert section.count('<figure class="wide">') == 1
