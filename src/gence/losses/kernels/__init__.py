"""Triton kernels of the generative cross-entropy: one read of the logits forward, one read and one write backward.

Imported only when a CUDA tensor asks for them (or a test, through Triton's interpreter), because they need Triton.

Three regimes, one result:

- ``tiny``: the whole problem in one program, loss and gradient in one launch (the launches are the cost there);
- ``rows``: a row fits in registers, so it is read once and its column sums stay in registers as well;
- ``stream``: a row does not fit, so work is ordered such that the second look at it finds it in the L2 cache; backward,
  rows that fit into the caches of one multiprocessor are each left to one program (``long_rows``).

In all of them p_jk c_k stands for (T_k / S_k) p_jk with the per-class coefficient c_k, and columns whose sum would
underflow are summed again in log space, without the host looking.
"""
