"""gence train, evaluate, predict: one run, and what comes of it."""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gence.cli.options import (
    FeatureColumns,
    LabelColumn,
    OodLabel,
    TextColumn,
    read_settings,
    read_sources,
)
from gence.cli.terminal import check_out, cleared_on_sigterm, is_interactive

if TYPE_CHECKING:
    from gence.lab.compare import CompareOptions
    from gence.lab.data import ImageSet
    from gence.lab.spec import RunSpec
    from gence.lab.store import RunResult
    from gence.lab.train import CohortProgress, TrainedModel

_DATA_HELP = (
    "Read a named data set (gence data list), a folder or archive of images (one folder per class), hf:OWNER/NAME, "
    "or a table (CSV, Parquet, .npz)."
)
_Ood = Annotated[list[str] | None, typer.Option(help="Out-of-distribution images or rows (repeatable).")]
_Device = Annotated[str, typer.Option(help="Compute on auto, cpu, cuda or cuda:1.")]
_Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Divide the logits by the temperature that was fitted on held-out samples.")
]
_OwnCode = Annotated[
    bool, typer.Option("--own-code", help="Import the module of a network of your own, and call its function.")
]
_ModelFile = Annotated[Path, typer.Argument(help="A file that gence train --save wrote.")]

# The order of the table; what is not here comes after, by name.
_FIRST = ("accuracy", "balanced_accuracy", "train_accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece",
          "mce", "mean_confidence", "aurc", "marginal_kl")  # fmt: skip
