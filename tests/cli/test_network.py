"""What is read from a file of somebody else never starts a download by itself."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.data import names as known
from gence.lab.data.names import KNOWN, RemoteFile
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from tests.file_server import requests, serving
from tests.lab.data.conftest import tar_bytes
from tests.lab.tiny_trainer import make_specs

TRAIN = ["train", "--data", "cifar10", "--device", "cpu", "--loss", "ce", "--recipe", "tiny", "--model", "mlp",
         "--set", "recipe.epochs=1"]  # fmt: skip


def gence(*arguments: str, code: int = 0, answer: str | None = None) -> str:
    result = CliRunner().invoke(create_app(), list(arguments), input=answer)
    if code == 2:
        assert isinstance(result.exception, ValueError), result.output
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(autouse=True)
def _own_cifar10(tmp_path, monkeypatch):
    """A CIFAR-10 of forty images on this machine."""
    draw, folder = np.random.default_rng(0), tmp_path / "public"
    folder.mkdir()
    rows = b"".join(bytes([k % 2]) + draw.integers(0, 256, 3072, dtype=np.uint8).tobytes() for k in range(40))
    parts = {"data_batch_1.bin": rows, "test_batch.bin": rows, "batches.meta.txt": b"a\nb\n"}
    data = tar_bytes(parts, "w:gz")
    (folder / "cifar.tar.gz").write_bytes(data)
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))
    with serving(folder) as url:
        file = RemoteFile(f"{url}/cifar.tar.gz", hashlib.sha256(data).hexdigest(), "all")
        monkeypatch.setitem(known.KNOWN, "cifar10", replace(KNOWN["cifar10"], files=(file,)))
        yield


@pytest.mark.parametrize("data", ["cifar10", "hf:somebody/something"])
def test_reports_of_any_store_never_touch_the_network(tmp_path, monkeypatch, data):
    datasets = pytest.importorskip("datasets")

    def asked(*_args, **_options):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(datasets, "load_dataset", asked)
    store = Store(tmp_path / "store")
    mistake = {"index": [0], "label": [0], "predicted": [1]}
    wrong = {name: np.array(of, dtype=np.uint16) for name, of in mistake.items()} | {"confidence": np.ones(1)}
    for spec in make_specs(2, data=data, model="mlp"):
        store.write(spec, RunResult(metrics={"accuracy": 0.5}, data={"train": "0", "test": "1"}, predictions=wrong))
    gence("show", str(store.root))
    gence("report", str(store.root), "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "report.html").is_file()
    assert requests == []


def test_evaluate_asks_before_it_downloads_what_a_model_names(tmp_path, monkeypatch):
    model = str(tmp_path / "model.safetensors")
    gence(*TRAIN, "--save", model)
    assert len(requests) == 1
    assert "40 images were evaluated" in gence("evaluate", model, "--device", "cpu")
    assert len(requests) == 1, "its images are available"
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "empty"))
    message = gence("evaluate", model, "--device", "cpu", code=2)
    assert message.startswith("the model was trained on cifar10, which is not on this machine; add --data cifar10 to")
    monkeypatch.setattr("gence.cli.saved.is_interactive", lambda: True)
    assert "Download it? [y/N]" in gence("evaluate", model, "--device", "cpu", code=1, answer="n\n")
    assert len(requests) == 1
    assert "40 images were evaluated" in gence("evaluate", model, "--device", "cpu", answer="y\n")
    assert len(requests) == 2
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "empty-too"))
    assert "40 images were evaluated" in gence("evaluate", model, "--device", "cpu", "--data", "cifar10")
    assert len(requests) == 3
