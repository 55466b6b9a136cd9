"""Draw the README's two pictures: the figure of differences from the records, and the report of `make demo`.

    python scripts/draw_readme.py figure           # docs/images/differences.svg
    python scripts/draw_readme.py report [FOLDER]  # docs/images/report.webp, from gence-report/ by default

The second opens the report in Chromium and keeps its first screens.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SIZE = (1280, 1500)
MOST_BYTES = 200_000


def figure() -> None:
    """Draw the figure; its numbers stand in its metadata, where a test finds them."""
    import matplotlib

    from gence.lab.store import Store
    from gence.paper import default_results, differences_figure

    drawn, words = differences_figure(Store(default_results()))
    with matplotlib.rc_context({"svg.hashsalt": "gence", "svg.fonttype": "path"}):
        drawn.savefig(IMAGES / "differences.svg", metadata={"Date": None, "Description": words}, facecolor="white")


def report(folder: Path) -> None:
    """Take a picture of a report's first screens."""
    from PIL import Image

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    page = folder / "report.html"
    if browser is None or not page.exists():
        sys.exit(f"report: needs chromium and {page}; run make demo first, or name the folder of a report")
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch) / "report.png"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE[0]},{SIZE[1]}"]
        subprocess.run([browser, *options, f"--screenshot={shot}", page.resolve().as_uri()], check=True, timeout=120)
        Image.open(shot).convert("RGB").save(IMAGES / "report.webp", quality=80, method=6)
    size = (IMAGES / "report.webp").stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"report: the picture has {size} bytes; at most {MOST_BYTES} may lie in the repository")


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    match sys.argv[1:]:
        case ["figure"]:
            figure()
        case ["report"]:
            report(ROOT / "gence-report")
        case ["report", folder]:
            report(Path(folder))
        case _:
            sys.exit(__doc__)
