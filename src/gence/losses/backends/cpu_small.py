r"""A small batch with class indices on a CPU, where the number of operations is the cost, not the logits.

For class indices the loss is :math:`-\log (p_{i y_i} / \sum_j p_{j y_i})`: the log-softmax over the classes, normalised
once more over the rows. Written so it is cross-entropy's own graph with one ``log_softmax`` more, in PyTorch's native
nodes, which no function in Python can beat at this size. Over the rows of a large batch this normalisation is slow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gence.losses.targets import compute_dtype, loss_dtype

SMALL = 1 << 16  # logits: up to here fewer operations are faster, beyond it fewer passes over memory
MOST_ROWS = 256  # PyTorch adds over the rows one by one, in float32: more of them would round too often


def is_small(logits: Tensor) -> bool:
    """Whether rows (n, K) are better computed here."""
    return logits.numel() <= SMALL and len(logits) <= MOST_ROWS


def small_loss(logits: Tensor, index: Tensor, weight: Tensor | None, reduction: str) -> Tensor | None:
    """The loss of rows (n, K), or None where a class may have no probability in any row: its gradient would be NaN.

    Args:
        logits: (n, K), finite or not.
        index: class indices (n,), int64, in range, none of them ignored.
        weight: class weights (K,).
        reduction: "mean", "sum" or "none".
    """
    dtype = compute_dtype(logits)
    log_p = torch.log_softmax(logits, 1, dtype)  # (n, K)
    if not log_p.detach().min().item() > -torch.inf:  # NaN included: the general path says what becomes of it
        return None
    if weight is not None:
        weight = weight.to(dtype)
    # No row is ignored, and a class index that is not one keeps PyTorch from thinking otherwise.
    loss = F.nll_loss(torch.log_softmax(log_p, 0), index, weight, ignore_index=-1, reduction=reduction)
    return loss if logits.dtype == dtype else loss.to(loss_dtype(logits))
