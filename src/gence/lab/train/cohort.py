"""Many runs side by side: seeds and losses that share data and network train at once, each on a lane of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.lab.models import ImageClassifier
from gence.lab.spec import FEED_FIELDS, RunSpec
from gence.lab.store import RunResult
from gence.lab.train.backbone import compiled_backbone, resolve_device, run_backbone_in_half
from gence.lab.train.batches import EpochFeed
from gence.lab.train.checkpoint import CohortCheckpoint, save_model
from gence.lab.train.contrastive import ContrastiveTrainee
from gence.lab.train.evaluate import evaluate, predict_logits
from gence.lab.train.frozen import is_frozen, train_frozen
from gence.lab.train.run import EagerLane, GraphLane, Lane, Trainee, run_in_turns, uses_bf16
from gence.lab.train.task import Problem, ProblemLoader
from gence.losses import loss_info, prior_divergence


@dataclass(frozen=True)
class CohortProgress:
    """Where a cohort stands after an epoch.

    Attributes:
        epoch: epochs done, from 1.
        epochs: epochs in all.
        loss: training loss of the epoch, one a run; NaN for a run that has diverged.
        accuracy: training accuracy likewise; NaN also while an encoder learns by contrast.
        marginal_kl: divergence of the epoch's predicted class marginal from the prior, likewise.
        lr: learning rate at the epoch's start, one a run.
        elapsed_s: seconds since the cohort was begun, those before an interruption included.
        left_s: seconds it will take, as far as the epochs so far tell.
    """

    epoch: int
    epochs: int
    loss: list[float]
    accuracy: list[float]
    marginal_kl: list[float]
    lr: list[float]
    elapsed_s: float
    left_s: float


def train_cohort(
    specs: Sequence[RunSpec],
    *,
    device: str = "auto",
    on_epoch: Callable[[CohortProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    workdir: Path | None = None,
    cache_dir: Path | None = None,
    models_dir: Path | None = None,
    compile: bool = False,
    checkpoint_every_s: float = 300.0,
    loader: ProblemLoader | None = None,
    progress: bool = False,
) -> list[RunResult | None]:
    """Train runs side by side and judge them.

    Args:
        specs: runs with one ``cohort_key``.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        on_epoch: called after each epoch.
        should_stop: asked after each epoch; when true, a checkpoint is written and training ends.
        workdir: where checkpoints go; with one, an interrupted cohort continues where it stopped, to the same result.
        cache_dir: where decoded images are kept.
        models_dir: where trained networks go, one safetensors file a run, named by its key.
        compile: whether the network is compiled (GPU only).
        checkpoint_every_s: seconds between checkpoints, during which nothing trains: dozens of networks are gigabytes.
        loader: a loader to reuse, so that several cohorts share what is on the device.
        progress: a bar on stderr while images are decoded or downloaded.

    Returns:
        One result a spec, in order; None for runs that were not finished because of ``should_stop``.

    Raises:
        ValueError: if the runs cannot train side by side.
        torch.cuda.OutOfMemoryError: if they do not fit; try fewer at once.
    """
    if not specs:
        return []
    if len({spec.cohort_key for spec in specs}) > 1:
        raise ValueError("specs: expected runs whose steps have one shape (one cohort_key), got several")
    if is_frozen(specs[0]):
        # Heads train together in seconds, on the CPU: there is nothing to resume, and no epoch to watch.
        return train_frozen(
            specs, cache_dir=cache_dir, models_dir=models_dir, progress=progress, should_stop=should_stop
        )
    place = resolve_device(device)
    cohort = Cohort(specs, place, compile=compile, loader=loader or ProblemLoader(place, cache_dir, progress))
    # Runs of one cohort_key have one source.
    checkpoint = CohortCheckpoint(workdir, specs, cohort.trainees[0].problem.checksums) if workdir else None
    finished = cohort.train(on_epoch, should_stop, checkpoint, checkpoint_every_s)
    if not finished:
        return [None] * len(specs)
    results = cohort.results(models_dir)
    if checkpoint:
        checkpoint.remove()
    return list(results)


class Cohort:
    """The state of a cohort: trainees, their lanes, and the curves so far."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        device: torch.device,
        *,
        loader: ProblemLoader,
        compile: bool = False,
    ) -> None:
        self.specs, self.device = list(specs), device
        self.started = time.perf_counter()
        dtype = torch.bfloat16 if uses_bf16(specs[0], device) else torch.float32
        problems: dict[int, Problem] = {}
        feeds: dict[tuple[Any, ...], EpochFeed] = {}
        untrained: dict[tuple[Any, ...], ImageClassifier] = {}
        forward = compiled_backbone() if compile and device.type == "cuda" else run_backbone_in_half
        self.trainees: list[Trainee] = []
        for spec in specs:
            views = 2 if loss_info(spec.loss.name).takes == "embeddings" else 1
            if spec.seed not in problems:
                problems[spec.seed] = loader.load(spec)
            problem = problems[spec.seed]
            batches = (spec.seed, views, *(getattr(spec.recipe, name) for name in FEED_FIELDS))
            if batches not in feeds:
                feeds[batches] = EpochFeed(problem, spec.recipe, spec.seed, dtype, views)
            kind = ContrastiveTrainee if views == 2 else Trainee
            self.trainees.append(kind(spec, problem, feeds[batches], forward, untrained))
        self.feeds = list(feeds.values())
        self.parts = self.feeds[0].parts  # of an epoch: the same for all, as their images are of one number and shape
        self.epochs = specs[0].recipe.epochs
        self.sums: list[list[Tensor]] = [[] for _ in specs]  # per run and epoch, on the CPU
        self.priors = torch.stack([trainee.problem.prior for trainee in self.trainees]).double().cpu()  # (runs, K)
        self.diverged = [False] * len(specs)
        # On a GPU a look at the test set would make the lanes wait for one another.
        watched = device.type == "cpu" and specs[0].evaluate_on == "test"
        self.watched = set(watched_epochs(self.epochs)) if watched else set()
        self.lanes: list[Lane] = []

    def train(
        self,
        on_epoch: Callable[[CohortProgress], None] | None,
        should_stop: Callable[[], bool] | None,
        checkpoint: CohortCheckpoint | None,
        checkpoint_every_s: float,
    ) -> bool:
        """Train to the last epoch; False if stopped before."""
        start = self._resume(checkpoint)
        self._prepare(start, 0)
        self.lanes = [self._create_lane(trainee) for trainee in self.trainees]
        began = last_saved = time.perf_counter()
        took = math.inf
        for epoch in range(start, self.epochs):
            epoch_began = time.perf_counter()
            # A long epoch on a CPU may be given up in its middle: what was before it is kept and gone on from.
            before = self._kept(checkpoint) if should_stop is not None and took > _LONG_EPOCH_S else None
            for part in range(self.parts):
                self._await_batches()
                if not self._enqueue(part, None if before is None else should_stop):
                    if checkpoint and before is not None and epoch > 0:
                        checkpoint.save(epoch, time.perf_counter() - self.started, before, self.sums)
                    return False
                last = part + 1 == self.parts
                pending = [self._enqueue_sums(i) for i in range(len(self.lanes))] if last else []
                if not last:
                    self._prepare(epoch, part + 1)  # while the lanes work
                elif epoch + 1 < self.epochs:
                    self._prepare(epoch + 1, 0)
                for lane in self.lanes:
                    lane.wait()  # the part after the next is made where this one is
            self._collect(pending, epoch)
            took = time.perf_counter() - epoch_began
            if on_epoch:
                on_epoch(self._progress(epoch, start, began))
            stopped = should_stop is not None and epoch + 1 < self.epochs and should_stop()
            if checkpoint and (stopped or time.perf_counter() - last_saved > checkpoint_every_s):
                elapsed = time.perf_counter() - self.started
                checkpoint.save(epoch + 1, elapsed, [t.tensors() for t in self.trainees], self.sums)
                last_saved = time.perf_counter()
            if stopped:
                return False
        for trainee in self.trainees:
            trainee.finish()
        return True

    def results(self, models_dir: Path | None) -> list[RunResult]:
        """Judge every run; a run's time is its share of the cohort's."""
        judged = [evaluate(t.classifier, t.problem) for t in self.trainees]
        if models_dir:
            for trainee, found in zip(self.trainees, judged, strict=True):
                save_model(models_dir / f"{trainee.spec.key}.safetensors", trainee, found.offset, found.calibrator)
        share = (time.perf_counter() - self.started) / len(self.specs)
        return [
            RunResult(
                # The last step can break a network whose losses were all finite.
                status="diverged" if self.diverged[i] or not found.finite else "done",
                metrics=found.metrics,
                curves=self._curves(i),
                tables=found.tables,
                predictions=found.predictions or None,
                wall_s=share,
                data=self.trainees[i].problem.checksums,
            )
            for i, found in enumerate(judged)
        ]

    def _resume(self, checkpoint: CohortCheckpoint | None) -> int:
        saved = checkpoint.load() if checkpoint else None
        if saved is None:
            return 0
        for trainee, tensors in zip(self.trainees, saved.tensors, strict=True):
            trainee.load_tensors(tensors)
        self.sums = saved.sums
        self.started -= saved.elapsed_s
        self.diverged = [any(not math.isfinite(float(s[0])) for s in sums) for sums in saved.sums]
        return saved.epoch

    def _create_lane(self, trainee: Trainee) -> Lane:
        if self.device.type != "cuda":
            return EagerLane(trainee.step)
        trainee.ensure_optimizer_state()
        before = {name: value.detach().clone() for name, value in trainee.tensors().items()}
        return GraphLane(trainee.step, lambda: trainee.load_tensors(before))

    def _prepare(self, epoch: int, part: int) -> None:
        for feed in self.feeds:
            feed.prepare(epoch, part)

    def _await_batches(self) -> None:
        """Let the lanes continue when their next batches, made on the current stream, are there."""
        for lane in self.lanes:
            if isinstance(lane, GraphLane):
                lane.stream.wait_stream(torch.cuda.current_stream())

    def _kept(self, checkpoint: CohortCheckpoint | None) -> list[dict[str, Tensor]] | None:
        """Copies of all that an epoch changes, for a checkpoint of its beginning; None where none will be written."""
        if checkpoint is None or self.device.type != "cpu":
            return None
        for trainee in self.trainees:
            trainee.ensure_optimizer_state()
        return [{name: value.detach().clone() for name, value in t.tensors().items()} for t in self.trainees]

    def _enqueue(self, part: int, should_stop: Callable[[], bool] | None) -> bool:
        """Enqueue a part of an epoch of all runs that have not diverged; False if it was given up in between."""
        going = [lane for lane, diverged in zip(self.lanes, self.diverged, strict=True) if not diverged]
        steps = len(self.feeds[0].part(part))
        if should_stop is None:
            run_in_turns(going, steps)
            return True
        for _ in range(steps):
            run_in_turns(going, 1)
            if should_stop():
                return False
        return True

    def _enqueue_sums(self, i: int) -> Tensor:
        """Enqueue the copy of an epoch's sums of run i to the host; the copy is there when the lane is idle."""
        trainee, lane = self.trainees[i], self.lanes[i]
        host = torch.empty(trainee.sums.shape, dtype=trainee.sums.dtype, pin_memory=self.device.type == "cuda")
        if self.diverged[i]:
            return host.fill_(math.nan)

        def take_sums() -> None:
            host.copy_(trainee.sums, non_blocking=True)
            trainee.sums.zero_()

        lane.then(take_sums)
        return host

    def _collect(self, pending: list[Tensor], epoch: int) -> None:
        for i, host in enumerate(pending):
            self.diverged[i] |= not math.isfinite(float(host[0]))
            self.sums[i].append(torch.cat([host.double(), torch.tensor([self._watch(i, epoch)], dtype=torch.float64)]))

    def _watch(self, i: int, epoch: int) -> float:
        """The test accuracy of run i after an epoch, NaN where nobody looks: test images are watched, never used."""
        trainee = self.trainees[i]
        if epoch not in self.watched or not trainee.predicts or self.diverged[i]:
            return math.nan
        problem, kept = trainee.problem, slice(None, None, -(-len(trainee.problem.judged.labels) // _WATCHED_IMAGES))
        logits = predict_logits(trainee.classifier, problem.judged.images[kept], problem.mean, problem.std)
        return float((logits.argmax(1) == problem.judged.labels[kept]).double().mean())

    def _progress(self, epoch: int, start: int, began: float) -> CohortProgress:
        elapsed = time.perf_counter() - began
        latest = torch.stack([sums[-1] for sums in self.sums])[:, :-1]  # (runs, 3 + K)
        return CohortProgress(
            epoch=epoch + 1,
            epochs=self.epochs,
            loss=(latest[:, 0] / latest[:, 2]).tolist(),
            accuracy=(latest[:, 1] / latest[:, 2]).tolist(),
            marginal_kl=_marginal_kl(latest, self.priors),
            lr=[t.epoch_rates[epoch] for t in self.trainees],
            elapsed_s=time.perf_counter() - self.started,
            left_s=elapsed / (epoch + 1 - start) * (self.epochs - epoch - 1),
        )

    def _curves(self, i: int) -> dict[str, list[float]]:
        trainee = self.trainees[i]
        watched = torch.stack(self.sums[i])  # (epochs, 3 + K + 1)
        table = watched[:, :-1]
        curves = {
            "epoch": list(range(1, self.epochs + 1)),
            "train_loss": (table[:, 0] / table[:, 2]).tolist(),
            "lr": trainee.epoch_rates,
        }
        if trainee.predicts:
            curves["train_accuracy"] = (table[:, 1] / table[:, 2]).tolist()
            curves["marginal_kl"] = _marginal_kl(table, self.priors[i])
        seen = watched[:, -1].isfinite().nonzero().flatten().tolist()
        if seen:
            curves["test_accuracy"] = watched[seen, -1].tolist()
            curves["test_accuracy_epoch"] = [epoch + 1 for epoch in seen]
        return {name: [float(f"{value:.5g}") for value in values] for name, values in curves.items()}


_LONG_EPOCH_S = 2.0
_WATCHED_IMAGES = 1000
_WATCHED_EPOCHS = 20


def watched_epochs(epochs: int) -> list[int]:
    """After which epochs, from 0, test accuracy is taken for the learning curve: 20 of them, the last included.

    >>> watched_epochs(3), watched_epochs(80)[:3], len(watched_epochs(80))
    ([0, 1, 2], [3, 7, 11], 20)
    """
    every = -(-epochs // _WATCHED_EPOCHS)
    return sorted({*range(every - 1, epochs, every), epochs - 1})


def _marginal_kl(sums: Tensor, prior: Tensor) -> list[float]:
    """KL(prior || predicted marginal) of each row of sums (m, 3 + K); NaN where predictions are not finite.

    It is the divergence of all rows at once: a call a run after each epoch would keep the device waiting.
    """
    log_marginal = sums[:, 3:].clamp_min(1e-300).log().log_softmax(1)  # (m, K)
    found: list[float] = prior_divergence(prior, log_marginal).clamp_min(0.0).tolist()
    return found
