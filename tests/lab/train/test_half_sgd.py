"""SGD with bfloat16 copies: its cases in Triton's interpreter, its kernel compiled, and what only a GPU can do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gence.lab.train import run as trainee_module
from gence.lab.train.backbone import run_backbone_in_half
from gence.lab.train.batches import EpochFeed
from gence.lab.train.cohort import train_cohort
from gence.lab.train.half_sgd import HalfSGD, can_keep_halves
from gence.lab.train.lanes import GraphLane
from gence.lab.train.run import Trainee
from tests.interpreter import run_interpreted
from tests.lab.small_runs import problem_of, same_outcome, small_spec
from tests.lab.train.test_half_sgd_cases import assert_halves_follow, assert_same, trainee_of

LOSSES = ("gence(anchor=0.1)", "supcon")


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", minversion="3.6")
    run_interpreted(Path(__file__).with_name("test_half_sgd_cases.py"))


@pytest.mark.parametrize("momentum", [True, False])
def test_the_kernel_compiles_for_a_gpu(momentum: bool) -> None:
    """With vectors of 16 bytes in whole blocks, and without spilling registers."""
    triton = pytest.importorskip("triton", minversion="3.6")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gence._triton import options
    from gence.lab.train.half_sgd import _BLOCK, _MOST_TENSORS, _WARPS
    from gence.lab.train.half_sgd_kernel import sgd

    single, half = ("*fp32",) * _MOST_TENSORS, ("*bf16",) * _MOST_TENSORS
    types: list[Any] = ["*i32", "*fp32", single, single, half, half, "fp32", "fp32", *["constexpr"] * 3]
    pointers = [(0,), (1,), *((i, j) for i, kind in enumerate(types) if isinstance(kind, tuple)
                              for j in range(len(kind)))]  # fmt: skip
    source = ASTSource(
        fn=sgd,
        signature={parameter.name: kind for parameter, kind in zip(sgd.params, types, strict=True)},
        constexprs={(8,): momentum, (9,): momentum, (10,): _BLOCK},
        attrs={at: [["tt.divisibility", 16]] for at in pointers},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options(_WARPS, None)).asm["ptx"]
    assert "sm_90" in ptx
    assert ".local" not in ptx
    values = _BLOCK // (32 * _WARPS)  # of a thread; there are 4 or 8 in 16 bytes
    assert len(re.findall(r"ld\.global\.v4", ptx)) == values // 4 * (1 + momentum) + values // 8
    assert len(re.findall(r"st\.global\.v4", ptx)) == values // 4 * (1 + momentum) + values // 8


def test_a_cpu_has_no_copies() -> None:
    cpu = torch.device("cpu")
    assert not can_keep_halves(cpu)
    assert not can_keep_halves(torch.device("meta"))
    spec = small_spec(**{"recipe.precision": "bf16"})
    problem = problem_of(spec)
    feed = EpochFeed(problem, spec.recipe, spec.seed, torch.bfloat16)
    feed.prepare(0)
    trainee = Trainee(spec, problem, feed, run_backbone_in_half)
    trainee.step()
    assert type(trainee.optimizer) is torch.optim.SGD
    assert trainee.halves == {}
    weight = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"halved\[0\] is on cpu.*; expected one GPU for all, and Triton 3.6 or newer"):
        HalfSGD([weight], [weight], 0.1)


def test_an_old_triton_means_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gence.lab.train.half_sgd.HAS_TRITON", False)
    assert not can_keep_halves(torch.device("cuda"))


@pytest.mark.gpu
def test_a_captured_step_is_replayed_right() -> None:
    eager, captured = trainee_of(nesterov=True), trainee_of(nesterov=True)
    assert captured.halves
    captured.ensure_optimizer_state()
    before = {name: value.detach().clone() for name, value in captured.tensors().items()}
    lane = GraphLane(captured.step, lambda: captured.load_tensors(before))
    assert_halves_follow(captured)
    filler = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(16)]  # over memory that was given back
    for _ in range(4):
        eager.step()
        lane.run(1)
        lane.wait()
        assert_halves_follow(captured)
    del filler
    assert_same(captured.tensors(), eager.tensors())


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_gpu() -> None:
    trainee = trainee_of()
    trainee.step()  # compiles, and makes its tables
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainee.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["small_cnn", "resnet18"])
def test_a_cohort_learns_as_without_copies(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [small_spec(loss, model=model, **{"recipe.weight_decay": 0.01}) for loss in LOSSES]
    with_copies = train_cohort(specs, device="cuda")
    monkeypatch.setattr(trainee_module, "can_keep_halves", lambda _: False)
    for one, other in zip(with_copies, train_cohort(specs, device="cuda"), strict=True):
        assert one is not None
        assert other is not None
        assert one.curves["train_loss"] == pytest.approx(other.curves["train_loss"], rel=0.02)


@pytest.mark.gpu
def test_an_interrupted_cohort_continues_to_the_same_result(tmp_path: Path) -> None:
    recipe = {"recipe.ema": 0.9, "recipe.weight_decay": 0.01, "recipe.nesterov": True}
    specs = [small_spec(loss, **recipe) for loss in LOSSES]
    whole = train_cohort(specs, device="cuda")
    train_cohort(specs, device="cuda", workdir=tmp_path, should_stop=lambda: True)
    for one, other in zip(whole, train_cohort(specs, device="cuda", workdir=tmp_path), strict=True):
        same_outcome(one, other)
