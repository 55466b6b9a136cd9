"""The docstrings' examples run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        ("estimator", 1),
        ("sample_weights", 1),
        ("networks", 1),
        ("first_pass", 1),
        ("marginal_watch", 1),
        ("huggingface", 0),
        ("lightning", 0),
    ],
)
def test_examples_run(name: str, examples: int) -> None:
    module = importlib.import_module(f"gence.integrations.{name}")
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted >= examples
