"""The checker of import directions can fail: wrong imports planted in a copy of the package are found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(copy: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker over a copy of the package, with the project's own configuration."""
    program = f"import sys; sys.path.insert(0, {str(copy)!r}); from importlinter.cli import lint_imports_command; "
    program += "lint_imports_command()"
    arguments = ["--config", str(copy / "pyproject.toml"), "--no-cache"]
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("layers")
    shutil.copytree(ROOT / "src" / "gence", copy / "gence", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def test_the_package_as_it_is_passes(original: Path) -> None:
    done = lint(original)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "reported"),
    [
        ("losses/offset.py", "import gence.metrics", "gence.losses.offset -> gence.metrics"),
        ("metrics/__init__.py", "from gence.experiment import spec", "gence.metrics -> gence.experiment"),
        ("models/__init__.py", "import gence.data", "gence.models -> gence.data"),
        ("data/__init__.py", "def late():\n    import gence.paper", "gence.data -> gence.paper"),
        ("losses/targets.py", "import torchvision", "gence.losses.targets -> torchvision"),
        ("metrics/__init__.py", "import pandas", "gence.metrics -> pandas"),
    ],
)
def test_a_wrong_import_is_found(original: Path, tmp_path: Path, file: str, line: str, reported: str) -> None:
    copy = tmp_path / "planted"
    shutil.copytree(original, copy)
    with (copy / "gence" / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout
    assert reported in done.stdout
