"""Lightning: an ordinary LightningModule; a loader that looks ahead and a callback make accumulation exact.

Run: python examples/lightning_fit.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gence
from gence.integrations import ExactAccumulation, LookAheadLoader


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
        self.criterion = gence.GenCELoss(anchor=0.1)  # on several ranks: process_group="world"

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        images, labels = batch
        return self.criterion(self(images), labels)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # noqa: ARG002
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=10,
        accumulate_grad_batches=4,
        callbacks=[ExactAccumulation()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    training = TensorDataset(images[:960], labels[:960])
    trainer.fit(model := Classifier(), LookAheadLoader(training, batch_size=20, shuffle=True, group_size=4))
    test = DataLoader(TensorDataset(images[960:], labels[960:]), batch_size=1000)
    accuracy = trainer.test(model, test, verbose=False)[0]["accuracy"]
    print(f"Lightning, 4 micro-batches a step: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
