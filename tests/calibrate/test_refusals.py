"""What nothing can be fitted on is an error that names the argument."""

from __future__ import annotations

import pytest
import torch

from gence import calibrate

Z, Y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
SPOILT = Z.index_fill(1, torch.tensor([1]), torch.nan)


@pytest.mark.parametrize("method", calibrate.METHODS)
@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (Z, Y + 3, "labels: class indices from 3 to 5 were given, 0 to 2 expected"),
        (Z, Y[:4], r"labels: shape \(4,\) was given"),
        (Z, Y.float(), "labels: dtype torch.float32"),
        (Z, [0, 1, 2], "labels: list was given"),
        (SPOILT, Y, "logits: .*NaN"),
        (Z.long(), Y, "logits: dtype torch.int64"),
        (Z[0], Y, r"logits: shape \(3,\) was given"),
    ],
)
def test_calibrators_name_what_is_wrong(method, logits, labels, said) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        calibrate.fit_calibrator(method, logits, labels)


@pytest.mark.parametrize(
    ("probs", "labels", "said"),
    [
        (Z, Y, "probs: .* expected.*logits"),
        (SPOILT, Y, "probs: a minimum of nan"),
        (Z.softmax(1), Y - 3, "labels: class indices from -3 to -1"),
        (Z.softmax(1), Y[:, None], "labels: shape"),
    ],
)
def test_sets_name_what_is_wrong(probs, labels, said) -> None:
    with pytest.raises(ValueError, match=said):
        calibrate.fit_sets(probs, labels)


def test_labels_of_any_integer_type_are_labels() -> None:
    for method in calibrate.METHODS:
        first, second = (calibrate.fit_calibrator(method, Z, labels)(Z) for labels in (Y, Y.to(torch.uint8)))
        assert torch.equal(first, second)
