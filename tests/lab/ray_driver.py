"""`python ray_driver.py STORE SEEDS`: a grid on a local Ray cluster of two nodes, one of which is killed mid-way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A lost node is noticed in three seconds, not in half a minute; a slow machine may miss a few checks.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "10",
}
LONGEST_S = 200
sys.path.insert(0, str(Path(__file__).parent))


def holders(store) -> set[int]:
    """The processes that hold claims."""
    pids = set()
    for path in (store.root / "claims").glob("*.claim"):
        with contextlib.suppress(FileNotFoundError):
            pids.add(json.loads(path.read_bytes())["pid"])
    return pids


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None


def dashboard_hosts() -> list[str]:
    """What the dashboards that this process started are bound to."""
    hosts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if any(word.endswith("dashboard.py") for word in words) and parent(int(path.parent.name)) == os.getpid():
                hosts += [word.removeprefix("--host=") for word in words if word.startswith("--host=")]
    return hosts


def connects(address: str, **changes: str) -> bool:
    """Whether another process can join a cluster and have work done."""
    code = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(ray.get(ray.remote(lambda: 7).remote()))"
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout == "7\n"


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster
    from tiny_trainer import make_specs

    from gence.lab.store.store import Store
    from gence.lab.sweep.engines.ray import RayEngine
    from gence.lab.sweep.run import run_grid

    store = Store(sys.argv[1])
    specs = make_specs(int(sys.argv[2]))
    quarter = len(specs) // 4
    quiet = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    doomed = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    seen: dict[str, object] = {}

    def kill_node() -> None:
        """Wait until a quarter is done and the doomed node works; then take it away with all its processes."""
        raylet = doomed.all_processes["raylet"][0].process.pid
        deadline = time.monotonic() + LONGEST_S
        while not (victims := [pid for pid in holders(store) if parent(pid) == raylet]) or len(store.keys()) < quarter:
            if time.monotonic() > deadline:
                return  # the report says then that nothing was killed
            time.sleep(0.005)
        seen["records"] = len(store.keys())
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        cluster.remove_node(doomed, allow_graceful=False)
        seen["killed"] = len(victims)

    killer = threading.Thread(target=kill_node, daemon=True)
    killer.start()
    report = run_grid(specs, store, engine=RayEngine(), device="cpu", cohort_size=4, trainer="tiny_trainer.train")
    killer.join(timeout=30)
    nodes = sum(node["Alive"] for node in ray.nodes())
    longer = make_specs(4, epochs=1000)
    late = run_grid(
        longer, store, engine=RayEngine(), device="cpu", cohort_size=4, trainer="tiny_trainer.train", time_limit=1
    )
    seen |= {"late": late.stopped, "late_left": len(late.left), "late_s": late.wall_s}
    ray.shutdown()
    cluster.shutdown()
    RayEngine(num_cpus=1).capacity("cpu")  # a new cluster here
    address = ray.get_runtime_context().gcs_address
    seen |= {
        "mode": os.environ.get("RAY_AUTH_MODE"),
        "dashboards": dashboard_hosts(),
        "connects": [
            connects(address),
            connects(address, RAY_AUTH_TOKEN="0" * 64),
            connects(address, RAY_AUTH_MODE="disabled"),
        ],
    }
    ray.shutdown()
    print(json.dumps({"done": len(report.done), "already": len(report.skipped), "failed": report.failed,
                      "left": len(report.left), "nodes": nodes, **seen}))  # fmt: skip


if __name__ == "__main__":
    main()
