"""gence run and gence tune: many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gence.cli.options import GRIDS, CommandOfNames, Device, print_skipped, read_names, refuse_options
from gence.cli.store import store_at
from gence.cli.terminal import exit_if_interrupted, failure_lines, interruption_told, table_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gence.lab.spec import Recipe, RunSpec
    from gence.lab.store import Store
    from gence.paper import Entry

_Names = Annotated[
    list[str],
    typer.Argument(help=f"Train these: {GRIDS}; or GRID.toml files."),
]
_StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="Keep the records in this folder. Default: results/paper of the checkout."),
]
_Rows = Annotated[str, typer.Option(help="Select rows, separated by commas; * matches anything.")]
_Losses = Annotated[str, typer.Option(help="Use these losses, separated by commas. Default: all of the grid.")]
_TimeLimit = Annotated[float | None, typer.Option(help="Stop training after this many seconds.")]
_Engine = Annotated[
    str, typer.Option(help="Train with local (this process), processes (one per GPU or CPU worker) or ray.")
]
_Workers = Annotated[
    int | None, typer.Option(help="Train in this many processes, with --engine processes. Default: one per GPU.")
]
_CohortSize = Annotated[str, typer.Option(help="Train at most this many runs side by side, or auto.")]
_Compile = Annotated[
    bool, typer.Option("--compile/--no-compile", help="Compile the networks (GPU): for those without fused norms.")
]
_Predictions = Annotated[
    bool, typer.Option("--predictions/--no-predictions", help="Keep the predictions, in compact form.")
]
_RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="Use this recipe instead of the paper's, for exhibits.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command(cls=CommandOfNames)
    def run(
        names: _Names,
        store: _StorePath = None,
        rows: _Rows = "",
        losses: _Losses = "",
        seeds: Annotated[
            int | None, typer.Option(help="Train this many seeds, from 0. Default: what the exhibit or grid says.")
        ] = None,
        recipe: _RecipeName = None,
        time_limit: _TimeLimit = None,
        engine: _Engine = "local",
        workers: _Workers = None,
        cohort_size: _CohortSize = "auto",
        device: Device = "auto",
        compile: _Compile = False,
        predictions: _Predictions = True,
        retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry failed runs.")] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="List what is missing and train nothing.")] = False,
    ) -> None:
        """Train the missing runs of exhibits or grids, most informative first.

        Stop it at any moment and rerun the same command to resume; stores made on different machines can be merged.

        Examples: gence run table1 --rows 'cifar100-2000-*' --time-limit 600

        gence run table1 smoothing ood --dry-run
        """
        place = store_at(store)
        asked = _entries(names)
        if any(entry.apart is not None for entry in asked):
            given: dict[str, object] = {"--seeds": seeds, "--recipe": recipe, "--workers": workers}
            given |= {"--engine": None if engine == "local" else engine}
            refuse_options(names[0], "its study fixes them", given)
            _run_apart(asked, names, place, read_names(rows), read_names(losses), time_limit, dry_run)
            return
        timed = next((entry for entry in asked if entry.timing is not None), None)
        if timed is not None:
            given = {"--rows": rows, "--losses": losses, "--seeds": seeds, "--recipe": recipe}
            given |= {"--workers": workers, "--time-limit": time_limit}
            given |= {"--engine": None if engine == "local" else engine}
            given |= {"--cohort-size": None if cohort_size == "auto" else cohort_size}
            refuse_options(timed.name, "it times the same runs each time, one by one", given)
            _time(timed, names, place, device, compile, dry_run)
            return
        specs = _specs(names, place, rows=read_names(rows), losses=read_names(losses), seeds=seeds, recipe=recipe)
        if dry_run:
            _list(specs, place, {name: recipe for entry in asked for name, recipe in entry.recipes.items()})
            return
        # Here, because these load torch, which a list does not need.
        from gence.lab.sweep import check_ready, run_grid

        check_ready(place.missing(specs), data=engine != "ray")
        print_skipped(source for spec in specs for source in (spec.data, *spec.ood))
        with interruption_told():
            report = run_grid(
                specs,
                place,
                time_limit=time_limit,
                keep_predictions=predictions,
                retry_failed=retry_failed,
                **_run_options(engine, workers, cohort_size, device, compile),
            )
        for line in failure_lines(report.failed):
            typer.echo(line, err=True)
        if report.unreadable:
            typer.echo(f"Some records cannot be read; list them with: gence store check {place.root}", err=True)
        for entry in asked:
            if entry.outlook is not None:
                typer.echo(entry.outlook(place))
        exit_if_interrupted(report.stopped)
        if report.failed or report.unreadable:
            raise typer.Exit(1)

    @app.command(cls=CommandOfNames)
    def tune(
        names: _Names,
        store: _StorePath = None,
        rows: _Rows = "",
        losses: Annotated[
            str,
            typer.Option(
                help="Use these losses, such as 'ce,gence(anchor=tune)'; paper, calibration, imbalance and all name "
                "groups of losses. Default: the file's own, or the paper's."
            ),
        ] = "",
        trials: Annotated[int, typer.Option(help="Try this many settings per loss.")] = 32,
        metric: Annotated[
            str, typer.Option(help="Choose by this metric on the held-out part: accuracy or nll.")
        ] = "accuracy",
        recipe: _RecipeName = None,
        skip_failed: Annotated[
            bool, typer.Option("--skip-failed", help="Count trials that fail as the worst, instead of stopping.")
        ] = False,
        time_limit: _TimeLimit = None,
        engine: _Engine = "local",
        workers: _Workers = None,
        cohort_size: _CohortSize = "auto",
        device: Device = "auto",
        compile: _Compile = False,
    ) -> None:
        """Tune every loss of a cell with the same number of trials, on a held-out part of its training set.

        The final runs over fresh seeds are then: gence run tuned

        Example: gence tune table1 --rows cifar100-2000-vgg19 --trials 16
        """
        from gence.lab.spec import split_losses
        from gence.lab.sweep import (
            Countdown,
            TuneSettings,
            cell_name,
            cells_to_tune,
            check_ready,
            check_tunable,
            save_tuned,
            tune as tune_cell,
        )

        place = store_at(store)
        specs = _specs(names, place, rows=read_names(rows), recipe=recipe)
        bases = cells_to_tune(specs)
        asked = split_losses(losses) or _losses_to_tune(names, specs)
        limit = Countdown(time_limit)
        check_ready(bases, data=engine != "ray")
        if engine != "ray":
            check_tunable(bases)
        for base in bases:
            with interruption_told():
                report = tune_cell(
                    base,
                    asked,
                    place,
                    settings=TuneSettings(trials=trials, metric=metric),
                    time_limit=limit.left(),
                    skip_failed=skip_failed,
                    **_run_options(engine, workers, cohort_size, device, compile),
                )
            save_tuned(place, report)
            state = "complete" if report.complete else f"not complete ({report.stopped})"
            typer.echo(f"{cell_name(base)}: {state}")
            for best in report.best:
                changes = ", ".join(f"{name} {value}" for name, value in best.changes.items())
                typer.echo(f"  {best.asked}: {best.value:.4f} after {best.trials} of {trials} trials; {changes}")
            for line in failure_lines(report.failed):
                typer.echo(line, err=True)
            exit_if_interrupted(report.stopped)
            if report.failed and not report.complete:
                typer.echo("Some trials failed. Fix the cause and rerun, or rerun with --skip-failed.", err=True)
                raise typer.Exit(1)
            if report.stopped:
                return


def _run_options(engine: str, workers: int | None, cohort_size: str, device: str, compile: bool) -> dict[str, Any]:
    """Return the options of `run_grid` that both commands have."""
    from gence.lab.sweep import CohortTrainer, create_engine

    if cohort_size != "auto" and not cohort_size.isdecimal():
        raise ValueError(f"--cohort-size is {cohort_size!r}; expected auto or a whole number")
    return {
        "engine": create_engine(engine, workers=workers),
        "cohort_size": cohort_size if cohort_size == "auto" else int(cohort_size),
        "device": device,
        "trainer": CohortTrainer(compile=compile),
    }


def _is_file(name: str) -> bool:
    return name.endswith(".toml")


def _entries(names: Sequence[str]) -> list[Entry]:
    """Return what the names stand for that are of the paper; a user's own grids need nothing of it."""
    if all(map(_is_file, names)):
        return []
    from gence.paper import entries

    known = entries()
    return [known[name] for name in names if name in known]


