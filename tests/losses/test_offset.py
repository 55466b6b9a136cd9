"""Repair of a drifted marginal: the offsets match the prior, and folding them changes the model by just them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from gence import fold_offset, marginal_offset


def marginal(logits: Tensor, offset: Tensor) -> Tensor:
    return (logits.double() + offset.double()).softmax(1).mean(0)


def skewed(K: int) -> Tensor:
    prior = 0.5 ** torch.arange(K, dtype=torch.float64)
    return prior / prior.sum()


@pytest.mark.parametrize("K", [2, 3, 10, 100])
@pytest.mark.parametrize("drift", [0.0, 5.0, 50.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_matches_the_prior(K: int, drift: float, scale: float) -> None:
    logits = scale * torch.randn(1000, K, dtype=torch.float64) + drift * torch.linspace(-1, 1, K, dtype=torch.float64)
    for prior in (None, torch.rand(K, dtype=torch.float64).softmax(0)):
        wanted = torch.full((K,), 1 / K, dtype=torch.float64) if prior is None else prior
        offset = marginal_offset(logits, prior)
        assert offset.dtype is torch.float64
        assert_close(marginal(logits, offset), wanted, rtol=0, atol=1e-6)
        assert_close(offset.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-8)


def test_recovers_an_offset_of_fifty() -> None:
    """A model whose marginal is right, shifted away: the offsets found are the shift taken back."""
    logits = 2 * torch.randn(2000, 6, dtype=torch.float64)
    prior = logits.softmax(1).mean(0)
    drift = torch.tensor([50.0, -50.0, 10.0, 0.0, -10.0, 0.0], dtype=torch.float64)
    assert float((logits + drift).softmax(1).mean(0).max()) > 0.999  # everything in one class
    assert_close(marginal_offset(logits + drift, prior), -drift, rtol=0, atol=1e-5)


def test_a_class_without_prior_mass_is_ruled_out() -> None:
    logits = torch.randn(300, 4, dtype=torch.float64)
    prior = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    offset = marginal_offset(logits, prior)
    assert_close(offset[1], torch.tensor(-torch.inf, dtype=torch.float64))
    assert_close(marginal(logits, offset), prior, rtol=0, atol=1e-6)
    assert_close(offset[offset.isfinite()].sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-8)
    only = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert_close(marginal(logits, marginal_offset(logits, only)), only)


def test_sharp_predictions_of_many_rows() -> None:
    logits = 30 * torch.randn(5000, 5, dtype=torch.float64)
    assert_close(marginal(logits, marginal_offset(logits, skewed(5))), skewed(5), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("scale", "drift"), [(5.0, 5.0), (20.0, 50.0), (30.0, 0.0)])
def test_few_steps_are_enough(scale: float, drift: float) -> None:
    """Newton's steps; the matching step alone needs hundreds here."""
    logits = scale * torch.randn(2000, 5, dtype=torch.float64) + drift * torch.linspace(-1, 1, 5, dtype=torch.float64)
    offset = marginal_offset(logits, skewed(5), max_steps=25)
    assert_close(marginal(logits, offset), skewed(5), rtol=0, atol=1e-6)


def test_predictions_too_sharp_to_match_are_refused() -> None:
    logits = 1e18 * torch.eye(3, dtype=torch.float64)
    prior = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"marginal_offset: .* 1/n = 0\.33"):
        marginal_offset(logits, prior, max_steps=20)


def test_too_few_steps_are_said_and_the_last_one_counts() -> None:
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = logits + torch.tensor([9.0, 0.0, -9.0])
    with pytest.raises(RuntimeError, match=r"after 1 steps .*otherwise raise max_steps, which is 1"):
        marginal_offset(logits, max_steps=1)
    near = torch.tensor([[0.001, 0.0], [0.0, 0.0]], dtype=torch.float64)  # one step from the prior
    assert_close(marginal(near, marginal_offset(near, max_steps=1)), torch.full((2,), 0.5).double(), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="max_steps: expected a number of steps >= 1, got 0"):
        marginal_offset(logits, max_steps=0)
    with pytest.raises(TypeError, match=r"tolerance: expected a difference of marginals.*got str"):
        marginal_offset(logits, tolerance="small")


@pytest.mark.parametrize("drift", [0.0, 3.0])
def test_many_classes_are_solved_without_a_matrix_of_their_square(drift: float, monkeypatch) -> None:
    logits = torch.randn(300, 400, dtype=torch.float64) + drift * torch.randn(400, dtype=torch.float64)
    dense = marginal_offset(logits)
    monkeypatch.setattr("gence.losses.drift.offset._DENSE", 10)
    monkeypatch.setattr("gence.losses.drift.offset._BLOCK_ON_CPU", 7_000)  # blocks of some rows
    torch.testing.assert_close(marginal_offset(logits), dense, atol=1e-5, rtol=0)
    assert float(((logits + marginal_offset(logits)).softmax(1).mean(0) - 1 / 400).abs().max()) <= 1e-9


