"""Does GenCE help on these data? Plan the runs, make them, and say what came out."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.compare.options import CompareOptions, Source, takes_options
from gence.lab.compare.plan import ComparePlan, FinalRuns, plan_comparison, tuned_runs, untuned_runs
from gence.lab.data import is_table
from gence.lab.report import (
    MAIN,
    Report,
    build_report,
    loss_order,
    loss_title,
    make_folder,
    notebook_html,
    recommended_loss,
    write_report,
)
from gence.lab.spec import RunSpec
from gence.lab.store import Record, Store, check_same_data
from gence.lab.sweep import (
    Countdown,
    GridProgress,
    LoggedTrainer,
    RunReport,
    TuneSettings,
    console_or_stderr,
    create_engine,
    fit_and_keep_references,
    joined_reports,
    run_grid,
    tune,
    tune_frozen,
)
from gence.lab.train import FeatureData, embed_data, pixel_data, train_cohort

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, RenderableType


@dataclass(frozen=True, eq=False, kw_only=True)
class CompareResult:
    """What a comparison found; a notebook shows it with table and figures.

    Attributes:
        report: all that the page shows, or None where no run was finished.
        page: the page's path, or None likewise.
        runs: what was done and what is left.
        seconds: for the whole of it, report included.
        tuning: how far tuning came, where it is not complete; else None.
        recommended: the first seed's run of the loss that the report recommends; with several numbers of labels, with
            the most. None where none is.
        saved: the file with its network, where that was asked for.
    """

    report: Report | None
    page: Path | None
    runs: RunReport
    seconds: float
    tuning: str | None = None
    recommended: RunSpec | None = None
    saved: Path | None = None

    @property
    def frame(self) -> pd.DataFrame:
        """One row per run: spec, versions, metrics."""
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
        return "<p>No run was finished.</p>" if self.report is None else notebook_html(self.report)


@takes_options
def compare(data: Source = "digits", *, console: Console | None = None, **options: Any) -> CompareResult:
    """Compare losses on a data set over seeds, and write a report.

    Runs that the store has are not done again: after an interruption the same call resumes. What
    "auto" means is explained in `gence.lab.compare.auto`.

    Args:
        **options: those of `CompareOptions`.
        console: where to draw the table of progress; None is standard error.

    Raises:
        ValueError: an argument that makes no sense, data that cannot be read, or records in the store that were made
            from other images; the message says what to do.
    """
    started = time.monotonic()
    asked = CompareOptions(data=data, **options)
    limit, console, out = Countdown(asked.time_limit), console_or_stderr(console), Path(asked.out)
    store = Store(out / "store" if asked.store is None else asked.store, remember=True)
    parts: list[_Part] = []
    said: set[str] = set()
    for one in asked.by_labels():
        # Accuracies of different numbers of labels stand in one figure only if all else is the same.
        size = parts[0].plan.base.image_size if parts and asked.image_size is None else asked.image_size
        stopped = parts[-1].runs.stopped if parts else None
        parts.append(_compare_once(replace(one, image_size=size), store, limit, console, stopped, said))
    recorded = [key for part in parts for key in part.recorded]
    report, page = None, None
    if recorded:
        report = build_report(store, keys=recorded, concerns=_concerns(parts), cache_dir=asked.cache_dir)
        page = write_report(report, out, files=asked.files)
    recommended = None if report is None else _recommended(report, store)
    return CompareResult(
        report=report,
        page=page,
        recommended=recommended,
        saved=None if recommended is None else _saved(recommended, asked, parts[0].plan.device),
        runs=joined_reports([part.runs for part in parts]),
        seconds=time.monotonic() - started,
        tuning=next((part.final.tuning for part in parts if part.final.tuning is not None), None),
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The runs with one number of labels: planned, made, and those that have a record."""

    plan: ComparePlan
    final: FinalRuns
    runs: RunReport
    recorded: list[str]


