"""SupCon on features: its losses are the registry's, and the hidden layer it trains tells classes apart."""

from __future__ import annotations

import pytest
import torch

from gence.lab.features import HEAD_RECIPE, PROJECTION, HeadProblem, HeadRun, train_projections, tune_heads
from gence.lab.features.heads.projections import contrast
from gence.lab.spec import LossSpec
from gence.losses import supcon_loss

SUPCON = LossSpec(name="supcon")


def rings(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rings around one centre: no linear head tells them apart."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    angle = 2 * torch.pi * torch.rand(n, generator=draw)
    radius = 1 + labels + 0.1 * torch.randn(n, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def test_losses_are_those_of_the_registry() -> None:
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(2, 7, 3, 5, generator=draw)
    labels = torch.tensor([[0, 0, 1, 1, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])  # the second has no positives at all
    temperature = torch.tensor([[0.1, 0.5, 1.0]] * 2)
    found = contrast(z, labels, temperature)
    for m in range(3):
        expected = supcon_loss(z[0, :, m], labels[0], temperature=float(temperature[0, m]))
        torch.testing.assert_close(found[0, m], expected)
    assert found[1].tolist() == [0.0, 0.0, 0.0]


def test_a_projection_tells_apart_what_no_linear_head_can() -> None:
    (x, y), (test_x, test_y) = rings(300, 0), rings(300, 1)
    problem = HeadProblem(x, y, 3)
    recipe = HEAD_RECIPE.replace(lr=0.5, epochs=60)
    runs = [HeadRun(loss=SUPCON, seed=seed, head=PROJECTION, recipe=recipe) for seed in (0, 1)]
    together = train_projections([problem], runs)
    for one in together:
        assert not one.diverged
        assert float((one.head.logits(test_x).argmax(1) == test_y).float().mean()) > 0.9
    (alone,) = train_projections([problem], runs[1:])
    torch.testing.assert_close(alone.head.logits(test_x), together[1].head.logits(test_x), rtol=1e-3, atol=1e-3)


def test_fewer_rows_than_features_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rings(24, 0)
    x = torch.cat([x, torch.randn(24, 60, generator=torch.Generator().manual_seed(3))], 1)
    run = HeadRun(loss=SUPCON, head=PROJECTION, recipe=HEAD_RECIPE.replace(lr=0.5, epochs=20, weight_decay=0.01))
    (found,) = train_projections([HeadProblem(x, y, 3)], [run])
    monkeypatch.setattr("gence.lab.features.heads.projections.rotates", lambda *_: False)
    monkeypatch.setattr("gence.lab.features.heads.training.rotates", lambda *_: False)
    (full,) = train_projections([HeadProblem(x, y, 3)], [run])
    for name, tensor in full.head.tensors.items():
        torch.testing.assert_close(found.head.tensors[name], tensor, rtol=1e-4, atol=1e-4)


def test_it_is_tuned_as_losses_are() -> None:
    x, y = rings(60, 0)
    (found,) = tune_heads(
        HeadProblem(x, y, 3), [SUPCON], recipe=HEAD_RECIPE.replace(epochs=10), head=PROJECTION, trials=3, folds=2
    )
    assert len(found.trials) == 3
    assert len({trial.nll for trial in found.trials}) == 3


def test_a_head_that_diverged_is_told() -> None:
    x, y = rings(30, 0)
    run = HeadRun(loss=SUPCON, head=PROJECTION, recipe=HEAD_RECIPE.replace(lr=1e30, epochs=5))
    (found,) = train_projections([HeadProblem(x, y, 3)], [run])
    assert found.diverged
    assert bool(found.head.logits(x).isnan().all())


def test_another_loss_is_refused() -> None:
    x, y = rings(30, 0)
    with pytest.raises(ValueError, match="trained by supcon"):
        train_projections([HeadProblem(x, y, 3)], [HeadRun(loss=LossSpec(name="ce"), head=PROJECTION)])
