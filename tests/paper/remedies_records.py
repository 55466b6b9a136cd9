"""Records of the comparison of remedies whose numbers a test decides; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gence.lab.spec.run import RunSpec
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.studies.remedies import remedies

ROW = "cifar100-vgg19-paper"


def run_of(name: str, row: str = ROW, seed: int = 0) -> RunSpec:
    """The run of a cell."""
    column = next(column for column in remedies().columns if column.name == name)
    return remedies().selected([row])[0].specs(column)[seed]


def record(store: Store, row: str, name: str, accuracies: Sequence[float], offset: float | None = 2.0) -> None:
    """Write a cell's runs, one a seed, and so much more after the offset; None for runs that no offset fits."""
    for seed, accuracy in enumerate(accuracies):
        metrics = {"accuracy": accuracy / 100, "ece": 0.1, "marginal_kl": 0.0125}
        if offset is not None:
            metrics |= {"offset/accuracy": (accuracy + offset) / 100, "offset/ece": 0.05}
        store.write(run_of(name, row, seed), RunResult(metrics=metrics))


def fill_row(store: Store, row: str, changes: Mapping[str, float], offset: float | None = 2.0) -> None:
    """Write a whole row: plain GenCE at 20 with a spread, the others so much above, with spreads of their own."""
    for place, one in enumerate(remedies().columns):
        if not one.prefix:
            mean = 20 + changes.get(one.name, 0.0)
            spread = (-1.0, 0.0, 1.0) if one.name == "gence" else (-1.0, 0.1 * (place % 3), 1.0)
            record(store, row, one.name, [mean + off for off in spread], offset)
