"""scikit-learn's own checks, all of them: none is skipped, and none is marked as expected to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json
from sklearn.utils.estimator_checks import check_estimator
from gence.sklearn import GenCEClassifier
results = check_estimator(GenCEClassifier(), on_fail=None, on_skip=None)
print(json.dumps([[r["check_name"], r["status"], repr(r["exception"])] for r in results]))
"""


def test_every_check_passes() -> None:
    # scikit-learn skips its array API check unless this is set before scipy is imported, hence the process.
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert [result for result in results if result[1] != "passed"] == []
    assert len(results) > 50
    assert "check_sample_weight_equivalence_on_dense_data" in [name for name, _, _ in results]
