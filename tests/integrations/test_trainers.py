"""Trainers with accumulation, on one process and on two, take the steps of one process with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.integrations import trainers
from tests.ranks import run_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inside transformers, lightning and accelerate
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*validation_step.*val_dataloader"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Accumulation 4, micro-batches of 4 rows, 2 processes: batches of 32, the last of an epoch of 16."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.integrations.trainers_worker", folder, 2)
    return [torch.load(folder / "2" / f"rank{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trainers.train_huggingface(tmp_path_factory.mktemp("whole"), 32, 1)


@pytest.fixture(scope="module")
def whole_batch_lightning() -> dict[str, Any]:
    return trainers.train_lightning(32, 1)


def test_huggingface_on_two_processes(ranks: list[dict[str, Any]], whole_batch: dict[str, Any]) -> None:
    for rank in ranks:
        assert_close(rank["huggingface"]["weights"], whole_batch["weights"], rtol=0, atol=1e-5)
    # Trainer logs the mean over the processes of each one's W * share.
    assert_close(ranks[0]["huggingface"]["losses"], whole_batch["losses"], rtol=1e-4, atol=1e-4)
    assert whole_batch["moved"].abs().max() > 0.01


def test_huggingface_on_one_process(tmp_path: Path, whole_batch: dict[str, Any]) -> None:
    found = trainers.train_huggingface(tmp_path, 8, 4)
    assert_close(found["weights"], whole_batch["weights"], rtol=0, atol=1e-5)
    assert_close(found["losses"], whole_batch["losses"], rtol=1e-5, atol=1e-5)
    assert found["eval_loss"] == pytest.approx(whole_batch["eval_loss"], abs=1e-5)


def test_huggingface_repeats_dropout(tmp_path: Path) -> None:
    seen = trainers.train_huggingface(tmp_path, 8, 4, dropout=0.5)["seen"]
    assert_close(seen[:4], seen[4:8], rtol=0, atol=0)
    assert not torch.equal(seen[0], seen[1])
    # The last step of an epoch has 2 micro-batches.
    assert_close(seen[24:26], seen[26:28], rtol=0, atol=0)


def test_the_plain_trainer_fails_the_same_comparison(tmp_path: Path, whole_batch: dict[str, Any]) -> None:
    found = trainers.train_huggingface(tmp_path, 8, 4, exact=False)
    assert (found["weights"] - whole_batch["weights"]).abs().max() > 1e-3


def test_huggingface_names_wrong_arguments() -> None:
    import gence
    from gence.integrations.huggingface import GenCETrainer

    with pytest.raises(TypeError, match="compute_loss_func: GenCETrainer has its own"):
        GenCETrainer(criterion=gence.GenCELoss(), compute_loss_func=print)
    with pytest.raises(ValueError, match='criterion: expected reduction "mean"'):
        GenCETrainer(criterion=gence.GenCELoss(reduction="sum"))


@pytest.mark.parametrize("left_out", [0, 3])
def test_huggingface_selects_by_a_loss_that_does_not_depend_on_the_evaluation_batches(
    tmp_path: Path, left_out: int
) -> None:
    from gence.integrations.huggingface import GenCETrainer

    rows = trainers.tokens()
    for row in rows[:left_out]:
        row["labels"] = -100
    found = {}
    for size in (8, 50):
        trainer = GenCETrainer(
            model=trainers.bert(),
            args=trainers.arguments(tmp_path, per_device_eval_batch_size=size),
            eval_dataset=rows,
            criterion=trainers.criterion(),
        )
        found[size] = trainer.evaluate()
    logits = torch.as_tensor(trainer.predict(rows).predictions)
    labels = torch.tensor([row["labels"] for row in rows])
    assert found[8]["eval_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert found[8]["eval_loss"] == pytest.approx(found[50]["eval_loss"], rel=1e-5)
    assert found[50]["eval_gence"] - found[8]["eval_gence"] > 0.5  # the log of a larger sum


def test_lightning_selects_by_a_loss_that_does_not_depend_on_the_validation_batches() -> None:
    from gence.integrations.lightning import ValidationLogLoss

    small, large = (
        trainers.train_lightning(
            32, 1, epochs=1, callbacks=[ValidationLogLoss()], validation_batch=size, num_sanity_val_steps=0
        )
        for size in (8, 50)
    )
    rows, labels = trainers.images().tensors
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(small["module"](rows), labels))
    logged = [found["trainer"].callback_metrics for found in (small, large)]
    assert [float(values["val_loss"]) for values in logged] == pytest.approx([expected, expected], rel=1e-4)
    assert float(logged[1]["val_gence"] - logged[0]["val_gence"]) > 0.5
    assert not small["module"].criterion._forward_hooks


def test_token_logits_are_rows() -> None:
    import gence
    from gence.integrations.huggingface import loss_of_outputs

    logits, labels = torch.randn(3, 5, 4), torch.randint(4, (3, 5))
    labels[1, 2:] = -100
    loss = loss_of_outputs(gence.GenCELoss(), {"logits": logits}, labels)
    kept = labels != -100
    assert_close(loss, gence.gen_cross_entropy(logits[kept], labels[kept]))
    assert_close(
        loss_of_outputs(gence.GenCELoss(), (logits[0],), labels[0]), gence.gen_cross_entropy(logits[0], labels[0])
    )


def test_lightning_on_two_processes(ranks: list[dict[str, Any]], whole_batch_lightning: dict[str, Any]) -> None:
    for rank in ranks:
        assert_close(rank["lightning"]["weights"], whole_batch_lightning["weights"], rtol=0, atol=1e-5)


def test_lightning_on_one_process(whole_batch_lightning: dict[str, Any]) -> None:
    found = trainers.train_lightning(8, 4)
    assert_close(found["weights"], whole_batch_lightning["weights"], rtol=0, atol=1e-5)
    # 3 whole groups of 4 and one of 2, divided by 4 all the same.
    losses = torch.tensor(found["losses"][:14]).split([4, 4, 4, 2])
    assert_close(torch.stack([group.sum() / 4 for group in losses]), torch.tensor(whole_batch_lightning["losses"][:4]))
    plain = trainers.train_lightning(8, 4, exact=False)
    assert (plain["weights"] - whole_batch_lightning["weights"]).abs().max() > 1e-2


def test_lightning_repeats_dropout_and_leaves_the_loss_alone() -> None:
    found = trainers.train_lightning(8, 4, dropout=0.5, limit_train_batches=6, epochs=1)
    first, second = found["seen"][:4], found["seen"][4:8]
    assert_close(first, second, rtol=0, atol=0)
    # The limit cuts the second group to 2.
    assert len(found["seen"]) == 12
    assert_close(found["seen"][8:10], found["seen"][10:12], rtol=0, atol=0)
    criterion = found["module"].criterion
    assert not criterion._forward_hooks
    assert not criterion._forward_pre_hooks


def test_lightning_names_a_loader_that_does_not_look_ahead() -> None:
    with pytest.raises(TypeError, match="expected a LookAheadLoader with group_size=4, got group_size=2"):
        trainers.train_lightning(8, 4, group_size=2)


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_the_monitor_sees_the_rows_of_all_processes(
    framework: str, ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    import gence
    from gence.integrations import huggingface, lightning

    monitor = gence.MarginalMonitor()
    if framework == "huggingface":
        trainers.train_huggingface(tmp_path, 32, 1, callbacks=[huggingface.MarginalCallback(monitor)])
    else:
        trainers.train_lightning(32, 1, callbacks=[lightning.MarginalCallback(monitor)])
    first, second = (rank[framework]["history"] for rank in ranks)
    assert first == second
    assert first == pytest.approx(monitor.history, rel=1e-3)
