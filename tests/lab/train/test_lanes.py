"""Lanes take turns."""

from __future__ import annotations

from gence.lab.train.run import STEPS_IN_TURN, EagerLane, run_in_turns


def test_lanes_advance_together() -> None:
    order: list[str] = []
    lanes = [EagerLane(lambda name=name: order.append(name)) for name in "ab"]  # type: ignore[misc]
    run_in_turns(lanes, STEPS_IN_TURN + 1)
    assert "".join(order) == "a" * STEPS_IN_TURN + "b" * STEPS_IN_TURN + "ab"
    run_in_turns([], 3)
