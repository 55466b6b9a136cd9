"""The loss of a part of a batch, as that part's share of the whole batch's loss.

One K-vector couples a batch: the summed predictions S. Once S and the label mass T of the whole batch are known, the
loss falls apart into its rows, and so does its gradient: with S and T held constant, the batch's gradient is that of

    (1/D) sum_j [ -sum_k w_k t_jk log p_jk + sum_k (T_k / S_k) p_jk ].

So a micro-batch or a rank needs (log S, T, D) from the others, nothing else, and nothing in backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gence.losses import _checks
from gence.losses.formula import (
    anchor_term,
    class_prior,
    class_shift,
    log_marginal,
    marginal_divergence,
    shifted_log_softmax,
)
from gence.losses.parts import ranks
from gence.losses.targets import (
    Rows,
    Target,
    class_mass,
    flatten_logits,
    loss_dtype,
    mean_denominator,
    prepare_rows,
    target_mass,
    target_sum,
)

_ONE_DERIVATIVE = (
    "gen_cross_entropy with marginal or process_group has a first derivative only: the rest of the batch is a constant "
    "to this part. Call backward without create_graph, or compute the whole batch at once."
)
_HUGE = -1e5  # below it float32 has lost digits that a loss needs
_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


class Marginal(NamedTuple):
    """What the rows of a batch need to know of each other."""

    log_sums: Tensor  # (K,) log S_k, in float64 where it can be: of -1e9 float32 keeps no digits
    mass: Tensor  # (K,) T_k
    denominator: Tensor  # () D, what "mean" divides by
    total: Tensor  # () rows that enter S, context included


class MarginalSource(Protocol):
    """What ``marginal=`` takes: an object that knows the marginal of more rows than the current ones."""

    @property
    def reduced(self) -> bool:
        """Whether the other ranks' rows are in it, so that no process group is needed any more."""

    def check_terms(self, num_classes: int, weight: Tensor | None, ignore_index: int, label_smoothing: float) -> None:
        """Raise if it was filled under other terms than the loss now has."""

    def whole(
        self, part: Callable[[], tuple[Marginal, int]], process_group: ranks.Group | None
    ) -> tuple[Marginal, int]:
        """The whole batch's marginal, and over how many ranks it is spread.

        ``part()`` gives the same for the current rows, on all ranks of the group where there is one.
        """


