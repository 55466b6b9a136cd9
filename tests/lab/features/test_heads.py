"""Heads that train together are what they are alone, and what a plain PyTorch loop makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from gence.lab.features.heads.gradients import StackedLoss, criterion
from gence.lab.features.heads.momentum import Helper, Momentum, SharedSteps
from gence.lab.features.heads.problem import HEAD_RECIPE, HeadProblem, HeadRun, logits_of, rotates
from gence.lab.features.heads.stacks import create_stack
from gence.lab.features.heads.training import train_heads
from gence.lab.spec import LossSpec, Recipe, anchor_shares, learning_rates, stream
from gence.losses import LOSSES

# LogitNorm at its own temperature has slopes of 25 that make rounding grow from step to step.
LOSS_TEXTS = [
    {"logit_norm": "logit_norm(tau=1)"}.get(name, name) for name, info in LOSSES.items() if info.takes == "logits"
] + ["gence(anchor=0.1,prior=train)"]
QUICK = HEAD_RECIPE.replace(epochs=4, batch_size=20, lr=0.5)


def problem(n: int = 90, D: int = 12, K: int = 3, seed: int = 0) -> HeadProblem:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % K
    centres = torch.randn(K, D, generator=draw)
    return HeadProblem(5 + centres[labels] + torch.randn(n, D, generator=draw), labels, K)


def plain_loop(rows: HeadProblem, run: HeadRun) -> torch.Tensor:
    """A linear head by torch.optim; its weights (D, K)."""
    recipe, x = run.recipe, rows.scaling(rows.features)
    head = torch.nn.Linear(rows.width, rows.num_classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    groups = [{"params": [head.weight], "weight_decay": recipe.weight_decay}, {"params": [head.bias]}]
    if recipe.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, weight_decay=0)
    else:
        optimizer = torch.optim.SGD(groups, momentum=recipe.momentum, nesterov=recipe.nesterov)
    loss = criterion(run.loss, rows.prior)
    steps = len(rows) // recipe.batch_size
    rates = iter(learning_rates(recipe, steps))
    for epoch in range(recipe.epochs):
        order = torch.randperm(len(rows), generator=stream(run.seed, "order", epoch))
        for batch in order[: steps * recipe.batch_size].split(recipe.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = next(rates) if group is optimizer.param_groups[0] else optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            loss(head(x[batch]), rows.labels[batch]).backward()
            optimizer.step()
    return head.weight.detach().T


@pytest.mark.parametrize(
    "recipe",
    [
        QUICK,
        QUICK.replace(nesterov=False, momentum=0.0, schedule="step", warmup_epochs=1),
        QUICK.replace(optimizer="adamw", lr=0.01),
    ],
    ids=["nesterov", "plain", "adamw"],
)
def test_every_loss_as_a_plain_loop_trains_it(recipe: Recipe) -> None:
    rows = problem()
    runs = [HeadRun(loss=LossSpec.parse(text), recipe=recipe, seed=seed) for text in LOSS_TEXTS for seed in (0, 3)]
    for run, trained in zip(runs, train_heads([rows], runs), strict=True):
        # AdamW divides a gradient by its own size, rounding included.
        atol = 1e-4 if recipe.optimizer == "adamw" else 1e-5
        torch.testing.assert_close(trained.head.tensors["weight"], plain_loop(rows, run), rtol=1e-4, atol=atol)
        assert not trained.diverged


@pytest.mark.parametrize("nesterov", [True, False])
def test_weights_moved_in_one_pass(monkeypatch: pytest.MonkeyPatch, nesterov: bool) -> None:
    rows = problem(D=13)
    recipe = QUICK.replace(nesterov=nesterov)
    runs = [
        HeadRun(loss=LossSpec.parse(text), recipe=recipe.replace(lr=rate, weight_decay=decay), seed=seed)
        for text in ("ce", "gence") for rate, decay in ((0.5, 0.01), (0.5, 0.01), (0.2, 0.0)) for seed in (0, 3)
    ]  # fmt: skip
    apart = train_heads([rows], runs)
    monkeypatch.setattr("gence.lab.features.heads.momentum.WORTH_A_CALL", 1)
    for run, usual, fused in zip(runs, apart, train_heads([rows], runs), strict=True):
        torch.testing.assert_close(fused.head.tensors["weight"], usual.head.tensors["weight"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fused.head.tensors["weight"], plain_loop(rows, run), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", [{}, {"ema": 0.9, "head_bias": False, "nesterov": False}], ids=["usual", "average"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_steps(monkeypatch: pytest.MonkeyPatch, threads: int, change: dict[str, object]) -> None:
    """Groups are divided between the threads, and runs with rates of their own; heads and curves stay what they are."""
    rows = [problem(D=13), problem(D=13, seed=1)]
    runs = [
        HeadRun(problem=p, loss=LossSpec.parse(text), seed=seed,
                recipe=QUICK.replace(lr=rate, weight_decay=decay, **change))
        for p, seed in ((0, 0), (0, 3), (1, 0)) for text in ("ce", "gence", "gence(anchor=0.1)", "dual_focal")
        for rate, decay in (((0.5, 0.01),) if text == "ce" else ((0.5, 0.01), (0.2, 0.0)))
    ]  # fmt: skip
    apart = train_heads(rows, runs)
    monkeypatch.setattr("gence.lab.features.heads.momentum.WORTH_A_CALL", 1)
    for name in ("WORTH_A_CALL", "_LONG"):
        monkeypatch.setattr(f"gence.lab.features.heads.training.{name}", 1)
    shared: list[int] = []
    before = torch.get_num_threads()
    step = SharedSteps.step

    def counted(self: SharedSteps, *given: Any) -> None:
        shared.append(len(self.shares))
        step(self, *given)

    monkeypatch.setattr(SharedSteps, "step", counted)
    torch.set_num_threads(threads)
    try:
        found, again = train_heads(rows, runs), train_heads(rows, runs)
    finally:
        torch.set_num_threads(before)
    assert set(shared) == {threads}
    for run, one, same, other in zip(runs, found, again, apart, strict=True):
        for name, tensor in one.head.tensors.items():
            assert torch.equal(tensor, same.head.tensors[name])
            torch.testing.assert_close(tensor, other.head.tensors[name], rtol=1e-5, atol=1e-6)
        assert one.curves["train_loss"] == pytest.approx(other.curves["train_loss"], rel=1e-4)
        if not change:
            torch.testing.assert_close(
                one.head.tensors["weight"], plain_loop(rows[run.problem], run), rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("head", ["linear", "mlp", "cosine"])
def test_curves_of_one_step(head: str) -> None:
    """They are of the logits before the step; of classes that tie, the first is predicted."""
    rows = problem()
    recipe = QUICK.replace(epochs=1, batch_size=len(rows), lr=0.0)
    (one,) = train_heads([rows], [HeadRun(loss=LossSpec.parse("ce"), recipe=recipe, head=head)])
    logits = one.head.logits(rows.features)
    expected = {
        "train_loss": torch.nn.functional.cross_entropy(logits, rows.labels),
        "train_accuracy": (logits.argmax(1) == rows.labels).float().mean(),
        "marginal_kl": (rows.prior * (rows.prior / logits.softmax(1).mean(0)).log()).sum(),
    }
    for name, value in expected.items():
        assert one.curves[name] == [pytest.approx(float(value), rel=1e-3, abs=1e-6)]


@pytest.mark.parametrize("full_batch", [False, True])
@pytest.mark.parametrize("head", ["linear", "mlp", "cosine"])
def test_together_as_alone_and_the_same_each_time(head: str, full_batch: bool) -> None:
    rows = [problem(), problem(seed=1)]
    runs = [
        HeadRun(problem=p, loss=LossSpec.parse(text), recipe=QUICK.replace(lr=rate), seed=p, head=head,
                full_batch=full_batch)
        for p in (0, 1) for text in ("gence", "ce", "brier") for rate in (0.1, 0.5)
    ]  # fmt: skip
    together, again = train_heads(rows, runs), train_heads(rows, runs)
    for run, one, other in zip(runs, together, again, strict=True):
        (alone,) = train_heads(rows, [run])
        for name, tensor in one.head.tensors.items():
            assert torch.equal(tensor, other.head.tensors[name])
            torch.testing.assert_close(tensor, alone.head.tensors[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", ["linear", "mlp", "cosine"])
def test_gradients_of_the_heads_by_hand(head: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 7, 5, dtype=torch.float64, generator=draw)
    stack = create_stack(head, [0, 1], 3, 5, 4, True, torch.float64)
    for own in stack.parameters.values():
        own.values.add_(0.3 * torch.randn(own.values.shape, dtype=torch.float64, generator=draw))
    dz = torch.randn(2, 7, 3, 4, dtype=torch.float64, generator=draw)
    stack.forward(x)
    found = stack.backward(x, dz)
    step = 1e-6
    for name, own in stack.parameters.items():
        for place in range(0, own.values.numel(), 5):
            where = tuple(int(i) for i in np.unravel_index(place, tuple(own.values.shape)))
            kept = own.values[where].item()
            sums = []
            for change in (step, -step):
                own.values[where] = kept + change
                sums.append((stack.forward(x) * dz).sum())
            own.values[where] = kept
            expected = (sums[0] - sums[1]) / (2 * step)
            torch.testing.assert_close(found[name].reshape(-1)[place], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("full_batch", [False, True])
def test_fewer_rows_than_features_change_nothing(monkeypatch: pytest.MonkeyPatch, full_batch: bool) -> None:
    rows = problem(n=30, D=80)
    runs = [
        HeadRun(loss=LossSpec.parse(text), recipe=QUICK.replace(epochs=60), seed=1, full_batch=full_batch)
        for text in ("ce", "gence(anchor=0.1)", "brier")
    ]
    rotated = train_heads([rows], runs)
    for module in ("training", "full_batch"):
        monkeypatch.setattr(f"gence.lab.features.heads.{module}.rotates", lambda *_: False)
    for one, other in zip(rotated, train_heads([rows], runs), strict=True):
        torch.testing.assert_close(one.head.tensors["weight"], other.head.tensors["weight"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"nesterov": False},
        {"momentum": 0.0, "nesterov": False, "schedule": "step"},
        {"ema": 0.9, "warmup_epochs": 3, "head_bias": False},
    ],
    ids=["nesterov", "momentum", "plain", "average"],
)
def test_mlp_heads_in_the_span_of_their_rows(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    """They are what they are with all features, also outside the span; beside others as alone; and each time."""
    problems, test = [problem(n=24, D=80), problem(n=24, D=80, seed=1)], problem(n=50, D=80, seed=2).features
    recipe = QUICK.replace(epochs=12, batch_size=10, **change)
    runs = [
        HeadRun(problem=p, loss=LossSpec.parse(text), head="mlp", seed=seed,
                recipe=recipe.replace(lr=rate, weight_decay=decay))
        for p, seed in ((0, 1), (1, 1), (1, 2)) for text in ("ce", "gence(anchor=0.1)", "brier", "dual_focal")
        for rate, decay in ((0.1, 0.0), (0.5, 1e-3), (0.5, 0.1))
    ]  # fmt: skip
    found, again = train_heads(problems, runs), train_heads(problems, runs)
    alone = [train_heads(problems, [run])[0] for run in runs]
    monkeypatch.setattr("gence.lab.features.heads.training.rotates", lambda *_: False)
    for one, same, other, full in zip(found, again, alone, train_heads(problems, runs), strict=True):
        torch.testing.assert_close(one.head.logits(test), full.head.logits(test), rtol=1e-5, atol=1e-5)
        for name, tensor in full.head.tensors.items():
            assert torch.equal(one.head.tensors[name], same.head.tensors[name])
            torch.testing.assert_close(one.head.tensors[name], tensor, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(one.head.tensors[name], other.head.tensors[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_mlp_heads_jump_alike_in_the_span_of_their_rows(momentum: float) -> None:
    """At rates that make heads jump about, and rounding with them: so in float64."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(1, 20, 50, dtype=torch.float64, generator=draw) / 7, torch.arange(20)[None] % 3
    basis, triangle = torch.linalg.qr(x[0].mT)
    texts = ("ce", "gence(anchor=0.1)", "brier", "dual_focal")
    recipes = [[QUICK.replace(lr=5, weight_decay=decay, momentum=momentum, nesterov=momentum > 0)
                for decay in (0.0, 0.01, 0.1, 0.01)]]  # fmt: skip
    loss = StackedLoss([[LossSpec.parse(text) for text in texts]], torch.ones(1, 3, dtype=torch.float64) / 3)
    found = []
    for rows, bases in ((x, []), (triangle.mT[None], [basis])):
        stack = create_stack("mlp", [1], 4, 50, 3, True, torch.float64, bases)
        mover = Momentum(stack, recipes)
        for _ in range(8):
            dz, _ = loss(stack.forward(rows), y)
            mover.step(stack.gradients(rows, dz), torch.full((1, 4), 5.0))
        found.append(stack.of_group(0))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-7, atol=1e-7)
    begun = create_stack("mlp", [1], 4, 50, 3, True, torch.float64).of_group(0)["hidden_weight"]
    outside = [(each - basis @ (basis.mT @ each)).chunk(4, 1) for each in (begun, found[1]["hidden_weight"])]
    sizes = [float(now.norm() / before.norm()) for before, now in zip(*outside, strict=True)]
    assert sizes[0] == pytest.approx(1)
    assert all(abs(size - 1) > 0.1 for size in sizes[1:])  # decay is to be seen there


