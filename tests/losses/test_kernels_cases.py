"""The kernels against the plain implementation: their error against float64 may not exceed its own plus a tolerance.

Runs on a GPU, or on the CPU under TRITON_INTERPRET=1 (see test_kernels.py); skipped otherwise.
"""

import importlib
import itertools
import os
import random

import pytest
import torch

import gence
from gence import TwoHot

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter truncates where the device rounds to bfloat16, so it is tried on the other half type.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU, or the process of test_kernels.py"
    ),
    # Masked lanes of the interpreter compute with infinities, which NumPy warns of.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:triton.*"),
    # Triton 3.6's interpreter turns arrays of one element into numbers.
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]

_STREAM = {
    "tiny_elements": 0,
    "rows_columns": 0,
    "long_columns": 0,
    "group_per_sm": 0,
    "tile_columns": 16 if INTERPRETED else 256,
    "unroll": 2,
    "chunk_bytes": 600,
    "tile_rows": 2,
    "sum_rows": 4,
    "backward_rows": 2,
    "piece_bytes": 40,
    "finalise_columns": 16,
}
# For rows of whole vectors; the others are streamed.
_GROUP = {"group_per_sm": 2, "group_warps": 1, "group_unroll": 1}
if INTERPRETED:
    _GROUP["tile_columns"] = 64  # rows are longer here, and small tiles are tried by "stream"
REGIMES = {
    "tiny": {},
    "rows": {"tiny_elements": 0, "rows_elements": 64, "finalise_columns": 8},
    "long": {"tiny_elements": 0, "rows_elements": 8, "long_part": 16 if INTERPRETED else 256},
    "stream": _STREAM,
}


@pytest.fixture(params=REGIMES)
def regime(request):
    from gence.losses.backends.triton import tuning

    with tuning.override(**REGIMES[request.param]):
        yield request.param


def make(kind, n, K, dtype, seed=0, scale=3.0):
    torch.manual_seed(seed)
    logits = (torch.randn(n, K) * scale).to(dtype)
    labels = torch.randint(0, K, (n,))
    if kind == "ignore":
        labels[::3] = -100
    if kind == "two_hot":
        return logits.to(DEVICE), TwoHot(*(t.to(DEVICE) for t in (labels, torch.randint(0, K, (n,)), torch.rand(n))))
    if kind == "probs":
        return logits.to(DEVICE), torch.rand(n, K).softmax(1).to(DEVICE)
    return logits.to(DEVICE), labels.to(DEVICE)


def double(value):
    if isinstance(value, TwoHot):
        return TwoHot(value.first, value.second, value.share.double())
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(backend, logits, target, upstream=None, context=None, **arguments):
    """Loss and gradients of logits and context."""
    logits = logits.detach().requires_grad_()
    leaves = [logits]
    if context is not None:
        context = context.detach().requires_grad_()
        leaves.append(context)
    with gence.set_backend(backend):
        loss = gence.gen_cross_entropy(logits, target, context=context, **arguments)
        if upstream is not None:
            upstream = upstream.to(loss.dtype)
        return [loss.detach(), *torch.autograd.grad(loss, leaves, upstream)]


def check(logits, target, upstream=None, context=None, tolerance=2e-6, **arguments):
    """The kernels' error against float64 is at most the plain path's, and a little. Returns what they computed."""
    ours = run("triton", logits, target, upstream, context, **arguments)
    plain = run("torch", logits, target, upstream, context, **arguments)
    wide = {name: double(value) for name, value in arguments.items()}
    exact = run("torch", double(logits), double(target), upstream, None if context is None else double(context), **wide)
    for own, other, true in zip(ours, plain, exact, strict=True):
        assert own.dtype == other.dtype
        assert own.shape == other.shape
        allowed = 1.5 * (other.double() - true).norm() + tolerance * true.norm() + 1e-6
        error = (own.double() - true).norm()
        assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}, size {true.norm():.3g}"
    return ours


