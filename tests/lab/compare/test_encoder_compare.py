"""A comparison that starts from a pretrained encoder: chosen by itself, tuned, with references, and read back whole."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from safetensors.torch import save_file
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.compare import compare
from gence.lab.compare.options import CompareOptions
from gence.lab.compare.plan import plan_comparison
from gence.lab.features import embedded_encoder_is_installed, load_encoder
from gence.lab.store import Store

pytestmark = pytest.mark.skipif(not embedded_encoder_is_installed(), reason="the extra pretrained is not installed")
LOSSES = ("gence(anchor=0.1)", "ce")


def run(folder, out, **options):
    text = io.StringIO()
    given = {"losses": LOSSES, "seeds": 2, "tune_trials": 3, "epochs": 10, "out": out, **options}
    return compare(str(folder), console=Console(file=text, width=200), **given), text.getvalue()


@pytest.fixture(scope="module")
def compared(photographs, tmp_path_factory):
    out = tmp_path_factory.mktemp("encoder") / "out"
    return run(photographs, out, ood=["digits"]), out


def test_photographs_are_embedded_tuned_and_set_beside_references(compared):
    (result, text), out = compared
    assert result.complete
    frame = result.frame
    assert set(frame["model"]) == {"linear@efficientnet_lite0"}
    assert frame["accuracy"].min() >= 0.8
    assert "Tuning 2 losses with 3 trials each" in text
    (chapter,) = result.report.chapters
    tables = {table.name: table for table in chapter.tables}
    names = [row.cells[0].text for row in tables["references"].rows]
    found = [name.partition(",")[0] for name in names]
    assert {"Majority class", "Logistic regression", "Nearest class mean", "k nearest neighbours"} <= set(found)
    page = (out / "report.html").read_text()
    assert "References: " in page
    assert "Frozen features of the pretrained encoder efficientnet_lite0: 1280 per image of 128 x 128 pixels" in page
    assert "Calibration: " in page
    assert "after calibration it is" in page.lower()
    raw, calibrated, *_ = tables["calibration"].rows
    assert [row.cells[0].text for row in (raw, calibrated)] == [
        "GenCE (anchor 0.1), raw",
        "GenCE (anchor 0.1), calibrated",
    ]
    own = frame[frame["loss"] == "gence(anchor=0.1)"]
    assert calibrated.cells[1].value == pytest.approx(own["calibrated/nll"].mean())
    assert raw.cells[6].value == pytest.approx(100 * own["coverage/lac90"].mean())
    detectors = tables["detectors-1"]
    assert detectors.columns[-3:] == ("kNN", "Mahalanobis", "ViM")
    assert detectors.rows[0].cells[-1].value == pytest.approx(100 * own["ood/digits/auroc_vim"].mean())
    assert (out / "tables" / "calibration.csv").exists()
    kept = [json.loads(place.read_text()) for place in (out / "store" / "references").iterdir()]
    assert sorted(row["seed"] for one in kept for row in one["rows"]) == [0] * len(found) + [1] * len(found)


def test_the_same_call_computes_nothing_again(compared, photographs, monkeypatch):
    (_, _), out = compared
    before = {place: place.stat().st_mtime_ns for place in (out / "store").rglob("*.json")}
    monkeypatch.setattr("gence.lab.features.heads.training.train_heads", None)
    result, text = run(photographs, out, ood=["digits"])
    assert result.complete
    assert "Embedded" not in text
    assert before == {place: place.stat().st_mtime_ns for place in (out / "store").rglob("*.json")}


def test_weights_of_ones_own_are_named_by_their_digits(photographs, tmp_path):
    file = tmp_path / "mine.safetensors"
    network = load_encoder("efficientnet_lite0").network
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, file)
    options = {"model": "linear@timm:tf_efficientnet_lite0@64", "weights": file, "tune_trials": 0, "seeds": 1}
    result, _ = run(photographs, tmp_path / "out", **options)
    (model,) = set(result.frame["model"])
    digits = model.partition("#")[2]
    assert model == f"linear@timm:tf_efficientnet_lite0@64#{digits}"
    assert len(digits) == 12
    assert result.complete


def test_what_auto_means_is_said(photographs, image_folder, monkeypatch, tmp_path):
    plan = plan_comparison(CompareOptions(data=str(photographs)))
    assert (plan.base.model, plan.trials, plan.device, plan.hint) == ("linear@efficientnet_lite0", 16, "cpu", "")
    tiny = plan_comparison(CompareOptions(data=str(image_folder(("a", "b"), 12)), recipe="tiny"))
    assert (tiny.base.model, tiny.trials) == ("small_cnn", 0)
    for place in ("auto", "plan"):
        monkeypatch.setattr(f"gence.lab.compare.{place}.wants_encoder", lambda *_: False)
    without = plan_comparison(CompareOptions(data=str(photographs)))
    assert without.base.model == "small_cnn"
    assert "pip install 'gence[pretrained]'" in without.hint
    monkeypatch.undo()
    tuned = plan_comparison(CompareOptions(data=str(photographs), tune_encoder="last"))
    assert (tuned.base.recipe.tune_encoder, tuned.base.recipe.optimizer, tuned.base.image_size) == (
        "last",
        "adamw",
        128,
    )


def test_from_the_command_line_to_an_exported_model(photographs, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    app = create_app()
    command = ["train", "--data", str(photographs), "--model", "linear@efficientnet_lite0", "--n", "40"]
    trained = call(app, [*command, "--save", "m.safetensors", "--store", "store"])
    assert trained.exit_code == 0, trained.output
    assert len(list(Store(tmp_path / "store").keys())) == 1
    assert call(app, ["predict", "m.safetensors", str(photographs / "china")]).exit_code == 0
    assert (tmp_path / "predictions.csv").read_text().startswith("file,predicted,confidence,p_china,p_flower")
    exported = call(app, ["export", "m.safetensors", "m.onnx"])
    assert "takes uint8 images (n, 3, 64, 64)" in exported.output.replace("\n", " ")
    assert (tmp_path / "m.onnx").stat().st_size > 1e6
