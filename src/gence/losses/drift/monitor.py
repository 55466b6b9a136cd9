"""Watching the predicted class marginal during training: GenCE leaves it almost free, so it can drift."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gence.losses import _checks
from gence.losses.parts import Group, resolve_group
from gence.losses.targets import Target, class_mass, compute_dtype, flatten_logits, prepare_rows


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

    The classes are not balanced? Then give ``prior``, or give every ``update`` its labels. Without either the prior is
    taken to be uniform, from which a sound model of a long tail is as far away as one that drifted.

    Args:
        prior: the class distribution (K,) that predictions should show. None: that of the labels given to ``update``,
            or uniform if it was given none. Where a window has labels for some rows only, the others take no part: the
            labels say nothing of them. With a prior all rows count.
        threshold: in nats. One class of ten that lost nine tenths of its mass gives 0.14, one that is lost altogether
            0.5 to 1, every prediction in one class 20 and more. Small networks that ended sound (below 0.001) had
            passed 0.15 to 0.22 on the way, hence the default of 0.5. With more classes each counts for less: lower it.
        ignore_index: rows with this label are skipped; :meth:`hook` on a loss takes the loss's own.

    A window holds a whole epoch and not a batch, whose own marginal differs from the prior by chance.

    Lightning and Hugging Face have callbacks that do all of this: ``MarginalCallback`` in
    ``gence.integrations.lightning`` and ``gence.integrations.huggingface``. In a loop of one's own :meth:`hook`, on the
    loss, does the updates. On several ranks :meth:`reduce` comes before ``check``.

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
        _checks.check_ignore_index(ignore_index)
        _checks.check_number("threshold", threshold, "a number > 0, in nats")
        if not threshold > 0:
            raise ValueError(f"threshold: expected a number > 0, in nats, got {threshold}")
        self.prior = None if prior is None else prior.detach().clone()
        self.threshold = threshold
        self.ignore_index = ignore_index
        self.history: list[float] = []
        self.warned = False
        self.warned_of_nan = False
        self.reset()

    def reset(self) -> None:
        """Start a new window; ``history`` and what was warned of stay."""
        self._predicted: Tensor | None = None  # (K,) summed predictions
        self._labels: Tensor | None = None  # (K,) label counts
        self._rows: Tensor | None = None  # 0-dim, on the device: ignored rows make it a value the host does not know

    @property
    def empty(self) -> bool:
        """Whether no batch came since the last ``check`` or ``reset``."""
        return self._rows is None

    def update(self, logits: Tensor, target: Target | None = None) -> None:
        """Take in a batch.

        Args:
            logits: (n, K) or (N, K, d1, ...).
            target: class indices, of the logits' shape without K, class probabilities of the logits' shape, or a
                :class:`TwoHot`; optional where the classes are balanced or the monitor has a prior.
        """
        self._update(logits, target, self.ignore_index)

    @torch.no_grad()
    def _update(self, logits: Tensor, target: Target | None, ignore_index: int) -> None:
        _checks.check_logits(logits, "logits")
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
            rows = prepare_rows(logits.detach(), target, None, ignore_index, "mean", 0.0)
            p, valid = rows.values().softmax(1), rows.valid()
            if valid is not None:
                p = p * valid[:, None]
            labels, number = class_mass(rows).to(dtype), rows.count().to(dtype)
        if self.prior is None:  # the labels are the prior: like is compared with like
            if labels is None and self._labels is not None:
                return
            if labels is not None and self._labels is None:
                self.reset()
        self._predicted = _add(self._predicted, p.sum(0, dtype=dtype))
        self._rows = _add(self._rows, number)
        if labels is not None:
            self._labels = _add(self._labels, labels)

    def __call__(self, logits: Tensor, target: Target | None = None) -> None:
        """Same as ``update``, so that the monitor itself can be passed as a callback."""
        self.update(logits, target)

    def hook(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """A forward hook, which watches every call in training mode that is made with gradients.

        On a loss, ``criterion.register_forward_hook(monitor.hook)``, it takes logits and labels. The loss is
        :class:`GenCELoss` or another ``nn.CrossEntropyLoss``; where it is called with keywords, register the hook
        ``with_kwargs=True``.

        On a network, ``model.register_forward_hook(monitor.hook)``, it knows no labels: the monitor needs a prior,
        unless the classes are balanced. The output is a tensor, has ``logits`` (a key or an attribute), or is a tuple
        or list that begins with them; a loss before them is skipped. A call without any row is skipped, too.

        >>> import torch, gence
        >>> monitor, criterion = gence.MarginalMonitor(), gence.GenCELoss()
        >>> handle = criterion.register_forward_hook(monitor.hook)
        >>> loss = criterion(torch.randn(8, 2), torch.arange(8) % 2)
        >>> monitor.check() < 1
        True
        """
        # A pass without gradients does not train, even in training mode: validation with a loss that was never told,
        # or the first of two passes, whose rows come again.
        if not (module.training and torch.is_grad_enabled()):
            return
        if not isinstance(module, nn.CrossEntropyLoss):
            logits = logits_of(rest[-1])
            if not _has_no_rows(logits):
                self.update(logits)
            return
        kwargs = rest[0] if len(rest) == 2 else {}
        call = {**dict(zip(("input", "target"), args, strict=False)), **kwargs}
        if not {"input", "target"} <= call.keys():
            raise TypeError(
                f"hook: expected a loss called with input and target, saw {len(args)} positional arguments. Where they "
                "are keywords: criterion.register_forward_hook(monitor.hook, with_kwargs=True)"
            )
        if not _has_no_rows(call["input"]):
            self._update(call["input"], call["target"], module.ignore_index)  # rows that the loss ignores

    @torch.no_grad()
    def reduce(self, process_group: Group = "world") -> None:
        """Add the windows of the other ranks; all of them call it, before ``check``. The host waits.

        Afterwards every rank has the same window. A rank without a batch takes part all the same.
        """
        group = resolve_group(process_group)
        own = [None if part is None else part.cpu() for part in (self._predicted, self._labels, self._rows)]
        # Objects and not tensors: a rank without a batch knows neither K nor the device. Once an epoch this is cheap.
        windows: list[list[Tensor | None]] = [[]] * group.size()
        dist.all_gather_object(windows, own, group=group)
        if self.prior is None and any(labels is not None for _, labels, _ in windows):
            windows = [window for window in windows if window[1] is not None]  # as in update
        self.reset()
        for predicted, labels, rows in windows:
            if predicted is not None and rows is not None:
                self._predicted, self._rows = _add(self._predicted, predicted), _add(self._rows, rows)
            if labels is not None:
                self._labels = _add(self._labels, labels)

    def marginal(self) -> Tensor:
        """Mean prediction (K,) of the window's rows, on the device; NaN where every row was ignored."""
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
        return prior_divergence(prior, marginal.log())

    def check(self, *, warn: bool = True) -> float:
        """End a window: read the divergence, warn the first time it is above the threshold, and start again.

        Predictions that are NaN give NaN, and a ``RuntimeWarning`` the first time; a window in which every row was
        ignored gives NaN, too.

        Args:
            warn: False keeps the warnings back, for the ranks that need not repeat the first one's.
        """
        value = float(self.kl())
        self.history.append(value)
        message: str | None = None
        category: type[Warning] = MarginalDriftWarning
        if value > self.threshold and not self.warned:
            self.warned, message = True, self._drift(value)
        elif math.isnan(value) and not self.warned_of_nan and bool(self._rows):
            self.warned_of_nan, category, message = True, RuntimeWarning, self._not_a_number()
        self.reset()
        if message is not None and warn:
            warnings.warn(message, category, stacklevel=2)
        return value

    def _not_a_number(self) -> str:
        """The other warning, which says where the NaN came from."""
        seen, reason = "labels", "They were NaN, or probabilities that are all 0."
        if bool(self.marginal().isnan().any()):
            seen = "predictions"
            reason = (
                "Logits were NaN or infinite: lower the learning rate, add warm-up, or look for a division by zero."
            )
        return (
            f"MarginalMonitor: {seen} since the last check give NaN: whether the class marginal drifted is unknown. "
            f"{reason} This warning appears once."
        )

    def _drift(self, value: float) -> str:
        """The warning, which names the prior: a wrong one is the other reason for a large divergence."""
        marginal = self.marginal()
        largest = int(marginal.argmax())
        seen = (
            f"{value:.3g} nats, above {self.threshold:g}; class {largest} takes {float(marginal[largest]):.0%} of the "
            "predicted mass."
        )
        if self.prior is None and self._labels is None:
            return (
                f"The predicted class marginal is far from uniform: KL(uniform || mean prediction) = {seen} A uniform "
                "prior was assumed, for neither a prior nor labels were given. If the classes are not balanced, this "
                "need not be a drift: make MarginalMonitor(prior=class_frequencies), or give update the labels. If "
                f"they are balanced, the marginal has drifted. {REMEDY}"
            )
        prior = "the distribution of the labels" if self.prior is None else "the one given"
        return (
            f"The predicted class marginal has drifted: KL(prior || mean prediction) = {seen} The prior is {prior}. "
            f"{REMEDY}"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the open window, the history, and which warnings were given."""
        window = {"predicted": self._predicted, "labels": self._labels, "rows": self._rows}
        said = {"warned": self.warned, "warned_of_nan": self.warned_of_nan}
        return {**window, "history": list(self.history), **said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; the prior and the threshold are those of this monitor."""
        expected = {"predicted", "labels", "rows", "history", "warned", "warned_of_nan"}
        if set(state) | {"warned_of_nan"} != expected:  # version 0.1.0 did not write that one
            raise KeyError(f"state: expected the keys {sorted(expected)}, got {sorted(state)}")
        predicted = state["predicted"]
        if self.prior is not None and predicted is not None and predicted.shape != self.prior.shape:
            raise ValueError(f"state: expected {self.prior.shape[0]} classes, as in the prior, got {len(predicted)}")
        self._predicted, self._labels, self._rows = predicted, state["labels"], state["rows"]
        self.history, self.warned = list(state["history"]), bool(state["warned"])
        self.warned_of_nan = bool(state.get("warned_of_nan", False))


def _has_no_rows(logits: Any) -> bool:
    """Whether this is the part of a rank that has run out of data, or a micro-batch without rows."""
    return isinstance(logits, Tensor) and logits.dim() >= 2 and logits.numel() == 0 and logits.shape[1] > 0


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    # The total of a checkpoint is on a CPU, and float64 there.
    return part if total is None else total.to(part) + part


def prior_divergence(prior: Tensor, log_marginal: Tensor) -> Tensor:
    """KL(prior || marginal) in nats, from prior and log marginal (..., K), with 0 log 0 = 0 -> (...)."""
    cross = torch.where(prior > 0, prior * log_marginal, 0.0)
    information: Tensor = torch.xlogy(prior, prior).sum(-1)
    return information - cross.sum(-1)
