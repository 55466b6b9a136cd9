"""The figures of a report, drawn once with matplotlib; files and page show the same drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gence.lab.report.figures import all_losses, per_loss
from gence.lab.report.figures.svg import Panel, Subject, figure_style
from gence.lab.report.frame import Predictions, Setting, SettingRecords, ood_sets
from gence.lab.report.style import MAIN, auroc_of, marks_for
from gence.lab.report.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


def panels(
    setting: Setting,
    gathered: SettingRecords,
    verdict: Verdict,
    whole: pd.DataFrame,
    classes: Sequence[str] = (),
    predictions: Predictions | None = None,
) -> list[Panel]:
    """Draw everything a setting has data for.

    Args:
        setting: the setting.
        gathered: its records.
        verdict: what was found about it.
        whole: the rows of all settings, for figures against number of labels and batch size.
        classes: names of the classes, where they are known.
        predictions: what the runs predicted, as far as it is kept.
    """
    import matplotlib

    subject = Subject(setting=setting, gathered=gathered, marks=marks_for(gathered.losses), classes=classes)
    # Ticks and texts take their style when they are made, so the whole drawing happens inside.
    with matplotlib.rc_context(figure_style()):
        return list(_all_panels(subject, verdict, whole, predictions or {}))


def _all_panels(subject: Subject, verdict: Verdict, whole: pd.DataFrame, predictions: Predictions) -> Iterator[Panel]:
    yield from all_losses.against(subject, whole, "subset.n", "labels", "Number of labels")
    for quantity in MAIN:
        yield from all_losses.dots(subject, quantity, "numbers")
    for found in verdict.metrics:
        yield from all_losses.differences(subject, found)
    yield from per_loss.reliability(subject)
    yield from all_losses.risk_coverage(subject, predictions)
    yield from all_losses.against(subject, whole, "recipe.batch_size", "batch", "Batch size")
    for number, ood in enumerate(ood_sets(subject.setting.frame), 1):
        yield from all_losses.dots(subject, auroc_of(ood), "ood", f"auroc-{number}")
        yield from per_loss.ood_histograms(subject, ood, number)
    yield from all_losses.curves(subject, "test_accuracy", "Test accuracy, %", "learning", scale=100)
    yield from all_losses.curves(subject, "train_accuracy", "Training accuracy, %", "learning", scale=100)
    yield from all_losses.curves(subject, "train_loss", "Training loss (own unit of each)", "learning", log=True)
    yield from all_losses.curves(subject, "marginal_kl", "KL(prior ‖ marginal), nats", "drift", log=True)
    yield from per_loss.marginal(subject)
    yield from per_loss.confusion(subject)
