"""Ranks are parts of one batch: real processes against one process on the concatenated batch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

import gence
from gence.losses.parts import ranks
from tests.losses.distributed import problems
from tests.losses.distributed.problems import CASES
from tests.losses.test_monitor import divergence
from tests.ranks import environment, free_port, run_ranks

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where 2 ranks, and then 3, wrote what they saw; one launch for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.losses.distributed.worker", folder, 2, 3)
    return folder


@pytest.fixture(scope="module", params=[2, 3])
def reports(request: pytest.FixtureRequest, folder: Path) -> list[dict[Any, Any]]:
    """What each of 2 or 3 ranks saw."""
    files = [folder / str(request.param) / f"rank{rank}.pt" for rank in range(request.param)]
    return [torch.load(file, weights_only=False) for file in files]


def as_vector(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def same_course(seen: dict[str, Any], expected: problems.Course, tolerance: float) -> None:
    for part in ("losses", "gradients", "weights"):
        one, other = as_vector(seen[part]), as_vector(getattr(expected, part))
        # Gradients of "sum" are larger than 1, and one process's own rounding errors with them.
        assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_ddp_equals_one_process(reports: list[dict[Any, Any]], name: str, dtype: torch.dtype) -> None:
    expected = problems.single_process(CASES[name], dtype)
    for report in reports:
        same_course(report["ddp", name, dtype], expected, TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_each_rank_for_itself_fails_the_same_comparison(reports: list[dict[Any, Any]], name: str) -> None:
    expected = problems.single_process(CASES[name], torch.float64)
    with pytest.raises(AssertionError, match="not close"):
        same_course(reports[0]["naive", name], expected, TOLERANCE[torch.float64])
    gradient, right = as_vector(reports[0]["naive", name]["gradients"]), as_vector(expected.gradients)
    assert (gradient - right).norm() > 0.05 * right.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["plain", "ignore_index", "weight"])
def test_fsdp2_equals_one_process(reports: list[dict[Any, Any]], name: str, dtype: torch.dtype) -> None:
    expected = problems.single_process(CASES[name], dtype)
    for report in reports:
        same_course(report["fsdp", name, dtype], expected, TOLERANCE[dtype])


def test_grad_scaler(reports: list[dict[Any, Any]]) -> None:
    same_course(reports[0]["scaled"], problems.single_process(CASES["plain"], torch.float32), 1e-6)


def test_predictions_far_below_the_smallest_number(reports: list[dict[Any, Any]]) -> None:
    logits, target = problems.improbable()
    assert logits.log_softmax(1).logsumexp(0).min() < -1000, "a class whose summed predictions underflow in float64"
    logits.requires_grad_()
    loss = gence.gen_cross_entropy(logits, target)
    loss.backward()
    gradient = torch.cat([report["improbable"]["gradient"] for report in reports]) / len(reports)
    assert_close(reports[0]["improbable"]["loss"], loss.detach(), rtol=1e-12, atol=1e-12)
    assert_close(gradient, logits.grad, rtol=1e-12, atol=1e-12)


def test_running_marginal_is_that_of_all_ranks(reports: list[dict[Any, Any]]) -> None:
    marginal = gence.RunningMarginal(problems.CLASSES, momentum=0.8)
    model, criterion = problems.network(torch.float32), gence.GenCELoss()
    for step, batch in zip(range(3), problems.batches(CASES["plain"], torch.float32), strict=False):
        loss = problems.loss_of(model, criterion, batch, marginal)
        assert_close(reports[0]["running"]["losses"][step], loss.detach(), rtol=1e-6, atol=1e-6)
    for report in reports:
        assert_close(report["running"]["state"], marginal.state_dict(), rtol=1e-6, atol=1e-6)
        assert_close(report["running"]["state"], reports[0]["running"]["state"], rtol=0, atol=0)


def test_a_monitor_adds_the_windows_of_the_ranks(reports: list[dict[Any, Any]]) -> None:
    logits, target = problems.watched()
    first = problems.cuts(len(reports), 0)[0][0]
    prior, prior_of_first = (torch.bincount(t, minlength=problems.CLASSES) / len(t) for t in (target, target[first]))
    whole, part = divergence(prior, logits), divergence(prior_of_first, logits[first])
    for report in reports:
        assert_close(torch.tensor(report["monitor"]), torch.stack([whole, part, part]).float(), rtol=1e-5, atol=1e-6)
        assert report["monitor"] == reports[0]["monitor"]


@pytest.mark.parametrize("argument", ["num_classes", "anchor", "reduction", "label_smoothing", "weight"])
def test_ranks_that_disagree_all_get_an_error(reports: list[dict[Any, Any]], argument: str) -> None:
    for rank, report in enumerate(reports):
        assert report["disagreement", argument].startswith(f"{argument}: expected the same on all {len(reports)} ranks")
        if argument != "weight":  # which is too long to be shown
            assert f"rank {rank} has {argument} = " in report["disagreement", argument]
        assert report["after disagreement"] == "no error"


def test_one_warning_without_a_group(reports: list[dict[Any, Any]]) -> None:
    for report in reports:
        assert report["warned"] == [0, 1, 0]


def test_marginal_of_one_rank_is_refused(reports: list[dict[Any, Any]]) -> None:
    assert "call reduce() after the last update" in reports[0]["unreduced"]


def test_no_valid_row_on_any_rank_is_nan(reports: list[dict[Any, Any]]) -> None:
    assert all(report["no_valid_row"].isnan() for report in reports)


def test_compiles_to_one_graph(reports: list[dict[Any, Any]]) -> None:
    for report in reports:
        eager, graph = report["compiled"]
        assert_close(graph, eager, rtol=1e-6, atol=1e-6)


def two_pass_reference(kind: str, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The plain loss on the logits of all micro-batches, each forwarded by itself, with its rank's random numbers."""
    from tests.losses.distributed.worker import two_rank_parts

    model = problems.network(dtype, kind)
    logits, targets = [], []
    for rank, parts in enumerate(two_rank_parts(dtype)):
        torch.manual_seed(100 + rank)
        for inputs, target in parts:
            logits.append(model(inputs))
            targets.append(target)
    loss = problems.criterion(CASES["weight"], dtype)(torch.cat(logits), torch.cat(targets))
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", "batch_norm", "dropout"])
def test_micro_batches_across_ranks_equal_one_batch(
    reports: list[dict[Any, Any]], kind: str, dtype: torch.dtype
) -> None:
    if len(reports) != 2:
        pytest.skip("the micro-batches are cut for two ranks")
    loss, gradients = two_pass_reference(kind, dtype)
    for report in reports:
        seen = report["micro", kind, dtype]
        assert_close(seen["losses"][0], loss, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert_close(seen["gradients"], gradients, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_bytes_sent_are_those_of_two_floats_a_class(reports: list[dict[Any, Any]]) -> None:
    if len(reports) != 2:
        pytest.skip("counted with two ranks, where a rank sends what it holds once")
    for report in reports:
        for (rows, classes), sent in report["bytes"].items():
            # Gloo announces its messages by small ones, more or fewer of them depending on who comes first.
            constant = sent - (2 * classes + 1) * 4
            assert 0 < constant < 2048, f"{sent} bytes sent for {rows} rows of {classes} classes"


# One process imports what the ranks need, and then becomes three, as in tests/ranks.py; here one of them is killed.
KILLED_RANK = """
import datetime, json, os, sys
import torch, gence
import torch.distributed as dist

gence.gen_cross_entropy
ranks = []
for rank in range(3):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        break
else:
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]))
    sys.exit()
os.environ["RANK"] = str(rank)
os.dup2(os.open(os.path.join(sys.argv[1], str(rank)), os.O_CREAT | os.O_WRONLY), 2)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
for step in range(3):
    if step == 1 and rank == 1:
        os.kill(os.getpid(), 9)
    logits = torch.randn(4, 3, requires_grad=True)
    gence.gen_cross_entropy(logits, torch.arange(4) % 3, process_group="world").backward()
"""


def test_a_killed_rank_ends_the_others_with_pytorchs_error(tmp_path: Path) -> None:
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_RANK, str(tmp_path)],
        env={**environment(), **group},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, -9, 1]
    for survivor in (0, 2):
        said = (tmp_path / str(survivor)).read_text()
        error = said.strip().splitlines()[-1]
        assert re.match(rf"\[rank{survivor}\]: (RuntimeError|torch\.distributed\.Dist\w+Error): ", error), said


def test_naive_accumulation_over_a_group_is_warned_of_once_at_the_callers_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks._Accumulation, "warned", False)
    monkeypatch.setattr(ranks._Accumulation, "pending", False)
    network, labels = torch.nn.Linear(3, 2), torch.tensor([0, 1, 1, 0])
    optimizer, criterion = torch.optim.SGD(network.parameters(), 0.1), gence.GenCELoss(process_group="world")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        for _ in range(2):  # a step per batch is as it should be
            criterion(network(torch.ones(4, 3)), labels).backward()
            optimizer.step()
        criterion(network(torch.ones(4, 3)), labels).backward()
        with pytest.warns(UserWarning, match="two_pass_backward") as told:
            criterion(network(torch.ones(4, 3)), labels).backward()
        assert [Path(one.filename).name for one in told] == ["test_ranks.py"]
        criterion(network(torch.ones(4, 3)), labels)  # warnings are errors in tests: there is no second one
    finally:
        dist.destroy_process_group()
