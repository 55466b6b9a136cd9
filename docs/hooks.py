"""What the site makes while it is built: figures, which are computed, and tables, which come from records."""

from __future__ import annotations

import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES_MARK = "<!-- table: examples -->"
BLUE, ORANGE = "#0072b2", "#d55e00"


def on_files(files: Any, *, config: Any) -> Any:
    """Add the figures; they are computed again for each build and lie in no repository."""
    from mkdocs.structure.files import File

    for name, svg in figures().items():
        files.append(File.generated(config, f"figures/{name}", content=svg))
    return files


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Put the table of examples in its place."""
    if EXAMPLES_MARK not in markdown:
        return markdown
    root = Path(config.config_file_path).parent
    return markdown.replace(EXAMPLES_MARK, examples_table(root))


def figures() -> dict[str, str]:
    """Return every figure of the site as SVG text, by file name."""
    from gence.lab.report import as_svg
    from gence.lab.store import Store
    from gence.paper import Asked, default_results, entries
    from gence.theory import write_figures

    with tempfile.TemporaryDirectory() as folder:
        found = {path.name: path.read_text(encoding="utf-8") for path in write_figures(folder)}
    asked = Asked(Store(default_results()))
    for entry in entries().values():
        for drawing in entry.drawings(asked) if entry.drawings is not None else ():
            found[f"{drawing.name}.svg"] = as_svg(drawing.figure(), drawing.name)
    return {**found, "loss-rows-and-columns.svg": rows_and_columns(), "loss-anchor.svg": between_losses()}


def examples_table(root: Path) -> str:
    """Return the examples' commands, what they show, and where a test run has left them, seconds and results."""
    from gence.lab.report import markdown_table

    # This checkout's own test run first, else the one that is kept with the results.
    records = [root / "build" / "examples.json", root / "results" / "examples.json"]
    record = next((path for path in records if path.exists()), None)
    seen = {entry["command"]: entry for entry in json.loads(record.read_text())} if record else {}
    rows = []
    for path in sorted((root / "examples").glob("*.py")):
        command = f"python examples/{path.name}"
        entry = seen.get(command, {})
        result = re.sub(r"\s+", " ", str(entry.get("result", "not run"))).strip("| ").replace("|", "\\|")
        rows.append([f"`{command}`", _summary(path), str(entry.get("seconds", "–")), result])
    table = markdown_table(["Command", "What it shows", "Seconds", "Its last line"], rows, "llrl")
    if seen:
        return table
    return (
        f"{table}\n\nThe examples have not been run in this checkout: `pytest tests/test_examples.py` fills the table."
    )


def _summary(path: Path) -> str:
    import ast

    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


def rows_and_columns() -> str:
    """Draw a batch's predictions: cross-entropy compares within a row, GenCE within a column."""
    import torch
    from matplotlib.patches import Rectangle

    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 2, 1, 0, 2, 1])
    logits = torch.randn(6, 3, generator=generator) + 1.5 * torch.nn.functional.one_hot(labels, 3)
    p = logits.softmax(1)
    figure = _figure(6.4, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title in zip(panels, ("Cross-entropy: which class?", "GenCE: which sample?"), strict=True):
        axes.imshow(p.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
        for i in range(6):
            for k in range(3):
                shade = "white" if p[i, k] > 0.5 else "black"
                axes.text(k, i, f"{p[i, k]:.2f}", ha="center", va="center", color=shade)
        axes.set(title=title, xticks=range(3), xticklabels=[f"class {k + 1}" for k in range(3)])
        axes.set(yticks=range(6), yticklabels=[f"sample {i + 1}" for i in range(6)])
    panels[0].add_patch(Rectangle((-0.48, -0.48), 2.96, 0.96, fill=False, lw=3, ec=BLUE))
    panels[1].add_patch(Rectangle((-0.48, -0.48), 0.96, 5.96, fill=False, lw=3, ec=ORANGE))
    return _svg(figure)


def between_losses() -> str:
    """Draw the loss against a bias added to one class, for anchors from 0 (GenCE) to 1 (cross-entropy)."""
    import torch

    from gence.theory import toy_profile

    offsets = torch.linspace(-12, 12, 121, dtype=torch.float64)
    figure = _figure(6.4, 3.4)
    axes = figure.subplots()
    for anchor, colour in ((0.0, ORANGE), (0.1, "#009e73"), (0.3, "#56b4e9"), (1.0, BLUE)):
        name = {0.0: "0: GenCE", 1.0: "1: cross-entropy"}.get(anchor, f"{anchor}")
        axes.plot(offsets, toy_profile(10, 0.99, offsets, anchor=anchor), label=name, color=colour)
    axes.set(xlabel="bias added to one of ten classes", ylabel="loss above its minimum (nats)", ylim=(0, 3))
    axes.legend(title="anchor", frameon=False)
    return _svg(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
