"""SGD with bfloat16 copies against torch.optim.SGD, and trainees with copies against trainees without.

Runs on a GPU, or on the CPU under TRITON_INTERPRET=1 (see test_half_sgd.py); skipped elsewhere.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from gence import _triton as launch_module
from gence.lab.models.fused_norm.norm import plain_norms
from gence.lab.train import run as trainee_module
from gence.lab.train.backbone import run_backbone, run_backbone_in_half
from gence.lab.train.batches import EpochFeed
from gence.lab.train.contrastive import ContrastiveTrainee
from gence.lab.train.half_sgd import HalfSGD, _in_same_order
from gence.lab.train.run import Trainee
from gence.lab.train.task import ProblemLoader
from tests.lab.small_runs import small_spec

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
CHANNELS_LAST = torch.channels_last

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU, or the process of test_half_sgd.py"
    ),
    # Masked lanes of the interpreter compute with whatever is there, which NumPy warns of.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]

# Odd sizes, 1x1 kernels, a size of whole blocks, one a value beyond it, one of a single value.
SHAPES = [(7, 3, 3, 3), (40, 13, 1, 1), (32, 64, 1, 1), (16, 32, 3, 3), (683, 1, 1, 3), (1, 1, 1, 1)]
SETTINGS = [
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.8, "weight_decay": 0.0, "nesterov": True},
    {"momentum": 0.0, "weight_decay": 0.1},
    {"momentum": 0.0, "weight_decay": 0.0},
]


def rounded_by_kernel(weight: Tensor) -> Tensor:
    """What a kernel leaves in the copy: the nearest value; the interpreter cuts off what does not fit."""
    if not INTERPRETED:
        return weight.bfloat16()
    return (weight.view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16()


def weights_of(shapes: list[tuple[int, ...]], memory_format: Any = CHANNELS_LAST) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(DEVICE).contiguous(memory_format=memory_format).requires_grad_()
        for shape in shapes
    ]


def gradients_of(weights: list[Tensor], step: int) -> list[Tensor]:
    """In bfloat16, contiguous in every second tensor: not as the weights are."""
    generator = torch.Generator().manual_seed(1 + step)
    drawn = [torch.randn(w.shape, generator=generator).bfloat16().to(DEVICE) for w in weights]
    return [g if i % 2 else g.contiguous(memory_format=CHANNELS_LAST) for i, g in enumerate(drawn)]


@pytest.mark.parametrize(
    ("settings", "memory_format"),
    [*((settings, CHANNELS_LAST) for settings in SETTINGS), (SETTINGS[0], torch.contiguous_format)],
    ids=str,
)
def test_steps_are_those_of_torch(settings: dict[str, Any], memory_format: torch.memory_format) -> None:
    lr = torch.tensor(0.05, device=DEVICE)
    weights, plain = (weights_of(SHAPES, memory_format) for _ in range(2))
    exact = [w.detach().double().requires_grad_() for w in weights]
    optimizer = HalfSGD(weights, weights, lr, **settings)
    single, double = torch.optim.SGD(plain, 0.05, **settings), torch.optim.SGD(exact, 0.05, **settings)
    for step, rate in enumerate([0.05, 0.02, 0.01]):
        lr.fill_(rate)
        for other in (single, double):
            other.param_groups[0]["lr"] = rate
        gradients = gradients_of(weights, step)
        for i, grad in enumerate(gradients):
            optimizer.halves[i].grad, plain[i].grad, exact[i].grad = grad.clone(), grad.float(), grad.double()
        for each in (optimizer, single, double):
            each.step()
        for i, weight in enumerate(weights):
            torch.testing.assert_close(weight.double(), exact[i], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(weight, plain[i], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(optimizer.halves[i], rounded_by_kernel(weight.detach()), rtol=0, atol=0,
                                       check_stride=False)  # fmt: skip
            assert optimizer.state[weight].keys() == single.state[plain[i]].keys()
            if settings["momentum"]:
                momentum, expected = (
                    o.state[p]["momentum_buffer"] for o, p in [(optimizer, weight), (double, exact[i])]
                )
                torch.testing.assert_close(momentum.double(), expected, rtol=1e-6, atol=2e-6)


def test_strides_of_dimensions_of_size_one_say_nothing() -> None:
    weight = torch.empty_strided((4, 3, 1, 1), (3, 1, 3, 3))  # what a network in channels_last has
    for strides, same in [((3, 1, 1, 1), True), ((3, 1, 7, 9), True), ((1, 4, 1, 1), False)]:
        assert _in_same_order(torch.empty_strided((4, 3, 1, 1), strides), weight) == same
    assert not _in_same_order(torch.empty(4, 3, 1, 2), weight)


def test_many_tensors_need_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []
    plainly = launch_module.launch
    monkeypatch.setattr(launch_module, "launch", lambda *args: (launches.append(len(args[4][2])), plainly(*args)))
    weights = weights_of([(2 + i, 3, 1, 1) for i in range(53)])  # as many as a ResNet-50 has convolutions
    before = [w.detach().clone() for w in weights]
    optimizer = HalfSGD(weights, weights, 0.5, momentum=0.9)
    for half, grad in zip(optimizer.halves, gradients_of(weights, 0), strict=True):
        half.grad = grad
    optimizer.halves[20].grad = None  # as if the network had not used it
    optimizer.step()
    assert launches == [16, 16, 16, 4]
    for i, (weight, old, half) in enumerate(zip(weights, before, optimizer.halves, strict=True)):
        expected = old if i == 20 else old - 0.5 * half.grad.float()
        torch.testing.assert_close(weight.detach(), expected)


def test_what_is_not_finite_reaches_weight_and_copy() -> None:
    weights = weights_of([(3, 1, 1, 1)])
    optimizer = HalfSGD(weights, weights, 0.1, momentum=0.9)
    optimizer.halves[0].grad = torch.tensor([torch.nan, torch.inf, 0.0]).reshape(3, 1, 1, 1).bfloat16().to(DEVICE)
    kept = weights[0].detach().flatten()[2].item()
    optimizer.step()
    assert weights[0].flatten().tolist()[1:] == [-torch.inf, kept]
    for values in (weights[0], optimizer.halves[0]):
        assert values.flatten().isnan().tolist() == [True, False, False]


def test_gradients_are_of_the_copies_and_others_go_to_torch() -> None:
    weight, bias = weights_of([(4, 3, 3, 3)])[0], torch.ones(4, device=DEVICE, requires_grad=True)
    optimizer = HalfSGD([weight, bias], [weight], 0.1, momentum=0.9)
    (half,) = optimizer.halves
    images = torch.randn(2, 3, 5, 5, device=DEVICE, dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    torch.nn.functional.conv2d(images, half, bias.bfloat16()).sum().backward()
    assert weight.grad is None
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    expected, moved = weight.detach() - 0.1 * half.grad.float(), bias.detach() - 0.1 * bias.grad
    optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)
    torch.testing.assert_close(bias.detach(), moved)
    optimizer.zero_grad(set_to_none=False)
    assert not bool(half.grad.any())
    optimizer.zero_grad()
    assert half.grad is None
    assert bias.grad is None
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    torch.testing.assert_close(half.detach(), weight.detach().bfloat16(), rtol=0, atol=0)
    half.grad = torch.ones_like(half)
    with pytest.raises(ValueError, match=r"halved\[0\] has a gradient, and so has its copy"):
        optimizer.step()


def test_wrong_weights_are_refused() -> None:
    good, other = weights_of([(4, 3, 3, 3), (4, 3, 3, 3)])
    sparse, double = torch.empty(4, 6, 3, 3, device=DEVICE)[:, ::2], good.detach().double()
    for wrong, message in [
        (other, r"halved\[1\] is not among params"),
        (double, r"halved\[1\] is of type torch.float64; expected torch.float32"),
        (sparse, r"halved\[1\] has shape \(4, 3, 3, 3\) and strides .* expected a tensor that is dense"),
    ]:
        params = [good] if wrong is other else [good, wrong]
        with pytest.raises(ValueError, match=message):
            HalfSGD(params, [good, wrong], 0.1)
    optimizer = HalfSGD([good], [good], 0.1, momentum=0.9)
    optimizer.state[good]["momentum_buffer"] = torch.zeros(4, 3, 3, 3, device=DEVICE)
    optimizer.halves[0].grad = torch.zeros_like(optimizer.halves[0])
    with pytest.raises(ValueError, match=r"momentum_buffer has .* strides \(27, 9, 3, 1\); expected .*\(27, 1, 9, 3\)"):
        optimizer.step()


def trainee_of(loss: str = "ce", run: Any = run_backbone_in_half, **recipe: Any) -> Trainee:
    changes = {"precision": "bf16", "weight_decay": 0.01, "schedule": "constant", **recipe}
    spec = small_spec(loss, **{f"recipe.{name}": value for name, value in changes.items()})
    problem = ProblemLoader(DEVICE).load(spec)
    views, kind = (2, ContrastiveTrainee) if loss == "supcon" else (1, Trainee)
    feed = EpochFeed(problem, spec.recipe, spec.seed, torch.bfloat16, views)
    feed.prepare(0)
    return kind(spec, problem, feed, run)


def steps(trainee: Trainee, count: int) -> None:
    for _ in range(count):
        with plain_norms():
            trainee.step()
        if INTERPRETED and trainee.halves:
            trainee.optimizer.refresh()  # to the nearest, as a GPU rounds


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    """Equal within a tolerance; on a GPU sums may be in another order, and tip a rounding to bfloat16."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        part = slice(1) if name == "sums" else ...  # the loss alone: a hit more or less is a whole one
        one, other = found[name].detach()[part].double(), value.detach()[part].double()
        if INTERPRETED:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert float((one - other).norm()) <= 0.05 * float(other.norm()) + 1e-4, name