def test_thousands_of_classes_take_the_memory_of_their_logits() -> None:
    code = """
import resource, torch
from gence import marginal_offset
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
marginal_offset(torch.randn(9, 2100))
before = peak()
marginal_offset(torch.randn(300, 5000) + 2 * torch.randn(5000))
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100, "a matrix of 5000 x 5000 numbers takes 190 MiB"


def test_one_class_needs_no_offset() -> None:
    assert_close(marginal_offset(torch.randn(10, 1)), torch.zeros(1))


def test_many_rows_in_the_usual_layouts_and_types() -> None:
    logits = torch.randn(100_000, 10) + torch.linspace(-3, 3, 10)
    offset = marginal_offset(logits)
    assert offset.dtype is torch.float32
    assert_close(marginal(logits, offset), torch.full((10,), 0.1, dtype=torch.float64), rtol=0, atol=1e-6)
    dense = logits[:600].reshape(10, 60, 10).movedim(2, 1)  # (N, K, d)
    assert_close(marginal_offset(dense), marginal_offset(logits[:600]))
    assert marginal_offset(logits[:100].bfloat16()).dtype is torch.float32
    needs_grad = logits[:100].requires_grad_()
    assert not marginal_offset(needs_grad).requires_grad


def test_rows_few_and_prior_rounded() -> None:
    logits = torch.randn(2, 3, dtype=torch.float64)
    prior = torch.tensor([0.2, 0.3, 0.5]).bfloat16()  # sums to 1 only nearly
    wanted = prior.double() / prior.double().sum()
    assert_close(marginal(logits, marginal_offset(logits, prior)), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("logits", "prior", "message"),
    [
        (torch.tensor([[0.0, torch.nan]]), None, "logits: expected finite"),
        (torch.tensor([[0.0, -torch.inf]]), None, "logits: expected finite"),
        (torch.zeros(3, 2), torch.tensor([0.5, 0.6]), "prior: expected entries that sum to 1"),
        (torch.zeros(3, 2), torch.tensor([1.0]), r"prior: expected shape \(2,\)"),
        (torch.zeros(0, 2), None, "at least one row"),
    ],
)
def test_bad_input(logits: Tensor, prior: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        marginal_offset(logits, prior)


@pytest.mark.parametrize("bias", [True, False])
def test_folding_adds_the_offset_to_the_last_layer(bias: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3, bias=bias)).double()
    x, offset = torch.randn(9, 5, dtype=torch.float64), torch.tensor([1.0, -2.0, 1.0])
    before = model(x).detach()
    layer = fold_offset(model, offset)
    assert layer is model[2]
    assert_close(model(x).detach(), before + offset.double())
    assert isinstance(layer.bias, nn.Parameter)
    assert layer.bias.dtype is torch.float64


def test_folding_repairs_a_drifted_model() -> None:
    model = nn.Linear(5, 4)
    with torch.no_grad():
        model.bias.add_(torch.tensor([20.0, 0.0, 0.0, -5.0]))
    x = torch.randn(500, 5)
    fold_offset(model, marginal_offset(model(x)))
    assert_close(model(x).softmax(1).mean(0).detach(), torch.full((4,), 0.25), rtol=0, atol=1e-5)


def test_folding_refuses() -> None:
    with pytest.raises(ValueError, match=r"module: .* Sequential without one"):
        fold_offset(nn.Sequential(nn.ReLU()), torch.zeros(3))
    with pytest.raises(ValueError, match=r"offset: expected shape \(3,\).* got \(4,\)"):
        fold_offset(nn.Linear(5, 3), torch.zeros(4))


class HeadFirst(torch.nn.Module):
    """The head is registered before the body, as in some libraries."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(features, 5)
        self.body = torch.nn.Linear(7, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


def test_fold_finds_the_layer_with_k_outputs_wherever_it_is_registered():
    model = HeadFirst(6)
    x, offset = torch.randn(9, 7), torch.randn(5)
    before = model(x)
    assert fold_offset(model, offset) is model.head
    assert_close(model(x), before + offset)


def test_fold_refuses_to_guess_between_layers():
    model = HeadFirst(5)
    with pytest.raises(ValueError, match=r"2 linear layers of HeadFirst have 5 outputs \(head, body\)"):
        fold_offset(model, torch.zeros(5))
    assert fold_offset(model.head, torch.zeros(5)) is model.head


def test_fold_takes_the_last_layer_of_a_sequence():
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Dropout()))
    assert fold_offset(model, torch.ones(5)) is model[1][0]


def test_fold_refuses_what_changes_the_logits_behind_the_layer():
    for behind in (nn.BatchNorm1d(3), nn.ReLU()):
        model = nn.Sequential(nn.Linear(8, 3), behind)
        with pytest.raises(ValueError, match=f"{type(behind).__name__} comes behind the last linear layer"):
            fold_offset(model, torch.zeros(3))
    fold_offset(nn.Sequential(nn.Linear(8, 3), nn.Identity(), nn.Softmax(1)), torch.zeros(3))
    with pytest.raises(TypeError, match="offset: expected a tensor"):
        fold_offset(nn.Linear(8, 3), [1.0, 2.0, 3.0])
