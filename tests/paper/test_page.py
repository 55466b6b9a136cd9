from __future__ import annotations

import json

import pytest

from gence.experiment.recipe import RECIPES
from gence.experiment.spec import LossSpec, RunSpec, Subset
from gence.experiment.store import StoreError
from gence.paper import load_exhibit
from gence.paper.epoch_time import epoch_time_table, measure_epoch_time, save_epoch_time
from gence.paper.page import write_page
from gence.paper.reliability import reliability
from gence.paper.shown import SHOWN, shown
from gence.paper.table1 import table1


@pytest.mark.parametrize("name", SHOWN)
def test_everything_can_be_shown_without_records(name: str, writer) -> None:
    table, notes = shown(name, writer.store)
    assert table.caption
    assert all(notes)
    assert "nan" not in table.markdown().lower()


def test_the_page_has_every_exhibit_and_its_figures(writer, tmp_path) -> None:
    writer.printed(table1(), "cifar100-2000-vgg19")
    bins = {"count": [1] * 15, "confidence": [0.5] * 15, "accuracy": [0.4] * 14 + [None]}
    bins["count"][14] = 0
    writer.cell(reliability(), "cifar10-2000-vgg19", "ce", [0.0, 0.0], tables={"reliability": bins})
    for size in (25, 50):
        writer.cell(load_exhibit("batch_size"), f"cifar10-2000-vgg19-b{size}", "gence", [70.0, 71.0])
    page = write_page(writer.store, tmp_path / "out" / "paper.html")
    html = page.read_text()
    for name in SHOWN:
        assert f'<section id="{name}">' in html
    assert html.count("<svg") == 3  # a row of Table 1 is also a level in the figure of the remedies
    assert "24.40 ± 1.00" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_seconds_per_epoch_are_measured_and_shown(writer) -> None:
    recipe = RECIPES["tiny"].replace(batch_size=50)
    base = RunSpec(
        data="digits", subset=Subset(n=100), model="small_cnn", loss=LossSpec(name="ce"), recipe=recipe, seed=0
    )
    record = measure_epoch_time([base], losses=("ce", "gence"), epochs=3, rounds=2, device="cpu")
    assert [len(seconds) for seconds in record["rows"][0]["seconds"].values()] == [4, 4]
    path = save_epoch_time(writer.store, record)
    table, (sentence,) = epoch_time_table(writer.store)
    assert [row.cells[1].text for row in table.rows] == ["ce", "gence"]
    assert table.rows[0].cells[3].text == "+0.00"
    assert "(the paper: +0.3 %)" in sentence
    record["rows"][0]["seconds"]["gence"] = [2 * s for s in record["rows"][0]["seconds"]["ce"]]
    path.write_text(json.dumps(record))
    assert epoch_time_table(writer.store)[0].rows[1].cells[3].text == "+100.00"
    path.write_text("{}")
    with pytest.raises(StoreError, match="run gence run epoch_time again"):
        epoch_time_table(writer.store)
