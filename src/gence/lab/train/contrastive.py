"""SupCon's two stages: an encoder trained on two views through a projection head, then a linear head on top of it."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gence.lab.models import ImageClassifier
from gence.lab.spec import stream_seed
from gence.lab.train.run import Trainee
from gence.losses import TwoHot

PROJECTION_WIDTH = 128
HEAD_EPOCHS = 10
"""Augmented epochs on whose features the linear head is fitted."""

_CHUNK = 500


class ContrastiveTrainee(Trainee):
    """A run whose encoder learns by contrast; its linear head is fitted at the end, on the frozen encoder.

    The projection head (two layers, 128 outputs) is thrown away then. Mixing needs soft targets, which the contrastive
    loss does not have, so its views are not mixed. The head is fitted by L-BFGS on cross-entropy with an L2 penalty of
    1e-4, over features of ``HEAD_EPOCHS`` augmented epochs. While the encoder trains there are no logits: accuracy and
    marginal of those epochs are NaN.
    """

    predicts = False

    def _create_model(self) -> nn.Module:
        self.classifier.head.requires_grad_(False)  # takes no part until it is fitted
        width = self.classifier.head.in_features
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(self.spec.seed, "projection"))
            self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION_WIDTH))
        return nn.ModuleDict({"classifier": self.classifier, "projection": self.projection})

    def outputs(self, images: Tensor) -> Tensor:
        """The projected embeddings."""
        embedded: Tensor = self.projection(self.features(images))
        return embedded

    def finish(self) -> None:
        """Fit the linear head on the features of the training images."""
        super().finish()
        features, labels = [], []
        for epoch, part in itertools.product(range(HEAD_EPOCHS), range(self.feed.parts)):
            self.feed.prepare(epoch, part)
            images, first = self.feed.part_batches(epoch, part)
            features.append(encode(self.classifier, images.flatten(0, 1).float()))
            labels.append(first.flatten().clone())  # the next parts are made in the same memory
        fit_linear_head(self.classifier.head, torch.cat(features), torch.cat(labels))

    def _add_to_sums(self, loss: Tensor, outputs: Tensor, target: Tensor | TwoHot) -> None:  # noqa: ARG002
        rows = outputs.shape[0]
        self.sums[0] += loss.detach() * rows
        self.sums[1] += torch.nan
        self.sums[2] += rows
        self.sums[3:] += torch.nan


def encode(classifier: ImageClassifier, images: Tensor) -> Tensor:
    """Features (n, d) of normalised images in evaluation mode, without gradient."""
    classifier.eval()
    with torch.no_grad():
        return torch.cat([classifier.features(chunk) for chunk in torch.split(images, _CHUNK)])


def fit_linear_head(head: nn.Linear, features: Tensor, labels: Tensor, penalty: float = 1e-4, steps: int = 200) -> None:
    """Fit a linear layer by cross-entropy with an L2 penalty on its weights, to convergence.

    The problem is convex and starts at zero, so nothing is random. Features that are not finite (a diverged encoder)
    leave the head at zero.

    Args:
        head: the layer, changed in place.
        features: (n, d), float32.
        labels: (n,) class indices.
        penalty: factor of the weights' sum of squares.
        steps: most iterations of L-BFGS.
    """
    head.requires_grad_(True)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    if not bool(features.isfinite().all()):
        return
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(features), labels) + penalty * head.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
