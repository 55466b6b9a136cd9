"""The recorded counts of the attack: enough of each harness, nothing found, and what repeats them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adversarial.__main__ import HARNESSES, keep, what_is_tried
from tests.adversarial.attack import Summary

RECORDED = Path(__file__).parents[2] / "results" / "attack.json"
LEAST = {"kernels": 1500, "parts": 2000, "metrics": 2000, "kills": 40, "steps": 100, "tables": 400, "signals": 500}


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict]:
    return json.loads(RECORDED.read_text())


def test_every_harness_is_recorded_without_failures(recorded) -> None:
    assert recorded.keys() == HARNESSES.keys()
    for name, counts in recorded.items():
        assert counts["failures"] == [], name
        assert counts["cases"] == sum(counts["kinds"].values()), name
        assert counts["cases"] >= LEAST.get(name, 40), name
        assert counts["what"] == what_is_tried(name), name
        again = f"python -m tests.adversarial --only {name} --seed {counts['seed']} --cases {counts['cases']}"
        assert counts["command"] == again


def test_the_counts_are_those_that_were_asked_for(recorded) -> None:
    assert recorded["losses"]["cases"] + recorded["kernels"]["cases"] >= 20_000
    assert sum(recorded[name]["cases"] for name in ("archives", "records", "models")) >= 2000
    met = [count for kind, count in recorded["signals"]["kinds"].items() if "ended before" not in kind]
    assert sum(met) >= 500  # signals that a running command met


def test_counts_of_seeds_that_follow_each_other_add_up(tmp_path) -> None:
    out = tmp_path / "counts.json"

    def kept(seed: int, failures: list[tuple[int, str]], **kinds: int) -> dict:
        summary = Summary("tables", failures=failures)
        summary.kinds.update(kinds)
        keep(out, summary, seed, 60.0)
        return json.loads(out.read_text())["tables"]

    kept(10, [], read=2, refused=1)
    both = kept(13, [(14, "broke")], read=4)
    assert both["kinds"] == {"read": 6, "refused": 1}
    assert (both["seed"], both["cases"], both["minutes"]) == (10, 8, 2.0)
    assert both["failures"] == [{"seed": 14, "message": "broke"}]
    assert both["command"] == "python -m tests.adversarial --only tables --seed 10 --cases 8"
    assert kept(13, [], read=1)["cases"] == 1  # in the older one's place: these seeds do not follow its own
