from __future__ import annotations

import pytest

from gence.lab.train.cohort import train_cohort
from tests.lab.small_runs import small_spec


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from gence.lab.sweep.trainers import TensorBoardLog

    specs = [small_spec("gence"), small_spec("supcon")]
    log = TensorBoardLog(tmp_path, specs)
    results = train_cohort(specs, device="cpu", on_epoch=log)
    log.close()
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    for folder, result in zip(folders, results, strict=True):
        events = EventAccumulator(str(folder))
        events.Reload()
        losses = events.Scalars("train/loss")
        assert [event.step for event in losses] == [1, 2, 3]
        assert [event.value for event in losses] == pytest.approx(result.curves["train_loss"], rel=1e-4)
        assert ("train/accuracy" in events.Tags()["scalars"]) == ("train_accuracy" in result.curves)
