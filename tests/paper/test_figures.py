from __future__ import annotations

import re
from pathlib import Path

from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import Asked
from gence.paper.exhibits.batch_size import batch_size, batch_size_drawings
from gence.paper.exhibits.reliability import FEWEST, reliability, reliability_drawings
from gence.paper.records import default_results

DOCS = Path(__file__).parents[2] / "docs"


def bins(*counts: int) -> dict[str, list[float | None]]:
    """Return a record's table, the accuracy of a bin telling its number."""
    return {
        "count": list(counts),
        "confidence": [0.5 if count else None for count in counts],
        "accuracy": [k / 10 if count else None for k, count in enumerate(counts)],
    }


def test_a_bin_of_a_few_predictions_has_no_bar(writer) -> None:
    """The threshold is over all seeds together: 20 and 30 are enough, 1 and 0 are not."""
    specs = reliability().selected(["cifar10-2000-vgg19"])[0].specs(reliability().columns[1])
    for spec, table in zip(specs, (bins(0, 20, 1, 100, FEWEST - 1), bins(0, 30, 0, 100, 0)), strict=False):
        result = RunResult(metrics={"accuracy": 0.5}, wall_s=6.0, tables={"reliability": table})
        writer.store.write(spec, result, {"device": "test device"})
    (drawing,) = reliability_drawings(Asked(writer.store))
    (panel,) = drawing.figure().axes
    assert [round(bar.get_height(), 9) for bar in panel.patches] == [0.1, 0.3]
    assert panel.get_title() == "CE (n = 2)"
    assert f"fewer than {FEWEST} predictions over all seeds is not drawn" in drawing.reading
    assert "single bins are in the records alone" in drawing.description


def test_panels_stand_in_rows_of_three(writer) -> None:
    for column in reliability().columns:
        writer.cell(reliability(), "cifar10-2000-vgg19", column.name, [0.0], tables={"reliability": bins(60, 60)})
    (drawing,) = reliability_drawings(Asked(writer.store))
    figure = drawing.figure()
    figure.draw_without_rendering()
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 7
    assert len({round(ax.get_position().x0, 3) for ax in shown}) == 3
    assert figure.get_figwidth() < 5  # inches; on a telephone the text is drawn at about its own size


def test_only_settings_with_records_are_drawn(writer) -> None:
    for column in reliability().columns[:-1]:
        writer.cell(reliability(), "cifar10-2000-vgg19", column.name, [0.0], tables={"reliability": bins(60)})
    assert [one.name for one in reliability_drawings(Asked(writer.store))] == ["reliability-cifar10-2000-vgg19"]


def test_one_batch_size_is_no_profile(writer) -> None:
    for name in ("gence", "ce"):
        writer.cell(batch_size(), "cifar10-2000-vgg19-b100", name, [70.0, 71.0])
    assert batch_size_drawings(Asked(writer.store)) == []


def test_losses_at_a_batch_size_stand_apart_and_the_legend_outside(writer) -> None:
    for name in ("gence", "ce"):
        for size in (50, 100):
            writer.cell(batch_size(), f"cifar10-2000-vgg19-b{size}", name, [70.0, 71.0])
    (drawing,) = batch_size_drawings(Asked(writer.store))
    figure = drawing.figure()
    figure.draw_without_rendering()
    (ax,) = figure.axes
    gence, ce = (container.lines[0].get_xdata() for container in ax.containers)
    assert all(0.9 * theirs < ours < theirs for ours, theirs in zip(gence, ce, strict=True))
    assert ax.get_legend() is None
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(ax.get_window_extent())


def test_the_site_shows_every_setting_that_has_records() -> None:
    """A setting that gets its first record needs a line on the page; one that has none would be a broken image."""
    drawn = reliability_drawings(Asked(Store(default_results())))
    shown = re.findall(r"\(figures/(reliability-.*?)\.svg\)", (DOCS / "paper.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(drawing.name for drawing in drawn)
