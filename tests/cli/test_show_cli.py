from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.cli.terminal import print_table
from gence.lab.store.files import StoreError
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import shown
from gence.paper.exhibits.table1 import table1
from gence.paper.records import checkout, default_results
from tests.lab.small_runs import write_images

ROW = "cifar100-2000-vgg19"


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(create_app(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def store(tmp_path) -> Store:
    """Two seeds of cross-entropy in one cell, without training."""
    store = Store(tmp_path / "store")
    row = table1().selected([ROW])[0]
    for seed, accuracy in enumerate((0.15, 0.16)):
        store.write(row.base.replace(loss="ce", seed=seed), RunResult(metrics={"accuracy": accuracy, "ece": 0.3}))
    return store


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_every_form_has_ours_the_paper_s_and_what_is_missing(store: Store, form: str) -> None:
    output = invoke("show", "table1", "--store", store.root, "--rows", ROW, "--format", form)
    plus_minus = r"$\pm$" if form == "latex" else "±"
    assert f"15.50 {plus_minus} 0.71 (2 of 5)" in output
    assert f"14.92 {plus_minus} 0.58" in output
    assert "+0.58 (+1.0 SE)" in output
    assert "missing (0 of 5)" in output


def test_fewer_seeds_can_be_asked_for(store: Store) -> None:
    output = invoke("show", "table1", "--store", store.root, "--rows", ROW, "--seeds", 2, "--format", "csv")
    assert "15.50 ± 0.71," in output
    assert "missing (0 of 2)" in output


def test_shared_runs_show_in_every_exhibit(store: Store) -> None:
    assert "30.00 ± 0.00 (2 of 5)" in invoke("show", "ece", "--store", store.root, "--rows", ROW, "--format", "csv")
    assert "15.50 (n = 2)" in invoke("show", "open_choices", "--store", store.root)
    assert "2 of 35" in invoke("show", "costs", "--store", store.root)


def test_another_recipe_is_another_table(store: Store) -> None:
    output = invoke("show", "table1", "--store", store.root, "--rows", ROW, "--recipe", "modern", "--format", "csv")
    assert "15.50" not in output
    assert "14.92 ± 0.58" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "tabel1"], "tabel1 is neither a table nor a folder of records; did you mean 'table1'"),
        (["show", "nowhere/"], "nowhere/ is neither a table nor a folder of records; known: "),
        (["show", "{}"], "has no finished run; there are records in .*store: name that folder"),
        (["show", "{}/empty"], "has no finished run; check the path, or make runs with"),
        (["report", "{}"], "no finished run to report; there are records in .*store: name that folder"),
        (["report", "paper", "--out", "{}/file"], "out is .*file, and it or a part of it is a file; expected a folder"),
    ],
)
def test_what_is_no_store_and_no_table_is_said_with_what_to_do(
    store: Store, tmp_path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises((ValueError, StoreError), match=message):
        invoke(*(argument.format(tmp_path) for argument in arguments))


def test_the_page_is_written(store: Store, tmp_path) -> None:
    assert "paper.html" in invoke("report", "paper", "--store", store.root, "--out", tmp_path / "report")
    assert "15.50 ± 0.71" in (tmp_path / "report" / "paper.html").read_text()


def test_a_folder_of_records_is_shown_too(store: Store) -> None:
    assert "15.5" in invoke("show", store.root)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("show", ["--format", "csv"]),
        ("show", ["--rows", "cifar10-*"]),
        ("show", ["--store", "elsewhere"]),
        ("show", ["--seeds", "3"]),
        ("show", ["--recipe", "modern"]),
        ("report", ["--store", "elsewhere"]),
        ("report", ["--recipe", "modern"]),
    ],
)
def test_options_that_a_folder_has_no_use_for_are_refused(store: Store, tmp_path, command: str, options: list) -> None:
    with pytest.raises(ValueError, match=f"^{options[0]} does nothing for .*store: .* remove it"):
        invoke(command, store.root, *options)


def test_options_that_a_table_has_no_use_for_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="--rows, --recipe do nothing for open_choices"):
        invoke("show", "open_choices", "--store", store.root, "--rows", ROW, "--recipe", "modern")
    for options in (["--losses", "ce"], ["--recipe", "modern"]):
        with pytest.raises(ValueError, match="open_choices runs cross-entropy alone"):
            invoke("run", "open_choices", *options, "--store", store.root, "--dry-run")
    for options in (["--losses", "ce"], ["--recipe", "modern"], ["--time-limit", 5], ["--cohort-size", 2]):
        with pytest.raises(ValueError, match="does nothing for epoch_time"):
            invoke("run", "epoch_time", *options, "--store", store.root, "--dry-run")


