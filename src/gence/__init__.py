"""GenCE: generative cross-entropy, a drop-in loss for classification when labels are scarce."""

from gence._version import __version__
from gence.losses import *  # noqa: F403
from gence.losses import __all__ as _losses

__all__ = ["__version__", *_losses]
