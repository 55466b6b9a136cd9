"""Attack on the losses: random calls of every loss, in every form, against loops in float64."""

from __future__ import annotations

import math
import os
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gence
from gence import LOSSES, TwoHot
from tests.adversarial import references
from tests.adversarial.references import Problem

DTYPES = (torch.float64, torch.float32, torch.float32, torch.float16, torch.bfloat16)
BACKENDS = ("auto", "auto", "torch")
STEP = 1e-5
SHARES = {"value": 70, "transforms": 10, "writes": 8, "threads": 3, "autocast": 6, "supcon": 3, "compiled": 0.5}
OF_LOGITS = [name for name, info in LOSSES.items() if not info.masks_classes]  # what a mask means is their own affair
OF_ANY_SIZE = [name for name, info in LOSSES.items() if info.takes == "logits"]


class Call:
    """A random call of one loss, and the same problem as lists."""

    def __init__(
        self,
        rng: random.Random,
        *,
        small: bool,
        dtypes: tuple[torch.dtype, ...] = DTYPES,
        name: str | None = None,
        wide: int | None = None,
    ) -> None:
        self.rng = rng
        self.generator = torch.Generator().manual_seed(rng.getrandbits(40))
        self.name = name or rng.choice(["gence"] * 8 + sorted(references.LOSSES))
        self.dtype = rng.choice(dtypes)
        many = not small and rng.random() < 0.1
        n, K = (rng.randint(257, 300), rng.randint(2, 4)) if many else (rng.randint(1, 9), rng.randint(1, 6))
        if wide is not None:
            n, K = rng.randint(2, 3), wide
        self.n, self.K = n, K
        self.layout = rng.choice(["rows"] * 3 + ["dense", "unbatched" if not many else "rows"])
        if self.layout == "unbatched":
            self.n = n = 1
        z = torch.randn(n, K, generator=self.generator, dtype=torch.float64)
        if self.name in ("dual_focal", "mbls"):  # not smooth where two classes are level
            z = 0.75 * z.argsort(1).double()
        z *= rng.choice([0.1, 1.0, 5.0, 30.0])
        self.masked = rng.randrange(K) if K > 2 and self.name not in OF_LOGITS and rng.random() < 0.35 else None
        self.mask_value = rng.choice([-1e4, -1e9, -1e9, -math.inf]) if self.dtype != torch.float16 else -6e4
        if self.masked is not None:
            z[:, self.masked] = self.mask_value
        elif rng.random() < 0.1 and self.name not in OF_LOGITS and self.dtype != torch.float16:
            z *= 300
        self.z = z.to(self.dtype)
        self.options: dict[str, Any] = {"reduction": rng.choice(["mean", "sum", "none"])}
        self.weight = None
        if rng.random() < 0.4:
            self.weight = torch.rand(K, generator=self.generator) + 0.1
            if rng.random() < 0.3 and K > 1:
                self.weight[rng.randrange(K)] = 0.0
            self.options["weight"] = self.weight
        free = self.masked is None or self.mask_value > -math.inf
        self.smoothing = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0]) if free else 0.0
        self.options["label_smoothing"] = self.smoothing
        self._make_target(free and rng.random() < 0.5)
        self._make_terms(free)

    def _make_target(self, any_label: bool) -> None:
        rng, n, K = self.rng, self.n, self.K
        allowed = [k for k in range(K) if any_label or k != self.masked]
        labels = [rng.choice(allowed) for _ in range(n)]
        self.kind = rng.choice(["index", "index", "probabilities", "two_hot"])
        self.ignore = -100
        self.shares: list[list[float] | None]
        if self.kind == "index":
            self.ignore = rng.choice([-100, -1, 255])
            share_ignored = rng.choice([0.0, 0.0, 0.4, 1.0])
            labels = [self.ignore if rng.random() < share_ignored else y for y in labels]
            kinds = [torch.int64, torch.int64, torch.int32] + ([torch.uint8] if self.ignore == 255 else [])
            self.target: Any = torch.tensor(labels).to(rng.choice(kinds))
            self.shares = [None if y == self.ignore else [float(k == y) for k in range(K)] for y in labels]
            self.options["ignore_index"] = self.ignore
        elif self.kind == "probabilities":
            t = torch.rand(n, K, generator=self.generator, dtype=torch.float64) ** 3
            t[:, [k for k in range(K) if k not in allowed]] = 0
            t = (t / t.sum(1, keepdim=True)).to(self.dtype)
            self.target = t
            self.shares = t.double().tolist()
        else:
            second = [rng.choice(range(K)) for _ in range(n)]
            share = [1.0 if second[i] not in allowed else rng.choice([0.0, 1.0, rng.random()]) for i in range(n)]
            s = torch.tensor(share, dtype=self.dtype)
            self.target = TwoHot(torch.tensor(labels), torch.tensor(second), s)
            self.shares = [
                [float(v) * (k == y) + (1 - float(v)) * (k == o) for k in range(K)]
                for y, o, v in zip(labels, second, s.double().tolist(), strict=True)
            ]

    def _make_terms(self, free: bool) -> None:
        rng, K = self.rng, self.K
        self.anchor, self.prior, self.context = 0.0, None, None
        if self.name == "gence":
            self.anchor = rng.choice([0.0, 0.0, 0.1, 1.0, 2.5])
            given: Any = torch.tensor(self.anchor) if rng.random() < 0.3 else self.anchor
            self.options["anchor"] = given
            if isinstance(given, Tensor):
                self.anchor = given.item()
            if rng.random() < 0.4:
                self.context = torch.randn(rng.randint(1, 4), K, generator=self.generator, dtype=torch.float64)
                if self.masked is not None and rng.random() < 0.7:
                    self.context[:, self.masked] = self.mask_value
                self.context = self.context.to(self.dtype)
                self.options["context"] = self.context
        if self.name in ("gence", "logit_adjusted") and rng.random() < 0.5:
            prior = torch.rand(K, generator=self.generator) + 0.1
            if self.name == "gence" and (not free or rng.random() < 0.2) and self.masked is not None:
                prior[self.masked] = 0.0
            self.prior = prior / prior.sum()
            self.options["prior"] = self.prior

    def problem(self, z: Tensor | None = None) -> Problem:
        weight = [1.0] * self.K if self.weight is None else self.weight.double().tolist()
        of_row = [0.0 if s is None else (weight[s.index(1.0)] if self.kind == "index" else 1.0) for s in self.shares]
        return Problem(
            (self.z if z is None else z).double().tolist(), self.shares, weight, of_row, self.smoothing, self.anchor,
            None if self.prior is None else self.prior.double().tolist(),
            [] if self.context is None else self.context.double().tolist(),
        )  # fmt: skip

    def arguments(self) -> tuple[Tensor, Any]:
        """Input and target as they are given, in the call's layout and with odd strides."""
        z, target = self.z.clone(), self.target
        if self.layout == "unbatched":
            return z[0], TwoHot(*(v[0] for v in target)) if self.kind == "two_hot" else target[0]
        if self.layout == "dense":  # (n, K) as (N, K, d)
            d = max(d for d in (1, 2, 3) if self.n % d == 0)

            def dense(values: Tensor) -> Tensor:
                return values.reshape(self.n // d, d, *values.shape[1:]).movedim(1, -1)

            z = dense(z)
            return z, TwoHot(*map(dense, target)) if self.kind == "two_hot" else dense(target)
        strides = self.rng.choice(["plain", "columns", "slices"])
        if strides == "columns":
            z = z.t().contiguous().t()
        elif strides == "slices":
            z = torch.cat([torch.full_like(z, math.nan), z], 1)[:, self.K :]
        return z, target

    def __repr__(self) -> str:
        few = self.n * self.K < 60
        return (
            f"{self.name} {self.kind} {self.layout} n={self.n} K={self.K} {self.dtype} masked={self.masked} "
            f"by {self.mask_value} {self.options} z={self.z.tolist() if few else '...'} "
            f"target={self.target if few else '...'}"
        )


def value(call: Call, problem: Problem) -> tuple[float, float, list[float]]:
    """The reference: (sum or mean, largest number on the way, rows' losses)."""
    losses, largest = references.LOSSES[call.name](problem)
    reduction = "sum" if call.options["reduction"] == "none" else call.options["reduction"]
    return references.reduced(losses, problem, reduction), largest, losses


def tolerance(call: Call, largest: float, size: float) -> float:
    eps = 2.3e-16 if call.dtype == torch.float64 else 1.2e-7
    rounding = torch.finfo(call.dtype).eps
    scale = (max(call.n, 1) if call.options["reduction"] == "none" else 1) * (1 + call.anchor)
    sums = call.n if call.options["reduction"] == "sum" else scale
    sized = call.z.double().abs()
    largest = max(largest, sized[sized < 1e5].max().item() if bool((sized < 1e5).any()) else 1.0)
    return 40 * eps * largest * max(sums, 1) + 4 * rounding * abs(size) + 1e-30


def agree(found: float, expected: float, allowed: float, what: str) -> None:
    if math.isnan(expected) or math.isinf(expected):
        assert math.isnan(found) or found == expected, f"{what}: {found} for {expected}"
    else:
        assert abs(found - expected) <= allowed, f"{what}: {found} for {expected}, {allowed} allowed"


def check_value_and_gradient(call: Call, backend: str) -> None:
    z, target = call.arguments()
    z.requires_grad_()
    with gence.set_backend(backend):
        loss = LOSSES[call.name].function(z, target, **call.options)
    assert loss.dtype == call.dtype
    problem = call.problem()
    expected, largest, rows = value(call, problem)
    if call.dtype == torch.float16 and (abs(expected) > 6e4 or any(abs(v) > 6e4 for v in rows)):
        return
    allowed = tolerance(call, largest, expected)
    agree(
        loss.double().sum().item(),
        expected,
        max(allowed, 4 * torch.finfo(call.dtype).eps * sum(map(abs, rows))),
        "value",
    )
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    gradient = gradient.double()
    if call.layout == "unbatched":
        gradient = gradient[None]
    elif call.layout == "dense":
        gradient = gradient.movedim(1, -1).reshape(call.n, call.K)
    ignored = [i for i, share in enumerate(call.shares) if share is None]
    assert not gradient[ignored].any(), "gradient of an ignored row"
    if not math.isfinite(expected):
        return
    # Central differences of the reference, along a direction of signs; huge numbers cannot be moved by a step.
    signs = torch.randint(0, 2, call.z.shape, generator=call.generator).double() * 2 - 1
    signs[call.z.double().abs() > 5e3] = 0
    ends = [value(call, call.problem(call.z.double() + sign * STEP * signs))[0] for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * STEP)
    eps = 2.3e-16 if call.dtype == torch.float64 else 1.2e-7
    size = 1 + gradient.abs().sum().item()
    allowed = size * (1e-5 + 100 * eps * largest + 4 * torch.finfo(call.dtype).eps)
    allowed += 1e-15 * (abs(ends[0]) + largest * call.n) * 20 / STEP
    if call.name in ("cosine", "logit_norm"):  # curved where the row is short
        allowed += STEP**2 * sum(25 / row.norm().item() ** 3 for row in call.z.double()) * size
    agree((gradient * signs).sum().item(), slope, allowed, "gradient")


def check_transforms(call: Call) -> None:
    """vmap, jacrev and second derivatives are those of calls one by one."""
    z = call.z.double()
    target = call.target.double() if call.kind == "probabilities" else call.target
    options = {**call.options, "reduction": "sum"}
    for name in ("context", "weight", "prior"):
        if options.get(name) is not None:
            options[name] = options[name].double()

    def loss(values: Tensor) -> Tensor:
        return LOSSES[call.name].function(values, target, **options)

    a, b = z.clone(), (z + 0.25 * torch.randn(z.shape, generator=call.generator, dtype=z.dtype))
    one_by_one = torch.stack([loss(a), loss(b)])
    torch.testing.assert_close(torch.vmap(loss)(torch.stack([a, b])), one_by_one, equal_nan=True)
    x = a.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
    jacobian = torch.func.jacrev(loss)(a)
    torch.testing.assert_close(jacobian, gradient.detach(), equal_nan=True)
    if call.rng.random() < 0.1 and bool(gradient.isfinite().all()):
        along = torch.randn(z.shape, generator=call.generator, dtype=z.dtype)
        along[:, [k for k in range(call.K) if k == call.masked]] = 0
        value, tangent = torch.func.linearize(loss, a)
        torch.testing.assert_close(value, one_by_one[0])
        torch.testing.assert_close(tangent(along), (gradient.detach() * along).sum(), rtol=1e-6, atol=1e-7)
    if bool(gradient.isfinite().all()) and call.masked is None:
        direction = torch.randn(z.shape, generator=call.generator, dtype=z.dtype)
        (second,) = torch.autograd.grad((gradient * direction).sum(), x)
        with torch.enable_grad():

            def slope(values: Tensor) -> Tensor:
                values = values.clone().requires_grad_()
                return torch.autograd.grad(loss(values), values)[0]

            numeric = (slope(a + STEP * direction) - slope(a - STEP * direction)) / (2 * STEP)
        hessian = torch.func.hessian(loss)(a).reshape(z.numel(), z.numel())
        torch.testing.assert_close(hessian @ direction.reshape(-1), second.reshape(-1), rtol=1e-6, atol=1e-8)
        size = 1 + second.abs().max().item()
        assert (second - numeric).abs().max().item() <= 2e-4 * size, "second derivative"


def check_writes(call: Call) -> None:
    """What is written into between loss and backward pass is an error, or changes nothing."""
    z, target = call.arguments()
    z = z.requires_grad_()
    expected = torch.autograd.grad(LOSSES[call.name].function(z, target, **call.options).sum(), z)[0]
    input = z * 1
    loss = LOSSES[call.name].function(input, target, **call.options).sum()
    victims = [input.detach(), *(target if call.kind == "two_hot" else [target])]
    victims += [v.detach() for v in (call.weight, call.prior, call.context) if v is not None]
    victim = call.rng.choice(victims)
    kept = victim.clone()
    victim.fill_(0)
    try:
        found = torch.autograd.grad(loss, z)[0]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)
    finally:
        victim.copy_(kept)


