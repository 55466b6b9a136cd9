"""Student's t distribution: p-value, quantile and power, so that the statistics need nothing but torch.

Checked against scipy in the tests.
"""

from __future__ import annotations

import math


def student_two_sided_p(t: float, dof: float) -> float:
    """P(|T| >= |t|) for Student's t with `dof` degrees of freedom: I_{dof / (dof + t^2)}(dof / 2, 1 / 2).

    Example:
        >>> round(student_two_sided_p(2.776445, dof=4), 4)
        0.05
    """
    if math.isinf(t):
        return 0.0
    if t == 0.0:
        return 1.0
    return _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t), (t * t) / (dof + t * t))


def student_critical(alpha: float, dof: float) -> float:
    """The t with P(|T| >= t) = alpha, by bisection.

    Example:
        >>> round(student_critical(0.05, dof=4), 4)
        2.7764
    """
    high = 1.0
    while student_two_sided_p(high, dof) > alpha:
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_two_sided_p(middle, dof) > alpha else (low, middle)
    return (low + high) / 2


def student_power(effect: float, n: int, alpha: float) -> float:
    """Power of the two-sided paired t-test with n pairs, for a true mean difference of `effect` standard deviations.

    P(|T'| >= t_crit) for noncentral t: the integral over s, the sample standard deviation over the true one, of
    Phi(d - t_crit s) + Phi(-d - t_crit s) with d = effect sqrt(n), by Simpson's rule.

    Example:
        >>> round(student_power(effect=0.5, n=34, alpha=0.05), 3)
        0.808
    """
    import torch

    dof, shift, critical = n - 1, effect * math.sqrt(n), student_critical(alpha, n - 1)
    reach = 12 / math.sqrt(2 * dof)  # s has mean near 1 and standard deviation near 1 / sqrt(2 dof)
    s = torch.linspace(max(1e-12, 1 - reach), 1 + reach, 4001, dtype=torch.float64)
    log_density = (dof - 1) * s.log() - dof * s.square() / 2
    weight = torch.ones_like(s)
    weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0  # Simpson; the constant factors cancel
    weight *= (log_density - log_density.amax()).exp()
    tail = torch.special.ndtr(shift - critical * s) + torch.special.ndtr(-shift - critical * s)
    return float((weight * tail).sum() / weight.sum())


def _incomplete_beta(a: float, b: float, x: float, one_minus_x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) by its continued fraction (modified Lentz).

    1 - x comes as an argument because forming it here would lose digits near x = 1.
    """
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1.0 - _incomplete_beta(b, a, one_minus_x, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(one_minus_x)
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            step = c * d
            fraction *= step
        if abs(step - 1) < 1e-15:
            break
    return min(1.0, math.exp(log_front) * fraction / a)
