"""Front doors that open lazily: a room lists its public names once, and the file of a name is imported when asked for.

So a command that only reads records never loads torch, and a reader sees what a room offers on one page.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def front_door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from what it imports under ``if TYPE_CHECKING:``.

    Type checkers and readers see ordinary imports there; at run time each happens when its name is first used.

    >>> opened, names, public = front_door("gence.lab.spec")
    >>> opened("RunSpec").__name__, "RunSpec" in public
    ('RunSpec', True)
    """
    file_of = _listed(package)
    namespace = vars(sys.modules[package])

    def __getattr__(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(file_of[name]), name)
        return namespace.setdefault(name, found)  # what somebody put in its place stays

    def __dir__() -> list[str]:
        return sorted({*namespace, *file_of})

    return __getattr__, __dir__, sorted(file_of)


def _listed(package: str) -> dict[str, str]:
    """The public names of a package, and the module that each comes from."""
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package) if spec and spec.loader else None  # type: ignore[attr-defined]
    if source is None:
        raise ImportError(f"cannot find the source of {package}, which lists its public names")
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    found.update({name.name: line.module for name in line.names})
    return found
