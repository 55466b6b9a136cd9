"""What is written by hand beside an exhibit is so in the repository's records, number by number."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

import gence
from gence.lab.store.store import Store
from gence.losses.drift.monitor import REMEDY
from gence.paper.exhibit import ANCHORED, OFFSET, SIX_LOSSES, Exhibit
from gence.paper.exhibit_registry import Asked, Entry, entries, load_exhibit, shown
from gence.paper.exhibits.offset_calibration import OVER, means
from gence.paper.exhibits.reliability import reliability
from gence.paper.records import MeasuredRow, Reader, checkout, default_results, measure
from gence.paper.studies.evidence import Evidence, against, compare_lines, mean_ranks, read_courses
from gence.paper.studies.larger_batches import SIZES, column_name, larger_batches
from gence.paper.studies.remedies import (
    BATCH_SIZES,
    CE,
    PLAIN,
    PRIORS,
    START,
    STRENGTHS,
    RemediesRecords,
    anchor_column,
    read_remedies,
    remedies,
)
from gence.paper.studies.tuned import tuned

RECORDS = Store(default_results())
ANCHORS = [anchor_column(strength, prior) for prior in PRIORS for strength in STRENGTHS]
SCALE_END = anchor_column(1.0, "batch")
"""It has cross-entropy's gradient: the other end of the scale and no remedy."""


def mean(one: MeasuredRow, name: str) -> float:
    summary = one.cells[name].summary
    assert summary is not None
    return summary.mean


def usable(one: MeasuredRow, name: str) -> bool:
    summary = one.cells[name].summary
    return summary is not None and summary.n > 1


def beside_print(exhibit: Exhibit) -> tuple[int, int, int, list[MeasuredRow]]:
    """Cells within two standard errors, cells with a print, rows whose best is the printed one, and these rows."""
    rows = [one for one in measure(exhibit, RECORDS) if one.row.printed]
    errors = [cell.standard_errors for one in rows for cell in one.cells.values() if cell.standard_errors is not None]
    whole = [one for one in rows if all(usable(one, name) for name in one.row.printed)]
    best = max if exhibit.higher_is_better else min
    same = sum(best(one.row.printed, key=lambda name, one=one: mean(one, name)) == one.row.bold for one in whole)
    return sum(abs(error) <= 2 for error in errors), len(errors), same, whole


def gaps(rows: Sequence[MeasuredRow], ours: str = "gence") -> tuple[float, float]:
    """A loss minus cross-entropy here, and GenCE minus cross-entropy in print, means over the rows that have both."""
    both = [one for one in rows if usable(one, ours) and usable(one, "ce")]
    return (
        statistics.fmean(mean(one, ours) - mean(one, "ce") for one in both),
        statistics.fmean(one.row.printed["gence"].mean - one.row.printed["ce"].mean for one in both),
    )


def table1(text: str) -> None:
    close, cells, same, rows = beside_print(load_exhibit("table1"))
    assert text.startswith(f"{close} of the {cells} cells that have a printed value lie within two standard errors")
    assert f"six here too in {same} of {len(rows)} rows." in text
    plain, printed = gaps(rows)
    assert f"GenCE is {-plain:.1f} points behind cross-entropy, where the paper prints it {printed:.1f} ahead" in text
    assert f"it is {gaps(rows, 'anchored')[0]:.1f} ahead." in text
    for K, share in ((10, "a fifth with 10 classes"), (100, "a fiftieth with 100")):
        begin, labels = torch.zeros(4, K, dtype=torch.float64, requires_grad=True), torch.arange(4)
        (reference,) = torch.autograd.grad(gence.cross_entropy(begin, labels), begin)
        for loss in (gence.mae_loss, gence.brier_loss):
            (found,) = torch.autograd.grad(loss(begin, labels), begin)
            torch.testing.assert_close(found, 2 / K * reference)
        assert share in text
    best = {one.row.labels[0]: one for one in measure(tuned(RECORDS), RECORDS)}
    for name, shares in (("brier", "69.9 % on CIFAR-10 and 22.1 % on CIFAR-100"), ("mae", "44.9 and 5.4 %")):
        here = [f"{mean(best[data], name):.1f}" for data in ("CIFAR-10", "CIFAR-100")]
        assert re.findall(r"\d+\.\d", shares) == here
        assert shares in text


