"""Every example in a docstring of the losses and the metrics runs, and every public loss has one."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil

import pytest
import torch

import gence
import gence.losses
import gence.metrics
from gence.losses.backends.dispatch import HAS_TRITON, OLDEST_TRITON


def modules() -> list[str]:
    found = []
    for package in (gence.losses, gence.metrics):
        found.append(package.__name__)
        found.extend(m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    return found


def needs_triton(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    source = spec.loader.get_source(name)  # type: ignore[attr-defined]
    return "\nimport triton" in source or "\nfrom triton" in source


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str) -> None:
    if needs_triton(name) and not HAS_TRITON:
        pytest.skip(f"needs Triton {'.'.join(map(str, OLDEST_TRITON))} or newer")
    module = importlib.import_module(name)
    torch.manual_seed(0)
    result = doctest.testmod(module)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} failed; see the output"


@pytest.mark.parametrize("name", [n for n in gence.__all__ if inspect.isfunction(getattr(gence, n))])
def test_every_public_function_has_an_example(name: str) -> None:
    examples = doctest.DocTestFinder().find(getattr(gence, name), globs={})
    assert sum(len(found.examples) for found in examples) > 0