# Shares of 1 that people read in per cent; everything else is printed as it is.
_SHARES = ("accuracy", "ece", "mce", "ks", "confidence", "entropy", "energy", "max_logit", "knn", "mahalanobis", "vim")


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def train(
        data: Annotated[str, typer.Option(help=_DATA_HELP)] = "digits",
        n: Annotated[
            int | None, typer.Option(help="Train on this many labels, balanced over the classes. Default: all.")
        ] = None,
        model: Annotated[
            str | None,
            typer.Option(
                help="Train this network: small_cnn, mlp, resnet18, resnet50, vgg19, wrn16_8, timm:NAME or "
                "own:MODULE:FUNCTION from scratch; HEAD@ENCODER on a pretrained encoder, as "
                "linear@efficientnet_lite0. Default: as gence compare."
            ),
        ] = None,
        loss: Annotated[
            str, typer.Option(help="Train with this loss and its parameters, as 'gence(anchor=0.1)'.")
        ] = "gence(anchor=0.1)",
        recipe: Annotated[
            str | None,
            typer.Option(
                help="Use this recipe: head, finetune, tiny, small, modern or paper. Default: as gence compare."
            ),
        ] = None,
        tune_encoder: Annotated[
            str,
            typer.Option(
                help="Train this of a pretrained encoder: none (frozen features), last (its last stage) or all."
            ),
        ] = "none",
        weights: Annotated[
            Path | None, typer.Option(help="Take the encoder's weights from this safetensors file.")
        ] = None,
        seed: Annotated[
            int, typer.Option(help="Use this seed for subset, initialisation, order and augmentation.")
        ] = 0,
        ood: _Ood = None,
        image_size: Annotated[
            int | None,
            typer.Option(help="Resize images to this many pixels. Default: keep them if small, square and uniform."),
        ] = None,
        text: TextColumn = None,
        label: LabelColumn = None,
        features: FeatureColumns = None,
        ood_label: OodLabel = None,
        epochs: Annotated[int | None, typer.Option(help="Override the recipe's epochs.", min=1)] = None,
        batch_size: Annotated[int | None, typer.Option(help="Override the recipe's batch size.", min=1)] = None,
        setting: Annotated[
            list[str] | None, typer.Option("--set", help="Set a field of the run, as recipe.lr=0.05 (repeatable).")
        ] = None,
        save: Annotated[Path | None, typer.Option(help="Write the trained network to this file (safetensors).")] = None,
        store: Annotated[
            Path | None,
            typer.Option(help="Keep the records in this folder; a run that is recorded there is shown, not repeated."),
        ] = None,
        log: Annotated[
            str | None,
            typer.Option(help="Write curves while training: tensorboard, or tensorboard:FOLDER."),
        ] = None,
        device: _Device = "auto",
    ) -> None:
        """Train a network and evaluate it: accuracy, calibration and OOD, raw, after the offset, and calibrated.

        Examples: gence train --data digits --n 100 --loss 'gence(anchor=0.1)'

        gence train --data cifar10 --n 2000 --model vgg19 --loss gence --recipe paper --ood svhn --ood cifar100

        gence train --data photos/ --image-size 64 --n 500 --set recipe.epochs=50 --save photos.safetensors

        gence train --data photos/ --model linear@efficientnet_lite0 --save photos.safetensors

        gence train --data tickets.csv --text message --label team --save tickets.safetensors
        """
        from gence.lab.compare import AUTO, CompareOptions
        from gence.lab.spec import RunSpec, check_losses, check_numbers
        from gence.lab.sweep import check_ready
        from gence.lab.train import resolve_device

        source, outside = _columns_named(data, read_sources(ood), text, label, features, ood_label)
        changes = read_settings(setting or [])
        log_folder = _log_folder(log)
        check_out("--save", save)
        # What the training would find out itself, but only when the data have been read.
        asked = RunSpec.from_dict(
            {"data": source, "subset": n, "model": model or "small_cnn", "loss": loss, "recipe": recipe or "tiny",
             "seed": seed, "ood": outside}
        ).replace(**changes)  # fmt: skip
        check_losses([asked])
        check_numbers(asked.loss)
        check_ready([asked])
        resolve_device(device)
        tailed = asked.subset.rho is not None  # then n is the size of the largest class
        if tailed:
            changes["subset.n"] = asked.subset.n
        wanted = CompareOptions(
            data=asked.data, ood=asked.ood, n=None if tailed else asked.subset.n, losses=[str(asked.loss)],
            seeds=[asked.seed],
            model=asked.model if model or "model" in changes else AUTO, recipe=recipe or AUTO, tune_trials=0,
            tune_encoder=changes.get("recipe.tune_encoder", tune_encoder), weights=weights, device=device,
            image_size=changes.get("image_size", image_size), epochs=epochs, batch_size=batch_size,
        )  # fmt: skip
        spec, device = _settled(wanted, changes)
        if store is not None:
            _check_unchanged(spec, store)
        result = _stored(spec, store) if store is not None and save is None and log is None else None
        if result is None:
            result = _train(spec, device, save, store, log_folder)
        _print_result(spec, result)

    @app.command()
    def evaluate(
        model: _ModelFile,
        data: Annotated[str | None, typer.Option(help=_DATA_HELP + " Default: the data it was trained on.")] = None,
        ood: _Ood = None,
        own_code: _OwnCode = False,
        device: _Device = "auto",
    ) -> None:
        """Evaluate a trained network on the test part of a source, or on all of a new source without one.

        Example: gence evaluate model.safetensors --data cifar10 --ood svhn
        """
        from gence.lab.spec import check_ood_names
        from gence.lab.train import (
            evaluate_model,
            evaluate_row_model,
            is_row_model,
            load_model,
            load_row_model,
            rows_to_judge,
        )

        if is_row_model(model):
            head = load_row_model(model)
            rows = rows_to_judge(head, data)
            _print_metrics(evaluate_row_model(head, rows, read_sources(ood)), f"{model.name} on {rows.name}")
            typer.echo(f"{len(rows)} rows were evaluated")
            return
        trained = load_model(model, device, own_code=own_code)
        source = data or trained.spec.data
        outside = read_sources(ood)
        check_ood_names(outside)
        images = _images_to_judge(trained, data)
        metrics = evaluate_model(trained, images, outside, progress=True)
        _print_metrics(metrics, f"{model.name} on {source}")
        typer.echo(f"{len(images)} images were evaluated")

    @app.command()
    def predict(
        model: _ModelFile,
        folder: Annotated[
            Path, typer.Argument(help="A folder or archive of images, subfolders included; or a table of new rows.")
        ],
        out: Annotated[Path, typer.Option(help="Write the predictions to this CSV file.")] = Path("predictions.csv"),
        offset: Annotated[bool, typer.Option("--offset", help="Add the marginal offset to the logits first.")] = False,
        calibrated: _Calibrated = False,
        own_code: _OwnCode = False,
        device: _Device = "auto",
    ) -> None:
        """Predict the images of a folder: a CSV with file, predicted class and the probability of every class.

        Example: gence predict model.safetensors new_images/ --out predictions.csv
        """
        from gence.lab.train import (
            check_adjustments,
            is_row_model,
            load_model,
            load_row_model,
            write_predictions,
            write_row_predictions,
        )

        check_out("--out", out)
        if is_row_model(model):
            head = load_row_model(model)
            check_adjustments(head, offset, calibrated)
            with cleared_on_sigterm():
                count = write_row_predictions(head, folder, out, offset=offset, calibrated=calibrated)
            typer.echo(f"{count} rows predicted; the probabilities are in {out}")
            return
        trained = load_model(model, device, own_code=own_code)
        check_adjustments(trained, offset, calibrated)
        with cleared_on_sigterm():
            count = write_predictions(trained, folder, out, offset=offset, calibrated=calibrated, progress=True)
        typer.echo(f"{count} images predicted; the probabilities are in {out}")

    @app.command()
    def export(
        model: _ModelFile,
        out: Annotated[Path, typer.Argument(help="Write to this file: .onnx, or .pt2 for torch.export.")],
        offset: Annotated[bool, typer.Option("--offset", help="Add the marginal offset to the logits first.")] = False,
        calibrated: _Calibrated = False,
        own_code: _OwnCode = False,
    ) -> None:
        """Write a trained network, encoder included, for use without gence: images in, probabilities out.

        Example: gence export model.safetensors model.onnx
        """
        from gence.lab.train import export_model, load_model

        check_out("out", out)
        trained = load_model(model, "cpu", own_code=own_code)
        channels, height, width = trained.image_shape
        export_model(trained, out, offset=offset, calibrated=calibrated)
        typer.echo(
            f"{out} takes uint8 images (n, {channels}, {height}, {width}) and returns probabilities of "
            f"{len(trained.classes)} classes ({out.stat().st_size / 1e6:.1f} MB)"
        )


