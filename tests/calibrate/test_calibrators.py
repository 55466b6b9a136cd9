"""Calibrators: against scikit-learn and a grid, finite on what breaks others, and back from a file as they were."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from torch.testing import assert_close

from gence.calibrate import METHODS, Calibrator, fit_calibrator, fit_isotonic, fit_offset, fit_temperature, fit_vector
from gence.metrics import best_temperature, negative_log_likelihood


def drawn(n, K, sharpness, seed=0):
    """Logits, and labels drawn from what they say before they are multiplied by `sharpness`."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, K, generator=g, dtype=torch.float64)
    return sharpness * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)


class Says(ClassifierMixin, BaseEstimator):
    """A classifier whose decision function is its input."""

    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, x):
        return x if x.shape[1] > 1 else x[:, 0]

    def predict(self, x):
        return x.argmax(1)


@pytest.mark.parametrize(("n", "K", "sharpness"), [(300, 10, 3.0), (60, 3, 0.2), (900, 20, 1.0), (40, 2, 8.0)])
def test_temperature_is_that_of_scikit_learn(n, K, sharpness):
    z, y = drawn(n, K, sharpness)
    y[: 5 * K] = torch.arange(K).repeat(5)  # its folds want five of each
    # scikit-learn takes two classes as one column.
    if K == 2:
        x, z = (z[:, 1] - z[:, 0]).numpy(), torch.stack([z[:, 0] - z[:, 1], z[:, 1] - z[:, 0]], 1)
        reference = CalibratedClassifierCV(FrozenEstimator(Says().fit(x[:, None], y)), method="temperature")
        beta = reference.fit(x[:, None], y.numpy()).calibrated_classifiers_[0].calibrators[0].beta_
    else:
        reference = CalibratedClassifierCV(FrozenEstimator(Says().fit(z.numpy(), y)), method="temperature")
        reference.fit(z.numpy(), y.numpy())
        beta = reference.calibrated_classifiers_[0].calibrators[0].beta_
        assert_close(fit_temperature(z, y)(z), torch.from_numpy(reference.predict_proba(z.numpy())), atol=1e-6, rtol=0)
    assert best_temperature(z, y) == pytest.approx(1 / beta, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(2, 6), st.floats(0.05, 20))
def test_no_temperature_of_a_grid_is_better(seed, n, K, sharpness):
    z, y = drawn(n, K, sharpness, seed)
    if bool((z.argmax(1) == y).all()):
        return
    best = float(negative_log_likelihood(z / best_temperature(z, y), y))
    grid = [float(negative_log_likelihood(z / t, y)) for t in np.geomspace(1e-2, 1e3, 60)]
    assert best <= min(grid) + 1e-9


def hard_case(seed):
    """Rows that are all right, a handful of them, classes without a row, huge, tiny or constant logits."""
    g = torch.Generator().manual_seed(seed)
    n, K = int(torch.randint(1, 13, (), generator=g)), int(torch.randint(2, 8, (), generator=g))
    y = torch.randint(K - (seed % 2), (n,), generator=g)  # every other time the last class is missing
    if seed % 5 == 0:
        y[:] = y[0]
    z = torch.randn(n, K, generator=g)
    if seed % 3 == 0:
        z[torch.arange(n), y] = z.amax(1) + 1  # separable
    elif seed % 7 == 0:
        z[torch.arange(n), y] = z.amin(1) - 1  # all wrong
    return (0 if seed % 11 == 0 else 10.0 ** (seed % 9 - 4)) * z, y


def test_a_thousand_hard_folds_give_a_positive_finite_temperature():
    for seed in range(1000):
        z, y = hard_case(seed)
        found = best_temperature(z, y)
        assert 0 < found < float("inf"), seed


@pytest.mark.parametrize("method", METHODS)
def test_hard_folds_give_probabilities(method):
    for seed in range(40):
        z, y = hard_case(seed)
        try:
            fitted = fit_calibrator(method, z, y)
        except RuntimeError:  # said by the marginal offset, of predictions that are too sharp for one
            assert method == "offset"
            continue
        p = fitted(z)
        assert bool(p.isfinite().all()), seed
        assert_close(p.sum(1), torch.ones(len(p)))
        assert float(negative_log_likelihood(fitted.logits(z), y)) < float("inf")


@pytest.mark.parametrize("method", METHODS)
def test_a_calibrator_of_overconfident_logits_helps_on_other_rows(method):
    z, y = drawn(2000, 5, 3.0)
    held, held_y = drawn(2000, 5, 3.0, seed=1)
    fitted = fit_calibrator(method, held, held_y)
    before, after = negative_log_likelihood(z, y), negative_log_likelihood(fitted.logits(z), y)
    if method == "offset":  # it corrects the marginal, which is nearly right here
        assert float(after - before) == pytest.approx(0, abs=0.02)
    else:
        assert float(after) < float(before) - 0.1


def test_vector_scaling_mends_what_a_temperature_cannot():
    z, y = drawn(3000, 4, 1.0)
    shifted = 2 * z + torch.tensor([0.0, 1.0, 2.0, 3.0])
    temperature, vector = fit_temperature(shifted, y), fit_vector(shifted, y)
    right = float(negative_log_likelihood(z, y))
    assert float(negative_log_likelihood(vector.logits(shifted), y)) == pytest.approx(right, abs=0.02)
    assert float(negative_log_likelihood(temperature.logits(shifted), y)) > right + 0.05


def test_isotonic_is_scikit_learn_class_by_class():
    z, y = drawn(400, 3, 2.0)
    new, _ = drawn(100, 3, 2.0, seed=1)
    columns = []
    for k in range(3):
        one = IsotonicRegression(out_of_bounds="clip").fit(z.softmax(1)[:, k].numpy(), (y == k).double().numpy())
        columns.append(torch.from_numpy(one.predict(new.softmax(1)[:, k].numpy())))
    expected = torch.stack(columns, 1)
    expected = (expected / expected.sum(1, keepdim=True)) * (400 / 401) + 1 / 401 / 3
    assert_close(fit_isotonic(z, y)(new), expected)


def test_offset_gives_the_mean_prediction_of_the_labels():
    z, y = drawn(500, 4, 1.0)
    fitted = fit_offset(z + torch.tensor([0.0, 1.0, 2.0, 0.0]), y)
    mean = fitted(z + torch.tensor([0.0, 1.0, 2.0, 0.0])).mean(0)
    assert_close(mean, (torch.bincount(y).double() + 0.25) / 501)


@pytest.mark.parametrize("method", METHODS)
def test_a_calibrator_comes_back_from_a_file_as_it_was(method, tmp_path):
    from safetensors.torch import load_file, save_file

    z, y = drawn(100, 3, 2.0)
    fitted = fit_calibrator(method, z, y)
    tensors, note = fitted.to_tensors()
    save_file({"head/weight": torch.zeros(2), **tensors}, tmp_path / "one.safetensors")
    again = Calibrator.from_tensors(load_file(tmp_path / "one.safetensors"), note)
    assert torch.equal(again(z), fitted(z))
    assert again.summary() == fitted.summary()


def test_errors_name_what_came():
    with pytest.raises(ValueError, match="method: 'platt' was given, expected one of temperature"):
        fit_calibrator("platt", *drawn(10, 2, 1.0))
    with pytest.raises(ValueError, match=r"shape \(1, 4\) was given, \(n, 3\) expected"):
        fit_temperature(*drawn(10, 3, 1.0))(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="temperature missing"):
        Calibrator("temperature", 3, {})
