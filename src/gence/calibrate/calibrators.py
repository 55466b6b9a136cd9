"""Calibrators: from logits to better probabilities, fitted once on logits and labels that were held out.

    temperature   softmax(z / T)                 one number; never changes which class is predicted
    vector        softmax(w * z / T + b)         two numbers per class, drawn towards w = 1 and b = 0
    isotonic      a rising step function of each class's probability, then normalised to sum to 1
    offset        softmax(z + b)                 b such that the mean prediction is the label distribution

Each is finite whatever it is fitted on: rows that are all right, a handful of rows, a class without a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.calibrate._checks import as_labels, check_logits
from gence.losses import marginal_offset
from gence.metrics import best_temperature

_NEEDED = {
    "temperature": ("temperature",),
    "vector": ("scale", "bias"),
    "isotonic": ("knots", "values", "starts", "floor"),
    "offset": ("offset",),
}
METHODS = tuple(_NEEDED)
"""Names that `fit_calibrator` takes."""


@dataclass(frozen=True, eq=False)
class Calibrator:
    """A fitted calibrator; call it with logits (n, K) to get probabilities (n, K).

    Its state is a few plain tensors, to be saved as such (safetensors, ``torch.save`` of a dict): nothing is pickled.

    Attributes:
        method: one of `METHODS`.
        num_classes: K.
        tensors: what was fitted, by name.
    """

    method: str
    num_classes: int
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if self.method not in _NEEDED:
            raise ValueError(f"method: {self.method!r} was given, expected one of {', '.join(METHODS)}")
        missing = set(_NEEDED[self.method]) - self.tensors.keys()
        if missing:
            raise ValueError(f"tensors: {', '.join(sorted(missing))} missing for the method {self.method}")

    def logits(self, logits: Tensor) -> Tensor:
        """Calibrated logits (n, K) in the type of the input: their softmax is the calibrated probabilities."""
        if logits.dim() != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits: shape {tuple(logits.shape)} was given, (n, {self.num_classes}) expected: this calibrator was "
                f"fitted for {self.num_classes} classes"
            )
        own = {name: value.to(logits.device) for name, value in self.tensors.items()}
        z = logits.double()
        if self.method == "temperature":
            found = z / own["temperature"]
        elif self.method == "vector":
            found = z * own["scale"] + own["bias"]
        elif self.method == "offset":
            found = z + own["offset"]
        else:
            found = _isotonic_log_probs(z, own)
        return found.to(logits.dtype)

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities (n, K)."""
        return self.logits(logits).softmax(1)

    def to_tensors(self, prefix: str = "calibration/") -> tuple[dict[str, Tensor], str]:
        """Tensors by name and a line of JSON, ready for a safetensors file; `from_tensors` reads them back."""
        note = json.dumps({"method": self.method, "num_classes": self.num_classes})
        return {f"{prefix}{name}": value for name, value in self.tensors.items()}, note

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], note: str, prefix: str = "calibration/") -> Calibrator:
        """Read what `to_tensors` gave.

        >>> import torch
        >>> fitted = fit_temperature(torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1, 1]))
        >>> again = Calibrator.from_tensors(*fitted.to_tensors())
        >>> torch.equal(again(torch.eye(2)), fitted(torch.eye(2)))
        True
        """
        about = json.loads(note)
        kept = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        return cls(str(about["method"]), int(about["num_classes"]), kept)

    def summary(self) -> dict[str, Any]:
        """What is worth a line in a record: the method, and the temperature where that is all there is."""
        found: dict[str, Any] = {"method": self.method}
        if self.method == "temperature":
            found["temperature"] = float(f"{float(self.tensors['temperature']):.6g}")
        return found


def fit_calibrator(method: str, logits: Tensor, labels: Tensor) -> Calibrator:
    """Fit the calibrator of this name.

    Args:
        method: "temperature", "vector", "isotonic" or "offset".
        logits: (n, K), of samples that the model was not trained on.
        labels: (n,) their class indices.

    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> logits = torch.randn(200, 3)
    >>> labels = torch.distributions.Categorical(logits=logits).sample()  # so calibrated as they are
    >>> overconfident = 4 * logits
    >>> fitted = fit_calibrator("temperature", overconfident, labels)
    >>> round(float(fitted.tensors["temperature"]), 1)
    4.1
    """
    if method not in _FITS:
        raise ValueError(f"method: {method!r} was given, expected one of {', '.join(METHODS)}")
    return _FITS[method](logits, labels)


def fit_temperature(logits: Tensor, labels: Tensor) -> Calibrator:
    """Temperature scaling: the T > 0 with the smallest negative log-likelihood; see `gence.metrics.best_temperature`.

    Args:
        logits: (n, K), of samples that the model was not trained on.
        labels: (n,) class indices.
    """
    check_logits(logits)
    found = torch.tensor(best_temperature(logits, as_labels(labels, logits)), dtype=torch.float64)
    return Calibrator("temperature", logits.shape[1], {"temperature": found})


