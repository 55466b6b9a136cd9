"""What all tests share: one thread a worker, a fixed seed, GPU cases only where there is a GPU, and a browser."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch

from tests.interpreter import patch_language_once

# Workers run side by side; more than one thread each makes them slower, and sums depend on the number of threads.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

# A shell's background ignores Ctrl-C, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if os.environ.get("TRITON_INTERPRET") == "1":
    patch_language_once()

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


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium; closed after its module, because a process can drive one Playwright at a time."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium on this machine; scripts/install_browser.sh installs one")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", *quiet], timeout=60_000
        )
        yield browser
        browser.close()
