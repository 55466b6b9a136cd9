"""Keras 3 on the torch backend: the loss is a function of two tensors.

Keras averages what the function returns over the batch, so it returns the rows' losses. Needs: pip install keras

Run: python examples/keras_fit.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from sklearn.datasets import load_digits
from torch import Tensor

import gence


def gen_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    return gence.gen_cross_entropy(logits, labels.reshape(-1).long(), anchor=0.1, reduction="none")


def main() -> None:
    keras.utils.set_random_seed(0)
    images, digits = load_digits(return_X_y=True)
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3), loss=gen_cross_entropy, metrics=["sparse_categorical_accuracy"]
    )
    model.fit(images[:960] / 16, digits[:960], batch_size=80, epochs=10, verbose=0)
    _, accuracy = model.evaluate(images[960:] / 16, digits[960:], verbose=0)
    print(f"Keras on torch: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
