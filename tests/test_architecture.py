"""The house is as it is drawn: imports point one way and through front doors, without circles, and rooms are small.

Each check is seen to fail on an offence that is planted in a copy of the package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.graph import arrows, circles, deep_imports, drawn, imports, modules, packages

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MOST_FILES_IN_A_FOLDER = 13
MOST_FILES, MOST_LINES = 245, 46_650
"""A ratchet: growth is a decision, written down here."""


def lint(copy: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker of layers over a copy of the package, with the project's own configuration."""
    program = f"import sys; sys.path.insert(0, {str(copy)!r}); from importlinter.cli import lint_imports_command; "
    program += "lint_imports_command()"
    arguments = ["--config", str(copy / "pyproject.toml"), "--no-cache"]
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("layers")
    shutil.copytree(SOURCE / "gence", copy / "gence", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.fixture
def planted(original: Path, tmp_path: Path):
    """A function that adds a line to a file of a copy of the package, and returns the copy."""
    copy = tmp_path / "planted"
    shutil.copytree(original, copy)

    def plant(file: str, line: str) -> Path:
        with (copy / "gence" / file).open("a") as source:
            source.write(f"\n{line}\n")
        return copy

    return plant


def test_layers_hold(original: Path) -> None:
    done = lint(original)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "reported"),
    [
        ("losses/drift/offset.py", "import gence.metrics", "gence.losses.drift.offset -> gence.metrics"),
        ("metrics/__init__.py", "from gence.lab import spec", "gence.metrics -> gence.lab.spec"),
        ("lab/models/__init__.py", "import gence.lab.data", "gence.lab.models -> gence.lab.data"),
        ("lab/data/__init__.py", "def late():\n    import gence.paper", "gence.lab.data -> gence.paper"),
        ("lab/store/store.py", "from gence.lab.train import Cohort", "gence.lab.store.store -> gence.lab.train"),
        ("losses/targets.py", "import torchvision", "gence.losses.targets -> torchvision"),
        ("metrics/__init__.py", "import pandas", "gence.metrics -> pandas"),
    ],
)
def test_a_wrong_direction_is_found(planted, file: str, line: str, reported: str) -> None:
    done = lint(planted(file, line))
    assert done.returncode == 1, done.stdout
    assert reported in done.stdout


def test_other_rooms_are_entered_by_the_front_door() -> None:
    assert deep_imports(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("cli/data.py", "from gence.lab.data.images import ImageSet"),
        ("lab/report/page.py", "def late():\n    from gence.lab.store import record"),
        ("lab/sweep/run.py", "if TYPE_CHECKING:\n    from gence.lab.train.task import Problem"),
        ("theory/scores.py", "import gence.losses.targets"),
    ],
)
def test_a_deep_import_is_found(planted, file: str, line: str) -> None:
    found = deep_imports(planted(file, line))
    assert [one.importer for one in found] == [f"gence.{file[:-3].replace('/', '.')}"]


def test_there_are_no_circles() -> None:
    assert circles(imports(SOURCE)) == []


@pytest.mark.parametrize(
    ("file", "line", "circle"),
    [
        ("lab/spec/fields.py", "from gence.lab.spec.grid import Grid", "gence.lab.spec.grid"),
        ("losses/targets.py", "def late():\n    import gence.losses.baselines", "gence.losses.baselines"),
        ("metrics/stats.py", "from gence import metrics", "gence.metrics"),
    ],
)
def test_a_circle_is_found(planted, file: str, line: str, circle: str) -> None:
    assert circle in [name for group in circles(imports(planted(file, line))) for name in group]


def test_folders_are_small_and_every_one_says_what_it_is_for() -> None:
    files = modules(SOURCE)
    for folder in packages(SOURCE):
        inside = [name for name, file in files.items() if file.parent == files[folder].parent]
        assert len(inside) <= MOST_FILES_IN_A_FOLDER, folder
        assert files[folder].read_text().startswith('"""'), folder
    assert len(files) <= MOST_FILES
    assert sum(len(file.read_text().splitlines()) for file in files.values()) <= MOST_LINES


def test_the_picture_shows_the_imports_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    picture = page[page.index("```mermaid") : page.index("```", page.index("```mermaid") + 3)]
    shown = set(re.findall(r"^\s*([\w.]+) --> ([\w.]+)", picture, flags=re.MULTILINE))
    there = drawn(arrows(SOURCE))
    assert shown == there, f"shown, not there: {sorted(shown - there)}; there, not shown: {sorted(there - shown)}"
