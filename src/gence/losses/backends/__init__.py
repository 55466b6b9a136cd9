"""Implementations of the generative cross-entropy, and the choice between them.

`dispatch` says which call goes where; `setting` is the user's own choice.
"""

from gence.losses.backends.dispatch import HAS_TRITON, INTERPRETED, OLDEST_TRITON, Call, Choice, batch_loss, choose
from gence.losses.backends.setting import get_backend, set_backend

__all__ = [
    "HAS_TRITON",
    "INTERPRETED",
    "OLDEST_TRITON",
    "Call",
    "Choice",
    "batch_loss",
    "choose",
    "get_backend",
    "set_backend",
]
