"""Detectors that read features: nearest neighbours, Mahalanobis distance, and virtual logit matching (ViM).

They are fitted on the features (n, D) that a model was trained on, and called with those of other inputs. As in
`gence.metrics.ood`, HIGHER means more in-distribution. Features are those that the last linear layer reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.metrics._checks import as_labels, as_logits

_CHUNK = 2048  # rows whose distances are computed at a time
_ROUNDING = 1e-10  # eigenvalues below this share of the largest are 0


@dataclass(frozen=True, eq=False)
class KNNDetector:
    """Minus the distance to the k-th nearest training row, all rows scaled to norm 1 (Sun et al., ICML 2022).

    Attributes:
        rows: float32 (n, D), of norm 1.
        k: which neighbour.
    """

    rows: Tensor
    k: int

    def __call__(self, features: Tensor) -> Tensor:
        """Scores (m,) of features (m, D)."""
        _check_width(features, self.rows.shape[1])
        nearest = []
        for part in torch.split(torch.nn.functional.normalize(features.float()), _CHUNK):
            # Of rows of norm 1 the squared distance is 2 - 2 cos.
            cosine = (part @ self.rows.mT).topk(self.k, dim=1).values[:, -1]
            nearest.append(-(2 - 2 * cosine.double()).clamp_min(0).sqrt())
        return torch.cat(nearest)


@dataclass(frozen=True, eq=False)
class MahalanobisDetector:
    """Minus the squared Mahalanobis distance to the nearest class mean, one covariance for all classes.

    Attributes:
        centre: float64 (D,), the mean of the rows.
        directions: (D, r) orthonormal, in which the rows vary within their classes.
        weights: (r,), the inverse variance in each.
        rest: the inverse variance in every other direction; 0 where these do not count.
        means: (K, D) of the classes, less the centre.
    """

    centre: Tensor
    directions: Tensor
    weights: Tensor
    rest: float
    means: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Scores (m,) of features (m, D)."""
        _check_width(features, len(self.centre))
        bends = self.weights.sqrt()
        means, scores = self.means @ self.directions, []
        for part in torch.split(features, _CHUNK):
            x = part.double() - self.centre
            inside = x @ self.directions
            distance = torch.cdist(inside * bends, means * bends).square()
            if self.rest > 0:
                distance += self.rest * (torch.cdist(x, self.means).square() - torch.cdist(inside, means).square())
            scores.append(-distance.amin(1))
        return torch.cat(scores)


@dataclass(frozen=True, eq=False)
class ViMDetector:
    """logsumexp of the logits minus alpha times the norm of what lies outside the principal space of the features.

    Wang et al., CVPR 2022: the second term is the logit of a virtual class for what the training rows never did.

    Attributes:
        origin: float64 (D,), where all logits are 0.
        directions: (D, d) orthonormal, the principal space.
        alpha: the mean largest logit of the training rows divided by their mean norm outside.
    """

    origin: Tensor
    directions: Tensor
    alpha: float

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """Scores (m,) of features (m, D) and logits (m, K) of the same inputs."""
        _check_width(features, len(self.origin))
        return as_logits(logits).logsumexp(1) - self.alpha * self.outside(features)

    def outside(self, features: Tensor) -> Tensor:
        """Norm (m,) of the part of each row outside the principal space."""
        norms = []
        for part in torch.split(features, _CHUNK):
            x = part.double() - self.origin
            norms.append((x - (x @ self.directions) @ self.directions.mT).norm(dim=1))
        return torch.cat(norms)


def fit_knn(features: Tensor, k: int = 50) -> KNNDetector:
    """Detector by the k-th nearest training row.

    Args:
        features: (n, D) of training rows.
        k: which neighbour; at most n. 50 is the paper's for CIFAR-10, with 5,000 rows per class.

    >>> import torch
    >>> fit_knn(torch.eye(2), k=1)(torch.tensor([[3.0, 0.0], [-1.0, 0.0]])).tolist() == [0.0, -(2**0.5)]
    True
    """
    _check_features(features)
    if not 1 <= k <= len(features):
        raise ValueError(f"k: {k} was given, a number from 1 to the {len(features)} training rows expected.")
    return KNNDetector(torch.nn.functional.normalize(features.float()), k)