def test_a_line_that_is_no_record_is_said(store: Store) -> None:
    store.pack()
    store.pack_path.write_bytes(store.pack_path.read_bytes() + b"garbage {{{\n")
    result = CliRunner().invoke(create_app(), ["show", "table1", "--store", str(store.root), "--rows", ROW])
    assert "records.jsonl:3 is not a record" in result.stderr
    assert "15.50 ± 0.71 (2 of 5)" in result.stdout


def test_no_number_is_cut_in_a_narrow_terminal(store: Store) -> None:
    """A real terminal of 80 columns, which cuts what does not fit."""
    command = [sys.executable, "-m", "gence", "show", "table1", "--store", str(store.root), "--rows", ROW]
    main, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, stdout=end, stderr=end, env={**environment, "TERM": "xterm"}):
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that the other side is gone
            while part := os.read(main, 65536):
                shown += part
    os.close(main)
    assert "15.50 ± 0.71 (2 of 5)" in shown.decode()
    assert "16.18 ± 0.59" in shown.decode()
    assert "…" not in shown.decode()


@pytest.mark.parametrize("color", [None, "standard"])
def test_the_best_is_marked_where_nothing_can_be_bold(color: str | None) -> None:
    table, _ = shown("open_choices", Store(default_results()))
    best = [(i, cell.text) for row in table.rows for i, cell in enumerate(row.cells) if cell.best]
    assert [i for i, _ in best] == [0, 6]
    out = io.StringIO()
    print_table(table, Console(file=out, width=300, force_terminal=True, color_system=color, _environ={}))
    if color is None:
        assert all((f" *{text} │" if i else f"│ {text}* ") in out.getvalue() for i, text in best)
        assert "A * marks the best." in out.getvalue()
    else:
        assert "*" not in out.getvalue()
        bold = [text.strip() for text in re.findall(r"\x1b\[1m([^\x1b]*)", out.getvalue())]
        assert {text for _, text in best} <= set(bold)


@pytest.mark.parametrize("name", ["remedies", "remedies_drift", "open_choices", "epoch_time", "tuned"])
def test_tables_of_every_width_have_whole_numbers_and_borders(name: str) -> None:
    table, _ = shown(name, Store(default_results()))
    for width in (64, 80, 140, 176, 200, 228, 312):
        out = io.StringIO()
        print_table(table, Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert all(cell.text in out.getvalue() for row in table.rows for cell in row.cells[1:]), width
        assert len({len(line) for line in lines if line[0] in "┃│"}) == 1, width


def test_runs_say_which_folders_are_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))
    data = write_images(tmp_path / "photos", {"cat": 10, "dog": 10, ".fox": 10})
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'[base]\ndata = "{data}"\nmodel = "mlp"\nrecipe = "tiny"\n"recipe.epochs" = 1\nloss = "ce"\nseed = 0\n'
    )
    output = invoke("run", grid, "--store", tmp_path / "runs", "--device", "cpu")
    assert output.count(f"note: {data}: skipped .fox") == 1


def test_the_repository_s_own_records_are_the_default() -> None:
    assert default_results() == checkout() / "results" / "paper"
    assert "Data, N, Network" in invoke("show", "table1", "--format", "csv")


def test_wrong_names_are_errors(store: Store, tmp_path) -> None:
    with pytest.raises(ValueError, match="did you mean 'ece'"):
        invoke("show", "ecee", "--store", store.root)
    with pytest.raises(StoreError, match="there is no store at"):
        invoke("show", "ece", "--store", tmp_path / "nothing")
    with pytest.raises(ValueError, match="--format is 'html'"):
        invoke("show", "ece", "--store", store.root, "--format", "html")


def test_an_installation_without_the_records_says_so(monkeypatch) -> None:
    monkeypatch.setattr("gence.paper.records.checkout", lambda: None)
    with pytest.raises(FileNotFoundError, match="name a store with --store, or run from a checkout"):
        default_results()


def test_a_narrow_terminal_gets_the_columns_in_parts() -> None:
    table, _ = shown("table1", Store(default_results()))
    for width in (80, 100, 160):
        out = io.StringIO()
        print_table(table, Console(file=out, width=width, force_terminal=True, color_system=None, _environ={}))
        assert max(map(len, out.getvalue().splitlines())) <= width
        assert all(cell.text in out.getvalue() for row in table.rows for cell in row.cells[1:]), width
        assert out.getvalue().count("┡") > 1