def offset_calibration(text: str) -> None:
    found, counts = means(Asked(RECORDS))
    assert counts == {"VGG-19": 4, "ResNet-50": 2}
    ours, reference = found["VGG-19", "gence"], found["VGG-19", "ce"]
    for unit, name, scale, digits in ((" %", "ece", 100, 1), ("", "nll", 1, 2)):
        raw, after, other, mended = (
            f"{scale * values[prefix + name]:.{digits}f}" for values in (ours, reference) for prefix in ("", "offset/")
        )
        between = "against" if name == "nll" else "after the offset, that of cross-entropy"
        first = f"{raw} and {after}" if name == "nll" else f"{raw}{unit} raw and {after}{unit}"
        assert f"{first} {between} {other} and {mended}{unit}" in text
    deep, usual = found["ResNet-50", "gence"], found["ResNet-50", "ce"]
    behind = 100 * (usual["offset/accuracy"] - deep["offset/accuracy"])
    assert f"{100 * deep['offset/ece']:.1f} against {100 * usual['offset/ece']:.1f} % after the offset" in text
    assert f"{behind:.1f} points less accurate" in text
    assert all(values[OVER] > 0.98 * values["ece"] for values in (ours, reference, deep, usual))  # "nearly everything"


def ece(text: str) -> None:
    close, cells, same, rows = beside_print(load_exhibit("ece"))
    assert text.startswith(f"{close} of the {cells} cells")
    assert (same, len(rows)) == (0, 2)
    assert "in neither row" in text
    plain, printed = gaps(rows)
    assert f"{-plain:.1f} points below that of cross-entropy, in print {-printed:.1f};" in text
    assert f"it is {gaps(rows, 'anchored')[0]:.1f} above." in text


def ood(text: str) -> None:
    close, cells, _, rows = beside_print(load_exhibit("ood"))
    assert (close, cells) == (0, 72)
    by_setting: dict[tuple[str, ...], list[MeasuredRow]] = {}
    for one in rows:
        by_setting.setdefault(one.row.labels[:2], []).append(one)
    assert "None of the 72 cells" in text
    assert "whichever of the three measured" in text
    assert len(by_setting) == 3
    plain = {setting: gaps(of)[0] for setting, of in by_setting.items()}
    assert f"The paper prints GenCE {gaps(rows)[1]:.1f} points ahead" in text
    assert f"Here it is {-plain.pop(('2000', 'ResNet-50')):.1f} points behind with ResNet-50 and level with VGG" in text
    assert all(abs(gap) < 0.2 for gap in plain.values())
    anchored = sorted(gaps(of, "anchored")[0] for of in by_setting.values())
    assert f"it is {anchored[0]:.1f} to {anchored[-1]:.1f} points ahead." in text


def reliability_(text: str) -> None:
    rows = measure(reliability(), RECORDS)
    pointwise = [mean(one, loss.name) for one in rows for loss in SIX_LOSSES[1:] if usable(one, loss.name)]
    gence = [mean(one, "gence") for one in rows if usable(one, "gence")]
    over = sum(value > 0 for value in pointwise)
    assert f"over-confident in {over} of {len(pointwise)} cells, by {statistics.fmean(pointwise):.0f} points" in text
    assert f"So is GenCE, by {statistics.fmean(gence):.0f} points over {len(gence)} cells" in text


def smoothing(text: str) -> None:
    close, cells, _, _ = beside_print(load_exhibit("smoothing"))
    assert text.startswith(f"{close} of the {cells} cells that have a printed value lies within")
    rows = measure(load_exhibit("smoothing"), RECORDS)
    plain, printed = gaps(rows)
    assert f"GenCE is {-plain:.1f} points behind cross-entropy, where the paper prints it {printed:.1f} ahead" in text
    assert f"it is {gaps(rows, 'anchored')[0]:.1f} ahead." in text


def epoch_time(text: str) -> None:
    assert "differ by less than 0.2 %, which is within the spread of cross-entropy's own epochs" in text
    for network in json.loads((RECORDS.root / "epoch_time.json").read_text())["rows"]:
        gence, ce = (network["seconds"][loss] for loss in ("gence", "ce"))
        apart = abs(statistics.median(gence) - statistics.median(ce))
        low, _, high = statistics.quantiles(ce, n=4)
        assert apart < 0.002 * statistics.median(ce)
        assert apart < high - low


def two_best(row: MeasuredRow, higher: bool) -> tuple[list[str], float]:
    order = sorted(row.cells, key=lambda name: mean(row, name), reverse=higher)
    return order[:2], abs(mean(row, order[0]) - mean(row, order[1]))


def tuned_(text: str) -> None:
    small, large = (two_best(one, True) for one in measure(tuned(RECORDS), RECORDS))
    assert small == (["gence(anchor=tune)", "ce"], pytest.approx(0.5, abs=0.05))
    assert large == (["generalized_ce", "gence"], pytest.approx(2, abs=0.3))
    assert "half a point ahead of cross-entropy" in text
    assert "two points ahead of plain GenCE" in text


def tuned_ece(text: str) -> None:
    small, large = (two_best(one, False) for one in measure(tuned(RECORDS, metric="ece"), RECORDS))
    assert small[0] == ["focal", "ce"]
    assert (large[0], large[1] > 10) == (["brier", "generalized_ce"], True)
    assert "On CIFAR-10 focal is the best calibrated" in text


