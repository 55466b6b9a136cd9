"""A weight of m is the row m times, in the loss and in its gradient."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import gence
from gence.integrations.inputs import weighted_loss

WEIGHTS = torch.tensor([2, 0, 1, 3, 1, 0, 4], dtype=torch.float64)
CLASS_WEIGHT = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
PRIOR = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gence", {}),
        ("gence", {"anchor": 0.3}),
        ("gence", {"anchor": 0.3, "prior": PRIOR, "weight": CLASS_WEIGHT, "label_smoothing": 0.1}),
        *((name, {}) for name in ("ce", "mae", "brier", "generalized_ce", "focal", "logit_adjusted", "cosine")),
        ("ce", {"weight": CLASS_WEIGHT, "label_smoothing": 0.1}),
    ],
)
def test_weights_are_repetitions(name: str, params: dict[str, object]) -> None:
    logits = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 1, 0, 2, 2])
    weighted = weighted_loss(gence.create_loss(name, reduction="none", **params), logits, target, WEIGHTS)
    (gradient,) = torch.autograd.grad(weighted, logits)

    which = torch.arange(7).repeat_interleave(WEIGHTS.long())
    repeated = gence.create_loss(name, **params)(logits[which], target[which])
    (expected,) = torch.autograd.grad(repeated, logits)
    assert_close(weighted, repeated)
    assert_close(gradient, expected)


def test_a_reduced_loss_is_refused() -> None:
    with pytest.raises(ValueError, match='criterion: expected reduction "none"'):
        weighted_loss(gence.GenCELoss(), torch.zeros(2, 2), torch.tensor([0, 1]), torch.ones(2))
