"""Attack on parts of a batch: micro-batches, running marginals, ranks, two passes, the monitor, offsets, samplers."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gence
from gence import BatchMarginal, GenCELoss, MarginalMonitor, RunningMarginal, TwoHot
from gence.lab.data import ClassStratifiedBatchSampler
from tests.adversarial import references
from tests.adversarial.losses import Call, agree
from tests.adversarial.ranks import ask, own
from tests.adversarial.references import Problem, log_sum_exp

SHARES = {"micro-batches": 25, "running": 15, "ranks": 30, "two passes": 10, "monitor": 8, "offset": 6, "sampler": 6}
STEP = 1e-5


def cut(rng: random.Random, n: int, parts: int) -> list[slice]:
    """Rows in so many parts, of any sizes: some have none."""
    ends = sorted(rng.randint(0, n) for _ in range(parts - 1))
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, n], strict=True)]


def of_rows(values: Any, rows: slice) -> Any:
    return TwoHot(*(part[rows] for part in values)) if isinstance(values, TwoHot) else values[rows]


class Whole:
    """A random batch and its loss by loops, whose context rows are dealt out to parts too."""

    def __init__(self, rng: random.Random, parts: int, dtypes: tuple[torch.dtype, ...], reductions: list[str]) -> None:
        call = Call(rng, small=True, dtypes=dtypes, name="gence")
        self.call, self.rng = call, rng
        if call.masked is not None and call.mask_value == -1e9 and call.dtype != torch.float64:
            call.z[:, call.masked] = call.mask_value = -1e4  # parts hand on logarithms, which have no digits beyond
            if call.context is not None:
                call.context = call.context.clamp(min=-1e4)
        self.reduction = call.options["reduction"] = rng.choice(reductions)
        self.rows = cut(rng, call.n, parts)
        self.others = [None] * parts if call.context is None else cut(rng, call.context.shape[0], parts)
        self.options = {k: v for k, v in call.options.items() if k not in ("context", "anchor")}
        self.options["anchor"] = call.anchor
        self.terms = {k: v for k, v in self.options.items() if k in ("weight", "ignore_index", "label_smoothing")}
        self.context_grads = rng.random() < 0.5 and self.reduction != "none"

    def part(self, which: int) -> tuple[Tensor, Any, Tensor | None]:
        """Logits, target and context of a part, as leaves."""
        z = self.call.z[self.rows[which]].clone().requires_grad_()
        context = None
        if self.others[which] is not None:
            context = self.call.context[self.others[which]].clone().requires_grad_(self.context_grads)
        return z, of_rows(self.call.target, self.rows[which]), context

    def expected(self, z: Tensor | None = None, context: Tensor | None = None) -> tuple[float, float, list[float]]:
        problem = self.call.problem(z)
        if context is not None:
            problem.context = context.double().tolist()
        losses, largest = references.generative(problem)
        total = references.reduced(losses, problem, "sum" if self.reduction == "none" else self.reduction)
        return total, max(largest, self.call.z.double().abs().clamp(max=1e5).max().item()), losses

    def check(self, loss: float, rows: Tensor | None, gradient: Tensor, of_context: Tensor | None, what: str) -> None:
        """The parts' sum is the whole batch's loss, and their gradients are its gradient."""
        expected, largest, losses = self.expected()
        eps = 2.3e-16 if self.call.dtype == torch.float64 else 1.2e-7
        size = 4 * torch.finfo(self.call.dtype).eps * math.fsum(map(abs, losses))
        scale = 1 if self.reduction == "mean" else self.call.n
        masked = 1e9 if self.call.masked is not None and self.call.mask_value == -1e9 else 0.0
        allowed = 60 * eps * max(largest, masked) * (1 + self.call.anchor) * scale + size
        agree(loss, expected, allowed, f"{what}: value")
        if rows is not None:
            for found, own in zip(rows.double().tolist(), losses, strict=True):
                agree(found, own, allowed, f"{what}: a row's loss")
        ignored = [i for i, share in enumerate(self.call.shares) if share is None]
        assert not gradient[ignored].any(), f"{what}: gradient of an ignored row"
        if not math.isfinite(expected):
            return
        z, context = self.call.z.double(), self.call.context
        signs = torch.randint(0, 2, z.shape, generator=self.call.generator).double() * 2 - 1
        signs[z.abs() > 5e3] = 0
        ends, along = [], (gradient.double() * signs).sum().item()
        of_others = None
        if of_context is not None:
            of_others = torch.randint(0, 2, context.shape, generator=self.call.generator).double() * 2 - 1
            of_others[context.double().abs() > 5e3] = 0
            along += (of_context.double() * of_others).sum().item()
        for sign in (1, -1):
            moved = None if of_others is None else context.double() + sign * STEP * of_others
            ends.append(self.expected(z + sign * STEP * signs, moved)[0])
        slope = (ends[0] - ends[1]) / (2 * STEP)
        whole = 1 + gradient.abs().sum().item() + (0 if of_context is None else of_context.abs().sum().item())
        near = whole * (1e-5 + 100 * eps * max(largest, masked) + 4 * torch.finfo(self.call.dtype).eps)
        agree(along, slope, near + 1e-15 * (abs(ends[0]) + largest * self.call.n) * 20 / STEP, f"{what}: gradient")

    def __repr__(self) -> str:
        return f"{self.call!r} rows={self.rows} context={self.others}"


def check_micro_batches(rng: random.Random) -> str:
    """Shares of micro-batches add up to the large batch's loss."""
    parts = rng.randint(1, 4)
    whole = Whole(rng, parts, (torch.float64, torch.float64, torch.float32), ["mean", "sum", "none"])
    try:
        marginal = BatchMarginal(**whole.terms)
        criterion = gence.gen_cross_entropy
        pieces = [whole.part(which) for which in range(parts)]
        for z, target, context in rng.sample(pieces, parts):
            if z.shape[0] or context is not None or rng.random() < 0.5:
                marginal.update(z, target, context)
        if all(z.shape[0] == 0 and context is None for z, _, context in pieces):
            return "micro-batches"
        losses = [criterion(z, t, context=c, marginal=marginal, **whole.options) for z, t, c in pieces]
        wanted = [v for z, _, c in pieces for v in (z, c) if v is not None and v.requires_grad]
        grads = iter(torch.autograd.grad(sum(loss.sum() for loss in losses), wanted, allow_unused=True))
        filled = [
            [None if v is None or not v.requires_grad else own(next(grads), v) for v in (z, c)] for z, _, c in pieces
        ]
        rows = torch.cat(losses) if whole.reduction == "none" else None
        of_context = None
        if whole.context_grads and whole.call.context is not None:
            of_context = torch.cat([c for _, c in filled])
        loss = sum(part.double().sum().item() for part in losses)
        whole.check(loss, rows, torch.cat([z for z, _ in filled]), of_context, "micro-batches")
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{whole!r}") from error
    return "micro-batches"


