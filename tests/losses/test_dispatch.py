"""Which implementation takes a call, that all of them compute the formula, and how few files a call passes."""

import itertools
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import gence
from gence import TwoHot
from gence.losses import why_backend
from gence.losses.backends import cpu_small, dispatch

LABELS = torch.arange(40) % 7
SOFT = torch.rand(40, 7).softmax(1)
MIXED = TwoHot(LABELS, LABELS.flip(0), torch.full((40,), 0.3))


@pytest.mark.parametrize(
    ("shape", "target", "terms", "name", "reason"),
    [
        ((40, 7), LABELS, {}, "cpu_small", "not triton: the tensors are on the cpu"),
        ((40, 7), LABELS, {"anchor": 0.1, "label_smoothing": 0.1}, "cpu_small", "on the cpu"),
        ((40, 7), LABELS, {"anchor": 0.1, "reduction": "none"}, "cpu_small", "on the cpu"),
        ((40, 7), LABELS, {"anchor": 0.1, "prior": torch.full((7,), 1 / 7)}, "cpu_small", "on the cpu"),
        ((40, 7), LABELS, {"context": torch.zeros(3, 7)}, "cpu", "not cpu_small: there are context rows"),
        ((40, 70000), LABELS, {"anchor": 0.1}, "cpu", "40 rows of 70000 logits are more than 256 rows or 65536"),
        ((40, 7), MIXED, {}, "cpu", "not cpu_small: the target is two-hot"),
        ((40, 7), SOFT, {}, "formula", "class probabilities leave nothing to save on a CPU"),
        ((40, 7), LABELS, {"weight": torch.ones(7, requires_grad=True)}, "formula", "needs a gradient"),
        ((1, 7), LABELS[:1], {}, "formula", "one row alone"),
        ((1, 7), LABELS[:1], {"anchor": 0.1}, "cpu_small", "on the cpu"),
        ((40, 7), LABELS, {"process_group": "world"}, "parts", "larger batch"),
    ],
)
def test_why_backend(shape, target, terms, name, reason):
    choice = why_backend(torch.zeros(shape), target, **terms)
    assert choice.name == name
    assert reason in choice.reason


def test_why_backend_of_a_setting_and_of_a_compiled_call():
    z = torch.zeros(40, 7)
    with gence.set_backend("torch"):
        assert why_backend(z, LABELS) == ("formula", 'not triton: the backend is "torch"')
    names = []
    torch.vmap(lambda rows: names.append(why_backend(rows, LABELS).name) or rows)(z[None])
    assert names == ["formula"]
    with gence.set_backend("triton"):
        assert why_backend(z.double(), LABELS).name == "formula"


@pytest.mark.parametrize("terms", [{}, {"anchor": 0.1}, {"anchor": 0.1, "prior": torch.full((7,), 1 / 7)}], ids=str)
@pytest.mark.parametrize("n", [40, 300])
def test_the_call_takes_what_why_backend_says(n, terms, monkeypatch):
    z, y = torch.randn(n, 7), torch.arange(n) % 7
    taken = []
    for name, module, function in (("cpu_small", cpu_small, "small_loss"), ("cpu", dispatch.cpu, "blocks_loss")):
        original = getattr(module, function)
        monkeypatch.setattr(module, function, lambda *args, f=original, name=name: taken.append(name) or f(*args))
    gence.gen_cross_entropy(z, y, **terms)
    gence.gen_cross_entropy(z, y, **terms)  # the second time by the short way, whatever the first took
    assert taken == [why_backend(z, y, **terms).name] * 2


CASES = list(
    itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1, 1.0, 2.5), (0.0, 0.1), (False, True), (False, True), (False, True)
    )
)