def _compare_once(
    asked: CompareOptions, store: Store, limit: Countdown, console: Console, stopped: str | None, said: set[str]
) -> _Part:
    """Make the runs with one number of labels; none where an earlier number was stopped.

    Args:
        said: the hints, notes and warnings that an earlier number has printed; those of this one are added.
    """
    plan = plan_comparison(asked)
    console.print(plan.summary(), highlight=False, markup=False)
    hints = [f"{plan.hint}."] if plan.hint else []
    for line in (*hints, *(f"Note: {note}." for note in plan.notes), *(f"Warning: {one}" for one in plan.concerns)):
        if line not in said:
            console.print(line, style="yellow" if line.startswith("Warning") else None, highlight=False, markup=False)
        said.add(line)
    # The one check of the data: tuning and the runs make none of their own.
    check_same_data(_records_in_use(plan, store, plan.trials > 0), plan.checksums, store.root)
    make_folder(asked.out)  # before the training, so that no report is lost to a folder that cannot be
    if stopped is not None:
        final = untuned_runs(plan)
        return _Part(plan=plan, final=final, runs=final.unbegun(store, stopped), recorded=final.recorded(store))
    run_options = _run_options(plan, asked)
    features = _embedded(plan, asked, console) if plan.frozen else None
    final = _final_runs(plan, store, features, limit, run_options, console)
    if final.stopped or limit.over:
        runs = final.unbegun(store, final.stopped or "time limit")
    else:
        runs = _run(final.known, store, limit, run_options, console)
        if not runs.stopped and not limit.over:
            seen = pixel_data(plan.base, asked.cache_dir) if features is None else features
            fit_and_keep_references(plan.base, plan.seeds, store, seen)
    return _Part(plan=plan, final=final, runs=runs, recorded=final.recorded(store))


def _recommended(report: Report, store: Store) -> RunSpec | None:
    """The run to repeat: of the setting with the most labels, the recommended loss with the first seed."""
    most = max(report.chapters, key=lambda chapter: chapter.setting.frame["subset.n"].fillna(math.inf).max())
    frame = most.setting.frame
    loss = recommended_loss(frame)
    if loss is None:
        return None
    return store.read(frame[frame["loss"] == loss].sort_values("seed")["key"].iloc[0]).spec


def _saved(spec: RunSpec, asked: CompareOptions, device: str) -> Path | None:
    """Train a run once more and keep its network: runs that the store had before have none to be kept."""
    if asked.save_best is None:
        return None
    folder = make_folder(asked.save_best)
    train_cohort([spec], device=device, cache_dir=asked.cache_dir, models_dir=folder)
    return (folder / f"{spec.key}.safetensors").replace(folder / "best.safetensors")


