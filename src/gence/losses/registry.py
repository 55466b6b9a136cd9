"""Losses by name. What a loss promises is data here, and the contract tests hold each loss to it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn

from gence.losses import baselines, contrastive, generative, rivals

# What a call is given besides the batch: no part of what a loss is.
_CALL_ONLY = ("context", "marginal", "process_group")


@dataclass(frozen=True, kw_only=True)
class LossInfo:
    """One entry of the registry.

    Attributes:
        name: what :func:`create_loss` is called with.
        title: how tables print it.
        function: the loss as a function.
        module: the loss as an ``nn.Module``.
        takes: "logits", or "embeddings" for losses that train an encoder.
        coupled: whether a row's loss depends on the rest of the batch.
        shift_invariant: whether adding a constant to a row of the input changes nothing.
        proper: whether the population risk is minimised at the true posterior, and there alone.
        linear: whether the loss of a mixed target is the mixture of the targets' losses.
        masks_classes: whether a logit of -inf takes a class out as if it were not there.
        equation: the loss of a row with label y, in plain text.
        source: authors and year.
    """

    name: str
    title: str
    function: Callable[..., Tensor]
    module: Callable[..., nn.Module]
    takes: Literal["logits", "embeddings"] = "logits"
    coupled: bool = False
    shift_invariant: bool = True
    proper: bool = False
    linear: bool = True
    masks_classes: bool = True
    equation: str
    source: str

    @property
    def params(self) -> tuple[str, ...]:
        """The loss's own parameters, beyond those of cross-entropy."""
        signature = inspect.signature(self.function)
        own = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return tuple(name for name in own if name not in _CALL_ONLY)