_ALL = list(
    itertools.product(
        ("index", "ignore", "two_hot", "probs"),
        (torch.float32, HALF),
        ((16, 21), (7, 13), (8, 40)),
        ("mean", "sum", "none"),
        (0.0, 0.1),
        (False, True),
        ("no", "float", "tensor", "prior"),
        (False, True),
    )
)


@pytest.mark.parametrize("case", random.Random(0).sample(_ALL, 8 if INTERPRETED else 60), ids=str)
def test_error_is_no_larger_than_the_plain_paths(case, regime):
    kind, dtype, (n, K), reduction, smoothing, weighted, anchor, with_context = case
    logits, target = make(kind, n, K, dtype)
    arguments = {"reduction": reduction, "label_smoothing": smoothing}
    if weighted:
        arguments["weight"] = (torch.rand(K) + 0.2).to(DEVICE)
    if anchor != "no":
        arguments["anchor"] = torch.tensor(0.3, device=DEVICE) if anchor == "tensor" else 0.3
    if anchor == "prior":
        arguments["prior"] = torch.rand(K).softmax(0).to(DEVICE)
    context = torch.randn(5, K).to(dtype).to(DEVICE) if with_context else None
    upstream = torch.randn(n if reduction == "none" else ()).to(DEVICE)
    check(logits, target, upstream, context, **arguments)


@pytest.mark.parametrize(("n", "K"), [(1, 1), (5, 1), (1, 9), (2, 2), (33, 3), (3, 33)])
def test_small_and_ragged_shapes(n, K, regime):
    logits, target = make("index", n, K, torch.float32)
    check(logits, target, context=torch.randn(2, K).to(DEVICE))


@pytest.mark.parametrize("scale", [1e4, 300.0])
def test_extreme_logits_and_columns_that_underflow(scale, regime):
    logits, target = make("index", 12, 17, torch.float32, scale=scale)
    logits[:, 3] = -400.0  # log S_3 is in the hundreds below 0, and class 3 is in the targets
    target[0] = 3
    # A log of several hundred carries a float32 error of some 1e-5, here and in the plain path.
    ours = check(logits, target, tolerance=2e-5)
    assert all(bool(value.isfinite().all()) for value in ours)
    check(logits, target, torch.linspace(-1, 2, 12).to(DEVICE), tolerance=2e-5, reduction="none")
    prior = torch.full((17,), 1 / 17).to(DEVICE)
    check(logits, target, context=logits[:3] * 0.5, tolerance=2e-5, anchor=0.5, prior=prior)


def test_ignored_rows_beside_columns_that_underflow(regime):
    logits, target = make("ignore", 12, 17, torch.float32)
    logits[:, 3] = -400.0
    logits[:, 5] = -torch.inf
    target[target == 5] = 4
    target[1] = 3
    check(logits, target, tolerance=2e-5)


def check_rows_held_by_a_group(kind, dtype, n, K):
    from gence.losses.backends.triton import tuning

    logits, target = make(kind, n, K, dtype)
    weight = (torch.rand(K) + 0.2).to(DEVICE)
    context = torch.randn(5, K).to(dtype).to(DEVICE)
    terms = {"weight": weight, "anchor": 0.3, "reduction": "none"}
    if INTERPRETED and dtype == torch.bfloat16:
        terms["tolerance"] = 1e-2  # the interpreter cuts digits off where the GPU rounds
    with tuning.override(**{**_STREAM, **_GROUP}):
        check(logits, target, torch.randn(n).to(DEVICE), context, **terms)
        if dtype == torch.float32:
            logits[:, 3] = -400.0  # underflows, and class 3 is in the targets
            logits[:, 5] = -torch.inf
            logits[:, 7] = -1e9
            if kind == "two_hot":
                check(logits, TwoHot(target.first.clamp(8), target.second.clamp(8), target.share), tolerance=2e-5)
            else:
                target[target >= 0] = target[target >= 0].clamp(8)
                target[1] = 3
                logits[target < 0] = torch.nan
                check(logits, target, tolerance=2e-5)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("ignore", torch.float32),
        ("two_hot", torch.float32),
        ("index", torch.float16),
        ("index", torch.bfloat16),
    ],
    ids=str,
)
def test_rows_held_by_a_group(kind, dtype):
    check_rows_held_by_a_group(kind, dtype, 13, 136)


