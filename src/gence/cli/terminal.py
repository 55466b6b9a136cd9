"""What reaches a terminal: errors a person can act on, in one line, in any encoding; tables with every number whole."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console
    from rich.table import Table as RichTable

    from gence.lab.report import Table


_LIKE = {
    "−": "-",
    "–": "-",
    "±": "+-",
    "→": "->",
    "×": "x",
    "·": ".",
    "●": "*",
    "…": "...",
    "’": "'",
    "↑": "^",
    "↓": "v",
}


@contextmanager
def shown_plainly() -> Iterator[None]:
    """Print wrong input, missing packages and disk errors as one line and exit with 2.

    GENCE_DEBUG=1 shows the traceback.
    """
    from gence.lab.store import StoreError

    try:
        yield
    except (ValueError, TypeError, StoreError) as error:
        if os.environ.get("GENCE_DEBUG"):
            raise
        sys.exit(_fail(str(error)))
    except OSError as error:
        if os.environ.get("GENCE_DEBUG"):
            raise
        sys.exit(_fail(_said_by_the_system(error)))
    except ModuleNotFoundError as error:
        if os.environ.get("GENCE_DEBUG"):
            raise
        sys.exit(_fail(f"this command needs the package {error.name!r}; install it, or the extra that brings it"))
    except KeyboardInterrupt:
        sys.exit(130)


def print_in_any_encoding() -> None:
    """Let this process print what its terminal cannot show: something like it, or a question mark."""
    codecs.register_error("gence.print", _something_like_it)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gence.print")


def _something_like_it(error: UnicodeError) -> tuple[str, int]:
    """Return what replaces characters that an encoding does not have, as handlers of such errors do."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = []
    for character in error.object[error.start : error.end]:
        known = _LIKE.get(character)
        # Surrogates are bytes of a file's name that are not UTF-8.
        found.append(known or (f"\\x{ord(character) & 0xFF:02x}" if "\udc80" <= character <= "\udcff" else "?"))
    return "".join(found), error.end


def check_out(option: str, path: Path | None) -> None:
    """Raise an error now, rather than after the work, if a file cannot be written at `path`."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder; name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{option} {path} cannot be written: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{option} {path} cannot be written: no permission, or a read-only disk; name another place")


def is_interactive() -> bool:
    """Return whether there is somebody to ask."""
    return sys.stdin is not None and sys.stdin.isatty()


def exit_if_interrupted(stopped: str | None) -> None:
    """End with the code that a shell expects of a command that a signal stopped."""
    codes = {"interrupted": 130, "SIGTERM": 143}
    if stopped in codes:
        sys.exit(codes[stopped])


@contextmanager
def interruption_told(how: str = "at once") -> Iterator[None]:
    """Say what is kept where Ctrl-C ends the command at once: while data are read, or when it comes a second time."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "finished runs are kept; rerun the same command to resume"
        print(f"Stopped by Ctrl-C, {how}: {kept}.", file=sys.stderr)
        raise


