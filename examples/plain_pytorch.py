"""Plain PyTorch: the loss is one line. Digits with 10 labels per class; cross-entropy beside it, same network and seed.

Run: python examples/plain_pytorch.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gence


def train(criterion: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        for batch in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            criterion(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    training = torch.cat([(labels == digit).nonzero()[:10, 0] for digit in range(10)])
    test = torch.ones(len(labels), dtype=torch.bool).scatter(0, training, False)
    results = []
    for name, criterion in (("CE", nn.CrossEntropyLoss()), ("GenCE, anchor 0.1", gence.GenCELoss(anchor=0.1))):
        model = train(criterion, images[training], labels[training])
        logits = model(images[test]).detach()
        accuracy = (logits.argmax(1) == labels[test]).double().mean()
        log_loss = nn.functional.cross_entropy(logits, labels[test])
        results.append(f"{name}: accuracy {accuracy:.3f}, log loss {log_loss:.3f}")
    print("; ".join(results))


if __name__ == "__main__":
    main()
