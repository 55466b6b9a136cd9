"""What would fail every run of a grid alike, found before the first: an unknown network, data that are not there."""

from __future__ import annotations

from collections.abc import Iterable

from gence.lab.data import container_paths, known_sources, load
from gence.lab.features import EncoderModel, is_encoder_model
from gence.lab.models import check_model
from gence.lab.spec import RunSpec, check_held_out
from gence.lab.train import drawn_counts, most_balanced


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
        if is_encoder_model(model):
            EncoderModel.parse(model)
    if data:
        for source in dict.fromkeys(source for spec in specs for source in (spec.data, *spec.ood)):
            container_paths(source, None)


def check_tunable(specs: Iterable[RunSpec]) -> None:
    """Raise an error if the training images of these runs cannot be drawn, or not be divided to hold a part out.

    Only data that are here are looked at: what was tuned elsewhere can be asked for without a download.

    Raises:
        DataError: a class is too small.
    """
    bundled = {info.name for info in known_sources() if info.bundled}
    for spec in {(spec.data, spec.image_size, spec.subset): spec for spec in specs}.values():
        if spec.data not in bundled and not container_paths(spec.data, None):
            continue
        train = load(spec.data, image_size=spec.image_size, progress=True).train
        check_held_out(
            drawn_counts(spec, train), train.classes, spec.subset, most=most_balanced(train),
            tuning=f"tuning on {spec.data}", larger="subset =",
        )  # fmt: skip