def running_reference(problem: Problem, past: dict[str, Any], momentum: float) -> tuple[float, dict[str, Any]]:
    """The sum that a running marginal's gradient is of, with the past as constants; and the new past."""
    targets, K = problem.targets(), len(problem.weight)
    rows = [problem.logits[i] for i in targets]
    logs = {i: [v - log_sum_exp(problem.logits[i]) for v in problem.logits[i]] for i in targets}
    everything = [[v - log_sum_exp(row) for v in row] for row in (*rows, *problem.context)]
    kept = math.log(momentum) if momentum else -math.inf
    now: dict[str, Any] = {"log_sums": [], "mass": [], "total": momentum * past["total"] + len(everything)}
    for k in range(K):
        terms = [past["log_sums"][k] + kept, *(row[k] for row in everything)]
        now["log_sums"].append(log_sum_exp(terms))
        now["mass"].append(momentum * past["mass"][k] + math.fsum(t[k] for t in targets.values()))
    whole, divergence = math.fsum(now["mass"]), 0.0
    for k in range(K):
        pi = (now["mass"][k] / whole if whole > 0 else 0.0) if problem.prior is None else problem.prior[k]
        if pi > 0 and now["total"] > 0:
            divergence += pi * (math.log(pi) - now["log_sums"][k] + math.log(max(now["total"], 1)))
    loss = math.fsum(
        t[k] * (now["log_sums"][k] - logs[i][k]) for i, t in targets.items() for k in range(K) if t[k]
    ) + problem.anchor * divergence * math.fsum(v for t in targets.values() for v in t)
    held = math.fsum(now["mass"][k] * now["log_sums"][k] for k in range(K) if now["mass"][k])
    surrogate = held - math.fsum(t[k] * logs[i][k] for i, t in targets.items() for k in range(K) if t[k])
    return loss, {**now, "surrogate": surrogate + problem.anchor * whole * divergence}


