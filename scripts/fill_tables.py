"""Write the generated blocks of README.md and docs/*.md from the records under results/; --check only looks.

Run it after new records: python scripts/fill_tables.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gence.lab.store import Store
from gence.paper import filled, renderers


def main(arguments: list[str] | None = None) -> int:
    """Fill the blocks, or say which files are stale; return 1 if some are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a block is stale")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    options = parser.parse_args(arguments)
    known = renderers(Store(options.root / "results" / "paper"), options.root / "results" / "bench")
    stale = []
    for path in [options.root / "README.md", *sorted((options.root / "docs").glob("**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        try:
            new = filled(text, known)
        except ValueError as error:
            sys.exit(f"{path}: {error}")
        if new != text:
            stale.append(path)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        state = "is stale: run python scripts/fill_tables.py" if options.check else "has been rewritten"
        print(f"{path.relative_to(options.root)} {state}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
