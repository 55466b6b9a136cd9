"""What "auto" means: network, recipe, device and image size, each by a rule that is written down.

- device: the CPU for images up to 16 px, where a GPU gains nothing; otherwise a GPU if there is one.
- image size: left alone where all images are square, of one size, and up to 64 px (128 on a GPU); otherwise 32 (64),
  and on a CPU 48 for up to 400 labels, where a run still takes no longer than with 1,000 labels at 32.
- model: small_cnn for images up to 16 px; for larger ones a linear head on the frozen encoder of the extra
  `pretrained`, where that is installed; otherwise small_cnn on a CPU and resnet18 on a GPU.
- recipe: head on a frozen encoder, finetune on one that is trained; tiny for images up to 16 px; otherwise small for
  small_cnn, mlp and all that is trained on a CPU, and modern on a GPU.
- image size on an encoder: left alone where all images are square, of one size and up to 64 px; otherwise that of its
  input.
- n: 100 labels of digits; all labels of any other data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gence.lab.compare.options import AUTO
from gence.lab.data import container_paths, find_splits, known_sources, open_container, size_of
from gence.lab.features import DEFAULT_ENCODER, embedded_encoder_is_installed, is_encoder_model
from gence.lab.spec import Recipe, named_recipe

TINY_SIDE = 16
_SAMPLED = 200
_FEW_LABELS, _SIDE_OF_FEW = 400, 48


@dataclass(frozen=True)
class Sizes:
    """The largest side of images that keep their size, and the side others are resized to."""

    kept: int
    resized: int


_SIZES = {"cpu": Sizes(64, 32), "gpu": Sizes(128, 64)}


def choose_device(device: str, side: int | None = None) -> str:
    """Return "cpu" or a CUDA device; `side` is the images' size where it is known."""
    if device != AUTO:
        return device
    import torch

    return "cuda" if torch.cuda.is_available() and (side is None or side > TINY_SIDE) else "cpu"


def wants_encoder(model: str, recipe: str | Recipe) -> bool:
    """Return whether photographs are embedded by a pretrained encoder: asked for, or left open and installed."""
    if model != AUTO:
        return is_encoder_model(model)
    return recipe in (AUTO, "head", "finetune") and embedded_encoder_is_installed()


def choose_image_size(data: str, device: str, encoder: int | None = None, n: int | None = None) -> int | None:
    """Return the size to resize images to, or None where they keep theirs.

    Of a folder or archive up to 200 images are looked at: photographs are never decoded in full size by the hundred.

    Args:
        data: the source.
        device: "cpu", or a GPU.
        encoder: the size of a pretrained encoder's input, where one is used.
        n: labels to train on, where they are few enough for larger images.
    """
    known = {info.name for info in known_sources()}
    if data in known or data.startswith("hf:"):
        return None
    sizes = _SIZES["cpu" if device == "cpu" else "gpu"] if encoder is None else Sizes(64, encoder)
    if encoder is None and device == "cpu" and n is not None and n <= _FEW_LABELS:
        sizes = Sizes(sizes.kept, _SIDE_OF_FEW)
    seen = _sampled_sizes(data)
    if len(seen) == 1:
        width, height = next(iter(seen))
        if width == height <= sizes.kept:
            return None
    return sizes.resized


def choose_model(model: str, side: int, device: str, encoder: bool = False) -> str:
    """Return the name of a network; `encoder` says whether a pretrained one is wanted.

    >>> choose_model("auto", 32, "cuda"), choose_model("auto", 8, "cuda"), choose_model("mlp", 8, "cpu")
    ('resnet18', 'small_cnn', 'mlp')
    >>> choose_model("auto", 32, "cpu", encoder=True)
    'linear@efficientnet_lite0'
    """
    if model != AUTO:
        return model
    if encoder and side > TINY_SIDE:
        return f"linear@{DEFAULT_ENCODER}"
    return "small_cnn" if device == "cpu" or side <= TINY_SIDE else "resnet18"


def choose_recipe(recipe: str, side: int, device: str, model: str = "", tune_encoder: str = "none") -> str:
    """Return the name of a recipe.

    >>> choose_recipe("auto", 32, "cuda"), choose_recipe("auto", 32, "cpu"), choose_recipe("auto", 8, "cpu")
    ('modern', 'small', 'tiny')
    """
    if recipe != AUTO:
        return recipe
    if is_encoder_model(model):
        return "head" if tune_encoder == "none" else "finetune"
    if side <= TINY_SIDE:
        return "tiny"
    return "small" if device == "cpu" or model in ("small_cnn", "mlp") else "modern"


def choose_batch_size(recipe: Recipe, num_classes: int) -> int:
    """Return the rows of a step: at least one per class, where the recipe has few for the sake of more steps.

    >>> from gence.lab.spec import RECIPES
    >>> choose_batch_size(RECIPES["small"], 10), choose_batch_size(RECIPES["small"], 100)
    (20, 100)
    """
    return max(recipe.batch_size, num_classes) if recipe == named_recipe("small") else recipe.batch_size


def _sampled_sizes(data: str) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for path in container_paths(Path(data)).values():
        with open_container(path) as container:
            names = [name for layout in find_splits(container).values() for name in layout.files]
            sampled = names[:: -(-len(names) // _SAMPLED) or 1]
            found |= {size_of(container.read(name), container.where(name)) for name in sampled}
    return found
