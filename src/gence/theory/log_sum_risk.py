"""Risks that are sums of log-sums of a forecast, with gradient and Hessian in closed form.

With u = log p, the expected batch loss of GenCE is

    f(u) = constant - sum_xk linear_xk u_xk + sum_k sum_b weights_bk log sum_x counts_bx exp(u_xk),

b running over batches. No log-sum couples two classes. For class k let omega_bx be counts_bx exp(u_xk) over its sum in
x: the Hessian in u_k is diag(sum_b weights_bk omega_b) - sum_b weights_bk omega_b omega_b^T, a matrix product over one
table. Automatic differentiation would take such a table for each of the mK rows of the Hessian, and hold them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ENTRIES_AT_ONCE = 2_000_000  # of a (forecasts, batches, m, K) table: 16 MB, a few of which are held
_SMALLEST_SUM = 1e-290  # a sum of exponentials below it has lost digits, or all of them


@dataclass(frozen=True, eq=False)
class LogSumRisk:
    """The function f above, and its derivatives in the logits z of p = softmax(z).

    Attributes:
        constant: 0-dim, what does not depend on the forecast.
        linear: (m, K), not negative.
        counts: (batches, m), how often each input is in each batch.
        weights: (batches, K), of any sign.
    """

    constant: Tensor
    linear: Tensor
    counts: Tensor
    weights: Tensor

    def at(self, log_forecasts: Tensor) -> Tensor:
        """Return f at log-forecasts (n, m, K), (n,); +inf where a forecast gives 0 to a label that occurs."""
        return torch.cat([self._values(part) for part in self._parts(log_forecasts)])

    def values(self, logits: Tensor) -> Tensor:
        """Return f at logits (n, m * K), (n,)."""
        return self.at(self._log_forecasts(logits))

    def gradients(self, logits: Tensor) -> Tensor:
        """Return the gradients at logits (n, m * K), of their shape."""
        return torch.cat([self._gradients(part) for part in self._parts(self._log_forecasts(logits))])

    def hessians(self, logits: Tensor) -> Tensor:
        """Return the Hessians at logits (n, m * K), (n, m * K, m * K)."""
        return torch.cat([self._hessians(part) for part in self._parts(self._log_forecasts(logits))])

    def _log_forecasts(self, logits: Tensor) -> Tensor:
        return logits.view(-1, *self.linear.shape).log_softmax(2)  # (n, m, K)

    def _parts(self, log_forecasts: Tensor) -> tuple[Tensor, ...]:
        entries = self.counts.shape[0] * self.linear.numel()
        size = max(1, _ENTRIES_AT_ONCE // entries)
        return tuple(log_forecasts[i : i + size] for i in range(0, len(log_forecasts), size))

    def _values(self, u: Tensor) -> Tensor:
        linear = torch.where(self.linear > 0, self.linear * u, 0.0).sum((1, 2))  # (n,)
        # 0 * -inf = 0: a class that the batch cannot show costs nothing.
        log_sums = torch.where(self.weights != 0, self.weights * self._log_sums(u), 0.0).sum((1, 2))
        # inf - inf otherwise. The same convention as the score's: 0/0 is +inf.
        return torch.where(linear == -torch.inf, torch.inf, self.constant - linear + log_sums)

    def _log_sums(self, u: Tensor) -> Tensor:
        """Return log sum_x counts_bx exp(u_xk), (n, batches, K)."""
        top = u.amax(1, keepdim=True)  # (n, 1, K)
        top = torch.where(top == -torch.inf, 0.0, top)
        sums = self.counts @ (u - top).exp()
        if bool((sums > _SMALLEST_SUM).all()):
            return sums.log() + top
        # The same without a product of matrices, slower: exact however far a column's entries lie apart.
        return (self.counts.log()[:, :, None] + u[:, None]).logsumexp(2)

    def _shares(self, u: Tensor) -> Tensor:
        """Return omega, (n, K, batches, m): each input's share of the log-sum of its batch and class."""
        log_sums = self._log_sums(u).mT[..., None]  # (n, K, batches, 1)
        return (self.counts.log() + u.mT[:, :, None] - log_sums).exp()

    def _pull(self, shares: Tensor) -> Tensor:
        """Return the gradient of the log-sums in u, (n, K, m)."""
        return (self.weights.T[:, None] @ shares)[:, :, 0]

    def _gradients(self, u: Tensor) -> Tensor:
        slope = self._pull(self._shares(u)).mT - self.linear  # (n, m, K), in u
        return (slope - u.exp() * slope.sum(2, keepdim=True)).flatten(1)

    def _hessians(self, u: Tensor) -> Tensor:
        n, m, K = u.shape
        shares, p = self._shares(u), u.exp()
        pull = self._pull(shares)
        by_class = torch.diag_embed(pull) - (shares * self.weights.T[..., None]).mT @ shares  # (n, K, m, m), in u
        curvature = torch.diag_embed(by_class.permute(0, 2, 3, 1)).transpose(2, 3)  # (n, m, K, m, K)
        # From u to z, on both sides: row x of u moves by dz_x less its mean under p_x.
        curvature = curvature - p[:, :, :, None, None] * curvature.sum(2, keepdim=True)
        curvature = curvature - curvature.sum(4, keepdim=True) * p[:, None, None]
        # u is itself curved in z, by minus the covariance of p_x, in all classes alike.
        rows = torch.arange(m)
        slope = (pull.mT - self.linear).sum(2)[..., None, None]  # (n, m, 1, 1)
        covariance = torch.diag_embed(p) - p[..., None] * p[:, :, None]  # (n, m, K, K)
        curvature[:, rows, :, rows] -= (slope * covariance).transpose(0, 1)  # (m, n, K, K): so indexing orders them
        return curvature.reshape(n, m * K, m * K)
