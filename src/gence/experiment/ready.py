"""What would fail every run of a grid alike, found before the first: an unknown network, data that are not there."""

from __future__ import annotations

from collections.abc import Iterable

from gence.data.sources import container_paths
from gence.experiment.spec import RunSpec
from gence.models import check_model


def check_ready(specs: Iterable[RunSpec], *, data: bool = True) -> None:
    """Raise an error if a network of these runs is unknown, or if a folder or archive of their data is not there.

    Args:
        specs: the runs.
        data: whether data are looked for; they need not be here for runs that train elsewhere.

    Raises:
        ValueError: there is no such network. Those of timm are not looked up.
        DataError: there is no such data set.
    """
    specs = list(specs)
    for model in dict.fromkeys(spec.model for spec in specs):
        check_model(model)
    if data:
        for source in dict.fromkeys(source for spec in specs for source in (spec.data, *spec.ood)):
            container_paths(source, None)
