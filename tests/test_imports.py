"""What an import costs and brings: torch alone, no work, all public names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gence

ROOT = Path(__file__).parents[1]

OPTIONAL = (
    "torchvision", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "typer", "rich", "safetensors", "PIL",
    "jinja2", "filelock", "timm", "optuna", "ray", "datasets", "tensorboard", "triton", "skorch", "lightning",
    "transformers",
)  # fmt: skip

IMPORT_AFTER_TORCH = """
import json, sys
import torch
before = {name.partition(".")[0] for name in sys.modules}
import gence
gence.GenCELoss
after = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted(after - before - set(sys.stdlib_module_names))))
"""

IMPORT_WITHOUT_OPTIONAL = """
import sys
from pathlib import Path
for name in sys.argv[1:]:
    sys.modules[name] = None  # "import name" raises ImportError
import torch, gence
print(float(gence.gen_cross_entropy(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]))))
"""


def python(program: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_pulls_torch_only() -> None:
    assert json.loads(python(IMPORT_AFTER_TORCH)) == ["gence"]


@pytest.mark.parametrize("call", ["--help", "compare --help", "version"])
def test_the_command_line_says_what_it_knows_without_loading_torch(call: str) -> None:
    program = "import sys; sys.modules['torch'] = None; from gence.cli import main; main()"
    assert python(program, *call.split())


WITHOUT_TORCH = """
import sys
from gence.cli import main
for call in sys.argv[1:]:
    sys.argv = ["gence", *call.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, call
    assert "torch" not in sys.modules, call
"""


def test_what_only_reads_records_does_not_load_torch() -> None:
    """One process for all; one name for each kind of table."""
    names = ("table1", "epoch_time", "tuned", "remedies", "remedies_course", "open_choices", "transfer")
    shown = python(
        WITHOUT_TORCH, *(f"show {name}" for name in names), "run table1 --dry-run", f"store check {ROOT}/results/paper"
    )
    assert "records are sound" in shown


def test_a_star_import_brings_the_losses_and_nothing_of_the_lab() -> None:
    program = "from gence import *; import sys; print(GenCELoss.__name__, 'pandas' in sys.modules, 'compare' in dir())"
    assert python(program).split() == ["GenCELoss", "False", "False"]


def test_what_somebody_puts_in_a_name_s_place_stays(monkeypatch) -> None:
    monkeypatch.setattr(gence, "create_loss", "another")
    assert not hasattr(gence, "no_such_name")
    assert "create_loss" in dir(gence)
    assert gence.create_loss == "another"


def test_a_name_that_is_not_there_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'gence' has no attribute 'GenCeLoss'"):
        gence.GenCeLoss  # noqa: B018
    assert {"GenCELoss", "__version__"} <= set(dir(gence))


def test_the_loss_works_where_nothing_but_torch_is_installed() -> None:
    without_triton = [name for name in OPTIONAL if name != "triton"]  # torch itself looks for triton
    assert float(python(IMPORT_WITHOUT_OPTIONAL, *without_triton)) == pytest.approx(1.3862943611)


def test_public_names_are_there() -> None:
    assert len(set(gence.__all__)) == len(gence.__all__)
    missing = [name for name in gence.__all__ if not hasattr(gence, name)]
    assert missing == []
    assert gence.__version__.count(".") == 2


def test_runs_as_a_module_from_a_checkout_without_being_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "gence", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gence" in done.stdout
