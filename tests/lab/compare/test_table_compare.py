"""Tables in the main command: texts, columns and ready features, their references, their report, and OOD rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

import gence.lab.compare as lab
from gence.lab.compare import compare
from gence.lab.compare.options import CompareOptions
from gence.lab.compare.plan import plan_comparison
from gence.lab.data import DataError
from gence.lab.spec import SpecError

QUICK = {"losses": "gence,ce", "seeds": 2, "epochs": 10, "tune_trials": 2, "files": False}


def wine(rows: int = 120) -> pd.DataFrame:
    bunch = load_wine(as_frame=True)
    frame = bunch.data.sample(rows, random_state=0)
    cellar = np.where(frame["proline"] > 700, "north", "south")
    return frame.assign(cellar=cellar, cultivar=bunch.target[frame.index])


def features(path: Path, rows: int = 200, width: int = 12, classes: int = 5) -> Path:
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, rows)
    x = draw.normal(size=(classes, width))[y] + draw.normal(scale=0.8, size=(rows, width))
    np.savez(path, X=x.astype("float32"), y=y)
    return path


def test_ready_features_train_like_embedded_images(tmp_path: Path) -> None:
    result = compare(features(tmp_path / "f.npz"), out=tmp_path / "report", cache_dir=tmp_path / "cache", **QUICK)
    assert result.complete
    assert result.report is not None
    assert result.frame["accuracy"].min() > 0.6
    assert set(result.frame["model"]) == {"linear@features"}
    (chapter,) = result.report.chapters
    assert chapter.encoder == "Ready features: 12 per row."
    references = next(table for table in chapter.tables if table.name == "references")
    assert {row.cells[0].text for row in references.rows} >= {
        "Logistic regression, L2 by cross-validation",
        "Nearest class mean",
        "k nearest neighbours, k by cross-validation",
    }
    again = compare(tmp_path / "f.npz", out=tmp_path / "report", cache_dir=tmp_path / "cache", **QUICK)
    assert len(again.runs.skipped) == 4


def test_a_frame_with_numbers_and_categories_has_a_boosted_reference(tmp_path: Path) -> None:
    frame = wine()
    result = compare(frame, label="cultivar", out=tmp_path / "report", cache_dir=tmp_path / "cache", **QUICK)
    assert result.report is not None
    assert result.page is not None
    (chapter,) = result.report.chapters
    assert "13 columns of numbers" in chapter.encoder
    assert "15 features per row" in chapter.encoder
    references = next(table for table in chapter.tables if table.name == "references")
    assert "Gradient-boosted trees, nothing tuned" in [row.cells[0].text for row in references.rows]
    assert result.frame["accuracy"].min() > 0.8
    shown = result.page.read_text()
    assert "cellar: " in shown or all(not found for found in (chapter.mistakes or {}).values())


def test_rows_with_the_label_of_no_class_are_out_of_distribution(tmp_path: Path) -> None:
    frame = wine()
    result = compare(
        frame, label="cultivar", ood_label="2", out=tmp_path / "report", cache_dir=tmp_path / "cache", **QUICK
    )
    assert result.report is not None
    assert "ood/2/auroc_entropy" in result.frame.columns or any("ood/2" in name for name in result.frame.columns)
    assert result.report.chapters[0].classes == ("0", "1")


def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    path = features(tmp_path / "f.npz")
    for options, error, said in (
        ({"model": "resnet18"}, SpecError, "expected linear@features"),
        ({"model": "linear@all_minilm_l6_v2"}, ValueError, "does not take ready features"),
        ({"image_size": 32}, SpecError, "image_size does nothing"),
        ({"tune_encoder": "all"}, SpecError, "embedded once"),
        ({"text": "message"}, DataError, "holds arrays and no columns"),
    ):
        with pytest.raises(error, match=said):
            plan_comparison(CompareOptions(data=path, **options))
    with pytest.raises(DataError, match="--label names columns of a table, but digits is not a table"):
        plan_comparison(CompareOptions(label="x"))
    with pytest.raises(ValueError, match="reads the rows of a table; images need"):
        plan_comparison(CompareOptions(data="digits", model="linear@columns"))


def test_many_rows_are_trained_for_fewer_epochs_and_tuned_on_a_sample(tmp_path: Path) -> None:
    plan = plan_comparison(CompareOptions(data=features(tmp_path / "f.npz", 62_500, 2)))
    assert plan.base.recipe.epochs == 20
    assert plan.trials == 16
    assert lab.compare is compare
