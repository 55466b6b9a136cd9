"""Bad input: each error names the argument, what came and what was expected."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import gence
from gence import LOSSES, TwoHot, create_loss, gen_cross_entropy
from gence.losses.backends import dispatch

Z = torch.zeros(4, 3)
Y = torch.tensor([0, 1, 2, 0])
T = torch.full((4, 3), 1 / 3)
SHARE = torch.full((4,), 0.5)

# id: (changed arguments, exception, words that must appear)
SHARED: dict[str, tuple[dict[str, Any], type[Exception], list[str]]] = {
    "input a list": ({"input": [[0.0, 1.0]]}, TypeError, ["input", "list", "tensor"]),
    "input of integers": ({"input": Z.long()}, TypeError, ["input", "floating", "torch.int64"]),
    "input a scalar": ({"input": torch.tensor(1.0)}, ValueError, ["input", "scalar", "(n, K)"]),
    "empty batch": ({"input": Z[:0], "target": Y[:0]}, ValueError, ["input", "at least one row", "(0, 3)"]),
    "no classes": ({"input": Z[:, :0]}, ValueError, ["input", "one class", "(4, 0)"]),
    "target a list": ({"target": [0, 1, 2, 0]}, TypeError, ["target", "list", "tensor"]),
    "target too short": ({"target": Y[:3]}, ValueError, ["target", "(4,)", "(3,)"]),
    "target of floats": ({"target": Y.float()}, TypeError, ["target", "integer", "torch.float32"]),
    "target of bools": ({"target": Y.bool()}, TypeError, ["target", "integer", "torch.bool"]),
    "reduction unknown": (
        {"reduction": "average"},
        ValueError,
        ["reduction", "'mean'", "'sum'", "'none'", "'average'"],
    ),
    "weight of integers": ({"weight": torch.ones(3).long()}, TypeError, ["weight", "floating", "torch.int64"]),
    "weight a list": ({"weight": [1.0, 1.0, 1.0]}, TypeError, ["weight", "list"]),
}
OF_LOGITS: dict[str, tuple[dict[str, Any], type[Exception], list[str]]] = {
    "target of another K": ({"target": torch.ones(4, 5)}, ValueError, ["target", "(4, 3)", "(4, 5)"]),
    "integer probabilities": ({"target": T.long()}, TypeError, ["target", "probabilities", "torch.int64", "(4,)"]),
    "index too large": ({"target": Y + 1}, IndexError, ["target", "[0, 3)", "-100", "got 3"]),
    # As a byte, ignore_index -100 would be 156.
    "index a byte": ({"target": Y.to(torch.uint8) + 156}, IndexError, ["target", "[0, 3)", "got 156"]),
    "index negative": ({"target": Y - 1}, IndexError, ["target", "[0, 3)", "got -1"]),
    "weight too long": ({"weight": torch.ones(4)}, ValueError, ["weight", "(3,)", "(4,)"]),
    "smoothing negative": ({"label_smoothing": -0.1}, ValueError, ["label_smoothing", "[0, 1]", "-0.1"]),
    "smoothing above 1": ({"label_smoothing": 1.5}, ValueError, ["label_smoothing", "[0, 1]", "1.5"]),
    "smoothing NaN": ({"label_smoothing": float("nan")}, ValueError, ["label_smoothing", "[0, 1]", "nan"]),
    "ignored probabilities": ({"target": T, "ignore_index": 1}, ValueError, ["ignore_index", "indices", "1"]),
    "two-hot ignored": ({"target": TwoHot(Y, Y, SHARE), "ignore_index": 1}, ValueError, ["ignore_index", "two-hot"]),
    "two-hot of lists": ({"target": TwoHot(Y, [1] * 4, SHARE)}, TypeError, ["target.second", "list"]),
    "two-hot of two shapes": ({"target": TwoHot(Y, Y[:2], SHARE)}, ValueError, ["target.second", "(4,)", "(2,)"]),
    "two-hot integer share": ({"target": TwoHot(Y, Y, Y)}, TypeError, ["target.share", "floating", "torch.int64"]),
    "two-hot float class": ({"target": TwoHot(SHARE, Y, SHARE)}, TypeError, ["target.first", "integer"]),
    "two-hot out of range": ({"target": TwoHot(Y, Y + 1, SHARE)}, IndexError, ["target.second", "[0, 3)", "got 3"]),
    "two-hot share above 1": ({"target": TwoHot(Y, Y, SHARE + 1)}, ValueError, ["target.share", "[0, 1]", "1.5"]),
    "smoothing a word": ({"label_smoothing": "a"}, TypeError, ["label_smoothing", "[0, 1]", "str"]),
    "smoothing nothing": ({"label_smoothing": None}, TypeError, ["label_smoothing", "NoneType"]),
    "ignore_index nothing": ({"ignore_index": None}, TypeError, ["ignore_index", "integer", "None"]),
    "plain tuple": ({"target": (Y, Y, SHARE)}, TypeError, ["target", "tuple", "tensor"]),
    "dense target transposed": (
        {"input": torch.zeros(2, 3, 5, 4), "target": torch.zeros(2, 4, 5).long()},
        ValueError,
        ["target", "(2, 5, 4)", "(2, 4, 5)"],
    ),
}
OWN: dict[str, tuple[str, dict[str, Any], type[Exception], list[str]]] = {
    "anchor None": ("gence", {"anchor": None}, TypeError, ["anchor", "number", "NoneType"]),
    "anchor a string": ("gence", {"anchor": "0.1"}, TypeError, ["anchor", "number", "str"]),
    "marginal a number": ("gence", {"marginal": 5}, TypeError, ["marginal", "BatchMarginal", "int"]),
    "anchor negative": ("gence", {"anchor": -0.5}, ValueError, ["anchor", ">= 0", "-0.5"]),
    "anchor NaN": ("gence", {"anchor": float("nan")}, ValueError, ["anchor", ">= 0", "nan"]),
    "anchor negative tensor": ("gence", {"anchor": torch.tensor(-1.0)}, ValueError, ["anchor", ">= 0", "-1"]),
    "anchor a vector": ("gence", {"anchor": torch.ones(3)}, ValueError, ["anchor", "0-dim", "(3,)"]),
    "prior a list": ("gence", {"prior": [1.0, 0.0, 0.0]}, TypeError, ["prior", "list"]),
    "prior of integers": ("gence", {"prior": torch.tensor([1, 0, 0])}, TypeError, ["prior", "torch.int64"]),
    "prior too short": ("gence", {"prior": torch.tensor([0.5, 0.5])}, ValueError, ["prior", "(3,)", "(2,)"]),
    "prior a matrix": ("gence", {"prior": T}, ValueError, ["prior", "(3,)", "(4, 3)"]),
    "prior negative": ("gence", {"prior": torch.tensor([1.5, -0.5, 0.0])}, ValueError, ["prior", "negative", "-0.5"]),
    "prior of counts": ("gence", {"prior": torch.tensor([5.0, 3.0, 2.0])}, ValueError, ["prior", "sum to 1", "10"]),
    "prior NaN": ("gence", {"prior": torch.tensor([torch.nan, 0.5, 0.5])}, ValueError, ["prior", "sum to 1", "nan"]),
    "context of integers": ("gence", {"context": Z.long()}, TypeError, ["context", "floating", "torch.int64"]),
    "context a list": ("gence", {"context": [[0.0]]}, TypeError, ["context", "list"]),
    "context of another K": ("gence", {"context": torch.ones(4, 5)}, ValueError, ["context", "(m, 3)", "(4, 5)"]),
    "context a scalar": ("gence", {"context": torch.tensor(1.0)}, ValueError, ["context", "(m, 3)", "()"]),
    "q zero": ("generalized_ce", {"q": 0.0}, ValueError, ["q", "(0, 1]", "0.0"]),
    "q above 1": ("generalized_ce", {"q": 1.5}, ValueError, ["q", "(0, 1]", "1.5"]),
    "q a word": ("generalized_ce", {"q": "a"}, TypeError, ["q", "(0, 1]", "str"]),
    "gamma a word": ("focal", {"gamma": "a"}, TypeError, ["gamma", ">= 0", "str"]),
    "temperature a word": ("supcon", {"temperature": "a"}, TypeError, ["temperature", "> 0", "str"]),
    "beta negative": ("mdca", {"beta": -1.0}, ValueError, ["beta", ">= 0", "-1.0"]),
    "epsilon below -1": ("poly1", {"epsilon": -1.5}, ValueError, ["epsilon", ">= -1", "-1.5"]),
    "alpha NaN": ("mbls", {"alpha": float("nan")}, ValueError, ["alpha", ">= 0", "nan"]),
    "margin negative": ("mbls", {"margin": -1.0}, ValueError, ["margin", ">= 0", "-1.0"]),
    "tau zero": ("logit_norm", {"tau": 0.0}, ValueError, ["tau", "> 0", "0.0"]),
    "dual gamma a word": ("dual_focal", {"gamma": "a"}, TypeError, ["gamma", ">= 0", "str"]),
    "gamma negative": ("focal", {"gamma": -1.0}, ValueError, ["gamma", ">= 0", "-1.0"]),
    "adjusted by nothing": (
        "logit_adjusted",
        {"prior": torch.tensor([1.0, 0.0, 0.0])},
        ValueError,
        ["prior", "positive", "0"],
    ),
    "adjusted too short": ("logit_adjusted", {"prior": torch.tensor([1.0])}, ValueError, ["prior", "(3,)", "(1,)"]),
    "supcon temperature": ("supcon", {"temperature": 0.0}, ValueError, ["temperature", "> 0", "0.0"]),
    "supcon smoothing": ("supcon", {"label_smoothing": 0.1}, ValueError, ["label_smoothing", "0.1"]),
    "supcon soft target": ("supcon", {"target": T}, TypeError, ["target", "indices", "torch.float32"]),
    "supcon dense": ("supcon", {"input": torch.zeros(4, 3, 2)}, ValueError, ["input", "(n, d)", "(4, 3, 2)"]),
    "supcon weight": ("supcon", {"weight": torch.ones(2, 3)}, ValueError, ["weight", "(2, 3)"]),
    "supcon weight too short": ("supcon", {"weight": torch.ones(2)}, IndexError, ["target", "[0, 2)", "got 2"]),
}


def assert_refused(loss: Callable[..., Any], changed: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    arguments = {"input": Z, "target": Y, **changed}
    with pytest.raises(kind) as caught:
        loss(**arguments)
    message = str(caught.value)
    assert re.match(rf"{re.escape(words[0])}\b", message), f"does not start with the argument's name: {message}"
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_refuses(name: str, case: str) -> None:
    assert_refused(LOSSES[name].function, *SHARED[case])


@pytest.mark.parametrize("case", OF_LOGITS)
@pytest.mark.parametrize("name", [name for name, info in LOSSES.items() if info.takes == "logits"])
def test_every_loss_of_logits_refuses(name: str, case: str) -> None:
    assert_refused(LOSSES[name].function, *OF_LOGITS[case])


@pytest.mark.parametrize("case", OWN)
def test_a_loss_refuses_bad_parameters_of_its_own(case: str) -> None:
    name, changed, kind, words = OWN[case]
    assert_refused(LOSSES[name].function, changed, kind, words)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("gence", {"anchor": -1.0}, ["anchor", "-1"]),
        ("gence", {"prior": torch.tensor([0.5, 0.6])}, ["prior", "sum to 1", "1.1"]),
        ("gence", {"prior": torch.tensor([0.5, 0.5]), "weight": torch.ones(3)}, ["prior", "(3,)", "(2,)"]),
        ("gence", {"reduction": "avg"}, ["reduction", "'avg'"]),
        ("gence", {"label_smoothing": 2.0}, ["label_smoothing", "2.0"]),
        ("generalized_ce", {"q": 2.0}, ["q", "2.0"]),
        ("focal", {"gamma": -2.0}, ["gamma", "-2.0"]),
        ("logit_adjusted", {"prior": torch.tensor([2.0, 3.0])}, ["prior", "5"]),
        ("supcon", {"temperature": -1.0}, ["temperature", "-1.0"]),
        ("mdca", {"beta": -2.0}, ["beta", "-2.0"]),
        ("poly1", {"epsilon": -2.0}, ["epsilon", "-2.0"]),
        ("mbls", {"margin": -2.0}, ["margin", "-2.0"]),
        ("logit_norm", {"tau": -2.0}, ["tau", "-2.0"]),
        ("dual_focal", {"gamma": -2.0}, ["gamma", "-2.0"]),
    ],
)
def test_modules_refuse_when_made(name: str, params: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        create_loss(name, **params)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gence.RunningMarginal("3"), "num_classes: expected a positive number, got str"),  # type: ignore[arg-type]
        (lambda: gence.RunningMarginal(3, "a"), "momentum: expected a number in [0, 1), got str"),  # type: ignore[arg-type]
        (lambda: gence.MarginalMonitor(threshold="a"), "threshold: expected a number > 0"),  # type: ignore[arg-type]
        (lambda: gence.create_loss("focal", gamma="a"), "gamma: expected a number >= 0, got str"),
    ],
)
def test_a_word_for_a_number_is_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        make()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_prior_rounded_to_half_precision_is_taken(dtype: torch.dtype) -> None:
    logits, labels, prior = torch.randn(8, 50), torch.arange(8), torch.rand(50).softmax(0)
    rounded, exact = (gen_cross_entropy(logits, labels, anchor=1.0, prior=p) for p in (prior.to(dtype), prior))
    assert_close(rounded, exact, rtol=1e-2, atol=0)


def test_one_row_warns_once_and_has_zero_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_warned_of_one_row", False)
    z = torch.randn(1, 3, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = gen_cross_entropy(z, torch.tensor([1]))
        gen_cross_entropy(z, torch.tensor([1]))
        gence.GenCELoss()(z[0], torch.tensor(1))
    assert len(caught) == 1
    assert "one row" in str(caught[0].message)
    assert caught[0].filename == __file__
    loss.backward()
    assert_close(loss.detach(), torch.tensor(0.0))
    assert_close(z.grad, torch.zeros(1, 3))


def test_one_row_with_something_to_compete_with_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_warned_of_one_row", False)
    z, y = torch.randn(1, 3), torch.tensor([1])
    assert gen_cross_entropy(z, y, context=torch.randn(2, 3)) > 0
    gen_cross_entropy(z, y, anchor=0.1)
    assert not dispatch._warned_of_one_row


@pytest.mark.parametrize("name", [5, None])
def test_a_loss_has_a_name(name: Any) -> None:
    with pytest.raises(TypeError, match="name: expected the name of a loss"):
        create_loss(name)


def test_weights_of_a_module_are_a_vector() -> None:
    with pytest.raises(ValueError, match=re.escape("weight: expected shape (1,)")):
        gence.GenCELoss(torch.tensor(1.0))
