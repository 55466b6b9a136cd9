"""The baselines as modules: subclasses of ``nn.CrossEntropyLoss`` with the same constructor and their own parameters.

A subclass, because tools decide by it: skorch, for one, applies a softmax in ``predict_proba`` for nothing else.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gence.losses import _checks, baselines, contrastive
from gence.losses.targets import Target


class _Loss(nn.CrossEntropyLoss):
    """Constructor and call that the modules below share."""

    def _common(self) -> tuple[Tensor | None, int, str, float]:
        return self.weight, self.ignore_index, self.reduction, self.label_smoothing


class CrossEntropyLoss(_Loss):
    """``nn.CrossEntropyLoss`` that also takes :class:`TwoHot` targets; see :func:`cross_entropy`."""

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.cross_entropy(input, target, *self._common())


class MAELoss(_Loss):
    """Mean absolute error on probabilities; see :func:`mae_loss`."""

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.mae_loss(input, target, *self._common())


class BrierLoss(_Loss):
    """Squared error on probabilities; see :func:`brier_loss`."""

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.brier_loss(input, target, *self._common())


class GeneralizedCrossEntropyLoss(_Loss):
    """Between cross-entropy and MAE; see :func:`generalized_cross_entropy`."""

    def __init__(self, *args: Any, q: float = 0.7, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_q(q)
        self.q = q

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.generalized_cross_entropy(input, target, *self._common(), q=self.q)


class FocalLoss(_Loss):
    """Cross-entropy with easy examples weighted down; see :func:`focal_loss`."""

    def __init__(self, *args: Any, gamma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_gamma(gamma)
        self.gamma = gamma

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.focal_loss(input, target, *self._common(), gamma=self.gamma)


class LogitAdjustedLoss(_Loss):
    """Cross-entropy for long tails; see :func:`logit_adjusted_loss`."""

    prior: Tensor | None

    def __init__(self, *args: Any, prior: Tensor | None = None, tau: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_prior(prior, None)
        self.register_buffer("prior", prior)
        self.tau = tau

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.logit_adjusted_loss(input, target, *self._common(), prior=self.prior, tau=self.tau)


class CosineLoss(_Loss):
    """Angle between outputs and one-hot target; see :func:`cosine_loss`."""

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        return baselines.cosine_loss(input, target, *self._common())


class SupConLoss(_Loss):
    """Supervised contrastive loss on **embeddings**, not logits; see :func:`supcon_loss`."""

    def __init__(self, *args: Any, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_temperature(temperature)
        self.temperature = temperature

    def forward(self, input: contrastive.Embeddings | Tensor, target: Tensor) -> Tensor:
        """The loss of a batch of embeddings."""
        return contrastive.supcon_loss(input, target, *self._common(), temperature=self.temperature)