def share_of_batch(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    *,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
    marginal: MarginalSource | None,
    process_group: ranks.Group | None,
) -> Tensor:
    """These rows' share of the loss of the batch they are part of; arguments as in ``gen_cross_entropy``.

    The shares sum to the whole batch's loss, their gradients to its gradient. Spread over W ranks, "mean" and "sum"
    are W times the share, because DDP and FSDP average gradients over ranks. "none" gives the rows' own losses, as
    they are; it is their sum that has the whole batch's gradient.
    """
    rows = prepare_part(input, target, weight, ignore_index, reduction, label_smoothing)
    K = rows.num_classes
    _check_constants(target, weight)
    _checks.check_anchor(anchor)
    _checks.check_prior(prior, K)
    _checks.check_context(context, K)
    if marginal is not None:
        marginal.check_terms(K, weight, ignore_index, label_smoothing)
    valid = rows.valid()  # (n,)
    logs = log_softmax_of(rows, context)
    log_p, log_context, shift = logs

    def part() -> tuple[Marginal, int]:
        own = marginal_of(rows, logs)
        if process_group is None:
            return own, 1
        terms = ranks.Terms.of(K, rows.computed, reduction, ignore_index, label_smoothing, anchor, weight, prior)
        return over_ranks(own, terms, process_group)

    whole, world_size = part() if marginal is None else marginal.whole(part, process_group)
    exact = whole.log_sums.detach().to(log_p.device)
    whole = Marginal(*(value.detach().to(log_p) for value in whole))
    log_s = (exact - shift).to(log_p)  # (K,) less what log_p is short of

    anchored = isinstance(anchor, Tensor) or anchor > 0
    # Of what every class has a share in, the difference first: logarithms far from 0 would cancel in their sums.
    dense = rows.dense
    losses = target_sum(rows, log_s - log_p) if dense else target_sum(rows, log_s) - target_sum(rows, log_p)  # (n,)
    attraction = whole.mass  # (K,) with what weight S_k's rows are held responsible for log S_k
    if anchored:
        pi = class_prior(whole.mass, prior)
        divergence = marginal_divergence(pi, whole.log_sums, whole.total)
        losses = losses + anchor_term(anchor, divergence) * target_mass(rows)
        attraction = attraction - anchor * whole.mass.sum() * pi
    _check_digits(exact, attraction)
    attraction = attraction.detach()  # it is a factor of the logits' gradient; the anchor's own is in the loss already
    losses = losses + _gradient_only(_responsibility(log_p, valid, log_s, attraction))
    # The context has no loss of its own, so its gradient rides on the rows' losses.
    riding = log_p.new_zeros(())
    if log_context is not None:
        if reduction == "none" and losses.shape[0] == 0 and log_context.requires_grad:
            raise ValueError(
                'reduction: "none" on a part without rows has no loss that the context\'s gradient could come with; '
                'use "mean" or "sum", or detach the context'
            )
        riding = _gradient_only(_responsibility(log_context, None, log_s, attraction).sum())
    if reduction == "none":
        return (losses + riding / max(losses.shape[0], 1)).reshape(rows.shape).to(rows.dtype)
    total = world_size * (losses.sum() + riding)
    if reduction == "mean":
        total = total / whole.denominator
    return total.to(rows.dtype)


