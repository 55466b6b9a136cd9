"""The search on both networks, and what is said of the recipe it found, held to the records."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from gence.lab.spec import RECIPES, SpecError
from gence.lab.store import RunResult, Store
from gence.paper.exhibit_registry import entries, grid_specs, load_exhibit, shown
from gence.paper.records import Reader, default_results
from gence.paper.studies.open_choices import (
    BOTH,
    BOTH_CANDIDATES,
    CANDIDATES,
    CLOSEST_SEEDS,
    Candidate,
    _closest_exhibit,
    closest_on_both,
    judge_both,
)

ROWS = [load_exhibit("table1").selected([name])[0] for name in BOTH]


def record(store: Store, candidate: Candidate, off: float, rows=ROWS) -> None:
    """Write cross-entropy under a candidate, so many percentage points above the printed values."""
    for row in rows:
        spec = candidate.placed(row).base.replace(loss="ce", seed=0)
        store.write(spec, RunResult(metrics={"accuracy": (row.printed["ce"].mean + off) / 100}))


def test_runs_differ_in_what_the_candidates_differ_in(writer) -> None:
    specs = grid_specs(["both_networks"], writer.store)
    narrow, wide, deep = ([s for s in specs if s.model == name] for name in ("vgg19", "vgg19_wide", "resnet50"))
    assert (len(narrow), len(wide), len(deep), len(specs)) == (16, 16, 16, 48)
    assert {str(spec.loss) for spec in specs} == {"ce"}
    assert {spec.recipe.replace(nesterov=False) for spec in specs} == {
        recipe for recipe in CANDIDATES.values() if recipe.warmup_epochs
    }
    assert RECIPES["paper"] in {spec.recipe for spec in specs}
    for more in ({"losses": ["gence"]}, {"seeds": 2}, {"recipe": "modern"}):
        with pytest.raises(SpecError, match="both_networks runs cross-entropy alone, with one seed"):
            grid_specs(["both_networks"], writer.store, **more)
    with pytest.raises(ValueError, match="rows: mini-imagenet-2000-vgg19 matches no cell of the search"):
        grid_specs(["both_networks"], writer.store, rows=["mini-imagenet-2000-vgg19"])


def test_the_closest_is_chosen_when_every_candidate_has_every_cell(writer) -> None:
    store = writer.store
    with pytest.raises(SpecError, match="first gence run both_networks"):
        grid_specs(["closest_recipe"], store)
    for place, one in enumerate(BOTH_CANDIDATES):
        assert closest_on_both(store) is None
        assert "Next: gence run both_networks" in shown("both_networks", store)[1][0]
        if one.vgg == "vgg19":  # the ResNet-50 of the next one too
            record(store, one, 0.5 if place == 2 else 3.0 + place, ROWS[2:])
        record(store, one, 0.5 if place == 3 else 3.0 + place, ROWS[:2])
    found = closest_on_both(store)
    assert found == BOTH_CANDIDATES[3]
    assert found.vgg == "vgg19_wide"
    assert judge_both(store)[0][2] == pytest.approx(0.5)
    table, (said,) = shown("both_networks", store)
    assert f"{found.name} (distance 0.50; the recipe of Table 1 is at 3.00)" in said
    assert f"| **{found.name}** |" in table.markdown()
    runs = grid_specs(["closest_recipe"], store)
    assert {spec.recipe for spec in runs} == {found.recipe}
    assert len(runs) == 6 * 3 * CLOSEST_SEEDS  # two cells of ResNet-50, two of VGG-19 with either head; three losses
    assert {spec.model for spec in runs} == {"resnet50", "vgg19", "vgg19_wide"}


def said(name: str) -> str:
    return " ".join(entries()[name].findings)


Mean = Callable[..., float]


@pytest.fixture(scope="module")
def mean() -> Mean:
    """Mean accuracy in per cent over the seeds: row, column -> number."""
    store = Store(default_results())
    exhibit, reader = _closest_exhibit(store), Reader(store)
    by_name = {row.name: row for row in exhibit.rows}
    columns = {column.name: column for column in exhibit.columns}

    def of(row: str, column: str) -> float:
        made = columns[column]
        found = [one for spec in by_name[row].specs(made, CLOSEST_SEEDS) if (one := reader.record(spec))]
        assert len(found) == CLOSEST_SEEDS
        return 100 * statistics.fmean(one.result.metrics[f"{made.prefix}accuracy"] for one in found)

    return of


def test_what_is_said_of_the_search() -> None:
    apart = {one.name: cells for one, cells, _ in judge_both(Store(default_results()))}
    text, vgg, resnet = said("both_networks"), slice(2), slice(2, 4)

    def distance(name: str, cells: slice) -> float:
        off = [cell[0] - row.printed["ce"].mean for cell, row in zip(apart[name], ROWS, strict=True)][cells]
        return statistics.fmean(value**2 for value in off) ** 0.5

    late, mixed = "not mixed, warm-up 5", "half mixed, warm-up 5"
    assert (
        f"bring ResNet-50 from {distance('not mixed, warm-up 1', resnet):.1f} points away to "
        f"{distance(late, resnet):.1f}, and mixing half of the batches besides to {distance(mixed, resnet):.1f};"
    ) in text
    assert f"with Nesterov's momentum it is then {distance(f'{mixed}, Nesterov', resnet):.1f} away again" in text
    wide = distance(f"{mixed}, wide layers", vgg)
    assert f"The wide layers bring VGG-19 from {distance(mixed, vgg):.1f} to {wide:.1f}." in text
    assert len(apart) == 16
    assert "Sixteen candidates on one seed" in text


def test_the_largest_gap_is_there_with_one_linear_layer(mean: Mean) -> None:
    name, text = "cifar100-2000-vgg19", said("closest_recipe")
    printed = {row.name: row.printed["gence"].mean - row.printed["ce"].mean for row in load_exhibit("table1").rows}
    assert max(printed, key=printed.__getitem__) == name
    theirs = ROWS[0].printed
    assert (
        f"reaches {mean(f'{name}-linear', 'gence'):.1f} % with GenCE and {mean(f'{name}-linear', 'ce'):.1f} % with "
        f"cross-entropy (printed {theirs['gence'].mean:.1f} and {theirs['ce'].mean:.1f}). With the wide layers it is "
        f"gone: {mean(name, 'gence'):.1f} and {mean(name, 'ce'):.1f} %."
    ) in text


def test_cross_entropy_does_not_tell_the_heads_apart(mean: Mean) -> None:
    shown_rows = {"wide": BOTH, "linear": (*(f"{name}-linear" for name in BOTH[:2]), *BOTH[2:])}
    wide, linear = (
        statistics.fmean(
            (mean(name, "ce") - row.printed["ce"].mean) ** 2 for name, row in zip(names, ROWS, strict=True)
        )
        ** 0.5
        for names in shown_rows.values()
    )
    assert f"is {wide:.2f} points with the wide layers and {linear:.2f} with one linear layer." in said(
        "closest_recipe"
    )


def test_resnet_needs_the_anchor_or_the_offset(mean: Mean) -> None:
    small, large, text = "cifar10-2000-resnet50", "cifar100-2000-resnet50", said("closest_recipe")
    assert mean(small, "gence") == pytest.approx(10, abs=0.05)
    printed = ROWS[3].printed["gence"].mean - ROWS[3].printed["ce"].mean
    assert (
        f"the offset makes {mean(small, 'offset'):.1f} % of the same networks, "
        f"{mean(small, 'offset') - mean(small, 'ce'):.1f} points above cross-entropy (printed gap: {printed:.1f})"
    ) in text
    up, down = (mean(name, "anchored") - mean(name, "ce") for name in (large, small))
    assert f"is {up:.1f} points above cross-entropy on CIFAR-100 and {-down:.1f} below it on CIFAR-10." in text
