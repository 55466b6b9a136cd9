"""The curvature along class biases on networks while they train, beside the toy's closed form."""

import functools
import itertools

import pytest
import torch

from gence.theory import toy_curvature
from gence.theory.drift import centred_digits, curvature_while_training, measure

SEEDS = pytest.mark.parametrize("seed", range(3))
trained = functools.cache(lambda seed: curvature_while_training(seed=seed))


@SEEDS
def test_ratio_grows_with_sharpness_as_on_the_toy(seed):
    found = trained(seed)
    assert found[0].ratio < 0.01
    assert found[-1].ratio > 0.8
    for point in found:
        closed_form = toy_curvature(10, point.confidence) / toy_curvature(10, point.confidence, anchor=1.0)
        assert abs(point.balanced_ratio - closed_form) < 0.1, point
        if point.divergence < 1e-3:
            assert abs(point.ratio - closed_form) < 0.1, point
    for earlier, later in itertools.pairwise(found):
        assert later.confidence > earlier.confidence
        assert later.balanced_ratio > earlier.balanced_ratio - 0.01


@SEEDS
def test_gence_is_concave_along_some_bias_in_between_where_the_marginal_is_off(seed):
    found = trained(seed)
    concave = [point for point in found if point.smallest < -1e-3]
    assert concave
    for point in concave:
        assert 0.3 < point.confidence < 0.9
        assert point.divergence > 0.02
    assert min(point.balanced_smallest for point in found) > -1e-12


@SEEDS
def test_the_pull_is_inward_all_the_way(seed):
    """Concave does not mean that GenCE pushes the marginal outward."""
    assert min(point.pull for point in trained(seed)) > 0


def test_the_pull_weakens_where_the_marginal_is_far_off():
    outward = [point.curvature_outward for point in trained(0)]
    assert min(outward) < -1e-3
    assert outward[-1] > 1e-3


def test_measurements_repeat_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    first, second = (curvature_while_training(steps=30, every=10) for _ in range(2))
    assert first == second
    assert [point.step for point in first] == [0, 10, 20, 30]
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_digits_are_centred_by_those_to_train_on():
    x, y, rest, labels = centred_digits(per_class=20)
    assert (x.shape, rest.shape) == ((200, 64), (1597, 64))
    torch.testing.assert_close(y.bincount(), torch.full((10,), 20))
    assert len(labels) == 1597
    torch.testing.assert_close(x.mean(0), torch.zeros(64), atol=1e-6, rtol=0)
    assert rest.mean(0).abs().max() > 1e-3


def test_measure_on_predictions_whose_pull_is_known():
    """Two classes, mirror-image samples, a common bias of 1 on class 0: slope and displacement by hand."""
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).double()
    point = measure(0, logits + torch.tensor([1.0, 0.0]), torch.tensor([0, 1]))
    step = 1e-5
    offsets = torch.tensor([0.5, -0.5]).double() / 0.5**0.5 * step
    loss = [_loss(logits + torch.tensor([1.0, 0.0]) + sign * offsets) for sign in (1, -1)]
    assert point.pull == pytest.approx((loss[0] - loss[1]).item() / (2 * step), abs=1e-9)
    marginal = (logits + torch.tensor([1.0, 0.0])).softmax(1).mean(0)
    assert point.divergence == pytest.approx(-(2 * marginal).log().mean().item(), abs=1e-12)
    balanced = measure(0, logits + torch.tensor([1e-3, 0.0]), torch.tensor([0, 1]))
    assert balanced.balanced_ratio == pytest.approx(point.balanced_ratio, abs=1e-9)


def _loss(logits):
    """GenCE of two samples of classes 0 and 1, written out."""
    p = logits.softmax(1)
    return -((p[0, 0] / p[:, 0].sum()).log() + (p[1, 1] / p[:, 1].sum()).log()) / 2


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="per_class: expected at least 1, got 0"):
        centred_digits(per_class=0)
    with pytest.raises(TypeError, match="seed: expected a whole number, got None"):
        curvature_while_training(seed=None)
    with pytest.raises(ValueError, match="every: expected at least 1, got 0"):
        curvature_while_training(every=0)
    with pytest.raises(ValueError, match="steps: expected at least 0, got -1"):
        curvature_while_training(steps=-1)
    with pytest.raises(ValueError, match="target: expected labels of all 3 classes, got none of class 2"):
        measure(0, torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="target: expected class indices from 0 to 2"):
        measure(0, torch.zeros(2, 3), torch.tensor([0, 3]))