def _concerns(parts: Sequence[_Part]) -> tuple[str, ...]:
    """Return what is worrying, each once; with several numbers of labels it says of which."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for concern in (*part.final.concerns(part.recorded, part.runs.failed), *part.plan.concerns):
            found.setdefault(concern, []).append(str(part.plan.base.subset.n))
    if len(parts) == 1:
        return tuple(found)
    return tuple(
        concern if len(of) == len(parts) else f"With {' and '.join(of)} labels: {concern}"
        for concern, of in found.items()
    )


def _records_in_use(plan: ComparePlan, store: Store, tuning: bool) -> Iterator[Record]:
    """Yield the records that stand in for runs: with tuning those of all trials on these data, proposed or to come."""
    if not tuning:
        yield from (store.read(spec.key) for spec in plan.specs() if store.has(spec.key))
        return
    for record in Store(store.root).records():  # there may be thousands: none is kept
        if (record.spec.data, record.spec.image_size) == (plan.base.data, plan.base.image_size):
            yield record


def _run_options(plan: ComparePlan, asked: CompareOptions) -> dict[str, Any]:
    """Return the options of `run_grid` that tuning and the final runs share."""
    workers = min(asked.workers, len(plan.losses) * len(plan.seeds))
    several = plan.device == "cpu" and workers > 1 and not plan.frozen
    options: dict[str, Any] = {
        "engine": create_engine("processes", workers=workers) if several else "local",
        "device": plan.device,
        "cache_dir": asked.cache_dir,
        "check_data": False,
    }
    if plan.frozen:  # all heads train together
        options["cohort_size"] = len(plan.losses) * len(plan.seeds)
    if asked.log == "tensorboard":
        options["trainer"] = LoggedTrainer(Path(asked.out) / "tensorboard")
    return options


def _final_runs(
    plan: ComparePlan,
    store: Store,
    features: FeatureData | None,
    limit: Countdown,
    options: dict[str, Any],
    console: Console,
) -> FinalRuns:
    """Return the final runs, after tuning their losses if that was asked for."""
    if plan.trials == 0:
        return untuned_runs(plan)
    # Seeds that the final runs do not use: what was tuned on a seed may not be judged on it.
    seed = 1 + max(1000, *plan.seeds)
    settings = TuneSettings(trials=plan.trials, seeds=(seed,))
    console.print(f"Tuning {len(plan.losses)} losses with {plan.trials} trials each", highlight=False)
    if features is not None:
        with _bar("tuning", console) as progress:
            found = tune_frozen(
                plan.base, plan.losses, store, features, trials=plan.trials, seed=seed, progress=progress
            )  # fmt: skip
        return tuned_runs(plan, found)
    with _threads_alone(options):
        found = tune(plan.base, plan.losses, store, settings=settings, time_limit=limit.left(), **options)
    return tuned_runs(plan, found)


def _embedded(plan: ComparePlan, asked: CompareOptions, console: Console) -> FeatureData:
    """Embed the images, or read their features from the cache, and say how long that took."""
    found = embed_data(plan.base, cache_dir=asked.cache_dir, progress=True, console=console)
    if found.seconds:
        images = sum(one.embedded for one in (found.train, found.test, *found.ood.values()))
        noun = "texts" if is_table(plan.base.data) else "images"
        if images:  # columns of a table take no time worth telling
            console.print(
                f"Embedded {images} {noun} in {found.seconds:.0f} s; their features are kept", highlight=False
            )
    return found


@contextlib.contextmanager
def _bar(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Draw a bar; yield what to call with the number of heads that are trained, and of all heads."""
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _run(
    specs: Sequence[RunSpec], store: Store, limit: Countdown, options: dict[str, Any], console: Console
) -> RunReport:
    from rich.live import Live

    table = LiveTable(store, specs)
    live = Live(get_renderable=table.render, console=console, refresh_per_second=2)
    with _threads_alone(options), _line_ended(console), live:
        return run_grid(
            specs, store, time_limit=limit.left(), on_progress=table.update, retry_failed=True, **options
        )  # fmt: skip


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


class LiveTable:
    """Loss by loss: seeds done, means so far; below, the time that is left.

    Pass `update` to the runner and `render` to `rich.live.Live`.

    Args:
        store: where the runs are recorded; each record is read once, when the runner tells of it.
        specs: the runs.
    """

    def __init__(self, store: Store, specs: Sequence[RunSpec]) -> None:
        self._store = store
        self._specs = {spec.key: spec for spec in specs}
        self._metrics: dict[str, dict[str, float]] = {}
        self._started = time.monotonic()
        self._read(key for key in self._specs if store.has(key))
        self._before = len(self._metrics)

    def update(self, progress: GridProgress) -> None:
        """Take note of the runs that were recorded."""
        self._read(progress.recorded)

    def render(self) -> RenderableType:
        """Return the table as it stands."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("loss", "seeds")
        for quantity in MAIN:
            table.add_column(quantity.heading, justify="right")
        for loss in sorted({str(spec.loss) for spec in self._specs.values()}, key=loss_order):
            keys = [key for key, spec in self._specs.items() if str(spec.loss) == loss]
            done = [self._metrics[key] for key in keys if key in self._metrics]
            numbers = []
            for quantity in MAIN:
                values = [found[quantity.metric] for found in done if quantity.metric in found]
                numbers.append(quantity.text(sum(values) / len(values)) if values else "")
            bar = "●" * len(done) + "·" * (len(keys) - len(done))
            table.add_row(
                Text(loss_title(loss)), Text(bar if len(keys) <= 10 else f"{len(done)} of {len(keys)}"), *numbers
            )
        return Group(table, Text(self._time(), style="dim"))

    def _read(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._metrics[key] = self._store.read(key).result.metrics

    def _time(self) -> str:
        done, total = len(self._metrics), len(self._specs)
        elapsed = time.monotonic() - self._started
        new = done - self._before
        text = f"{done} of {total} runs, {elapsed:.0f} s"
        if new and done < total:
            text += f", about {elapsed / new * (total - done):.0f} s left"
        return text
