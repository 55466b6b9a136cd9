"""What commands share about their settings: ``--set recipe.lr=0.05``, lists of names, notes about sources.

Names of exhibits and studies stand in a command's help: they are looked up when the help is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

DATA_HELP = (
    "Read a named data set (gence data list), a folder or archive of images (one folder per class), hf:OWNER/NAME, "
    "or a table (CSV, Parquet, .npz)."
)
Ood = Annotated[list[str] | None, typer.Option(help="Out-of-distribution images or rows (repeatable).")]
Device = Annotated[str, typer.Option(help="Compute on auto, cpu, cuda or cuda:1.")]
TextColumn = Annotated[str | None, typer.Option(help="Read texts from this column of a table. Default: recognised.")]
LabelColumn = Annotated[str | None, typer.Option(help="Read labels from this column of a table. Default: recognised.")]
FeatureColumns = Annotated[
    list[str] | None, typer.Option(help="Use this column of a table (repeatable). Default: all but the label.")
]
OodLabel = Annotated[
    str | None, typer.Option(help="Treat rows with this label as out-of-distribution; never train on them.")
]


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Turn ``path=value`` texts into changes for ``RunSpec.replace``.

    A value is a number, true or false, null, or a list in brackets, as JSON writes them; anything else is a word.

    >>> read_settings(["recipe.lr=0.05", "recipe.optimizer=adamw", "recipe.milestones=[0.3, 0.6]"])
    {'recipe.lr': 0.05, 'recipe.optimizer': 'adamw', 'recipe.milestones': [0.3, 0.6]}
    """
    changes: dict[str, Any] = {}
    for text in texts:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not (path and equals and value):
            raise ValueError(f"--set {text!r}: expected field=value, such as recipe.lr=0.05 or loss.anchor=0.1")
        if path in changes:
            raise ValueError(f"--set gives {path} twice; keep one")
        changes[path] = _value(value)
    return changes


def read_names(text: str) -> tuple[str, ...]:
    """Names separated by commas.

    >>> read_names("svhn, cifar100")
    ('svhn', 'cifar100')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_sources(given: Sequence[str] | None) -> tuple[str, ...]:
    """Sources of a repeatable option; names with commas between them, as in old scripts, are taken apart with a note.

    >>> read_sources(["svhn", "cifar100"])
    ('svhn', 'cifar100')
    """
    found: list[str] = []
    for source in given or ():
        names = read_names(source)
        if len(names) > 1 and not Path(source).exists():
            typer.echo(f"note: read {source} as {' '.join(f'--ood {name}' for name in names)}", err=True)
            found += names
        else:
            found.append(source)
    return tuple(found)


def print_skipped(sources: Iterable[str]) -> None:
    """Print, on standard error, which folders of these sources are skipped."""
    from gence.lab.data import left_out_notes

    for source in dict.fromkeys(sources):
        for note in left_out_notes(source):
            typer.echo(f"note: {note}", err=True)


def refuse_options(what: str, reason: str, given: Mapping[str, Any]) -> None:
    """Raise `ValueError` if options are given that would change nothing; one that is absent is None or empty.

    >>> refuse_options("runs/", "a folder of records is shown whole", {"--rows": "cifar10-*", "--seeds": None})
    Traceback (most recent call last):
    ValueError: --rows does nothing for runs/: a folder of records is shown whole; remove it
    """
    named = [option for option, value in given.items() if value not in (None, "")]
    if named:
        verb, it = ("does", "it") if len(named) == 1 else ("do", "them")
        raise ValueError(f"{', '.join(named)} {verb} nothing for {what}: {reason}; remove {it}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return float(text)  # ".5", which is not JSON
    except ValueError:
        return text


NAMES, GRIDS = "{names}", "{grids}"
"""What the help of an argument has in the place of all names, and of those that can be run."""


class CommandOfNames(TyperCommand):
    """A command one of whose arguments is a name of the paper's registry."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the names that there are."""
        from gence.paper import entries

        known = entries()
        grids = ", ".join(name for name, entry in known.items() if entry.is_grid or entry.timing or entry.apart)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.help:
                parameter.help = parameter.help.replace(NAMES, ", ".join(known)).replace(GRIDS, grids)
        super().format_help(ctx, formatter)
