"""The log loss of an evaluation set, and beside it the mean of its batches' GenCE.

GenCE's value depends on the size of the batch; the log loss of all rows does not, so models are selected by it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EvaluationSums:
    """Sums over the batches of one evaluation.

    Attributes:
        sums: the rows' log losses, how many rows count, and the same for the criterion's values: float64 (4,); None
            before the first batch.

    >>> import gence
    >>> found, logits, labels = EvaluationSums(), torch.zeros(4, 2), torch.tensor([0, 1, 1, -100])
    >>> value = found.add(gence.GenCELoss(), logits, labels, torch.tensor(1.5))
    >>> [round(mean, 4) for mean in found.means()]
    [0.6931, 1.5]
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    @torch.no_grad()
    def add(self, criterion: nn.CrossEntropyLoss, logits: Tensor, target: Tensor, value: Tensor) -> Tensor:
        """Count a batch, whose criterion's value is `value`; return the mean log loss of its rows."""
        # float16 overflows in sums, and not every CPU has it.
        total = nn.functional.cross_entropy(
            logits.float(), target, ignore_index=criterion.ignore_index, reduction="sum"
        ).double()
        if target.is_floating_point():
            rows = float(target.numel() // target.shape[1])
            counted = total.new_tensor(rows)
        else:
            counted = (target != criterion.ignore_index).sum().to(total)
        # A batch without a row that counts has a mean of NaN, and no part in the sums.
        worth = torch.where(counted > 0, value.double(), 0.0)
        batch = torch.stack([total, counted, worth * counted, counted])
        self.sums = batch if self.sums is None else self.sums + batch
        return (total / counted).to(value.dtype)

    def means(self) -> tuple[float, float]:
        """The log loss per row, and the criterion's mean value."""
        if self.sums is None:
            return float("nan"), float("nan")
        total, counted, value, weight = self.sums.tolist()
        return (total / counted, value / weight) if counted else (float("nan"), float("nan"))
