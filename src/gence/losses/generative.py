"""Generative cross-entropy: the paper's loss, and its anchored form."""

from __future__ import annotations

from fractions import Fraction

import torch.distributed as dist
from torch import Tensor, nn

from gence.losses import _checks
from gence.losses.backends import Call, Choice, batch_loss, choose
from gence.losses.parts import (
    BatchMarginal,
    Group,
    MarginalSource,
    share_of_batch,
    warn_of_lone_rank,
    watch_accumulation,
)
from gence.losses.targets import Target


def gen_cross_entropy(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    anchor: float | Tensor = 0.0,
    prior: Tensor | None = None,
    context: Tensor | None = None,
    marginal: MarginalSource | None = None,
    process_group: Group | None = None,
) -> Tensor:
    r"""Generative cross-entropy: cross-entropy in which a score competes with the batch's scores for the same class.

    With :math:`p = \mathrm{softmax}(z)` and the summed predictions :math:`S_k = \sum_j p_{jk}` over the batch,

    .. math:: \ell_i = \sum_k w_k t_{ik} \left( -\log p_{ik} + \log S_k \right),

    which for a class index :math:`y_i` is :math:`-\log (p_{i y_i} / \sum_j p_{j y_i})` (the paper, eq. 8). All
    arguments up to ``label_smoothing`` mean what they mean in :func:`torch.nn.functional.cross_entropy`.

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,); every row of a dense input belongs to the batch.
        target: class indices (the input's shape without K), class probabilities (the input's shape), or
            :class:`TwoHot`.
        weight: class weights (K,).
        ignore_index: rows with this index take no part, neither in the loss nor in S.
        reduction: "mean" (divided by the rows' weights for indices, by the rows for probabilities), "sum" or "none".
        label_smoothing: in [0, 1]; mixes the target with the uniform distribution.
        anchor: strength of KL(prior || S/n), which holds the predicted class marginal in place. 0 is the paper's loss;
            1 with the batch's own prior has exactly cross-entropy's gradient. A 0-dim tensor is taken as well.
        prior: class distribution (K,) of the anchor; by default the batch's own (weighted) label distribution.
        context: logits (m, K) of further rows that enter S but have no loss: unlabelled images, another view, a queue.
            Gradient flows through them unless they are detached. Detach them, or set an anchor: otherwise nothing keeps
            unlabelled rows from drifting into one class together.
        marginal: the class marginal of more rows than these: a :class:`BatchMarginal` of the large batch that this
            micro-batch is a part of, or a :class:`RunningMarginal`. The loss is then these rows' share. The rest of the
            batch is a constant to it: there is no second derivative, and none of learnt weights or soft targets.
        process_group: ranks whose rows form one batch with these, or "world". Every rank must call the loss, with any
            number of rows. "mean" and "sum" return the number of ranks times these rows' share: averaged over the
            ranks, as DDP and FSDP do with gradients, that is the whole batch's loss.

    Returns:
        The loss, in the input's dtype, or in float32 under autocast. One row alone has nothing to compete with: its
        loss is 0 and so is its gradient (warned of once). A class that no target names adds nothing. If every row is
        ignored, "mean" is NaN, as in cross-entropy.

    Raises:
        TypeError, ValueError, IndexError: naming the argument, what came and what was expected; a batch without any row
            is an error, unless it is a part of a larger one. As in PyTorch, class indices on a GPU are not looked at.

    >>> import torch, gence
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> target = torch.tensor([0, 1, 0])
    >>> loss = gence.gen_cross_entropy(logits, target)
    >>> p = logits.softmax(1)
    >>> by_hand = -(p[[0, 1, 2], target] / p.sum(0)[target]).log().mean()
    >>> torch.testing.assert_close(loss, by_hand)
    """
    if marginal is not None and not hasattr(marginal, "reduced"):
        raise TypeError(f"marginal: expected a BatchMarginal or RunningMarginal, got {type(marginal).__name__}")
    if type(anchor) is not float and isinstance(anchor, Fraction):
        anchor = float(anchor)  # which tensors can be multiplied by
    if (
        process_group is None
        and (marginal is None or not marginal.reduced)
        and dist.is_available()
        and dist.is_initialized()
    ):
        warn_of_lone_rank(input)
    if process_group is not None or marginal is not None:
        loss = share_of_batch(
            input,
            target,
            weight,
            ignore_index,
            reduction,
            label_smoothing,
            anchor=anchor,
            prior=prior,
            context=context,
            marginal=marginal,
            process_group=process_group,
        )
        if marginal is None:
            watch_accumulation(loss)
        return loss
    return batch_loss(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, context)


