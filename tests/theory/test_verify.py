"""The checks that ``gence verify`` prints, the figures, the page, and every example in a docstring."""

import math
import re
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.theory import Check, verify, write_figures
from gence.theory.figures import FIGURES

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
MODULES = (
    "completeness", "drift", "figures", "finite_batch", "kernels", "measured", "minimise", "risk", "scores", "verify",
)  # fmt: skip


def test_every_check_passes_and_has_its_own_name():
    checks = verify()
    assert [check for check in checks if not check.passed] == []
    assert len({check.name for check in checks}) == len(checks) >= 15
    assert all(math.isfinite(check.measured) for check in checks)


@pytest.mark.parametrize(
    ("measured", "relation", "passed"),
    [
        (1.0, "<=", True),
        (2.0, "<=", False),
        (math.nan, "<=", False),
        (1.0, ">=", True),
        (0.5, ">=", False),
        (math.nan, ">=", False),
    ],
)
def test_a_check_can_fail(measured, relation, passed):
    assert Check(name="", statement="", measured=measured, relation=relation, bound=1.0).passed is passed


@pytest.mark.parametrize(
    ("measured", "status", "verdict"), [(0.5, 0, "holds"), (2.0, 1, "fails"), (math.nan, 1, "fails")]
)
def test_the_command_exits_with_1_if_a_check_fails(monkeypatch, measured, status, verdict):
    good = Check(name="good", statement="", measured=0.0, relation="<=", bound=1.0)
    other = Check(name="other", statement="", measured=measured, relation="<=", bound=1.0)
    monkeypatch.setattr("gence.theory.verify", lambda: [good, other])
    result = CliRunner().invoke(create_app(), ["verify"])
    assert result.exit_code == status
    assert re.search(rf"other .*{measured:.3g} .*{verdict}", result.output)
    assert "exit status is 1" in CliRunner().invoke(create_app(), ["verify", "--help"]).output


def test_figures_are_written_and_repeat_byte_for_byte(tmp_path):
    first, second = write_figures(tmp_path / "a"), write_figures(tmp_path / "b")
    assert [path.name for path in first] == [f"theory-{name}.svg" for name in FIGURES]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_pages_code_runs_and_shows_every_figure():
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"figures/theory-([a-z-]+)\.svg", text)) == set(FIGURES)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(block, str(PAGE), "exec"), names)
