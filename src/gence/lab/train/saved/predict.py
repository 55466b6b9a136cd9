"""Predictions of a trained network for folders and archives of images, and of any model as a CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from gence.lab.data import (
    IMAGE_SUFFIXES,
    Container,
    DataError,
    ImageSet,
    decode_all,
    decode_image,
    is_ignored,
    open_container,
    size_like,
)
from gence.lab.store import spreadsheet_text, writing_file
from gence.lab.train.saved.network import TrainedModel

_CHUNK = 1000  # images decoded and predicted at a time, so that a folder of any size fits into memory


def predict_folder(
    model: TrainedModel, folder: str | Path, *, offset: bool = False, calibrated: bool = False, progress: bool = False
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Predict every image below a folder or in an archive, whatever its subfolders, in the order of the names.

    Args:
        model: the network.
        folder: a folder, or a .zip or .tar archive.
        offset: whether the class offsets are added to the logits.
        calibrated: whether the logits are divided by the temperature.
        progress: a bar on stderr.

    Yields:
        Names relative to the folder, and their class probabilities (n, K) on the CPU, some hundreds at a time.

    Raises:
        DataError: there is no image, or one cannot be read.
        ValueError: the network diverged.
    """
    path = Path(folder).expanduser()
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a folder or an archive of images")
    with open_container(path) as container:
        names = sorted(
            name for name in container.files if name.lower().endswith(IMAGE_SUFFIXES) and not is_ignored(name)
        )
        if not names:
            raise DataError(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            title = f"{start + len(chunk)} of {len(names)}" if progress else None
            images = _decoded(container, chunk, model.image_shape, title)
            yield tuple(chunk), model.probabilities(images, offset=offset, calibrated=calibrated).cpu()


def write_predictions(
    model: TrainedModel,
    folder: str | Path,
    out: Path,
    *,
    offset: bool = False,
    calibrated: bool = False,
    progress: bool = False,
) -> int:
    """Write a CSV with a line per image: file, predicted class, its probability, and that of every class.

    Columns of probabilities are called ``p_CLASS``. A name that a spreadsheet would compute (``=``, ``+``, ``-`` or
    ``@`` in front) has an apostrophe before it. Names with commas, quotes or line breaks are quoted as RFC 4180
    has it; bytes of a file name that are not UTF-8 become escapes. The file appears when all images are done.

    Returns:
        The number of images.
    """
    found = predict_folder(model, folder, offset=offset, calibrated=calibrated, progress=progress)
    return write_probabilities(out, "file", model.classes, found)


@dataclass(frozen=True)
class _Lines:
    """Takes rows that end in CR LF, and writes them with LF."""

    file: TextIO

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def write_probabilities(
    out: Path, first: str, classes: Sequence[str], predicted: Iterable[tuple[Sequence[str], Tensor]]
) -> int:
    """Write a CSV of predictions: what each line is about, under the name `first`, class and probabilities."""
    count = 0
    with (
        writing_file(out) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        # With both characters in its line end, Python quotes a name that has either of them; "\n" alone ends our lines.
        writer = csv.writer(_Lines(file), lineterminator="\r\n")
        writer.writerow([first, "predicted", "confidence", *(f"p_{name}" for name in classes)])
        for names, probs in predicted:
            for name, row in zip(names, probs.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                shown = [f"{value:.6g}" for value in row]
                writer.writerow([spreadsheet_text(name), spreadsheet_text(classes[best]), shown[best], *shown])
            count += len(names)
    return count


def _decoded(container: Container, names: list[str], shape: tuple[int, int, int], title: str | None) -> Tensor:
    """Images as the network takes them: uint8 (n, C, H, W)."""
    channels, size = shape[0], size_like(shape)

    def decode(name: str) -> np.ndarray:
        return decode_image(container.read(name), container.where(name), size)

    pixels = torch.from_numpy(decode_all(names, decode, progress=title))
    labels = torch.zeros(len(names), dtype=torch.long)
    return ImageSet.from_arrays(pixels, labels, ("unlabelled",), layout="NCHW").with_channels(channels).images