def test_adamw_and_the_full_batch_do_not_leave_the_features_for_an_mlp() -> None:
    rows = problem(n=24, D=80)
    for recipe, full_batch in ((QUICK.replace(optimizer="adamw"), False), (QUICK, True)):
        assert not rotates(HeadRun(loss=LossSpec(name="ce"), recipe=recipe, head="mlp", full_batch=full_batch), rows)


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_problems_that_differ_by_a_row_train_beside_each_other(head: str) -> None:
    """As folds of classes of unlike sizes do: their spans have different dimensions."""
    problems = [problem(n=n, D=80, seed=n) for n in (42, 41)]
    runs = [HeadRun(problem=i, loss=LossSpec(name="ce"), recipe=QUICK, head=head) for i in range(2)]
    for together, alone in zip(train_heads(problems, runs), runs, strict=True):
        (expected,) = train_heads(problems, [alone])
        torch.testing.assert_close(together.head.tensors["weight"], expected.head.tensors["weight"])


def test_full_batch_cross_entropy_is_logistic_regression() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
    train, test = slice(0, 400), slice(400, None)
    rows = HeadProblem(x[train], y[train], 10)
    recipe = HEAD_RECIPE.replace(epochs=500, weight_decay=1e-3)
    (trained,) = train_heads([rows], [HeadRun(loss=LossSpec.parse("ce"), recipe=recipe, full_batch=True)])
    scaled = rows.scaling(x).double().numpy()
    reference = LogisticRegression(C=1 / (1e-3 * 400), max_iter=5000, tol=1e-8).fit(scaled[train], y[train])
    logits = trained.head.logits(x).double()
    expected = torch.tensor(reference.predict_log_proba(scaled))
    torch.testing.assert_close(logits.log_softmax(1), expected, rtol=0, atol=2e-3)
    accuracy = (logits[test].argmax(1) == y[test]).double().mean()
    assert abs(accuracy - reference.score(scaled[test], y[test])) <= 2e-3
    loss = torch.nn.functional.cross_entropy(logits[train], y[train])
    assert abs(loss - torch.nn.functional.nll_loss(expected[train], y[train])) <= 1e-4
    assert trained.curves["train_loss"][0] == pytest.approx(float(loss), abs=1e-4)


