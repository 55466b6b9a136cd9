"""10 labelled and 90 unlabelled images a class: what do the unlabelled ones add through the marginal?

Handwritten digits (8 x 8, from scikit-learn), a small network, plain PyTorch. Unlabelled rows enter S by `context` and
nothing else; they have no loss of their own. Run: python examples/unlabelled.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import gence

CLASSES = 10


def split(seed: int, labelled: int, unlabelled: int) -> tuple[torch.Tensor, ...]:
    """Labelled images and labels, unlabelled images, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    rank = torch.zeros(len(y), dtype=torch.long)  # the how manieth of its class
    for k in range(CLASSES):
        rank[y == k] = torch.arange(int((y == k).sum()))
    known, unknown = rank < labelled, (rank >= labelled) & (rank < labelled + unlabelled)
    test = rank >= labelled + unlabelled
    return x[known], y[known], x[unknown], x[test], y[test]


def train(criterion: nn.Module, seed: int, steps: int, batch: int, context_use: str) -> float:
    """Test accuracy; a batch has `batch` labelled images and, where asked for, four times as many unlabelled ones."""
    x, y, unlabelled, test_x, test_y = split(seed, labelled=10, unlabelled=90)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randperm(len(y), generator=draw)[:batch]
        more = torch.randperm(len(unlabelled), generator=draw)[: 4 * batch]
        optimizer.zero_grad()
        if context_use != "none":
            logits, context = model(torch.cat([x[rows], unlabelled[more]])).split([batch, 4 * batch])
            loss = criterion(logits, y[rows], context=context.detach() if context_use == "detached" else context)
        else:
            loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # for matrices this small, more threads only wait for each other
    uniform = torch.full((CLASSES,), 1 / CLASSES)

    def anchored(strength: float) -> nn.Module:
        return gence.GenCELoss(anchor=strength, prior=uniform)

    rows = {
        "cross-entropy": (nn.CrossEntropyLoss(), "none"),
        "GenCE": (gence.GenCELoss(), "none"),
        "GenCE, context": (gence.GenCELoss(), "trained"),
        "GenCE, context detached": (gence.GenCELoss(), "detached"),
        "GenCE, anchor 0.1": (anchored(0.1), "none"),
        "GenCE, anchor 0.1, context": (anchored(0.1), "trained"),
        "GenCE, anchor 1, context": (anchored(1.0), "trained"),
        "GenCE, anchor 2, context": (anchored(2.0), "trained"),
    }
    print(f"test accuracy in %, mean and standard deviation over {arguments.seeds} seeds")
    for name, (criterion, context_use) in rows.items():
        seen = torch.tensor(
            [train(criterion, seed, arguments.steps, arguments.batch, context_use) for seed in range(arguments.seeds)]
        )
        print(f"{name:28} {100 * seen.mean():.1f} ± {100 * seen.std():.1f}", flush=True)


if __name__ == "__main__":
    main()
