"""Attack on metrics, detectors, calibrators, prediction sets and statistics: against loops, scikit-learn and others.

Over 300 lines because each measure has a reference of its own.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gence import calibrate, metrics
from tests.adversarial.losses import agree
from tests.adversarial.references import log_sum_exp

TINY = 1e-9


class Predictions:
    """Random logits with labels: ties, saturation, one row, one class, classes without rows, ruled-out classes."""

    def __init__(self, rng: random.Random, least_rows: int = 1, least_classes: int = 1) -> None:
        generator = torch.Generator().manual_seed(rng.getrandbits(40))
        self.n, self.K = rng.choice([least_rows, rng.randint(least_rows, 40)]), rng.randint(least_classes, 6)
        z = rng.choice([0.0, 0.5, 3.0, 100.0]) * torch.randn(self.n, self.K, generator=generator, dtype=torch.float64)
        if rng.random() < 0.4:
            z = z.round()
        labels = [rng.randrange(self.K) for _ in range(self.n)]
        if rng.random() < 0.2:
            labels = [labels[0]] * self.n
        if rng.random() < 0.15:
            labels = [max(range(self.K), key=row.__getitem__) for row in z.tolist()]
        if rng.random() < 0.15 and self.K > 2:
            ruled_out = rng.randrange(self.K)
            z[:, ruled_out] = -math.inf
            labels = [(y + 1) % self.K if y == ruled_out else y for y in labels]
        self.labels, self.dtype = labels, rng.choice([torch.float64, torch.float64, torch.float32])
        self.logits = z.to(self.dtype)
        self.target = torch.tensor(labels).to(rng.choice([torch.int64, torch.int32, torch.uint8]))
        self.z: list[list[float]] = self.logits.double().tolist()
        self.log_p = [[v - log_sum_exp(row) for v in row] for row in self.z]
        self.probs = self.logits.double().softmax(1)
        if rng.random() < 0.3:  # on a grid, so that confidences are edges of bins
            parts = torch.multinomial(torch.ones(self.K), 20 * self.n, True, generator=generator).reshape(self.n, 20)
            self.probs = torch.stack([row.bincount(minlength=self.K) for row in parts]).double() / 20
        self.p: list[list[float]] = self.probs.tolist()
        self.top = [max(range(self.K), key=row.__getitem__) for row in self.p]
        self.right = [k == y for k, y in zip(self.top, labels, strict=True)]
        self.confidence = [min(row[k], 1.0) for row, k in zip(self.p, self.top, strict=True)]

    def __repr__(self) -> str:
        return f"logits={self.logits.tolist()} {self.dtype} labels={self.labels} probs={self.p}"


def near(found: Any, expected: float, what: str, allowed: float = TINY) -> None:
    agree(float(found), expected, allowed * (1 + abs(expected)) if math.isfinite(expected) else 0, what)


def same(found: Tensor, expected: Sequence[float], what: str, allowed: float = TINY) -> None:
    for a, b in zip(found.tolist(), expected, strict=True):
        near(a, b, what, allowed)


def check_classification(rng: random.Random) -> str:
    from sklearn import metrics as sk

    made = Predictions(rng)
    z, y, n, K = made.logits, made.target, made.n, made.K
    best = [max(range(K), key=row.__getitem__) for row in made.z]
    right = [k == label for k, label in zip(best, made.labels, strict=True)]
    table = [
        [sum(y == a and k == b for y, k in zip(made.labels, best, strict=True)) for b in range(K)] for a in range(K)
    ]
    recall = [row[k] / sum(row) if sum(row) else math.nan for k, row in enumerate(table)]
    known = [r for r in recall if not math.isnan(r)]
    nll = math.fsum(-row[label] for row, label in zip(made.log_p, made.labels, strict=True)) / n
    brier = math.fsum((p - (k == label)) ** 2 for row, label in zip(made.p, made.labels, strict=True)
                      for k, p in enumerate(row)) / n  # fmt: skip
    near(metrics.top1_accuracy(z, y), sum(right) / n, "accuracy")
    assert (
        metrics.confusion_matrix(z, y).tolist()
        == table
        == sk.confusion_matrix(made.labels, best, labels=range(K)).tolist()
    )
    same(metrics.per_class_accuracy(z, y), recall, "recall")
    near(metrics.balanced_accuracy(z, y), sum(known) / len(known), "balanced accuracy")
    near(metrics.negative_log_likelihood(z, y), nll, "nll")
    near(metrics.brier_score(made.probs, y), brier, "brier")
    if K > 1 and all(map(math.isfinite, itertools.chain(*made.z))) and nll < 30:
        near(
            sk.log_loss(made.labels, [[math.exp(v) for v in row] for row in made.log_p], labels=range(K)),
            nll,
            "sk",
            1e-6,
        )
    marginal = [math.fsum(math.exp(row[k]) for row in made.log_p) / n for k in range(K)]
    same(metrics.predicted_marginal(z), marginal, "marginal")
    same(metrics.label_distribution(y, K), [made.labels.count(k) / n for k in range(K)], "labels")
    prior = torch.rand(K, dtype=torch.float64, generator=torch.Generator().manual_seed(rng.getrandbits(30))) + 0.01
    prior[rng.randrange(K)] = 0.0 if K > 1 else 1.0
    prior = prior / prior.sum()
    logs = [log_sum_exp([row[k] for row in made.log_p]) - math.log(n) for k in range(K)]
    kl = math.fsum(p * math.log(p) - p * q for p, q in zip(prior.tolist(), logs, strict=True) if p and q > -math.inf)
    kl = math.inf if any(p and q == -math.inf for p, q in zip(prior.tolist(), logs, strict=True)) else kl
    near(metrics.marginal_divergence(z, prior), kl, "marginal divergence")
    found = metrics.classification_metrics(z, y)
    for name, value in {"accuracy": sum(right) / n, "nll": nll, "balanced_accuracy": sum(known) / len(known)}.items():
        near(found[name], value, name)
    return "classification"


def binned(values: list[float], bins: int) -> list[int]:
    """The bin (lo, hi] of each value, by exact fractions; the first one holds 0 too. An edge is its nearest float."""
    edges = [m / bins for m in range(1, bins)]
    return [sum(v > edge for edge in edges) for v in values]


def check_calibration(rng: random.Random) -> str:
    made, bins = Predictions(rng), rng.choice([1, 2, 3, 10, 15])
    n, c, right, y = made.n, made.confidence, made.right, made.target
    of = binned(c, bins)
    groups = [[i for i in range(n) if of[i] == b] for b in range(bins)]
    gaps = [abs(math.fsum(right[i] - c[i] for i in group)) for group in groups]
    found = metrics.reliability_bins(made.probs, y, bins)
    assert found.count.tolist() == [len(group) for group in groups], f"count {found.count.tolist()} in {bins}"
    same(found.confidence, [math.fsum(c[i] for i in g) / len(g) if g else math.nan for g in groups], "confidence")
    same(found.accuracy, [sum(right[i] for i in g) / len(g) if g else math.nan for g in groups], "accuracy")
    near(metrics.expected_calibration_error(made.probs, y, bins), math.fsum(gaps) / n, "ece")
    mce = max(gap / len(group) for gap, group in zip(gaps, groups, strict=True) if group)
    near(metrics.maximum_calibration_error(made.probs, y, bins), mce, "mce")
    again = metrics.confidence_bins(torch.tensor(c, dtype=torch.float64), torch.tensor(right), bins)
    assert again.count.tolist() == found.count.tolist()
    of_classes = 0.0
    for k in range(made.K):
        own = [row[k] for row in made.p]
        of_class = binned(own, bins)
        of_classes += math.fsum(
            abs(math.fsum((made.labels[i] == k) - own[i] for i in range(n) if of_class[i] == b)) for b in range(bins)
        )
    near(metrics.classwise_calibration_error(made.probs, y, bins), of_classes / n / made.K, "classwise")
    order = sorted(range(n), key=c.__getitem__)
    ascending = [c[i] for i in order]
    share = [sum(right[i] for i in range(n) if c[i] == v) / c.count(v) for v in ascending]
    used = min(bins, n)
    cuts = [n * m // used for m in range(used + 1)]
    adaptive, debiased = 0.0, 0.0
    for lo, hi in itertools.pairwise(cuts):
        adaptive += abs(math.fsum(share[i] - ascending[i] for i in range(lo, hi)))
        if hi - lo > 1:
            accuracy = math.fsum(share[lo:hi]) / (hi - lo)
            gap = accuracy - math.fsum(ascending[lo:hi]) / (hi - lo)
            debiased += (hi - lo) * (gap**2 - accuracy * (1 - accuracy) / (hi - lo - 1))
    near(metrics.adaptive_calibration_error(made.probs, y, bins), adaptive / n, "adaptive")
    found_debiased = metrics.debiased_calibration_error(made.probs, y, bins).item()
    near(found_debiased**2, max(debiased, 0.0) / n, "debiased, squared")
    running = [abs(math.fsum(right[i] - c[i] for i in range(n) if c[i] <= v)) / n for v in set(c)]
    near(metrics.ks_calibration_error(made.probs, y), max(running), "ks")
    if not set(c) & {m / bins for m in range(bins + 1)} and made.K > 1:  # where the two libraries' bins are the same
        from torchmetrics.functional.classification import multiclass_calibration_error as other

        theirs = other(made.probs, y.long(), num_classes=made.K, n_bins=bins)
        near(metrics.expected_calibration_error(made.probs, y, bins), theirs.item(), "torchmetrics", 1e-5)
    return "calibration"


def check_detection(rng: random.Random) -> str:
    """AUROC, FPR and both AUPR over all pairs and thresholds, with ties and infinite scores."""
    from sklearn import metrics as sk

    levels = rng.choice([[0.0], [-1.0, 0.0, 0.5], [v / 4 for v in range(-9, 9)], [-math.inf, 0.0, 1.0, math.inf]])
    draw: Callable[[], float] = (lambda: rng.choice(levels)) if rng.random() < 0.7 else (lambda: rng.gauss(0, 1))
    a, b = [draw() for _ in range(rng.randint(1, 30))], [draw() for _ in range(rng.randint(1, 30))]
    dtype = rng.choice([torch.float64, torch.float32])
    ours, others = torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
    a, b = ours.double().tolist(), others.double().tolist()
    auroc = sum((x > y) + (x == y) / 2 for x in a for y in b) / (len(a) * len(b))
    near(metrics.auroc(ours, others), auroc, "auroc")
    tpr = rng.choice([0.01, 0.5, 0.75, 0.8, 0.95, 1.0])
    kept = max(t for t in a if sum(x >= t for x in a) / len(a) >= tpr - 1e-12)
    near(metrics.fpr_at_tpr(ours, others, tpr), sum(y >= kept for y in b) / len(b), f"fpr at {tpr} of {a} {b}")

    def precision(positive: list[float], negative: list[float]) -> float:
        area, before = 0.0, 0
        for t in sorted({*positive, *negative}, reverse=True):
            hits, misses = sum(x >= t for x in positive), sum(x >= t for x in negative)
            area += (hits - before) / len(positive) * hits / (hits + misses)
            before = hits
        return area

    turned = [-x for x in b], [-x for x in a]
    near(metrics.aupr_in(ours, others), precision(a, b), "aupr in")
    near(metrics.aupr_out(ours, others), precision(*turned), "aupr out")
    if all(map(math.isfinite, a + b)):
        truth = [1] * len(a) + [0] * len(b)
        near(sk.roc_auc_score(truth, a + b), auroc, "scikit-learn's auroc")
        near(sk.average_precision_score(truth, a + b), precision(a, b), "scikit-learn's aupr")
        counts = metrics.score_histograms(ours, others, 7)
        assert [counts.id_count.sum(), counts.ood_count.sum()] == [len(a), len(b)]
    found = metrics.detection_metrics({"own": ours}, {"own": others})
    near(found["auroc_own"], auroc, "detection_metrics")
    made = Predictions(rng)
    entropy = [math.fsum(math.exp(v) * v for v in row if v > -math.inf) for row in made.log_p]
    same(metrics.negative_entropy(made.logits), entropy, "entropy", 1e-7)
    same(metrics.max_probability(made.logits), [math.exp(max(row)) for row in made.log_p], "confidence", 1e-7)
    same(metrics.max_logit(made.logits), [max(row) for row in made.z], "largest logit", 1e-7)
    T = rng.choice([0.5, 1.0, 10.0])
    energy = [T * log_sum_exp([v / T for v in row]) for row in made.z]
    same(metrics.negative_energy(made.logits, T), energy, "energy", 1e-7)
    return "detection"


def check_selective(rng: random.Random) -> str:
    n = rng.randint(1, 30)
    confidence = [rng.choice([0.0, 0.25, 0.5, 1.0]) if rng.random() < 0.7 else rng.random() for _ in range(n)]
    right = [rng.random() < rng.choice([0.0, 0.5, 1.0]) for _ in range(n)]

    def curve(values: list[float]) -> list[float]:
        """Risk among the first k, the mean over all orders of ties."""
        found = []
        for k in range(1, n + 1):
            last = sorted(values, reverse=True)[k - 1]
            sure = [i for i in range(n) if values[i] > last]
            tied = [i for i in range(n) if values[i] == last]
            errors = Fraction(sum(not right[i] for i in sure))
            errors += Fraction((k - len(sure)) * sum(not right[i] for i in tied), len(tied))
            found.append(float(errors / k))
        return found

    c, flags = torch.tensor(confidence, dtype=torch.float64), torch.tensor(right)
    risks, perfect = curve(confidence), curve([float(flag) for flag in right])
    last = [max(0, k - sum(right)) / k for k in range(1, n + 1)]
    found = metrics.risk_coverage_curve(c, flags)
    same(found.risk, risks, "risk")
    same(found.coverage, [k / n for k in range(1, n + 1)], "coverage")
    near(metrics.area_under_risk_coverage(c, flags), math.fsum(risks) / n, "aurc")
    excess = (math.fsum(risks) - math.fsum(last)) / n
    near(metrics.excess_area_under_risk_coverage(c, flags), max(excess, 0.0), "excess aurc")
    assert len(perfect) == n
    return "selective prediction"


def nll_at(made: Predictions, temperature: float) -> float:
    total = 0.0
    for row, label in zip(made.z, made.labels, strict=True):
        scaled = [(v - max(row)) / temperature for v in row]
        total += log_sum_exp(scaled) - scaled[label]
    return total / made.n


def check_calibrators(rng: random.Random) -> str:
    """Temperatures are the best ones; every calibrator gives distributions and survives being saved."""
    made = Predictions(rng, least_rows=2, least_classes=2)
    T = metrics.best_temperature(made.logits, made.target)
    assert 0 < T < math.inf, T
    parts = metrics.score_parts(made.logits, made.target)
    near(parts.nll_calibration + parts.nll_refinement, nll_at(made, 1.0), "parts of the nll", 1e-7)
    assert parts.nll_calibration >= -TINY, parts
    # The best one has no better one nearby, unless all rows are right, where none is the best.
    all_right = all(max(row) == row[label] for row, label in zip(made.z, made.labels, strict=True))
    finite = [v - max(row) for row in made.z for v in row if v > -math.inf]
    widest = max(map(abs, finite))  # T stays within a factor of e^10 of the logits' spread
    if not all_right and 1e-3 * widest < T < 1e3 * widest:
        best = nll_at(made, T)
        for factor in (0.99, 1.01, 0.5, 2.0, 1 / T):
            assert nll_at(made, T * factor) >= best - 1e-7 * (1 + best), f"{T} is worse than {T * factor}"
    method = rng.choice(calibrate.METHODS)
    if bool(made.logits.isfinite().all()):
        try:
            fitted = calibrate.fit_calibrator(method, made.logits, made.target.long())
        except RuntimeError as error:
            if "still" not in str(error):
                raise
            return "calibrators, refused"
        probs = fitted(made.logits)
        assert bool(((probs >= 0) & probs.isfinite()).all()), f"{method}: {probs}"
        torch.testing.assert_close(probs.sum(1), torch.ones(made.n, dtype=probs.dtype), rtol=0, atol=1e-5)
        again = calibrate.Calibrator.from_tensors(*fitted.to_tensors())
        assert torch.equal(again(made.logits), probs)
        if method == "temperature":
            torch.testing.assert_close(probs.double(), (made.logits.double() / T).softmax(1), rtol=1e-4, atol=1e-5)
        if method == "offset":
            counts = [made.labels.count(k) + 1 / made.K for k in range(made.K)]
            same(probs.double().mean(0), [count / (made.n + 1) for count in counts], "marginal", 2e-4)
        if method == "isotonic":
            check_isotonic(made, probs.double().tolist())
        if method == "vector":
            plain = nll_at(made, T)
            assert metrics.negative_log_likelihood(fitted.logits(made.logits.double()), made.target) <= plain + 1e-5
    return f"calibrators: {method}"


def check_isotonic(made: Predictions, found: list[list[float]]) -> None:
    """Against pools of adjacent violators, one class against the rest."""
    columns = []
    for k in range(made.K):
        p = [math.exp(row[k]) for row in made.log_p]
        if any(0 < b - a < 1e-9 for a, b in itertools.pairwise(sorted(p))):
            return  # scikit-learn takes them for one
        pools = [[value, *_mean_at(p, [y == k for y in made.labels], value)] for value in sorted(set(p))]
        merged: list[list[Any]] = []
        for value, total, count in pools:
            merged.append([[value], total, count])
            while len(merged) > 1 and merged[-2][1] / merged[-2][2] >= merged[-1][1] / merged[-1][2]:
                values, total, count = merged.pop()
                merged[-1] = [merged[-1][0] + values, merged[-1][1] + total, merged[-1][2] + count]
        level = {value: total / count for values, total, count in merged for value in values}
        columns.append([level[value] for value in p])
    floor = 1 / (made.n + 1)
    for i in range(made.n):
        total = math.fsum(column[i] for column in columns)
        own = [column[i] / total if total > 0 else 1 / made.K for column in columns]
        for k in range(made.K):
            near(found[i][k], (1 - floor) * own[k] + floor / made.K, f"isotonic, row {i} class {k}", 1e-4)


def _mean_at(p: list[float], hits: list[bool], value: float) -> tuple[float, int]:
    own = [hit for q, hit in zip(p, hits, strict=True) if q == value]
    return sum(own), len(own)


def check_sets(rng: random.Random) -> str:
    """Scores, thresholds and sets by loops; sets of the very rows they were fitted on hold what they promise."""
    made, score, level = Predictions(rng), rng.choice(calibrate.SCORES), rng.choice([0.01, 0.5, 0.9, 0.95, 0.99])
    n, K = made.n, made.K

    def scores(row: list[float]) -> list[float]:
        if score == "lac":
            return [1 - p for p in row]
        return [math.fsum(q for q in row if q >= p) for p in row]

    expected = [scores(row) for row in made.p]
    for found_row, row in zip(calibrate.conformal_scores(made.probs, score), expected, strict=True):
        same(found_row, row, score)
    sets = calibrate.fit_sets(made.probs, made.target.long(), score=score, level=level)
    own = sorted(row[y] for row, y in zip(expected, made.labels, strict=True))
    rank = math.ceil(Fraction(str(level)) * (n + 1))
    near(sets.threshold, own[rank - 1] if rank <= n else math.inf, f"threshold, rank {rank} of {n}")
    covered = sets(made.probs)[torch.arange(n), made.target.long()].sum().item()
    assert covered >= min(rank, n), f"{covered} of {n} are covered, {rank} promised"
    other = Predictions(rng)
    folds = rng.randint(1, 3)
    fold_of = [rng.randrange(folds) for _ in range(n)]
    held = [row[y] for row, y in zip(expected, made.labels, strict=True)]
    coarse = [v / 4 for v in range(5)]
    new = [[[rng.choice(coarse) for _ in range(K)] for _ in range(other.n)] for _ in range(folds)]
    held = [rng.choice(coarse) for _ in held]
    found = calibrate.cross_conformal_sets(
        torch.tensor(held, dtype=torch.float64), torch.tensor(fold_of),
        [torch.tensor(values, dtype=torch.float64) for values in new], level=level,
    )  # fmt: skip
    for i in range(other.n):
        for k in range(K):
            worse = 1 + sum(held[j] >= new[fold_of[j]][i][k] for j in range(n))
            inside = worse > (1 - Fraction(str(level))) * (n + 1)
            assert bool(found[i, k]) == inside, f"{worse} of {n} at {level}: {found[i, k]}"
    return f"sets by {score}"


def check_detectors(rng: random.Random) -> str:
    """Detectors on features against NumPy and scikit-learn, where rows are few, alike, or of one class."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    n, m, D, K = rng.randint(2, 30), rng.randint(1, 6), rng.randint(1, 6), rng.randint(1, 4)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64) + rng.choice([0.0, 10.0])
    if rng.random() < 0.2:
        x[:, rng.randrange(D)] = 3.0  # a feature that does not vary
    y = torch.tensor([rng.randrange(K) for _ in range(n)])
    new = 2 * torch.randn(m, D, generator=generator, dtype=torch.float64)
    k = rng.randint(1, n)
    unit = [row / max(np.linalg.norm(row), 1e-12) for row in x.numpy()]
    for found, row in zip(metrics.fit_knn(x, k)(new).tolist(), new.numpy(), strict=True):
        distances = sorted(float(np.linalg.norm(row / max(np.linalg.norm(row), 1e-12) - other)) for other in unit)
        near(found, -distances[k - 1], f"neighbour {k} of {n}", 2e-3)
    means = {c: x[y == c].mean(0) for c in set(y.tolist())}
    inside = torch.stack([row - means[c] for row, c in zip(x, y.tolist(), strict=True)])
    shrink = rng.random() < 0.5
    if float(inside.abs().max()) < 1e-9:
        refuses(metrics.fit_mahalanobis, x, y)
    else:
        from sklearn.covariance import LedoitWolf

        covariance = inside.T.numpy() @ inside.numpy() / n
        precision = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
        if shrink:
            covariance = LedoitWolf(assume_centered=True).fit(inside.numpy()).covariance_
            precision = np.linalg.pinv(covariance, rcond=1e-12, hermitian=True)
        found_scores = metrics.fit_mahalanobis(x, y, shrink=shrink)(new).tolist()
        for found, row in zip(found_scores, new, strict=True):
            distances = [float((row - mean).numpy() @ precision @ (row - mean).numpy()) for mean in means.values()]
            near(found, -min(distances), f"Mahalanobis, shrink={shrink}, n={n}, D={D}", 1e-4)
    weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((K, D), (K,)))
    if D > 1 and n > D:
        d = rng.randint(1, D - 1)
        logits, of_new = x @ weight.T + bias, new @ weight.T + bias
        origin = -np.linalg.pinv(weight.numpy()) @ bias.numpy()
        values, vectors = np.linalg.eigh((x.numpy() - origin).T @ (x.numpy() - origin))
        outside = vectors[:, : D - d]
        norms = np.linalg.norm((x.numpy() - origin) @ outside, axis=1)
        alpha = float(logits.amax(1).mean()) / norms.mean()
        found_scores = metrics.fit_vim(x, logits, weight, bias, d)(new, of_new).tolist()
        if norms.mean() > 1e-6 and min(np.diff(values)) > 1e-6 * max(values):
            for i, found in enumerate(found_scores):
                virtual = alpha * np.linalg.norm((new[i].numpy() - origin) @ outside)
                near(found, log_sum_exp(of_new[i].tolist()) - virtual, f"ViM, {d} of {D}", 1e-5)
    return "detectors"


