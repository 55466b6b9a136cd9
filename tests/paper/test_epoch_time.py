from __future__ import annotations

import json

import pytest

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec, Subset
from gence.lab.store.files import StoreError
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import shown
from gence.paper.exhibits.epoch_time import measure_epoch_time, save_epoch_time

NETWORK = {
    "data": "cifar10",
    "n": 2000,
    "model": "vgg19",
    "seconds": {"ce": [1.0, 1.0], "focal": [1.0], "gence": [2.0]},
}


def written(store: Store, record: dict) -> Store:
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / "epoch_time.json").write_text(json.dumps(record))
    return store


def test_losses_have_the_order_and_titles_of_the_other_tables(writer) -> None:
    table, _ = shown("epoch_time", written(writer.store, {"rows": [NETWORK], "environment": {"device": "a GPU"}}))
    assert [row.cells[1].text for row in table.rows] == ["GenCE", "CE", "Focal"]
    assert table.caption.endswith("on a GPU.")


@pytest.mark.parametrize(
    "record", [{"rows": []}, {"rows": [{**NETWORK, "seconds": [1]}], "environment": {}}, {"rows": [{}]}, []]
)
def test_a_record_that_is_none_is_named(writer, record) -> None:
    with pytest.raises(StoreError, match=r"epoch_time\.json cannot be read"):
        shown("epoch_time", written(writer.store, record))


def test_seconds_per_epoch_are_measured_and_shown(writer) -> None:
    recipe = RECIPES["tiny"].replace(batch_size=50)
    base = RunSpec(
        data="digits", subset=Subset(n=100), model="small_cnn", loss=LossSpec(name="ce"), recipe=recipe, seed=0
    )
    record = measure_epoch_time([base], losses=("ce", "gence"), epochs=3, rounds=2, device="cpu")
    assert [len(seconds) for seconds in record["rows"][0]["seconds"].values()] == [4, 4]
    path = save_epoch_time(writer.store, record)
    table, _ = shown("epoch_time", writer.store)
    assert [row.cells[1].text for row in table.rows] == ["GenCE", "CE"]
    assert table.rows[1].cells[3].text == "+0.00"
    record["rows"][0]["seconds"]["gence"] = [2 * s for s in record["rows"][0]["seconds"]["ce"]]
    path.write_text(json.dumps(record))
    assert shown("epoch_time", writer.store)[0].rows[0].cells[3].text == "+100.00"
    path.write_text("{}")
    with pytest.raises(StoreError, match="run gence run epoch_time again"):
        shown("epoch_time", writer.store)
