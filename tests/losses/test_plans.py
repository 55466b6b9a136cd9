"""How the usual call launches its kernels, with a launcher that only notes what it is given."""

from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton", minversion="3.6")

from gence.losses.backends.triton import (  # noqa: E402
    backward,
    forward,
    operator,
    plans as usual_call,
)
from gence.losses.backends.triton.layout import INDEX, MEAN, SUM, Operands  # noqa: E402
from gence.losses.targets import prepare_rows  # noqa: E402


def plan_of(logits, labels, ignore_index, reduction):
    return usual_call.plan_of(prepare_rows(logits, labels, None, ignore_index, reduction, 0.0), 0.0, None)


class Compiled:
    """A compiled kernel as Triton has it."""

    def __init__(self, direct: list, public: list) -> None:
        self.function, self.packed_metadata, self.run, self.public = (
            7,
            (4, 1, 0),
            lambda *args: direct.append(args),
            public,
        )

    def __getitem__(self, grid):
        return lambda *args: self.public.append((grid, *args))


@pytest.fixture
def calls(monkeypatch):
    """(tensors of first launches, arguments of the launcher, arguments of Triton's own call)."""
    first, direct, public = [], [], []

    def launch(kernel, programs, warps, key, args):
        first.append(args)
        return Compiled(direct, public)

    monkeypatch.setattr(usual_call, "launch", launch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    monkeypatch.setattr(usual_call, "_hooks", SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None))
    return first, direct, public


@pytest.fixture
def call():
    logits, labels = torch.randn(6, 5, requires_grad=True), torch.zeros(6, dtype=torch.long)
    plan = plan_of(logits, labels, -100, "mean")
    return lambda: plan.apply(logits, labels, None, plan), logits, plan


def test_first_through_triton_then_to_the_launcher_with_pointers(calls, call):
    (first, direct, public), (loss, logits, plan) = calls, call
    for _ in range(3):
        loss()
    assert len(first) == 1
    assert first[0][0].data_ptr() == logits.data_ptr()
    assert public == []
    assert len(direct) == 2
    grid, stream, handles, arguments = direct[0][:3], direct[0][3], direct[0][4:9], direct[0][9:]
    assert (grid, stream, handles) == ((1, 1, 1), 5, (7, (4, 1, 0), None, None, None))
    assert arguments[0] == logits.data_ptr()
    assert arguments[2:7] == (None,) * 5
    assert arguments[9:] == plan.kernel.behind
    assert len(arguments) == len(first[0])