def assert_halves_follow(trainee: Trainee) -> None:
    weights = dict(trainee.classifier.backbone.named_parameters())
    for name, half in trainee.halves.items():
        torch.testing.assert_close(half.detach(), weights[name].detach().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "recipe"), [("ce", {"nesterov": True}), ("gence", {"momentum": 0.0, "ema": 0.5}), ("supcon", {})]
)
def test_a_trainee_learns_as_without_copies(loss: str, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with_copies = trainee_of(loss, **recipe)
    monkeypatch.setattr(trainee_module, "can_keep_halves", lambda _: False)
    without = trainee_of(loss, **recipe)
    assert len(with_copies.halves) > 1
    assert without.halves == {}
    assert type(without.optimizer) is torch.optim.SGD
    for trainee in (with_copies, without):
        steps(trainee, 3)
    assert_halves_follow(with_copies)
    for half, weight in zip(with_copies.optimizer.halves, with_copies.optimizer.halved, strict=True):
        assert (half.grad is None, weight.grad is None) == (False, True)  # no gradient was widened
    assert_same(with_copies.tensors(), without.tensors(), 2e-3)
    for trainee in (with_copies, without):
        trainee.finish()
    assert_same(*(dict(trainee.classifier.backbone.named_parameters()) for trainee in (with_copies, without)), 2e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_making_the_optimisers_buffers_changes_nothing(momentum: float) -> None:
    plain, prepared = (trainee_of(momentum=momentum) for _ in range(2))
    prepared.ensure_optimizer_state()
    assert_halves_follow(prepared)
    for trainee in (plain, prepared):
        steps(trainee, 2)
    assert_same(prepared.tensors(), plain.tensors())


@pytest.mark.parametrize("loss", ["ce", "supcon"])
def test_state_can_be_put_back(loss: str) -> None:
    trainee, other = trainee_of(loss), trainee_of(loss)
    steps(trainee, 1)
    saved = {name: value.detach().clone() for name, value in trainee.tensors().items()}
    steps(trainee, 1)
    expected = {name: value.detach().clone() for name, value in trainee.tensors().items()}
    for again in (other, trainee):  # a fresh one, and one that has gone on
        again.load_tensors(saved)
        assert_halves_follow(again)
        steps(again, 1)
        assert_same(again.tensors(), expected)


def test_who_has_no_copies() -> None:
    for trainee in (
        trainee_of(optimizer="adamw", lr=0.01),
        trainee_of(precision="fp32"),
        trainee_of(run=run_backbone),  # in the place of a compiled one
    ):
        assert trainee.halves == {}
        assert not isinstance(trainee.optimizer, HalfSGD)


def test_copies_are_of_the_convolutions_alone() -> None:
    trainee = trainee_of()
    parameters = dict(trainee.classifier.backbone.named_parameters())
    assert {parameters[name].dim() for name in trainee.halves} == {4}
    assert {p.dim() for name, p in parameters.items() if name not in trainee.halves} == {1}
    kept = {value.data_ptr() for value in trainee.tensors().values()}
    assert kept.isdisjoint(half.data_ptr() for half in trainee.halves.values())
