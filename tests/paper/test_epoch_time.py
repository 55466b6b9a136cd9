from __future__ import annotations

import json

import pytest

from gence.experiment.store import Store, StoreError
from gence.paper.epoch_time import epoch_time_table

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
    table, (sentence,) = epoch_time_table(
        written(writer.store, {"rows": [NETWORK], "environment": {"device": "a GPU"}})
    )
    assert [row.cells[1].text for row in table.rows] == ["GenCE", "CE", "Focal"]
    assert table.caption.endswith("on a GPU.")
    assert sentence.startswith("VGG-19: an epoch with GenCE takes +100.00 % against CE")


@pytest.mark.parametrize(
    "record", [{"rows": []}, {"rows": [{**NETWORK, "seconds": [1]}], "environment": {}}, {"rows": [{}]}, []]
)
def test_a_record_that_is_none_is_named(writer, record) -> None:
    with pytest.raises(StoreError, match=r"epoch_time\.json cannot be read"):
        epoch_time_table(written(writer.store, record))
