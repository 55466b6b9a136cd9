"""SupCon's two stages: an encoder trained on two views through a projection head, then a linear head on top of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gence.experiment.evaluate import predict_logits
from gence.experiment.seeds import stream_seed
from gence.experiment.trainee import Trainee
from gence.losses import TwoHot
from gence.models import create_model

PROJECTION_WIDTH = 128
HEAD_EPOCHS = 10
"""Augmented epochs on whose features the linear head is fitted."""


class ContrastiveTrainee(Trainee):
    """A run whose encoder learns by contrast; its linear head is fitted at the end, on the frozen encoder.

    The projection head (two layers, 128 outputs) is thrown away then. Mixing needs soft targets, which the contrastive
    loss does not have, so its views are not mixed. The head is fitted by L-BFGS on cross-entropy with an L2 penalty of
    1e-4, over features of ``HEAD_EPOCHS`` augmented epochs.
    """

    def _create_model(self) -> nn.Module:
        model = super()._create_model()
        width = model.head.in_features
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(self.spec.seed, "projection"))
            projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION_WIDTH))
        return _Projected(model, projection)

    def loss(self, images: Tensor, target: Tensor | TwoHot) -> tuple[Tensor, Tensor]:
        """The contrastive loss; the logits that statistics are made of are a placeholder until the head is fitted."""
        loss, _ = super().loss(images, target)
        return loss, torch.zeros(images.shape[0], self.num_classes, device=images.device)

    def outputs(self, images: Tensor) -> Tensor:
        """The projected embeddings."""
        embedded: Tensor = self.model.projection(self.run_backbone(self.model.classifier.backbone, images))
        return embedded

    def finish(self) -> None:
        """Fit the linear head and put encoder and head together as an ordinary classifier."""
        super().finish()
        encoder = self.model.classifier
        features, labels = [], []
        frozen = _Features(encoder)
        for epoch in range(HEAD_EPOCHS):
            self.feed.prepare(epoch)
            slot = slice((epoch % 2) * self.feed.steps, (epoch % 2 + 1) * self.feed.steps)
            images = self.feed.inputs[slot].flatten(0, 1).permute(0, 3, 1, 2).float()
            features.append(_in_chunks(frozen, images))
            labels.append(self.feed.first[slot].flatten())
        fit_linear_head(encoder.head, torch.cat(features), torch.cat(labels))
        self.model = encoder


def fit_linear_head(head: nn.Linear, features: Tensor, labels: Tensor, penalty: float = 1e-4, steps: int = 200) -> None:
    """Fit a linear layer by cross-entropy with an L2 penalty on its weights, to convergence."""
    head.reset_parameters()
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(features), labels) + penalty * head.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


class _Projected(nn.Module):
    def __init__(self, classifier: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.classifier, self.projection = classifier, projection

    def forward(self, images: Tensor) -> Tensor:
        embedded: Tensor = self.projection(self.classifier.features(images))
        return embedded


class _Features(nn.Module):
    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier.features(images)
        return found


def _in_chunks(module: nn.Module, images: Tensor) -> Tensor:
    module.eval()
    with torch.no_grad():
        return torch.cat([module(chunk) for chunk in images.split(500)])
