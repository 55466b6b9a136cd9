"""The exchange on a GPU: one rank, NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

import gence

pytestmark = pytest.mark.gpu


@pytest.fixture
def _nccl(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_nccl")
@pytest.mark.parametrize("compiled", [False, True])
def test_one_rank_equals_the_plain_loss(compiled: bool) -> None:
    logits = torch.randn(37, 11, device="cuda", dtype=torch.float64, requires_grad=True)
    context = torch.randn(5, 11, device="cuda", dtype=torch.float64)
    target = torch.randint(11, (37,), device="cuda")
    plain = gence.GenCELoss(anchor=0.2, label_smoothing=0.1)
    grouped = gence.GenCELoss(anchor=0.2, label_smoothing=0.1, process_group="world")
    function = torch.compile(grouped, fullgraph=True) if compiled else grouped
    expected = plain(logits, target, context=context)
    seen = function(logits, target, context=context)
    assert_close(seen, expected, rtol=1e-12, atol=1e-12)
    assert_close(torch.autograd.grad(seen, logits), torch.autograd.grad(expected, logits), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_nccl")
def test_the_second_call_does_not_wait_for_the_gpu() -> None:
    criterion = gence.GenCELoss(process_group="world")
    logits, target = torch.randn(8, 3, device="cuda"), torch.randint(3, (8,), device="cuda")
    criterion(logits, target)
    torch.cuda.set_sync_debug_mode("error")
    try:
        criterion(logits, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
