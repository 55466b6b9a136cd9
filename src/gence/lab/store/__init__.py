"""Records of runs on disk: written once and atomically, checked against what they say of themselves, packed, merged.

A record is JSON named by the hash of its spec, with the environment and the data it was made from.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.store.check import CHECKPOINT_PREFIX, RUNS_NOTE, is_it_the_folder
    from gence.lab.store.environment import device_name, environment_record, is_alive, process_identity
    from gence.lab.store.files import (
        StoreError,
        create_file,
        frame_as_csv,
        replace_file,
        rows_as_csv,
        spreadsheet_text,
        temporary_path,
        writing_file,
    )
    from gence.lab.store.provenance import (
        changed_parts,
        check_recorded_data,
        check_same_data,
        checksums_at_hand,
        data_checksums,
    )
    from gence.lab.store.record import Record, RunResult, verified_run
    from gence.lab.store.store import Store

__getattr__, __dir__, __all__ = front_door(__name__)
