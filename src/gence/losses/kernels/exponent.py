"""Exponentials and logarithms at the price of one instruction.

Triton's own ``exp`` keeps results below the smallest normal number (1.2e-38), which costs three instructions more for
every logit. Here they are zero: a column sum that small is summed again in log space anyway (see finalise.py).
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import os

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
HAS_PTX = tl.constexpr(torch.version.cuda is not None and os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def exp2(x):
    """2 to the power of x."""
    if HAS_PTX:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def exp(x):
    """E to the power of x."""
    return exp2(x * LOG2_E)


@triton.jit
def softmax_tile(x, peak, log_sum):
    """p = exp(x - peak - log_sum) of a tile (R, C) of logits.

    The peak is subtracted first, where it is exact; the rest is one fused multiply-add.
    """
    return exp2((x - peak[:, None]) * LOG2_E - (log_sum * LOG2_E)[:, None])


@triton.jit
def log(x):
    """Natural logarithm of a normal number, to 2e-7: the error that a float32 of size 2 has anyway."""
    if HAS_PTX:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.log2(x)
    return y * 0.6931471805599453
