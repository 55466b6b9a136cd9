"""Batches much smaller than the number of classes: when does a running marginal help?

Run: python examples/tiny_batches.py (handwritten digits, 10 images per class; 50 clusters, 20 points per class)
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gence

MOMENTA = {"CE": None, "GenCE": None, "running 0.9": 0.9, "running 0.99": 0.99}


def digits(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=generator)
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    place = (y[:, None] == torch.arange(10)).cumsum(0)[torch.arange(len(y)), y]  # the how manieth of its class
    return x[place <= 10], y[place <= 10], x[place > 10], y[place > 10]


def clusters(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centres = 0.9 * torch.randn(50, 20, generator=generator)
    y = torch.arange(50).repeat(120)
    x = centres[y] + torch.randn(len(y), 20, generator=generator)
    return x[:1000], y[:1000], x[1000:], y[1000:]


def train(data: tuple[Tensor, ...], name: str, batch: int, seed: int, steps: int = 400) -> float:
    x, y, test_x, test_y = data
    classes, momentum = int(y.max()) + 1, MOMENTA[name]
    criterion = nn.CrossEntropyLoss() if name == "CE" else gence.GenCELoss()
    more = {} if momentum is None else {"marginal": gence.RunningMarginal(classes, momentum)}
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, classes))
    # The rate goes with the square root of the batch, for all losses alike.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * (batch / 4) ** 0.5, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(y))[:batch]
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows], **more).backward()
        optimizer.step()
        schedule.step()
    return float((model(test_x).argmax(1) == test_y).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--record", help="a file for the accuracies, such as results/bench/tiny-batches.json")
    options = parser.parse_args()
    seeds, found = options.seeds, {}
    torch.set_num_threads(1)  # for matrices this small, more threads only wait for each other
    print(f"test accuracy in %, mean ± standard deviation over {seeds} seeds")
    print("| data, batch | " + " | ".join(MOMENTA) + " |\n" + "|---" * (len(MOMENTA) + 1) + "|")
    for source, batch in ((digits, 2), (digits, 4), (clusters, 4), (clusters, 200)):
        problems = [source(torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        row = f"{source.__name__}, {batch}"
        cells = {name: [train(p, name, batch, seed) for seed, p in enumerate(problems)] for name in MOMENTA}
        percent = [100 * torch.tensor(cell) for cell in cells.values()]
        print(f"| {row} | " + " | ".join(f"{c.mean():.1f} ± {c.std():.1f}" for c in percent) + " |", flush=True)
        found |= {(row, name): cell for name, cell in cells.items()}
    if options.record:
        from gence.paper import write_study

        write_study(options.record, "`examples/tiny_batches.py`", found, rows_are="data, batch")
