from __future__ import annotations

import contextlib
import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from gence.cli import main
from gence.cli.app import create_app
from gence.cli.terminal import cleared_on_sigterm, shown_plainly
from gence.cli.train import folder_beside
from gence.lab.data import load
from gence.lab.store.store import Store
from gence.lab.train.saved.network import load_model

QUICK = ["--n", "40", "--set", "recipe.epochs=2", "--device", "cpu"]


def gence(*arguments: str, code: int = 0):
    result = CliRunner().invoke(create_app(), list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def failure(monkeypatch, capsys, *arguments: str) -> str:
    """What a person sees after a wrong command: one line, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["gence", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "new" / "model.safetensors"
    result = gence("train", *QUICK, "--loss", "gence(anchor=0.1)", "--ood", "digits", "--save", str(path))
    return path, result


def test_train_prints_metrics_raw_and_after_the_offset(saved):
    path, result = saved
    assert "gence(anchor=0.1), seed 0" in result.stdout
    for name in ("metric", "raw", "after offset", "accuracy", "ece", "nll", "ood/digits/auroc_entropy", "marginal_kl"):
        assert name in result.stdout
    assert "2/2" in result.stderr
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]
    assert load_model(path, "cpu").spec.recipe.epochs == 2


def test_settings_reach_every_part_of_the_run(tmp_path):
    path = tmp_path / "m.safetensors"
    gence("train", *QUICK, "--loss", "gence", "--recipe", "modern", "--seed", "3", "--save", str(path),
          "--set", "loss.anchor=0.5", "--set", "recipe.optimizer=adamw", "--set", "subset.val_fraction=0.25",
          "--set", "evaluate_on=val", "--set", "recipe.warmup_epochs=0.5", "--model", "mlp")  # fmt: skip
    spec = load_model(path, "cpu").spec
    assert (str(spec.loss), spec.seed, spec.model, spec.evaluate_on) == ("gence(anchor=0.5)", 3, "mlp", "val")
    assert (spec.recipe.optimizer, spec.recipe.nesterov, spec.recipe.warmup_epochs) == ("adamw", True, 0.5)


def test_a_store_keeps_the_run_and_shows_it_next_time(tmp_path):
    first = gence("train", *QUICK, "--store", str(tmp_path / "store"))
    store = Store(tmp_path / "store")
    (key,) = store.keys()
    assert key in first.stdout
    assert store.read(key).environment["device"]
    second = gence("train", *QUICK, "--store", str(tmp_path / "store"))
    assert "already" in second.stderr
    assert second.stdout == first.stdout


def test_a_run_that_diverges_says_so():
    assert "diverged" in gence("train", *QUICK, "--loss", "ce", "--set", "recipe.lr=1e30").stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_are_logged_while_training(tmp_path):
    pytest.importorskip("tensorboard")
    gence("train", *QUICK, "--log", f"tensorboard:{tmp_path / 'log'}")
    assert list((tmp_path / "log").rglob("events.*"))


def test_evaluate_repeats_what_training_said(saved):
    path, trained = saved
    result = gence("evaluate", str(path), "--ood", "digits", "--device", "cpu")

    def rows(text: str) -> dict[str, str]:
        return {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}

    judged, before = rows(result.stdout), rows(trained.stdout)
    assert judged.keys() == before.keys() - {"train_accuracy", "marginal_kl"}
    assert {name: line.split() for name, line in judged.items()} == {name: before[name].split() for name in judged}


def test_evaluate_says_how_many_images_were_judged(saved, tmp_path):
    assert "901 images were evaluated" in gence("evaluate", str(saved[0]), "--device", "cpu").stdout
    test = load("digits").test
    for i, (image, label) in enumerate(zip(test.images[:300], test.labels[:300].tolist(), strict=True)):
        (tmp_path / "new" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / "new" / str(label) / f"{i}.png")
    shown = gence("evaluate", str(saved[0]), "--data", str(tmp_path / "new"), "--device", "cpu").stdout
    assert "300 images were evaluated" in shown


def test_sigterm_leaves_no_folder_beside_the_network(tmp_path):
    command = [sys.executable, "-m", "gence", "train", *QUICK, "--set", "recipe.epochs=100000"]
    del command[command.index("recipe.epochs=2") - 1 : command.index("recipe.epochs=2") + 1]
    process = subprocess.Popen([*command, "--save", str(tmp_path / "m.safetensors")], stderr=subprocess.DEVNULL)
    while not list(tmp_path.iterdir()) and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_prediction_that_is_stopped_leaves_no_file(saved, tmp_path, number, code):
    (tmp_path / "images").mkdir()
    for i in range(60):
        Image.new("L", (4000, 3000), i).save(tmp_path / "images" / f"{i}.png", compress_level=1)
    out = tmp_path / "out"
    out.mkdir()
    command = ["predict", str(saved[0]), str(tmp_path / "images"), "--out", str(out / "p.csv"), "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "gence", *command], stderr=subprocess.DEVNULL)
    while not list(out.iterdir()) and process.poll() is None:
        time.sleep(0.01)
    assert [path.name[:9] for path in out.iterdir()] == [".writing-"]
    process.send_signal(number)
    assert process.wait(60) == code
    assert list(out.iterdir()) == []


def test_a_sigterm_whose_exception_was_lost_is_heard_later():
    before = signal.getsignal(signal.SIGTERM)
    with cleared_on_sigterm() as end_if_asked:
        end_if_asked()  # nobody has asked yet
        with contextlib.suppress(SystemExit):  # a finaliser would lose it as well
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            end_if_asked()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_while_the_folder_is_made_leaves_none(tmp_path, monkeypatch):
    made = Path.mkdir

    def made_and_stopped(path: Path, **options: bool) -> None:
        made(path, **options)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Path, "mkdir", made_and_stopped)
    with pytest.raises(SystemExit), cleared_on_sigterm(), folder_beside(tmp_path / "m.safetensors"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_predict_writes_a_line_an_image(saved, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for i, image in enumerate(load("digits").test.images[:5]):
        Image.fromarray(image[0].numpy()).save(folder / f"{i}, odd.png")
    for more in ([], ["--offset"]):
        result = gence(
            "predict", str(saved[0]), str(folder), "--out", str(tmp_path / "p.csv"), "--device", "cpu", *more
        )
        assert "5 images predicted" in result.stdout
        with (tmp_path / "p.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["file"] for row in rows] == [f"{i}, odd.png" for i in range(5)]
        for row in rows:
            assert sum(float(row[f"p_{k}"]) for k in range(10)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "--data", "digitz"], "unknown data set digitz"),
    (["train", "--loss", "gense"], "did you mean 'gence'"),
    (["train", "--loss", "focal(gamma=a)"], "loss focal(gamma=a): gamma is 'a'; expected a number"),
    (["train", "--loss", "gence(anchor=tune)"], "anchor is 'tune'; expected a number, such as anchor=0.5; only gence"),
    (["train", "--model", "resnet5O"], "unknown model 'resnet5O'; the nearest is 'resnet50'"),
    (["train", "--recipe", "papper"], "did you mean 'paper'"),
    (["train", "--set", "recipe.lrr=1"], "Recipe has no field 'lrr'; did you mean 'lr'"),
    (["train", "--set", "lr=1"], "RunSpec has no field 'lr'; did you mean 'recipe.lr'?"),
    (["train", "--ood", "digitz"], "unknown data set digitz"),
    (["train", "--set", "recipe.lr"], "expected field=value"),
    (["train", "--set", "recipe.lr=1", "--set", "recipe.lr=2"], "recipe.lr twice"),
    (["train", "--set", "recipe.lr=fast"], "Recipe.lr must be a number, got 'fast'"),
    (["train", "--n", "7"], "use a multiple, such as 10"),
    (["train", "--device", "tpu9"], "device is 'tpu9'"),
    (["train", "--log", "wandb"], "expected tensorboard, or tensorboard:FOLDER"),
    (["train", "--save", "."], "is a folder"),
    (["train", "--save", f"{__file__}/model"], "test_lab.py is a file, not a folder"),
    (["predict", "nothing.safetensors", ".", "--out", "."], "is a folder"),
    (["bench", "loss", "--out", "."], "is a folder"),
    (["bench", "train", "--out", f"{__file__}/x.json"], "test_lab.py is a file, not a folder"),
    (["compare", "--out", __file__], "test_lab.py is a file"),
    (["evaluate", "nothing.safetensors"], "does not exist"),
    (["predict", "nothing.safetensors", "."], "does not exist"),
])  # fmt: skip
def test_mistakes_are_one_line_that_says_what_to_do(monkeypatch, capsys, arguments, message):
    shown = failure(monkeypatch, capsys, *arguments)
    assert message in shown
    assert "Traceback" not in shown
    assert "getting ready" not in shown  # said before the training begins


def test_what_the_system_refuses_is_one_line_too(capsys):
    with pytest.raises(SystemExit, match="2"), shown_plainly():
        Path(__file__, "x").write_text("")
    assert capsys.readouterr().err.startswith(f"gence: {__file__}/x: Not a directory; check the path")


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_has_an_example(command):
    assert f"gence {command} " in gence(command, "--help").stdout


def test_an_imbalanced_table_in_one_command_and_its_predictions_calibrated(tmp_path):
    """A loss with a uniform prior by name; the temperature goes with the model, and predictions are divided by it."""
    from sklearn.datasets import load_iris

    frame = load_iris(as_frame=True).frame
    table = tmp_path / "iris.csv"
    frame.drop(index=range(10, 45)).to_csv(table, index=False)
    path = tmp_path / "iris.safetensors"
    shown = gence(
        "train", "--data", str(table), "--label", "target", "--loss", "gence(anchor=0.1,prior=uniform)",
        "--set", "recipe.epochs=5", "--save", str(path),
    ).stdout  # fmt: skip
    assert "gence(anchor=0.1,prior=uniform)" in shown
    assert "calibrated" in shown
    assert "coverage/lac90" in shown
    evaluated = gence("evaluate", str(path), "--ood", str(table)).stdout
    assert "calibrated" in evaluated
    assert "auroc_mahalanobis" in evaluated
    new = tmp_path / "new.csv"
    frame.drop(columns="target").head(5).to_csv(new, index=False)
    for flag in ([], ["--calibrated"]):
        gence("predict", str(path), str(new), "--out", str(tmp_path / f"p{len(flag)}.csv"), *flag)
    assert (tmp_path / "p0.csv").read_text() != (tmp_path / "p1.csv").read_text()
    with pytest.raises(ValueError, match="give one"):
        gence("predict", str(path), str(new), "--offset", "--calibrated")


def test_a_network_is_calibrated_where_a_part_is_held_out(saved, tmp_path):
    path, _ = saved
    with pytest.raises(ValueError, match="has no calibrator"):
        gence("predict", str(path), str(tmp_path), "--calibrated")
    mine = tmp_path / "held.safetensors"
    shown = gence("train", *QUICK, "--set", "subset.val_fraction=0.25", "--save", str(mine)).stdout
    assert "calibrated" in shown
    assert load_model(mine, "cpu").calibrator is not None
