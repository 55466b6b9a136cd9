"""Many runs: a grid or a search becomes a queue of cohorts, done by an engine, resumed where it stopped."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.sweep.engines import create_engine
    from gence.lab.sweep.heads import fit_and_keep_references, tune_frozen
    from gence.lab.sweep.run import (
        Countdown,
        GridProgress,
        RunReport,
        check_time_limit,
        console_or_stderr,
        joined_reports,
        run_grid,
    )
    from gence.lab.sweep.search import cell_name, cells, cells_to_tune
    from gence.lab.sweep.trainers import CohortTrainer, LoggedTrainer, TensorBoardLog, check_ready, check_tunable
    from gence.lab.sweep.trials import TunedLoss, TuneSettings
    from gence.lab.sweep.tuning import (
        TuneReport,
        all_tuned,
        load_tuned,
        merge_tuned,
        save_tuned,
        tune,
        tuned_grid,
        tuned_specs,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
