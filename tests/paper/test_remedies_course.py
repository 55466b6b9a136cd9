"""When the marginal leaves its place while the networks of the remedies train: counts, table and figure."""

from __future__ import annotations

from gence.lab.report.figures.svg import as_svg
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import Asked, shown
from gence.paper.studies.remedies_course import course_drawings
from tests.paper.remedies_records import ROW, run_of

OTHER = "cifar10-vgg19-paper"


def trained(store: Store, row: str, name: str, drifts: list[list[float]]) -> None:
    """Write a cell's runs, one a seed, with the drift of each epoch."""
    for seed, drift in enumerate(drifts):
        result = RunResult(metrics={"accuracy": 0.5}, curves={"marginal_kl": drift})
        store.write(run_of(name, row, seed), result)


def test_the_table_counts_runs_of_all_settings(writer) -> None:
    trained(writer.store, ROW, "gence", [[0.1, 4.0, 4.0, 0.5], [0.1, 0.2, 5.0, 5.0]])
    trained(writer.store, OTHER, "gence", [[0.3, 0.3, 0.3, 0.3], [2.0, 0.1, 0.1, 0.1]])
    trained(writer.store, OTHER, "ce", [[0.1, 0.1, 0.1, 0.1]])
    table, _ = shown("remedies_course", writer.store)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["CE", "1", "0", "–", "–", "0"],
        ["GenCE", "4", "3", "2", "2", "1"],
    ]
    assert "Runs of 2 settings" in table.caption
    assert shown("remedies_course", writer.store, rows=[OTHER], seeds=1)[0].rows[1].cells[1].text == "1"


def test_the_figure_has_a_line_per_run(writer) -> None:
    assert course_drawings(Asked(writer.store)) == []
    assert shown("remedies_course", writer.store)[0].rows == ()
    trained(writer.store, ROW, "gence", [[0.1, 4.0], [0.1, 0.0]])
    trained(writer.store, OTHER, "anchor-0.1", [[0.1, 0.0]])
    (drawing,) = course_drawings(Asked(writer.store))
    figure = drawing.figure()
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-100, VGG-19, paper", "CIFAR-10, VGG-19, paper"]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert [0.1, 4.0] in drawn
    assert [0.1, 1e-3] in drawn  # 0 has no place on a logarithmic axis
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain GenCE", "anchor 0.1 (batch labels)"]
    assert as_svg(figure, "one") == as_svg(drawing.figure(), "one")
    assert "$" not in as_svg(figure, "one")  # a power in a formula would be shown as its source
