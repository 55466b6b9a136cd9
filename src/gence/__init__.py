"""GenCE: generative cross-entropy, a drop-in loss for classification when labels are scarce."""

import importlib
from typing import TYPE_CHECKING, Any

from gence._version import __version__

if TYPE_CHECKING:
    from gence.losses import *  # noqa: F403
    from gence.losses import __all__ as _losses

    __all__ = ["__version__", *_losses]


def __getattr__(name: str) -> Any:
    """The names of `gence.losses`, with torch loaded when the first is asked for: ``gence --help`` needs none of them.

    ``gence.compare`` belongs to the lab, whose packages are loaded likewise; a star import does not load them.
    """
    if name == "compare":
        return importlib.import_module("gence.lab.compare").compare
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'gence' has no attribute {name!r}")
    losses = importlib.import_module("gence.losses")
    globals().setdefault("__all__", ["__version__", *losses.__all__])
    for shown in losses.__all__:
        globals().setdefault(shown, getattr(losses, shown))  # what somebody put in its place stays
    if name not in globals():
        raise AttributeError(f"module 'gence' has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