def why_backend(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    anchor: float | Tensor = 0.0,
    prior: Tensor | None = None,
    context: Tensor | None = None,
    marginal: MarginalSource | None = None,
    process_group: Group | None = None,
) -> Choice:
    """Which implementation a call of :func:`gen_cross_entropy` with these arguments takes, and why.

    On a CPU an implementation may still hand a batch on because of its values: classes that no row can be in, or that
    all rows mask by a huge number.

    >>> import torch
    >>> from gence.losses import why_backend
    >>> why_backend(torch.randn(8, 3), torch.arange(8) % 3, anchor=0.1).name
    'cpu_small'
    >>> why_backend(torch.randn(8, 3), torch.rand(8, 3).softmax(1)).reason
    'not triton: the tensors are on the cpu; not cpu_small: class probabilities leave nothing to save on a CPU'
    """
    if process_group is not None or marginal is not None:
        return Choice("parts", "the rows are a part of a larger batch, whose sums are given")
    return choose(Call(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, context))


class GenCELoss(nn.CrossEntropyLoss):
    """Generative cross-entropy as a module: replace ``nn.CrossEntropyLoss()`` by ``GenCELoss()``.

    Takes all of ``nn.CrossEntropyLoss``'s arguments, and ``anchor`` and ``prior`` of :func:`gen_cross_entropy`.
    ``weight`` and ``prior`` are buffers: they move with the module and are part of its ``state_dict``.

    The loss couples the rows of a batch. Computed on a micro-batch or on one rank's part it is the loss of that part
    and not a share of the whole batch's, unless it is told of the rest: by ``process_group`` for ranks (here), by
    ``marginal`` for micro-batches (in the call; see :meth:`batch_marginal`).

    >>> import torch, gence
    >>> criterion = gence.GenCELoss(anchor=0.1)
    >>> logits = torch.randn(8, 3, requires_grad=True)
    >>> criterion(logits, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])).backward()
    >>> tuple(logits.grad.shape)
    (8, 3)
    """

    anchor: float | Tensor
    prior: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        anchor: float | Tensor = 0.0,
        prior: Tensor | None = None,
        process_group: Group | None = None,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        _checks.check_reduction(self.reduction)
        _checks.check_label_smoothing(label_smoothing)
        _checks.check_anchor(anchor)
        if weight is not None:
            _checks.check_weight(weight, weight.numel() if isinstance(weight, Tensor) else 0)
        _checks.check_prior(prior, None if weight is None else weight.shape[0])
        self.anchor = anchor
        self.process_group = process_group
        self.register_buffer("prior", prior)

    def batch_marginal(self) -> BatchMarginal:
        """An empty :class:`BatchMarginal` with this loss's own arguments, to be filled by the micro-batches."""
        return BatchMarginal(self.weight, self.ignore_index, self.label_smoothing, process_group=self.process_group)

    def forward(
        self,
        input: Tensor,
        target: Target,
        context: Tensor | None = None,
        marginal: MarginalSource | None = None,
    ) -> Tensor:
        """The loss of a batch; see :func:`gen_cross_entropy`."""
        try:  # a module looks for buffers last, after failing everywhere else, which takes a microsecond for each
            weight, prior = self._buffers["weight"], self._buffers["prior"]
        except KeyError:  # somebody made one a parameter
            weight, prior = self.weight, self.prior
        return gen_cross_entropy(
            input,
            target,
            weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            anchor=self.anchor,
            prior=prior,
            context=context,
            marginal=marginal,
            process_group=self.process_group,
        )

    def extra_repr(self) -> str:
        """What ``print(criterion)`` shows."""
        shown = [f"anchor={self.anchor}"] if isinstance(self.anchor, Tensor) or self.anchor else []
        if self.prior is not None:
            shown.append(f"prior=tensor({self.prior.shape[0]})")
        if self.reduction != "mean":
            shown.append(f"reduction={self.reduction!r}")
        if self.label_smoothing:
            shown.append(f"label_smoothing={self.label_smoothing}")
        return ", ".join(shown)
