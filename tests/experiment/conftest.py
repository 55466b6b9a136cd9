from __future__ import annotations

import io

import pytest


@pytest.fixture
def quiet_console():
    from rich.console import Console

    return Console(file=io.StringIO(), force_terminal=False)
