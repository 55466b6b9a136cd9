"""A head on a pretrained encoder as the model of an ordinary run: ``linear@efficientnet_lite0``.

The form is HEAD@ENCODER, then ``@SIZE`` where the input is not the encoder's own, then ``#WEIGHTS`` (12 hexadecimal
digits of the weights' checksum) where the weights come from a file: so the key of a run says what it was made with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gence.lab.features.encoders import check_encoder
from gence.lab.features.heads import HEADS, HeadRun
from gence.lab.features.rows import is_row_encoder
from gence.lab.spec import RunSpec, SpecError, nearest

_FORM = re.compile(r"(?P<head>[^@#]+)@(?P<encoder>[^@#]+)(@(?P<size>[1-9]\d*))?(#(?P<weights>[0-9a-f]{12}))?")


@dataclass(frozen=True, kw_only=True)
class EncoderModel:
    """A head and the encoder that it reads.

    >>> model = EncoderModel.parse("mlp@timm:resnet18@160")
    >>> model.head, model.encoder, model.size, str(model)
    ('mlp', 'timm:resnet18', 160, 'mlp@timm:resnet18@160')
    """

    head: str
    encoder: str
    size: int | None = None
    weights: str | None = None

    @classmethod
    def parse(cls, text: str) -> EncoderModel:
        """Read the string form; raise `SpecError` (an unknown head) or `EncoderError` (an unknown encoder)."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise SpecError(f"model is {text!r}; expected HEAD@ENCODER, such as linear@efficientnet_lite0")
        if match["head"] not in HEADS:
            raise SpecError(f"model {text!r} has the head {match['head']!r}; {nearest(match['head'], HEADS)}")
        if not is_row_encoder(match["encoder"]):
            check_encoder(match["encoder"])
        size = None if match["size"] is None else int(match["size"])
        return cls(head=match["head"], encoder=match["encoder"], size=size, weights=match["weights"])

    def __str__(self) -> str:
        size = "" if self.size is None else f"@{self.size}"
        weights = "" if self.weights is None else f"#{self.weights}"
        return f"{self.head}@{self.encoder}{size}{weights}"


def is_encoder_model(name: str) -> bool:
    """Whether a model's name means a head on an encoder; no network's name has an @."""
    return "@" in name


def head_run(spec: RunSpec, problem: int) -> HeadRun:
    """The run of a head that a spec describes, on the problem with this number.

    The optimizer "lbfgs" stands for the full-data equation, minimised.
    """
    model = EncoderModel.parse(spec.model)
    return HeadRun(
        problem=problem, loss=spec.loss, recipe=spec.recipe, seed=spec.seed, head=model.head,
        full_batch=spec.recipe.optimizer == "lbfgs",
    )  # fmt: skip
