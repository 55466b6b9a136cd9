"""Every example in the docstrings of the metrics runs and gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import gence.metrics

MODULES = sorted(f"gence.metrics.{info.name}" for info in pkgutil.iter_modules(gence.metrics.__path__))


@pytest.mark.parametrize("name", [name for name in MODULES if not name.rpartition(".")[2].startswith("_")])
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("name", [n for n in gence.metrics.__all__ if callable(getattr(gence.metrics, n))])
def test_every_public_function_has_an_example(name):
    member = getattr(gence.metrics, name)
    assert member.__doc__
    if not isinstance(member, type):
        assert ">>>" in member.__doc__