@pytest.mark.parametrize("shape", [(40, 7), (300, 50)], ids=str)
def test_every_path_is_the_formula_in_float64(shape):
    n, K = shape
    torch.manual_seed(0)
    for reduction, anchor, smoothing, weighted, given, ignoring in CASES:
        z, y = 3 * torch.randn(n, K), torch.randint(0, K, (n,))
        if ignoring:
            y[::3] = -100
        numbers = {"reduction": reduction, "anchor": anchor, "label_smoothing": smoothing}
        tensors = {"weight": torch.rand(K) + 0.2} if weighted else {}
        tensors |= {"prior": torch.rand(K).softmax(0)} if given else {}
        upstream = torch.randn(n) if reduction == "none" else torch.tensor(1.7)
        found = z.clone().requires_grad_()
        loss = gence.gen_cross_entropy(found, y, **numbers, **tensors)
        exact = z.double().requires_grad_()
        wide = {name: value.double() for name, value in tensors.items()}
        with gence.set_backend("torch"):
            right = gence.gen_cross_entropy(exact, y, **numbers, **wide)
        said = f"{reduction}, {numbers}, {list(tensors)}, ignoring {ignoring}: "
        assert_close(loss.double(), right, rtol=1e-5, atol=1e-5, msg=lambda text, said=said: said + text)
        ours, true = (
            torch.autograd.grad(loss, found, upstream)[0],
            torch.autograd.grad(right, exact, upstream.double())[0],
        )
        assert (ours - true).norm() <= 3e-6 * true.norm() + 1e-7, said


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("terms", [{}, {"prior": torch.full((4,), 0.25).double()}, {"label_smoothing": 0.1}], ids=str)
def test_second_derivatives_of_the_anchored_loss(terms, reduction):
    z, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 1])
    for n in (6, 3):

        def loss(values, n=n):
            return gence.gen_cross_entropy(values[:n], y[:n], reduction=reduction, anchor=0.3, **terms)

        assert torch.autograd.gradcheck(loss, (z,))
        assert torch.autograd.gradgradcheck(loss, (z,))


def test_a_prior_that_was_written_into_is_checked_again():
    z, prior = torch.randn(40, 7), torch.full((7,), 1 / 7)
    for _ in range(2):
        gence.gen_cross_entropy(z, LABELS, anchor=0.1, prior=prior)
    prior.mul_(2)
    with pytest.raises(ValueError, match="prior: expected entries that sum to 1"):
        gence.gen_cross_entropy(z, LABELS, anchor=0.1, prior=prior)


@pytest.mark.parametrize("shape", [(40, 7), (512, 300)], ids=str)
@pytest.mark.parametrize("anchor", [0.0, 0.1])
def test_a_call_on_a_cpu_passes_four_files_of_the_package_at_most(shape, anchor):
    criterion, z, y = gence.GenCELoss(anchor=anchor), torch.randn(shape), torch.arange(shape[0]) % 7
    criterion(z, y)
    source, passed = Path(gence.__file__).parent, set()

    def trace(frame, event, argument):
        file = Path(frame.f_code.co_filename)
        if source in file.parents:
            passed.add(str(file.relative_to(source)))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        criterion(z, y)
    finally:
        sys.settrace(before)
    assert {"losses/generative.py", "losses/backends/dispatch.py"} <= passed
    assert len(passed) <= (5 if anchor and shape[0] == 512 else 4), passed  # a large anchored one: the formula's KL


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("n", [40, 300])
def test_smoothing_over_a_class_that_all_rows_mask_keeps_its_digits(backend, n):
    torch.manual_seed(0)
    z, y = torch.randn(n, 10), torch.randint(1, 10, (n,))
    z[:, 0] = -1e9
    results = []
    for values, name in ((z, backend), (z.double(), "torch")):
        leaf = values.requires_grad_()
        with gence.set_backend(name):
            loss = gence.gen_cross_entropy(leaf, y, label_smoothing=0.1)
        results.append((loss.detach().double(), torch.autograd.grad(loss, leaf)[0].double()))
    for own, true in zip(*results, strict=True):
        assert_close(own, true, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("n", [40, 300])
def test_a_class_that_no_target_names_adds_nothing_where_it_is_ruled_out(backend, n):
    z, y = torch.randn(n, 5), torch.randint(0, 4, (n,))
    z[:, 4] = -torch.inf
    last = torch.full_like(y, 4)
    hot = torch.nn.functional.one_hot(y, 5).float()
    zero, uniform = torch.tensor(0.0), torch.full((5,), 0.2)
    with gence.set_backend(backend):
        right = gence.gen_cross_entropy(z, y)
        for target, terms in (
            (TwoHot(y, last, torch.ones(n)), {}),
            (hot, {}),
            (y, {"anchor": zero, "prior": uniform}),
        ):
            leaf = z.clone().requires_grad_()
            loss = gence.gen_cross_entropy(leaf, target, **terms)
            assert_close(loss.detach(), right)
            assert bool(torch.autograd.grad(loss, leaf)[0].isfinite().all())
