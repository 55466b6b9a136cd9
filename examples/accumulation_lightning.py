"""Exact gradient accumulation with Lightning: manual optimisation, because a large batch needs two passes.

Each batch of the loader is the large one; the module cuts it into micro-batches that fit in memory.
Run: python examples/accumulation_lightning.py --devices 2
"""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gence


class Classifier(lightning.LightningModule):
    def __init__(self, micro_batch_size: int = 16) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.micro_batch_size = micro_batch_size
        self.network = nn.Sequential(
            nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)
        )
        self.criterion = gence.GenCELoss()

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:
            self.criterion.process_group = "world"

    def training_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        optimizer = self.optimizers()
        micro_batches = zip(images.split(self.micro_batch_size), labels.split(self.micro_batch_size), strict=True)
        optimizer.zero_grad()
        loss = gence.two_pass_backward(self.network, self.criterion, micro_batches)
        # `self.network` is inside Lightning's DDP wrapper, whose hooks run in `self.forward` alone: average by hand.
        if self.trainer.world_size > 1:
            for parameter in self.network.parameters():
                parameter.grad = self.trainer.strategy.reduce(parameter.grad, reduce_op="mean")
        optimizer.step()
        self.log("loss", loss, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1)
    devices = parser.parse_args().devices
    lightning.seed_everything(0)
    images, labels = torch.randn(256, 20), torch.randint(5, (256,))
    strategy = "ddp" if devices > 1 else "auto"
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", devices=devices, strategy=strategy, **quiet)
    model = Classifier()
    trainer.fit(model, DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True))
    print(f"loss of the last batch: {trainer.callback_metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
