from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import gence.cli.compare
import gence.report

MODULES = [f"gence.report.{module.name}" for module in pkgutil.iter_modules(gence.report.__path__)]


@pytest.mark.parametrize("name", [*MODULES, gence.cli.compare.__name__])
def test_examples_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) >= 8
