"""The registry: names, parameters, and errors that help."""

from __future__ import annotations

import inspect

import pytest
import torch

import gence
from gence import LOSSES, create_loss, loss_info

NAMES = {"gence", "ce", "mae", "brier", "generalized_ce", "focal", "logit_adjusted", "cosine", "supcon"}
RIVALS = {"mdca", "poly1", "squentropy", "mbls", "logit_norm", "dual_focal"}


def test_has_the_promised_names() -> None:
    assert set(LOSSES) >= NAMES | RIVALS
    assert all(name == info.name and info.title and info.equation and info.source for name, info in LOSSES.items())


def test_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        LOSSES["new"] = LOSSES["ce"]  # type: ignore[index]


@pytest.mark.parametrize("name", LOSSES)
def test_function_and_module_are_public_and_called_alike(name: str) -> None:
    info = LOSSES[name]
    assert getattr(gence, info.function.__name__) is info.function
    assert getattr(gence, info.module.__name__) is info.module
    shared = list(inspect.signature(gence.cross_entropy).parameters)
    assert list(inspect.signature(info.function).parameters)[: len(shared)] == shared
    criterion = create_loss(name)
    assert isinstance(criterion, info.module)
    for param in info.params:
        default = inspect.signature(info.function).parameters[param].default
        assert getattr(criterion, param) == default


def test_embeddings_are_said_in_the_type() -> None:
    assert loss_info("supcon").takes == "embeddings"
    assert {name for name, info in LOSSES.items() if info.takes == "embeddings"} == {"supcon"}
    annotation = inspect.signature(gence.supcon_loss).parameters["input"].annotation
    assert "Embeddings" in annotation


def test_own_parameters() -> None:
    assert loss_info("focal").params == ("gamma",)
    assert loss_info("ce").params == ()
    assert {"anchor", "prior"} <= set(loss_info("gence").params)
    assert "context" not in loss_info("gence").params


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown loss 'gense'; did you mean 'gence'") as caught:
        create_loss("gense")
    assert all(name in str(caught.value) for name in LOSSES)
    with pytest.raises(ValueError, match="unknown loss 'xyz'") as caught:
        loss_info("xyz")
    assert "did you mean" not in str(caught.value)


def test_unknown_parameter_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"gama: not a parameter of 'focal'; did you mean 'gamma'") as caught:
        create_loss("focal", gama=1.0)
    assert "label_smoothing" in str(caught.value)
    with pytest.raises(TypeError, match="anchor: not a parameter of 'ce'"):
        create_loss("ce", anchor=0.1)


def test_modules_print_what_was_set() -> None:
    assert repr(create_loss("gence")) == "GenCELoss()"
    criterion = gence.GenCELoss(reduction="sum", label_smoothing=0.1, anchor=0.5, prior=torch.tensor([0.5, 0.5]))
    assert repr(criterion) == "GenCELoss(anchor=0.5, prior=tensor(2), reduction='sum', label_smoothing=0.1)"


def test_no_public_name_says_gce() -> None:
    """An early draft of the paper used GCE for GenCE, the literature for generalised cross-entropy."""
    assert [name for name in gence.__all__ if "gce" in name.lower()] == []
