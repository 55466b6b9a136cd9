"""GenCE: generative cross-entropy, a drop-in loss for classification when labels are scarce."""

from typing import Any

from gence._version import __version__
from gence.losses import *  # noqa: F403
from gence.losses import __all__ as _losses

# Not "compare": a star import must not load the lab.
__all__ = ["__version__", *_losses]


def __getattr__(name: str) -> Any:
    """``gence.compare`` belongs to the lab, whose packages are loaded when it is first asked for."""
    if name == "compare":
        from gence.report.compare import compare

        return compare
    raise AttributeError(f"module 'gence' has no attribute {name!r}")
