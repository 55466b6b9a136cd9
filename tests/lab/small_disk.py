"""A disk that is full after a few kilobytes, for tests of what happens then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_on_small_disk(folder: Path, code: str, size: str) -> str:
    """Run code with a small disk mounted at `folder / "disk"`, which is only there for it; return what it printed.

    The code may make the disk read-only: `os.system("mount -o remount,ro " + disk)`.
    """
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", *mount], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    script = folder / "script.py"
    script.write_text(f"disk = {str(disk)!r}\n{code}")
    shell = f'{" ".join(mount)} && exec "$0" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", shell, sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
