from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["seeds", "schedule", "device", "ood_names", "small_classes"])
def test_examples_of_the_trainer(module):
    failed, tried = doctest.testmod(importlib.import_module(f"gence.experiment.{module}"))
    assert tried > 0
    assert failed == 0
