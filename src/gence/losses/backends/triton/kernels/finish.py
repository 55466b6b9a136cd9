"""From column sums to the loss and to the coefficients that the backward pass needs.

``finalise`` is a launch of its own: each program takes its share of the classes and of the rows; the last one to finish
adds the shares up in a fixed order. Where one program is enough, the last one of ``rows_forward`` does it, by the same
functions. So what other programs may have written is read past the L1 cache, which label counts never enter.

Linear float32 sums are exact enough until they underflow. Where a class that counts has a sum below ``FLOOR``, its
block of columns is summed again in log space, here and only then, so no value has to be looked at by the host.

Over 300 lines because Triton functions take each argument by name, and two of them take thirty.
"""

import triton
import triton.language as tl

from gence.losses.backends.triton.kernels.tiles import EXTREME, INVERSE_DENOMINATOR, LOWEST, VECTORS, load_counts

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


FLOOR = tl.constexpr(1e-30)
LOW = tl.constexpr(-60.0)  # a little above log(FLOOR): below it the coefficient is kept relative to its column


@triton.jit
def _merge_columns(z, stats, n, stride, cols, col_ok, top, total, R: tl.constexpr):
    """Log-space column sums (max, sum beyond it) of the rows of ``z``, merged into (top, total)."""
    for start in range(0, n, R):
        rows = start + tl.arange(0, R)
        row_ok = rows < n
        peak = tl.load(stats + rows, mask=row_ok, other=0.0, cache_modifier=".cg")
        log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"), cache_modifier=".cg")
        valid = row_ok & (log_sum != float("inf"))
        mask = valid[:, None] & col_ok[None, :]
        x = tl.load(z + rows.to(tl.int64)[:, None] * stride + cols[None, :], mask=mask, other=float("-inf"))
        log_p = (x.to(tl.float32) - peak[:, None]) - log_sum[:, None]
        # A finite stand-in for "nothing yet" keeps inf - inf out.
        higher = tl.maximum(top, tl.maximum(tl.max(log_p, 0), LOWEST))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(log_p - higher[None, :]), 0)
        top = higher
    return top, total


