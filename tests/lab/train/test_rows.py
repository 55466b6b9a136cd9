"""Heads on rows, saved and used: the same predictions after reading, and nothing judged that was trained on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.data import DataError, TableAddress, load_rows
from gence.lab.features import row_encoder
from gence.lab.features.columns import ColumnEncoder, transformer
from gence.lab.spec import RunSpec
from gence.lab.train import (
    evaluate_row_model,
    is_row_model,
    load_model,
    load_row_model,
    rows_to_judge,
    train_cohort,
    write_row_predictions,
)
from gence.lab.train.saved.predict import write_probabilities


def wine() -> pd.DataFrame:
    bunch = load_wine(as_frame=True)
    frame = bunch.data.assign(cellar=np.where(bunch.data["proline"] > 700, "north", "=south"), cultivar=bunch.target)
    frame.loc[frame.index % 7 == 0, "ash"] = np.nan
    return frame


def spec_of(source: str, model: str) -> RunSpec:
    return RunSpec.from_dict({"data": source, "model": model, "loss": "gence", "recipe": "head", "seed": 0}).replace(
        **{"recipe.epochs": 10}
    )


def trained(source: str, model: str, folder: Path) -> tuple[Path, float]:
    spec = spec_of(source, model)
    (result,) = train_cohort([spec], models_dir=folder, cache_dir=folder)
    assert result is not None
    return folder / f"{spec.key}.safetensors", result.metrics["accuracy"]


@pytest.fixture
def wine_source(tmp_path: Path) -> str:
    wine().to_csv(tmp_path / "wine.csv", index=False)
    return str(TableAddress(path=str(tmp_path / "wine.csv"), label="cultivar"))


def test_columns_become_what_scikit_learn_makes_of_them() -> None:
    frame = wine().drop(columns="cultivar")
    frame["cellar"] = frame["cellar"].astype(object)
    frame["batch"] = [f"b{i % 70}" if i % 3 else "" for i in range(len(frame))]
    frame["batch"] = frame["batch"].astype(object)
    numbers, words = [name for name in frame if frame[name].dtype == float], ["cellar", "batch"]
    made = ColumnEncoder.fitted(frame[:120], numbers, words)
    expected = transformer(numbers, words).fit(frame[:120]).transform(frame)
    torch.testing.assert_close(made(frame), torch.from_numpy(expected).float())
    read = ColumnEncoder.from_dict(json.loads(json.dumps(made.to_dict())))
    torch.testing.assert_close(read(frame), made(frame))
    assert (read.weights, read.width) == (made.weights, expected.shape[1])


def test_a_model_of_columns_predicts_after_reading_as_before(wine_source: str, tmp_path: Path) -> None:
    path, accuracy = trained(wine_source, "linear@columns", tmp_path)
    assert is_row_model(path)
    model = load_row_model(path)
    rows = rows_to_judge(model)
    assert evaluate_row_model(model, rows)["accuracy"] == pytest.approx(accuracy)
    assert accuracy > 0.85
    with safe_open(str(path), "pt") as file:  # plain data, and no pickle
        assert json.loads(file.metadata()["encoder"])["categories"] == [["cellar", {"=south": 0, "north": 1}, 2]]
    new = wine().drop(columns="cultivar").assign(cellar="unseen")
    new.to_csv(tmp_path / "new.csv", index=False)
    assert write_row_predictions(model, tmp_path / "new.csv", tmp_path / "out.csv") == len(new)
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["row"] for row in found] == [str(i + 1) for i in range(len(new))]
    assert sum(float(found[3][f"p_{name}"]) for name in model.classes) == pytest.approx(1, abs=1e-4)
    with pytest.raises(ValueError, match="read it with gence"):
        load_model(path)


def test_only_rows_that_were_not_trained_on_are_judged(wine_source: str, tmp_path: Path) -> None:
    path, accuracy = trained(wine_source, "linear@columns", tmp_path)
    model, own = load_row_model(path), Path(TableAddress.parse(wine_source).path)
    moved = tmp_path / "moved.csv"
    moved.write_bytes(own.read_bytes())
    assert evaluate_row_model(model, rows_to_judge(model, str(moved)))["accuracy"] == pytest.approx(accuracy)
    wine().sample(frac=0.5, random_state=0).to_csv(moved, index=False)
    assert len(rows_to_judge(model, str(moved))) == len(wine()) // 2
    wine().assign(cultivar=9).to_csv(moved, index=False)
    with pytest.raises(DataError, match="the class '9'"):
        rows_to_judge(model, str(moved))
    wine().sample(frac=1, random_state=0).to_csv(own, index=False)
    with pytest.raises(DataError, match="has changed since the model was trained"):
        rows_to_judge(model)


def test_a_model_of_ready_features(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 90)
    np.savez(tmp_path / "f.npz", X=draw.normal(size=(3, 6))[y] * 2 + draw.normal(size=(90, 6)), y=y)
    path, accuracy = trained(str(tmp_path / "f.npz"), "linear@features", tmp_path)
    model = load_row_model(path)
    assert evaluate_row_model(model, rows_to_judge(model), [str(tmp_path / "f.npz")])["accuracy"] == accuracy
    np.savez(tmp_path / "wide.npz", X=np.zeros((2, 7)))
    with pytest.raises(DataError, match="X has 7 features; expected 6"):
        write_row_predictions(model, tmp_path / "wide.npz", tmp_path / "out.csv")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(path.read_bytes().replace(b'\\"width\\"', b'\\"wodth\\"'))
    with pytest.raises(ValueError, match="is damaged"):
        load_row_model(damaged)


def test_preprocessing_sees_training_rows_alone(wine_source: str, tmp_path: Path) -> None:
    splits = load_rows(wine_source)
    encoder = row_encoder("columns", splits)
    assert isinstance(encoder, ColumnEncoder)
    name, fill, mean, _ = encoder.numbers[0]
    train = splits.train.content
    assert isinstance(train, pd.DataFrame)
    assert fill == pytest.approx(float(train[name].median()))
    assert mean == pytest.approx(float(train[name].fillna(fill).mean()))


def test_rows_are_predicted_calibrated(wine_source: str, tmp_path: Path) -> None:
    path, _ = trained(wine_source, "linear@columns", tmp_path)
    model = load_row_model(path)
    assert model.calibrator is not None
    rows = rows_to_judge(model)
    found = evaluate_row_model(model, rows, [str(tmp_path / "wine.csv")])
    assert {"calibrated/nll", "ood/wine/auroc_knn", "ood/wine/auroc_vim", "ood/wine/auroc_max_logit"} <= found.keys()
    new = tmp_path / "new.csv"
    wine().drop(columns="cultivar").head(9).to_csv(new, index=False)
    for calibrated in (False, True):
        write_row_predictions(model, new, tmp_path / f"{calibrated}.csv", calibrated=calibrated)
    raw, calibrated = (pd.read_csv(tmp_path / f"{one}.csv").filter(like="p_").to_numpy() for one in (False, True))
    temperature = float(model.calibrator.tensors["temperature"])
    expected = torch.tensor(raw).log().div(temperature).softmax(1)
    np.testing.assert_allclose(calibrated, expected, atol=1e-4)


def test_the_commands_with_columns_named_like_options_and_labels_like_formulas(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    kinds = np.array(["=1+1", "-- ' \"b", "?"])[np.arange(90) % 3]
    frame = pd.DataFrame(
        {"--text": draw.normal(size=90) + (kinds == "=1+1") * 9, "--label": kinds, "=A1": list("xyz") * 30}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.drop(columns="--label").head(5).to_csv(tmp_path / "new.csv", index=False)
    model, out = str(tmp_path / "m.safetensors"), tmp_path / "out.csv"

    def gence(*arguments: str) -> str:
        result = CliRunner().invoke(create_app(), list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    named = ("--data", str(tmp_path / "t.csv"), "--label=--label", "--features=--text", "--ood-label", "?")
    shown = gence("train", *named, "--loss", "ce", "--set", "recipe.epochs=20", "--save", model)
    assert "1 column of numbers ('--text'), labels from '--label'; not used: '=A1'" in shown
    assert load_row_model(model).classes == ("-- ' \"b", "=1+1")  # the rows of "?" are not trained on
    assert "auroc" in gence("evaluate", model, "--ood", str(tmp_path / "new.csv"))
    gence("predict", model, str(tmp_path / "new.csv"), "--out", str(out))
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert found[0]["predicted"] == "'=1+1"  # which no spreadsheet computes
    assert set(found[0]) == {"row", "predicted", "confidence", "p_=1+1", "p_-- ' \"b"}


def test_a_row_model_that_was_changed_is_one_error_that_names_it(wine_source: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path, _ = trained(wine_source, "linear@columns", tmp_path)
    tensors = load_file(path)
    with safe_open(str(path), "pt") as file:
        notes = {name: text for name, text in file.metadata().items() if name != "crc32"}
    for name, value in (
        ("head/bias", torch.zeros(7)),
        ("head/weight", torch.tensor(1.0)),
        ("scaling/mean", torch.ones(2)),
    ):
        save_file({**tensors, name: value}, path, metadata=notes)
        with pytest.raises(ValueError, match=rf"{path.name} is damaged"):
            load_row_model(path)
    save_file(tensors, path, metadata={**notes, "classes": '["a", "b", "c", "d"]'})
    with pytest.raises(ValueError, match="is damaged"):
        load_row_model(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is damaged"):
        load_row_model(path)
    save_file({**tensors, "head/weight": torch.full_like(tensors["head/weight"], torch.nan)}, path, metadata=notes)
    with pytest.raises(ValueError, match="diverged"):
        load_row_model(path).probabilities(wine().drop(columns="cultivar").astype(str))


def test_a_name_with_either_line_end_is_one_cell(tmp_path: Path) -> None:
    names = ["a\rb", "a\nb", "a\r\nb", "plain"]
    found = [(names, torch.full((4, 2), 0.5))]
    assert write_probabilities(tmp_path / "p.csv", "file", ("x\ry", "z"), found) == 4
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:]] == names
    assert {len(row) for row in rows} == {5}
    assert (tmp_path / "p.csv").read_bytes().endswith(b'plain,"x\ry",0.5,0.5,0.5\n')
