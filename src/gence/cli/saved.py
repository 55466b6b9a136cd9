"""gence evaluate, predict, export: what comes of a file that gence train --save wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gence.cli.options import DATA_HELP, Device, Ood, read_sources
from gence.cli.terminal import check_out, cleared_on_sigterm, is_interactive

if TYPE_CHECKING:
    from gence.lab.data import ImageSet
    from gence.lab.train import TrainedModel

_Offset = Annotated[bool, typer.Option("--offset", help="Add the marginal offset to the logits first.")]
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
    def evaluate(
        model: _ModelFile,
        data: Annotated[str | None, typer.Option(help=DATA_HELP + " Default: the data it was trained on.")] = None,
        ood: Ood = None,
        own_code: _OwnCode = False,
        device: Device = "auto",
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
            print_metrics(evaluate_row_model(head, rows, read_sources(ood)), f"{model.name} on {rows.name}")
            typer.echo(f"{len(rows)} rows were evaluated")
            return
        trained = load_model(model, device, own_code=own_code)
        source = data or trained.spec.data
        outside = read_sources(ood)
        check_ood_names(outside)
        images = _images_to_judge(trained, data)
        metrics = evaluate_model(trained, images, outside, progress=True)
        print_metrics(metrics, f"{model.name} on {source}")
        typer.echo(f"{len(images)} images were evaluated")

    @app.command()
    def predict(
        model: _ModelFile,
        folder: Annotated[
            Path, typer.Argument(help="A folder or archive of images, subfolders included; or a table of new rows.")
        ],
        out: Annotated[Path, typer.Option(help="Write the predictions to this CSV file.")] = Path("predictions.csv"),
        offset: _Offset = False,
        calibrated: _Calibrated = False,
        own_code: _OwnCode = False,
        device: Device = "auto",
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
        offset: _Offset = False,
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


def print_metrics(metrics: dict[str, float], title: str) -> None:
    """Print a table of metrics: raw, and after the offset and calibration where there are such."""
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
