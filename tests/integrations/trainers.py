"""One problem for all trainers: digits as sequences of 64 gray values, and a BERT or an MLP that classifies them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gence

os.environ["HF_HUB_OFFLINE"] = "1"

ROWS = 112  # 3 whole batches of 32, and one of 16


def criterion(**more: Any) -> gence.GenCELoss:
    return gence.GenCELoss(label_smoothing=0.1, anchor=0.1, **more)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def tokens() -> list[dict[str, Any]]:
    images, labels = load_digits(return_X_y=True)
    return [
        {"input_ids": image.astype(int), "labels": int(label)} for image, label in zip(images, labels, strict=True)
    ][:ROWS]


def bert(dropout: float = 0.0) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model: nn.Module = BertForSequenceClassification(
        BertConfig(
            vocab_size=17,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            num_labels=10,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.3,  # so that a few steps move it
        )
    )
    return model


def arguments(folder: Path, **more: Any) -> Any:
    """Of a Hugging Face trainer."""
    from transformers import TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_eval_batch_size": 32,
        "num_train_epochs": 2,
        "learning_rate": 0.5,
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
    }
    return TrainingArguments(**{**settings, **more})


def train_huggingface(
    folder: Path,
    batch_size: int,
    accumulation: int,
    *,
    exact: bool = True,
    dropout: float = 0.0,
    callbacks: Sequence[Any] = (),
    resume: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """SGD and not Adam, which blows gradients that are 0 but for rounding up to whole steps."""
    from transformers import Trainer

    from gence.integrations.huggingface import GenCETrainer, loss_of_outputs

    batches = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    model = bert(dropout)
    seen: list[Tensor] = []  # logits of every forward pass
    model.register_forward_hook(lambda module, inputs, output: seen.append(output["logits"].detach()))
    common: dict[str, Any] = {
        "model": model,
        "args": arguments(folder, **{**batches, **more}),
        "train_dataset": tokens(),
        "callbacks": list(callbacks),
    }
    if exact:
        trainer = GenCETrainer(**common, eval_dataset=tokens(), criterion=criterion())
    else:
        loss = criterion()
        trainer = Trainer(
            **common, compute_loss_func=lambda outputs, labels, **_: loss_of_outputs(loss, outputs, labels)
        )
    start = weights(trainer.model)
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = {"weights": weights(trainer.model), "moved": weights(trainer.model) - start, "losses": losses, "seen": seen}
    found["trainer"] = trainer
    if exact:
        found["eval_loss"] = trainer.evaluate()["eval_loss"]
    return found


def images() -> TensorDataset:
    pixels, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(pixels[:ROWS] / 16, dtype=torch.float32), torch.tensor(labels[:ROWS]))


def train_lightning(
    batch_size: int,
    accumulation: int,
    *,
    exact: bool = True,
    dropout: float = 0.0,
    devices: int = 1,
    epochs: int = 2,
    group_size: int | None = None,
    callbacks: Sequence[Any] = (),
    resume: Path | None = None,
    validation_batch: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    import lightning

    from gence.integrations.lightning import ExactAccumulation, LookAheadLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10))
            self.criterion = criterion(process_group="world" if devices > 1 else None)
            self.losses: list[float] = []
            self.seen: list[Tensor] = []

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.network(inputs)
            self.seen.append(logits.detach())
            return logits

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss: Tensor = self.criterion(self(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("validation", self.criterion(self(batch[0]), batch[1]), sync_dist=devices > 1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=epochs,
        accumulate_grad_batches=accumulation,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,
        callbacks=[ExactAccumulation(), *callbacks] if exact else list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"logger": False, "enable_checkpointing": False, **more},
    )
    torch.manual_seed(7)
    # Lightning would shuffle for several ranks, and then the batches would hold other rows than one process's.
    sampler = DistributedSampler(images(), devices, int(os.environ["RANK"]), shuffle=False) if devices > 1 else None
    loader = LookAheadLoader(images(), batch_size=batch_size, group_size=group_size or accumulation, sampler=sampler)
    judged = None if validation_batch is None else DataLoader(images(), batch_size=validation_batch)
    trainer.fit(module, loader, judged, ckpt_path=resume)
    found: dict[str, Any] = {"weights": weights(module), "losses": module.losses, "seen": module.seen}
    return {**found, "module": module, "trainer": trainer}