@contextmanager
def output_flushed() -> Iterator[None]:
    """Write what is left of the output now: at Python's end a full disk would be a traceback, and so would `| head`."""
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)  # what is still in the buffer is tried again at the end
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                sys.exit(1)  # whoever read the output has seen enough
            raise


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end any command as Ctrl-C does, with its files cleared away; exit codes are 143 and 130.

    Python ignores an exception that is raised in a finaliser or a callback, and with it the signal. Here such a signal
    is sent again a moment later, and no traceback is printed. Compiled libraries may raise an error of their own in its
    place: then the signal, not that error, ends the command.
    """
    before, usual = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    interrupts: list[int] = []

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        numbers = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
        number = numbers.get(ignored.exc_type)
        if number is None:
            before(ignored)
            return
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    own = usual is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    sys.unraisablehook = hook
    if own:  # a Ctrl-C that a shell has its background jobs ignore stays ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        with cleared_on_sigterm() as end_if_asked:
            try:
                yield
            except Exception as error:
                end_if_asked()
                if interrupts:
                    raise KeyboardInterrupt from error
                raise
    finally:
        sys.unraisablehook = before
        if own:
            signal.signal(signal.SIGINT, usual)


@contextmanager
def cleared_on_sigterm() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end the work as Ctrl-C does, so that folders it works in are removed; the exit code is 143.

    Yields a function for the work to call now and then: it ends work that was asked to end but continues, because
    the exception was raised where Python ignores it, as in a finaliser.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked = threading.Event()

    def end(number: int, _frame: object) -> None:
        asked.set()
        sys.exit(128 + number)

    def end_if_asked() -> None:
        if asked.is_set():
            sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield end_if_asked
    finally:
        signal.signal(signal.SIGTERM, before)


def _said_by_the_system(error: OSError) -> str:
    if error.strerror is None:  # raised by a library, with a sentence of its own
        return str(error)
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror}; check the path, who may write there, and the space that is left"


def _fail(message: str) -> int:
    print(f"gence: {message}", file=sys.stderr)
    return 2


_WIDE = 10_000
_FILE_WIDTH = 200


def table_console() -> Console:
    """Return the console for tables: the terminal, or, to a file, one so wide that hardly anything is broken."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)


def print_table(table: Table, console: Console) -> None:
    """Print a table; where a terminal has no room for it, in parts below one another, a few columns each.

    A number that is cut is lost: in a file, and where not even one column has room, lines are longer than the width.
    What is bold is lost in a pipe, or in a terminal that knows no styles: there the best has a mark.
    """
    from rich.console import Console

    bold = console.color_system is not None  # rich writes no style without one; NO_COLOR leaves it, and bold with it
    if console.is_terminal and not table_fits(table, console):
        parts = _parts(table, console)
        for part in parts[:-1]:
            console.print(part.rich(bold=bold))
        table = parts[-1]
    if not _fits(table.rich(bold=bold), console.width):
        widest = Console(width=_WIDE).measure(table.rich(bold=bold)).maximum
        console = Console(file=console.file, width=max(console.width, widest))
    console.print(table.rich(bold=bold))


def _parts(table: Table, console: Console) -> list[Table]:
    """The table in parts that fit: the columns that name a row in each, then as many others as there is room for.

    The last has the caption. A table of which not even one column fits is its own only part.
    """
    named = 2 if len(table.columns) > 2 and not table.columns[1] else 1
    parts: list[Table] = []
    first = named
    while first < len(table.columns):
        fitting = [
            part
            for last in range(first + 1, len(table.columns) + 1)
            if table_fits(part := _columns(table, (*range(named), *range(first, last)), caption=""), console)
        ]
        if not fitting:
            return [table]
        parts.append(fitting[-1])
        first += len(fitting[-1].columns) - named
    return [*parts[:-1], replace(parts[-1], caption=table.caption)]


def _columns(table: Table, kept: Sequence[int], caption: str) -> Table:
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows, caption=caption)


def table_fits(table: Table, console: Console) -> bool:
    """Whether a table has room in a console with every number whole."""
    return _fits(table.rich(bold=console.color_system is not None), console.width)


def _fits(shown: RichTable, width: int) -> bool:
    """Whether rich finds widths for the columns whose sum is the table's: it takes no less than a column's least."""
    from rich.console import Console

    wide = Console(width=_WIDE)
    shown.width = width
    return all(sum(segment.cell_length for segment in line) <= width for line in wide.render_lines(shown, pad=False))


def failure_lines(failed: dict[str, str]) -> list[str]:
    """Return a line for each error, however many runs had it.

    >>> failure_lines({"0a": "no space left", "0b": "no space left", "0c": "killed"})
    ['2 runs failed (0a and others): no space left', 'Run 0c failed: killed']
    """
    keys: dict[str, list[str]] = {}
    for key, error in failed.items():
        keys.setdefault(error, []).append(key)
    return [
        f"Run {runs[0]} failed: {error}"
        if len(runs) == 1
        else f"{len(runs)} runs failed ({runs[0]} and others): {error}"
        for error, runs in keys.items()
    ]
