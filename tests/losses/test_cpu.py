"""The CPU path against float64, where it applies, and that it steps aside where it does not."""

import itertools

import pytest
import torch

import gence
from gence import TwoHot
from gence.losses.backends import cpu, cpu_small


def make(kind, n, K, dtype):
    torch.manual_seed(0)
    logits = (torch.randn(n, K) * 3).to(dtype)
    labels = torch.randint(0, K, (n,))
    if kind == "ignore":
        labels[::3] = -7
    if kind == "two_hot":
        return logits, TwoHot(labels, torch.randint(0, K, (n,)), torch.rand(n))
    return logits, labels


def double(value):
    if isinstance(value, TwoHot):
        return TwoHot(value.first, value.second, value.share.double())
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(backend, logits, target, upstream, context, **arguments):
    leaves = [logits.detach().requires_grad_()]
    if context is not None:
        leaves.append(context.detach().requires_grad_())
    with gence.set_backend(backend):
        loss = gence.gen_cross_entropy(
            leaves[0], target, context=leaves[1] if context is not None else None, **arguments
        )
        return [loss.detach(), *torch.autograd.grad(loss, leaves, upstream.to(loss.dtype))]


def check(logits, target, upstream, context=None, **arguments):
    ours = run("auto", logits, target, upstream, context, **arguments)
    plain = run("torch", logits, target, upstream, context, **arguments)
    wide = {name: double(value) for name, value in arguments.items()}
    exact = run(
        "torch", logits.double(), double(target), upstream, None if context is None else context.double(), **wide
    )
    for own, other, true in zip(ours, plain, exact, strict=True):
        assert own.dtype == other.dtype
        error, allowed = (own - true).norm(), 1.5 * (other - true).norm() + 2e-6 * true.norm() + 1e-6
        assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK_BYTES", 400)
    monkeypatch.setattr(cpu_small, "SMALL", 0)
    monkeypatch.setattr(cpu, "ONE_BLOCK", 0)


