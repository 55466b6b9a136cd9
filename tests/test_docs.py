"""The documentation: its code runs, its commands exist, the site builds without a warning and loads nothing foreign."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a page that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def load(name: str) -> ModuleType:
    """Import a module of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# README.md is held by test_readme.py, theory.md by tests/theory.
@pytest.mark.parametrize(
    "page", [name for name in TEXT if blocks(TEXT[name], "python") and name != "theory.md"], ids=lambda name: name[:-3]
)
def test_python_blocks_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    torch.manual_seed(0)
    for number, block in enumerate(blocks(TEXT[page], "python"), 1):
        exec(compile(block, f"{page}, python block {number}", "exec"), names)


def test_the_walk_from_an_empty_folder_to_predictions(tmp_path: Path) -> None:
    """Its commands run in order and print what the page shows, but for the numbers."""
    walk = TEXT["quickstart.md"].partition("## From an empty folder")[2].partition("\n## ")[0]
    (images,) = blocks(walk, "python")
    subprocess.run([sys.executable, "-c", images], cwd=tmp_path, check=True)
    gence = f'gence() {{ {shlex.quote(sys.executable)} -m gence "$@"; }}\n'
    environment = {**os.environ, "GENCE_CACHE": str(tmp_path / "cache")}
    printed = ""
    for commands in blocks(walk, "sh"):
        script = f"set -e\n{gence}{commands}".replace("--seeds 3 --epochs 80", "--seeds 2 --epochs 2")
        found = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True, capture_output=True)
        printed += found.stdout.decode()
    shown = [line for text in blocks(walk, "text") for line in text.splitlines()]
    assert len(shown) > 8
    masked = re.sub(r"[0-9a-f]{16}|\d+(\.\d+)?", "#", printed)
    for line in shown:
        loss_told = re.sub(r"--loss .*", "", line)  # which loss wins is not the page's to say
        assert re.sub(r"[0-9a-f]{16}|\d+(\.\d+)?", "#", loss_told).strip() in masked, line
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 21


def test_fences_name_a_language_that_is_known() -> None:
    """A misspelt `pyhton` would be a block that nothing runs."""
    for name, text in TEXT.items():
        fences = re.findall(r"^```(.*)$", text, flags=re.MULTILINE)
        assert len(fences) % 2 == 0, f"{name}: a fence is not closed"
        assert set(fences[::2]) <= {"python", "sh", "toml", "text", "yaml"}, f"{name}: {set(fences[::2])}"


def commands() -> list[tuple[str, str]]:
    """Return every `gence ...` command of the README, the pages and their prose."""
    found = []
    for name, text in {"README.md": (ROOT / "README.md").read_text(encoding="utf-8"), **TEXT}.items():
        lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
        lines += re.findall(r"(?<!`)`(gence [^`]+)`(?!`)", text)
        found += [(name, line.removeprefix("exec ")) for line in lines if re.match(r"(exec )?gence ", line)]
    return found


def test_commands_and_their_options_exist() -> None:
    from typer.main import get_command

    from gence.cli.app import create_app

    app = get_command(create_app())
    seen = set()
    for page, line in commands():
        words = shlex.split(line, comments=True)[1:]
        command = app
        while hasattr(command, "commands") and words and words[0] in command.commands:
            seen.add(words[0])
            command = command.commands[words.pop(0)]
        if words and words[0].isupper():  # "gence COMMAND --help" speaks of any
            continue
        only_options = bool(words) and all(word.startswith("--") for word in words)
        assert only_options or not hasattr(command, "commands"), f"{page}: {line}: no such command"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown = {word for word in words if word.startswith("--")} - known
        assert not unknown, f"{page}: {line}: no such option: {unknown}"
    assert {"compare", "train", "run", "tune", "show", "report", "store", "predict", "data"} <= seen


def test_grids_are_grids() -> None:
    from gence.lab.spec.grid import parse_grid

    grids = [tomllib.loads(block) for text in TEXT.values() for block in blocks(text, "toml")]
    assert grids
    assert all(parse_grid(grid) for grid in grids)


@pytest.mark.parametrize("page", TEXT, ids=lambda name: name[:-3])
def test_no_result_is_typed_by_hand(page: str) -> None:
    prose = re.sub(r"<!-- generated: .*?<!-- end -->", "", TEXT[page], flags=re.DOTALL)
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", prose, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\d+ % and \d+ % quantiles|arXiv[: ]\d{4}\.\d{5}|arxiv\.org/abs/\d{4}\.\d{5}", "", prose)
    assert re.findall(r"\d+(?:\.\d+)? ?%|\b\d+\.\d{2,}|\d (?:bytes|[kMG]i?B|ms)\b", prose) == []