def fit_mahalanobis(features: Tensor, labels: Tensor, *, shrink: bool = True) -> MahalanobisDetector:
    """Detector by the Mahalanobis distance to the nearest class mean (Lee et al., NeurIPS 2018).

    With fewer rows than features the covariance has no inverse. By default it is shrunk towards a multiple of the
    identity by Ledoit and Wolf's formula (2004), which vanishes as rows are added; without, its pseudo-inverse is
    taken, and directions in which the rows do not vary do not count.

    Args:
        features: (n, D) of training rows.
        labels: (n,) their class indices; classes without a row have no mean.
        shrink: False for the plain covariance.

    >>> import torch
    >>> rows = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    >>> detect = fit_mahalanobis(rows, torch.tensor([0, 0, 1, 1]), shrink=False)
    >>> detect(torch.tensor([[0.0, 2.0], [2.0, 0.0]])).tolist()  # along the first feature, classes do not vary
    [-4.0, -0.0]
    """
    _check_features(features)
    labels = as_labels(labels, int(labels.max()) + 1 if labels.numel() else 0, "labels")
    if len(labels) != len(features):
        raise ValueError(f"labels: {len(labels)} were given for {len(features)} rows of features.")
    x = features.double()
    centre = x.mean(0)
    x = x - centre
    present, place = torch.unique(labels, return_inverse=True)
    counts = torch.bincount(place).double()
    means = x.new_zeros(len(present), x.shape[1]).index_add_(0, place, x) / counts[:, None]
    x = x - means[place]
    n, D = x.shape
    variances, directions = _principal(x)
    if not len(variances):
        raise ValueError("features: rows of a class are all equal, so that no distance can be measured.")
    if not shrink:
        return MahalanobisDetector(centre, directions, 1 / variances, 0.0, means)
    size, squares = float(variances.sum()) / D, float(variances.square().sum())
    spread = squares / D - size**2
    noise = (float(x.square().sum(1).square().mean()) - squares) / (n * D)
    share = 1.0 if spread <= 0 else min(1.0, noise / spread)
    rest = 1 / (share * size) if share > 0 and len(variances) < D else 0.0
    return MahalanobisDetector(centre, directions, 1 / ((1 - share) * variances + share * size), rest, means)


def fit_vim(features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor, dim: int | None = None) -> ViMDetector:
    """Detector by virtual logit matching.

    Args:
        features: (n, D) of training rows.
        logits: (n, K), the last layer's for these rows.
        weight: (K, D) of the last layer.
        bias: (K,) likewise.
        dim: d, of the principal space; by default half of D, and at most half of n: with as many directions as rows
            nothing of a training row lies outside.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [2.0, -0.1], [-2.0, -0.1]])
    >>> weight, bias = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2)
    >>> detect = fit_vim(rows, rows @ weight.T, weight, bias)
    >>> far, near = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    >>> bool(detect(far, far @ weight.T) < detect(near, near @ weight.T))
    True
    """
    _check_features(features)
    z = as_logits(logits)
    if len(z) != len(features):
        raise ValueError(f"logits: {len(z)} rows were given for {len(features)} rows of features.")
    n, D = features.shape
    if weight.shape != (z.shape[1], D) or bias.shape != (z.shape[1],):
        raise ValueError(
            f"weight and bias: shapes {tuple(weight.shape)} and {tuple(bias.shape)} were given, ({z.shape[1]}, {D}) "
            f"and ({z.shape[1]},) expected, as logits and features have."
        )
    d = max(1, min(D // 2, n // 2)) if dim is None else dim
    if not 1 <= d <= D:
        raise ValueError(f"dim: {d} was given, a number from 1 to the {D} features expected.")
    origin = -(torch.linalg.pinv(weight.double()) @ bias.double())
    _, directions = _principal(features.double() - origin)
    found = ViMDetector(origin, directions[:, -d:].contiguous(), 1.0)
    outside = float(found.outside(features).mean())
    top = float(z.amax(1).mean())
    return ViMDetector(origin, found.directions, top / outside if outside > _ROUNDING else 0.0)


def _principal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Variances (r,), rising, and directions (D, r) in which rows (n, D), about 0, vary."""
    n, D = x.shape
    if n < D:  # the smaller of two matrices with the same eigenvalues
        values, vectors = torch.linalg.eigh(x @ x.mT / n)
        kept = values > _ROUNDING * values[-1].clamp_min(1e-300)
        values = values[kept]
        return values, (x.mT @ vectors[:, kept]) / (n * values).sqrt()
    values, vectors = torch.linalg.eigh(x.mT @ x / n)
    kept = values > _ROUNDING * values[-1].clamp_min(1e-300)
    return values[kept], vectors[:, kept]


def _check_features(features: Tensor) -> None:
    if not isinstance(features, Tensor) or features.dim() != 2 or not features.numel():
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"features: {shape} was given, a tensor (n, D) with n >= 1 rows expected.")
    if not bool(features.isfinite().all()):
        raise ValueError("features: NaN or infinite numbers were given; finite ones expected.")


def _check_width(features: Tensor, width: int) -> None:
    if features.dim() != 2 or features.shape[1] != width:
        raise ValueError(
            f"features: shape {tuple(features.shape)} was given, (m, {width}) expected, as the detector was fitted on."
        )
