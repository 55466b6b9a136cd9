"""Exact gradient accumulation in plain PyTorch: the helper, and the same two passes written out.

Also under torchrun: torchrun --nproc-per-node=2 examples/accumulation_pytorch.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

import gence


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(64, 20, generator=generator), torch.randint(5, (64,), generator=generator)


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
    model = nn.parallel.DistributedDataParallel(network) if ranks > 1 else network
    criterion = gence.GenCELoss(process_group="world" if ranks > 1 else None)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images, labels = data(rank)
    micro_batches = list(zip(images.split(16), labels.split(16), strict=True))

    # 1. The helper: random numbers replayed, buffers put back, gradients synchronised once.
    optimizer.zero_grad()
    loss = gence.two_pass_backward(model, criterion, micro_batches)
    optimizer.step()

    # 2. The same by hand, for a network without dropout or buffers that move.
    network.eval()
    optimizer.zero_grad()
    marginal = criterion.batch_marginal()
    with torch.no_grad():
        for x, y in micro_batches:
            marginal.update(network(x), y)
    marginal.reduce()  # over the ranks, if there are any
    shares = [criterion(network(x), y, marginal=marginal) for x, y in micro_batches]
    torch.stack(shares).sum().backward()
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]

    # And as one large batch, for comparison.
    optimizer.zero_grad()
    criterion(network(images), labels).backward()
    furthest = max(float((g - p.grad).abs().max()) for g, p in zip(gradients, network.parameters(), strict=True))
    if rank == 0:
        print(f"first step's loss {loss:.4f}; micro-batches differ from one batch by {furthest:.1e}")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
