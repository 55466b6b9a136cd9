"""`python grid_driver.py STORE ENGINE SEEDS [TRAINER]`: a driver in a process of its own, to be killed.

It puts an empty `gence` package in place of the real one, whose import would take longer than a life between two kills;
that works only because the machinery of grids needs neither torch nor the losses.
"""

import importlib.util
import sys
import types
from pathlib import Path

if "gence" not in sys.modules:
    package = types.ModuleType("gence")
    package.__path__ = list(importlib.util.find_spec("gence").submodule_search_locations)
    sys.modules["gence"] = package
sys.path.insert(0, str(Path(__file__).parent))

if __name__ == "__main__":
    import json

    import tiny_trainer

    from gence.lab.store.files import StoreError
    from gence.lab.sweep.engines import create_engine
    from gence.lab.sweep.run import run_grid

    store, name, seeds, trainer = [*sys.argv[1:], "train"][:4]
    engine = create_engine(name, workers=2 if name == "gpus" else None)
    try:
        report = run_grid(
            tiny_trainer.make_specs(int(seeds)),
            store,
            engine=engine,
            device="cpu",
            cohort_size=2,
            trainer=getattr(tiny_trainer, trainer),
        )
    except StoreError as error:
        sys.exit(f"StoreError: {error}")
    assert "torch" not in sys.modules
    print(json.dumps({"done": report.done, "failed": report.failed}))
    sys.exit(0 if report.complete else 3)
