"""What the ranks of a process group say to each other: one class marginal per step, and whether they agree.

The summed predictions S_k may lie hundreds of nats below 1, where a linear float32 sum is 0, so ranks add them in log
space. No all-reduce has log-sum-exp as its operation, and a maximum first would cost K floats more. But a ring
all-reduce is a reduce-scatter and an all-gather; here the first half is an all-to-all (each rank receives one slice
of the classes from every rank and reduces it as it likes), and the wire carries what an all-reduce of 2K + 1 floats
would. Nothing is read back by the host, so the exchange can be compiled and captured.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from gence.losses import _checks

if TYPE_CHECKING:  # builds of torch without distributed have no ProcessGroup
    # A process group, or "world" for the default one, looked up when the loss is called.
    Group: TypeAlias = dist.ProcessGroup | Literal["world"]
else:
    Group = object

_agreed: set[tuple[str, Terms]] = set()
_warned_of_lone_rank = False


def resolve_group(process_group: Group) -> dist.ProcessGroup:
    """The group itself; an error where there is none or where this process is not in it."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "process_group: torch.distributed is not initialised. Call torch.distributed.init_process_group first, or "
            "leave process_group out to train in one process."
        )
    if isinstance(process_group, str):
        if process_group != "world":
            raise ValueError(f'process_group: expected a process group or "world", got {process_group!r}')
        group = dist.group.WORLD
        assert group is not None  # there is one once torch.distributed is initialised
        return group
    if not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f'process_group: expected a process group this process is in, or "world", got '
            f"{type(process_group).__name__}"
        )
    return process_group


class Terms(NamedTuple):
    """What the ranks must agree on, each as a number, so that one message of a fixed size can compare them."""

    num_classes: int
    dtype: str
    reduction: str
    ignore_index: int
    label_smoothing: float
    anchor: float
    weight: int
    prior: int

    @classmethod
    def of(
        cls,
        num_classes: int,
        dtype: torch.dtype,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
        anchor: float | Tensor,
        weight: Tensor | None,
        prior: Tensor | None,
    ) -> Terms:
        """The terms of a call. Tensors on a GPU are not looked at: only whether there is one is compared."""
        if isinstance(anchor, Tensor):
            anchor = float(anchor.detach()) if _checks.values_can_be_read(anchor) else -1.0
        return cls(
            num_classes,
            str(dtype),
            reduction,
            ignore_index,
            float(label_smoothing),
            float(anchor),
            _digest(weight),
            _digest(prior),
        )

    def as_integers(self) -> list[int]:
        """Each term as a 64-bit integer; equal terms give equal integers."""
        return [_as_integer(term) for term in self]


def _digest(values: Tensor | None) -> int:
    """One number for a vector, another for any other; 0 for none, -1 for one that must not be looked at."""
    if values is None:
        return 0
    if not _checks.values_can_be_read(values):
        return -1
    numbers = values.detach().double().tolist()
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}d", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # halved: its negative is in range as well


def _as_integer(term: int | float | str) -> int:
    if isinstance(term, float):
        return int(struct.unpack("<q", struct.pack("<d", term))[0] >> 1)  # halved: its negative is in range as well
    if isinstance(term, str):
        return int.from_bytes(term.encode()[-7:], "little")
    return term


def check_agreement(terms: Terms, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raise on every rank if the ranks' terms differ, before a message whose size depends on them is sent.

    On a CPU this is done at every call. On a GPU reading the answer stalls the host, so it is done once for each
    combination of terms, and not at all while a graph is compiled or captured.
    """
    if torch.compiler.is_compiling():
        return
    key = (group.group_name, terms)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if capturing or (device.type != "cpu" and key in _agreed):
        return
    integers = terms.as_integers()
    # The maximum of x and that of -x: both ends in one message.
    ends = torch.tensor([*integers, *(-value for value in integers)], dtype=torch.int64, device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    highest, lowest = ends.view(2, -1).tolist()
    different = [name for name, high, low in zip(Terms._fields, highest, lowest, strict=True) if high != -low]
    if different:
        own = [f"{name} = {getattr(terms, name)}" for name in different if name not in ("weight", "prior")]
        seen = f" (rank {group.rank()} has {', '.join(own)})" if own else ""
        raise ValueError(
            f"{', '.join(different)}: expected the same on all {group.size()} ranks of the process group, got "
            f"different ones{seen}. Give every rank's loss the same arguments."
        )
    _agreed.add(key)


def add_over_ranks(
    log_values: Tensor, values: Tensor, scalars: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp of ``log_values`` (K,), sums of ``values`` (K,) and of ``scalars`` (s,), over the ranks.

    Every rank gets the same bits: each slice is reduced by one rank, in the order of the ranks.
    """
    W = group.size()
    K = log_values.shape[0]
    c = -(-K // W)  # classes a slice
    log_values = torch.nn.functional.pad(log_values, (0, W * c - K), value=-torch.inf)
    values = torch.nn.functional.pad(values, (0, W * c - K))
    outgoing = torch.cat([log_values.view(W, c), values.view(W, c), scalars.expand(W, -1)], 1)  # (W, 2c + s)
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    reduced = torch.cat([incoming[:, :c].logsumexp(0), incoming[:, c : 2 * c].sum(0)])  # (2c,)
    gathered = reduced.new_empty(W * 2 * c)
    dist.all_gather_into_tensor(gathered, reduced, group=group)
    log_values, values = gathered.view(W, 2, c).unbind(1)
    return log_values.reshape(-1)[:K], values.reshape(-1)[:K], incoming[:, 2 * c :].sum(0)


def warn_of_lone_rank(input: Tensor) -> None:
    """Warn once if one of several ranks trains on its part of the batch as if it were the whole."""
    global _warned_of_lone_rank
    if _warned_of_lone_rank or torch.compiler.is_compiling() or not (dist.is_available() and dist.is_initialized()):
        return
    trains = torch.is_grad_enabled() and isinstance(input, Tensor) and input.requires_grad
    if not trains or dist.get_world_size() == 1:
        return
    _warned_of_lone_rank = True
    warnings.warn(
        f"gen_cross_entropy trains in a job of {dist.get_world_size()} ranks without process_group: each rank's rows "
        "compete with each other only, and the averaged gradient is not that of the whole batch. Pass "
        'process_group="world" to GenCELoss or gen_cross_entropy.',
        UserWarning,
        stacklevel=_checks.callers_level(),
    )


class _Accumulation:
    """Whether a loss over ranks had its backward pass, and the optimiser has not stepped since."""

    watching = warned = pending = False


def watch_accumulation(loss: Tensor) -> None:
    """Warn once where losses over ranks are accumulated naively: one micro-batch's backward pass, then the next loss.

    Each micro-batch then competes with the other ranks' micro-batches alone, not with the rest of its own batch.
    """
    if _Accumulation.warned or torch.compiler.is_compiling() or not loss.requires_grad:
        return
    if not _Accumulation.watching:
        _Accumulation.watching = True
        register_optimizer_step_post_hook(lambda *_: setattr(_Accumulation, "pending", False))
    if _Accumulation.pending:
        _Accumulation.warned = True
        warnings.warn(
            "gen_cross_entropy over a process_group had a backward pass and is called again before the optimiser's "
            "step: accumulated like this, each micro-batch competes with the other ranks' rows only, not with the rest "
            "of its own batch. Use gence.two_pass_backward(..., process_group=...), which is exact.",
            UserWarning,
            stacklevel=_checks.callers_level(),
        )
        return
    loss.register_hook(lambda _: setattr(_Accumulation, "pending", True))  # type: ignore[no-untyped-call]