CASES = list(
    itertools.product(
        ("index", "ignore", "two_hot"),
        (torch.float32, torch.bfloat16),
        ("mean", "sum", "none"),
        (0.0, 0.1),
        (False, True),
    )
)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("anchor", ["no", "float", "tensor", "prior"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_is_no_larger_than_the_plain_paths(case, anchor):
    kind, dtype, reduction, smoothing, rich = case
    logits, target = make(kind, 16, 21, dtype)
    arguments = {"reduction": reduction, "label_smoothing": smoothing}
    if kind == "ignore":
        arguments["ignore_index"] = -7
    if rich:
        arguments["weight"] = torch.rand(21) + 0.2
    if anchor != "no":
        arguments["anchor"] = torch.tensor(0.3) if anchor == "tensor" else 0.3
    if anchor == "prior":
        arguments["prior"] = torch.rand(21).softmax(0)
    upstream = torch.randn(16 if reduction == "none" else ())
    check(logits, target, upstream, torch.randn(5, 21).to(dtype) if rich else None, **arguments)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("scale", [1.0, 1e4, 300.0])
def test_extreme_logits_and_columns_that_underflow(scale):
    logits, target = make("index", 12, 17, torch.float32)
    logits = logits * scale
    logits[:, 3] = -400.0
    target[0] = 3
    check(logits, target, torch.tensor(1.0))
    check(logits, target, torch.linspace(-1, 2, 12), logits[:3] * 0.5, reduction="none")


@pytest.mark.usefixtures("small_blocks")
def test_ignored_rows_beside_columns_that_underflow():
    logits, target = make("ignore", 12, 17, torch.float32)
    logits[:, 3] = -400.0
    logits[:, 5] = -torch.inf
    target[target == 5] = 4
    target[1] = 3
    check(logits, target, torch.tensor(1.0), ignore_index=-7)


@pytest.mark.parametrize("masked", [-1e4, -1e9, -torch.inf])
def test_a_masked_class_lets_the_others_train(masked):
    logits, target = make("index", 40, 21, torch.float32)
    logits[:, 4] = masked
    target[target == 4] = 5
    terms = {"anchor": 0.1, "prior": torch.full((21,), 1 / 21), "reduction": "sum"}
    ours = run("auto", logits, target, torch.ones(()), None, **terms)[1]
    plain = run("torch", logits, target, torch.ones(()), None, **terms)[1]
    torch.testing.assert_close(ours, plain, atol=2e-6, rtol=1e-4)


def test_a_class_of_more_rows_than_float32_counts():
    n = (1 << 24) + (1 << 22)
    logits, target = torch.tensor([[1.0, 0.0]]).expand(n, 2), torch.zeros(n, dtype=torch.long)
    z = logits.contiguous().requires_grad_()
    loss = gence.gen_cross_entropy(z, target, torch.ones(2), reduction="sum", anchor=0.5)
    # Every row is alike: the rows of a class are indistinguishable, and the anchor asks for more of class 0.
    divergence = torch.tensor([1.0, 0.0]).softmax(0)[0].log()
    torch.testing.assert_close(loss.detach() / n, torch.tensor(float(n)).log() - 0.5 * divergence, rtol=1e-5, atol=0)
    (grad,) = torch.autograd.grad(loss, z)
    expected = 0.5 * (logits[0].softmax(0) - torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(grad[-1], expected, rtol=1e-3, atol=0)


def test_float64_keeps_its_precision():
    logits, target = make("index", 12, 17, torch.float64)
    ours, plain = (run(name, logits, target, torch.tensor(1.0), None, anchor=0.3) for name in ("auto", "torch"))
    for own, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-14)


def test_ignored_rows_may_hold_anything():
    logits, target = make("ignore", 12, 17, torch.float32)
    poisoned = logits.masked_fill((target == -7)[:, None], float("nan"))
    one = torch.tensor(1.0)
    for own, plain in zip(
        run("auto", poisoned, target, one, None, ignore_index=-7),
        run("torch", logits, target, one, None, ignore_index=-7),
        strict=True,
    ):
        torch.testing.assert_close(own, plain)


def test_second_derivative_and_second_backward_pass():
    logits, target = make("ignore", 9, 5, torch.float64)
    z = logits.requires_grad_()

    def loss(values):
        return gence.gen_cross_entropy(values, target, ignore_index=-7, label_smoothing=0.1, anchor=0.2)

    assert torch.autograd.gradcheck(loss, (z,))
    assert torch.autograd.gradgradcheck(loss, (z,))
    value = loss(z)
    first, second = (torch.autograd.grad(value, z, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_logits_are_not_overwritten():
    logits, target = make("index", 9, 5, torch.float32)
    before = logits.clone()
    run("auto", logits, target, torch.tensor(1.0), None)
    torch.testing.assert_close(logits, before, rtol=0, atol=0)


def test_used_by_default_and_not_where_it_does_not_apply(monkeypatch):
    calls = []
    for module, name in ((cpu, "blocks_loss"), (cpu_small, "small_loss")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, f=original, name=name: calls.append(name) or f(*args))
    logits, target = make("index", 9, 5, torch.float32)
    gence.gen_cross_entropy(logits, target)
    gence.gen_cross_entropy(logits, TwoHot(target, target, torch.rand(9)))
    assert calls == ["small_loss", "blocks_loss"]
    with gence.set_backend("torch"):
        gence.gen_cross_entropy(logits, target)
    gence.gen_cross_entropy(logits, logits.softmax(1))
    torch.vmap(gence.gen_cross_entropy)(logits[None], target[None])
    torch.func.grad(gence.gen_cross_entropy)(logits, target)
    gence.gen_cross_entropy(logits, target, torch.rand(5).requires_grad_())
    assert calls == ["small_loss", "blocks_loss"]


@pytest.mark.parametrize(("n", "terms"), [(5, {"anchor": 0.1}), (300, {}), (300, {"anchor": 0.1})])
def test_many_gradients_at_once(n, terms):
    logits, target = make("index", n, 4, torch.float32)

    def losses(z):
        return gence.gen_cross_entropy(z, target, reduction="none", **terms)

    together = torch.autograd.functional.jacobian(losses, logits, vectorize=True)
    torch.testing.assert_close(together, torch.autograd.functional.jacobian(losses, logits))


def test_a_second_derivative_survives_a_scaled_half():
    logits, target = make("index", 64, 4, torch.float16)
    z = logits.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = gence.gen_cross_entropy(z, target, anchor=0.1)
    (grad,) = torch.autograd.grad(loss * 65536.0, z, create_graph=True)
    assert bool(grad.isfinite().all())


def test_nan_reaches_every_gradient_that_it_takes_part_in():
    logits, target = make("index", 300, 4, torch.float32)
    logits[7, 2] = float("nan")
    for terms in ({}, {"anchor": 0.1}):
        loss, grad = run("auto", logits, target, torch.ones(()), None, **terms)
        assert bool(loss.isnan())
        assert bool(grad.isnan().any(1).all())


AUTOCAST_TERMS = {
    "labels": {},
    "anchor": {"anchor": 0.1},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed and weighted": {"label_smoothing": 0.1, "weight": True},
}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("terms", AUTOCAST_TERMS.values(), ids=AUTOCAST_TERMS)
def test_autocast_changes_no_digit_even_around_backward(terms, half):
    logits, target = make("index", 300, 2000, torch.float32)
    logits = logits * 10
    terms = {**terms, "weight": torch.rand(2000) + 0.5} if "weight" in terms else terms
    expected = run("auto", logits, target, torch.ones(()), None, **terms)
    with torch.autocast("cpu", dtype=half):
        found = run("auto", logits, target, torch.ones(()), None, **terms)
    for value, right in zip(found, expected, strict=True):
        assert torch.equal(value, right)


@pytest.mark.parametrize("terms", [{}, {"anchor": 0.1}, {"label_smoothing": 0.1}], ids=str)
@pytest.mark.parametrize("steepness", [1e9, 1e20])
def test_a_steep_upstream_overflows_nowhere(terms, steepness):
    logits = torch.zeros(300, 5)
    logits[:, 0] = 68  # the label's probability is just above the floor of linear space
    target = torch.ones(300, dtype=torch.long)
    unit = run("auto", logits, target, torch.ones(()), None, reduction="sum", **terms)[1]
    grad = run("auto", logits, target, torch.full((), steepness), None, reduction="sum", **terms)[1]
    torch.testing.assert_close(grad / steepness, unit)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("mask", [-1e4, -1e6, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_classes_that_all_rows_mask_by_a_huge_number_leave_the_smoothed_loss_its_digits(backend, mask):
    torch.manual_seed(0)
    logits, target = torch.randn(300, 100), torch.randint(10, 100, (300,))
    logits[:, :10] = mask
    dense = 0.9 * torch.nn.functional.one_hot(target, 100) + 0.001
    exact = logits.double()
    exact[:, :10] = -1e4  # what the masked rows predict of such a class is the same for all of them
    right = gence.gen_cross_entropy(exact, target, label_smoothing=0.1)
    for label, terms in ((target, {"label_smoothing": 0.1}), (dense, {})):
        value, grad = run(backend, logits, label, torch.ones(()), None, **terms)
        torch.testing.assert_close(value.double(), right, rtol=0.01, atol=0)
        assert bool(grad.isfinite().all())
