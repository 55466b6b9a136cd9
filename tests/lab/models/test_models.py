"""Every network: shapes, sizes, stems, initialisation, reproducibility."""

import pytest
import torch
from torch import nn
from torchvision.models import vgg19_bn

from gence.lab.models import ImageClassifier, check_model, create_model, known_models
from gence.lab.models.networks import HalfDropout

FAST = ("mlp", "resnet18", "small_cnn", "wrn16_8")


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["mlp", "resnet18", "resnet50", "small_cnn", "vgg19", "vgg19_wide", "wrn16_8"])
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (84, 3), (8, 1)])
def test_logits_are_the_head_of_the_features(name: str, size: int, channels: int) -> None:
    if name.startswith("vgg19") and size == 8:
        with pytest.raises(ValueError, match=r"image_size >= 32, got 8"):
            create_model(name, num_classes=7, image_size=size)
        return
    model = create_model(name, num_classes=7, in_channels=channels, image_size=size, seed=0).eval()
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    x = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (1, 7)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(seen[0], model.features(x), rtol=0, atol=0)
    assert seen[0].shape == (1, model.head.in_features)


@pytest.mark.parametrize(
    ("name", "stem", "expected"),
    [
        ("resnet18", "cifar", 11_173_962),
        ("resnet50", "cifar", 23_520_842),
        ("resnet50", "imagenet", 23_528_522),
        ("vgg19", "auto", 20_035_018),
        ("vgg19_wide", "auto", 20_029_888 + 4096 * 513 + 4096 * 4097 + 40_970),
        ("wrn16_8", "auto", 10_961_370),
        ("small_cnn", "auto", 57_130),
        ("mlp", "auto", 3072 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, stem: str, expected: int) -> None:
    assert parameter_count(create_model(name, num_classes=10, stem=stem)) == expected


def test_dropout_of_a_half_belongs_to_its_module() -> None:
    torch.manual_seed(0)
    layer, other = HalfDropout(), HalfDropout()
    x = torch.ones(64, 4096, requires_grad=True)
    masks = [layer(x) for _ in range(3)]
    stored = {name: value.clone() for name, value in layer.state_dict().items()}
    after = layer(x)
    layer.load_state_dict(stored)
    torch.testing.assert_close(layer(x), after, rtol=0, atol=0)  # a run that resumes
    # Every pair of masks, elements beside one another included, agrees as often as independent coins do.
    flat = [mask.detach().flatten() / 2 for mask in (*masks, after, other(x))]
    n = flat[0].numel()
    for i, a in enumerate(flat):
        assert abs(float(a.mean()) - 0.5) < 5 * 0.5 / n**0.5
        for b in (*flat[:i], a.roll(1), a.roll(4096), a.roll(7 * 4096)):
            assert abs(float((a == b).float().mean()) - 0.5) < 5 * 0.5 / n**0.5
    (grad,) = torch.autograd.grad(masks[0].sum(), x)
    torch.testing.assert_close(grad, masks[0].detach(), rtol=0, atol=0)
    assert layer.eval()(x) is x


def test_vgg19_computes_what_torchvisions_features_compute() -> None:
    with torch.device("meta"):
        # The 120 million weights of torchvision's classifier are not wanted, only the layers before it.
        features = vgg19_bn().features
    features = features.to_empty(device="cpu")
    model = create_model("vgg19", num_classes=10, seed=3)
    ours = [m for m in model.backbone.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]
    theirs = [m for m in features.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]
    biases = sum(m.bias.numel() for m in theirs if isinstance(m, nn.Conv2d) and m.bias is not None)
    assert parameter_count(model.backbone) == parameter_count(features) - biases
    for mine, other in zip(ours, theirs, strict=True):
        other.load_state_dict(mine.state_dict(), strict=False)
        if isinstance(other, nn.Conv2d) and other.bias is not None:
            nn.init.zeros_(other.bias)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model.eval().features(x), features.eval()(x).flatten(1))


def first_convolution(model: ImageClassifier) -> nn.Conv2d:
    return next(module for module in model.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize(
    ("stem", "size", "kernel", "pooled"),
    [
        ("auto", 32, 3, False),
        ("auto", 64, 3, False),
        ("auto", 84, 7, True),
        ("cifar", 84, 3, False),
        ("imagenet", 32, 7, True),
    ],
)
def test_resnet_stems(stem: str, size: int, kernel: int, pooled: bool) -> None:
    model = create_model("resnet18", num_classes=3, image_size=size, stem=stem)
    convolution = first_convolution(model)
    assert convolution.kernel_size == (kernel, kernel)
    assert convolution.stride == ((2, 2) if pooled else (1, 1))
    assert any(isinstance(module, nn.MaxPool2d) for module in model.modules()) is pooled


@pytest.mark.parametrize("name", ["vgg19", "wrn16_8", "small_cnn", "mlp", "timm:resnet10t"])
def test_a_stem_that_a_network_does_not_have_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="imagenet"):
        create_model(name, num_classes=3, stem="imagenet")


def test_kaiming_fan_out_scale() -> None:
    model = create_model("wrn16_8", num_classes=10, init="kaiming_fan_out", seed=0)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            torch.testing.assert_close(
                module.weight.std(), torch.tensor((2 / fan_out) ** 0.5), rtol=0.02, atol=0.0, check_dtype=False
            )


def test_torch_init_is_what_pytorch_gives() -> None:
    model = create_model("resnet18", num_classes=10, init="torch", seed=0)
    weight = first_convolution(model).weight
    bound = (1 / (3 * 9)) ** 0.5  # uniform in +-1/sqrt(fan_in)
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.95 * bound


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "wrn16_8"])
def test_zero_residual_makes_every_branch_vanish(name: str) -> None:
    plain = create_model(name, num_classes=4, seed=5)
    zeroed = create_model(name, num_classes=4, init="zero_residual", seed=5)
    differing = [
        key for (key, a), b in zip(plain.named_parameters(), zeroed.parameters(), strict=True) if not torch.equal(a, b)
    ]
    blocks = {"resnet18": 8, "resnet50": 16, "wrn16_8": 6}[name]
    assert len(differing) == blocks
    for key in differing:
        parameter = zeroed.get_parameter(key)
        torch.testing.assert_close(parameter, torch.zeros_like(parameter))


