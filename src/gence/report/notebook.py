"""A report as a cell's output: the verdict, the table of losses and the main figures."""

from __future__ import annotations

import base64

from gence.report.build import Report


def fragment(report: Report) -> str:
    """Return HTML for a notebook; figures are pictures, so nothing reaches into the notebook's own page."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("gence.report"), autoescape=True)
    chapter = report.chapters[0]
    figures = [
        {
            "uri": f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}",
            "text": f"{panel.title}. {panel.description}",
        }
        for panel, svg in chapter.panels
        if panel.section == "numbers"
    ]
    template = environment.get_template("notebook.html")
    return template.render(chapter=chapter, table=chapter.tables[0], figures=figures)