def test_the_anchor_of_one_is_cross_entropy_on_the_full_batch() -> None:
    runs = [HeadRun(loss=LossSpec.parse(text), recipe=QUICK.replace(epochs=300, weight_decay=0.01), full_batch=True)
            for text in ("ce", "gence(anchor=1)")]  # fmt: skip
    ce, anchored = train_heads([problem()], runs)
    torch.testing.assert_close(ce.head.tensors["weight"], anchored.head.tensors["weight"], rtol=1e-4, atol=1e-5)


def test_rows_streamed_from_a_file_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = problem()
    half = HeadProblem(rows.features.half(), rows.labels, 3)
    run = HeadRun(loss=LossSpec.parse("gence"), recipe=QUICK)
    (kept,) = train_heads([half], [run])
    monkeypatch.setattr("gence.lab.features.heads.problem.IN_MEMORY", 0)
    (streamed,) = train_heads([half], [run])
    torch.testing.assert_close(kept.head.tensors["weight"], streamed.head.tensors["weight"])


def test_full_batch_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        HeadRun(loss=LossSpec.parse("gence"), recipe=QUICK, full_batch=True, head=head) for head in ("linear", "mlp")
    ]
    whole = train_heads([problem()], runs)
    monkeypatch.setattr("gence.lab.features.heads.full_batch._CHUNK", 16)
    for one, other in zip(whole, train_heads([problem()], runs), strict=True):
        torch.testing.assert_close(one.head.tensors["weight"], other.head.tensors["weight"], rtol=1e-5, atol=1e-6)


