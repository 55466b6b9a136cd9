"""gence bench and gence verify: what the loss and a training step cost, and whether the theory's claims hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gence.cli.options import Device, read_names, read_settings
from gence.cli.terminal import check_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gence.lab.bench import Shape

_Out = Annotated[Path | None, typer.Option(help="Write the record to this file, too (JSON).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(verify)
    group = typer.Typer(help="Measure what the loss and a training step cost on this machine.", no_args_is_help=True)
    app.add_typer(group, name="bench")

    @group.command()
    def train(
        models: Annotated[str, typer.Option(help="Train these networks, separated by commas.")] = "vgg19,resnet50",
        data: Annotated[
            str,
            typer.Option(
                help="Read a named data set (gence data list), a folder or archive of images, or hf:OWNER/NAME."
            ),
        ] = "cifar10",
        n: Annotated[int, typer.Option(help="Train on this many labels, balanced over the classes.")] = 2000,
        sizes: Annotated[
            str, typer.Option(help="Train this many runs side by side; numbers separated by commas.")
        ] = "1,8,14,21",
        epochs: Annotated[
            int, typer.Option(help="Train this many epochs per measurement; the first is not counted.")
        ] = 6,
        recipe: Annotated[str, typer.Option(help="Use this recipe: small, tiny, modern or paper.")] = "paper",
        setting: Annotated[
            list[str] | None,
            typer.Option(
                "--set", help="Set a field of the run, as recipe.lr=0.05 (repeatable); here of its recipe alone."
            ),
        ] = None,
        compile: Annotated[
            bool,
            typer.Option("--compile/--no-compile", help="Compile the networks (GPU): for those without fused norms."),
        ] = False,
        usual: Annotated[
            bool, typer.Option("--usual/--no-usual", help="Also time one run with DataLoader and per-image transforms.")
        ] = True,
        device: Device = "auto",
        out: _Out = None,
    ) -> None:
        """Time a training step per run, in cohorts of several sizes, data and augmentation included.

        The column "times" says how many times as many runs per hour the fastest cohort does as the usual way.

        Examples: gence bench train --out benchmarks/train.json

        gence bench train --models small_cnn --data digits --n 100 --sizes 1,2 --recipe tiny --device cpu
        """
        from gence.lab.bench import bench_train, write_record
        from gence.lab.spec import named_recipe

        check_out("--out", out)
        named = _some_names("--models", models)
        record = bench_train(
            named,
            data=data,
            n=n,
            cohort_sizes=_whole_numbers("--sizes", sizes),
            compile=compile,
            epochs=epochs,
            recipe=named_recipe(recipe).replace(**_recipe_settings(setting or [])),
            device=device,
            usual=usual,
        )
        columns = {
            "model": "model",
            "way": "way",
            "runs": "runs",
            "ms_per_step_and_run": "ms",
            "fastest": "fastest",
            "slowest": "slowest",
            "start_s": "start, s",
            "memory_gib": "GiB",
            "runs_per_hour_ratio": "times",
        }
        _print(record, f"Milliseconds per step and run, {data}, n = {n}", columns)
        for name in named:
            rows = [row for row in record["rows"] if row["model"] == name and row["way"].startswith("cohort")]
            best = min(rows, key=lambda row: float(row["ms_per_step_and_run"]))
            typer.echo(
                f"best for {name}: {best['runs']} side by side, {best['ms_per_step_and_run']:.3g} ms per step and run"
            )
        if out is not None:
            write_record(record, out)
            typer.echo(f"wrote the record to {out}")

    @group.command()
    def loss(
        shapes: Annotated[str, typer.Option(help="Measure these shapes, rows x classes, as 100x10,4096x1000.")] = "",
        dtype: Annotated[
            str, typer.Option(help="Use this dtype for the given shapes: float32, bfloat16 or float16.")
        ] = "float32",
        quick: Annotated[bool, typer.Option("--quick", help="Measure for a third of the time.")] = False,
        compile: Annotated[bool, typer.Option("--compile/--no-compile", help="Also time compiled losses.")] = True,
        repeats: Annotated[
            int, typer.Option(min=1, help="On a CPU, repeat the measurement this often and keep the median ratio.")
        ] = 1,
        device: Device = "auto",
        out: _Out = None,
    ) -> None:
        """Time GenCE against cross-entropy, forward and backward, for several numbers of rows and classes.

        Examples: gence bench loss --out benchmarks/loss.json

        gence bench loss --shapes 100x10,4096x1000 --quick --no-compile --device cpu
        """
        from gence.lab.bench import bench_loss, print_table

        asked = _shapes(shapes, dtype) if shapes else None
        check_out("--out", out)
        record = bench_loss(asked, device, out, quick=quick, compile=compile, repeats=repeats)
        print_table(record)
        if out is not None:
            typer.echo(f"wrote the record to {out}")


def _recipe_settings(texts: Sequence[str]) -> dict[str, Any]:
    found = read_settings(texts)
    for path in found:
        if not path.startswith("recipe."):
            raise ValueError(f"--set {path}: a benchmark sets fields of the recipe only, such as recipe.batch_size=50")
    return {path.removeprefix("recipe."): value for path, value in found.items()}


def _shapes(text: str, dtype: str) -> list[Shape]:
    import torch

    from gence.lab.bench import Shape

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in dtypes:
        raise ValueError(f"--dtype is {dtype!r}; expected one of {', '.join(dtypes)}")
    found = []
    for name in _some_names("--shapes", text):
        rows, _, classes = name.partition("x")
        if not (rows.isdecimal() and classes.isdecimal() and int(rows) and int(classes)):
            raise ValueError(f"--shapes has {name!r}; expected ROWSxCLASSES, such as 4096x1000")
        found.append(Shape(int(rows), int(classes), dtypes[dtype]))
    return found


def _some_names(option: str, text: str) -> tuple[str, ...]:
    names = read_names(text)
    if not names:
        raise ValueError(f"{option} is {text!r}; expected at least one, several separated by commas")
    return names


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    names = read_names(text)
    if not names or not all(name.isdecimal() and int(name) > 0 for name in names):
        raise ValueError(f"{option} is {text!r}; expected whole numbers from 1, separated by commas")
    return tuple(int(name) for name in names)


def _print(record: dict[str, Any], title: str, columns: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    environment = record["environment"]
    table = Table(title=f"{title}; {environment['device']}, torch {environment['torch']}", title_justify="left")
    for name, heading in columns.items():
        table.add_column(heading, justify="left" if name in ("model", "way") else "right")
    for row in record["rows"]:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def verify() -> None:
    """Check the theory numerically on finite problems, in seconds, and print what was measured.

    The exit status is 1 if a check fails.

    Example: gence verify
    """
    from rich.console import Console
    from rich.table import Table

    from gence.theory import verify as run_checks

    checks = run_checks()
    table = Table(title="Theory, exact in float64 on finite input spaces")
    for column in ("check", "statement", "measured", "bound", ""):
        table.add_column(column)
    for check in checks:
        verdict = "[green]holds[/]" if check.passed else "[red]fails[/]"
        table.add_row(
            check.name, check.statement, f"{check.measured:.3g}", f"{check.relation} {check.bound:.3g}", verdict
        )
    Console().print(table)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
