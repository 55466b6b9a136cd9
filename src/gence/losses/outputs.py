"""Finding the logits in what a network returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned; see :meth:`gence.MarginalMonitor.hook`."""
    found: Any = output
    if not isinstance(output, Tensor):
        found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, (tuple, list)):
        found = next((part for part in output if isinstance(part, Tensor) and part.dim() > 0), None)
    if isinstance(found, Tensor) and found.dim() >= 2 and found.is_floating_point():
        return found
    seen = type(output).__name__
    if isinstance(output, Mapping):
        seen += f" with the keys {sorted(map(str, output))}"
    elif isinstance(found, Tensor):
        seen += f"{'' if found is output else ' with a tensor'} of shape {tuple(found.shape)} and dtype {found.dtype}"
    raise TypeError(
        "output: expected logits (n, K), a tuple or list that begins with them, or a mapping or object with `logits`, "
        f"got {seen}. Register the hook on the loss or on the layer that makes the logits, or call "
        "monitor.update(logits, labels) in the training loop."
    )
