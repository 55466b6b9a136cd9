"""The losses of many runs at once, and their gradients with respect to the logits: the usual ones by hand.

Runs stand in groups: the M runs of a group share their batches. So logits are (G, M, K, B), and one operation serves
all of them; rows come last, because operations over few classes are several times as fast across them as along them.
Closed forms are those of the losses' docstrings; a registry loss without one here is differentiated by autograd. Either
way what is computed is the registry's loss, with reduction "mean". Over 300 lines because all closed forms stand in one
place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.lab.spec import LossSpec, looked_up
from gence.losses import create_loss, loss_info


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the runs of one loss have in common: a slice of M."""

    z: Tensor  # (G, m, K, B)
    log_p: Tensor  # (G, m, K, B)
    p: Tensor  # (G, m, K, B)
    target: Tensor  # (G, m or 1, K, B); smoothed where the runs smooth
    gap: Tensor  # (G, m, K, B): p - target; the formulas leave their gradient here
    label: Tensor  # (G, m, 1, B)
    log_p_y: Tensor  # (G, m, 1, B)
    smooth: bool
    modules: list[list[Any]]  # the registry's losses, G lists of m


Params = dict[str, Tensor]  # by name: (G, m, 1, 1), and priors (G, m, K, 1)
_Values = Callable[[], Tensor]
"""Of a formula: a function that returns the means (G, m). It leaves B times their gradient in `gap`."""