def check_running(rng: random.Random) -> str:
    """Several steps of a running marginal: value, gradient and what is remembered."""
    momentum, first = rng.choice([0.0, 0.5, 0.9, 0.99]), Call(rng, small=True, dtypes=(torch.float64,), name="gence")
    K = first.K
    running = RunningMarginal(K, momentum).double()
    past: dict[str, Any] = {"log_sums": [-math.inf] * K, "mass": [0.0] * K, "total": 0.0}
    call, steps = first, rng.randint(1, 4)
    for _ in range(steps):
        if call.masked is not None:
            call.z[:, call.masked] = -20.0
            if call.context is not None:
                call.context = call.context.clamp(min=-20.0)
        z = call.z.clone().requires_grad_()
        options = {**call.options, "reduction": "sum", "context": call.context}
        try:
            training = rng.random() < 0.8
            running.train(training)
            loss = gence.gen_cross_entropy(z, call.target, marginal=running, **options)
            expected, now = running_reference(call.problem(), past, momentum)
            agree(loss.item(), expected, 1e-9 * (1 + abs(expected)) * (1 + call.anchor), "running: value")
            (gradient,) = torch.autograd.grad(loss, z)
            if math.isfinite(expected):
                signs = torch.randint(0, 2, z.shape, generator=call.generator).double() * 2 - 1
                ends = [running_reference(call.problem(call.z + s * STEP * signs), past, momentum)[1]["surrogate"]
                        for s in (1, -1)]  # fmt: skip
                size = 1 + gradient.abs().sum().item() + 1e-9 / STEP * abs(ends[0]) * 1e-5
                agree((gradient * signs).sum().item(), (ends[0] - ends[1]) / (2 * STEP), 1e-5 * size, "running")
            if training:
                past = now
            for name in ("log_sums", "mass"):
                found = getattr(running, name).tolist()
                for a, b in zip(found, past[name], strict=True):
                    agree(a, b, 1e-9 * (1 + abs(b)) if math.isfinite(b) else 0, f"running: {name}")
            agree(running.total.item(), past["total"], 1e-9 * (1 + past["total"]), "running: total")
        except Exception as error:
            raise AssertionError(f"running: {type(error).__name__}: {error}\n{momentum} {call!r}") from error
        call = Call(rng, small=True, dtypes=(torch.float64,), name="gence")
        while call.K != K:
            call = Call(rng, small=True, dtypes=(torch.float64,), name="gence")
    return "running marginals"