def _specs(names: Sequence[str], store: Store, **options: Any) -> list[RunSpec]:
    """Return the runs of exhibits, as the options of `grid_specs` narrow them, and of grids in files, each once."""
    from gence.lab.spec import SpecError, read_grid

    files = [name for name in names if _is_file(name)]
    if files and (useless := [option for option, value in options.items() if value not in (None, ())]):
        raise SpecError(
            f"{files[0]} is a grid file, which defines its own runs; remove {' and '.join(useless)}, or change the file"
        )
    runs = [run for file in files for run in read_grid(file)]
    if len(files) < len(names):
        from gence.paper import grid_specs

        runs = [*grid_specs([name for name in names if not _is_file(name)], store, **options), *runs]
    return list({run.key: run for run in runs}.values())


def _losses_to_tune(names: Sequence[str], specs: Sequence[RunSpec]) -> list[str]:
    """Return what is tuned where nobody says: a file's own losses, and for exhibits the paper's with an anchor."""
    if all(map(_is_file, names)):
        return list(dict.fromkeys(str(spec.loss) for spec in specs))
    from gence.paper import TUNED_LOSSES

    return list(TUNED_LOSSES)


def _time(entry: Entry, names: list[str], store: Store, device: str, compile: bool, dry_run: bool) -> None:
    """Measure what is a benchmark and no grid."""
    if len(names) > 1 or entry.timing is None:
        raise ValueError(f"{entry.name} is a benchmark, which other runs would disturb; run it alone")
    if dry_run:
        typer.echo(f"{entry.name} would time {entry.timing.what}")
        return
    typer.echo(f"wrote {entry.timing.measure(store, device, compile)}")


