"""Where the records of this repository are, and where the checkout itself is."""

from __future__ import annotations

from pathlib import Path

import gence


def checkout() -> Path | None:
    """Return the root of the checkout this package runs from, or None where it was installed without one."""
    package = Path(gence.__file__).resolve().parent
    root = package.parent.parent
    return root if package.parent.name == "src" and (root / "pyproject.toml").exists() else None


def default_results() -> Path:
    """Return the folder of the repository's records of the paper, `results/paper` of the checkout.

    Raises:
        FileNotFoundError: if the package was installed without a checkout: records are not part of a wheel.
    """
    root = checkout()
    if root is None:
        raise FileNotFoundError(
            "the paper's records are part of the repository, and gence runs from an installation without it; name a "
            "store with --store, or run from a checkout"
        )
    return root / "results" / "paper"
