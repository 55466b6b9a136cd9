"""The engine that does everything in this process, one cohort after the other."""

from __future__ import annotations

from functools import partial
from typing import Any

from gence.lab.sweep.engines.engine import Capacity, Control, fraction
from gence.lab.sweep.queue import Plan
from gence.lab.sweep.worker import Task, WorkOptions, perform


class LocalEngine:
    """Does cohorts in this process."""

    def capacity(self, device: str) -> Capacity:
        """Return room for one cohort, on a GPU if one is there and wanted."""
        if device == "cpu":
            return Capacity(cohorts=1, on_gpu=False)
        import torch

        from gence.lab.train import check_device

        if device != "auto":
            check_device(device)
        return Capacity(cohorts=1, on_gpu=torch.cuda.is_available())

    def execute(self, plan: Plan, options: WorkOptions, control: Control) -> None:
        """Do the tasks of the plan one after the other."""
        while not control.should_stop() and (task := plan.take()) is not None:
            outcome = perform(task, options, should_stop=control.should_stop, on_epoch=partial(_tell, control, task))
            plan.settle(task, outcome)
            control.progress(task, 1.0)


def _tell(control: Control, task: Task, progress: Any) -> None:
    control.progress(task, fraction(progress))
