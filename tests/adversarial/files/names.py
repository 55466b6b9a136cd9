"""Class and file names that are formulas, markup or scripts, through training, prediction, export and the page."""

from __future__ import annotations

import csv
import html.parser
import random
import re
import shutil
from pathlib import Path

from tests.adversarial.process import CPU, start, write_photos
from tests.adversarial.zygote import zygote

HOSTILE = (
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "<script>document.title='pwned'</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><h1>x",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "[bold red]x[/bold red]",
    "{{7*7}}",
    "%s%n",
    "a,b",
    'a"b',
    "a'b",
    "a\nb",
    "a\tb",
    "\u202eevil",
    "\x1b[2J",
    "a;b",
    "$(touch x)",
    "`id`",
    "é" * 60,
    "]]>",
    "<!--",
    "--",
    "\\",
    "a\rb",
    "\x07",
    "' onmouseover='x",
    "nan",
    "1e5",
    "None",
    "<svg onload=alert(1)>",
    "\u2028",
)
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")
_INTERVAL = re.compile(r"[+-]\d+\.\d+ to [+-]\d+\.\d+")  # the report's own words
_TAGS = {"script": 0, "iframe": 0, "object": 0, "embed": 0, "link": 0, "base": 0, "form": 0}


def name_case(rng: random.Random, place: Path) -> str:
    """Hostile names of folders, classes and images through training, prediction, tables and the page."""
    classes = tuple(name.replace("/", "∕") for name in rng.sample(HOSTILE, 2))
    photos = write_photos(
        place / rng.choice(("photos", "<b>photos", "=photos", "pho\ntos", "[i]photos")), 12, 0, classes
    )
    files = []
    for folder in sorted(path for path in photos.iterdir() if path.is_dir()):
        odd = rng.choice(HOSTILE).replace("/", "∕")
        files.append(min(folder.iterdir()).rename(folder / f"{odd[:50]}.png"))
    small = ("--epochs", "1", *CPU)
    kind = rng.choice(("predict", "predict", "page"))
    if any("\\" in str(file) for file in files):
        child = start(("train", "--data", str(photos), *small), place)
        assert zygote().wait(child) != 0, "a name with a backslash was read"
        assert "unsafe name" in child.errors, child.errors[-2000:]
        assert "Traceback" not in child.errors, child.errors[-2000:]
        return "a backslash: refused"
    if kind == "predict":
        _run(place, "train", "--data", str(photos), "--save", "m.safetensors", *small)
        _run(place, "predict", "m.safetensors", str(photos), "--out", "p.csv", *CPU)
        rows = _cells_compute_nothing(place / "p.csv")
        assert len(rows) == 1 + 24, f"{len(rows)} rows for 24 images"
        assert all(len(row) == len(rows[0]) for row in rows)
        return kind
    _run(
        place,
        "compare",
        "--data",
        str(photos),
        "--losses",
        "ce,gence",
        "--seeds",
        "2",
        "--out",
        "out",
        "--workers",
        "1",
        *small,
    )
    _run(place, "store", "export", "out/store", "runs.csv")
    _cells_compute_nothing(place / "runs.csv")
    for table in (place / "out").rglob("*.csv"):
        _cells_compute_nothing(table)
    page = place / "out" / "report.html"
    _page_runs_nothing(page.read_text())
    if rng.random() < 0.5 and (opened := _in_a_browser(page)):
        kind += opened
    return kind


def _run(place: Path, *arguments: str) -> str:
    child = start(arguments, place)
    assert zygote().wait(child) == 0, f"{arguments[0]}: {child.output[-500:]}{child.errors[-2000:]}"
    assert "\x1b[2J" not in child.output + child.errors, f"{arguments[0]}: a name clears the screen"
    return child.output


def _cells_compute_nothing(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for row in rows:
        for cell in row:
            if cell.startswith(_COMPUTED) and not _INTERVAL.fullmatch(cell):
                float(cell)  # a number is no formula; anything else raises
    return rows


class _Reader(html.parser.HTMLParser):
    """Collects what in a page could run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.bad: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts += 1
        elif tag in _TAGS:
            self.bad.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (
                name in ("src", "href", "action", "xlink:href") and _is_elsewhere(value or "")
            ):
                self.bad.append(f"{tag} {name}={value}")


def _is_elsewhere(address: str) -> bool:
    return re.match(r"\s*(javascript|vbscript|https?:|//)", address, re.IGNORECASE) is not None


def _page_runs_nothing(text: str) -> None:
    reader = _Reader()
    reader.feed(text)
    assert not reader.bad, f"in the page: {reader.bad[:5]}"
    assert reader.scripts <= 1, f"{reader.scripts} scripts in the page"


def _in_a_browser(page: Path) -> str:
    """Open the page in Chromium: no dialogue, no request, no error, and the title is the page's own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return ""
    if path is None:
        return ""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=60_000
        )
        view = browser.new_page()
        seen: list[str] = []
        view.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
        view.on(
            "request",
            lambda request: seen.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
        )
        view.on("pageerror", lambda error: seen.append(str(error)))
        view.goto(page.as_uri())
        title = view.title()
        browser.close()
    assert not seen, seen
    assert "pwned" not in title or "<script>" in title
    return " in a browser"