def check_ranks(rng: random.Random) -> str:
    """Ranks with uneven and empty parts are one batch: their mean is its loss and its gradient."""
    ranks, collected = rng.choice([2, 3]), rng.random() < 0.4
    per_rank = rng.randint(1, 3) if collected else 1
    whole = Whole(rng, ranks * per_rank, (torch.float64, torch.float32), ["mean", "sum"])
    try:
        questions = []
        for rank in range(ranks):
            pieces = [
                tuple(v.detach() if isinstance(v, Tensor) else v for v in whole.part(rank * per_rank + i))
                for i in range(per_rank)
            ]
            questions.append(
                {"what": "collected" if collected else "at once", "ranks": ranks, "pieces": pieces,
                 "context_grads": whole.context_grads, "options": whole.options, "terms": whole.terms}
            )  # fmt: skip
        answers = ask(questions)
        of_parts = [piece for answer in answers for piece in answer["grads"]]
        loss = sum(loss.double().item() for answer in answers for loss in answer["losses"]) / ranks
        of_context = None
        if whole.context_grads and whole.call.context is not None:
            of_context = torch.cat([grads[1] for grads in of_parts]) / ranks
        whole.check(loss, None, torch.cat([grads[0] for grads in of_parts]) / ranks, of_context, "ranks")
    except Exception as error:
        raise AssertionError(f"{ranks} ranks: {type(error).__name__}: {error}\n{whole!r}") from error
    return f"{ranks} ranks" + (", collected" if collected else "")


def check_two_passes(rng: random.Random) -> str:
    """A large batch in two passes has the gradient of one, with dropout repeated and buffers moved once."""
    call = Call(rng, small=True, dtypes=(torch.float64,), name="gence")
    call.options["reduction"] = rng.choice(["mean", "sum"])
    d, rows = rng.randint(1, 4), cut(rng, call.n, rng.randint(1, 4))
    x = torch.randn(call.n, d, generator=call.generator, dtype=torch.float64)
    before: list[torch.nn.Module] = [torch.nn.Identity()]
    if rng.random() < 0.4:
        before = [torch.nn.Dropout(0.5)]
    elif all(part.stop - part.start > 1 for part in rows):
        before = [torch.nn.BatchNorm1d(d, affine=False).double()]
    layer = torch.nn.Linear(d, call.K).double()
    model = torch.nn.Sequential(*before, layer)
    options = {k: v for k, v in call.options.items() if k != "context"}
    seed, held = rng.getrandbits(30), torch.randn(layer.weight.shape, dtype=torch.float64)
    micro_batches = [(x[part], of_rows(call.target, part)) for part in rows]
    layer.weight.grad = held.clone()  # gradients are added to those that are there
    torch.manual_seed(seed)
    loss = gence.two_pass_backward(model, GenCELoss(**options), micro_batches)
    found = layer.weight.grad - held
    again = [torch.nn.BatchNorm1d(d, affine=False).double()] if isinstance(before[0], torch.nn.BatchNorm1d) else before
    torch.manual_seed(seed)
    seen = torch.cat([again[0](part) for part, _ in micro_batches])
    for name, buffer in again[0].state_dict().items():
        torch.testing.assert_close(before[0].state_dict()[name], buffer, rtol=0, atol=0)
    call.context = None

    def expected(weight: Tensor) -> float:
        problem = call.problem((seen @ weight.T + layer.bias).detach())
        return references.reduced(references.generative(problem)[0], problem, call.options["reduction"])

    try:
        agree(loss.item(), expected(layer.weight), 1e-8 * (1 + abs(loss.item())), "two passes: value")
        if math.isfinite(loss.item()):
            along = torch.randn(layer.weight.shape, generator=call.generator, dtype=torch.float64)
            slope = (expected(layer.weight + STEP * along) - expected(layer.weight - STEP * along)) / (2 * STEP)
            size = 1 + (found * along).abs().sum().item() + abs(loss.item())
            agree((found * along).sum().item(), slope, 1e-5 * size, "two passes: gradient")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{rows} {model} {call!r}") from error
    return "two passes"


def divergence(prior: list[float], marginal: list[float]) -> float:
    return math.fsum(p * (math.log(p) - math.log(max(m, 1e-300))) for p, m in zip(prior, marginal, strict=True) if p)


