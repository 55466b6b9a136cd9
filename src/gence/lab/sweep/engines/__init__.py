"""Engines: where the cohorts of a grid are done. They only hand out tasks; no scheduler is hidden here.

"local" does them in this process, "gpus" in one process for each GPU of this machine, "ray" on a Ray cluster.
"""

from __future__ import annotations

from gence.lab.spec import check_choice
from gence.lab.sweep.engines.engine import Capacity, Control, Engine

ENGINES = ("local", "gpus", "ray")
"""The names `create_engine` knows."""


def create_engine(
    name: str, *, workers: int | None = None, address: str | None = None, num_gpus: float | None = None
) -> Engine:
    """Return an engine by name.

    Args:
        name: "local", "gpus" or "ray".
        workers: for "gpus", how many processes (default: one for each visible GPU).
        address: for "ray", the cluster's address (default: the running one, or a new one on this machine).
        num_gpus: for "ray", the GPUs a cohort needs; a fraction puts several on one GPU.
    """
    check_choice("engine", name, ENGINES)
    for option, value, owner in (
        ("workers", workers, "gpus"),
        ("address", address, "ray"),
        ("num_gpus", num_gpus, "ray"),
    ):
        if value is not None and name != owner:
            raise ValueError(f"{option} is an option of the engine {owner!r}, not of {name!r}")
    if name == "local":
        from gence.lab.sweep.engines.local import LocalEngine

        return LocalEngine()
    if name == "gpus":
        from gence.lab.sweep.engines.processes import GpusEngine

        return GpusEngine(workers=workers)
    from gence.lab.sweep.engines.ray import RayEngine

    return RayEngine(address=address, num_gpus=num_gpus)