def test_ignored_rows_may_hold_anything(regime):
    logits, target = make("ignore", 12, 17, torch.float32)
    poisoned = logits.clone()
    poisoned[target == -100] = float("nan")
    loss, grad = run("triton", poisoned, target)
    expected_loss, expected_grad = run("torch", logits, target)
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(grad, expected_grad)


def test_all_ignored_is_nan_with_zero_gradient(regime):
    logits, target = make("index", 6, 5, torch.float32)
    loss, grad = run("triton", logits, torch.full_like(target, -100))
    assert bool(loss.isnan())
    torch.testing.assert_close(
        run("triton", logits, torch.full_like(target, -100), reduction="sum")[0], loss.new_zeros(())
    )
    torch.testing.assert_close(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_labels_of_any_integer_type(dtype, regime):
    logits, target = make("index", 12, 21, torch.float32)
    target[4] = 255  # as masks of images have it
    expected = run("torch", logits, target, ignore_index=255)
    for own, plain in zip(run("triton", logits, target.to(dtype), ignore_index=255), expected, strict=True):
        torch.testing.assert_close(own, plain, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("masked", [-1e4, -1e9])
def test_a_class_masked_by_a_huge_number(masked, regime):
    # Of a size of its own, because the first call of its kind alone is looked at.
    logits, target = make("index", 12 if masked > -1e5 else 13, 21, torch.float32)
    logits[:, 0] = masked
    target[target == 0] = 1
    probs = torch.nn.functional.one_hot(target, 21).float()
    weight = torch.ones(21).index_fill(0, torch.tensor([0]), 0.0).to(DEVICE)
    check(logits, probs)
    check(logits, target, weight=weight, label_smoothing=0.1)
    anchored = {"anchor": 0.1, "prior": torch.full((21,), 1 / 21).to(DEVICE)}
    for options in ({"label_smoothing": 0.1}, anchored):
        if masked > -1e5 or regime == "tiny":  # one program keeps all digits, whatever the mask
            check(logits, target, **options)
            continue
        with pytest.raises(RuntimeError, match="all rows mask a class by a huge number"):
            run("triton", logits, target, **options)
        if DEVICE == "cuda":
            assert gence.losses.why_backend(logits, target, **options).name == "formula"
            found = [run(backend, logits, target, **options)[0] for backend in ("auto", "torch")]
            torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.5}, {"label_smoothing": 0.5, "anchor": 0.3}], ids=str)
def test_the_mean_over_labels_of_weight_0_is_nan_without_a_gradient(options, regime):
    logits, _ = make("index", 7, 5, torch.float32)
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0], device=DEVICE)
    loss, gradient = run("triton", logits, torch.ones(7, dtype=torch.long, device=DEVICE), weight=weight, **options)
    assert loss.isnan()
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("kind", ["index", "two_hot"])
def test_labels_of_a_class_that_all_rows_mask_by_a_huge_number(kind, regime):
    logits, target = make(kind, 12, 22 + (kind == "index"), torch.float32)  # numbers of classes of their own
    labels = target if kind == "index" else target.first
    labels[labels == 0] = 1
    labels[:2] = 0
    logits[:, 0] = -1e9
    if regime == "tiny":
        check(logits, target, reduction="sum")
    for reduction in ("none",) if regime == "tiny" else ("none", "sum"):
        with pytest.raises(RuntimeError, match="all rows mask a class by a huge number"):
            run(
                "triton",
                logits,
                target,
                torch.ones(12 if reduction == "none" else (), device=DEVICE),
                reduction=reduction,
            )


def test_a_class_that_is_ruled_out_lets_the_others_train(regime):
    logits, target = make("index", 12, 21, torch.float32)
    logits[:, 4] = -torch.inf
    target[target == 4] = 5
    prior = torch.full((21,), 1 / 21).to(DEVICE)
    for reduction in ("sum", "none"):
        upstream = torch.ones(12 if reduction == "none" else (), device=DEVICE)
        terms = {"anchor": 0.1, "prior": prior, "reduction": reduction}
        expected = run("torch", logits, target, upstream, **terms)[1]
        assert bool(expected.isfinite().all())
        torch.testing.assert_close(run("triton", logits, target, upstream, **terms)[1], expected, atol=2e-6, rtol=1e-5)


