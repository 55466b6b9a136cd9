"""The fused BatchNorm without a GPU: its cases in Triton's interpreter, its kernels compiled, and the plain path."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from gence.lab.models import create_model
from gence.lab.models.fused_norm.norm import FusedSequential
from tests.interpreter import run_interpreted


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", minversion="3.6")
    run_interpreted(Path(__file__).with_name("test_fused_norm_cases.py"))


@pytest.mark.parametrize(
    ("rows", "kind", "expected"),
    [
        (25600, "none", ["statistics", "apply", "gradient_sums", "gradient_apply"]),
        (25600, "normed", ["statistics", "statistics", "apply", "gradient_sums", "gradient_apply"]),
        (1600, "skip", ["statistics", "apply", "gradient_sums", "gradient_apply"]),
    ],
)
def test_kernels_compile_for_a_gpu(rows: int, kind: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter takes, the compiler must take too, with whole vectors."""
    pytest.importorskip("triton", minversion="3.6")
    from gence.lab.models.fused_norm import launch as norm_launch, launch as norm_layout
    from tests.losses.test_kernels_compile import compiled

    names: list[str] = []

    def compile_only(kernel: Any, programs: int, warps: int, key: Any, args: Any, registers: int | None) -> None:
        names.append(kernel.__name__)
        ptx = compiled(kernel, warps, args, registers).asm["ptx"]
        assert "sm_90" in ptx
        assert "cp.async.cg.shared.global" in ptx  # which takes 16 bytes
        assert "st.global.v4" in ptx or kernel.__name__ in ("statistics", "gradient_sums")

    monkeypatch.setattr(norm_launch, "launch", compile_only)
    monkeypatch.setattr(norm_layout, "multiprocessors", lambda _: 132)
    C = 256
    x = torch.empty(rows, C, 1, 1, dtype=torch.bfloat16)
    values = torch.empty(2, C)
    tickets = torch.zeros(C, dtype=torch.int32)
    norm = norm_launch.Norm(values[0], values[0], torch.zeros((), dtype=torch.long), tickets, 0.1, 1e-5)
    main = norm_launch.Input(x, values[0], values[0], values, norm)
    second = main if kind == "normed" else None
    norm_launch.forward(main, second or (x if kind == "skip" else None), relu=True)
    two, y = (None, None) if kind == "none" else (x, x)
    norm_launch.backward(x, two, main, second, y if second is None else None, relu=True, added=kind != "none")
    assert names == expected


def plain_resnet18(model: nn.Module) -> nn.Sequential:
    """The same network of torchvision's own blocks, with the same weights."""
    network = models.resnet18(weights=None)
    layers = OrderedDict((name, getattr(network, name)) for name in ("bn1", "relu", "layer1", "layer2", "layer3",
                         "layer4", "avgpool"))  # fmt: skip
    plain = nn.Sequential(OrderedDict(conv1=nn.Conv2d(3, 64, 3, padding=1, bias=False), **layers, flatten=nn.Flatten()))
    plain.load_state_dict(model.state_dict())
    return plain


def test_names_and_results_on_a_cpu_are_torchvisions() -> None:
    backbone = create_model("resnet18", num_classes=4, image_size=16, seed=0).backbone
    plain = plain_resnet18(backbone)
    assert list(backbone.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in backbone.named_parameters()] == [name for name, _ in plain.named_parameters()]
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    found = []
    for network in (backbone.train(), plain.train()):
        features = network(images)
        features.square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        found.append({"features": features, **gradients, **dict(network.named_buffers())})
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(backbone.eval()(images), plain.eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["resnet18", "wrn16_8"])
def test_networks_still_compile_whole_and_can_be_copied(name: str) -> None:
    model = copy.deepcopy(create_model(name, num_classes=4, image_size=8, seed=0)).train()
    images = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    expected = copy.deepcopy(model)(images)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(images), expected)


def test_a_sequence_computes_what_its_layers_do() -> None:
    layers = [nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(), nn.BatchNorm2d(4)]
    x = torch.randn(3, 4, 6, 6)
    expected = nn.Sequential(*copy.deepcopy(layers))(x)
    torch.testing.assert_close(FusedSequential(*layers)(x), expected, rtol=0, atol=0)
