"""Batches in which every class has its share: the remedy for rare classes in a loss that couples a batch."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler


class ClassStratifiedBatchSampler(Sampler[list[int]]):
    """Batches of indices, each with the data's own class proportions as nearly as whole samples allow.

    Pass it to ``DataLoader(batch_sampler=...)``. Every epoch is a new order, drawn from ``seed`` and the epoch. Where
    all classes are equally large and their number divides ``batch_size``, each batch holds the same number of every
    class; otherwise each count is less than 2 off its proportional share.

    With ``num_replicas`` ranks, ``batch_size`` is that of one rank. Each rank's batches are stratified, and together
    they are a stratified batch of ``num_replicas * batch_size``. All ranks get the same number of batches.

    Args:
        labels: class index of each sample.
        batch_size: samples in a batch (on one rank).
        seed: of the order.
        oversample: repeat samples of the smaller classes until each class is as frequent as the largest. Without it no
            sample comes twice in an epoch.
        drop_last: skip the incomplete last batch. Kept, it is shared out over the ranks as evenly as possible,
            and skipped only if it has fewer samples than there are ranks.
        num_replicas: number of ranks.
        rank: this process's rank.

    >>> from gence.lab.data.samplers import ClassStratifiedBatchSampler
    >>> labels = [0] * 6 + [1] * 3
    >>> sampler = ClassStratifiedBatchSampler(labels, batch_size=3)
    >>> [sorted(labels[i] for i in batch) for batch in sampler]
    [[0, 0, 1], [0, 0, 1], [0, 0, 1]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        batch_size: int,
        *,
        seed: int = 0,
        oversample: bool = False,
        drop_last: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__()
        classes = torch.as_tensor(labels)
        if classes.dim() != 1 or classes.numel() == 0 or classes.is_floating_point():
            raise ValueError(
                f"labels: expected one class index for each sample, got shape {tuple(classes.shape)} and dtype "
                f"{classes.dtype}"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size: expected a positive number, got {batch_size}")
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError(f"rank: expected 0 <= rank < num_replicas, got rank {rank} of {num_replicas}")
        _, inverse = torch.unique(classes.cpu(), return_inverse=True)
        self._labels = hashlib.blake2b(inverse.numpy().tobytes(), digest_size=8).hexdigest()
        self._members = [torch.nonzero(inverse == k).squeeze(1) for k in range(int(inverse.max()) + 1)]
        self.batch_size = batch_size
        self.seed = seed
        self.oversample = oversample
        self.drop_last = drop_last
        self.num_replicas = num_replicas
        self.rank = rank
        self._epoch = 0
        self._resume_at = 0
        self._position = 0

    def __len__(self) -> int:
        """Batches an epoch, the same on every rank."""
        whole, rest = divmod(self._epoch_size(), self.batch_size * self.num_replicas)
        return whole + int(not self.drop_last and rest >= self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        first, self._resume_at = self._resume_at, 0
        self._position = first
        step = self.batch_size * self.num_replicas
        for place in range(first, len(self)):
            parts = order[place * step : (place + 1) * step].tensor_split(self.num_replicas)
            self._position = place + 1
            yield parts[self.rank].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; call it before each epoch, on all ranks alike."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._resume_at = self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands. A loader that works ahead has drawn more batches than it has handed out; in that
        case set ``"batch"`` to the number you have trained on in this epoch.
        """
        return {"epoch": self._epoch, "batch": self._position, **self._terms()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`: the next iteration begins with the batch that would have come next."""
        terms = self._terms()
        expected = {"epoch", "batch", *terms}
        if set(state) != expected:
            raise ValueError(f"state: expected the keys of a state_dict, {sorted(expected)}, got {sorted(state)}")
        # Under other terms the place would be another one: samples would come twice, and others not at all.
        for name, own in terms.items():
            if state[name] != own:
                raise ValueError(f"state: was saved with {name} {state[name]}, this sampler has {own}")
        if not 0 <= state["batch"] <= len(self):
            raise ValueError(f"state: batch is {state['batch']}; expected 0 to {len(self)}, the batches of an epoch")
        self._epoch = state["epoch"]
        self._resume_at = self._position = state["batch"]

    def _terms(self) -> dict[str, Any]:
        """What the order of an epoch and its cut into batches depend on."""
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "num_replicas": self.num_replicas,
            "oversample": self.oversample,
            "drop_last": self.drop_last,
            "labels": self._labels,
        }

    def _epoch_size(self) -> int:
        sizes = [len(members) for members in self._members]
        return len(sizes) * max(sizes) if self.oversample else sum(sizes)

    def _order(self) -> Tensor:
        """All samples of the epoch, so mixed that every stretch of them has the classes' proportions -> (N,)."""
        generator = torch.Generator().manual_seed(self.seed)
        # The epoch's own stream: seeds that follow each other must not share their epochs' orders.
        base = int(torch.randint(2**48, (), generator=generator))
        generator.manual_seed(base + self._epoch)
        largest = max(len(members) for members in self._members)
        counts = [largest if self.oversample else len(members) for members in self._members]
        classes = torch.tensor(spread_classes(counts, generator))  # (N,)
        order = torch.empty_like(classes)
        for k, (members, count) in enumerate(zip(self._members, counts, strict=True)):
            rounds = -(-count // len(members))
            shuffled = [members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)]
            order[classes == k] = torch.cat(shuffled)[:count]
        # Rare classes must not always come at the same place of an epoch: begin at any of its steps.
        step = self.batch_size * self.num_replicas
        shift = step * int(torch.randint(max(len(order) // step, 1), (), generator=generator))
        return order.roll(-shift)


def spread_classes(counts: Sequence[int], generator: torch.Generator) -> list[int]:
    """A sequence with ``counts[k]`` times class k, each class spread evenly.

    After any t places a class has come less than one time more or less often than its share of t; so in any stretch it
    is less than 2 off. This is a schedule of unit jobs: the j-th sample of a class may not come before place j N / n_k
    nor later than (j + 1) N / n_k, and the earliest deadline first meets all of them. Ties are drawn.
    """
    N = sum(counts)
    ties = iter(torch.rand(N, generator=generator, dtype=torch.float64).tolist())
    jobs = sorted(
        (j * N // n, -(-(j + 1) * N // n), next(ties), k)  # release, deadline
        for k, n in enumerate(counts)
        for j in range(n)
    )
    waiting: list[tuple[int, float, int]] = []
    sequence = []
    released = 0
    for place in range(N):
        while released < N and jobs[released][0] <= place:
            heapq.heappush(waiting, jobs[released][1:])
            released += 1
        sequence.append(heapq.heappop(waiting)[2])
    return sequence
