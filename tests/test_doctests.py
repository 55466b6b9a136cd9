"""Every example in a docstring runs and gives what it says; what a package is for has examples to show it."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest
import torch

import gence
import gence.metrics
from gence.losses.backends.dispatch import HAS_TRITON

ROOMS = {"integrations": 4, "lab.data": 10, "lab.models": 3, "lab.report": 8, "lab.spec": 10, "metrics": 30, "paper": 4}
"""Examples there are at least."""

LOSSES = "gence.losses"  # run in tests/losses, where their coverage is measured


def source_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return spec.loader.get_source(name) if spec is not None and spec.loader is not None else ""


MODULES = [
    info.name
    for info in pkgutil.walk_packages(gence.__path__, "gence.")
    if not info.name.startswith(LOSSES) and ">>>" in source_of(info.name)
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    source = source_of(name)
    if not HAS_TRITON and ("\nimport triton" in source or "\nfrom triton" in source):
        pytest.skip("needs Triton")
    torch.manual_seed(0)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0, "see the output"


@pytest.mark.parametrize("room", ROOMS)
def test_there_are_examples(room):
    names = [name for name in MODULES if name.startswith(f"gence.{room}")]
    assert sum(source_of(name).count(">>> ") for name in names) >= ROOMS[room]


@pytest.mark.parametrize("name", [n for n in gence.metrics.__all__ if callable(getattr(gence.metrics, n))])
def test_every_public_metric_has_an_example(name):
    member = getattr(gence.metrics, name)
    assert member.__doc__
    if not isinstance(member, type):
        assert ">>>" in member.__doc__