def tuned_ood(text: str) -> None:
    found = [two_best(one, True) for one in measure(tuned(RECORDS, metric="auroc"), RECORDS)]
    assert len(found) == 4
    assert all(order == ["gence(anchor=tune)", "ce"] and apart < 1.3 for order, apart in found)
    assert "within 1.3 points" in text


@pytest.fixture(scope="module")
def recorded() -> RemediesRecords:
    return read_remedies(Asked(RECORDS))


def collapsed(exhibit: Exhibit, names: Iterable[str]) -> tuple[int, int]:
    """How many networks are below half the accuracy that the offset makes of them or fit no offset, and of how many."""
    reader, names = Reader(RECORDS), list(names)
    columns = tuple(dataclasses.replace(column, prefix=OFFSET.prefix) for column in exhibit.columns)
    after = measure(dataclasses.replace(exhibit, columns=columns), reader)
    pairs = [
        (number, repaired.cells[name].by_seed.get(seed))
        for plain, repaired in zip(measure(exhibit, reader), after, strict=True)
        for name in names
        for seed, number in plain.cells[name].by_seed.items()
    ]
    return sum(offset is None or number < offset / 2 for number, offset in pairs), len(pairs)


def remedies_(text: str) -> None:
    found = read_remedies(Asked(RECORDS))
    names = [column.name for column in found.exhibit.columns]
    anchored, larger = [name for name in ANCHORS if name != SCALE_END] + ["annealed"], ["batch-200", "batch-400"]
    counts = [collapsed(found.exhibit, of) for of in ([PLAIN], larger, ["no-bias"], anchored, [CE])]
    assert counts == [(4, 24), (16, 48), (1, 24), (0, 240), (0, 24)]
    assert (
        "4 of 24 networks with plain GenCE, 16 of 48 in larger batches, 1 of 24 without a bias, none of 240 with an "
        "anchor and none of 24 with cross-entropy."
    ) in text
    to_plain = against(found.accuracy, PLAIN, names)
    helped = {name: one for name, one in to_plain.items() if one.verdict > 0 and name != CE}
    harmed = {name: one for name, one in to_plain.items() if one.verdict < 0}
    assert set(helped) == {*ANCHORS, "annealed", "offset", "no-bias"}
    assert set(harmed) == set(larger)
    gains, losses = (sorted(abs(one.mean) for one in of.values()) for of in (helped, harmed))
    assert f"than plain GenCE, by {gains[0]:.1f} to {gains[-1]:.1f} points, are every anchor, the offset and" in text
    assert f"less accurate, by {losses[0]:.1f} and {losses[-1]:.1f} points, are larger batches." in text
    assert f"Cross-entropy is {to_plain[CE].mean:.1f} points ahead of plain GenCE." in text
    ranks = mean_ranks(found.accuracy)
    assert min((name for name in names if name != SCALE_END), key=lambda name: ranks[name]) == "train-anchor-0.03"
    assert f"has the best mean rank, {ranks['train-anchor-0.03']:.1f} of 17 (plain GenCE {ranks[PLAIN]:.1f}, " in text
    assert f"cross-entropy {ranks[CE]:.1f})" in text
    to_ce = against(found.accuracy, CE, [START])[START]
    assert to_ce.verdict > 0
    assert f"{to_plain[START].mean:.1f} points ahead of plain GenCE and {to_ce.mean:.1f} ahead of cross-ent" in text
    errors, drift = (
        {
            name: statistics.fmean(n for one in of for n in one.cells[name].by_seed.values())
            for name in (START, PLAIN, CE)
        }
        for of in (found.ece, found.drift)
    )
    assert (
        f"is {errors[START]:.1f} % on average (plain GenCE {errors[PLAIN]:.1f} %, cross-entropy {errors[CE]:.1f} %), "
        f"its drift {drift[START]:.3f} nats ({drift[PLAIN]:.3f} and {drift[CE]:.3f})."
    ) in text


def test_what_is_recommended_is_not_significantly_different_from_the_best(recorded) -> None:
    assert recorded.complete_rows() == recorded.accuracy
    ranks = mean_ranks(recorded.accuracy)
    names = [column.name for column in recorded.exhibit.columns if column.name not in (CE, PLAIN, SCALE_END)]
    best = min(names, key=lambda name: ranks[name])
    assert against(recorded.accuracy, best, names)[START].verdict == 0
    (start,) = (column for column in remedies().columns if column.name == START)
    assert start.loss == ANCHORED.loss
    assert "anchor=0.1" in REMEDY
    assert "we recommend 0.1." in " ".join((checkout() / "README.md").read_text().split())