def check_threads(call: Call) -> None:
    z, target = call.arguments()

    def gradient(_: int) -> tuple[Tensor, Tensor]:
        x = z.detach().clone().requires_grad_()
        loss = LOSSES[call.name].function(x, target, **call.options).sum()
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    expected = gradient(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(gradient, range(8)):
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


def check_autocast(call: Call) -> None:
    z, target = call.arguments()
    z.requires_grad_()
    expected = LOSSES[call.name].function(z.double(), target, **call.options)
    with torch.autocast("cpu", torch.bfloat16):
        loss = LOSSES[call.name].function(z, target, **call.options)
        assert loss.dtype == (torch.float64 if call.dtype == torch.float64 else torch.float32), loss.dtype
        torch.autograd.grad(loss.sum(), z)
    _, largest, _ = value(call, call.problem())
    allowed = 1e-4 * (1 + expected.detach().abs().nan_to_num(0).max().item()) + 1e-5 * largest
    both = expected.isfinite() & loss.double().isfinite()
    assert bool(((loss - expected).abs()[both] <= allowed).all()), f"autocast {loss.tolist()} for {expected.tolist()}"


def check_compiled(call: Call) -> None:
    """A compiled call has the value and the gradient of a plain one."""
    z, target = call.arguments()
    found = []
    for function in (LOSSES[call.name].function, torch.compile(LOSSES[call.name].function, backend="aot_eager")):
        x = z.detach().clone().requires_grad_()
        loss = function(x, target, **call.options)
        found.append((loss.detach(), *torch.autograd.grad(loss.sum(), x)))
    torch.compiler.reset()
    size = 1 + found[0][0].abs().nan_to_num(0, 0, 0).max().item()
    eps = torch.finfo(call.dtype).eps
    torch.testing.assert_close(found[1], found[0], equal_nan=True, rtol=1e3 * eps, atol=1e3 * eps * size)


def check_contrastive(rng: random.Random) -> None:
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    n, d = rng.randint(3, 8), rng.randint(1, 5)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64) + 0.01
    labels = [rng.randrange(2) for _ in range(n)]
    expected = references.contrastive(rows.tolist(), labels)
    found = gence.supcon_loss(rows, torch.tensor(labels)).item()
    assert abs(found - expected) <= 1e-9 * (1 + abs(expected)), f"supcon {found} for {expected}"


