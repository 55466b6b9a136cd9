"""Curvature and loss along class biases: closed forms against the loss itself."""

import math

import pytest
import torch

from gence.losses import gen_cross_entropy
from gence.theory import GenCE, bias_curvature, bias_profile, toy_curvature, toy_logits, toy_plateau, toy_profile
from gence.theory.drift import measure

PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


@pytest.mark.parametrize("anchor", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("prior", [None, PRIOR], ids=["own prior", "given prior"])
def test_curvature_is_the_losss_hessian(anchor, prior):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 3, (20,), generator=generator)  # class 3 has no label
    hessian = torch.func.hessian(lambda b: gen_cross_entropy(logits + b, target, anchor=anchor, prior=prior))
    expected = hessian(torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(bias_curvature(logits, target, anchor=anchor, prior=prior), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sharpness", [0.3, 0.6, 0.999])
@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0])
def test_toys_closed_forms(classes, sharpness, anchor):
    logits, target = toy_logits(classes, sharpness, per_class=2)
    direction = torch.eye(classes, dtype=torch.float64)[0] - 1 / classes
    direction = direction / direction.norm()
    curvature = (direction @ bias_curvature(logits, target, anchor=anchor) @ direction).item()
    assert curvature == pytest.approx(toy_curvature(classes, sharpness, anchor=anchor), abs=1e-14)
    offsets = torch.linspace(-30, 30, 13, dtype=torch.float64)
    profile = bias_profile(logits, target, torch.cat([offsets, torch.zeros(1)]), anchor=anchor)
    torch.testing.assert_close(toy_profile(classes, sharpness, offsets, anchor=anchor), profile[:-1] - profile[-1])


def test_curvature_vanishes_at_a_guess_and_at_certainty():
    assert toy_curvature(10, 0.1) == pytest.approx(0, abs=1e-16)
    assert toy_curvature(10, 0.1, anchor=1.0) == pytest.approx(0.1)
    assert toy_curvature(10, 0.1, anchor=0.1) == pytest.approx(0.01)
    assert toy_curvature(10, 1 - 1e-6) < 1e-6


def test_cost_of_one_class_for_everything_is_bounded_only_without_the_anchor():
    far = torch.tensor([100.0, 200.0], dtype=torch.float64)
    plain = toy_profile(10, 1 - 1e-9, far)
    torch.testing.assert_close(plain, torch.full((2,), math.log(10) / 10).double(), atol=1e-6, rtol=0)
    assert toy_plateau(10) == pytest.approx(math.log(10) / 10)
    anchored = toy_profile(10, 1 - 1e-9, far, anchor=0.1)
    assert (anchored[1] - anchored[0]).item() == pytest.approx(0.1 * 0.9 * 100)  # the force anchor * (1 - 1/K) stays
    assert toy_plateau(10, anchor=0.1) == math.inf


@pytest.mark.parametrize("anchor", [0.0, 0.3, 1.0])
def test_a_class_that_is_masked_out_is_no_trouble(anchor):
    """Logits of -inf for every sample: the loss is finite without labels of that class, and so is its curvature."""
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(6) % 3
    masked = torch.cat([logits, torch.full((6, 1), -math.inf).double()], 1)
    expected = torch.nn.functional.pad(bias_curvature(logits, target, anchor=anchor), (0, 1, 0, 1))
    torch.testing.assert_close(bias_curvature(masked, target, anchor=anchor), expected)


def test_curvature_far_out_where_a_class_underflows():
    """exp(-2000) is 0 in float64: shares of a column are taken in log space."""
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, 1] -= 2000
    target = torch.arange(6) % 3
    hessian = torch.func.hessian(lambda b: gen_cross_entropy(logits + b, target))(torch.zeros(3).double())
    torch.testing.assert_close(bias_curvature(logits, target), hessian, atol=1e-12, rtol=0)


def test_profile_moves_the_class_it_is_told_to():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, offsets = torch.tensor([0, 1, 2, 0, 0, 1]), torch.tensor([-2.0, 3.0])
    for index in range(3):
        moved = [logits + b * torch.eye(3)[index] for b in offsets]
        expected = torch.stack([gen_cross_entropy(z, target) for z in moved])
        torch.testing.assert_close(bias_profile(logits, target, offsets, index=index), expected)


def test_toy_has_as_many_samples_as_asked():
    logits, target = toy_logits(3, 0.6, per_class=4)
    torch.testing.assert_close(target.bincount(), torch.full((3,), 4))
    torch.testing.assert_close(logits.softmax(1)[torch.arange(12), target], torch.full((12,), 0.6).double())


