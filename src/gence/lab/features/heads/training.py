"""Heads trained by mini-batches: all runs that can step together do.

Runs that share a problem and a seed are a group and share their batches; groups with the same losses and steps are a
cohort, whose every step is a few operations for all its runs. What a run computes does not depend on which runs train
beside it, up to the rounding of a product's last digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from gence.lab.features.heads.full_batch import solve
from gence.lab.features.heads.gradients import StackedLoss
from gence.lab.features.heads.momentum import HAS_FUSED, WORTH_A_CALL, Helper, Momentum, SharedSteps
from gence.lab.features.heads.problem import (
    GroupRows,
    HeadProblem,
    HeadRun,
    TrainedHead,
    check_head_recipe,
    collected,
    rotates,
)
from gence.lab.features.heads.stacks import HIDDEN, LinearStack, create_stack
from gence.lab.spec import Recipe, anchor_shares, learning_rates, stream
from gence.losses import prior_divergence

_MOST_WEIGHTS = 2**24  # in one stacked tensor: more runs train in turns
_MOST_HIDDEN = 2**18  # outputs of hidden layers in a step: more would not stay in a processor's cache
_SMALL = 2**17  # logits of a step: operations on more are long enough for a thread each
_LONG = 2**25  # multiplications of a step's product
_PER_RUN = ("lr", "weight_decay", "warmup_epochs", "anchor_warmup")


def train_heads(
    problems: Sequence[HeadProblem],
    runs: Sequence[HeadRun],
    *,
    curves: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrainedHead]:
    """Train all runs, together where their steps allow it; the results are in the order of the runs.

    Args:
        problems: what `HeadRun.problem` counts in.
        runs: what to train.
        curves: False to keep no curves: a little faster.
        progress: called with the number of runs that are trained, and of all runs.

    Raises:
        ValueError: recipe fields that do nothing on features, losses that train an encoder, features with NaN.
    """
    for run in runs:
        check_head_recipe(run.recipe)
        if not 0 <= run.problem < len(problems):
            raise ValueError(f"problem: run {run} names problem {run.problem}; there are {len(problems)}")
    found: list[TrainedHead | None] = [None] * len(runs)
    threads = torch.get_num_threads()

    def train(part: list[list[int]], helpers: Sequence[Helper] = ()) -> tuple[dict[int, TrainedHead], float]:
        began = time.perf_counter()
        full = runs[part[0][0]].full_batch
        trained = solve(problems, runs, part) if full else _train(problems, runs, part, curves, helpers)
        return trained, (time.perf_counter() - began) / len(trained)

    def keep(trained: dict[int, TrainedHead], share: float) -> None:
        for i, head in trained.items():
            found[i] = TrainedHead(head.head, head.curves, head.diverged, share)
        if progress is not None:
            progress(sum(head is not None for head in found), len(runs))

    for run in runs:  # computed here, and not by several threads at once
        problem = problems[run.problem]
        _ = problem.prior, problem.scaling, problem.span if rotates(run, problem) else None
    made = cohorts(problems, runs)
    shared = [cohort for cohort in made if threads > 1 and _shares_steps(problems, runs, cohort)]
    parts = [part for cohort in made if cohort not in shared for part in _shared_out(cohort, threads)]
    try:
        # Threads inside an operation as small as these mostly wait for each other, and on a busy machine they take ten
        # times as long. So each core has a thread with runs of its own, or products of its own.
        torch.set_num_threads(1)
        helpers = [Helper() for _ in range(threads - 1)] if shared else []
        try:
            for cohort in shared:
                keep(*train(cohort, helpers))
        finally:
            for helper in helpers:
                helper.end()
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for trained, share in pool.map(train, parts):
                keep(trained, share)
    finally:
        torch.set_num_threads(threads)
    return [head for head in found if head is not None]


def cohorts(problems: Sequence[HeadProblem], runs: Sequence[HeadRun]) -> list[list[list[int]]]:
    """Which runs step together: cohorts of groups of numbers of runs, a group's runs sorted by loss."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, run in enumerate(runs):
        problem = problems[run.problem]
        alike = run.recipe.replace(**dict.fromkeys(_PER_RUN, 0.0))
        rows = min(run.recipe.batch_size, len(problem))
        steps = len(problem) if run.full_batch else steps_of(run.recipe, len(problem))
        kept: object = (
            run.head,
            run.full_batch,
            alike,
            problem.width,
            problem.num_classes,
            rows,
            steps,
            len(problem) if rotates(run, problem) else 0,  # the span's dimensions, which a stack shares
        )
        groups.setdefault((kept, run.problem, run.seed), []).append(i)
    found: dict[tuple[object, ...], list[list[int]]] = {}
    for (kept, _, _), members in groups.items():
        members.sort(key=lambda i: (runs[i].loss.name, i))
        most = max(1, _most(problems[runs[members[0]].problem], runs[members[0]]))
        for start in range(0, len(members), most):
            part = members[start : start + most]
            found.setdefault((kept, tuple(runs[i].loss.name for i in part)), []).append(part)
    made = []
    for together in found.values():
        first = runs[together[0][0]]
        most = max(1, _most(problems[first.problem], first) // len(together[0]))
        made += [together[start : start + most] for start in range(0, len(together), most)]
    return made


def _most(problem: HeadProblem, run: HeadRun) -> int:
    """How many runs like this one a stack may hold."""
    width = len(problem) if rotates(run, problem) else problem.width
    if run.head in ("linear", "cosine"):
        return _MOST_WEIGHTS // (width * problem.num_classes)
    rows = len(problem) if run.full_batch else min(run.recipe.batch_size, len(problem))
    return min(_MOST_WEIGHTS // (width * HIDDEN), _MOST_HIDDEN // (rows * HIDDEN))


def _train(
    problems: Sequence[HeadProblem],
    runs: Sequence[HeadRun],
    cohort: list[list[int]],
    curves: bool,
    helpers: Sequence[Helper] = (),
) -> dict[int, TrainedHead]:
    """Train one cohort; helpers share its steps."""
    first = runs[cohort[0][0]]
    recipe, own = first.recipe, [problems[runs[group[0]].problem] for group in cohort]
    seeds = [runs[group[0]].seed for group in cohort]
    G, M, K = len(cohort), len(cohort[0]), own[0].num_classes
    rows = GroupRows.of(own, rotates(first, own[0]))
    B, steps = min(recipe.batch_size, len(own[0])), steps_of(recipe, len(own[0]))
    priors = torch.stack([problem.prior for problem in own])
    stack = create_stack(first.head, seeds, M, own[0].width, K, recipe.head_bias, torch.float32, rows.rotations)
    loss = StackedLoss([[runs[i].loss for i in group] for group in cohort], priors)
    recipes = [[runs[i].recipe for i in group] for group in cohort]
    planned = {each: learning_rates(each, steps) for each in {each for group in recipes for each in group}}
    rates = per_step([[planned[each] for each in group] for group in recipes])  # (steps, G, M)
    shares = None
    if any(each.anchor_warmup for group in recipes for each in group):
        shares = per_step([[anchor_shares(each, steps) for each in group] for group in recipes])
    mover = Momentum(stack, recipes)
    average = {name: each.values.clone() for name, each in stack.parameters.items()} if recipe.ema else {}
    watch = _Curves(G, M, K, steps, rates, priors) if curves else None
    shared = None
    if helpers and isinstance(stack, LinearStack):
        shared = SharedSteps(stack, mover, recipes, B, helpers)
    positions = _positions(own, seeds, recipe.epochs, B, steps)
    for now, (x, y, following) in enumerate(_taken(rows, positions, helpers[:1])):
        z = stack.forward(x) if shared is None else shared.forward(x)
        share = None if shares is None else shares[now]
        dz, values = loss(z, y, anchor_share=share, values=watch is not None)
        if watch is not None and values is not None:
            watch.add(z, y, values)
        if shared is None:
            mover.step(stack.gradients(x, dz), rates[now])
        else:
            shared.step(x, dz, rates[now], following)
        for name, kept in average.items():
            kept.lerp_(stack.parameters[name].values, 1 - min(recipe.ema, (1 + now) / (10 + now)))
        if watch is not None and (now + 1) % steps == 0:
            watch.end_epoch()
    for name, kept in average.items():
        stack.parameters[name].values.copy_(kept)
    return collected(stack, cohort, own, first.head, [] if watch is None else watch.of_runs())


def _positions(
    own: Sequence[HeadProblem], seeds: Sequence[int], epochs: int, B: int, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and labels (G, B) of each step's rows."""
    for epoch in range(epochs):
        order = torch.stack(
            [order_of(len(problem), B * steps, seed, epoch) for problem, seed in zip(own, seeds, strict=True)]
        )
        y = torch.stack([problem.labels[places] for problem, places in zip(own, order, strict=True)])
        yield from zip(torch.split(order, B, 1), torch.split(y, B, 1), strict=True)


def _taken(
    rows: GroupRows, positions: Iterator[tuple[Tensor, Tensor]], helpers: Sequence[Helper]
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Rows and labels of each step; with a helper also the rows that follow, which it is still taking."""
    buffers: list[Tensor] = []  # new memory costs more than to fill it
    before: tuple[Tensor, Tensor] | None = None
    for now, (places, y) in enumerate(positions):
        if len(buffers) <= len(helpers):
            buffers.append(torch.empty(*places.shape, rows.width))
        x = buffers[now % len(buffers)]
        if not helpers:
            yield rows.take(places, x), y, None
            continue
        helpers[0].give(rows.take, places, x)
        if before is not None:
            yield *before, x
        before = x, y
    if before is not None:
        yield *before, None


class _Curves:
    """Means over each epoch's batches, of every run, as networks have them."""

    def __init__(self, G: int, M: int, K: int, steps: int, rates: Tensor, priors: Tensor) -> None:
        self.shape, self.steps, self.rates, self.priors = (G, M, K), steps, rates, priors
        self.epochs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._clear()

    def _clear(self) -> None:
        G, M, K = self.shape
        self.loss, self.right = torch.zeros(G, M), torch.zeros(G, M)
        self.summed = torch.zeros(G, M, K)

    def add(self, z: Tensor, labels: Tensor, values: Tensor) -> None:
        """Add a batch."""
        z = z.permute(0, 2, 3, 1).contiguous()  # rows last, as gradients have them; argmax would take 30 times as long
        self.loss += values
        self.right += (z.max(2).indices == labels[:, None]).float().mean(2)
        self.summed += z.softmax(2).mean(3)

    def end_epoch(self) -> None:
        """Keep the means of the epoch that has ended."""
        log_marginal = (self.summed / self.steps).clamp_min(1e-30).log().log_softmax(2)
        kl = prior_divergence(self.priors[:, None], log_marginal).clamp_min(0.0)
        self.epochs.append((self.loss / self.steps, self.right / self.steps, kl))
        self._clear()

    def of_runs(self) -> list[list[dict[str, list[float]]]]:
        """The curves of each run, G lists of M."""
        loss, right, kl = (torch.stack(values) for values in zip(*self.epochs, strict=True))  # (epochs, G, M)
        rates = self.rates[self.steps - 1 :: self.steps]
        named = {"train_loss": loss, "train_accuracy": right, "lr": rates, "marginal_kl": kl}
        G, M, _ = self.shape
        return [
            [
                {
                    "epoch": [float(epoch) for epoch in range(1, len(loss) + 1)],
                    **{name: [float(f"{v:.5g}") for v in table[:, g, m].tolist()] for name, table in named.items()},
                }
                for m in range(M)
            ]
            for g in range(G)
        ]


def _shares_steps(problems: Sequence[HeadProblem], runs: Sequence[HeadRun], cohort: list[list[int]]) -> bool:
    """Whether the threads share this cohort's steps, and not its runs: where losses are small and products long."""
    run, problem, count = runs[cohort[0][0]], problems[runs[cohort[0][0]].problem], len(cohort) * len(cohort[0])
    if run.head != "linear" or run.full_batch or run.recipe.optimizer != "sgd" or run.recipe.momentum == 0:
        return False
    width = len(problem) if rotates(run, problem) else problem.width
    logits = count * problem.num_classes * min(run.recipe.batch_size, len(problem))
    worth = HAS_FUSED and width * problem.num_classes >= WORTH_A_CALL
    return worth and logits <= _SMALL and logits * width >= _LONG


def _shared_out(cohort: list[list[int]], threads: int) -> list[list[list[int]]]:
    """A cohort as parts for so many threads: groups, or each group's runs where there are too few of them.

    Dividing a group is dearer: each half takes the same rows, and its products are smaller.
    """
    per_group, groups = len(cohort[0]), len(cohort)
    if groups >= threads or per_group < threads:
        count = min(threads, groups)
        ends = [groups * i // count for i in range(count + 1)]
        return [cohort[a:b] for a, b in pairwise(ends)]
    ends = [per_group * i // threads for i in range(threads + 1)]
    return [[group[a:b] for group in cohort] for a, b in pairwise(ends)]


def steps_of(recipe: Recipe, n: int) -> int:
    """Batches per epoch; a problem smaller than a batch is one batch."""
    rows = min(recipe.batch_size, n)
    return n // rows if recipe.drop_last else -(-n // rows)


def order_of(n: int, count: int, seed: int, epoch: int) -> Tensor:
    """Positions of an epoch's rows; a last, smaller batch is filled from the start, as for networks."""
    order = torch.randperm(n, generator=stream(seed, "order", epoch))
    return torch.cat([order, order[: count - n]]) if count > n else order[:count]


def per_step(table: list[list[list[float]]]) -> Tensor:
    """(steps, G, M) of lists per group, run and step."""
    return torch.tensor(table).permute(2, 0, 1).contiguous()