def check_statistics(rng: random.Random) -> str:
    """Signed ranks over all signs, Holm's steps, and SciPy's t tests."""
    from scipy import stats

    n = rng.randint(1, 9)
    d = [rng.choice([-2, -1, 0, 1, 2, 3]) / 4 if rng.random() < 0.6 else rng.gauss(0.3, 1) for _ in range(n)]
    known = [v for v in d if v]
    sizes = sorted(map(abs, known))
    rank = {v: (sizes.index(v) + 1 + len(sizes) - sizes[::-1].index(v)) / 2 for v in sizes}
    middle = sum(rank[abs(v)] for v in known) / 2
    away = abs(sum(rank[abs(v)] for v in known if v > 0) - middle)
    signs = list(itertools.product((0, 1), repeat=len(known)))
    extreme = sum(
        abs(sum(rank[abs(v)] * s for v, s in zip(known, sign, strict=True)) - middle) >= away - 1e-9 for sign in signs
    )
    p = extreme / len(signs)
    near(metrics.wilcoxon_signed_rank(d), p, f"signed ranks of {d}")
    near(metrics.smallest_p(n), min(1.0, 2 / 2**n), "smallest p")
    ps = [rng.choice([0.0, 0.01, 0.04, 0.5, 1.0, rng.random()]) for _ in range(rng.randint(1, 6))]
    order, highest, adjusted = sorted(range(len(ps)), key=ps.__getitem__), 0.0, [0.0] * len(ps)
    for step, i in enumerate(order):
        highest = max(highest, min(1.0, ps[i] * (len(ps) - step)))
        adjusted[i] = highest
    for a, b in zip(metrics.holm(ps), adjusted, strict=True):
        near(a, b, f"Holm of {ps}")
    found = metrics.summarize(d)
    near(found.mean, math.fsum(d) / n, "mean")
    spread = math.sqrt(math.fsum((v - math.fsum(d) / n) ** 2 for v in d) / (n - 1)) if n > 1 else math.nan
    near(found.std, spread, "std", 1e-7)
    ours = [rng.random() for _ in d]
    pair = metrics.paired_difference([a + v for a, v in zip(ours, d, strict=True)], ours, resamples=100)
    near(pair.mean, math.fsum(d) / n, "mean difference", 1e-7)
    if n > 1 and spread > 1e-6:
        low, high = stats.t.interval(0.95, n - 1, loc=math.fsum(d) / n, scale=spread / math.sqrt(n))
        near(pair.t_low, low, "t interval", 1e-6)
        near(pair.t_high, high, "t interval", 1e-6)
        near(pair.t_p, stats.ttest_1samp(d, 0.0).pvalue, "t test", 1e-6)
    return "statistics"


