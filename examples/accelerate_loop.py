"""Accelerate: a loop that accumulates 4 micro-batches, exact on any number of processes.

Run: python examples/accelerate_loop.py
Two processes: accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
"""

from itertools import islice

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gence

ACCUMULATION = 4


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(images[:960], labels[:960]), batch_size=20, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # The processes' rows form one batch.
    criterion = gence.GenCELoss(anchor=0.1, process_group="world" if accelerator.num_processes > 1 else None)

    for _ in range(10):
        batches = iter(loader)
        while micro_batches := list(islice(batches, ACCUMULATION)):
            optimizer.zero_grad()
            # In place of accelerator.accumulate and accelerator.backward; with fp16: scaler=accelerator.scaler.
            gence.two_pass_backward(model, criterion, micro_batches)
            optimizer.step()

    with torch.no_grad():
        accuracy = (accelerator.unwrap_model(model).eval()(images[960:]).argmax(1) == labels[960:]).double().mean()
    processes = accelerator.num_processes
    accelerator.print(f"{processes} process(es), {ACCUMULATION} micro-batches a step: accuracy {accuracy:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
