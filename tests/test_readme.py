"""The README's code runs, top to bottom, and its results come from records."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_blocks_run_in_order() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
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


def test_a_stranger_reads_it_in_two_minutes() -> None:
    assert len(README.splitlines()) <= 130
    assert (ROOT / "docs" / "images" / "report.webp").stat().st_size < 200_000


def test_the_figure_is_drawn_from_the_records() -> None:
    from gence.lab.store import Store
    from gence.paper.does_it_help import differences_in_words, help_cells

    cells = help_cells(Store(ROOT / "results" / "paper"))
    assert len(cells) >= 10
    drawn = (ROOT / "docs" / "images" / "differences.svg").read_text()
    assert differences_in_words(cells) in drawn, "the figure is stale: run python scripts/draw_readme.py figure"
    # What the picture's description says.
    assert all(sum(cell.accuracy["gence(anchor=0.1)"]) / len(cell.accuracy["gence"]) > -0.5 for cell in cells)
    assert sum(sum(cell.accuracy["gence"]) < 0 for cell in cells) >= len(cells) / 2


def test_links_lead_somewhere() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text()):
            assert (ROOT / link).exists(), f"{document} links to {link}"


def test_no_result_is_typed_by_hand() -> None:
    """Percentages and decimals of measured results stand in generated blocks only."""
    prose = re.sub(r"<!-- generated: .*?<!-- end -->", "", README, flags=re.DOTALL)
    prose = prose.replace("arXiv 2604.06689", "")
    prose = re.sub(r"^```.*?^```", "", prose, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\d+(?:\.\d+)? ?%|\b\d+\.\d{2,}", prose) == []
    assert README.count("<!-- generated: ") == README.count("<!-- end -->") >= 1