def test_a_row_of_the_lowest_numbers_is_uniform(regime):
    logits, target = make("index", 12, 21, torch.float32)
    logits[2] = torch.finfo(torch.float32).min
    check(logits, target)


def test_all_ignored_has_zero_gradient_under_an_anchor(regime):
    logits, target = make("index", 6, 5, torch.float32)
    nothing = torch.full_like(target, -100)
    for reduction in ("mean", "sum", "none"):
        upstream = torch.ones(6 if reduction == "none" else (), device=DEVICE)
        terms = {"anchor": 0.1, "prior": torch.full((5,), 0.2).to(DEVICE), "reduction": reduction}
        grad = run("triton", logits, nothing, upstream, **terms)[1]
        torch.testing.assert_close(grad, torch.zeros_like(grad))


def test_nan_in_a_row_that_counts_reaches_the_loss(regime):
    logits, target = make("index", 6, 5, torch.float32)
    logits[2, 1] = float("nan")
    assert bool(run("triton", logits, target)[0].isnan())


def test_strided_and_misaligned_logits_are_read_and_not_written(regime):
    logits, target = make("index", 8, 13, torch.float32)
    base = torch.full((8, 20), 1e30, device=DEVICE)
    strided = base[:, 3:16]
    strided.copy_(logits)
    transposed = logits.t().contiguous().t()
    expected = run("torch", logits, target)
    for view in (strided, transposed, logits.repeat_interleave(2, 0)[::2]):
        before = view.clone()
        for own, plain in zip(run("triton", view, target), expected, strict=True):
            torch.testing.assert_close(own, plain, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(view, before, rtol=0, atol=0)
    assert bool((base[:, :3] == 1e30).all())


@pytest.mark.parametrize(("kind", "rows"), [("two_hot", 9), ("index", 0)])
def test_deterministic_on_request(kind, rows, regime):
    logits, target = make(kind, 16, 21, torch.float32)
    context = logits[:rows] if rows else None
    torch.use_deterministic_algorithms(True)
    try:
        first, second = run("triton", logits, target, context=context), check(logits, target, context=context)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_plans_of_many_sizes_are_not_kept_for_ever(monkeypatch):
    from gence.losses.backends import dispatch as fused

    monkeypatch.setattr(fused, "_MOST_PLANS", 2)
    for n in (4, 5, 6, 7):
        check(*make("index", n, 5, torch.float32))
        assert 1 <= len(fused._plans) <= 2


def test_a_plan_is_used_only_under_the_settings_it_was_made_for(monkeypatch):
    from gence.losses.backends import dispatch as fused

    logits, target = make("index", 6, 5, torch.float16)
    prior = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1], device=DEVICE)
    z = logits.clone().requires_grad_()
    used = []
    planned = fused._planned_loss
    monkeypatch.setattr(fused, "_planned_loss", lambda *args: used.append(planned(*args)) or used[-1])

    def by_plan(*args, **options):
        used.clear()
        loss = gence.gen_cross_entropy(*args, **options)
        return loss if bool(used) and used[0] is not None else None

    with gence.set_backend("triton"):
        assert by_plan(z, target).dtype == torch.float16
        with torch.autocast(DEVICE, dtype=HALF):
            assert by_plan(z, target).dtype == torch.float32
        assert by_plan(z, target, reduction="sum") > by_plan(z, target)
        assert by_plan(z, target, ignore_index=int(target[0])) != by_plan(z, target)
        for options in ({"anchor": 0.1}, {"label_smoothing": 0.1}, {"anchor": 0.1, "prior": prior}):
            assert by_plan(z, target, **options) != by_plan(z, target)
        for options in ({"anchor": torch.tensor(0.0, device=DEVICE)}, {"weight": torch.ones(5, device=DEVICE)}):
            assert by_plan(z, target, **options) is None
        assert by_plan(logits, target) is None
        with torch.no_grad():
            assert by_plan(z, target) is None
        with pytest.raises((TypeError, ValueError), match="reduction"):
            gence.gen_cross_entropy(z, target, reduction=["mean"])
        with pytest.raises(TypeError, match="ignore_index"):
            gence.gen_cross_entropy(z, target, ignore_index=-100.0)
    usual = fused.Call(z, target, None, -100, "mean", 0.0, 0.0, None, None)
    with gence.set_backend("torch"):
        torch.testing.assert_close(gence.gen_cross_entropy(z, target), planned(usual))
    with gence.set_backend("auto"):
        gradient = torch.func.grad(gence.gen_cross_entropy)(logits, target)
    torch.testing.assert_close(gradient, run("torch", logits, target)[1])


