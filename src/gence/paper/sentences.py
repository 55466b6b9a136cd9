"""What agrees with the paper and what does not, in sentences made from the records by rule."""

from __future__ import annotations

from collections.abc import Sequence

from gence.paper.exhibit import ANCHORED, SIX_LOSSES, Exhibit
from gence.paper.measure import Measured, MeasuredRow

CLOSE = 2.0
"""Standard errors within which a cell agrees with the print."""

_PAPER = tuple(column.name for column in SIX_LOSSES)
_POINTWISE = _PAPER[1:]


def agreement(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> list[str]:
    """Return sentences on some rows of an exhibit: how much is measured, what agrees, what does not.

    They follow from the records by fixed rules: a cell agrees if it lies within two standard errors of its printed
    value; a row is compared once its cells of the paper's columns have two seeds at least.
    """
    if not any(cell.recorded for row in measured for cell in row.cells.values()):
        return ["Nothing of this exhibit is measured yet."]
    if exhibit.name == "ood":
        return _by_setting(exhibit, measured)
    if any(row.row.printed for row in measured):
        return _beside_print(exhibit, measured)
    if exhibit.name == "reliability":
        return _reliability(measured)
    if exhibit.name == "batch_size":
        return _batch_size(measured)
    return _winners(exhibit, measured)


def _beside_print(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> list[str]:
    judged = [
        (one, name, cell, cell.standard_errors)
        for one in measured
        for name, cell in one.cells.items()
        if cell.standard_errors is not None
    ]
    if not judged:
        usable = any(_usable(cell) for one in measured for cell in one.cells.values())
        what = "No cell with two seeds has a printed value" if usable else "No cell has two seeds yet"
        return [f"{what}, so no difference from the print can be judged."]
    close = sum(abs(errors) <= CLOSE for *_, errors in judged if errors is not None)
    sentences = [
        f"{close} of {len(judged)} measured cells lie within {CLOSE:g} standard errors of the printed value"
        + _bold_sentence(exhibit, measured)
        + "."
    ]
    one, name, cell, errors = max(judged, key=lambda found: abs(found[3] or 0.0))
    if errors is not None and abs(errors) > CLOSE and cell.summary is not None and cell.printed is not None:
        title = next(column.title for column in exhibit.columns if column.name == name)
        sentences.append(
            f"Furthest from the print is {title} at {', '.join(one.row.labels)}: ours {cell.summary.mean:.2f}, the "
            f"paper's {cell.printed.mean:.2f} ({errors:+.1f} standard errors)" + _gap_sentence(measured) + "."
        )
    return sentences


def _by_setting(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> list[str]:
    """Sentences for each size and network: the paper names neither, so its values are compared with each."""
    sentences = []
    for setting in dict.fromkeys(one.row.labels[:2] for one in measured):
        rows = [one for one in measured if one.row.labels[:2] == setting]
        if any(cell.recorded for one in rows for cell in one.cells.values()):
            found = _beside_print(exhibit, rows)
            sentences.append(f"If the paper's setting is N = {setting[0]} and {setting[1]}: {' '.join(found)}")
    return sentences


def _bold_sentence(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> str:
    """How often the best of the paper's columns is the one that is printed in bold."""
    rows = [one for one in measured if one.row.bold and _comparable(one)]
    if not rows or exhibit.higher_is_better is None:
        return ""
    same = sum(_best(one, bool(exhibit.higher_is_better)) == one.row.bold for one in rows)
    return f", and the printed best loss is the best of the paper's losses here too in {same} of {len(rows)} rows"


def _gap_sentence(measured: Sequence[MeasuredRow]) -> str:
    pairs = [
        (_mean(one.cells["gence"]) - _mean(one.cells["ce"]), one.row.printed)
        for one in measured
        if one.row.printed and _usable(one.cells.get("gence")) and _usable(one.cells.get("ce"))
    ]
    if not pairs:
        return ""
    ours = sum(gap for gap, _ in pairs) / len(pairs)
    paper = sum(printed["gence"].mean - printed["ce"].mean for _, printed in pairs) / len(pairs)
    rows = "row" if len(pairs) == 1 else "rows"
    where = f"mean over the {len(pairs)} {rows} where both have two seeds"
    return f"; GenCE less CE is {ours:+.2f} here and {paper:+.2f} in print, {where}" + _anchored_sentence(measured)


def _anchored_sentence(measured: Sequence[MeasuredRow]) -> str:
    found = [one.cells for one in measured if one.row.printed and ANCHORED.name in one.cells]
    gaps = [
        _mean(cells[ANCHORED.name]) - _mean(cells["ce"])
        for cells in found
        if _usable(cells[ANCHORED.name]) and _usable(cells["ce"])
    ]
    if not gaps:
        return ""
    rows = "row" if len(gaps) == 1 else "rows"
    mean = sum(gaps) / len(gaps)
    return f"; with an anchor of 0.1, which the paper does not have, {mean:+.2f} over {len(gaps)} {rows}"


def _winners(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> list[str]:
    """The best loss of each row whose cells have two seeds at least, for exhibits the paper does not have."""
    titles = {column.name: column.title for column in exhibit.columns}
    found = []
    for one in measured:
        means = {name: _mean(cell) for name, cell in one.cells.items() if _usable(cell)}
        if len(means) == len(one.cells):
            order = sorted(means, key=lambda name: means[name], reverse=bool(exhibit.higher_is_better))
            found.append(
                f"At {', '.join(one.row.labels)} the best is {titles[order[0]]} ({means[order[0]]:.2f}), then "
                f"{titles[order[1]]} ({means[order[1]]:.2f})."
            )
    return found or ["No row is complete yet."]


def _reliability(measured: Sequence[MeasuredRow]) -> list[str]:
    pointwise = [_mean(one.cells[name]) for one in measured for name in _POINTWISE if _usable(one.cells[name])]
    gence = [_mean(one.cells["gence"]) for one in measured if _usable(one.cells["gence"])]
    if not pointwise or not gence:
        return ["No loss has two seeds yet, so the figure's claim cannot be judged."]
    over = sum(value > 0 for value in pointwise)
    return [
        f"The pointwise losses are over-confident where they are confident in {over} of {len(pointwise)} cells, by "
        f"{sum(pointwise) / len(pointwise):+.2f} points on average; GenCE by {sum(gence) / len(gence):+.2f} points "
        f"over {len(gence)} cell{'s' * (len(gence) > 1)}, where the paper claims it lies on the diagonal."
    ]


def _batch_size(measured: Sequence[MeasuredRow]) -> list[str]:
    sentences = []
    for network in dict.fromkeys(one.row.labels[0] for one in measured):
        rows = [one for one in measured if one.row.labels[0] == network]
        if not all(_usable(one.cells[name]) for one in rows for name in ("gence", "ce")):
            continue
        parts = []
        for name, title in (("gence", "GenCE"), ("ce", "CE")):
            means = {one.row.labels[1]: _mean(one.cells[name]) for one in rows}
            best = max(means, key=lambda size: means[size])
            parts.append(
                f"{title} is best at B = {best} and {means[best] - min(means.values()):.2f} points worse at worst"
            )
        sentences.append(f"{network}: {'; '.join(parts)}. The paper sees the same profile for both.")
    return sentences or ["No network has GenCE and CE at all four batch sizes yet."]


def _usable(cell: Measured | None) -> bool:
    return cell is not None and cell.summary is not None and cell.summary.n >= 2


def _mean(cell: Measured) -> float:
    if cell.summary is None:
        raise ValueError("cell: it has no number; ask _usable first")
    return cell.summary.mean


def _comparable(one: MeasuredRow) -> bool:
    return all(_usable(one.cells[name]) for name in one.row.printed)


def _best(one: MeasuredRow, higher: bool) -> str:
    means = {name: _mean(one.cells[name]) for name in one.row.printed}
    return (max if higher else min)(means, key=lambda name: means[name])
