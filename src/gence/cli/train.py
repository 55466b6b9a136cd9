"""gence train: one run."""

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
    DATA_HELP,
    Device,
    FeatureColumns,
    LabelColumn,
    Ood,
    OodLabel,
    TextColumn,
    read_settings,
    read_sources,
)
from gence.cli.saved import print_metrics
from gence.cli.terminal import check_out, cleared_on_sigterm

if TYPE_CHECKING:
    from gence.lab.compare import CompareOptions
    from gence.lab.spec import RunSpec
    from gence.lab.store import RunResult
    from gence.lab.train import CohortProgress


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def train(
        data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
        n: Annotated[
            int | None, typer.Option(help="Train on this many labels, balanced over the classes. Default: all.")
        ] = None,
        model: Annotated[
            str | None,
            typer.Option(
                help="Train this network: small_cnn, mlp, resnet18, resnet50, vgg19, vgg19_wide, wrn16_8, timm:NAME or "
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
        ood: Ood = None,
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
        device: Device = "auto",
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
    print_metrics(result.metrics, title)
    if result.status == "diverged":
        typer.echo(
            "The run diverged: its loss or its outputs became infinite. A lower recipe.lr or a warm-up may help."
        )
    typer.echo(f"{result.wall_s:.1f} s; the run's key is {spec.key}")