def check_monitor(rng: random.Random) -> str:
    """The monitor's divergence is that of loops, over batches, a checkpoint and ranks."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    K, kind = rng.randint(2, 5), rng.choice(["nothing", "labels", "labels", "prior", "probabilities"])
    prior = None
    if kind == "prior":
        prior = torch.rand(K, generator=generator) + (torch.arange(K) > 0) * 0.1
        prior = prior / prior.sum()
    batches: list[tuple[Tensor, Any]] = []
    for _ in range(rng.randint(1, 6)):
        n = rng.randint(1, 8)
        z = 3 * torch.randn(n, K, generator=generator)
        target: Any = None
        if kind == "labels" or (kind == "prior" and rng.random() < 0.5):
            target = torch.tensor([rng.choice([-100, *range(K)]) for _ in range(n)])
        elif kind == "probabilities":
            target = torch.rand(n, K, generator=generator).softmax(1)
        batches.append((z, target))
    predicted, labels, rows = [0.0] * K, [0.0] * K, 0
    for z, target in batches:
        for i, row in enumerate(z.double().tolist()):
            if target is not None and target.dim() == 1 and target[i] == -100:
                continue
            rows += 1
            for k in range(K):
                predicted[k] += math.exp(row[k] - log_sum_exp(row))
                if target is not None:
                    labels[k] += float(target[i] == k) if target.dim() == 1 else target[i, k].item()
    truth = prior.double().tolist() if prior is not None else [1 / K] * K
    if kind in ("labels", "probabilities"):
        truth = [share / max(math.fsum(labels), 1e-300) for share in labels]
    expected = divergence(truth, [p / rows for p in predicted]) if rows else math.nan
    monitor = MarginalMonitor(prior, threshold=1e9)
    for z, target in batches[: len(batches) // 2]:
        monitor.update(z, target)
    other = MarginalMonitor(prior, threshold=1e9)
    other.load_state_dict(monitor.state_dict())
    for z, target in batches[len(batches) // 2 :]:
        other.update(z, target)
    agree(other.check(warn=False), expected, 1e-5 * (1 + abs(expected)), f"monitor with {kind}")
    agree(other.history[-1], expected, 1e-5 * (1 + abs(expected)), "history")
    ranks = rng.choice([2, 3])
    questions = [
        {"what": "monitor", "ranks": ranks, "prior": prior, "batches": batches[r::ranks]} for r in range(ranks)
    ]
    for answer in ask(questions):
        agree(answer["kl"], expected, 1e-5 * (1 + abs(expected)), f"monitor over {ranks} ranks, {kind}: {batches}")
    return "monitor"


def check_offset(rng: random.Random) -> str:
    """Offsets bring the mean prediction to the prior, or the call says that they cannot."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    n, K = rng.randint(1, 40), rng.randint(1, 6)
    z = rng.choice([0.1, 1.0, 5.0]) * torch.randn(n, K, generator=generator, dtype=torch.float64)
    z += rng.choice([0.0, 5.0, 20.0]) * torch.randn(K, generator=generator, dtype=torch.float64)
    prior = None
    if rng.random() < 0.6:
        prior = torch.rand(K, generator=generator, dtype=torch.float64) + 0.01
        if K > 1 and rng.random() < 0.3:
            prior[rng.randrange(K)] = 0.0
        prior = prior / prior.sum()
    try:
        offset = gence.marginal_offset(z, prior)
    except RuntimeError as error:
        if "still" not in str(error):
            raise
        return "offset, refused"
    mean = [0.0] * K
    for row in (z + offset).tolist():
        for k in range(K):
            mean[k] += math.exp(row[k] - log_sum_exp(row)) / n
    wanted = [1 / K] * K if prior is None else prior.tolist()
    for found, own_share in zip(mean, wanted, strict=True):
        agree(found, own_share, 1.1e-4, f"mean prediction at {offset.tolist()} of {z.tolist()}, {prior}")
    finite = offset[offset.isfinite()]
    agree(finite.sum().item(), 0.0, 1e-8 * (1 + finite.abs().max().item()), "sum of the offsets")
    layer = torch.nn.Linear(3, K, bias=rng.random() < 0.5).double()
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x) + offset
        gence.fold_offset(torch.nn.Sequential(torch.nn.Linear(3, 3).double(), layer), offset)
        torch.testing.assert_close(layer(x), expected)
    return "offset"


