import subprocess
import sys

import pytest
import torch

import gence


def test_set_and_restore():
    before = gence.get_backend()
    with gence.set_backend("torch"):
        assert gence.get_backend() == "torch"
        with gence.set_backend("auto"):
            assert gence.get_backend() == "auto"
        assert gence.get_backend() == "torch"
    assert gence.get_backend() == before
    gence.set_backend("torch")
    assert gence.get_backend() == "torch"
    gence.set_backend(before)


def test_restored_after_an_error():
    before = gence.get_backend()
    with pytest.raises(ZeroDivisionError), gence.set_backend("torch"):
        raise ZeroDivisionError
    assert gence.get_backend() == before


def test_unknown_backend_is_named():
    with pytest.raises(ValueError, match=r"backend: expected one of 'auto', 'torch', 'triton', got 'cuda'"):
        gence.set_backend("cuda")


@pytest.mark.parametrize(("value", "shown"), [("torch", "torch"), ("fast", "ValueError: GENCE_BACKEND")])
def test_environment_variable(value, shown, monkeypatch):
    monkeypatch.setenv("GENCE_BACKEND", value)
    code = "import gence; print(gence.get_backend())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert shown in found.stdout + found.stderr


def test_triton_says_why_it_cannot():
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with gence.set_backend("triton"), pytest.raises(RuntimeError, match="backend"):
        gence.gen_cross_entropy(
            logits.requires_grad_(), target.double()[:, None].softmax(0).expand(4, 3).requires_grad_()
        )


def test_importing_gence_does_not_import_triton_kernels():
    code = "import sys, gence; print('gence.losses.backends.triton' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert found.stdout.strip() == "False", found.stderr
