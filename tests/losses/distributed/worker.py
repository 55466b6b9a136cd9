"""What each rank does, started by tests/ranks.py. Writes what it saw to a file for each rank; the tests judge it."""

from __future__ import annotations

import os
import socket
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx  # what a graph needs, before the process becomes several
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gence
from tests.losses.distributed import problems
from tests.losses.distributed.problems import CASES, Batch, Case


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def full(value: Any) -> Tensor:
    """A parameter or gradient, whole, whether it is sharded or not."""
    tensor: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensor.detach().clone()


def mean_over_ranks(value: Tensor) -> Tensor:
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def own_part(batch: Batch, step: int) -> Batch:
    return batch.part(*problems.cuts(dist.get_world_size(), step)[dist.get_rank()])


def train(
    case: Case, dtype: torch.dtype, wrap: Callable[[nn.Module], nn.Module], scaled: bool = False, **more: Any
) -> Any:
    """As ``problems.single_process``, each rank on its own part."""
    model = wrap(problems.network(dtype))
    loss_function = problems.criterion(case, dtype, **more)
    steps = problems.optimiser(model, case)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    losses, gradients = [], []
    for step, batch in enumerate(problems.batches(case, dtype)):
        steps.zero_grad()
        cut = step if more else 0  # the plain loss refuses a rank without rows
        loss = problems.loss_of(model, loss_function, own_part(batch, cut))
        scaler.scale(loss).backward()
        scaler.unscale_(steps)
        gradients = gradients or [full(p.grad) for p in model.parameters()]
        scaler.step(steps)
        scaler.update()
        losses.append(mean_over_ranks(loss))
    return {"losses": losses, "gradients": gradients, "weights": [full(p) for p in model.parameters()]}


def micro_batches(kind: str, dtype: torch.dtype) -> Any:
    """7 uneven micro-batches: 5 on the first rank, 2 on the second, through the helper."""
    model = problems.network(dtype, kind)
    wrapped = DistributedDataParallel(model)
    loss_function = problems.criterion(CASES["weight"], dtype, process_group="world")
    torch.manual_seed(100 + dist.get_rank())
    parts = two_rank_parts(dtype)[dist.get_rank()]
    loss = gence.two_pass_backward(wrapped, loss_function, parts)
    return {"losses": [mean_over_ranks(loss)], "gradients": [full(p.grad) for p in model.parameters()]}


def two_rank_parts(dtype: torch.dtype) -> list[list[tuple[Tensor, Tensor]]]:
    batch = next(problems.batches(CASES["weight"], dtype))
    parts = list(zip(batch.inputs.split([5, 2, 4, 3, 3, 2, 4]), batch.target.split([5, 2, 4, 3, 3, 2, 4]), strict=True))
    return [parts[:5], parts[5:]]


def disagreement(**of_rank: Any) -> str:
    """The error that this rank gets."""
    try:
        gence.gen_cross_entropy(
            torch.zeros(4, of_rank.pop("num_classes", 5)), torch.zeros(4).long(), process_group="world", **of_rank
        )
    except ValueError as error:
        return str(error)
    return "no error"


def bytes_sent() -> int:
    """What this process has sent over TCP so far, once the kernel counts nothing on its way any more."""
    deadline = time.monotonic() + 5
    while True:
        acknowledged, under_way = tcp_counts()
        if under_way == 0 or time.monotonic() > deadline:
            return acknowledged
        time.sleep(0.005)


def tcp_counts() -> tuple[int, int]:
    """Bytes acknowledged (tcpi_bytes_acked), and segments or bytes that are not (tcpi_unacked, tcpi_notsent_bytes)."""
    total = under_way = 0
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  names only
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, 120)[0]
                    under_way += struct.unpack_from("I", info, 24)[0] + struct.unpack_from("I", info, 144)[0]
        except OSError:  # closed meanwhile, or a socket of another kind
            continue
    return total, under_way


def bytes_of_a_step(rows: int, classes: int) -> int:
    """Forward and backward of the loss; the median of several, because the store's heartbeats may fall into one."""
    counts = []
    for _ in range(5):
        logits = torch.randn(rows, classes, requires_grad=True)
        dist.barrier()
        time.sleep(0.03)  # acknowledgements of the barrier
        before = bytes_sent()
        gence.gen_cross_entropy(logits, torch.arange(rows) % classes, process_group="world").backward()
        time.sleep(0.03)
        counts.append(bytes_sent() - before)
    return sorted(counts)[2]


