"""What the documentation says in words about a small study is so in the study's record."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / "results" / "bench"


def accuracies(name: str) -> dict[str, dict[str, list[float]]]:
    """Row -> column -> one accuracy a seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in json.loads((BENCH / f"{name}.json").read_text())["rows"]:
        found.setdefault(cell["row"], {})[cell["column"]] = cell["accuracies"]
    return found


def test_a_running_marginal_repairs_most_and_is_nowhere_better_than_cross_entropy() -> None:
    rows = accuracies("tiny-batches")
    assert len(rows) == 4
    for name, row in rows.items():
        mean = {column: statistics.fmean(seeds) for column, seeds in row.items()}
        for running in ("running 0.9", "running 0.99"):
            assert mean[running] - mean["CE"] < statistics.stdev(row["CE"]), (name, running)
            assert mean[running] - mean["GenCE"] > 0.5 * (mean["CE"] - mean["GenCE"]), (name, running)
    large = rows["clusters, 200"]
    means = [statistics.fmean(seeds) for seeds in large.values()]
    assert max(means) - min(means) < statistics.stdev(large["CE"])  # no difference where the batch is large enough


def test_unlabelled_images_do_not_help_and_do_harm_without_an_anchor() -> None:
    rows = {name: row["accuracy"] for name, row in accuracies("unlabelled").items()}
    without, spread = statistics.fmean(rows["GenCE"]), statistics.stdev(rows["GenCE"])
    means = {name: statistics.fmean(seeds) for name, seeds in rows.items()}
    assert all(mean < without + spread for mean in means.values())
    assert means["GenCE, context"] < means["GenCE, anchor 0.1, context"] < without - spread
    remedies = ("GenCE, context detached", "GenCE, anchor 1, context", "GenCE, anchor 2, context")
    assert all(abs(means[name] - without) < spread for name in remedies)


def test_offsets_bring_the_accuracy_of_drifted_networks_back() -> None:
    plain, repaired, anchored = accuracies("drift").values()
    for batch in ("batch 25", "batch 50"):
        assert max(plain[batch]) < 0.2  # a tenth of the digits: one class
        assert min(repaired[batch]) > 0.85
    for batch in ("batch 100", "batch 300"):  # smaller batches drift, larger ones less or not
        assert min(plain[batch]) > 0.7
    assert min(anchored["batch 50"]) > 0.85
    assert max(anchored["batch 25"]) < min(repaired["batch 25"])


def test_what_ranks_send_beyond_the_all_reduce_grows_with_their_number_alone() -> None:
    rows: list[dict[str, Any]] = json.loads((BENCH / "collective.json").read_text())["rows"]
    beyond = {ranks: [row["beyond_it"] for row in rows if row["ranks"] == ranks] for ranks in (2, 3)}
    for counts in beyond.values():
        assert len(counts) == 4
        assert max(counts) - min(counts) < 100
    assert min(beyond[3]) > max(beyond[2])


def test_a_small_network_from_scratch_is_at_least_level_with_what_one_tries_first() -> None:
    rows = accuracies("defaults")
    assert {name.partition(",")[0] for name in rows} == {"sign digits", "CIFAR-10"}
    for name, row in rows.items():
        mean = {column: statistics.fmean(seeds) for column, seeds in row.items()}
        others = {"logistic regression", "RBF SVM", "plain network"}
        assert mean["compare: CE"] >= max(mean[other] for other in others), name
