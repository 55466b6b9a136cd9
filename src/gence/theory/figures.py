"""Figures of docs/theory.md: each function computes what it draws and returns a matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gence.theory.drift import curvature_while_training, toy_curvature, toy_plateau, toy_profile
from gence.theory.finite_batch import batch_size_table
from gence.theory.minimise import equivalence_family
from gence.theory.populations import proportional_population, random_population
from gence.theory.scores import GenCE, anchor_term, cross_entropy, excess_risk, log_sum_terms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 10
SEEDS = 3  # networks measured
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # distinct under the common colour-vision deficiencies


def _figure(width: float = 6.4, height: float = 3.6) -> Figure:
    from matplotlib.figure import Figure  # no pyplot: nothing global, no display needed

    return Figure(figsize=(width, height), layout="constrained")


def rewards_figure() -> Figure:
    """What GenCE rewards: for forecasts on the way from a guess to the truth, its excess risk as K log-sum terms."""
    population = random_population(5, 3, seed=1)
    guess = torch.full_like(population.kernel, 1 / population.classes)
    shares = torch.linspace(0, 1, 41, dtype=torch.float64)
    terms = torch.stack([log_sum_terms(population, (1 - t) * guess + t * population.kernel) for t in shares])
    figure = _figure()
    axes = figure.subplots()
    labels = [f"class {k + 1}" for k in range(population.classes)]
    axes.stackplot(shares, *terms.T, labels=labels, colors=[BLUE, ORANGE, GREEN], alpha=0.75)
    axes.set(xlabel="share of the truth in the forecast", ylabel="excess risk (nats)", xlim=(0, 1))
    axes.set_title("Each class pays for the shape of its column, not for its scale")
    axes.legend(frameon=False)
    return figure


def family_figure() -> Figure:
    """Why the marginal is free: along an incomplete kernel's family GenCE is flat; CE and the anchor are not."""
    population = proportional_population(5, 3)
    family = equivalence_family(population, members=25)
    shift = [anchor_term(population, p) for p in family]
    order = sorted(range(len(shift)), key=shift.__getitem__)
    figure = _figure()
    axes = figure.subplots()
    curves = (("CE", cross_entropy(), BLUE), ("GenCE", GenCE(), ORANGE), ("anchored 0.1", GenCE(anchor=0.1), GREEN))
    for name, score, colour in curves:
        risks = [excess_risk(score, population, family[i]) for i in order]
        axes.plot([shift[i] for i in order], risks, label=name, color=colour)
    axes.set(xlabel="KL(prior || predicted marginal)", ylabel="excess risk (nats)")
    axes.set_title("Two classes that no input tells apart")
    axes.legend(frameon=False)
    return figure


def curvature_figure() -> Figure:
    """Curvature along class biases against sharpness: on the toy of ten classes, and on networks while they train."""
    sharpness = torch.linspace(1 / CLASSES, 0.9999, 200, dtype=torch.float64).tolist()
    figure = _figure(width=9.6)
    toy, network = figure.subplots(1, 2)
    curves = {a: [toy_curvature(CLASSES, p, anchor=a) for p in sharpness] for a in (1.0, 0.0, 0.1)}
    for name, anchor, colour in (("CE", 1.0, BLUE), ("GenCE", 0.0, ORANGE), ("anchored 0.1", 0.1, GREEN)):
        toy.plot(sharpness, curves[anchor], label=name, color=colour)
    toy.set(xlabel="probability of the own class", ylabel="curvature along a class bias", ylim=(0, None))
    toy.set_title("Near a guess, GenCE does not feel the biases")
    toy.legend(frameon=False)

    ratio = [plain / discriminative for plain, discriminative in zip(curves[0.0], curves[1.0], strict=True)]
    network.plot(sharpness, ratio, color="0.5", label="toy, closed form")
    found = [point for seed in range(SEEDS) for point in curvature_while_training(seed=seed)]
    confidence = [point.confidence for point in found]
    network.plot(confidence, [point.ratio for point in found], "o", color=ORANGE, label="networks, as they train")
    balanced = [point.balanced_ratio for point in found]
    network.plot(confidence, balanced, "o", color=BLUE, fillstyle="none", label="the same, marginal put right")
    network.set(xlabel="mean probability of the true class", ylabel="curvature, GenCE over CE", ylim=(0, 1))
    network.set_title(f"Measured on digits, {SEEDS} networks")
    network.legend(frameon=False)
    return figure


def plateau_figure() -> Figure:
    """Loss against the bias given to one class, for sharp predictions: GenCE levels off at (log K)/K."""
    offsets = torch.linspace(-15, 25, 300, dtype=torch.float64)
    figure = _figure()
    axes = figure.subplots()
    for name, anchor, colour in (("CE", 1.0, BLUE), ("GenCE", 0.0, ORANGE), ("anchored 0.1", 0.1, GREEN)):
        axes.plot(offsets, toy_profile(CLASSES, 0.99, offsets, anchor=anchor), label=name, color=colour)
    axes.axhline(toy_plateau(CLASSES), color="0.5", linestyle=":", label="(log K)/K")
    axes.set(xlabel="bias added to one class", ylabel="loss above its minimum (nats)", ylim=(0, 1.5))
    axes.set_title("Calling everything one class costs GenCE a bounded amount")
    axes.legend(frameon=False)
    return figure


def batch_size_figure() -> Figure:
    """Bias of the expected batch loss's minimiser against the batch size, for a fixed and for the batch's own prior."""
    population = random_population(3, 3, seed=1)
    sizes = (2, 4, 8, 16, 32)
    figure = _figure()
    axes = figure.subplots()
    curves = (
        ("GenCE", GenCE(), ORANGE, "-"),
        ("anchored 0.1 to the batch's own labels", GenCE(anchor=0.1), BLUE, "--"),
        ("anchored 0.1 to a fixed prior", GenCE(anchor=0.1, prior=population.prior), GREEN, "-"),
    )
    for name, score, colour, line in curves:
        bias = [row.minimiser_bias for row in batch_size_table(population, sizes, score)]
        axes.plot(sizes, bias, line, marker="o", label=name, color=colour)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch size", ylabel="largest error of the minimiser")
    axes.set_title("What finite batches do to the minimiser")
    axes.legend(frameon=False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "rewards": rewards_figure,
    "family": family_figure,
    "curvature": curvature_figure,
    "plateau": plateau_figure,
    "batch-size": batch_size_figure,
}


def write_figures(folder: Path | str) -> list[Path]:
    """Write every figure to ``folder`` as theory-NAME.svg, byte for byte the same each time; return the paths."""
    import matplotlib

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context({"svg.hashsalt": "gence", "svg.fonttype": "none"}):
        for name, draw in FIGURES.items():
            path = folder / f"theory-{name}.svg"
            draw().savefig(path, metadata={"Date": None})
            paths.append(path)
    return paths
