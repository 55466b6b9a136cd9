"""Does GenCE help on these data? Plan the runs, make them, and say what came out."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.compare.auto import AUTO, Source, read_losses
from gence.lab.compare.plan import DEFAULT_LOSSES, ComparePlan, FinalRuns, plan_comparison, tuned_runs, untuned_runs
from gence.lab.report import Report, build_report, make_folder, write_report
from gence.lab.spec import TUNE, Recipe, RunSpec, SpecError, check_choice
from gence.lab.store import Record, Store, check_same_data
from gence.lab.sweep import RunReport, TuneSettings, check_time_limit, create_engine, run_grid, tune

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

LOGS = ("tensorboard",)


@dataclass(frozen=True, eq=False, kw_only=True)
class CompareResult:
    """What a comparison found; a notebook shows it with table and figures.

    Attributes:
        report: all that the page shows, or None where no run was finished.
        page: the page's path, or None likewise.
        runs: what was done and what is left.
        seconds: for the whole of it, report included.
        tuning: how far tuning came, where it is not complete; else None.
    """

    report: Report | None
    page: Path | None
    runs: RunReport
    seconds: float
    tuning: str | None = None

    @property
    def frame(self) -> pd.DataFrame:
        """One row a run: spec, versions, metrics."""
        import pandas as pd

        return pd.DataFrame() if self.report is None else self.report.frame

    @property
    def complete(self) -> bool:
        """Whether every run has a record, and every loss that was to be tuned had all its trials."""
        return self.runs.complete and self.tuning is None

    def summary(self) -> str:
        """Return what was done and what is left, in a sentence or two."""
        return self.runs.summary() if self.tuning is None else f"{self.tuning}. Final runs: {self.runs.summary()}"

    def __repr__(self) -> str:
        if self.report is None:
            return f"CompareResult({self.summary()})"
        return f"CompareResult({self.report.chapters[0].verdict.headline} page={self.page})"

    def _repr_html_(self) -> str:
        from gence.lab.compare.live import fragment

        return "<p>No run was finished.</p>" if self.report is None else fragment(self.report)


def compare(
    data: Source = "digits",
    *,
    n: int | str | None = AUTO,
    losses: str | Sequence[str] = DEFAULT_LOSSES,
    seeds: int | Sequence[int] = 5,
    model: str = AUTO,
    ood: Source | Sequence[Source] = (),
    recipe: str | Recipe = AUTO,
    epochs: int | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    tune_trials: int = 0,
    out: str | os.PathLike[str] = "gence-report",
    store: str | os.PathLike[str] | None = None,
    device: str = AUTO,
    time_limit: float | None = None,
    log: str | None = None,
    workers: int = 1,
    files: bool = True,
    console: Console | None = None,
    cache_dir: Path | None = None,
) -> CompareResult:
    """Compare losses on a data set over seeds, and write a report.

    Runs that the store has are not done again: after an interruption the same call goes on where it stopped. What
    "auto" means is said in `gence.lab.compare.auto`.

    Args:
        data: a name, a folder or an archive; see `gence.lab.data.load`.
        n: labels to train on, balanced over the classes; None for all; "auto" is 100 for digits and all otherwise.
        losses: names, with parameters where needed: "gence(anchor=0.1)"; a list, or a text with commas between them.
        seeds: how many, or which.
        model: a name of `gence.lab.models`, or "auto".
        ood: data sets or folders of images from elsewhere; one, or a list.
        recipe: a recipe or its name, or "auto".
        epochs: in place of the recipe's.
        batch_size: in place of the recipe's.
        image_size: pixels to bring images to; by default they stay as they are, if they can.
        tune_trials: first tune every loss with this many trials, on a held-out part of the training labels; needs
            Optuna (the extra "tune").
        out: folder of the report.
        store: folder of the records; by default "store" inside `out`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        time_limit: seconds after which nothing is trained; the report then shows what there is.
        log: "tensorboard" to write curves to the folder "tensorboard" inside `out` while training.
        workers: processes on a CPU; with more than one, a script needs `if __name__ == "__main__":`.
        files: also write every figure and table as a file.
        console: where to draw the table of progress; None is standard error.
        cache_dir: where data sets are cached.

    Raises:
        ValueError: an argument that makes no sense, data that cannot be read, or records in the store that were made
            from other images; the message says what to do.
    """
    started = time.monotonic()
    console = console or _stderr()
    if log is not None:
        check_choice("log", log, LOGS)
    check_time_limit(time_limit)
    _check_tuned(losses, tune_trials)
    _check_packages(tune_trials, log)
    plan = plan_comparison(
        data, n=n, losses=losses, seeds=seeds, model=model, ood=ood, recipe=recipe, epochs=epochs,
        batch_size=batch_size, image_size=image_size, tuning=tune_trials > 0, device=device, cache_dir=cache_dir,
    )  # fmt: skip
    console.print(plan.summary(), highlight=False, markup=False)
    for concern in plan.concerns:
        console.print(f"Warning: {concern}", style="yellow", highlight=False, markup=False)
    records = Store(Path(out) / "store" if store is None else store)
    check_same_data(_records_in_use(plan, records, tune_trials > 0), plan.checksums, records.root)
    options = _run_options(plan, workers, log, Path(out), cache_dir)
    make_folder(out)  # before the training, so that no report is lost to a folder that cannot be
    final = _final_runs(plan, records, tune_trials, time_limit, options, console)
    left = None if time_limit is None else time_limit - (time.monotonic() - started)
    if final.stopped or (left is not None and left <= 0):
        runs = final.unbegun(records, final.stopped or "time limit")
    else:
        runs = _run(final.known, records, left, options, console)
    recorded = final.recorded(records)
    report, page = None, None
    if recorded:
        concerns = (*final.concerns(recorded, runs.failed), *plan.concerns)
        report = build_report(records, keys=recorded, concerns=concerns, cache_dir=cache_dir)
        page = write_report(report, out, files=files)
    return CompareResult(report=report, page=page, runs=runs, seconds=time.monotonic() - started, tuning=final.tuning)


def _check_tuned(losses: str | Sequence[str], trials: int) -> None:
    """Raise `SpecError` before anything is read or trained, if a loss waits for tuning that nobody asked for."""
    if trials < 0:
        raise SpecError(f"tune_trials is {trials}; expected 0 (no tuning) or a number of trials")
    for loss in read_losses(losses):
        waiting = [name for name, value in loss.params.items() if value == TUNE]
        if waiting and trials == 0:
            raise SpecError(
                f"loss {loss} leaves {waiting[0]} to tuning, but nothing is tuned: add --tune N (tune_trials=N), or "
                f"give {waiting[0]} a number"
            )


def _check_packages(trials: int, log: str | None) -> None:
    """Raise `ValueError` now, and not run by run, if what was asked for needs a package that is not installed."""
    wanted = {"optuna": ("tune", trials > 0), "tensorboard": ("tensorboard", log == "tensorboard")}
    for package, (extra, asked) in wanted.items():
        if asked and importlib.util.find_spec(package) is None:
            what = "--tune" if extra == "tune" else "--log tensorboard"
            raise ValueError(f"{what} needs the package {package}; install it with: pip install 'gence[{extra}]'")


def _records_in_use(plan: ComparePlan, store: Store, tuning: bool) -> Iterator[Record]:
    """Yield the records that stand in for runs: with tuning those of all trials on these data, proposed or to come."""
    if not tuning:
        yield from (store.read(spec.key) for spec in plan.specs() if store.has(spec.key))
        return
    for record in store.records():
        if (record.spec.data, record.spec.image_size) == (plan.base.data, plan.base.image_size):
            yield record


def _run_options(plan: ComparePlan, workers: int, log: str | None, out: Path, cache_dir: Path | None) -> dict[str, Any]:
    if workers < 1:
        raise SpecError(f"workers is {workers}; expected at least 1")
    workers = min(workers, len(plan.losses) * len(plan.seeds))
    several = plan.device == "cpu" and workers > 1
    options: dict[str, Any] = {
        "engine": create_engine("gpus", workers=workers) if several else "local",
        "device": plan.device,
        "cache_dir": cache_dir,
    }
    if log == "tensorboard":
        from gence.lab.sweep import LoggedTrainer

        options["trainer"] = LoggedTrainer(out / "tensorboard")
    return options


def _final_runs(
    plan: ComparePlan, store: Store, trials: int, time_limit: float | None, options: dict[str, Any], console: Console
) -> FinalRuns:
    """Return the final runs, after tuning their losses if that was asked for."""
    if trials == 0:
        return untuned_runs(plan)
    # Seeds that the final runs do not use: what was tuned on a seed may not be judged on it.
    settings = TuneSettings(trials=trials, seeds=(1 + max(1000, *plan.seeds),))
    console.print(f"Tuning {len(plan.losses)} losses with {trials} trials each", highlight=False)
    with _threads_alone(options):
        found = tune(plan.base, plan.losses, store, settings=settings, time_limit=time_limit, **options)
    return tuned_runs(plan, found)


def _run(
    specs: Sequence[RunSpec], store: Store, time_limit: float | None, options: dict[str, Any], console: Console
) -> RunReport:
    from rich.console import Console
    from rich.live import Live

    from gence.lab.compare.live import LiveTable

    table = LiveTable(store, specs)
    # The grid's own progress bar goes nowhere: two live displays cannot share a terminal.
    nowhere = Console(file=io.StringIO())
    live = Live(get_renderable=table.render, console=console, refresh_per_second=2)
    with _threads_alone(options), _line_ended(console), live:
        report = run_grid(specs, store, time_limit=time_limit, console=nowhere, retry_failed=True, **options)
        table.finish()
    return report


@contextlib.contextmanager
def _line_ended(console: Console) -> Iterator[None]:
    """End the last line of a table in a file, which ends without; after an error too, whose message comes next."""
    try:
        yield
    finally:
        if not console.is_terminal:
            console.print()


@contextlib.contextmanager
def _threads_alone(options: dict[str, Any]) -> Iterator[None]:
    """Give each worker process one thread: they share the cores, and one thread makes results independent of them."""
    name = "OMP_NUM_THREADS"
    if options["engine"] == "local" or name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)
