"""A small comparison, made once: three losses, three seeds, out-of-distribution images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

LOSSES = ("gence", "ce", "gence(anchor=0.1)")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Decoded images go where the tests' other files go, not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory):
    """A folder of noise, as out-of-distribution images; its name would be markup if anything let it."""
    folder = tmp_path_factory.mktemp("ood") / "<b>noise</b>".replace("/", "")
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(30):
        Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def compared(tmp_path_factory, elsewhere):
    """The result of `compare`, with its report on disk."""
    from rich.console import Console

    from gence.lab.compare.comparison import compare

    out = tmp_path_factory.mktemp("compared") / "out"
    with (out.parent / "console.txt").open("w") as file:
        return compare(
            "digits", losses=LOSSES, seeds=3, epochs=8, ood=[str(elsewhere)], out=out, device="cpu",
            console=Console(file=file),
        )  # fmt: skip


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """A hundred pieces of two photographs that scikit-learn ships, 32 px: roofs and petals."""
    from sklearn.datasets import load_sample_images

    folder, draw = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for name, image in zip(("china", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir()
        for i in range(63):  # a fifth is split off for testing: fifty of each are trained on
            top, left = draw.integers(0, image.shape[0] - 64), draw.integers(0, image.shape[1] - 64)
            Image.fromarray(image[top : top + 64, left : left + 64]).save(folder / name / f"{i:02d}.png")
    return folder


@pytest.fixture
def _undrawn(monkeypatch):
    """Reports without figures, for tests of something else: to draw them takes longer than the runs."""
    monkeypatch.setattr("gence.lab.report.page.panels", lambda *_: [])


@pytest.fixture
def image_folder(tmp_path):
    """A function that makes a folder of images from scikit-learn's digits: `(names, images a class)`."""
    from sklearn.datasets import load_digits

    bunch = load_digits()

    def make(names, count: int, folder: Path | None = None) -> Path:
        folder = folder or tmp_path / "photos"
        for k, name in enumerate(names):
            (folder / name).mkdir(parents=True)
            for i, image in enumerate(bunch.images[bunch.target == k][:count]):
                pixels = np.rint(image * (255 / 16)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{i}.png")
        return folder

    return make


@pytest.fixture
def quiet_console():
    from rich.console import Console

    return Console(file=io.StringIO(), force_terminal=False)
