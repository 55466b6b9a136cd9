"""Hugging Face's Trainer: a small vision transformer, from scratch, with GenCE, accumulating 4 micro-batches exactly.

On several processes nothing changes but the command.

Run: python examples/huggingface_trainer.py
Two processes: torchrun --nproc-per-node 2 examples/huggingface_trainer.py
"""

import tempfile

import numpy as np
from sklearn.datasets import load_digits
from transformers import EvalPrediction, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import gence
from gence.integrations import GenCETrainer


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def main() -> None:
    set_seed(0)
    images, digits = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    rows = [{"pixel_values": image, "labels": int(digit)} for image, digit in zip(pixels, digits, strict=True)]
    size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 48, "intermediate_size": 96}
    model = ViTForImageClassification(ViTConfig(**size, num_hidden_layers=2, num_attention_heads=4, num_labels=10))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=4,
            num_train_epochs=10,
            learning_rate=5e-3,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = GenCETrainer(
            model,
            arguments,
            train_dataset=rows[:960],
            eval_dataset=rows[960:],
            compute_metrics=accuracy,
            criterion=gence.GenCELoss(anchor=0.1),
        )
        trainer.train()
        found = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"{arguments.world_size} process(es), 4 micro-batches a step: accuracy {found:.3f}")


if __name__ == "__main__":
    main()
