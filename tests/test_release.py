"""A release works on other machines: sdist and wheel build, and the wheel runs where only torch is installed.

Installing torch takes minutes and gigabytes, so the empty environment gets links to the torch that is here and to what
torch's own metadata asks for, and nothing else. Figures go to build/release.json.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]

IMPORT = """
import json, sys, time
begin = time.perf_counter()
import torch
after_torch = time.perf_counter()
before = {name.partition(".")[0] for name in sys.modules}
import gence
seconds = time.perf_counter() - after_torch
new = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
times = {"torch": after_torch - begin, "gence": seconds}
print(json.dumps({"seconds": times, "new": sorted(new), "file": gence.__file__}))
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    # PYTHONPATH would let the empty environment see the checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def needed_by(name: str) -> set[str]:
    """The distribution and, recursively, what its metadata asks for on this machine, extras included."""
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), "")]
    while waiting:
        current, extra = waiting.pop()
        try:
            requirements = [Requirement(text) for text in metadata.requires(current) or []]
        except metadata.PackageNotFoundError:  # e.g. setuptools, which an installation may do without
            continue
        seen.add((current, extra))
        for needed in requirements:
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                pairs = {(canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)}
                waiting += pairs - seen
    return {current for current, _ in seen}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def empty(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with torch, what torch needs, and the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name in needed_by("torch"):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    wheel = next(built.glob("*.whl"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    return python


def test_sdist_and_wheel_hold_what_they_should(built: Path) -> None:
    wheel, sdist = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} - {"gence"} == {wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "gence").rglob("*.py")}
    assert sources - set(names) == set()
    assert "gence/py.typed" in names
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "src/gence/__init__.py"} <= inside


def test_the_wheel_in_an_empty_environment(built: Path, empty: Path, tmp_path: Path) -> None:
    listed = json.loads(run(sys.executable, "-m", "pip", "--python", empty, "list", "--format=json"))
    packages = {canonicalize_name(entry["name"]): entry["version"] for entry in listed}
    assert set(packages) == needed_by("torch") | {"gence"}

    seen = json.loads(run(empty, "-c", IMPORT, cwd=tmp_path).splitlines()[-1])
    assert seen["new"] == ["gence"]
    assert Path(seen["file"]).is_relative_to(empty.parents[1])

    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    snippet = tmp_path / "before_after.py"
    snippet.write_text("\n".join(blocks[:2]) + "\nprint('gradient', tuple(logits.grad.shape))\n")
    begin = time.perf_counter()
    assert run(empty, snippet, cwd=tmp_path).splitlines()[-1] == "gradient (100, 10)"
    figures = {
        "packages": [f"{name} {version}" for name, version in sorted(packages.items())],
        "import_torch_seconds": round(seen["seconds"]["torch"], 2),
        "import_gence_beyond_torch_seconds": round(seen["seconds"]["gence"], 3),
        "readme_snippet_seconds": round(time.perf_counter() - begin, 2),
        "wheel_kib": round(next(built.glob("*.whl")).stat().st_size / 1024),
    }
    record = ROOT / "build" / "release.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures))


def test_version_is_one_and_the_same(built: Path, empty: Path, tmp_path: Path) -> None:
    version = run(empty, "-c", "import gence; print(gence.__version__)", cwd=tmp_path).strip()
    assert next(built.glob("*.whl")).name.startswith(f"gence-{version}-")
    changes = re.search(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert changes is not None
    assert changes[1] in ("Unreleased", version), "the changelog begins with another version"
    cited = re.search(r"^version: *\"?([\w.]+)", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited is None or cited[1] == version