def test_logits_of_many_heads_at_once() -> None:
    rows = [problem(), problem(seed=1)]
    runs = [HeadRun(problem=p, loss=LossSpec.parse("ce"), recipe=QUICK, head=head)
            for p in (0, 1) for head in ("linear", "mlp", "cosine", "linear")]  # fmt: skip
    heads = [trained.head for trained in train_heads(rows, runs)]
    for head, logits in zip(heads, logits_of(heads, rows[0].features), strict=True):
        torch.testing.assert_close(logits, head.logits(rows[0].features))
    assert float((logits_of(heads[:1], rows[0].features)[0].argmax(1) == rows[0].labels).float().mean()) > 0.8


def test_a_head_of_another_shape_is_told() -> None:
    (trained,) = train_heads([problem()], [HeadRun(loss=LossSpec.parse("ce"), recipe=QUICK)])
    trained.head.tensors["weight"] = trained.head.tensors["weight"][:5]
    with pytest.raises(ValueError, match=r"a head's weight has the shape \(5, 3\); expected \(12, 3\)"):
        trained.head.logits(problem().features)


def test_a_head_that_explodes_is_told() -> None:
    huge = QUICK.replace(lr=1e30, schedule="constant")
    (trained,) = train_heads([problem()], [HeadRun(loss=LossSpec.parse("ce"), recipe=huge)])
    assert trained.diverged