_ENTRIES = (
    LossInfo(
        name="gence",
        title="GenCE",
        function=generative.gen_cross_entropy,
        module=generative.GenCELoss,
        coupled=True,
        proper=True,
        equation="−log(p_y / Σ_j p_jy), + anchor · KL(prior ‖ S/n)",
        source="the paper; the anchor is this library's",
    ),
    LossInfo(
        name="ce",
        title="CE",
        function=baselines.cross_entropy,
        module=baselines.CrossEntropyLoss,
        proper=True,
        equation="−log p_y",
        source="Good 1952",
    ),
    LossInfo(
        name="mae",
        title="MAE",
        function=baselines.mae_loss,
        module=baselines.MAELoss,
        equation="2 (1 − p_y)",
        source="Ghosh, Kumar, Sastry 2017",
    ),
    LossInfo(
        name="brier",
        title="Brier",
        function=baselines.brier_loss,
        module=baselines.BrierLoss,
        proper=True,
        equation="Σ_k (p_k − 1[k = y])²",
        source="Brier 1950",
    ),
    LossInfo(
        name="generalized_ce",
        title="Generalised CE",
        function=baselines.generalized_cross_entropy,
        module=baselines.GeneralizedCrossEntropyLoss,
        equation="(1 − p_y^q) / q",
        source="Zhang, Sabuncu 2018",
    ),
    LossInfo(
        name="focal",
        title="Focal",
        function=baselines.focal_loss,
        module=baselines.FocalLoss,
        equation="−(1 − p_y)^gamma log p_y",
        source="Lin, Goyal, Girshick, He, Dollár 2017",
    ),
    LossInfo(
        name="logit_adjusted",
        title="Logit adjustment",
        function=baselines.logit_adjusted_loss,
        module=baselines.LogitAdjustedLoss,
        # Proper for the balanced posterior; with the default uniform prior it is cross-entropy.
        proper=True,
        equation="−log softmax(z + tau log prior)_y",
        source="Menon, Jayasumana, Rawat, Jain, Veit, Kumar 2021",
    ),
    LossInfo(
        name="cosine",
        title="Cosine",
        function=baselines.cosine_loss,
        module=baselines.CosineLoss,
        shift_invariant=False,
        masks_classes=False,
        equation="1 − z_y / ‖z‖",
        source="Barz, Denzler 2020",
    ),
    LossInfo(
        name="mdca",
        title="MDCA",
        function=rivals.mdca_loss,
        module=rivals.MDCALoss,
        coupled=True,
        proper=True,
        linear=False,
        masks_classes=False,  # the mean over the classes counts them
        equation="−log p_y + beta · mean_k abs(mean_j p_jk − mean_j t_jk)",
        source="Hebbalaguppe, Prakash, Madan, Arora 2022",
    ),
    LossInfo(
        name="poly1",
        title="Poly-1",
        function=rivals.poly1_loss,
        module=rivals.Poly1Loss,
        equation="−log p_y + epsilon (1 − p_y)",
        source="Leng, Tan, Liu, Cubuk, Shi, Cheng, Anguelov 2022",
    ),
    LossInfo(
        name="squentropy",
        title="Squentropy",
        function=rivals.squentropy_loss,
        module=rivals.SquentropyLoss,
        shift_invariant=False,
        masks_classes=False,
        equation="−log p_y + Σ_{k≠y} z_k² / (K − 1)",
        source="Hui, Belkin, Wright 2023",
    ),
    LossInfo(
        name="mbls",
        title="MbLS",
        function=rivals.mbls_loss,
        module=rivals.MbLSLoss,
        masks_classes=False,
        equation="−log p_y + alpha Σ_k max(0, max_j z_j − z_k − margin)",
        source="Liu, Ben Ayed, Galdran, Dolz 2022",
    ),
    LossInfo(
        name="logit_norm",
        title="LogitNorm",
        function=rivals.logit_norm_loss,
        module=rivals.LogitNormLoss,
        shift_invariant=False,
        masks_classes=False,
        equation="−log softmax(z / (tau ‖z‖))_y",
        source="Wei, Xie, Cheng, Feng, An, Li 2022",
    ),
    LossInfo(
        name="dual_focal",
        title="Dual focal",
        function=rivals.dual_focal_loss,
        module=rivals.DualFocalLoss,
        equation="−(1 − p_y + p_j)^gamma log p_y, p_j the largest probability below p_y",
        source="Tao, Dong, Xu 2023",
    ),
    LossInfo(
        name="supcon",
        title="SupCon",
        function=contrastive.supcon_loss,
        module=baselines.SupConLoss,
        takes="embeddings",
        coupled=True,
        shift_invariant=False,
        masks_classes=False,
        equation="−mean_{p∈P(i)} log(exp(z_i·z_p / temperature) / Σ_{a≠i} exp(z_i·z_a / temperature))",
        source="Khosla, Teterwak, Wang and others 2020",
    ),
)

LOSSES: Mapping[str, LossInfo] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""All losses by name."""


def loss_info(name: str) -> LossInfo:
    """The registry's entry; an unknown name lists the known ones.

    >>> from gence.losses import loss_info
    >>> loss_info("gence").coupled
    True
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected the name of a loss, got {type(name).__name__}; known: {', '.join(LOSSES)}")
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"name: unknown loss {name!r}{hint} Known losses: {', '.join(LOSSES)}.")
    return LOSSES[name]


def create_loss(name: str, **params: Any) -> nn.Module:
    """A loss module by name, with the parameters of cross-entropy and its own.

    Args:
        name: one of ``gence.LOSSES``.
        **params: e.g. ``label_smoothing=0.1``, ``anchor=0.1`` (gence), ``gamma=2`` (focal), ``q=0.7`` (generalized_ce).

    >>> import gence
    >>> gence.create_loss("gence", anchor=0.1)
    GenCELoss(anchor=0.1)
    """
    info = loss_info(name)
    known = ["weight", "ignore_index", "reduction", "label_smoothing", *info.params]
    for param in params:
        if param not in known:
            near = difflib.get_close_matches(param, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{param}: not a parameter of {name!r}{hint} Known parameters: {', '.join(known)}.")
    return info.module(**params)
