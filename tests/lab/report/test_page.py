"""The page in a real browser: drawn, quiet, switchable, sortable, accessible, and nothing leaves the file."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from xml.etree import ElementTree

import matplotlib
import pandas as pd
import pytest

from gence.lab.compare import compare
from gence.lab.report.figures.svg import as_svg, figure_style, inlined
from gence.lab.report.mistakes import Mistake
from gence.lab.report.page import build_report, render, write_report
from tests.lab.small_runs import write_images

pytestmark = pytest.mark.browser
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def opened(chromium):
    """A function that opens a page and fails the test if the page complains or asks for anything."""
    contexts, complaints = [], []

    def open_page(path, *, width=1280, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        url = path.as_uri()
        page.on("request", lambda request: None if _own(request.url, url) else complaints.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def _own(requested: str, page: str) -> bool:
    return requested == page or requested.startswith("data:image/png")


def test_every_figure_is_drawn(compared, opened):
    page = opened(compared.page)
    sections = page.locator("main section h3").all_text_contents()
    assert sections == [
        "Summary", "Calibration and detection", "Differences to CE", "Accuracy, NLL and ECE",
        "Differences, seed by seed", "Reliability", "Answering only when sure", "Out-of-distribution inputs",
        "Learning curves", "The marginal over training", "The marginal at the end", "Confusion matrices",
        "Class by class", "Most confident mistakes", "Where every number comes from",
    ]  # fmt: skip
    boxes = page.evaluate("""() => [...document.querySelectorAll("figure svg")].map(svg => {
        const box = svg.getBoundingClientRect();
        return [box.width, box.height, svg.querySelectorAll("path, use, text").length, svg.getBBox().width];
    })""")
    assert len(boxes) == len(compared.report.chapters[0].panels)
    for width, height, marks, drawn in boxes:
        assert min(width, height) > 100
        assert marks > 10
        assert drawn > 100
    # Clip paths and markers are found under their prefixed names, each once.
    broken = page.evaluate("""() => [...document.querySelectorAll("svg use")]
        .filter(use => !document.getElementById(use.getAttribute("href").slice(1))).length""")
    assert broken == 0
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    thumbnails = page.evaluate("() => [...document.images].map(i => i.complete && i.naturalWidth)")
    assert thumbnails
    assert set(thumbnails) == {8}


def test_losses_switch_off_everywhere_and_on_again(compared, opened):
    page = opened(compared.page)
    parts = page.locator('[data-loss="1"]')
    assert parts.count() > 20  # rows, small figures, marks inside figures
    box = page.get_by_label("GenCE (anchor 0.1)", exact=True)
    box.uncheck()
    assert not any(parts.nth(i).is_visible() for i in range(parts.count()))
    assert page.locator('tr[data-loss="0"]').first.is_visible()
    box.focus()
    page.keyboard.press("Space")
    assert page.locator('tr[data-loss="1"]').first.is_visible()


def test_tables_sort_by_number_and_by_name_with_the_keyboard(compared, opened):
    page = opened(compared.page)
    table = page.locator("table.sortable").first
    head = table.locator("th[scope=col]").nth(2)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    values = [float(v) for v in table.locator("tbody td:nth-child(3)").evaluate_all("c => c.map(x => x.dataset.value)")]
    assert values == sorted(values)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    shown = [float(v) for v in table.locator("tbody td:nth-child(3)").evaluate_all("c => c.map(x => x.dataset.value)")]
    assert shown == values[::-1]
    table.locator("th[scope=col] button").first.click()
    assert head.get_attribute("aria-sort") is None
    names = table.locator("tbody th").all_text_contents()
    assert names == sorted(names)


def test_missing_values_sort_last_both_ways(compared, opened, tmp_path):
    chapter = compared.report.chapters[0]
    table = chapter.tables[0]
    rows = list(table.rows)
    cells = list(rows[0].cells)
    cells[2] = dataclasses.replace(cells[2], text="missing", value="")
    rows[0] = dataclasses.replace(rows[0], cells=tuple(cells))
    tables = (dataclasses.replace(table, rows=tuple(rows)), *chapter.tables[1:])
    report = dataclasses.replace(compared.report, chapters=(dataclasses.replace(chapter, tables=tables),))
    page = opened(write_report(report, tmp_path, files=False))
    button = page.locator("table.sortable").first.locator("th[scope=col] button").nth(2)
    for _ in range(2):
        button.click()
        assert page.locator("table.sortable").first.locator("tbody td:nth-child(3)").last.inner_text() == "missing"


@pytest.mark.parametrize("width", [375, 320])
def test_no_horizontal_scroll_on_a_phone(compared, opened, width):
    page = opened(compared.page, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".scroll").first.evaluate("e => e.scrollWidth > e.clientWidth")  # tables scroll by themselves


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(compared, opened, scheme):
    axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    page = opened(compared.page, scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    found = axe_module.Axe().run(page)
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found.response["violations"]] == []


def test_it_prints_in_light_colours_without_controls(compared, opened):
    page = opened(compared.page, scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(253, 254, 254)"
    assert len(page.pdf()) > 50_000


def test_the_csv_on_the_page_is_the_frame(compared, opened):
    page = opened(compared.page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all runs as CSV").click()
    assert download.value.suggested_filename == "runs.csv"
    assert download.value.path().read_bytes() == (compared.page.parent / "runs.csv").read_bytes()


def test_names_are_text(compared, opened, tmp_path):
    chapter = compared.report.chapters[0]
    png = next(m.png for found in chapter.mistakes.values() for m in found)
    bad = Mistake(
        png=png, true=f'"><img src=x onerror=alert(2)>{HOSTILE}', predicted="../../x", confidence=0.9, seeds=1
    )
    panels = tuple(
        (dataclasses.replace(panel, description=HOSTILE, title=HOSTILE), svg) for panel, svg in chapter.panels
    )
    setting = dataclasses.replace(chapter.setting, title=HOSTILE)
    hostile = dataclasses.replace(chapter, mistakes={"ce": [bad]}, panels=panels, setting=setting, concerns=(HOSTILE,))
    report = dataclasses.replace(compared.report, title=HOSTILE, chapters=(hostile,))
    page = opened(write_report(report, tmp_path / "out", files=False))
    assert HOSTILE in page.locator("h2").first.inner_text()
    assert HOSTILE in page.locator(".concerns").inner_text()
    assert "../../x" in page.locator(".thumbnails").inner_text()
    assert page.locator("script").count() == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_texts_of_a_table_are_text(opened, tmp_path):
    texts = [
        HOSTILE, "<img src=x onerror=alert(3)>", "\x00\x01\x1b[31m control", "\u202eright to left\u2066", "=1+1|calc",
        "long " * 2000, "</td></table><h1>out</h1>", "{{ 7 * 7 }}", "a\nb", "\ufeffmark",
    ]  # fmt: skip
    names = [HOSTILE, "\u202etxt.exe", "=cmd()", "n" * 10_000, *(f"class {k}" for k in range(12))]
    frame = pd.DataFrame({"text": [texts[i % 10] for i in range(64)], "label": [names[i % 16] for i in range(64)]})
    result = compare(
        frame, losses="gence,ce", seeds=1, tune_trials=0, epochs=1, out=tmp_path / "out", cache_dir=tmp_path
    )
    page = opened(result.page)
    quotes = page.locator(".quotes").all_inner_texts()
    assert any(HOSTILE in text for text in quotes)
    assert all(len(line) < 600 for text in quotes for line in text.splitlines())
    assert page.locator("h1").count() == 1
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert page.locator(".thumbnails").count() == 0
    rows = page.locator("#c0-class-table tbody tr")
    assert rows.count() == 16
    page.get_by_label("Find a class").fill("CLASS 1")
    assert [row.split()[:2] for row in page.locator("#c0-class-table tbody tr:visible").all_inner_texts()] != []
    assert page.locator("#c0-class-table tbody tr:visible").count() == 3
    shares = page.locator("#c0-class-table tbody tr td:nth-child(3)").evaluate_all("c => c.map(e => e.dataset.value)")
    assert len(shares) == 16
    with (tmp_path / "out" / "tables" / "classes.csv").open(encoding="utf-8", newline="") as file:
        cells = [row[0] for row in csv.reader(file)]
    assert "'=cmd()" in cells  # which no spreadsheet computes
    assert HOSTILE in cells
    narrow = opened(result.page, width=320)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 320
    narrow.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    found = axe_module.Axe().run(narrow).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


def test_columns_and_categories_of_a_table_are_text(opened, tmp_path):
    words = [HOSTILE, "\x00\x1b[31m", "=cmd|' /C calc'!A0", "\u202egpj.exe", "w" * 10_000]
    frame = pd.DataFrame(
        {
            "--label": [i % 7 + 0.5 for i in range(60)], HOSTILE: [words[i % 5] for i in range(60)],
            "=1+1": ["a", "b", "{{ 7 * 7 }}"] * 20, "label": [i % 3 for i in range(60)],
        }
    )  # fmt: skip
    options = {"losses": "gence,ce", "seeds": 1, "tune_trials": 0, "epochs": 1, "cache_dir": tmp_path}
    page = opened(compare(frame, out=tmp_path / "out", **options).page, width=320)
    said = page.locator("article").inner_text()
    assert f"2 columns of categories ({HOSTILE!r}, '=1+1')" in said
    assert "1 column of numbers ('--label')" in said
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert all(len(line) < 600 for text in page.locator(".quotes").all_inner_texts() for line in text.splitlines())
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_svg_text_cannot_leave_its_place():
    svg = (
        '<svg viewBox="0 0 10 10" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        '<g id="loss:0"><path id="p"/><use xlink:href="#p"/></g></svg>'
    )
    shown = inlined(svg, name="f", title=HOSTILE, description="a & b", marks=[], losses=[4])
    assert "<script>" not in shown
    assert 'data-loss="4"' in shown
    assert 'href="#f-p"' in shown
    assert 'id="f-p"' in shown
    assert shown.count("<svg") == 1


@pytest.mark.parametrize(
    "text",
    [
        'id="loss:99"',
        'href="#x" url(#y) #1b1f24',
        "<!-- a",
        "--> b",
        "</svg><metadata>",
        "$x_1$ a  b",
    ],
)
def test_names_in_figures_are_neither_read_nor_changed(text):
    from matplotlib.figure import Figure

    with matplotlib.rc_context(figure_style()):
        figure = Figure()
        axes = figure.subplots()
        axes.plot([0, 1], [1, 0], gid="loss:0", color="#1b1f24")
        axes.set_title(text)
        shown = inlined(as_svg(figure, "salt"), name="f", title=text, description=text, marks=[], losses=[4])
    page = ElementTree.fromstring(shown)
    texts = [element.text for element in page.iter() if element.tag.endswith(("}text", "}title", "}desc"))]
    assert texts.count(text) == 3
    assert len([1 for element in page.iter() if element.get("data-loss") == "4"]) == 1
    assert "var(--ink)" in shown
    names = [element.get("id", "f-") for element in page.iter()]
    assert all(name.startswith("f-") for name in names)
    shown.encode()


def test_class_names_may_have_any_character(tmp_path, opened):
    names = {os.fsdecode(b"a\xff"): 6, "b\x01\x1b[31m": 6, 'id="loss:99"': 6}
    photos = write_images(tmp_path / "photos", names)
    found = compare(photos, losses=["ce", "gence"], seeds=2, epochs=1, out=tmp_path / "out", device="cpu")
    page = opened(found.page)
    drawn = page.locator("svg text").all_text_contents()
    assert {"a\ufffd", "b\ufffd\ufffd[31m", 'id="loss:99"'} <= set(drawn)


def test_the_page_is_one_small_file_and_names_no_other(compared):
    text = compared.page.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    outside = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert render(compared.report) == text  # the same report gives the same page


def test_figures_and_tables_are_files_too(compared):
    out = compared.page.parent
    names = {p.name for p in (out / "figures").iterdir()}
    panels = compared.report.chapters[0].panels
    assert names == {f"{panel.name}{ending}" for panel, _ in panels for ending in (".svg", ".png")}
    assert all(re.fullmatch(r"[a-z0-9_-]+\.(svg|png)", name) for name in names)
    tables = {table.name for table in compared.report.chapters[0].tables}
    assert {"losses", "classes", "differences", "detectors-1", "runs"} <= tables
    assert {p.name for p in (out / "tables").iterdir()} == {
        f"{t}.{end}" for t in tables for end in ("md", "tex", "csv")
    }
    assert (out / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_grid_with_label_counts_and_batch_sizes_has_their_figures(tmp_path, opened):
    from gence.lab.spec.grid import Grid
    from gence.lab.store.store import Store
    from gence.lab.train.cohort import train_cohort

    base = {"data": "digits", "model": "mlp", "recipe": "tiny", "recipe.epochs": 1, "subset": 50, "seed": 0}
    store = Store(tmp_path / "store")
    for changes in ({}, {"subset": 100}, {"recipe.batch_size": 25}):
        specs = Grid(base={**base, **changes}, product={"loss": ["ce", "gence"]}).specs()
        for spec, result in zip(specs, train_cohort(specs, device="cpu"), strict=True):
            store.write(spec, result, {"device": "cpu", "commit": "abc"})
    report = build_report(store)
    assert report.chapters[0].setting.title.startswith("digits, ")
    names = {panel.name for panel, _ in report.chapters[0].panels}
    assert {"s1-accuracy-by-labels", "s1-accuracy-by-batch"} & names
    page = opened(write_report(report, tmp_path / "out", files=False))
    assert page.locator("article").count() == 3
    assert page.get_by_text("With one seed no difference can be significant").count() == 3