def prepare_part(
    input: Tensor, target: Target, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Rows:
    """As ``prepare_rows``, and a part without rows is fine: a rank may have run out of data."""
    if not isinstance(input, Tensor) or input.numel() > 0 or input.dim() < 2 or input.shape[1] == 0:
        return prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    _checks.check_reduction(reduction)
    _checks.check_label_smoothing(label_smoothing)
    K = input.shape[1]
    _checks.check_weight(weight, K)
    return Rows(
        logits=flatten_logits(input),
        index=torch.zeros(0, dtype=torch.long, device=input.device),
        probs=None,
        two_hot=None,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=float(label_smoothing),
        reduction=reduction,
        shape=torch.Size((input.shape[0], *input.shape[2:])),
        dtype=loss_dtype(input),
    )


class LogSoftmax(NamedTuple):
    """Log-probabilities less a shift, which is what all of them have in a class that they mask by a huge number."""

    rows: Tensor  # (n, K)
    context: Tensor | None  # (m, K)
    shift: Tensor  # (K,) without gradient


def log_softmax_of(rows: Rows, context: Tensor | None) -> LogSoftmax:
    """The log-probabilities of rows and context, in the type the rows are computed in, with all their digits."""
    z = rows.values()
    others = None if context is None else flatten_logits(context).to(z.dtype)
    known = [(values.detach(), valid) for values, valid in ((z, rows.valid()), (others, None)) if values is not None]
    known = [(values, valid) for values, valid in known if values.shape[0]]
    shift = z.new_zeros(rows.num_classes)
    if known:
        shift = class_shift(*known[0], known[1][0] if len(known) > 1 else None)
    return LogSoftmax(
        shifted_log_softmax(z, shift), None if others is None else shifted_log_softmax(others, shift), shift
    )


def marginal_of(rows: Rows, logs: LogSoftmax) -> Marginal:
    """The marginal of these rows alone."""
    context = None if logs.context is None else logs.context.detach()
    log_sums = log_marginal(logs.rows.detach(), rows.valid(), context)
    if log_sums.device.type != "mps":  # Apple's devices lack float64
        log_sums = log_sums.double()
    total = rows.count() + (0 if context is None else context.shape[0])
    return Marginal(log_sums + logs.shift, class_mass(rows), mean_denominator(rows), total)


def merge(first: Marginal, second: Marginal) -> Marginal:
    """The marginal of two parts together."""
    return Marginal(
        torch.logaddexp(first.log_sums, second.log_sums),
        first.mass + second.mass,
        first.denominator + second.denominator,
        first.total + second.total,
    )


def over_ranks(own: Marginal, terms: ranks.Terms, process_group: ranks.Group) -> tuple[Marginal, int]:
    """The marginal of all ranks' rows, and the number of ranks."""
    group = ranks.resolve_group(process_group)
    ranks.check_agreement(terms, group, own.mass.device)
    scalars = torch.stack([own.denominator, own.total])
    log_sums = own.log_sums.to(own.mass)  # twice the bytes would go over the wire
    log_sums, mass, (denominator, total) = ranks.add_over_ranks(log_sums, own.mass, scalars, group)
    return Marginal(log_sums, mass, denominator, total), group.size()


def _responsibility(log_p: Tensor, valid: Tensor | None, log_s: Tensor, attraction: Tensor) -> Tensor:
    """sum_k (attraction_k / S_k) p_jk, with p_jk / S_k <= 1 formed at once, so that nothing overflows -> (n,)."""
    if valid is not None:
        log_p = log_p.masked_fill(~valid[:, None], -torch.inf)
    log_s = log_s.masked_fill(log_s == -torch.inf, torch.inf)  # a class that no row predicts has no responsible row
    return ((log_p - log_s).exp() * attraction).sum(1)


def _check_digits(log_sums: Tensor, attraction: Tensor) -> None:
    """Of a class that all rows mask by -1e9, a marginal in float32 has no digits left."""
    readable = all(_checks.values_can_be_read(values) for values in (log_sums, attraction))
    if log_sums.dtype != torch.float32 or not readable:
        return
    lost = ((attraction != 0) & (log_sums < _HUGE) & (log_sums > -torch.inf)).nonzero().flatten().tolist()
    if lost:
        raise ValueError(
            f"input: all rows mask class {lost[0]} by a huge number, and a target, label_smoothing or the prior gives "
            "it mass; the marginal of ranks, of a RunningMarginal and of weighted samples is kept in float32, which "
            "has no digits left for it. Give such a class no mass (class probabilities in place of label_smoothing), "
            "or give logits in float64."
        )


def _check_constants(target: Target, weight: Tensor | None) -> None:
    """What makes up the marginal of the whole batch is constant here: its gradient would be wrong without a word."""
    if not torch.is_grad_enabled():
        return
    soft = ("target", target) if isinstance(target, Tensor) else ("target.share", target.share)
    for name, value in (soft, ("weight", weight)):
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(
                f"{name}: requires a gradient, which marginal and process_group cannot give: the rest of the batch is "
                f"a constant to this part. Detach it, or compute the loss of the whole batch at once."
            )


def _gradient_only(values: Tensor) -> Tensor:
    """Zero, with the gradient of ``values``: an exact 0, so that no digit of the loss is lost."""
    if torch.compiler.is_compiling():
        return values - values.detach()  # a compiled graph cannot ask for more
    transforms = torch._C._functorch.get_interpreter_stack()
    if transforms:
        if sum(one.key() in _DERIVATIVES for one in transforms) > 1:
            raise RuntimeError(_ONE_DERIVATIVE)
        return values - values.detach()
    zero: Tensor = _FirstDerivativeOnly.apply(values)
    return zero


class _FirstDerivativeOnly(torch.autograd.Function):
    """Zero with the gradient of its argument, and no second one: the rest of the batch would have a part in it."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        del ctx
        return torch.zeros_like(values)

    @staticmethod
    def backward(ctx: object, upstream: Tensor) -> Tensor:
        del ctx
        if torch.is_grad_enabled():
            raise RuntimeError(_ONE_DERIVATIVE)
        return upstream