@pytest.mark.parametrize(("n", "whole"), [(300, True), (70000, False)])
def test_rows_have_one_buffer_and_both_ways_to_launch_find_its_parts(n, whole, calls):
    first, direct, _ = calls
    logits, labels = torch.randn(n, 61, requires_grad=True), torch.zeros(n, dtype=torch.long)
    plan = plan_of(logits, labels, -100, "mean")
    assert plan.zero_all == whole
    for _ in range(2):
        torch.autograd.grad(plan.apply(logits, labels, None, plan), logits)
    assert (len(first), len(direct)) == (2, 2)
    for tensors, (*_, arguments) in zip(first, [(call[9:],) for call in direct], strict=True):
        assert len(tensors) == len(arguments)
        buffers = (5, 6, 7) if tensors is first[0] else (5, 6)  # sums, statistics and classes; classes and statistics
        offsets = [tensors[at].data_ptr() - tensors[buffers[0]].data_ptr() for at in buffers]
        assert [arguments[at] - arguments[buffers[0]] for at in buffers] == offsets
        assert all(offset % 16 == 0 for offset in offsets)
        given = [at for at, value in enumerate(tensors) if isinstance(value, torch.Tensor)]
        assert all(arguments[at] % 4 == 0 for at in given)
        assert [value for at, value in enumerate(arguments) if at not in given] == [
            value for at, value in enumerate(tensors) if at not in given
        ]
    sums, stats, classes = first[0][5:8]
    assert stats.numel() == 4 * n
    assert not sums[: plan.classes_at].any()
    assert sums.data_ptr() < classes.data_ptr() < stats.data_ptr()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"smoothing": 0.1}, {"anchor": 0.3}, {"anchor": 0.3, "prior": True}, {"smoothing": 0.1, "anchor": 0.3}],
    ids=str,
)
@pytest.mark.parametrize("n", [6, 300])
def test_it_launches_what_the_general_call_does_with_the_same_arguments(n, settings, reduction, monkeypatch):
    """The arguments are listed in both places, for speed: here they are held against each other, by name."""
    smoothing, anchor = settings.get("smoothing", 0.0), settings.get("anchor", 0.0)
    logits, labels = torch.randn(n, 61 if n > 6 else 5, requires_grad=True), torch.zeros(n, dtype=torch.long)
    prior = torch.full((logits.shape[1],), 1 / logits.shape[1]) if "prior" in settings else None
    rows = prepare_rows(logits, labels, None, -100, reduction, smoothing)
    launches: list[tuple] = []

    def launch(kernel, programs, warps, key, args, *_, **__):
        launches.append((kernel, programs, warps, dict(zip(kernel.arg_names, args, strict=True))))

    for module in (usual_call, forward, backward):
        monkeypatch.setattr(module, "launch", launch)
    plan = usual_call.plan_of(rows, anchor, prior)
    torch.autograd.grad(plan.apply(logits, labels, prior, plan), logits)
    usual, launches = launches, []
    kind = MEAN if reduction == "mean" else SUM
    operands = Operands(INDEX, rows.index, None, None, None, prior, anchor, -100, kind, smoothing, torch.float32)
    torch.autograd.grad(operator.eager_loss(rows, operands, None), logits)
    assert [launched[:3] for launched in usual] == [launched[:3] for launched in launches]
    for (kernel, *_, ours), (*_, theirs) in zip(usual, launches, strict=True):
        for name, own in ours.items():
            if own is None or name == "counter_at":  # what no kernel reads, and where in a buffer of its own
                continue
            if isinstance(own, torch.Tensor):
                assert theirs[name].dtype == own.dtype, (kernel, name)
                inputs = (logits.data_ptr(), labels.data_ptr(), 0 if prior is None else prior.data_ptr())
                assert own.data_ptr() not in inputs or own.data_ptr() == theirs[name].data_ptr(), (kernel, name)
            else:
                assert (type(own), own) == (type(theirs[name]), theirs[name]), (kernel, name)


def test_sums_in_a_fixed_order_are_left_to_the_general_call():
    logits, labels = torch.zeros(300, 61), torch.zeros(300, dtype=torch.long)
    torch.use_deterministic_algorithms(True)
    try:
        assert plan_of(logits, labels, -100, "mean") is None
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_launch_hook_is_called_by_triton(calls, call, monkeypatch):
    (_, direct, public), (loss, *_) = calls, call
    chain = SimpleNamespace(calls=[])
    monkeypatch.setattr(usual_call, "_hooks", SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=chain))
    loss(), loss()
    assert (len(direct), len(public)) == (1, 0)
    chain.calls.append(print)
    loss()
    assert (len(direct), len(public)) == (1, 1)


def test_a_launcher_that_is_not_known_is_left_to_triton(calls, call, monkeypatch):
    (_, direct, public), (loss, *_) = calls, call
    monkeypatch.setattr(Compiled, "__getattribute__", _without_metadata)
    loss(), loss()
    assert (len(direct), len(public)) == (0, 1)


def _without_metadata(self, name):
    if name == "packed_metadata":
        raise AttributeError(name)
    return object.__getattribute__(self, name)


def test_allocates_without_the_shortcut(monkeypatch):
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    made = usual_call._allocator(torch.device("cpu"))((3, 2), (2, 1), torch.float16)
    assert (made.shape, made.stride(), made.dtype) == ((3, 2), (2, 1), torch.float16)


def test_rows_too_long_and_losses_of_rows_have_no_plan():
    labels = torch.zeros(4, dtype=torch.long)
    assert plan_of(torch.zeros(4, 30000), labels, -100, "mean") is None
    assert plan_of(torch.zeros(4, 3), labels, -100, "none") is None
