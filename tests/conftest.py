"""What all tests share: one thread a worker, a fixed seed, and GPU cases only where there is a GPU."""

from __future__ import annotations

import random

import hypothesis
import pytest
import torch

# Workers run side by side; more than one thread each makes them slower, and sums depend on the number of threads.
torch.set_num_threads(1)

# The same examples every time: a failure seen by one person is a failure for all.
hypothesis.settings.register_profile("gence", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("gence")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU cases where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
