"""One run in training: its network, optimiser, loss and statistics, its step, and how steps are executed.

The step has no host synchronisation and takes everything that changes from tables on the device, indexed by a counter
on the device: so the same code runs eagerly on a CPU and as a captured graph on a GPU. There each run of a cohort is a
lane: its whole step is captured once as a CUDA graph and replayed on its own stream, so that the small kernels of one
run fill the gaps of the others and Python costs nothing per step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gence.lab.features import EncoderModel, is_encoder_model
from gence.lab.models import ImageClassifier, create_model
from gence.lab.spec import (
    RunSpec,
    anchor_shares,
    average_shares,
    learning_rates,
    looked_up,
    stream_seed,
)
from gence.lab.train.backbone import RunBackbone, choose_trained, head_and_encoder, parameter_groups, pretrained_encoder
from gence.lab.train.batches import EpochFeed
from gence.lab.train.task import Problem
from gence.losses import TwoHot, create_loss, loss_info

WARMUP_STEPS = 3
"""Steps that run before a capture; their effects are undone."""
STEPS_IN_TURN = 1
"""Steps of a lane that are enqueued before it is the next lane's turn."""


class Trainee:
    """A run in training.

    Args:
        spec: what to train.
        problem: the data of the spec's seed.
        feed: that seed's batches, shared with the runs of other losses.
        run_backbone: ``backbone, images -> features``; compiled where that pays.
        untrained: networks as they begin, shared by the runs of a cohort: to copy one is faster than to make it.

    ``classifier`` is the network that is judged; ``model`` is what the optimiser sees (here the same).
    """

    predicts = True
    """Whether the outputs in training are logits, so that they have an accuracy and a class marginal."""

    def __init__(
        self,
        spec: RunSpec,
        problem: Problem,
        feed: EpochFeed,
        run_backbone: RunBackbone,
        untrained: dict[tuple[Any, ...], ImageClassifier] | None = None,
    ) -> None:
        self.spec, self.problem, self.feed, self.run_backbone = spec, problem, feed, run_backbone
        device = problem.prior.device
        recipe = spec.recipe
        self.num_classes = K = len(problem.classes)
        self.bf16 = uses_bf16(spec, device)
        self.classifier = self._create_classifier({} if untrained is None else untrained)
        # An encoder comes in the mode it embeds in, and what resumes must train as what was stopped did.
        self.model = self._create_model().to(device).to(memory_format=torch.channels_last).train()
        self.criterion = create_criterion(spec, problem.prior)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        table = learning_rates(recipe, feed.steps)
        self.rates = _table(table, device)  # (epochs * steps + WARMUP_STEPS,)
        self.epoch_rates = table[:: feed.steps]  # at each epoch's start, for curves
        # A tensor on the GPU, so that a captured step can change it; a number on the CPU, where that is faster.
        first = torch.tensor(table[0], device=device) if device.type == "cuda" else table[0]
        self.optimizer = self._create_optimizer(first)
        self.anchor_table = self._anchor_table(device)
        # Averaged weights need averaged statistics of BatchNorm: those of the last weights do not fit them.
        moving = [*self.trained, *(b for b in self.model.buffers() if b.is_floating_point())]
        self.averaged = [value.detach() for value in moving] if recipe.ema > 0 else []
        self.average = [value.clone() for value in self.averaged]
        self.average_shares = _table(average_shares(recipe, feed.steps), device)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        # An epoch's sums: loss, correct, rows, then the K summed predictions.
        self.sums = torch.zeros(3 + K, device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
        self.steps_done = 0

    def step(self) -> None:
        """One optimisation step on the batch that the counter points to."""
        images, target = self.feed.batch(self.counter)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(self.rates.index_select(0, self.counter)[0] * group["factor"])
            else:
                group["lr"] = float(self.rates[self.steps_done]) * group["factor"]
        if self.anchor_table is not None:
            # The loss keeps its anchor as a 0-dim tensor; writing into it reaches a captured step.
            self.criterion.anchor.copy_(self.anchor_table.index_select(0, self.counter)[0])
        self.optimizer.zero_grad(set_to_none=True)
        loss, outputs = self.loss(images, target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            if self.average:
                self._move_average()
            self._add_to_sums(loss, outputs, target)
            self.counter += 1
        self.steps_done += 1

    def loss(self, images: Tensor, target: Tensor | TwoHot) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the outputs it was computed from, in float32."""
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            outputs = self.outputs(images)
        outputs = outputs.float()
        return self.criterion(outputs, target), outputs

    def outputs(self, images: Tensor) -> Tensor:
        """What the loss reads: here the logits."""
        logits: Tensor = self.classifier.head(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the backbone makes of images."""
        return self.run_backbone(self.classifier.backbone, images)

    def finish(self) -> None:
        """Called once after the last step: the averaged weights, if any, become the model's."""
        for value, average in zip(self.averaged, self.average, strict=True):
            value.copy_(average)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by name: what a checkpoint holds and a warm-up must restore."""
        found = {f"model/{name}": value for name, value in self.model.state_dict(keep_vars=True).items()}
        for i, parameter in enumerate(self.trained):
            for name, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer/{i}/{name}"] = value
        found |= {f"average/{i}": value for i, value in enumerate(self.average)}
        return found | {"counter": self.counter, "sums": self.sums}

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        """Put saved tensors back in place; optimiser state that does not exist yet is created."""
        self.ensure_optimizer_state()
        with torch.no_grad():
            for name, value in self.tensors().items():
                value.copy_(saved[name])
        self.steps_done = int(self.counter)

    def _create_model(self) -> nn.Module:
        return self.classifier

    def _create_classifier(self, untrained: dict[tuple[Any, ...], ImageClassifier]) -> ImageClassifier:
        recipe, problem = self.spec.recipe, self.problem
        _, channels, height, _ = problem.train.images.shape
        same = (self.spec.model, self.num_classes, channels, height, recipe.stem, recipe.init, recipe.head_bias,
                self.spec.seed)  # fmt: skip
        if same not in untrained:
            untrained[same] = self._pretrained(height) or create_model(
                self.spec.model,
                num_classes=self.num_classes,
                in_channels=channels,
                image_size=height,
                stem=recipe.stem,
                init=recipe.init,
                head_bias=recipe.head_bias,
                seed=stream_seed(self.spec.seed, "init"),
            )
        return copy.deepcopy(untrained[same])

    def _pretrained(self, size: int) -> ImageClassifier | None:
        """The network that begins as a pretrained encoder, if the spec names one."""
        encoder = pretrained_encoder(self.spec, size)
        if encoder is None:
            return None
        network, head = copy.deepcopy(encoder.network), EncoderModel.parse(self.spec.model).head
        seed, bias = stream_seed(self.spec.seed, "init"), self.spec.recipe.head_bias
        made = head_and_encoder(network, head, encoder.width, self.num_classes, bias=bias, seed=seed)
        choose_trained(made, self.spec.recipe)
        return made

    def _create_optimizer(self, lr: float | Tensor) -> torch.optim.Optimizer:
        recipe = self.spec.recipe
        if recipe.optimizer == "lbfgs":
            raise ValueError(
                "recipe.optimizer is 'lbfgs', which trains heads on frozen features only; use 'sgd' or 'adamw'"
            )
        groups = self._parameter_groups(lr)
        if recipe.optimizer == "adamw":
            capturable = isinstance(lr, Tensor)
            return torch.optim.AdamW(groups, lr, weight_decay=recipe.weight_decay, fused=True, capturable=capturable)
        return torch.optim.SGD(
            groups,
            lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov and recipe.momentum > 0,
            fused=True,
        )

    def _parameter_groups(self, lr: float | Tensor) -> list[dict[str, Any]]:
        """What is trained, in groups with a learning rate each: the encoder's may be a fraction of the head's."""
        if not is_encoder_model(self.spec.model):
            return [{"params": self.trained, "factor": 1.0}]
        groups = parameter_groups(self.classifier, self.spec.recipe)
        return [{**group, "lr": lr * group["factor"]} for group in groups]

    @torch.no_grad()
    def ensure_optimizer_state(self) -> None:
        """Make the optimiser's buffers as they are before the first step; nothing is moved.

        They appear in its first step only, and a checkpoint or a captured graph needs them before: so a step is made
        and undone. Weight decay and the count of steps reach the buffers even without a gradient: they are zeroed.
        """
        if any(self.optimizer.state.values()):
            return
        saved = [p.detach().clone() for p in self.trained]
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for parameter, value in zip(self.trained, saved, strict=True):
            parameter.copy_(value)
        for state in self.optimizer.state.values():
            for buffer in state.values():
                if isinstance(buffer, Tensor):
                    buffer.zero_()

    def _move_average(self) -> None:
        share = self.average_shares.index_select(0, self.counter)[0]
        difference = torch._foreach_sub(self.averaged, self.average)
        torch._foreach_mul_(difference, share)
        torch._foreach_add_(self.average, difference)

    def _anchor_table(self, device: torch.device) -> Tensor | None:
        if self.spec.recipe.anchor_warmup == 0 or not getattr(self.criterion, "anchor", 0.0):
            return None
        shares = anchor_shares(self.spec.recipe, self.feed.steps)
        table = _table([float(self.criterion.anchor) * share for share in shares], device)
        self.criterion.anchor = table[0].clone()
        return table

    def _add_to_sums(self, loss: Tensor, outputs: Tensor, target: Tensor | TwoHot) -> None:
        logits, rows = outputs, outputs.shape[0]
        label = torch.where(target.share >= 0.5, target.first, target.second) if isinstance(target, TwoHot) else target
        correct = (logits.argmax(1) == label).sum()
        head = torch.stack([loss.detach() * rows, correct.to(loss.dtype), torch.full_like(loss, rows)])
        self.sums += torch.cat([head, logits.softmax(1).sum(0)])


def uses_bf16(spec: RunSpec, device: torch.device) -> bool:
    """Whether the run computes in bfloat16: "auto" means yes on a GPU."""
    precision = spec.recipe.precision
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def create_criterion(spec: RunSpec, train_prior: Tensor) -> Any:
    """The spec's loss on the device; a prior given by name is looked up."""
    known = ("label_smoothing", *loss_info(spec.loss.name).params, "weight")
    for param in spec.loss.params:
        if param not in known:
            raise ValueError(f"loss {spec.loss}: unknown parameter {param!r}; known: {', '.join(known)}")
    params = looked_up(spec.loss, train_prior)
    return create_loss(spec.loss.name, **params).to(train_prior.device)


def _table(values: list[float], device: torch.device) -> Tensor:
    """One value a step, and some beyond the last: a graph's warm-up may run over a short run's end."""
    return torch.tensor(values + values[-1:] * WARMUP_STEPS, device=device)


class Lane(Protocol):
    """Executes a run's steps."""

    def run(self, steps: int) -> None:
        """Execute (or enqueue) this many steps."""

    def then(self, work: Callable[[], None]) -> None:
        """Execute (or enqueue) work after the steps so far."""

    def wait(self) -> None:
        """Return when everything enqueued has finished."""


class EagerLane:
    """Steps executed at once, for CPUs and for debugging on a GPU."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def run(self, steps: int) -> None:
        """Execute this many steps."""
        for _ in range(steps):
            self.step()

    def then(self, work: Callable[[], None]) -> None:
        """Execute the work."""
        work()

    def wait(self) -> None:
        """Nothing is ever pending."""


class GraphLane:
    """A captured step replayed on a stream of its own.

    Args:
        step: the whole step, free of host synchronisation; it runs a few times before capture to warm up.
        restore: undoes what those warm-up steps did to the run's tensors, in place.
    """

    def __init__(self, step: Callable[[], None], restore: Callable[[], None]) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARMUP_STEPS):
                step()
        self.stream.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            step()
        with torch.cuda.stream(self.stream):
            restore()
        self.stream.synchronize()

    def run(self, steps: int) -> None:
        """Enqueue this many steps."""
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                self.graph.replay()

    def then(self, work: Callable[[], None]) -> None:
        """Enqueue work behind the steps so far."""
        with torch.cuda.stream(self.stream):
            work()

    def wait(self) -> None:
        """Block the host until the lane is idle."""
        self.stream.synchronize()


def run_in_turns(lanes: Sequence[Lane], steps: int) -> None:
    """Execute (or enqueue) this many steps of each lane, a few at a time, so that all lanes advance together.

    To enqueue all steps of one lane before the next lane's is slower, the more so the more steps there are: presumably
    the device's queue is then full of the first lanes' work. Lanes that also wait for one another are faster still.
    """
    for start in range(0, steps, STEPS_IN_TURN):
        if start:
            _keep_together(lanes)
        for lane in lanes:
            lane.run(min(STEPS_IN_TURN, steps - start))


def _keep_together(lanes: Sequence[Lane]) -> None:
    """Let each lane continue when all have done what is enqueued so far."""
    streams = [lane.stream for lane in lanes if isinstance(lane, GraphLane)]
    for stream in streams[1:]:
        streams[0].wait_stream(stream)
    for stream in streams[1:]:
        stream.wait_stream(streams[0])