class StackedLoss:
    """The losses of G groups of M runs; in each group the same losses in the same order, their parameters may differ.

    Args:
        losses: a list per group.
        priors: (G, K), class distribution of each group's training labels.

    Raises:
        ValueError: a loss that does not read logits, unknown parameters, or groups of different losses.
    """

    def __init__(self, losses: Sequence[Sequence[LossSpec]], priors: Tensor) -> None:
        names = [[loss.name for loss in group] for group in losses]
        if any(group != names[0] for group in names):
            raise ValueError("losses: every group must have the same losses in the same order")
        self.num_classes = priors.shape[1]
        self.parts: list[tuple[slice, Callable[..., _Values], Params, list[list[Any]]]] = []
        start = 0
        for name, same in itertools.groupby(names[0]):
            where = slice(start, start + len(list(same)))
            start = where.stop
            kept = [group[where] for group in losses]
            modules = [[criterion(loss, prior) for loss in group] for group, prior in zip(kept, priors, strict=True)]
            weighted = any("weight" in loss.params for group in kept for loss in group)
            formula = _by_autograd if weighted else _BY_HAND.get(name, _by_autograd)
            self.parts.append((where, formula, self._params(name, modules, priors), modules))
        self.sizes = [where.stop - where.start for where, *_ in self.parts]

    def __call__(
        self, z: Tensor, labels: Tensor, *, anchor_share: Tensor | None = None, values: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Gradient of each run's mean loss with respect to its logits, and the losses.

        Args:
            z: logits (G, B, M, K).
            labels: int64 (G, B).
            anchor_share: (G, M), what share of its anchor each run uses now; None is all of it.
            values: False where only the gradient is wanted.

        Returns:
            (G, B, M, K), and (G, M) or None.
        """
        rows, K = z.shape[1], self.num_classes
        z = z.permute(0, 2, 3, 1).contiguous()  # (G, M, K, B); for linear heads it is that already
        log_p = z.log_softmax(2)
        p = log_p.exp()
        label = labels[:, None, None]  # (G, 1, 1, B)
        one_hot = torch.zeros(len(z), 1, K, rows, dtype=z.dtype).scatter_(2, label, 1.0)
        gradient = p - one_hot
        losses = z.new_empty(z.shape[:2]) if values else None
        wide = label.expand(-1, z.shape[1], -1, -1)
        each = (z, log_p, p, gradient, wide, log_p.gather(2, wide))
        pieces = zip(*(tensor.split_with_sizes(self.sizes, 1) for tensor in each), strict=True)
        for (where, formula, params, modules), piece in zip(self.parts, pieces, strict=True):
            mine_z, mine_log_p, mine_p, gap, mine_label, log_p_y = piece
            if anchor_share is not None and "anchor" in params:
                params = {**params, "anchor": params["anchor"] * anchor_share[:, where, None, None]}
            smoothing = params.get("label_smoothing")
            target = one_hot if smoothing is None else one_hot * (1 - smoothing) + smoothing / K
            if smoothing is not None:
                torch.sub(mine_p, target, out=gap)
            batch = _Batch(mine_z, mine_log_p, mine_p, target, gap, mine_label, log_p_y, smoothing is not None, modules)
            value = formula(batch, params)
            if losses is not None:
                losses[:, where] = value()
        return gradient.mul_(1 / rows).permute(0, 3, 1, 2), losses

    def _params(self, name: str, modules: list[list[Any]], priors: Tensor) -> Params:
        """The runs' own numbers side by side; parameters that all leave at their default are omitted."""
        found: Params = {}
        for param in ("label_smoothing", *(own for own in loss_info(name).params if own != "prior")):
            table = torch.tensor(
                [[float(getattr(module, param)) for module in group] for group in modules], dtype=priors.dtype
            )
            if param not in ("label_smoothing", "anchor") or bool(table.any()):
                found[param] = table[:, :, None, None]
        given = [[getattr(module, "prior", None) is not None for module in group] for group in modules]
        if any(any(group) for group in given):
            found["prior"] = torch.stack(
                [
                    torch.stack([prior if module.prior is None else module.prior for module in group])
                    for group, prior in zip(modules, priors, strict=True)
                ]
            )[..., None].to(priors.dtype)
            found["has_prior"] = torch.tensor(given)[:, :, None, None]
        return found


def criterion(loss: LossSpec, prior: Tensor) -> Any:
    """The registry's module of a loss; a prior given by name is looked up.

    Raises:
        ValueError: a loss that trains an encoder, or parameters that the loss does not have.
    """
    info = loss_info(loss.name)
    if info.takes != "logits":
        raise ValueError(
            f"loss {loss}: it trains an encoder, and the encoder is frozen here; train a network with it, or choose "
            "a loss of logits"
        )
    known = ("label_smoothing", *info.params, "weight")
    for param in loss.params:
        if param not in known:
            raise ValueError(f"loss {loss}: unknown parameter {param!r}; known: {', '.join(known)}")
    return create_loss(loss.name, **looked_up(loss, prior))


def _separable(
    cost: Callable[[Tensor, Params], Tensor], slope: Callable[[Tensor, Params], Tensor]
) -> Callable[[_Batch, Params], _Values]:
    """A loss that is ``cost(log p_k)`` for class k; `slope` is minus its derivative by log p_k."""

    def formula(batch: _Batch, params: Params) -> _Values:
        if batch.smooth:
            pull = batch.target * slope(batch.log_p, params)
            torch.mul(batch.p, pull.sum(2, keepdim=True), out=batch.gap).sub_(pull)
            return lambda: (batch.target * cost(batch.log_p, params)).sum(2).mean(2)
        batch.gap.mul_(slope(batch.log_p_y, params))
        return lambda: cost(batch.log_p_y, params).squeeze(2).mean(2)

    return formula


def _cross_entropy(batch: _Batch, _: Params) -> _Values:
    """-log p_y: p - t."""
    return lambda: -(batch.target * batch.log_p).sum(2).mean(2)


def _logit_adjusted(batch: _Batch, params: Params) -> _Values:
    """Cross-entropy of z + tau log prior."""
    if "prior" not in params:
        return _cross_entropy(batch, params)
    shift = torch.where(params["has_prior"], params["tau"] * params["prior"].log(), 0.0)
    log_p = (batch.z + shift).log_softmax(2)
    torch.sub(log_p.exp(), batch.target, out=batch.gap)
    return lambda: -(batch.target * log_p).sum(2).mean(2)


def _brier(batch: _Batch, _: Params) -> _Values:
    """sum_k p_k^2 - 2 p_y + 1: 2 p (e - sum_m p_m e_m) with e = p - t."""
    batch.gap.sub_((batch.p * batch.gap).sum(2, keepdim=True)).mul_(batch.p).mul_(2)
    return lambda: (batch.p * (batch.p - 2 * batch.target)).sum(2).mean(2) + 1


def _gence(batch: _Batch, params: Params) -> _Values:
    """-log p_y + log S_y + anchor KL(prior || S/n), S the batch's summed predictions: p - t + p T/S - p sum_k p T/S.

    p_jk T_k / S_k is T_k times the softmax of log p over the batch: T / S is never formed.
    """
    rows = batch.p.shape[3]
    mass = wanted = batch.target.sum(3, keepdim=True)  # (G, m or 1, K, 1); wanted is rows * prior
    if "prior" in params:
        wanted = torch.where(params["has_prior"], params["prior"] * rows, mass)
    pulled = mass - params["anchor"] * wanted if "anchor" in params else mass
    share = batch.log_p.softmax(3).mul_(pulled)  # p T / S, (G, m, K, B)
    batch.gap.addcmul_(batch.p, share.sum(2, keepdim=True), value=-1).add_(share)

    def value() -> Tensor:
        log_s = batch.log_p.logsumexp(3, keepdim=True)  # (G, m, K, 1)
        found = (batch.target * (log_s - batch.log_p)).sum(2).mean(2)
        if "anchor" in params:
            prior = wanted / rows
            kl = (torch.xlogy(prior, prior) + prior * (math.log(rows) - log_s)).sum(2)
            found = found + (params["anchor"].squeeze(3) * kl).squeeze(2)
        return found

    return value


def _mdca(batch: _Batch, params: Params) -> _Values:
    """Cross-entropy and beta mean_k |mean_j p_jk - mean_j t_jk|, whose slope by p is a sign for each class."""
    mean = batch.gap.mean(3, keepdim=True)  # (G, m, K, 1)
    pull = params["beta"] / batch.p.shape[2] * mean.sign()
    batch.gap.add_(batch.p * (pull - (batch.p * pull).sum(2, keepdim=True)))

    def value() -> Tensor:
        plain = -(batch.target * batch.log_p).sum(2).mean(2)
        return plain + (params["beta"] * mean.abs().mean(2, keepdim=True)).squeeze(3).squeeze(2)

    return value


def _squentropy(batch: _Batch, _: Params) -> _Values:
    """Cross-entropy and the mean square of the other classes' logits."""
    pull = batch.z * ((1 - batch.target) / max(batch.z.shape[2] - 1, 1))
    batch.gap.add_(pull, alpha=2)
    return lambda: (batch.z * pull - batch.target * batch.log_p).sum(2).mean(2)


def _mbls(batch: _Batch, params: Params) -> _Values:
    """Cross-entropy and alpha sum_k max(0, max z - z_k - margin); classes that tie for the maximum share its slope."""
    top = batch.z.amax(2, keepdim=True)
    over = top - batch.z - params["margin"]
    active, largest = (over > 0).to(batch.z.dtype), (batch.z == top).to(batch.z.dtype)
    moved = active.sum(2, keepdim=True) * largest / largest.sum(2, keepdim=True) - active
    batch.gap.add_(params["alpha"] * moved)

    def value() -> Tensor:
        penalty = params["alpha"] * over.clamp_min(0).sum(2, keepdim=True)
        return (penalty.squeeze(2) - (batch.target * batch.log_p).sum(2)).mean(2)

    return value


def _logit_norm(batch: _Batch, params: Params) -> _Values:
    """Cross-entropy of u / tau with u = z / |z|: what lies along u moves nothing."""
    length = batch.z.norm(dim=2, keepdim=True)
    length = length.masked_fill(length == 0, 1.0)
    unit = batch.z / length
    log_p = (unit / params["tau"]).log_softmax(2)
    pull = log_p.exp() - batch.target
    torch.sub(pull, unit * (unit * pull).sum(2, keepdim=True), out=batch.gap).div_(params["tau"] * length)
    return lambda: -(batch.target * log_p).sum(2).mean(2)


def _dual_focal(batch: _Batch, params: Params) -> _Values:
    """-m^g log p_y with m = 1 - p_y + p_j: two classes pull, and p carries it to the others."""
    if batch.smooth:  # every class has a p_j of its own
        return _by_autograd(batch, params)
    gamma, u = params["gamma"], -batch.log_p_y
    order = batch.log_p.masked_fill(batch.log_p >= -u, -torch.inf)
    log_p_j, j = order.max(2, keepdim=True)
    p_j = log_p_j.exp()  # 0 where no class is below
    miss = -(-u).expm1() + p_j
    size = miss**gamma
    slope = gamma * size * u / miss.clamp_min(torch.finfo(u.dtype).tiny)
    pull, against = size + slope * (-u).exp(), slope * p_j
    gradient = batch.p * (pull - against)
    batch.gap.copy_(gradient.scatter_add_(2, batch.label, -pull).scatter_add_(2, j, against))
    return lambda: (size * u).squeeze(2).mean(2)


def _by_autograd(batch: _Batch, _: Params) -> _Values:
    """Any other loss of the registry, a run at a time."""
    with torch.enable_grad():
        z = batch.z.detach().requires_grad_()
        labels = batch.label[:, 0, 0]
        losses = [
            module.to(z.dtype)(z[g, m].mT, labels[g])
            for g, group in enumerate(batch.modules)
            for m, module in enumerate(group)
        ]
        (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), z)
    values = torch.stack(losses).detach().reshape(len(batch.modules), -1)
    batch.gap.copy_(gradient).mul_(batch.z.shape[3])
    return lambda: values