def _images_to_judge(model: TrainedModel, data: str | None) -> ImageSet:
    """Return the images of a source; of the one that a model file names, with a download only if the user agrees."""
    from gence.lab.data import NotAtHandError
    from gence.lab.train import images_to_judge

    if data is not None:
        return images_to_judge(model, data, progress=True)
    source = model.spec.data
    try:
        return images_to_judge(model, source, progress=True, download=False)
    except NotAtHandError as error:
        if not is_interactive():
            raise ValueError(
                f"the model was trained on {source}, which is not on this machine; add --data {source} to download "
                "it, or name another source"
            ) from error
    if not typer.confirm(f"The model was trained on {source}, which is not on this machine. Download it?"):
        raise typer.Exit(1)
    return images_to_judge(model, source, progress=True)


def _columns_named(
    data: str,
    ood: tuple[str, ...],
    text: str | None,
    label: str | None,
    features: list[str] | None,
    ood_label: str | None,
) -> tuple[str, tuple[str, ...]]:
    """Return the source and the OOD sources with the columns that options name, as `gence compare` does."""
    from gence.lab.compare import CompareOptions

    named = CompareOptions(
        data=data, ood=ood, text=text, label=label, features=features or (), ood_label=ood_label
    ).sources()
    return named if named[0] != data else (data, ood)


def _settled(wanted: CompareOptions, changes: dict[str, Any]) -> tuple[RunSpec, str]:
    """Return the run, what is open as `gence compare` chooses it, and its device; say what was chosen."""
    from gence.lab.compare import plan_comparison
    from gence.lab.spec import recipe_name

    plan = plan_comparison(wanted)
    spec = plan.base.replace(**changes)
    for note in (*plan.notes, *plan.concerns):
        typer.echo(f"note: {note}", err=True)
    if plan.hint:
        typer.echo(f"{plan.hint}.", err=True)
    name, epochs = recipe_name(spec.recipe), spec.recipe.epochs
    size = f" at {spec.image_size} px" if spec.image_size else ""
    typer.echo(
        f"{spec.data}{size}: {spec.loss}, {spec.model}, {f'recipe {name}, ' if name else ''}{epochs} "
        f"{'epoch' if epochs == 1 else 'epochs'}, "
        f"on {plan.device}",
        err=True,
    )
    if wanted.image_size is None and spec.image_size is not None:
        typer.echo(
            f"images are resized to {spec.image_size} x {spec.image_size} pixels, as gence compare does; --image-size "
            "chooses another",
            err=True,
        )
    return spec, plan.device


