"""Dense targets: which of four colours a pixel has, told from the gray image. The loss is the same line.

The two photographs ship with scikit-learn. Left half: training; right half: test. Every pixel is a row of the batch.

Run: python examples/segmentation.py
"""

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_sample_images
from torch import nn

import gence

COLOURS, PATCH = 4, 32


def patches() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gray patches (N, 1, 32, 32), colour labels (N, 32, 32), and whether a patch lies in the left half (N,)."""
    images = np.stack([image[::2, ::2] for image in load_sample_images().images])[:, :192, :320] / 255
    colours = KMeans(COLOURS, n_init=1, random_state=0).fit(images[:, ::8, ::8].reshape(-1, 3))
    labels = torch.tensor(colours.predict(images.reshape(-1, 3)).reshape(images.shape[:3]), dtype=torch.long)
    gray = torch.tensor(images.mean(-1), dtype=torch.float32)
    tiles = [x.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(-1, PATCH, PATCH) for x in (gray, labels)]
    column = torch.arange(320).expand(2, 192, 320).unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return tiles[0][:, None], tiles[1], column.reshape(-1, PATCH, PATCH)[:, 0, 0] < 160


def train(criterion: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after, dilation in ((1, 16, 1), (16, 16, 2), (16, 16, 4)):
        layers += [nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, COLOURS, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(15):
        for batch in torch.randperm(len(images)).split(10):
            optimizer.zero_grad()
            criterion(model(images[batch]), labels[batch]).backward()  # (N, K, H, W) and (N, H, W)
            optimizer.step()
    return model.eval()


def main() -> None:
    images, labels, left = patches()
    results = []
    for name, criterion in (("CE", nn.CrossEntropyLoss()), ("GenCE, anchor 0.1", gence.GenCELoss(anchor=0.1))):
        model = train(criterion, images[left], labels[left])
        with torch.no_grad():
            right = model(images[~left]).argmax(1) == labels[~left]
        results.append(f"{name}: pixel accuracy {right.double().mean():.3f}")
    print("; ".join(results))


if __name__ == "__main__":
    main()
