"""What all tests share: one thread a worker, a fixed seed, and GPU cases only where there is a GPU."""

from __future__ import annotations

import os
import random

import hypothesis
import pytest
import torch

# Workers run side by side; more than one thread each makes them slower, and sums depend on the number of threads.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

# The same examples every time: a failure seen by one person is a failure for all.
hypothesis.settings.register_profile("gence", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("gence")


# Started first, so that no worker is left alone with one at the end; see --no-loadscope-reorder in the Makefile.
LONG = (
    "test_examples.py",
    "test_kernels.py",
    "test_docs.py",
    "test_check_estimator.py",
    "test_compare.py",
    "test_trainers.py",
    "test_kill.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, and skip GPU cases where there is no CUDA device."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
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