def test_layouts_of_dense_prediction(regime):
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 3, 2, device=DEVICE)
    target = torch.randint(0, 5, (2, 3, 2), device=DEVICE)
    check(logits, target)
    check(logits, target, torch.rand(2, 3, 2, device=DEVICE), reduction="none")


def test_second_derivative_and_second_backward_pass(regime):
    logits, target = make("index", 6, 5, torch.float32)
    found = []
    for backend in ("triton", "torch"):
        z = logits.clone().requires_grad_()
        with gence.set_backend(backend):
            loss = gence.gen_cross_entropy(z, target)
            (grad,) = torch.autograd.grad(loss, z, create_graph=True)
            (curvature,) = torch.autograd.grad(grad.square().sum(), z)
            loss = gence.gen_cross_entropy(z, target)
            twice = [torch.autograd.grad(loss, z, retain_graph=True)[0] for _ in range(2)]
        torch.testing.assert_close(*twice, rtol=0, atol=0)
        found.append((curvature, twice[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_label_out_of_range_is_nan_on_a_device_that_is_not_looked_at():
    from gence.losses.backends.triton import eager_loss, operands_of
    from gence.losses.targets import Rows

    logits, target = make("index", 6, 5, torch.float32)
    target[1] = 99
    for weight in (None, torch.zeros(5).to(DEVICE).index_fill(0, target[:1], 1.0)):
        rows = Rows(logits, target, None, None, weight, -100, 0.0, "sum", target.shape, torch.float32)
        assert bool(eager_loss(rows, operands_of(rows, 0.0, None), None).isnan())


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_operator_keeps_its_promises():
    importlib.import_module("gence.losses.backends.triton.operator")  # which registers it
    logits, target = make("index", 6, 5, torch.float32)
    arguments = (None, target, None, None, None, None, None, 0.1, 1, -100, 2, 0.0, torch.float32, 0)
    torch.library.opcheck(torch.ops.gence.gen_cross_entropy.default, (logits.requires_grad_(), *arguments))


def test_compiled_in_one_graph(regime):
    torch._dynamo.reset()
    backend = "aot_eager" if INTERPRETED else "inductor"
    compiled = torch.compile(gence.gen_cross_entropy, backend=backend, fullgraph=True)
    logits, target = make("index", 12, 9, torch.float32)
    z = logits.clone().requires_grad_()
    with gence.set_backend("triton"):
        loss = compiled(z, target, anchor=0.1)
    expected_loss, expected = run("torch", logits, target, anchor=0.1)
    torch.testing.assert_close(loss.detach(), expected_loss)
    torch.testing.assert_close(torch.autograd.grad(loss, z)[0], expected)


def test_a_compiled_graph_says_what_its_buffers_were_made_for():
    """So that one from the compiler's cache on disk never meets buffers of another size."""
    from gence.losses.backends.triton import tuning

    graphs = []

    def keep(module, _):
        graphs.append(module.code)
        return module.forward

    logits, target = make("index", 12, 9, torch.float32)
    for name in ("tiny", "rows"):
        torch._dynamo.reset()
        with tuning.override(**REGIMES[name]), gence.set_backend("triton"):
            torch.compile(gence.gen_cross_entropy, backend=keep, fullgraph=True)(logits, target)
    assert graphs[0] != graphs[1]
