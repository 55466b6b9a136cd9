"""Micro-batches are shares of one batch; the running marginal completes a batch by the earlier ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import gence
from tests.losses.distributed import problems
from tests.losses.distributed.problems import CASES, Batch

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
SIZES = [5, 2, 4, 0, 6, 2, 4]
UNLABELLED = [0, 3, 1, 2, 0, 2, 1]


def parts_of(batch: Batch) -> list[Batch]:
    rows = torch.tensor([0, *SIZES]).cumsum(0).tolist()
    more = torch.tensor([0, *UNLABELLED]).cumsum(0).tolist()
    return [batch.part(slice(rows[i], rows[i + 1]), slice(more[i], more[i + 1])) for i in range(len(SIZES))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_seven_uneven_micro_batches_equal_one_batch(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    model, criterion = problems.network(dtype), problems.criterion(case, dtype)
    batch = next(problems.batches(case, dtype))
    expected = problems.loss_of(model, criterion, batch)
    gradients = torch.autograd.grad(expected, list(model.parameters()))

    marginal = criterion.batch_marginal()
    for part in parts_of(batch):
        logits = model(part.inputs)
        marginal.update(logits, part.target, None if part.unlabelled is None else model(part.unlabelled))
    shares = [problems.loss_of(model, criterion, part, marginal) for part in parts_of(batch)]
    summed = torch.autograd.grad(sum(shares), list(model.parameters()))  # type: ignore[arg-type]
    scale = max(1.0, max(float(g.abs().max()) for g in gradients))
    assert_close(sum(shares), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert_close(summed, gradients, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def test_micro_batches_without_the_marginal_differ() -> None:
    model, criterion = problems.network(torch.float64), gence.GenCELoss()
    batch = next(problems.batches(CASES["plain"], torch.float64))
    logits = model(batch.inputs)
    naive = sum(
        criterion(z, y) * len(y) / len(logits) for z, y in zip(logits.split(6), batch.target.split(6), strict=True)
    )
    right = torch.autograd.grad(criterion(logits, batch.target), logits, retain_graph=True)[0]
    wrong = torch.autograd.grad(naive, logits)[0]  # type: ignore[arg-type]
    assert (wrong - right).norm() > 0.1 * right.norm()


@pytest.mark.parametrize("case", ["plain", "weight", "all"])
def test_rows_are_those_of_the_whole_batch(case: str) -> None:
    criterion = problems.criterion(CASES[case], torch.float64, reduction="none")
    batch = next(problems.batches(CASES[case], torch.float64))
    logits = problems.network(torch.float64)(batch.inputs).detach().requires_grad_()
    context = None if batch.unlabelled is None else torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    marginal = criterion.batch_marginal()
    marginal.update(logits, batch.target, context)
    rows = criterion(logits, batch.target, context=context, marginal=marginal)
    expected = criterion(logits, batch.target, context=context)
    leaves = [logits] if context is None else [logits, context]
    assert_close(rows, expected, rtol=1e-12, atol=1e-12)
    assert_close(
        torch.autograd.grad(rows.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), rtol=1e-12, atol=1e-12
    )


def test_dense_input() -> None:
    logits = torch.randn(4, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randint(3, (4, 2, 5))
    criterion = gence.GenCELoss()
    marginal = criterion.batch_marginal()
    for z, y in zip(logits.split([1, 3, 0]), target.split([1, 3, 0]), strict=True):
        marginal.update(z, y)
    loss = sum(
        criterion(z, y, marginal=marginal) for z, y in zip(logits.split([3, 1]), target.split([3, 1]), strict=True)
    )
    expected = criterion(logits, target)
    assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]


def test_finite_where_a_class_is_improbable_or_ruled_out() -> None:
    logits, target = problems.improbable()
    logits = logits.float()
    logits[:, 4] = -torch.inf
    target[target == 4] = -100
    logits.requires_grad_()
    criterion = gence.GenCELoss()
    marginal = criterion.batch_marginal()
    marginal.update(logits, target)
    loss = criterion(logits, target, marginal=marginal)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    exact = logits.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(criterion(exact, target), exact)
    # log S of -3000 has 12 digits behind the point in float64 and 4 in float32.
    assert_close(gradient.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(64, 5).to(dtype)
    target = torch.randint(5, (64,))
    criterion = gence.GenCELoss()
    marginal = criterion.batch_marginal()
    for z, y in zip(logits.split(7), target.split(7), strict=True):
        marginal.update(z, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = sum(criterion(z, y, marginal=marginal) for z, y in zip(logits.split(7), target.split(7), strict=True))
    assert_close(loss, criterion(logits.float(), target), rtol=1e-5, atol=1e-5)


def filled(criterion: gence.GenCELoss, logits: Tensor, target: Tensor) -> gence.BatchMarginal:
    marginal = criterion.batch_marginal()
    marginal.update(logits, target)
    return marginal


def test_other_terms_are_refused() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    marginal = filled(gence.GenCELoss(), logits, target)
    with pytest.raises(ValueError, match=r"label_smoothing = 0\.0, the loss has 0\.1"):
        gence.GenCELoss(label_smoothing=0.1)(logits, target, marginal=marginal)
    with pytest.raises(ValueError, match="ignore_index = -100, the loss has 1"):
        gence.GenCELoss(ignore_index=1)(logits, target, marginal=marginal)
    with pytest.raises(ValueError, match="other class weights"):
        gence.GenCELoss(torch.ones(3))(logits, target, marginal=marginal)
    with pytest.raises(ValueError, match="filled with 3 classes, the input has 4"):
        gence.GenCELoss()(torch.randn(4, 4), target, marginal=marginal)
    with pytest.raises(ValueError, match="expected 3 classes as before, got 4"):
        marginal.update(torch.randn(4, 4), target)
    with pytest.raises(RuntimeError, match="it is empty"):
        gence.GenCELoss()(logits, target, marginal=gence.BatchMarginal())


def test_process_group_needs_a_job() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialised"):
        gence.gen_cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), process_group="world")


def test_registry_leaves_out_what_belongs_to_a_call() -> None:
    assert not {"marginal", "process_group", "context"} & set(gence.loss_info("gence").params)


def test_running_marginal_without_memory_is_the_plain_loss() -> None:
    running = gence.RunningMarginal(5, momentum=0.0)
    criterion = gence.GenCELoss(anchor=0.2)
    for batch in problems.batches(CASES["plain"], torch.float64):
        logits = torch.randn(problems.ROWS, 5, dtype=torch.float64, requires_grad=True)
        seen, expected = criterion(logits, batch.target, marginal=running), criterion(logits, batch.target)
        assert_close(seen, expected, rtol=1e-12, atol=1e-12)
        assert_close(torch.autograd.grad(seen, logits), torch.autograd.grad(expected, logits), rtol=1e-12, atol=1e-12)


def test_running_marginal_by_hand() -> None:
    """Two steps: the second batch competes with itself and 0.7 of the first; its rows alone get the gradient."""
    running = gence.RunningMarginal(3, momentum=0.7).double()
    first, second = torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    y1, y2 = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0])
    criterion = gence.GenCELoss()
    criterion(first, y1, marginal=running)
    loss = criterion(second, y2, marginal=running)
    p1, p2 = first.softmax(1), second.softmax(1)
    sums = 0.7 * p1.sum(0) + p2.sum(0)
    assert_close(loss, (-p2[[0, 1], y2].log() + sums.log()[y2]).mean())
    mass = 0.7 * y1.bincount(minlength=3) + y2.bincount(minlength=3)
    surrogate = (-p2[[0, 1], y2].log() + (p2 * (mass / sums).detach()).sum(1)).mean()
    assert_close(torch.autograd.grad(loss, second), torch.autograd.grad(surrogate, second))
    assert_close(running.log_sums.exp(), sums.detach())


def test_running_marginal_stands_still_in_evaluation() -> None:
    running, criterion = gence.RunningMarginal(3), gence.GenCELoss()
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    criterion(logits, target, marginal=running)
    before = copy.deepcopy(running.state_dict())
    with torch.no_grad():
        criterion(logits, target, marginal=running)
    running.eval()
    criterion(logits, target, marginal=running)
    assert_close(running.state_dict(), before, rtol=0, atol=0)


def test_running_marginal_survives_a_spoilt_batch_and_a_checkpoint() -> None:
    running, criterion = gence.RunningMarginal(3), gence.GenCELoss()
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    criterion(logits, target, marginal=running)
    criterion(logits * torch.nan, target, marginal=running)
    restored = gence.RunningMarginal(3)
    restored.load_state_dict(running.state_dict())
    for one in (running, restored):
        assert criterion(logits, target, marginal=one).isfinite()
    assert_close(restored.state_dict(), running.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"), [((0,), "num_classes"), ((3, 1.0), "momentum"), ((3, -0.1), "momentum")]
)
def test_running_marginal_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gence.RunningMarginal(*arguments)
    with pytest.raises(ValueError, match="made for 2 classes, the input has 3"):
        gence.GenCELoss()(torch.zeros(2, 3), torch.tensor([0, 1]), marginal=gence.RunningMarginal(2))


def test_gradients_of_a_learnt_anchor_and_prior_are_those_of_the_whole_batch() -> None:
    logits, target = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    anchor = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64, requires_grad=True)
    marginal = gence.BatchMarginal()
    marginal.update(logits, target)
    for leaves in ((anchor, None), (anchor, prior)):
        wanted = [leaf for leaf in leaves if leaf is not None]
        terms = {"anchor": leaves[0], "prior": leaves[1]}
        whole = torch.autograd.grad(gence.gen_cross_entropy(logits, target, **terms), wanted)
        parts = [
            torch.autograd.grad(gence.gen_cross_entropy(logits[i], target[i], marginal=marginal, **terms), wanted)
            for i in (slice(0, 2), slice(2, 6))
        ]
        for expected, *found in zip(whole, *parts, strict=True):
            assert_close(sum(found), expected)


def test_what_a_part_cannot_know_is_refused() -> None:
    logits, target = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 1])
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="weight: requires a gradient, which marginal"):
        gence.gen_cross_entropy(logits, target, weight, marginal=gence.RunningMarginal(3))
    share = torch.full((4,), 0.5, requires_grad=True)
    with pytest.raises(ValueError, match=r"target\.share: requires a gradient"):
        gence.gen_cross_entropy(logits, gence.TwoHot(target, target, share), marginal=gence.RunningMarginal(3))
    loss = gence.gen_cross_entropy(logits, target, marginal=gence.RunningMarginal(3))
    with pytest.raises(RuntimeError, match="has a first derivative only"):
        torch.autograd.grad(loss, logits, create_graph=True)

    def share(z: Tensor) -> Tensor:
        return gence.gen_cross_entropy(z, target, marginal=gence.RunningMarginal(3))

    (expected,) = torch.autograd.grad(share(logits), logits)
    assert_close(torch.func.grad(share)(logits.detach()), expected)
    with pytest.raises(RuntimeError, match="has a first derivative only"):
        torch.func.hessian(share)(logits.detach())


def test_shares_of_many_rows_are_added_up_exactly() -> None:
    from gence.losses.targets import class_mass, prepare_rows

    n = 3_000_017
    target = (torch.rand(n) < 0.1).long()
    rows = prepare_rows(torch.zeros(n, 2), gence.TwoHot(target, target, torch.full((n,), 0.3)), None, -100, "mean", 0.0)
    assert_close(class_mass(rows), target.bincount().float())
