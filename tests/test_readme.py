"""The README's code runs, top to bottom, and its results come from records."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_blocks_run_in_order() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, python block {number + 1}", "exec"), names)
    assert isinstance(names["loss"], torch.Tensor)


def test_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = set(re.findall(r"^make ([a-z]+)", README, flags=re.MULTILINE))
    assert commands >= {"demo", "test"}
    assert commands <= targets


def test_links_lead_somewhere() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text()):
            assert (ROOT / link).exists(), f"{document} links to {link}"


def test_no_result_is_typed_by_hand() -> None:
    """Percentages and decimals of measured results stand in generated blocks only."""
    prose = re.sub(r"<!-- generated: .*?<!-- end -->", "", README, flags=re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", prose, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\d+(?:\.\d+)? ?%|\b\d+\.\d{2,}", prose) == []
    assert README.count("<!-- generated: ") == README.count("<!-- end -->") >= 1