def remedies_course(text: str) -> None:
    settings = read_courses(remedies(), RECORDS)
    courses = {name: [one for of in settings for one in of.by_column[name]] for name in (PLAIN, START, "annealed", CE)}
    assert {len(found) for found in courses.values()} == {24}
    out = {name: [one for one in found if one.epochs_out] for name, found in courses.items()}
    first = {name: max((one.epochs_out[0] for one in found), default=0) for name, found in out.items()}
    lasting = {name: statistics.median([len(one.epochs_out) for one in found] or [0]) for name, found in out.items()}
    at_end = {name: sum(one.out_at_end for one in found) for name, found in courses.items()}
    assert (len(out[CE]), at_end[START], at_end["annealed"]) == (0, 0, 0)
    assert (
        f"drifts in {len(out[PLAIN])} of 24 runs, in each of them by epoch {first[PLAIN]}, and has not come back at "
        f"the end in {at_end[PLAIN]}. With an anchor of 0.1 to the batch's labels it drifts in {len(out[START])} runs, "
        f"by epoch {first[START]}, and is back after {lasting[START]:g} epochs (median); with an anchor rising to 0.1 "
        f"it drifts in {len(out['annealed'])}, and is back after {lasting['annealed']:g}. With cross-entropy it "
        "drifts in none."
    ) in text


def in_words(numbers: Iterable[object]) -> str:
    first, second, third = numbers
    return f"{first}, {second} and {third}"


def larger(text: str) -> None:
    settings, exhibit = read_courses(larger_batches(), RECORDS), larger_batches()
    found = {
        kind: [[one for of in settings for one in of.by_column[column_name(kind, size)]] for size in SIZES]
        for kind in ("plain", "anchored")
    }
    assert {len(runs) for of in found.values() for runs in of} == {24}
    ever = {kind: [sum(bool(one.epochs_out) for one in runs) for runs in of] for kind, of in found.items()}
    at_end = {kind: [sum(one.out_at_end for one in runs) for runs in of] for kind, of in found.items()}
    fell = {kind: [collapsed(exhibit, [column_name(kind, size)])[0] for size in SIZES] for kind in found}
    assert f"drifts with plain GenCE in {in_words(ever['plain'])} of 24 runs" in text
    assert f"the end in {in_words(at_end['plain'])}; {in_words(fell['plain'])} of these networks collapse" in text
    assert f"With the anchor it drifts in {in_words(ever['anchored'])} runs, is back in all of them" in text
    assert at_end["anchored"] == fell["anchored"] == [0, 0, 0]
    to_plain = [(column_name("anchored", size), column_name("plain", size)) for size in SIZES]
    to_smallest = [(column_name("anchored", size), column_name("anchored", SIZES[0])) for size in BATCH_SIZES]
    compared: dict[tuple[str, str], Evidence] = compare_lines(measure(exhibit, RECORDS), [*to_plain, *to_smallest])
    gains, costs = [compared[pair].mean for pair in to_plain], [-compared[pair].mean for pair in to_smallest]
    assert (
        f"gains {gains[0]:.1f} points in batches of 100, {gains[1]:.1f} in batches of 200 and {gains[2]:.1f} in "
        f"batches of 400. With it, batches of 200 are {costs[0]:.1f} and batches of 400 are {costs[1]:.1f} points less"
    ) in text
    assert [one.verdict for one in compared.values()] == [1, 1, 1, -1, -1]


CHECKS: dict[str, Callable[[str], None]] = {
    "table1": table1,
    "offset_calibration": offset_calibration,
    "ece": ece,
    "ood": ood,
    "reliability": reliability_,
    "smoothing": smoothing,
    "epoch_time": epoch_time,
    "tuned": tuned_,
    "tuned_ece": tuned_ece,
    "tuned_ood": tuned_ood,
    "remedies": remedies_,
    "remedies_course": remedies_course,
    "larger_batches": larger,
}


OF_CELLS = ("unlabelled", "end_to_end", "after_calibration")  # test_transfer_sentences.py has theirs
OF_THE_RECIPE = ("both_networks", "closest_recipe")  # and test_both_networks.py these
FOUND = [one for one in entries().values() if one.findings and one.name not in OF_CELLS + OF_THE_RECIPE]


@pytest.mark.parametrize("entry", FOUND, ids=lambda one: one.name)
def test_the_findings_are_what_the_records_say(entry: Entry) -> None:
    CHECKS[entry.name](" ".join(entry.findings))


def test_findings_are_said_of_the_repository_s_records_alone(tmp_path) -> None:
    findings = entries()["table1"].findings
    assert shown("table1", RECORDS)[1][: len(findings)] == list(findings)
    copy = Store(tmp_path / "copy")
    copy.merge(RECORDS)
    narrowed = (shown("table1", RECORDS, rows=["cifar10-*"]), shown("table1", RECORDS, seeds=3), shown("table1", copy))
    for _, notes in narrowed:
        assert notes
        assert all(note.startswith("Assumed: ") for note in notes)
