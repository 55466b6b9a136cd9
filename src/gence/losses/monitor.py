"""Watching the predicted class marginal during training: GenCE leaves it almost free, so it can drift."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from gence.losses import _checks
from gence.losses.targets import Target, class_mass, compute_dtype, flatten_logits, prepare_rows

REMEDY = (
    "Train with a small anchor (gen_cross_entropy(..., anchor=0.1)), which holds the marginal in place; or repair "
    "this model after training: b = marginal_offset(training_logits, prior), then fold_offset(model, b)."
)


class MarginalDriftWarning(UserWarning):
    """The predicted class marginal has left the prior."""


class MarginalMonitor:
    r"""Tracks :math:`\mathrm{KL}(\pi \| \bar p)`, from the prior to the mean prediction since the last ``check``.

    ``update`` costs a softmax and a sum over rows, and accumulates on the logits' device: nothing in it waits for a
    GPU. ``kl`` gives a tensor there. Only ``check``, meant for the end of an epoch, reads the value, records it in
    ``history``, warns once if it lies above ``threshold``, and starts the next window.

    Args:
        prior: the class distribution (K,) that predictions should show. None: that of the labels given to ``update``,
            or uniform if it was given none.
        threshold: in nats. One class of ten that lost nine tenths of its mass gives 0.14, one that is lost altogether
            0.5 to 1, every prediction in one class 20 and more. Small networks that ended sound (below 0.001) had
            passed 0.15 to 0.22 on the way, hence the default of 0.5. With more classes each counts for less: lower it.
        ignore_index: rows with this label are left out.

    A window holds a whole epoch and not a batch, whose own marginal differs from the prior by chance.

    >>> import torch, gence
    >>> monitor = gence.MarginalMonitor(prior=torch.tensor([0.5, 0.5]))
    >>> for _ in range(3):
    ...     monitor.update(torch.randn(8, 2))  # in the training loop, beside the loss
    >>> monitor.check() < 1  # at the end of the epoch
    True
    >>> len(monitor.history)
    1
    """

    def __init__(self, prior: Tensor | None = None, *, threshold: float = 0.5, ignore_index: int = -100) -> None:
        _checks.check_prior(prior, None)
        _checks.check_number("threshold", threshold, "a number > 0, in nats")
        if not threshold > 0:
            raise ValueError(f"threshold: expected a number > 0, in nats, got {threshold}")
        self.prior = None if prior is None else prior.detach().clone()
        self.threshold = threshold
        self.ignore_index = ignore_index
        self.history: list[float] = []
        self.warned = False
        self.reset()

    def reset(self) -> None:
        """Start a new window; ``history`` and ``warned`` stay."""
        self._predicted: Tensor | None = None  # (K,) summed predictions
        self._labels: Tensor | None = None  # (K,) label counts
        self._rows: Tensor | None = None  # 0-dim, on the device: ignored rows make it a value the host does not know

    @torch.no_grad()
    def update(self, logits: Tensor, target: Target | None = None) -> None:
        """Take in a batch.

        Args:
            logits: (n, K) or (N, K, d1, ...).
            target: class indices, of the logits' shape without K, class probabilities of the logits' shape, or a
                :class:`TwoHot`; optional.
        """
        _checks.check_logits(logits)
        K = logits.shape[min(1, logits.dim() - 1)]
        if self.prior is not None and self.prior.shape[0] != K:
            raise ValueError(f"logits: expected {self.prior.shape[0]} classes, as in the prior, got {K}")
        if self._predicted is not None and self._predicted.shape[0] != K:
            raise ValueError(f"logits: expected {self._predicted.shape[0]} classes, as in the batch before, got {K}")
        # float64 keeps a long epoch's sums exact; Apple's devices lack it.
        dtype = torch.float32 if logits.device.type == "mps" else torch.float64
        labels = None
        if target is None:
            flat = flatten_logits(logits.detach())
            p = flat.to(compute_dtype(flat)).softmax(1)  # (n, K)
            number = p.new_full((), p.shape[0], dtype=dtype)
        else:
            rows = prepare_rows(logits.detach(), target, None, self.ignore_index, "mean", 0.0)
            p = rows.logits.softmax(1)
            if rows.valid is not None:
                p = p * rows.valid[:, None]
            labels, number = class_mass(rows).to(dtype), rows.count().to(dtype)
        self._predicted = _add(self._predicted, p.sum(0, dtype=dtype))
        self._rows = _add(self._rows, number)
        if labels is not None:
            self._labels = _add(self._labels, labels)

    def __call__(self, logits: Tensor, target: Target | None = None) -> None:
        """Same as ``update``, so that the monitor itself can be passed as a callback."""
        self.update(logits, target)

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """A forward hook: ``model.register_forward_hook(monitor.hook)`` watches the training batches by itself."""
        del args
        if module.training:
            self.update(output)

    def marginal(self) -> Tensor:
        """Mean prediction (K,) of the window, on the device; NaN where every row was ignored."""
        if self._predicted is None or self._rows is None:
            raise RuntimeError("MarginalMonitor: no batch since the last check or reset; call update(logits) first.")
        return self._predicted / self._rows

    def kl(self) -> Tensor:
        """KL(prior || mean prediction) of the window, a 0-dim tensor on the device.

        A class whose predictions underflow in float32 counts as its smallest number: the result is finite, < 88.
        """
        marginal = self.marginal().clamp_min(torch.finfo(torch.float32).tiny)
        if self.prior is not None:
            prior = self.prior.to(marginal)
        elif self._labels is not None:
            prior = self._labels / self._labels.sum()
        else:
            prior = torch.full_like(marginal, 1.0 / marginal.shape[0])
        prior = prior / prior.sum()
        cross = torch.where(prior > 0, prior * marginal.log(), 0.0)
        return torch.xlogy(prior, prior).sum() - cross.sum()

    def check(self) -> float:
        """End a window: read the divergence, warn the first time it is above the threshold, and start anew."""
        value = float(self.kl())
        self.history.append(value)
        if value > self.threshold and not self.warned:
            self.warned = True
            largest = int(self.marginal().argmax())
            warnings.warn(
                f"The predicted class marginal has drifted: KL(prior || mean prediction) = {value:.3g} nats, above "
                f"{self.threshold:g}; class {largest} takes {float(self.marginal()[largest]):.0%} of the predicted "
                f"mass. {REMEDY}",
                MarginalDriftWarning,
                stacklevel=2,
            )
        self.reset()
        return value

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the open window, the history, and whether the warning was given."""
        window = {"predicted": self._predicted, "labels": self._labels, "rows": self._rows}
        return {**window, "history": list(self.history), "warned": self.warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; the prior and the threshold are those of this monitor."""
        expected = {"predicted", "labels", "rows", "history", "warned"}
        if set(state) != expected:
            raise KeyError(f"state: expected the keys {sorted(expected)}, got {sorted(state)}")
        self._predicted, self._labels, self._rows = state["predicted"], state["labels"], state["rows"]
        self.history, self.warned = list(state["history"]), bool(state["warned"])


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.to(part.device) + part