def _run_apart(
    asked: list[Entry],
    names: list[str],
    store: Store,
    rows: Sequence[str],
    losses: Sequence[str],
    time_limit: float | None,
    dry_run: bool,
) -> None:
    """Make the missing records of a study that has its own form of them."""
    apart = asked[0].apart
    if len(names) > 1 or apart is None:
        raise ValueError(f"{' '.join(names)}: one of these keeps its records in another format; run each alone")
    if dry_run:
        apart.list(store, rows, losses, typer.echo)
    else:
        apart.run(store, rows, losses, time_limit, typer.echo)


def _list(specs: list[RunSpec], store: Store, recipes: Mapping[str, Recipe]) -> None:
    """Print the cells of a grid in the order they would be done, and what each still lacks."""
    from rich.table import Table
    from rich.text import Text

    from gence.lab.spec import RECIPES
    from gence.lab.sweep import cell_name, cells

    missing = {spec.key for spec in store.missing(specs)}
    for problem in store.unreadable(spec.key for spec in specs).values():
        typer.echo(f"Warning: {problem}", err=True)
    names = {recipe: name for name, recipe in {**recipes, **RECIPES}.items()}
    table = Table("cell", "recipe", "losses", "seeds", "runs", "missing", "steps per run")
    table.columns[0].no_wrap = True
    for runs in cells(specs).values():
        first = runs[0]
        # The batch is part of the cell's name, the recipe's name is that of the recipe with the usual one.
        usual = [spec.recipe.replace(batch_size=RECIPES["paper"].batch_size) for spec in runs]
        called = [names.get(spec.recipe) or names.get(same, "custom") for spec, same in zip(runs, usual, strict=True)]
        steps = first.recipe.epochs * (first.subset.n // first.recipe.batch_size) if first.subset.n else None
        table.add_row(
            Text(cell_name(first) + (", OOD" if first.ood else "")),
            "; ".join(dict.fromkeys(called)),
            str(len({spec.loss for spec in runs})),
            str(len({spec.seed for spec in runs})),
            str(len(runs)),
            str(sum(spec.key in missing for spec in runs)),
            "–" if steps is None else str(steps),
        )
    table_console().print(table)
    typer.echo(f"{len(missing)} of {len(specs)} runs are missing in {store.root}")
