"""The monitor as a callback of Lightning and of Hugging Face: it sees the training and leaves no trace in it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

import gence
from gence.integrations.marginal_watch import MarginalWatch
from tests.integrations import trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inside transformers, lightning and accelerate
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*validation_step.*val_dataloader"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),  # a folder of checkpoints that is gone on in
]

BATCHES = 14  # of 8 rows an epoch


def divergence(labels: Tensor, logits: Tensor) -> float:
    prior, marginal = torch.bincount(labels, minlength=10).double() / len(labels), logits.double().softmax(1).mean(0)
    return float((torch.xlogy(prior, prior) - torch.xlogy(prior, marginal)).sum())


def quiet() -> gence.MarginalMonitor:
    return gence.MarginalMonitor(threshold=1e9)


class TestLightning:
    def test_training_is_the_same_and_the_value_is_that_of_the_epoch(self, tmp_path: Path) -> None:
        from lightning.pytorch.loggers import CSVLogger

        from gence.integrations.lightning import MarginalCallback

        callback, logger = MarginalCallback(quiet()), CSVLogger(tmp_path)
        logging = {"logger": logger, "log_every_n_steps": 1}
        plain = trainers.train_lightning(8, 1, exact=False, dropout=0.5)
        watched = trainers.train_lightning(8, 1, exact=False, dropout=0.5, callbacks=[callback], **logging)
        assert_close(watched["weights"], plain["weights"], rtol=0, atol=0)
        assert len(watched["seen"]) == 2 * BATCHES  # no second pass
        labels = trainers.images().tensors[1]
        epochs = [torch.cat(watched["seen"][e * BATCHES : (e + 1) * BATCHES]) for e in range(2)]
        assert callback.monitor.history == pytest.approx([divergence(labels, logits) for logits in epochs])
        assert float(watched["trainer"].callback_metrics["marginal_kl"]) == pytest.approx(callback.monitor.history[-1])
        assert "marginal_kl" in (Path(logger.log_dir) / "metrics.csv").read_text().partition("\n")[0]
        assert not watched["module"].criterion._forward_hooks

    def test_validation_and_the_first_pass_do_not_count(self) -> None:
        from gence.integrations.lightning import MarginalCallback

        alone, both = MarginalCallback(quiet()), MarginalCallback(quiet())
        plain = trainers.train_lightning(8, 4)
        watched = trainers.train_lightning(8, 4, callbacks=[both])
        assert_close(watched["weights"], plain["weights"], rtol=0, atol=0)
        module, trainer = watched["module"], watched["trainer"]
        trainer.validate(module, DataLoader(trainers.images(), batch_size=32), verbose=False)
        assert both.monitor.empty
        trainers.train_lightning(32, 1, exact=False, callbacks=[alone])
        assert both.monitor.history == pytest.approx(alone.monitor.history, rel=1e-3)

    # 14 batches an epoch: in the middle of the second, and after the last step of the first.
    @pytest.mark.parametrize("steps", [20, 14])
    @pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
    def test_goes_on_after_a_checkpoint(self, tmp_path: Path, steps: int) -> None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        from gence.integrations.lightning import MarginalCallback

        uniform = torch.full((10,), 0.1)
        whole, resumed = (MarginalCallback(gence.MarginalMonitor(uniform, threshold=1e9)) for _ in range(2))

        def train(callback: MarginalCallback, resume: Path | None = None) -> list[Tensor]:
            saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=steps, save_top_k=-1)
            more = {"exact": False, "enable_checkpointing": True, "resume": resume}
            logits: list[Tensor] = trainers.train_lightning(8, 1, callbacks=[callback, saver], **more)["seen"]
            return logits

        before = train(whole)[BATCHES:steps]
        after = train(resumed, tmp_path / f"step={steps}.ckpt")
        assert len(before) + len(after) == BATCHES
        # Which rows come after the checkpoint depends on the loader, so they are taken from what was seen.
        second = divergence(torch.arange(10), torch.cat([*before, *after]))
        assert resumed.monitor.history == pytest.approx([whole.monitor.history[0], second])

    def test_warns_of_a_drift_once(self) -> None:
        from gence.integrations.lightning import MarginalCallback

        callback = MarginalCallback(gence.MarginalMonitor(threshold=1e-6))
        with pytest.warns(gence.MarginalDriftWarning, match="The prior is the distribution of the labels") as caught:
            trainers.train_lightning(32, 1, exact=False, callbacks=[callback])
        assert sum(issubclass(warning.category, gence.MarginalDriftWarning) for warning in caught) == 1

    def test_listens_to_a_network_where_the_loss_is_a_function(self) -> None:
        from gence.integrations.lightning import MarginalCallback

        callback = MarginalCallback(quiet(), listen_to="network")
        found = trainers.train_lightning(32, 1, exact=False, epochs=1, callbacks=[callback])
        monitor = quiet()
        monitor.update(torch.cat(found["seen"]))
        assert callback.monitor.history == pytest.approx([float(monitor.kl())])

    def test_names_a_module_that_is_not_there(self) -> None:
        from gence.integrations.lightning import MarginalCallback

        with pytest.raises(ValueError, match=r"listen_to: expected .* has \['network', 'criterion'\], got 'los'"):
            trainers.train_lightning(32, 1, callbacks=[MarginalCallback(listen_to="los")])

    def test_two_callbacks_for_two_heads(self) -> None:
        from gence.integrations.lightning import MarginalCallback

        callbacks = [MarginalCallback(quiet()), MarginalCallback(quiet(), listen_to="network.3", name="other")]
        found = trainers.train_lightning(32, 1, exact=False, epochs=1, callbacks=callbacks)
        assert {"marginal_kl", "other"} <= found["trainer"].callback_metrics.keys()


class Reporter:
    """What a reporter such as TensorBoard's is told."""

    @staticmethod
    def make() -> Any:
        from transformers import TrainerCallback

        class Recorder(TrainerCallback):
            def __init__(self) -> None:
                self.told: list[float] = []

            def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
                self.told += [logs["marginal_kl"]] if "marginal_kl" in logs else []

        return Recorder()


