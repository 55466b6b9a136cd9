"""The figures of a report, drawn once with matplotlib; files and page show the same drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gence.report import joint_figures, loss_figures
from gence.report.aggregate import Setting, ood_sets
from gence.report.gathered import Gathered
from gence.report.names import marks_for
from gence.report.panel import Panel, Subject
from gence.report.quantities import MAIN, auroc_of
from gence.report.svg import figure_style
from gence.report.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


def panels(
    setting: Setting, gathered: Gathered, verdict: Verdict, whole: pd.DataFrame, classes: Sequence[str] = ()
) -> list[Panel]:
    """Draw everything a setting has data for.

    Args:
        setting: the setting.
        gathered: its records.
        verdict: what was found about it.
        whole: the rows of all settings, for figures against number of labels and batch size.
        classes: names of the classes, where they are known.
    """
    import matplotlib

    subject = Subject(setting=setting, gathered=gathered, marks=marks_for(gathered.losses), classes=classes)
    # Ticks and texts take their style when they are made, so the whole drawing happens inside.
    with matplotlib.rc_context(figure_style()):
        return list(_all_panels(subject, verdict, whole))


def _all_panels(subject: Subject, verdict: Verdict, whole: pd.DataFrame) -> Iterator[Panel]:
    for quantity in MAIN:
        yield from joint_figures.dots(subject, quantity, "numbers")
    for found in verdict.metrics:
        yield from joint_figures.differences(subject, found)
    yield from loss_figures.reliability(subject)
    yield from joint_figures.against(subject, whole, "subset.n", "labels", "Number of labels")
    yield from joint_figures.against(subject, whole, "recipe.batch_size", "batch", "Batch size")
    for number, ood in enumerate(ood_sets(subject.setting.frame), 1):
        yield from joint_figures.dots(subject, auroc_of(ood), "ood", f"auroc-{number}")
        yield from loss_figures.ood_histograms(subject, ood, number)
    yield from joint_figures.curves(subject, "train_accuracy", "Training accuracy, %", "learning", scale=100)
    yield from joint_figures.curves(subject, "train_loss", "Training loss (own unit of each)", "learning", log=True)
    yield from joint_figures.curves(subject, "marginal_kl", "KL(prior ‖ marginal), nats", "drift", log=True)
    yield from loss_figures.marginal(subject)
    yield from loss_figures.confusion(subject)
