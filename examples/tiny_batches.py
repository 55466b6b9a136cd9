"""Batches much smaller than the number of classes: when does a running marginal help?

Two problems: handwritten digits (10 classes, 10 images a class) and Gaussian clusters (50 classes, 20 points a class),
each with tiny batches and with one that is large enough. Run: python examples/tiny_batches.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gence


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """10 images a class to train on, the others to test on."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    train = torch.cat([torch.nonzero(y == k).squeeze(1)[:10] for k in range(10)])
    test = torch.ones(len(y), dtype=torch.bool)
    test[train] = False
    return x[train], y[train], x[test], y[test]


def clusters(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """50 overlapping Gaussians in 20 dimensions, 20 points a class to train on and 100 to test on."""
    generator = torch.Generator().manual_seed(seed)
    centres = 0.9 * torch.randn(50, 20, generator=generator)
    y = torch.arange(50).repeat(120)
    x = centres[y] + torch.randn(len(y), 20, generator=generator)
    return x[:1000], y[:1000], x[1000:], y[1000:]


def train(data: tuple[Tensor, ...], loss: str, momentum: float | None, batch: int, steps: int, seed: int) -> float:
    """Test accuracy after so many steps."""
    x, y, test_x, test_y = data
    classes = int(y.max()) + 1
    criterion: nn.Module = nn.CrossEntropyLoss() if loss == "ce" else gence.GenCELoss()
    running = None if momentum is None else gence.RunningMarginal(classes, momentum)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, classes))
    # The rate goes with the square root of the batch, for all losses alike.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * (batch / 4) ** 0.5, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(y))[:batch]
        optimizer.zero_grad()
        logits = model(x[rows])
        value = criterion(logits, y[rows]) if running is None else criterion(logits, y[rows], marginal=running)
        value.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # for matrices this small, more threads only wait for each other
    columns: dict[str, tuple[str, float | None]] = {
        "CE": ("ce", None),
        "GenCE": ("gence", None),
        "running 0.9": ("gence", 0.9),
        "running 0.99": ("gence", 0.99),
        "running 0.999": ("gence", 0.999),
    }
    print(f"test accuracy in %, mean ± standard deviation over {arguments.seeds} seeds")
    print("| data, batch | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for source, batch in ((digits, 2), (digits, 4), (digits, 50), (clusters, 4), (clusters, 200)):
        cells = []
        for loss, momentum in columns.values():
            seen = torch.tensor(
                [train(source(s), loss, momentum, batch, arguments.steps, s) for s in range(arguments.seeds)]
            )
            cells.append(f"{100 * seen.mean():.1f} ± {100 * seen.std():.1f}")
        print(f"| {source.__name__}, {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
