"""Exact gradient accumulation with Accelerate.

Also on several processes: accelerate launch --num_processes 2 --cpu examples/accumulation_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gence

MICRO_BATCHES = 4


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    images, labels = torch.randn(256, 20), torch.randint(5, (256,))
    network = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    several = accelerator.num_processes > 1
    criterion = gence.GenCELoss(process_group="world" if several else None).to(accelerator.device)

    held = []
    for step, batch in enumerate(loader, 1):
        held.append(batch)
        if len(held) < MICRO_BATCHES and step < len(loader):
            continue
        # The helper calls backward itself and lets DDP synchronise once, so no `accelerator.accumulate` around it.
        # With mixed precision, hand it accelerator.autocast and accelerator.scaler.
        loss = gence.two_pass_backward(
            model, criterion, held, forward_context=accelerator.autocast, scaler=accelerator.scaler
        )
        optimizer.step()
        optimizer.zero_grad()
        held = []
        # Each rank holds (number of ranks) x (its share); their mean is the loss of the whole batch.
        accelerator.print(f"step {step // MICRO_BATCHES}: loss {accelerator.reduce(loss, 'mean'):.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
