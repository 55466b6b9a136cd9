"""timm: its training script has one slot for the loss, `train_loss_fn`. GenCE goes there, with and without Mixup.

Soft targets from timm's Mixup need no SoftTargetCrossEntropy. Its own label smoothing is 0.1 unless told otherwise.

Run: python examples/timm_loss.py
"""

import timm
import torch
from sklearn.datasets import load_digits
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import random_seed

import gence

EPOCHS = 12


def main() -> None:
    random_seed(0)  # NumPy's too, from which Mixup draws
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    images = torch.nn.functional.interpolate(images, 32, mode="bilinear")
    labels = torch.tensor(digits)
    training, test = slice(0, 500), slice(1000, None)

    model = timm.create_model("test_resnet", in_chans=1, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS, warmup_t=1, warmup_lr_init=1e-4)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=10, prob=0.5)
    train_loss_fn = gence.GenCELoss(anchor=0.1)  # was SoftTargetCrossEntropy()

    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(500).split(50):
            inputs, targets = mixup(images[training][batch], labels[training][batch])
            optimizer.zero_grad()
            loss = train_loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
        scheduler.step(epoch + 1)

    with torch.no_grad():
        accuracy = (model.eval()(images[test]).argmax(1) == labels[test]).double().mean()
    print(f"GenCE in timm's slot, Mixup on: last loss {loss.detach():.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