def fit_vector(logits: Tensor, labels: Tensor) -> Calibrator:
    """Vector scaling: a factor and an offset per class, after the best temperature.

    With few rows two numbers per class are soon too many, so both have a standard normal prior around (1, 0), worth one
    row: what is minimised is strictly convex, and has its minimum at finite numbers even if all rows are right.

    Args:
        logits: (n, K), of samples that the model was not trained on.
        labels: (n,) class indices.
    """
    from scipy.optimize import minimize

    check_logits(logits, finite=True)
    labels = as_labels(labels, logits)
    first = best_temperature(logits, labels)
    z, n, K = logits.detach().double() / first, *logits.shape

    def cost(flat: Any) -> tuple[float, Any]:
        scale, bias = torch.from_numpy(flat).view(2, K)
        log_p = (z * scale + bias).log_softmax(1)
        error = log_p.exp()
        error[torch.arange(n), labels] -= 1
        value = -log_p.gather(1, labels[:, None]).mean() + ((scale - 1).square().sum() + bias.square().sum()) / (2 * n)
        slope = torch.cat([(error * z).mean(0) + (scale - 1) / n, error.mean(0) + bias / n])
        return float(value), slope.numpy()

    begin = torch.cat([z.new_ones(K), z.new_zeros(K)]).numpy()
    scale, bias = torch.from_numpy(minimize(cost, begin, jac=True, method="L-BFGS-B").x).view(2, K)
    return Calibrator("vector", K, {"scale": (scale / first).clone(), "bias": bias.clone()})


def fit_isotonic(logits: Tensor, labels: Tensor) -> Calibrator:
    """Isotonic calibration, one class against the rest (scikit-learn), normalised to sum to 1.

    It takes hundreds of rows to be worth it, and may change which class is predicted. A step function can say 0 or 1;
    1 / (n + 1) of every prediction is spread evenly over the classes, so that no outcome is impossible.

    Args:
        logits: (n, K), of samples that the model was not trained on.
        labels: (n,) class indices.
    """
    from sklearn.isotonic import IsotonicRegression

    check_logits(logits)
    labels = as_labels(labels, logits)
    n, K = logits.shape
    p, y = logits.detach().double().softmax(1).cpu().numpy(), labels.cpu().numpy()
    knots, values, starts = [], [], [0]
    for k in range(K):
        fitted = IsotonicRegression(out_of_bounds="clip").fit(p[:, k], (y == k).astype(float))
        knots.append(torch.from_numpy(fitted.X_thresholds_))
        values.append(torch.from_numpy(fitted.y_thresholds_))
        starts.append(starts[-1] + len(fitted.X_thresholds_))
    return Calibrator(
        "isotonic",
        K,
        {
            "knots": torch.cat(knots).double(),
            "values": torch.cat(values).double(),
            "starts": torch.tensor(starts),
            "floor": torch.tensor(1 / (n + 1), dtype=torch.float64),
        },
    )


def fit_offset(logits: Tensor, labels: Tensor) -> Calibrator:
    """The marginal offset: mean prediction equal to the labels' distribution, to which one row of all classes is added.

    Args:
        logits: (n, K).
        labels: (n,) class indices; only how many there are of each class is used.

    Raises:
        RuntimeError: the predictions are so sharp that no offset matches; see `gence.marginal_offset`.
    """
    check_logits(logits, finite=True)
    labels, K = as_labels(labels, logits), logits.shape[1]
    counts = torch.bincount(labels, minlength=K).double() + 1 / K
    return Calibrator("offset", K, {"offset": marginal_offset(logits.detach().double(), counts / counts.sum())})


_FITS: dict[str, Callable[[Tensor, Tensor], Calibrator]] = {
    "temperature": fit_temperature,
    "vector": fit_vector,
    "isotonic": fit_isotonic,
    "offset": fit_offset,
}


def _isotonic_log_probs(z: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    """Logarithms of isotonic probabilities (n, K), interpolated between the knots as scikit-learn does."""
    p = z.softmax(1)
    found = torch.empty_like(p)
    for k, (start, end) in enumerate(zip(own["starts"][:-1].tolist(), own["starts"][1:].tolist(), strict=True)):
        x, y = own["knots"][start:end], own["values"][start:end]
        if len(x) == 1:
            found[:, k] = y[0]
            continue
        right = torch.searchsorted(x, p[:, k].contiguous()).clamp(1, len(x) - 1)
        share = ((p[:, k] - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
        found[:, k] = y[right - 1] + share * (y[right] - y[right - 1])
    K, floor = p.shape[1], own["floor"]
    total = found.sum(1, keepdim=True)
    found = torch.where(total > 0, found / total, 1 / K)
    return ((1 - floor) * found + floor / K).log()