def test_every_public_name_is_in_the_reference() -> None:
    import gence.calibrate
    import gence.losses
    import gence.metrics
    import gence.theory

    listed = set()
    for page in (DOCS / "api").glob("*.md"):
        listed |= set(re.findall(r"^::: (\S+)", page.read_text(), flags=re.MULTILINE))
    for module in (gence.calibrate, gence.losses, gence.metrics, gence.theory):
        constants = {"LOSSES", "METHODS", "SCORES"}
        wanted = {f"{module.__name__}.{name}" for name in module.__all__ if name not in constants}
        assert wanted <= listed, wanted - listed


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    plain = load("plain_docstrings")
    text = plain.as_markdown(
        "Loss :math:`\\frac1n \\sum_i \\mathrm{lse}(z_i) - \\pi_k`, see :func:`~gence.fit`.\n\n"
        ".. math:: \\ell_i = \\sum_k t_{ik} \\left( -\\log p_{ik} \\right)\n\n"
        "Args:\n    x: keys auroc_*, fpr_*.\n\n>>> 1 + 1\n2\n>>> for i in range(1):\n...     i\n0\n\nAfter it."
    )
    assert "Loss `1/n Σ_i lse(z_i) - π_k`, see `gence.fit`." in text
    assert "x: keys auroc_\\*, fpr_\\*." in text
    assert "```text\nℓ_i = Σ_k t_ik ( -log p_ik )\n```" in text
    assert "```pycon\n>>> 1 + 1\n2\n>>> for i in range(1):\n...     i\n0\n```\n\nAfter it." in text


def test_examples_without_a_record_are_shown_as_not_run(tmp_path: Path) -> None:
    hooks = load("hooks")
    (tmp_path / "examples").mkdir()
    for name in ("one", "two"):
        (tmp_path / "examples" / f"{name}.py").write_text(f'"""Shows {name}: a | b.\n\nRun: it\n"""\n')
    assert "`pytest tests/test_examples.py` fills the table" in hooks.examples_table(tmp_path)
    (tmp_path / "build").mkdir()
    entry = {"command": "python examples/one.py", "seconds": 1.5, "result": "| x | accuracy 0.9 |"}
    (tmp_path / "build" / "examples.json").write_text(json.dumps([entry]))
    table = hooks.examples_table(tmp_path)
    assert "| `python examples/one.py` | Shows one: a \\| b. | 1.5 | x \\| accuracy 0.9 |" in table
    assert "| `python examples/two.py` | Shows two: a \\| b. | – | not run |" in table


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    for needed in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is missing; the extra docs installs it")
    folder = tmp_path_factory.mktemp("site")
    python_path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_site_builds_without_warnings(site: Path) -> None:
    """And has every page, every figure a page shows, and no mark left that a hook should have replaced."""
    for page in DOCS.glob("**/*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        html = (site / ("" if name.name == "index" else name) / "index.html").read_text(encoding="utf-8")
        assert "<!-- table:" not in html, page
        assert ":math:" not in html, page
        assert "--8&lt;--" not in html, page
    figures = {name for text in TEXT.values() for name in re.findall(r"\]\((figures/[^)]+)\)", text)}
    assert len(figures) >= 7
    for name in figures:
        assert "<svg" in (site / name).read_text(encoding="utf-8")
    assert not list(site.rglob("*.py"))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.browser
def test_site_in_a_browser(site: Path, chromium: Any) -> None:
    """No error on the console, no request to anyone else, figures that load, and a search that finds."""
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    errors: list[str] = []
    elsewhere: list[str] = []
    with served(site) as address:
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else elsewhere.append(r.url))
        for name in ("", "loss/", "theory/", "integrations/", "api/losses/"):
            page.goto(f"{address}/{name}", wait_until="networkidle")
            broken = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
            assert broken == [], name
        page.goto(address, wait_until="networkidle")
        page.locator("input.md-search__input").click()
        page.keyboard.type("marginal offset", delay=20)
        page.locator(".md-search-result__item").first.wait_for(timeout=60_000)
        page.close()
    assert errors == []
    assert elsewhere == []


def test_notebook_runs_top_to_bottom(tmp_path: Path) -> None:
    """Committed without outputs, so that no number in it is old."""
    nbclient = pytest.importorskip("nbclient", reason="the extra docs is not installed")
    import nbformat

    path = ROOT / "notebooks" / "quickstart.ipynb"
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [str(output) for cell in code for output in cell.outputs]
    assert any("MarginalDriftWarning" in text for text in shown)
    assert any("text/html" in text and "<svg" not in text and "data:image/svg+xml" in text for text in shown)
