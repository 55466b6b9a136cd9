"""10 labelled and 90 unlabelled images a class: what do the unlabelled ones add through `context`?

Run: python examples/unlabelled.py (scikit-learn's digits, a small network)
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gence

UNIFORM = torch.full((10,), 0.1)
ROWS = {  # loss, and what becomes of the unlabelled images
    "cross-entropy": (nn.CrossEntropyLoss(), "unused"),
    "GenCE": (gence.GenCELoss(), "unused"),
    "GenCE, context": (gence.GenCELoss(), "trained"),
    "GenCE, context detached": (gence.GenCELoss(), "detached"),
    "GenCE, anchor 0.1, context": (gence.GenCELoss(anchor=0.1, prior=UNIFORM), "trained"),
    "GenCE, anchor 1, context": (gence.GenCELoss(anchor=1.0, prior=UNIFORM), "trained"),
    "GenCE, anchor 2, context": (gence.GenCELoss(anchor=2.0, prior=UNIFORM), "trained"),
}


def split(seed: int) -> tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    place = (y[:, None] == torch.arange(10)).cumsum(0)[torch.arange(len(y)), y]  # the how manieth of its class
    known, test = place <= 10, place > 100
    return (x[known], y[known]), x[~known & ~test], (x[test], y[test])


def train(criterion: nn.Module, seed: int, use: str, steps: int = 300, batch: int = 50) -> float:
    (x, y), unlabelled, (test_x, test_y) = split(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows, more = (torch.randperm(len(a), generator=draw) for a in (y, unlabelled))
        images = x[rows[:batch]] if use == "unused" else torch.cat([x[rows[:batch]], unlabelled[more[: 4 * batch]]])
        logits = model(images)
        context = logits[batch:].detach() if use == "detached" else logits[batch:]
        optimizer.zero_grad()
        criterion(logits[:batch], y[rows[:batch]], **({} if use == "unused" else {"context": context})).backward()
        optimizer.step()
        schedule.step()
    return float((model.eval()(test_x).argmax(1) == test_y).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--record", help="a file for the accuracies, such as results/bench/unlabelled.json")
    options = parser.parse_args()
    seeds, found = options.seeds, {}
    torch.set_num_threads(1)  # for matrices this small, more threads only wait for each other
    print(f"test accuracy in %, mean and standard deviation over {seeds} seeds")
    for name, (criterion, use) in ROWS.items():
        found[name, "accuracy"] = [train(criterion, seed, use) for seed in range(seeds)]
        percent = 100 * torch.tensor(found[name, "accuracy"])
        print(f"{name:28} {percent.mean():.1f} ± {percent.std():.1f}", flush=True)
    if options.record:
        from gence.paper import write_study

        write_study(options.record, "`examples/unlabelled.py`", found, rows_are="loss")
