from __future__ import annotations

import re

import pytest

from gence.lab.report.tables import Cell, Row, Table
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import entries, load_exhibit, shown
from gence.paper.exhibits.reliability import reliability
from gence.paper.exhibits.table1 import table1
from gence.paper.exhibits_page import _lines, _pieces, _textual, _with_records, agreement_table, write_page
from tests.paper.conftest import Writer


@pytest.mark.parametrize("name", entries())
def test_everything_can_be_shown_without_records(name: str, writer) -> None:
    table, notes = shown(name, writer.store)
    assert table.caption
    assert all(notes)
    assert "nan" not in table.markdown().lower()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a store that has something of every figure."""
    folder = tmp_path_factory.mktemp("page")
    writer = Writer(Store(folder / "store"))
    writer.printed(table1(), "cifar100-2000-vgg19")
    bins = {"count": [60] * 15, "confidence": [0.5] * 15, "accuracy": [0.4] * 14 + [None]}
    bins["count"][14] = 0
    for column in reliability().columns:
        writer.cell(reliability(), "cifar10-2000-vgg19", column.name, [0.0, 0.0], tables={"reliability": bins})
    for size in (25, 50):
        for column in load_exhibit("batch_size").columns:
            writer.cell(load_exhibit("batch_size"), f"cifar10-2000-vgg19-b{size}", column.name, [70.0, 71.0])
    return write_page(writer.store, folder / "out" / "paper.html")


def test_the_page_has_every_exhibit_and_its_figures(page) -> None:
    html = page.read_text()
    for name in entries():
        assert f'<section id="{name}">' in html
    assert html.count("<svg") == 4  # a row of Table 1 is also part of two figures of the remedies
    assert "24.40 ± 1.00" in html
    assert "A bin with fewer than 50 predictions over all seeds is not drawn." in html
    assert "arXiv 2604.06689" in html
    assert html.count("Nothing of this is recorded yet.") > 3  # not a wall of "missing"
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_figures_have_a_colour_on_light_and_one_on_dark(page) -> None:
    """What is left of fixed colours in the drawings would not follow the page into the dark."""
    html = page.read_text()
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawings)) == set()
    for variable in set(re.findall(r"var\((--c[0-9a-f]{6})\)", drawings)):
        assert html.count(f"{variable}:") == 2


def test_only_columns_of_words_stand_at_the_left() -> None:
    rows = [
        ("CE", "ours", "missing (0 of 5)", "14.92", "NVIDIA H200", "missing"),
        ("", "paper", "–", "out", "–", "missing (0 of 5)"),
        ("GenCE", "ours", "+3.44 (8 of 16 up)", "out", "–", "–"),
    ]
    cells = tuple(Row(cells=tuple(Cell(text=text, value=text) for text in row)) for row in rows)
    table = Table(name="t", caption="c", columns=tuple("abcdef"), rows=cells)
    assert _textual(table) == [True, True, False, False, True, False]
    assert [(line.label.text, line.span) for line in _lines(table)] == [("CE", 2), ("", 0), ("GenCE", 1)]
    assert _pieces("+3.44 (8 of 16 up, 6 settings)") == ["+3.44", "(8 of 16 up,", "6 settings)"]


def test_rows_without_a_record_are_counted_and_not_shown() -> None:
    rows = [("CE", "1 per class", "missing"), ("CE", "2 per class", 3.5), ("MAE", "words", "–")]
    cells = tuple(Row(cells=tuple(Cell(text=str(one), value=one) for one in row)) for row in rows)
    table = _with_records(Table(name="t", caption="c", columns=tuple("abc"), rows=cells))
    assert table.rows == cells[1:]
    assert table.caption == "Rows without a record are not shown (1 of 3). c"
    assert _with_records(table) is table


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 2560])
def test_every_column_is_in_sight_on_a_screen(page, chromium, width) -> None:
    view = chromium.new_page(viewport={"width": width, "height": 900})
    view.goto(page.as_uri())
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
    assert view.locator(".scroll").evaluate_all(cut) == []
    assert view.locator("p, figcaption").evaluate_all("all => Math.max(...all.map(e => e.clientWidth))") <= 960
    view.close()


@pytest.mark.browser
def test_on_a_telephone_labels_stay_and_leave_room(page, chromium) -> None:
    view = chromium.new_page(viewport={"width": 390, "height": 900})
    view.goto(page.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= 390
    found = view.locator("#ood .scroll").evaluate("""box => {
        box.scrollLeft = 300;
        const at = e => e.getBoundingClientRect(), [label, whose] = box.querySelectorAll("tbody .label, tbody .whose");
        return [at(label).left - at(box).left, at(whose).left - at(label).right, at(whose).right - at(box).left];
    }""")
    assert found[0] == pytest.approx(0, abs=1)
    assert found[1] == pytest.approx(0, abs=1)
    assert found[2] < 390 / 2
    captions = "all => all.map(t => document.getElementById(t.getAttribute('aria-describedby')).clientWidth)"
    assert max(view.locator("table").evaluate_all(captions)) <= 390
    view.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, chromium, scheme) -> None:
    axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    view = chromium.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
    view.goto(page.as_uri())
    found = axe_module.Axe().run(view)
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found.response["violations"]] == []
    view.close()


def test_it_begins_with_what_agrees(writer):
    writer.printed(table1(), "cifar100-2000-vgg19")
    first = agreement_table(writer.store).rows[0]
    assert [cell.text for cell in first.cells[1:]] == ["72", "6", "0", "66", "1 of 1"]
