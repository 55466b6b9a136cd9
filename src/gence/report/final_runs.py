"""The runs by which a comparison is judged, tuned first where that was asked for, and what is there of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gence.experiment.run import RunReport
from gence.experiment.spec import RunSpec
from gence.experiment.store import Store
from gence.experiment.tune import TuneReport, tuned_grid
from gence.report.comparison_plan import ComparePlan
from gence.report.concerns import tuning_concerns, unfinished_concerns
from gence.report.names import loss_title


@dataclass(frozen=True, kw_only=True)
class FinalRuns:
    """The runs that are judged on test.

    Attributes:
        known: those that can be made.
        waiting: those of losses without a finished trial, as they were asked for. They cannot be made, nor looked for
            in the store: tuning is still to say what they will be.
        tuning: how far tuning came, where it is not complete; else None.
        stopped: why tuning ended early, or None.
        failed: keys of the trials' runs that failed, with the error.
    """

    known: tuple[RunSpec, ...]
    waiting: tuple[RunSpec, ...] = ()
    tuning: str | None = None
    stopped: str | None = None
    failed: dict[str, str] = field(default_factory=dict)

    def recorded(self, store: Store) -> list[str]:
        """Return the keys of those that the store has."""
        return [spec.key for spec in self.known if store.has(spec.key)]

    def unbegun(self, store: Store, stopped: str) -> RunReport:
        """Return what there is to say where none of them is made in this call: what is there, and what is left."""
        there = self.recorded(store)
        missing = (spec for spec in self.known if spec.key not in there)
        return RunReport(
            skipped=tuple(there), left=(*missing, *self.waiting), stopped=stopped, failed=dict(self.failed)
        )

    def concerns(self, recorded: Sequence[str], failed: dict[str, str]) -> list[str]:
        """Return what a reader must know of runs that are missing and of losses that are not tuned to the end."""
        return [*unfinished_concerns((*self.known, *self.waiting), recorded, failed), *tuning_concerns(self.tuning)]


def untuned_runs(plan: ComparePlan) -> FinalRuns:
    """Return the runs of a comparison in which nothing is tuned."""
    return FinalRuns(known=tuple(plan.specs()))


def tuned_runs(plan: ComparePlan, found: TuneReport) -> FinalRuns:
    """Return the runs of losses as they were tuned, as far as they were."""
    begun = {tuned.asked for tuned in found.best}
    waiting = [spec for spec in plan.specs() if spec.loss not in begun]
    return FinalRuns(
        known=tuple(tuned_grid(found, plan.seeds)),
        waiting=tuple(waiting),
        tuning=None if found.complete else _progress(plan, found),
        stopped=None if found.complete else (found.stopped or "failed trials"),
        failed=found.failed,
    )


def _progress(plan: ComparePlan, found: TuneReport) -> str:
    trials = {tuned.asked: tuned.trials for tuned in found.best}
    each = (
        f"{loss_title(str(loss))} {trials[loss]} of {found.trials} trials"
        if loss in trials
        else f"{loss_title(str(loss))} has no finished trial"
        for loss in plan.losses
    )
    return f"Tuning is not complete ({', '.join(each)})"
