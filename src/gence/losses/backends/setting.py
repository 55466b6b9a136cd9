"""Which implementation computes the generative cross-entropy: one setting, one place.

- ``"auto"`` (default): Triton kernels for CUDA tensors, the fused CPU path for CPU tensors, and plain PyTorch
  operations wherever those do not apply (double precision on a GPU, ``vmap`` and other function transforms,
  forward-mode differentiation, tensor subclasses, targets or weights that need a gradient).
- ``"torch"``: plain PyTorch operations always. The readable reference, and differentiable any number of times.
- ``"triton"``: Triton kernels, or an error that says why they do not apply. On the CPU this means Triton's interpreter
  (``TRITON_INTERPRET=1``), which is for tests. Empty input, one row alone (whose loss is 0) and tensor subclasses are
  still left to the plain operations, which raise, warn or pass them on.

Set it with :func:`set_backend`, as a function or as a context manager, or with the environment variable
``GENCE_BACKEND``. All of them compute the same loss.
"""

from __future__ import annotations

import os
from types import TracebackType

BACKENDS = ("auto", "torch", "triton")
ENVIRONMENT_VARIABLE = "GENCE_BACKEND"

current: str | None = None
"""The backend that was set; None before the first look at it, when the environment decides."""


def get_backend() -> str:
    """The backend in force.

    >>> import gence
    >>> gence.get_backend()
    'auto'
    """
    global current
    if current is None:
        current = _checked(os.environ.get(ENVIRONMENT_VARIABLE, "auto"), ENVIRONMENT_VARIABLE)
    return current


class set_backend:
    """Choose the backend of the generative cross-entropy, for good or for a ``with`` block.

    Args:
        backend: "auto", "torch" or "triton"; see :mod:`gence.losses.backends.setting`.

    >>> import gence
    >>> with gence.set_backend("torch"):
    ...     gence.get_backend()
    'torch'
    >>> gence.get_backend()
    'auto'
    """

    def __init__(self, backend: str) -> None:
        global current
        backend = _checked(backend, "backend")
        self._before = get_backend()
        current = backend

    def __enter__(self) -> None:
        """Nothing more to do: the call itself has set the backend."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former backend back."""
        global current
        current = self._before


def _checked(backend: str, name: str) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    return backend