def compiled() -> Any:
    """The loss, with its exchange, as one graph; `fullgraph` makes any break an error."""
    loss_function = problems.criterion(CASES["all"], torch.float32, process_group="world")
    batch = own_part(next(problems.batches(CASES["all"], torch.float32)), 0)
    model = problems.network(torch.float32)
    context = model(batch.unlabelled).detach()
    graph = torch.compile(loss_function, fullgraph=True, backend="aot_eager")
    seen = []
    for function in (loss_function, graph):
        logits = model(batch.inputs).detach().requires_grad_()
        loss = function(logits, batch.target, context=context)
        loss.backward()
        seen.append((loss.detach(), logits.grad))
    return seen


def improbable() -> Any:
    """log S down to the thousands."""
    logits, target = problems.improbable()
    which = problems.cuts(dist.get_world_size(), 0)[dist.get_rank()][0]
    part = logits[which].requires_grad_()
    loss = gence.gen_cross_entropy(part, target[which], process_group="world")
    loss.backward()
    return {"loss": mean_over_ranks(loss), "gradient": part.grad}


def running() -> Any:
    """The running marginal after three steps."""
    marginal = gence.RunningMarginal(problems.CLASSES, momentum=0.8)
    loss_function = problems.criterion(CASES["plain"], torch.float32, process_group="world")
    model = problems.network(torch.float32)
    losses = []
    for step, batch in zip(range(3), problems.batches(CASES["plain"], torch.float32), strict=False):
        loss = problems.loss_of(model, loss_function, own_part(batch, step), marginal)
        losses.append(mean_over_ranks(loss))
    return {"losses": losses, "state": marginal.state_dict()}


def monitored() -> list[float]:
    """What the monitor finds in each window, once the ranks have added theirs up."""
    monitor = gence.MarginalMonitor(threshold=1e9)
    for updates in problems.windows(dist.get_world_size(), dist.get_rank()):
        for update in updates:
            monitor.update(*update)
        monitor.reduce()
        monitor.check()
    return monitor.history


def warned() -> list[int]:
    """How many warnings: evaluated, trained, trained again."""
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    counts = []
    for needs_gradient in (False, True, True):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            gence.gen_cross_entropy(logits.clone().requires_grad_(needs_gradient), target)
        counts.append(sum("without process_group" in str(w.message) for w in seen))
    return counts


def unreduced() -> str:
    loss_function = problems.criterion(CASES["plain"], torch.float32, process_group="world")
    marginal = loss_function.batch_marginal()
    logits, target = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    marginal.update(logits, target)
    try:
        loss_function(logits, target, marginal=marginal)
    except RuntimeError as error:
        return str(error)
    return "no error"


def no_valid_row_anywhere() -> Tensor:
    logits = torch.randn(3, 5, requires_grad=True)
    return gence.gen_cross_entropy(logits, torch.full((3,), -100), process_group="world").detach()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    report: dict[str, Any] = {"warned": warned()}
    for name, case in CASES.items():
        for dtype in (torch.float32, torch.float64):
            report["ddp", name, dtype] = train(case, dtype, ddp, process_group="world")
        report["naive", name] = train(case, torch.float64, ddp)
    for name in ("plain", "ignore_index", "weight"):
        for dtype in (torch.float32, torch.float64):
            report["fsdp", name, dtype] = train(CASES[name], dtype, fsdp, process_group=dist.group.WORLD)
    report["scaled"] = train(CASES["plain"], torch.float32, ddp, scaled=True, process_group="world")
    report["improbable"] = improbable()
    report["running"] = running()
    report["monitor"] = monitored()
    report["unreduced"] = unreduced()
    report["no_valid_row"] = no_valid_row_anywhere()
    report["disagreement", "num_classes"] = disagreement(num_classes=5 + (rank == 0))
    report["disagreement", "anchor"] = disagreement(anchor=0.1 * rank)
    report["disagreement", "reduction"] = disagreement(reduction="sum" if rank else "mean")
    report["disagreement", "label_smoothing"] = disagreement(label_smoothing=0.1 * rank)
    report["disagreement", "weight"] = disagreement(weight=torch.tensor([3.0, 0, 1, 1, 1] if rank else [1.0] * 5))
    report["after disagreement"] = disagreement()
    report["compiled"] = compiled()
    if ranks == 2:
        for kind in ("plain", "batch_norm", "dropout"):
            for dtype in (torch.float32, torch.float64):
                report["micro", kind, dtype] = micro_batches(kind, dtype)
        report["bytes"] = {(n, K): bytes_of_a_step(n, K) for n, K in ((4, 100), (400, 100), (4, 1100), (400, 1100))}
    torch.save(report, folder / f"rank{rank}.pt")
    dist.destroy_process_group()