def test_offsets_of_any_shape():
    logits, target = toy_logits(3, 0.6)
    offsets = torch.tensor([[0.0, 1.0], [2.0, -3.0]])
    for profile in (lambda b: bias_profile(logits, target, b), lambda b: toy_profile(3, 0.6, b)):
        torch.testing.assert_close(profile(offsets).flatten(), profile(offsets.flatten()))
        torch.testing.assert_close(profile(offsets[1, 1]), profile(offsets)[1, 1])
        assert profile(torch.zeros(0)).shape == (0,)
        with pytest.raises(TypeError, match="offsets: expected a tensor of any shape, got list"):
            profile([0.0, 1.0])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="flatten dense inputs"):
        bias_curvature(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="sharpness"):
        toy_curvature(3, 1.0)
    with pytest.raises(ValueError, match="classes"):
        toy_plateau(1)
    bad = (torch.tensor([0, 1, 5]), torch.tensor([0, -1, 2]), torch.tensor([0.0, 1.0, 2.0]), torch.ones(3).bool())
    for target in bad:
        with pytest.raises(ValueError, match="target: expected class indices from 0 to 2"):
            bias_curvature(torch.zeros(3, 3), target)
    with pytest.raises(ValueError, match="at least one row"):
        bias_curvature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="index: expected a class from 0 to 2, got 3"):
        bias_profile(torch.zeros(3, 3), torch.arange(3), torch.zeros(1), index=3)
    with pytest.raises(ValueError, match="per_class"):
        toy_logits(3, 0.5, per_class=0)
    with pytest.raises(TypeError, match="logits: expected a tensor"):
        bias_curvature([[0.0, 1.0]], torch.zeros(1, dtype=torch.long))
    with pytest.raises(TypeError, match="target: expected a tensor"):
        bias_curvature(torch.zeros(1, 2), [0])
    for toy in (toy_curvature, toy_logits):
        with pytest.raises(TypeError, match=r"classes: expected a whole number.*got 2\.5"):
            toy(2.5, 0.5)
        with pytest.raises(TypeError, match=r"sharpness: expected a probability.*got str"):
            toy(3, "a")


def test_labels_of_every_integer_type():
    """200 classes are more than an int8 counts to, and bytes that index a tensor are a mask."""
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, offsets = torch.tensor([0, 1, 100, 127]), torch.tensor([-1.0, 2.0])
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16):
        torch.testing.assert_close(bias_curvature(logits, target.to(dtype)), bias_curvature(logits, target))
        torch.testing.assert_close(
            bias_profile(logits, target.to(dtype), offsets), bias_profile(logits, target, offsets)
        )
    few, labels = logits[:, :3], torch.tensor([0, 1, 2, 1])
    assert measure(0, few, labels.to(torch.uint8)) == measure(0, few, labels)
    with pytest.raises(ValueError, match="target: expected class indices from 0 to 2, got 0 to 200"):
        bias_curvature(few, torch.tensor([0, 1, 2, 200], dtype=torch.uint8))


def test_a_sharpness_that_is_a_tensor_costs_no_precision():
    assert toy_curvature(3, torch.tensor(0.7, dtype=torch.float32)) == toy_curvature(3, torch.tensor(0.7).item())


@pytest.mark.parametrize("anchor", [-1.0, math.nan, math.inf])
def test_anchors_are_checked(anchor):
    logits, target = toy_logits(4, 0.5)
    for refused in (
        lambda: bias_curvature(logits, target, anchor=anchor),
        lambda: bias_profile(logits, target, torch.zeros(1), anchor=anchor),
        lambda: toy_curvature(4, 0.5, anchor=anchor),
        lambda: toy_profile(4, 0.5, torch.zeros(1), anchor=anchor),
        lambda: toy_plateau(4, anchor=anchor),
        lambda: GenCE(anchor=anchor),
    ):
        with pytest.raises(ValueError, match=r"anchor: expected a .*number >= 0"):
            refused()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([1.0, 2.0, 3.0, 4.0], "sum to 1, got a sum of 10"),
        ([-0.5, 0.5, 0.5, 0.5], "no negative entries, got -0.5"),
        ([0.5, 0.5], r"expected shape \(4,\)"),
    ],
)
def test_priors_are_checked(prior, message):
    logits, target = toy_logits(4, 0.5)
    with pytest.raises(ValueError, match=f"prior: .*{message}"):
        bias_curvature(logits, target, anchor=0.1, prior=torch.tensor(prior))
    with pytest.raises(ValueError, match=f"prior: .*{message}"):
        bias_profile(logits, target, torch.zeros(1), anchor=0.1, prior=torch.tensor(prior))


def test_an_anchor_may_be_a_tensor_that_is_learnt():
    logits, target = toy_logits(4, 0.5)
    anchor = torch.tensor(0.25, requires_grad=True)
    torch.testing.assert_close(
        bias_curvature(logits, target, anchor=anchor), bias_curvature(logits, target, anchor=0.25)
    )
