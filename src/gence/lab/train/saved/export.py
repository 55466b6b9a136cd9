"""A trained network as a file that needs no gence, and as ONNX no PyTorch: bytes of images in, probabilities out."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from gence.lab.data import normalize
from gence.lab.store import writing_file
from gence.lab.train.frozen import FrozenClassifier
from gence.lab.train.saved.network import TrainedModel, check_adjustments

FORMATS = {".onnx": "ONNX", ".pt2": "torch.export"}
"""File endings, and what they stand for."""


class Predictor(nn.Module):
    """Class probabilities (n, K) of uint8 images (n, C, H, W); normalisation, offset and temperature are inside."""

    mean: Tensor
    std: Tensor
    offset: Tensor
    temperature: Tensor

    def __init__(self, model: TrainedModel, *, offset: bool = False, calibrated: bool = False) -> None:
        super().__init__()
        check_adjustments(model, offset, calibrated)
        self.classifier = model.classifier
        self.register_buffer("mean", model.mean)
        self.register_buffer("std", model.std)
        nothing = torch.zeros(len(model.classes))
        self.register_buffer("offset", model.offset if offset and model.offset is not None else nothing)
        fitted = model.calibrator if calibrated else None
        known = torch.ones(()) if fitted is None else fitted.tensors["temperature"]
        self.register_buffer("temperature", known.float())

    def forward(self, images: Tensor) -> Tensor:
        """Softmax of the logits, plus the offset or divided by the temperature where that was asked for."""
        if not isinstance(self.classifier, FrozenClassifier):
            images = normalize(images, self.mean, self.std, memory_format=torch.contiguous_format)
        logits: Tensor = self.classifier(images) + self.offset
        return (logits / self.temperature).softmax(1)


def export_model(model: TrainedModel, out: str | Path, *, offset: bool = False, calibrated: bool = False) -> Path:
    """Write a trained network for use without gence; the ending of the file's name says how.

    Both take uint8 images (n, C, H, W) of any number, of the size the network was trained on, and return probabilities
    (n, K). An ONNX file has the class names in its metadata under "classes", as JSON; a .pt2 file in its extra file
    "classes.json".

    Args:
        model: the network.
        out: a name that ends in .onnx, or in .pt2 for `torch.export`.
        offset: whether the class offsets are added to the logits.
        calibrated: whether the logits are divided by the temperature.

    Raises:
        ValueError: another ending, a network without an offset or temperature, or a package that is missing.
        StoreError: the file cannot be written.
    """
    out = Path(out).expanduser()
    if out.suffix.lower() not in FORMATS:
        known = " or ".join(f"{ending} ({what})" for ending, what in FORMATS.items())
        raise ValueError(f"out: {out} was given; expected a name that ends in {known}")
    predictor = Predictor(model, offset=offset, calibrated=calibrated).cpu().eval()
    examples = torch.zeros((2, *model.image_shape), dtype=torch.uint8)
    rows = torch.export.Dim("rows", min=1)
    with torch.no_grad(), writing_file(out) as part:
        if out.suffix.lower() == ".pt2":
            exported = torch.export.export(predictor, (examples,), dynamic_shapes={"images": {0: rows}})
            torch.export.save(exported, part, extra_files={"classes.json": json.dumps(model.classes)})
        else:
            _write_onnx(predictor, examples, rows, model.classes, part)
    return out


def _write_onnx(predictor: Predictor, examples: Tensor, rows: object, classes: tuple[str, ...], path: Path) -> None:
    if importlib.util.find_spec("onnxscript") is None:
        raise ValueError("an ONNX file needs the package onnxscript; install it with: pip install 'gence[export]'")
    import onnx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            predictor, (examples,), input_names=["images"], output_names=["probabilities"],
            dynamic_shapes={"images": {0: rows}}, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None  # with dynamo=True a program is returned
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"classes": json.dumps(classes)})
    path.write_bytes(proto.SerializeToString())