def refuses(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """The call is an error of one or two sentences that begins with what is wrong."""
    try:
        found = function(*arguments, **options)
    except (TypeError, ValueError) as error:
        said = str(error)
        names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
        assert said.split(":")[0].split(" and ")[0] in names, f"{function.__name__} says {said!r}"
    else:
        raise AssertionError(f"{function.__name__} takes {arguments}, and returns {found}")


OF_LOGITS = ("top1_accuracy", "negative_log_likelihood", "classification_metrics", "best_temperature", "score_parts")
OF_PROBS = ("expected_calibration_error", "adaptive_calibration_error", "brier_score", "ks_calibration_error",
            "classwise_calibration_error", "debiased_calibration_error", "reliability_bins")  # fmt: skip
FITS = ("fit_temperature", "fit_vector", "fit_isotonic", "fit_offset")


def check_refusals(rng: random.Random) -> str:
    """What has no metric is an error that names the argument, in every function alike."""
    n, K = rng.randint(1, 6), rng.randint(2, 5)
    z, y = torch.randn(n, K), torch.randint(K, (n,))
    wrong_targets = [y + K, y - K, y.float(), y[:-1], torch.cat([y, y]), y[:, None], y.bool(), y.tolist()]
    spoilt = z.clone()
    spoilt[rng.randrange(n), rng.randrange(K)] = rng.choice([math.nan, math.inf])
    wrong_logits = [spoilt, z.long(), z[0], z[:0], z[:, :0], z.tolist(), torch.full_like(z, -math.inf)]
    wrong_probs = [z.softmax(1) * 2, z.softmax(1) - 1, spoilt, z[0].softmax(0), z[:0], z.tolist()]
    what = rng.choice(["target", "logits", "probs", "scores", "fits", "sets"])
    if what == "target":
        for function in (getattr(metrics, rng.choice(OF_LOGITS)), getattr(metrics, rng.choice(OF_PROBS))):
            refuses(function, z.softmax(1), rng.choice(wrong_targets))
    elif what == "logits":
        refuses(getattr(metrics, rng.choice(OF_LOGITS)), rng.choice(wrong_logits), y)
    elif what == "probs":
        refuses(getattr(metrics, rng.choice(OF_PROBS)), rng.choice(wrong_probs), y)
    elif what == "scores":
        good, bad = torch.rand(n), rng.choice([spoilt[:, 0] * math.nan, z, torch.arange(3), z[:0, 0], [0.5]])
        name = rng.choice(["auroc", "aupr_in", "aupr_out", "fpr_at_tpr"])
        refuses(getattr(metrics, name), *rng.choice([(good, bad), (bad, good)]))
    elif what == "fits":
        function = getattr(calibrate, rng.choice(FITS))
        refuses(function, *rng.choice([(z, rng.choice(wrong_targets)), (rng.choice(wrong_logits), y)]))
    else:
        bad = rng.choice([(z.softmax(1), rng.choice(wrong_targets)), (rng.choice(wrong_probs), y)])
        refuses(calibrate.fit_sets, *bad)
    return f"refused {what}"


CHECKS: dict[Callable[[random.Random], str], int] = {
    check_classification: 15, check_calibration: 25, check_detection: 15, check_selective: 8, check_calibrators: 12,
    check_sets: 10, check_detectors: 10, check_statistics: 8, check_refusals: 12,
}  # fmt: skip


def case(rng: random.Random, place: Path) -> str:
    """A metric, calibrator or detector on random or degenerate predictions, against loops of its own."""
    del place
    check = rng.choices(list(CHECKS), list(CHECKS.values()))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(rng.getrandbits(30))
        try:
            return check(rng)
        except Exception as error:
            raise AssertionError(f"{check.__name__}: {type(error).__name__}: {error}") from error