@triton.jit
def class_shares(
    z, context, sums, stats, context_stats, classes, weight, prior, costs_at, cost_count, pid, n, m, stride,
    context_stride, partials, eps, strength, K: tl.constexpr, KP: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr, R: tl.constexpr, PROGRAMS: tl.constexpr, HAS_CONTEXT: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, ANCHOR: tl.constexpr, HAS_PRIOR: tl.constexpr,
    INDEX: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Writes the coefficients c with their reference (see ``class_pull``) and log S of program ``pid``'s classes.

    Returns its shares of: the rows' costs; cross term; negative entropy of the targets or prior; the prior's cross term
    and mass; weighted label mass; weighted and unweighted number of labels; and whether a column has a reference.
    """
    costs = tl.zeros((BLOCK_N,), tl.float32)
    for block in range(pid, tl.cdiv(cost_count, BLOCK_N), PROGRAMS):
        at = block * BLOCK_N + tl.arange(0, BLOCK_N)
        costs += tl.load(costs_at + at, mask=at < cost_count, other=0.0, cache_modifier=".cg")

    # Smoothing needs the number of rows and a given prior the whole label mass, before any class is done.
    count = n * 1.0
    whole = 0.0
    if SMOOTH or HAS_PRIOR:
        counted = tl.zeros((BLOCK_K,), tl.float32)
        weighted = tl.zeros((BLOCK_K,), tl.float32)
        weights = tl.zeros((BLOCK_K,), tl.float32)
        for start in range(0, K, BLOCK_K):
            cols = start + tl.arange(0, BLOCK_K)
            labels = load_counts(sums, cols, cols < K, KP, INDEX)
            counted += labels
            if HAS_WEIGHT:
                w = tl.load(weight + cols, mask=cols < K, other=0.0).to(tl.float32)
                weighted += w * labels
                weights += w
        if INDEX:
            count = tl.sum(counted, 0)
        if HAS_WEIGHT:
            whole = tl.sum(weighted, 0)
            if SMOOTH:
                whole = (1.0 - eps) * whole + (eps / K) * count * tl.sum(weights, 0)
        else:
            whole = tl.sum(counted, 0)
            if SMOOTH:
                whole = (1.0 - eps) * whole + eps * count

    cross = tl.zeros((BLOCK_K,), tl.float32)
    entropy = tl.zeros((BLOCK_K,), tl.float32)
    prior_cross = tl.zeros((BLOCK_K,), tl.float32)
    prior_mass = tl.zeros((BLOCK_K,), tl.float32)
    masses = tl.zeros((BLOCK_K,), tl.float32)
    weighted_labels = tl.zeros((BLOCK_K,), tl.float32)
    label_count = tl.zeros((BLOCK_K,), tl.float32)
    extremes = tl.zeros((BLOCK_K,), tl.float32)
    for block in range(pid, tl.cdiv(K, BLOCK_K), PROGRAMS):
        cols = block * BLOCK_K + tl.arange(0, BLOCK_K)
        col_ok = cols < K
        if PARTIAL:
            s = tl.zeros((BLOCK_K,), tl.float32)
            for slot in range(0, partials, R):
                slots = slot + tl.arange(0, R)
                at = (slots.to(tl.int64) * KP)[:, None] + cols[None, :]
                ok = (slots < partials)[:, None] & col_ok[None, :]
                s += tl.sum(tl.load(sums + 2 * KP + at, mask=ok, other=0.0), 0)
        else:
            s = tl.load(sums + cols, mask=col_ok, other=0.0, cache_modifier=".cg")
        labels = load_counts(sums, cols, col_ok, KP, INDEX)
        label_count += labels
        mass = labels
        if SMOOTH:
            mass = tl.where(col_ok, (1.0 - eps) * labels + (eps / K) * count, 0.0)
        if HAS_WEIGHT:
            w = tl.load(weight + cols, mask=col_ok, other=0.0).to(tl.float32)
            mass = mass * w
            weighted_labels += w * labels
        else:
            weighted_labels += labels
        masses += mass
        needed = mass != 0.0
        if HAS_PRIOR:
            pi = tl.load(prior + cols, mask=col_ok, other=0.0).to(tl.float32)
            needed = needed | (pi > 0.0)

        sunk = needed & (s < FLOOR)
        log_s = tl.log(tl.where(needed & (s >= FLOOR), s, 1.0))
        log_s = tl.where(needed & (s != s), float("nan"), log_s)
        # S = beyond * exp(low), with low = 0 unless the sum is tiny.
        low = tl.where(needed & (log_s < LOW), log_s, 0.0)
        beyond = tl.where(low != 0.0, 1.0, tl.where(needed, s, 1.0))
        if tl.max(sunk.to(tl.int32), 0) > 0:
            top = tl.full((BLOCK_K,), LOWEST, tl.float32)
            total = tl.zeros((BLOCK_K,), tl.float32)
            top, total = _merge_columns(z, stats, n, stride, cols, col_ok, top, total, R)
            if HAS_CONTEXT:
                top, total = _merge_columns(context, context_stats, m, context_stride, cols, col_ok, top, total, R)
            top = tl.where(total > 0.0, top, 0.0)
            log_s = tl.where(sunk, top + tl.log(total), log_s)
            low = tl.where(sunk, top, low)
            beyond = tl.where(sunk, total, beyond)

        pull = mass
        if ANCHOR != 0:
            if HAS_PRIOR:
                pull = mass - strength * whole * pi
                entropy += tl.where(pi > 0.0, pi * tl.log(tl.where(pi > 0.0, pi, 1.0)), 0.0)
                prior_cross += tl.where(pi > 0.0, pi * log_s, 0.0)
                prior_mass += pi
            else:
                pull = mass * (1.0 - strength)
                entropy += tl.where(mass > 0.0, mass * tl.log(tl.where(mass > 0.0, mass, 1.0)), 0.0)
        cross += tl.where(mass != 0.0, mass * log_s, 0.0)
        extremes = tl.maximum(extremes, tl.where(low != 0.0, 1.0, 0.0))
        # A class without any probability, as one whose logits are all -inf, pulls at nothing.
        c = tl.where(needed & (beyond != 0.0), pull / tl.where(beyond != 0.0, beyond, 1.0), 0.0)
        # The class vectors: as many as VECTORS says.
        tl.store(classes + cols, c, mask=col_ok)
        tl.store(classes + KP + cols, low, mask=col_ok)
        tl.store(classes + 2 * KP + cols, log_s, mask=col_ok)
        tl.store(classes + 3 * KP + cols, beyond, mask=col_ok)

    # Sums over the threads of a program take their time, so none is taken twice or of zeros.
    label_mass = tl.sum(label_count, 0)
    mass_sum = label_mass
    denominator = label_mass
    if HAS_WEIGHT or SMOOTH:
        mass_sum = tl.sum(masses, 0)
    if HAS_WEIGHT:
        denominator = tl.sum(weighted_labels, 0)
    negative_entropy = 0.0
    of_prior = 0.0
    whole_prior = 0.0
    if ANCHOR != 0:
        negative_entropy = tl.sum(entropy, 0)
        if HAS_PRIOR:
            of_prior = tl.sum(prior_cross, 0)
            whole_prior = tl.sum(prior_mass, 0)
    return (
        tl.sum(costs, 0), tl.sum(cross, 0), negative_entropy, of_prior, whole_prior, mass_sum, denominator,
        label_mass, tl.max(extremes, 0),
    )  # fmt: skip


@triton.jit
def write_loss(
    classes, loss, cost, cross, negative_entropy, of_prior, whole_prior, label_mass, weighted_labels, label_count,
    extreme, n, m, strength, KP: tl.constexpr, ANCHOR: tl.constexpr, HAS_PRIOR: tl.constexpr, INDEX: tl.constexpr,
    REDUCTION: tl.constexpr,
):  # fmt: skip
    """Writes the loss and two scalars from the sums of the shares."""
    cost += cross
    denominator = n * 1.0
    taking_part = n * 1.0
    if INDEX:
        denominator = weighted_labels
        taking_part = label_count
    if ANCHOR != 0:
        everything = taking_part + m
        log_n = tl.log(tl.maximum(everything, 1.0))
        if HAS_PRIOR:
            divergence = label_mass * (negative_entropy - of_prior + whole_prior * log_n)
        else:
            log_mass = tl.log(tl.where(label_mass > 0.0, label_mass, 1.0))
            divergence = negative_entropy - label_mass * log_mass + label_mass * log_n
            divergence -= cross
        off = (everything == 0.0) | (strength == 0.0) & (divergence == float("inf"))
        cost += strength * tl.where(off, 0.0, divergence)
    inverse = 1.0
    if REDUCTION == 2:
        inverse = 1.0 / denominator
        cost = cost / denominator
        if INDEX:  # the mean over nothing is NaN, but no row has a gradient
            cost = tl.where(denominator != 0.0, cost, float("nan"))
            inverse = tl.where(denominator != 0.0, inverse, 0.0)
    tl.store(loss, cost)
    tl.store(classes + VECTORS * KP + INVERSE_DENOMINATOR, inverse)
    tl.store(classes + VECTORS * KP + EXTREME, extreme)


@triton.jit
def _sum_of(shares, which: tl.constexpr):
    return tl.sum(tl.load(shares + which, cache_modifier=".cg"), 0)


@triton.jit(do_not_specialize=["n", "m", "stride", "context_stride", "partials", "counter_at"])
def finalise(
    z, context, sums, stats, context_stats, classes, loss, weight, prior, anchor_at, n, m, stride, context_stride,
    partials, counter_at, eps, anchor, K: tl.constexpr, KP: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr, R: tl.constexpr, PROGRAMS: tl.constexpr, HAS_CONTEXT: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, ANCHOR: tl.constexpr, HAS_PRIOR: tl.constexpr,
    INDEX: tl.constexpr, REDUCTION: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Writes the loss, and the class vectors and scalars of the backward pass."""
    pid = tl.program_id(0)
    strength = 0.0
    if ANCHOR == 1:
        strength = anchor
    elif ANCHOR == 2:
        strength = tl.load(anchor_at).to(tl.float32)
    of_program = class_shares(
        z, context, sums, stats, context_stats, classes, weight, prior, stats + 2 * n, n, pid, n, m, stride,
        context_stride, partials, eps, strength, K, KP, BLOCK_K, BLOCK_N, R, PROGRAMS, HAS_CONTEXT, HAS_WEIGHT,
        SMOOTH, ANCHOR, HAS_PRIOR, INDEX, PARTIAL,
    )  # fmt: skip
    shares = classes + VECTORS * KP + 16
    for which in tl.static_range(9):
        tl.store(shares + pid * 16 + which, of_program[which])
    tl.debug_barrier()  # all of this program's stores come before its tick
    counter = (sums + counter_at).to(tl.pointer_type(tl.int32))
    finished = tl.atomic_add(counter, 1, sem="acq_rel")
    if finished == PROGRAMS - 1:
        # PROGRAMS is a power of two.
        of = shares + tl.arange(0, PROGRAMS) * 16
        write_loss(
            classes, loss, _sum_of(of, 0), _sum_of(of, 1), _sum_of(of, 2), _sum_of(of, 3), _sum_of(of, 4),
            _sum_of(of, 5), _sum_of(of, 6), _sum_of(of, 7), tl.max(tl.load(of + 8, cache_modifier=".cg"), 0), n, m,
            strength, KP, ANCHOR, HAS_PRIOR, INDEX, REDUCTION,
        )  # fmt: skip
