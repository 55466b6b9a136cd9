"""Engines: where the cohorts of a grid are done. They only hand out tasks; no scheduler is hidden here.

"local" does them in this process, "processes" in one process for each GPU of this machine or in several on its CPU
("gpus" is an older name of it), "ray" on a Ray cluster.
"""

from __future__ import annotations

from gence.lab.spec import check_choice
from gence.lab.sweep.queue import Capacity, Control, Engine, LocalEngine

ENGINES = ("local", "gpus", "processes", "ray")
"""The names `create_engine` knows."""


def create_engine(
    name: str, *, workers: int | None = None, address: str | None = None, num_gpus: float | None = None
) -> Engine:
    """Return an engine by name.

    Args:
        name: "local", "processes" (or "gpus", the same) or "ray".
        workers: for "processes", how many (default: one for each visible GPU).
        address: for "ray", the cluster's address (default: the running one, or a new one on this machine).
        num_gpus: for "ray", the GPUs a cohort needs; a fraction puts several on one GPU.
    """
    check_choice("engine", name, ENGINES)
    for option, value, owners in (
        ("workers", workers, ("gpus", "processes")),
        ("address", address, ("ray",)),
        ("num_gpus", num_gpus, ("ray",)),
    ):
        if value is not None and name not in owners:
            raise ValueError(f"{option} is an option of the engine {owners[0]!r}, not of {name!r}")
    if name == "local":
        return LocalEngine()
    if name == "ray":
        from gence.lab.sweep.engines.ray import RayEngine

        return RayEngine(address=address, num_gpus=num_gpus)
    from gence.lab.sweep.engines.processes import ProcessEngine

    return ProcessEngine(workers=workers)