def _focal_cost(log_p: Tensor, params: Params) -> Tensor:
    return -((-log_p.expm1()) ** params["gamma"]) * log_p


def _focal_slope(log_p: Tensor, params: Params) -> Tensor:
    """(1-p)^g (1 + g p u / (1-p)) with u = -log p; where p is 1 nothing is left of the second term."""
    gamma = params["gamma"]
    miss = log_p.expm1().neg_().clamp_min_(torch.finfo(log_p.dtype).tiny)
    return (log_p.exp() * log_p).div_(miss).mul_(gamma).neg_().add_(1).mul_(miss**gamma)


_BY_HAND: dict[str, Callable[..., _Values]] = {
    "ce": _cross_entropy,
    "gence": _gence,
    "logit_adjusted": _logit_adjusted,
    "brier": _brier,
    "mae": _separable(lambda log_p, _: -2 * log_p.expm1(), lambda log_p, _: 2 * log_p.exp()),
    "generalized_ce": _separable(
        lambda log_p, own: -(own["q"] * log_p).expm1() / own["q"], lambda log_p, own: (own["q"] * log_p).exp()
    ),
    "focal": _separable(_focal_cost, _focal_slope),
    "poly1": _separable(
        lambda log_p, own: -log_p - own["epsilon"] * log_p.expm1(), lambda log_p, own: 1 + own["epsilon"] * log_p.exp()
    ),
    "mdca": _mdca,
    "squentropy": _squentropy,
    "mbls": _mbls,
    "logit_norm": _logit_norm,
    "dual_focal": _dual_focal,
}