def case(rng: random.Random, place: Path) -> str:
    """A random call of a random loss: value, gradient, transforms, writes and threads against loops in float64."""
    del place
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "gen_cross_entropy on one row")
        warnings.filterwarnings("ignore", module=r"torch\.(fx|jit)\b")  # what linearize says of its own graphs
        what = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if what == "supcon":
            check_contrastive(rng)
            return what
        call = Call(rng, small=what != "value")
        try:
            if what == "value":
                backend = rng.choice(BACKENDS)
                check_value_and_gradient(call, backend)
                return f"{call.name} by {backend}"
            {"transforms": check_transforms, "writes": check_writes, "threads": check_threads,
             "autocast": check_autocast, "compiled": check_compiled}[what](call)  # fmt: skip
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}\n{call!r}") from error
        return what


_at_first: list[tuple[float, int]] = []
STEPS = 1000


def steps_case(rng: random.Random, place: Path) -> str:
    """1,000 steps of a loss with its monitor: memory and open files stay what they were after the first of them."""
    del place
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    name, K = rng.choice(["gence", "gence", *OF_ANY_SIZE]), rng.randint(2, 20)
    options = {"anchor": 0.1} if name == "gence" else {}
    monitor = gence.MarginalMonitor(threshold=1e9)
    for _ in range(STEPS):
        n = rng.randint(2, 64)
        z = torch.randn(n, K, generator=generator, requires_grad=True)
        y = torch.randint(K, (n,), generator=generator)
        LOSSES[name].function(z, y, **options).backward()
        monitor.update(z.detach(), y)
    monitor.check(warn=False)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    files = len(list(Path("/proc/self/fd").iterdir()))
    _at_first.append((resident, files))
    if len(_at_first) > 10:  # by then every loss has been called
        before, known = max(mib for mib, _ in _at_first[:10]), max(number for _, number in _at_first[:10])
        assert resident <= before + 16, (
            f"{resident:.0f} MiB after {len(_at_first)} times 1000 steps, {before:.0f} before"
        )
        assert files <= known, f"{files} open files, {known} before"
    return f"{STEPS} steps, memory up to {-(-resident // 32) * 32:.0f} MiB, {files} open files"


def interpreted_case(rng: random.Random, place: Path) -> str:
    """A random call of GenCE's Triton kernels in Triton's interpreter, against the same loops.

    In a process whose environment has TRITON_INTERPRET=1.
    """
    del place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Rows that are too long for a tile go through kernels of their own.
        wide = rng.choice([17001, 66000]) if rng.random() < 0.005 else None
        dtypes = (torch.float32, torch.float32, torch.float16)
        call = Call(rng, small=rng.random() < 0.8, dtypes=dtypes, name="gence", wide=wide)
        try:
            check_value_and_gradient(call, "triton")
        except RuntimeError as error:  # refused by name
            if "all rows mask a class by a huge number" in str(error):
                return "triton, refused"
            raise AssertionError(f"{error}\n{call!r}") from error
        except AssertionError as error:
            if call.masked is not None and call.mask_value == -1e9:
                # The first call of its kind is looked at for such masks, and this one came later.
                check_value_and_gradient(call, "torch")
                return "triton, a mask that came later"
            raise AssertionError(f"triton: {error}\n{call!r}") from error
    return "triton" if wide is None else "triton, long rows"
