"""The imports of the package as they stand in its source: lazy ones and those for type checkers counted."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

STREETS = ("gence", "gence.lab")
"""Folders that hold rooms, not code of their own."""


class Import(NamedTuple):
    """One module takes another, or something in it."""

    importer: str
    imported: str


def modules(source: Path) -> dict[str, Path]:
    """Module names and their files."""
    found = {}
    for file in sorted(source.glob("gence/**/*.py")):
        name = ".".join(file.relative_to(source).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    return found


def imports(source: Path) -> set[Import]:
    """All imports of the package's own modules, wherever in a file they stand."""
    files = modules(source)
    trees = {name: ast.parse(file.read_text()) for name, file in files.items()}
    offered = {name: _offered(trees[name]) for name in packages(source)}
    found = set()
    for importer, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                taken = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [name.name for name in node.names if name.name not in offered.get(node.module, ())]
                taken = [
                    f"{node.module}.{name}" if f"{node.module}.{name}" in files else node.module for name in inside
                ]
                taken += [node.module] * (len(inside) < len(node.names))
            else:
                continue
            found |= {Import(importer, name) for name in taken if name in files and name != importer}
    return found


def _offered(front_door: ast.Module) -> set[str]:
    """The names that a package's own page imports, and so offers: they win over files of the same name."""
    lines = [node for node in ast.walk(front_door) if isinstance(node, ast.ImportFrom)]
    return {name.asname or name.name for line in lines for name in line.names}


def packages(source: Path) -> set[str]:
    """The modules that are folders."""
    return {name for name, file in modules(source).items() if file.name == "__init__.py"}


def deep_imports(source: Path) -> list[Import]:
    """Imports that pass a front door: they name a file inside a room in which the importer does not stand.

    A file may take its own folder's files, and those of the folders above it; of any other folder only the front door.
    """
    folders = packages(source)

    def passes(one: Import) -> bool:
        above = one.importer if one.importer in folders else one.importer.rpartition(".")[0]
        while one.imported != above and not one.imported.startswith(f"{above}."):
            above = above.rpartition(".")[0]
        below = [part for part in one.imported.removeprefix(above).split(".") if part]
        if above == "gence" and below[:1] == ["lab"]:
            below = below[1:]
        return len(below) > 1

    return sorted(one for one in imports(source) if passes(one))


def circles(edges: Iterable[Import]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan)."""
    after: dict[str, set[str]] = {}
    for one in edges:
        after.setdefault(one.importer, set()).add(one.imported)
        after.setdefault(one.imported, set())
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(after[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(after):
        if name not in number:
            visit(name)
    return found


def room_of(module: str) -> str:
    """The room a module is in, as CONTRIBUTING's picture names it: "losses", "lab.store"; "" for the front page."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["lab"] else parts[:1])


def arrows(source: Path) -> set[tuple[str, str]]:
    """Which room imports from which; private helpers at the top (`_triton`, `_version`) are not rooms."""
    found = {(room_of(one.importer), room_of(one.imported)) for one in imports(source)}
    return {(a, b) for a, b in found if a != b and not {a, b} & {"", "lab", "__main__"} and not b.startswith("_")}


def drawn(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that a picture needs: those that do not follow from two or more others."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)

    def reached(a: str) -> set[str]:
        direct = after.get(a, set())
        return direct.union(*(reached(b) for b in direct))

    return {(a, b) for a, b in edges if not any(b in reached(c) for c in after[a] - {b})}