class TestHuggingFace:
    def test_training_is_the_same_and_the_value_is_that_of_the_epoch(self, tmp_path: Path) -> None:
        from gence.integrations.huggingface import MarginalCallback

        callback, reporter = MarginalCallback(quiet()), Reporter.make()
        plain = trainers.train_huggingface(tmp_path, 8, 4, dropout=0.5)
        watched = trainers.train_huggingface(tmp_path, 8, 4, dropout=0.5, callbacks=[callback, reporter])
        assert_close(watched["weights"], plain["weights"], rtol=0, atol=0)
        assert len(watched["seen"]) == len(plain["seen"])
        # Of each group the first pass comes first, then the pass that trains: 4 + 4, three times, and 2 + 2.
        trained = [z for group in range(3) for z in watched["seen"][8 * group + 4 : 8 * group + 8]]
        logits = torch.cat([*trained, *watched["seen"][26:28]])
        labels = torch.tensor([row["labels"] for row in trainers.tokens()])
        assert callback.monitor.history[0] == pytest.approx(divergence(labels, logits))
        assert len(callback.monitor.history) == 2
        assert reporter.told == callback.monitor.history
        logged = [entry for entry in watched["trainer"].state.log_history if "marginal_kl" in entry]
        assert [entry["epoch"] for entry in logged] == [1.0, 2.0]
        assert not watched["trainer"].criterion._forward_hooks

    @pytest.fixture(scope="class")
    def saved(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
        """The folder of a training that leaves a checkpoint every second step, and what its callback saw."""
        from gence.integrations.huggingface import MarginalCallback

        folder, whole = tmp_path_factory.mktemp("saved"), MarginalCallback(quiet())
        trainers.train_huggingface(folder, 8, 4, callbacks=[whole], save_strategy="steps", save_steps=2)
        return folder, whole.monitor.history

    # 4 steps an epoch: in the middle of the second, and after the last step of the first.
    @pytest.mark.parametrize("steps", [6, 4])
    @pytest.mark.parametrize("restore", [False, True])
    def test_goes_on_after_a_checkpoint(
        self, tmp_path: Path, saved: tuple[Path, list[float]], steps: int, restore: bool
    ) -> None:
        from gence.integrations.huggingface import MarginalCallback

        passed, (folder, expected) = MarginalCallback(quiet()), saved
        checkpoint = str(folder / f"checkpoint-{steps}")
        found = trainers.train_huggingface(
            tmp_path, 8, 4, callbacks=[passed], resume=checkpoint, restore_callback_states_from_checkpoint=restore
        )
        # The Trainer restores a callback by making another.
        [resumed] = [c for c in found["trainer"].callback_handler.callbacks if isinstance(c, MarginalCallback)]
        assert (resumed is passed) is not restore
        assert resumed.monitor.threshold == 1e9
        assert resumed.monitor.history == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("restore", [False, True])
    def test_several_callbacks_are_told_apart_after_a_checkpoint(self, tmp_path: Path, restore: bool) -> None:
        """The Trainer keeps their states in one list, to which each checkpoint adds; it restores the oldest of them."""
        from gence.integrations.huggingface import MarginalCallback

        def callbacks() -> list[MarginalCallback]:
            tail = torch.linspace(1, 10, 10) / 55
            return [MarginalCallback(quiet()), MarginalCallback(gence.MarginalMonitor(tail, threshold=1e8))]

        whole = callbacks()
        saving = {"save_strategy": "steps", "save_steps": 2}
        trainers.train_huggingface(tmp_path, 8, 4, callbacks=whole, **saving)
        found = trainers.train_huggingface(
            tmp_path,
            8,
            4,
            callbacks=callbacks(),
            resume=str(tmp_path / "checkpoint-6"),
            restore_callback_states_from_checkpoint=restore,
        )
        resumed = [c for c in found["trainer"].callback_handler.callbacks if isinstance(c, MarginalCallback)]
        assert [c.monitor.threshold for c in resumed] == [1e9, 1e8]
        for again, before in zip(resumed, whole, strict=True):
            assert len(before.monitor.history) == 2
            assert again.monitor.history == pytest.approx(before.monitor.history, rel=1e-6)
        assert resumed[0].monitor.history != pytest.approx(resumed[1].monitor.history)

    def test_a_callback_that_is_new_takes_no_other_ones_state(self, tmp_path: Path) -> None:
        from gence.integrations.huggingface import MarginalCallback

        saving = {"save_strategy": "steps", "save_steps": 4}
        trainers.train_huggingface(tmp_path, 8, 4, callbacks=[MarginalCallback(quiet())], **saving)
        old, new = MarginalCallback(quiet()), MarginalCallback(quiet())
        trainers.train_huggingface(tmp_path, 8, 4, callbacks=[old, new], resume=str(tmp_path / "checkpoint-4"))
        assert len(old.monitor.history) == 2
        assert new.monitor.history == pytest.approx(old.monitor.history[1:])

    def test_a_plain_trainer_whose_model_gets_the_labels(self, tmp_path: Path) -> None:
        from gence.integrations.huggingface import MarginalCallback

        callback = MarginalCallback(quiet())
        model, trainer = plain_trainer(tmp_path, callbacks=[callback])
        seen: list[Tensor] = []
        handle = model.register_forward_hook(lambda module, args, output: seen.append(output["logits"].detach()))
        trainer.train()
        handle.remove()
        labels = torch.tensor([row["labels"] for row in trainers.tokens()])
        assert callback.monitor.history == pytest.approx([divergence(labels, torch.cat(seen))])
        assert [e["marginal_kl"] for e in trainer.state.log_history if "marginal_kl" in e] == callback.monitor.history
        trainer.evaluate(trainers.tokens())
        assert callback.monitor.empty
        assert not model._forward_hooks

    def test_a_plain_trainer_with_a_loss_of_its_own(self, tmp_path: Path) -> None:
        from gence.integrations.huggingface import MarginalCallback, loss_of_outputs

        criterion, reporter = trainers.criterion(), Reporter.make()
        _, trainer = plain_trainer(
            tmp_path,
            callbacks=[reporter],
            compute_loss_func=lambda outputs, labels, **_: loss_of_outputs(criterion, outputs, labels),
        )
        blind, told = MarginalCallback(quiet()), MarginalCallback(quiet(), criterion=criterion, log=trainer.log)
        trainer.add_callback(blind)
        trainer.add_callback(told)
        trainer.train()
        assert told.monitor.history != pytest.approx(blind.monitor.history)  # which does not see the labels
        assert reporter.told == told.monitor.history

    def test_says_what_the_trainer_does_not_restore(self, tmp_path: Path) -> None:
        from gence.integrations.huggingface import MarginalCallback, loss_of_outputs

        criterion = trainers.criterion()
        common: dict[str, Any] = {
            "compute_loss_func": lambda outputs, labels, **_: loss_of_outputs(criterion, outputs, labels)
        }
        monitor = gence.MarginalMonitor(torch.full((10,), 0.1), threshold=1e9)
        _, trainer = plain_trainer(
            tmp_path,
            callbacks=[MarginalCallback(monitor, criterion=criterion)],
            arguments={"save_strategy": "steps", "save_steps": 2},
            **common,
        )
        trainer.train()
        _, again = plain_trainer(
            tmp_path,
            callbacks=[MarginalCallback(monitor, criterion=criterion)],
            arguments={"restore_callback_states_from_checkpoint": True},
            **common,
        )
        with pytest.warns(UserWarning, match="recreated it, without criterion and log"):
            again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        [restored] = [c for c in again.callback_handler.callbacks if isinstance(c, MarginalCallback)]
        assert_close(restored.monitor.prior, torch.full((10,), 0.1).double())

    def test_tokens_are_rows(self) -> None:
        from gence.integrations.huggingface import MarginalCallback

        class Tokens(nn.Module):
            def forward(self, logits: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
                return {"logits": logits}

        callback, model = MarginalCallback(), Tokens()
        callback._watch.listen_to(model, callback._model_hook)
        logits, labels = torch.randn(3, 5, 10), torch.randint(10, (3, 5))
        labels[1, 2:] = -100
        model(logits, labels=labels)
        kept = labels != -100
        assert float(callback.monitor.kl()) == pytest.approx(divergence(labels[kept], logits[kept]))


def plain_trainer(folder: Path, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[nn.Module, Any]:
    from transformers import Trainer, TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": 32,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    model = trainers.bert()
    settings |= arguments or {}
    return model, Trainer(model, TrainingArguments(**settings), train_dataset=trainers.tokens(), **more)


class TestWatch:
    def test_an_own_monitor_takes_ignore_index_and_prior_from_the_loss(self) -> None:
        prior = torch.tensor([0.7, 0.3])
        watch, given = MarginalWatch(), MarginalWatch(gence.MarginalMonitor())
        for each in (watch, given):
            each.listen_to(gence.GenCELoss(ignore_index=255, anchor=0.1, prior=prior))
        assert watch.monitor.ignore_index == 255
        assert_close(watch.monitor.prior, prior)
        assert given.monitor.prior is None

    def test_says_once_that_nothing_came(self) -> None:
        watch = MarginalWatch()
        with pytest.warns(UserWarning, match="no training batch came through the model"):
            assert watch.end_epoch("the model") is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert watch.end_epoch("the model") is None

    def test_a_training_that_broke_off_leaves_no_rows_to_the_next(self) -> None:
        watch, criterion = MarginalWatch(), gence.GenCELoss()
        watch.listen_to(criterion)
        criterion(torch.randn(4, 3), torch.arange(4) % 3)
        watch.listen_to(criterion)
        assert watch.monitor.empty
        assert len(criterion._forward_hooks) == 1

    def test_names_what_is_no_monitor(self) -> None:
        with pytest.raises(TypeError, match="monitor: expected a MarginalMonitor or None, got str"):
            MarginalWatch("criterion")  # type: ignore[arg-type]