def test_the_anchor_warms_up() -> None:
    assert anchor_shares(Recipe(epochs=4, anchor_warmup=0.5), 1) == [0.0, 0.5, 1.0, 1.0]
    runs = [HeadRun(loss=LossSpec.parse("gence(anchor=1)"), recipe=QUICK.replace(anchor_warmup=w)) for w in (0, 0.5)]
    one, other = train_heads([problem()], runs)
    assert not torch.allclose(one.head.tensors["weight"], other.head.tensors["weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip": True}, "recipe.flip is True, which has no effect on embedded features"),
        ({"precision": "bf16"}, "heads are trained in float32"),
    ],
)
def test_fields_that_would_do_nothing_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_heads([problem()], [HeadRun(loss=LossSpec.parse("ce"), recipe=QUICK.replace(**change))])


def test_features_that_are_not_numbers() -> None:
    rows = problem()
    rows.features[3, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        train_heads([rows], [HeadRun(loss=LossSpec.parse("ce"), recipe=QUICK)])


def test_what_a_helper_raises_is_raised_where_it_is_waited_for() -> None:
    helper = Helper()
    made: list[int] = []
    helper.give(made.append, 1)
    helper.give(int, "one")
    with pytest.raises(ValueError, match="one"):
        helper.wait()
    helper.give(made.append, 2)
    helper.wait()
    helper.end()
    assert made == [1, 2]