def check_sampler(rng: random.Random) -> str:
    """Every batch is stratified, on every rank and over all; an epoch holds what it promises."""
    classes = rng.randint(1, 6)
    counts = [rng.choice([1, 2, rng.randint(1, 60)]) for _ in range(classes)]
    labels = [k for k, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(labels)
    names = rng.sample(range(100), classes)  # classes need not be 0, 1, ...
    ranks, size, oversample, drop_last = rng.randint(1, 3), rng.randint(1, 30), rng.random() < 0.4, rng.random() < 0.5
    options = {"seed": rng.randrange(100), "oversample": oversample, "drop_last": drop_last, "num_replicas": ranks}
    samplers = [ClassStratifiedBatchSampler([names[y] for y in labels], size, rank=r, **options) for r in range(ranks)]
    share = [max(counts) if oversample else count for count in counts]
    for sampler in samplers:
        sampler.set_epoch(rng.randrange(3) if ranks == 1 else 1)
    epochs = [list(sampler) for sampler in samplers]
    what = f"{counts} batches of {size} on {ranks} ranks, {options}"
    assert {len(epoch) for epoch in epochs} == {len(samplers[0])}, what
    drawn: Counter[int] = Counter()
    for step, batches in enumerate(zip(*epochs, strict=True)):
        together = [i for batch in batches for i in batch]
        drawn.update(together)
        last = step == len(epochs[0]) - 1 and not drop_last
        sizes = [len(batch) for batch in batches]
        assert sizes == [size] * ranks or (last and min(sizes) > 0 and max(sizes) - min(sizes) <= 1), (what, sizes)
        for batch in (*batches, together):
            of_class = Counter(labels[i] for i in batch)
            for k in range(classes):
                off = abs(of_class[k] - len(batch) * share[k] / sum(share))
                assert off < 2, f"class {k} is {off} off its share in {what}"
    whole, rest = divmod(sum(share), size * ranks)
    expected = sum(share) if not drop_last and rest >= ranks else whole * size * ranks
    assert sum(drawn.values()) == expected, f"{sum(drawn.values())} samples, {expected} expected: {what}"
    if not oversample:
        assert max(drawn.values(), default=1) == 1, what
    again = ClassStratifiedBatchSampler([names[y] for y in labels], size, rank=0, **options)
    again.set_epoch(samplers[0].state_dict()["epoch"])
    stop, first = rng.randint(0, len(epochs[0])), []
    for batch, _ in zip(again, range(stop), strict=False):
        first.append(batch)
    resumed = ClassStratifiedBatchSampler([names[y] for y in labels], size, rank=0, **options)
    resumed.load_state_dict({**again.state_dict(), "batch": stop})
    assert first == epochs[0][:stop], what
    assert [*first, *resumed] == epochs[0], f"resumed at {stop}: {what}"
    return "sampler"


def case(rng: random.Random, place: Path) -> str:
    """A batch in parts (micro-batches, 2 or 3 ranks, two passes, running marginals, samplers) against the whole one."""
    del place
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "gen_cross_entropy on one row")
        what = rng.choices(list(SHARES), list(SHARES.values()))[0]
        check = {
            "micro-batches": check_micro_batches, "running": check_running, "ranks": check_ranks,
            "two passes": check_two_passes, "monitor": check_monitor, "offset": check_offset, "sampler": check_sampler,
        }[what]  # fmt: skip
        return check(rng)
