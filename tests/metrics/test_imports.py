"""The metrics need torch alone."""

import subprocess
import sys


def test_importing_the_metrics_does_not_import_the_lab():
    # The bare import of torch is the baseline: what it brings along itself (numpy, where installed) is not ours.
    script = (
        "import sys, torch; before = set(sys.modules); import gence.metrics; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gence']"
