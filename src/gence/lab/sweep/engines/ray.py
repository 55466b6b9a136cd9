"""The engine for a Ray cluster. Ray decides where a cohort runs and repeats it when a machine is lost.

Each task claims, trains and records its runs itself, in a store on a file system the machines share; what it returns is
only news for the progress bar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gence.lab.store import StoreError
from gence.lab.sweep.queue import Capacity, CohortQueue, Control
from gence.lab.sweep.worker import Outcome, Task, WorkOptions, perform

_POLL_S = 0.5


@dataclass
class RayEngine:
    """Does cohorts as Ray tasks.

    Attributes:
        address: the cluster ("auto", "host:port", "ray://..."); None is the running one, or a new one here.
        num_gpus: GPUs a cohort needs; a fraction puts several on one. None is 1 where the cluster has GPUs, else 0.
        num_cpus: CPU cores a cohort needs.
        max_retries: how often Ray repeats a task whose process or machine died.
    """

    address: str | None = None
    num_gpus: float | None = None
    num_cpus: float = 1
    max_retries: int = 3

    def capacity(self, device: str) -> Capacity:
        """Return how many cohorts fit on the cluster as it is now."""
        resources = self._resources()
        gpus = self._gpus_each(resources)
        each = [(resources.get("CPU", 0), self.num_cpus), (resources.get("GPU", 0), gpus)]
        fit = [int(have // need) for have, need in each if need > 0]
        return Capacity(cohorts=max(min(fit, default=1), 1), on_gpu=gpus > 0 and device != "cpu")

    def execute(self, queue: CohortQueue, options: WorkOptions, control: Control) -> None:
        """Submit the tasks of the queue to the cluster and settle them as they end."""
        import ray

        gpus = self._gpus_each(self._resources())
        submit = ray.remote(num_cpus=self.num_cpus, num_gpus=gpus, max_retries=self.max_retries)(_perform).remote
        # Paths travel to machines with other working directories.
        travelling = replace(options, store=options.store.resolve())
        running: dict[Any, Task] = {}
        while True:
            while not control.should_stop() and (task := queue.take()) is not None:
                running[submit(task, travelling)] = task
            if control.should_stop() and options.stop_file is not None:
                options.stop_file.touch()  # tasks that have not begun see it too, and end at once
            if not running:
                return
            ended, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            for reference in ended:
                over = running.pop(reference)
                _settle(over, reference, queue)
                control.progress(over, 1.0)

    def _resources(self) -> dict[str, float]:
        """Return what the cluster has, connecting to it first."""
        import ray

        if not ray.is_initialized():
            # A new cluster asks for a token and shows its dashboard to this machine alone; a running one is as it is.
            ray.init(address=self.address, log_to_driver=False, logging_level="warning", dashboard_host="127.0.0.1")
        return dict(ray.cluster_resources())

    def _gpus_each(self, resources: Mapping[str, float]) -> float:
        return (1 if resources.get("GPU", 0) else 0) if self.num_gpus is None else self.num_gpus


def _settle(task: Task, reference: Any, queue: CohortQueue) -> None:
    import ray

    try:
        answer = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:  # Ray's own retries are used up
        queue.lose(task, f"lost by Ray: {error}")
        return
    if not isinstance(answer, Outcome):
        raise StoreError(answer)
    queue.settle(task, answer)


def _perform(task: Task, options: WorkOptions) -> Outcome | str:
    """Do a task on whichever machine Ray chose."""
    try:
        return perform(task, options)
    except StoreError as error:
        return str(error)
