"""The metrics need torch alone."""

import subprocess
import sys


def test_importing_the_metrics_does_not_import_the_lab():
    # Imported after torch: what torch brings along itself (numpy, where installed) is not ours.
    script = (
        "import sys, torch; before = set(sys.modules); import gence.metrics; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split())
    assert "gence" in brought
    lab = {"numpy", "scipy", "sklearn", "pandas", "matplotlib", "torchvision", "torchmetrics", "typer", "rich"}
    assert brought & lab == set()
