"""Words put together into sentences."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(words: Sequence[str]) -> str:
    """Return words as an enumeration.

    >>> enumerated(["accuracy"]), enumerated(["accuracy", "ECE", "AUROC"])
    ('accuracy', 'accuracy, ECE and AUROC')
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
