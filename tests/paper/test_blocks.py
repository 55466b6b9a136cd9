"""Tables in README and docs come from records; a stale one is found."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gence.lab.store.store import Store
from gence.paper.blocks import NOTHING, filled, renderers
from gence.paper.exhibits.table1 import table1

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fill_tables():
    spec = importlib.util.spec_from_file_location("fill_tables", ROOT / "scripts" / "fill_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_repository_s_tables_are_not_stale(fill_tables, capsys) -> None:
    assert fill_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_table_is_found_and_filled(fill_tables, tmp_path, writer, capsys) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("A\n\n<!-- generated: bench-loss -->\nold\n<!-- end -->\n")
    page = tmp_path / "docs" / "paper.md"
    page.write_text("B\n\n<!-- generated: table1 -->\n<!-- end -->\n\nC\n")
    arguments = ["--root", str(tmp_path)]
    assert fill_tables.main([*arguments, "--check"]) == 1
    assert "<!-- generated: table1 -->\n<!-- end -->" in page.read_text()  # --check changes nothing
    assert fill_tables.main(arguments) == 0
    assert fill_tables.main([*arguments, "--check"]) == 0
    assert page.read_text().startswith("B\n")
    assert page.read_text().endswith("<!-- end -->\n\nC\n")
    assert "missing (0 of 5)" in page.read_text()
    assert NOTHING in (tmp_path / "README.md").read_text()

    writer.cell(table1(), "cifar100-2000-vgg19", "ce", [15.0] * 5)
    Store(tmp_path / "results" / "paper").merge(writer.store)  # a new record makes the table stale
    capsys.readouterr()
    assert fill_tables.main([*arguments, "--check"]) == 1
    assert capsys.readouterr().out == "docs/paper.md is stale: run python scripts/fill_tables.py\n"
    fill_tables.main(arguments)
    assert "15.00 ± 0.00" in page.read_text()


def test_benchmarks_have_blocks(tmp_path) -> None:
    rows = [{"n": 100, "ms": 0.123456, "all": [1, 2]}, {"n": 200, "ms": None}]
    (tmp_path / "loss.json").write_text(json.dumps({"rows": rows, "environment": {"device": "cpu"}}))
    text = renderers(Store(tmp_path / "none"), tmp_path)["bench-loss"]()
    assert text == "\n| n | ms |\n| --- | --- |\n| 100 | 0.1235 |\n| 200 | – |\n\nOn cpu.\n\n"


def test_a_wrong_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="no generated block 'tabel1'"):
        filled("<!-- generated: tabel1 -->\n<!-- end -->", {"table1": str})
    with pytest.raises(ValueError, match="no <!-- end -->"):
        filled("<!-- generated: table1 -->\n", {"table1": str})
