"""The loss's cost in one line a shape, from the benchmark's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PROVIDERS = {
    "cross_entropy": "CE",
    "cross_entropy, compiled": "CE, compiled",
    "GenCE": "GenCE",
    "GenCE plain": "GenCE, plain formula",
}
_WALL_BELOW = 100_000  # logits: there the launches are the cost, and the clock on the wall shows it


def speed_table(path: Path) -> str:
    """Return a Markdown table: forward and backward in ms for each shape and provider, and GenCE's extra memory."""
    record: dict[str, Any] = json.loads(path.read_text())
    shapes: dict[tuple[int, int, str], dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        shapes.setdefault((row["n"], row["K"], row["dtype"]), {})[row["provider"]] = row
    head = ["n x K", "dtype", *_PROVIDERS.values(), "GenCE's extra memory"]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for (n, K, dtype), rows in shapes.items():
        clock = "both_wall_ms" if n * K < _WALL_BELOW else "both_cold_ms"
        times = [f"{rows[name][clock]['median']:.3g}" if name in rows else "–" for name in _PROVIDERS]
        lines.append("| " + " | ".join([f"{n} x {K}", dtype, *times, f"{rows['GenCE']['extra_mib']:.2g} MiB"]) + " |")
    environment = record["environment"]
    versions = environment.get("versions", environment)
    return "\n".join(lines) + (
        f"\n\nMilliseconds, medians, on {environment['device']} with torch {versions['torch']}; wall time for the two "
        "small shapes, time between events on logits that are not in the cache for the others.\n"
    )