@pytest.mark.parametrize("name", [*FAST, "timm:resnet10t"])
def test_head_without_bias(name: str) -> None:
    model = create_model(name, num_classes=4, head_bias=False)
    assert isinstance(model.head, nn.Linear)
    assert model.head.bias is None
    assert "head.bias" not in model.state_dict()


@pytest.mark.parametrize("name", [*FAST, "timm:resnet10t"])
def test_seeded_networks_are_equal_and_leave_the_global_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    first = create_model(name, num_classes=4, seed=11)
    second = create_model(name, num_classes=4, seed=11)
    other = create_model(name, num_classes=4, seed=12)
    torch.testing.assert_close(torch.get_rng_state(), before)
    torch.testing.assert_close(dict(first.named_parameters()), dict(second.named_parameters()), rtol=0, atol=0)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_unseeded_networks_draw_from_the_global_generator() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = create_model("mlp", num_classes=4)
        second = create_model("mlp", num_classes=4)
        torch.manual_seed(1)
        again = create_model("mlp", num_classes=4)
    torch.testing.assert_close(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, second.head.weight)


@pytest.mark.parametrize("name", FAST)
def test_networks_can_be_exported(name: str) -> None:
    model = create_model(name, num_classes=4, image_size=16, seed=0).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(model, (x,)).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize(
    ("name", "size"), [("resnet10t", 32), ("vit_tiny_patch16_224", 64), ("mobilenetv3_small_050", 64)]
)
def test_timm_networks(name: str, size: int) -> None:
    model = create_model(f"timm:{name}", num_classes=5, in_channels=1, image_size=size, init="torch", seed=0).eval()
    x = torch.randn(2, 1, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert model(x).shape == (2, 5)
        assert model.features(x).shape == (2, model.head.in_features)


def test_names_of_timm_are_looked_up_before_anything_is_built() -> None:
    check_model("timm:resnet10t")
    with pytest.raises(ValueError, match=r"no network named 'resnet10x'.*similar"):
        check_model("timm:resnet10x")


def test_errors_name_what_is_wrong_and_what_exists() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'resnet5'.*nearest is 'resnet50'.*known: mlp, resnet18"):
        create_model("resnet5", num_classes=2)
    with pytest.raises(ValueError, match=r"no network named 'resnet10x'.*similar"):
        create_model("timm:resnet10x", num_classes=2)
    with pytest.raises(ValueError, match=r"could not build 'vit_tiny_patch16_224'|images of 8 px"):
        create_model("timm:vit_tiny_patch16_224", num_classes=2, image_size=8)
    with pytest.raises(ValueError, match=r"stem must be one of auto, cifar, imagenet, got 'tiny'"):
        create_model("resnet18", num_classes=2, stem="tiny")
    with pytest.raises(ValueError, match=r"init must be one of .* got 'xavier'"):
        create_model("resnet18", num_classes=2, init="xavier")
    with pytest.raises(ValueError, match="zero_residual"):
        create_model("timm:resnet10t", num_classes=2, init="zero_residual")
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        create_model("mlp", num_classes=0)
    assert "resnet50" in known_models()
