"""Triton kernels of the generative cross-entropy.

Imported only when a CUDA tensor asks for them (or a test, through Triton's interpreter), because they need Triton.

Regimes by the length of a row, one result:

- ``tiny``: the whole problem in one program, loss and gradient in one launch (the launches are the cost there);
- ``rows``: a row fits in registers, so it is read once and its column sums stay in registers as well;
- ``stream``: a row does not fit, so it is looked at twice, in a launch each;
- ``long_rows``: backward, a row that fits into the caches of one multiprocessor is left to one program;
- ``group``: backward, a longer row is held in the registers of a group of programs, so it is read once.

In all of them p_jk c_k stands for (T_k / S_k) p_jk with the per-class coefficient c_k, and columns whose sum would
underflow are summed again in log space, without the host looking.
"""

from gence.losses.backends.triton.forward import is_tiny
from gence.losses.backends.triton.layout import operands_of
from gence.losses.backends.triton.operator import compiled_loss, eager_loss
from gence.losses.backends.triton.plans import plan_of
from gence.losses.backends.triton.tuning import fingerprint