def _check_unchanged(spec: RunSpec, folder: Path) -> None:
    from gence.lab.store import Store, check_same_data, checksums_at_hand

    store = Store(folder)
    if store.has(spec.key):
        check_same_data([store.read(spec.key)], checksums_at_hand(spec), store.root)


def _stored(spec: RunSpec, folder: Path) -> RunResult | None:
    from gence.lab.store import Store

    store = Store(folder)
    if not store.has(spec.key):
        return None
    typer.echo(f"{spec.key} is already recorded in {folder}; this is its record", err=True)
    return store.read(spec.key).result


def _log_folder(log: str | None) -> Path | None:
    """Where `--log` writes: the folder "tensorboard", or the one after the colon."""
    if log is None:
        return None
    kind, _, folder = log.partition(":")
    if kind != "tensorboard":
        raise ValueError(f"--log is {log!r}; expected tensorboard, or tensorboard:FOLDER")
    return Path(folder or kind)


def _train(spec: RunSpec, device: str, save: Path | None, store: Path | None, log: Path | None) -> RunResult:
    from gence.lab.store import Store, environment_record
    from gence.lab.sweep import TensorBoardLog
    from gence.lab.train import train_cohort

    records = None if store is None else Store(store)
    if records is not None:
        records.ensure_writable()
    board = None if log is None else TensorBoardLog(log, [spec])
    with cleared_on_sigterm() as end_if_asked, folder_beside(save) as models, _bar() as show:

        def on_epoch(progress: CohortProgress) -> None:
            end_if_asked()
            show(progress)
            if board is not None:
                board(progress)

        (result,) = train_cohort(
            [spec],
            device=device,
            on_epoch=on_epoch,
            workdir=None if records is None else records.root / "work",
            models_dir=models,
            progress=True,
        )
        if save is not None and models is not None:
            (models / f"{spec.key}.safetensors").replace(save)
    if board is not None:
        board.close()
    if result is None:
        raise RuntimeError("training stopped unexpectedly")
    if records is not None:
        records.write(spec, result, environment_record(device))
    return result


@contextmanager
def folder_beside(file: Path | None) -> Iterator[Path | None]:
    """Yield a new folder beside a file, and remove it; None for no file.

    A `TemporaryDirectory` stays behind if a signal ends the program while it is being made.
    """
    if file is None:
        yield None
        return
    folder = file.parent / f".gence-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _bar() -> Iterator[Callable[[CohortProgress], None]]:
    """Draw a bar with epoch, loss, accuracy and time left; yield the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("epoch"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("getting ready", total=None)

        def show(progress: CohortProgress) -> None:
            loss, accuracy = progress.loss[0], progress.accuracy[0]
            parts = ["diverged" if math.isnan(loss) else f"loss {loss:.3f}"]
            if not math.isnan(accuracy):
                parts.append(f"training accuracy {100 * accuracy:.1f} %")
            parts.append(f"{_clock(progress.left_s)} left")
            bar.update(task, description=", ".join(parts), total=progress.epochs, completed=progress.epoch)

        yield show


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _print_result(spec: RunSpec, result: RunResult) -> None:
    size = "all images" if spec.subset.n is None else f"n = {spec.subset.n}"
    title = f"{spec.model} on {spec.data} ({size}), {spec.loss}, seed {spec.seed}"
    _print_metrics(result.metrics, title)
    if result.status == "diverged":
        typer.echo(
            "The run diverged: its loss or its outputs became infinite. A lower recipe.lr or a warm-up may help."
        )
    typer.echo(f"{result.wall_s:.1f} s; the run's key is {spec.key}")


def _print_metrics(metrics: dict[str, float], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    table.add_column("metric")
    table.add_column("raw", justify="right")
    changed = {"offset": "after offset", "calibrated": "calibrated"}
    changed = {prefix: title for prefix, title in changed.items() if any(n.startswith(f"{prefix}/") for n in metrics)}
    for column in changed.values():
        table.add_column(column, justify="right")
    raw = sorted(name for name in metrics if not name.startswith(("offset/", "calibrated/")))
    for name in [*(name for name in _FIRST if name in raw), *(name for name in raw if name not in _FIRST)]:
        others = (metrics.get(f"{prefix}/{name}") for prefix in changed)
        table.add_row(
            Text(name), _shown(name, metrics[name]), *("" if v is None else _shown(name, v) for v in others)
        )  # fmt: skip
    Console().print(table)


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith(_SHARES) or name.startswith("coverage/") else f"{value:.4f}"
