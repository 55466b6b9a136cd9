"""What "auto" means: network, recipe, device and image size, each by a rule that is written down.

- device: the CPU for images up to 16 px, where a GPU gains nothing; otherwise a GPU if there is one.
- image size: left alone where all images are square, of one size, and up to 64 px (128 on a GPU); otherwise 32 (64).
- model: small_cnn on a CPU and for images up to 16 px; otherwise resnet18.
- recipe: tiny on a CPU and for images up to 16 px; otherwise modern.
- n: 100 labels of digits; all labels of any other data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from gence.lab.data import container_paths, find_splits, known_sources, open_container, plain_source, size_of
from gence.lab.spec import LossSpec, SpecError

Source = str | os.PathLike[str]
"""A name, a folder or an archive."""


def split_losses(text: str) -> list[str]:
    """Return the losses of a list separated by commas or semicolons; commas inside brackets belong to a loss.

    >>> split_losses("gence(anchor=0.1, prior=train), ce")
    ['gence(anchor=0.1, prior=train)', 'ce']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def read_losses(losses: str | Sequence[str]) -> tuple[LossSpec, ...]:
    """Return the losses, each once; a text may name several, with commas between them.

    >>> [str(loss) for loss in read_losses("gence,ce")]
    ['gence', 'ce']
    """
    listed = split_losses(losses) if isinstance(losses, str) else losses
    found = tuple(dict.fromkeys(LossSpec.from_value(loss) for loss in listed))
    if not found:
        raise SpecError("losses is empty; expected at least one, such as gence,ce")
    return found


def read_source(name: str, source: Source) -> str:
    """Return the one spelling of a source; `name` is the argument's, for the message.

    >>> from pathlib import Path
    >>> read_source("data", Path("photos"))
    'photos'
    """
    if not isinstance(source, str | os.PathLike):
        raise SpecError(f"{name} is {source!r}; expected the name of a data set, or a folder or archive of images")
    return plain_source(source)


def read_sources(name: str, sources: Source | Iterable[Source]) -> tuple[str, ...]:
    """Return sources; one alone need not stand in a list.

    >>> read_sources("ood", "photos/"), read_sources("ood", ["svhn", "photos"])
    (('photos',), ('svhn', 'photos'))
    """
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    return tuple(read_source(name, source) for source in listed)


def read_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds: a number says how many, from 0.

    >>> read_seeds(3), read_seeds([7, 8])
    ((0, 1, 2), (7, 8))
    """
    listed = range(int(seeds)) if isinstance(seeds, Integral) else seeds
    if not isinstance(listed, Iterable) or not all(isinstance(seed, Integral) for seed in listed):
        raise SpecError(f"seeds is {seeds!r}; expected how many, such as 5, or a list of whole numbers")
    found = tuple(int(seed) for seed in listed)
    if not found:
        raise SpecError(f"seeds is {seeds!r}; expected at least one seed")
    return found


AUTO = "auto"
TINY_SIDE = 16
_SAMPLED = 200


@dataclass(frozen=True)
class Sizes:
    """The largest side of images that are left as they are, and the side others are brought to."""

    kept: int
    resized: int


_SIZES = {"cpu": Sizes(64, 32), "gpu": Sizes(128, 64)}


def choose_device(device: str, side: int | None = None) -> str:
    """Return "cpu" or a CUDA device; `side` is the images' size where it is known."""
    if device != AUTO:
        return device
    import torch

    return "cuda" if torch.cuda.is_available() and (side is None or side > TINY_SIDE) else "cpu"


def choose_image_size(data: str, device: str) -> int | None:
    """Return the size to bring images to, or None where they can stay as they are.

    Of a folder or archive up to 200 images are looked at: photographs are never decoded in full size by the hundred.
    """
    known = {info.name for info in known_sources()}
    if data in known or data.startswith("hf:"):
        return None
    sizes = _SIZES["cpu" if device == "cpu" else "gpu"]
    seen = _sampled_sizes(data)
    if len(seen) == 1:
        width, height = next(iter(seen))
        if width == height <= sizes.kept:
            return None
    return sizes.resized


def choose_model(model: str, side: int, device: str) -> str:
    """Return the name of a network.

    >>> choose_model("auto", 32, "cuda"), choose_model("auto", 8, "cuda"), choose_model("mlp", 8, "cpu")
    ('resnet18', 'small_cnn', 'mlp')
    """
    if model != AUTO:
        return model
    return "small_cnn" if device == "cpu" or side <= TINY_SIDE else "resnet18"


def choose_recipe(recipe: str, side: int, device: str) -> str:
    """Return the name of a recipe.

    >>> choose_recipe("auto", 32, "cuda"), choose_recipe("auto", 32, "cpu")
    ('modern', 'tiny')
    """
    if recipe != AUTO:
        return recipe
    return "tiny" if device == "cpu" or side <= TINY_SIDE else "modern"


def _sampled_sizes(data: str) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for path in container_paths(Path(data), None).values():
        with open_container(path) as container:
            names = [name for layout in find_splits(container).values() for name in layout.files]
            sampled = names[:: -(-len(names) // _SAMPLED) or 1]
            found |= {size_of(container.read(name), container.where(name)) for name in sampled}
    return found
