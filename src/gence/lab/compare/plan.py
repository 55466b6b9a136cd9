"""The plan of a comparison: what "auto" stands for, the runs, and what is worrying about the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gence.lab.compare.auto import (
    TINY_SIDE,
    choose_batch_size,
    choose_device,
    choose_image_size,
    choose_model,
    choose_recipe,
    wants_encoder,
)
from gence.lab.compare.options import AUTO, CompareOptions
from gence.lab.data import is_table, left_out_notes, load, load_images, load_ood_rows, load_rows
from gence.lab.features import (
    DEFAULT_ENCODER,
    TRIALS,
    EncoderModel,
    default_row_encoder,
    is_encoder_model,
    is_row_encoder,
    load_encoder,
    named_encoder,
    remember_weights,
    row_encoder,
)
from gence.lab.models import check_model, create_model
from gence.lab.report import data_concerns, loss_title, tuning_concerns, unfinished_concerns
from gence.lab.spec import (
    LossSpec,
    Recipe,
    RunSpec,
    SpecError,
    Subset,
    check_held_out,
    check_losses,
    named_recipe,
    recipe_name,
)
from gence.lab.store import Store, data_checksums
from gence.lab.sweep import RunReport, TuneReport, tuned_grid
from gence.lab.train import drawn_counts, is_frozen, most_balanced, pretrained_encoder, resolve_device

DEFAULT_N = {"digits": 100}
_HINT = (
    "A pretrained encoder would be the better start with few labels: pip install 'gence[pretrained]', and the same "
    "command uses it"
)


@dataclass(frozen=True, kw_only=True)
class ComparePlan:
    """What is to be run.

    Attributes:
        base: the run all others are made from; its loss and seed are replaced.
        losses: the losses.
        seeds: the seeds.
        device: "cpu", "cuda" or "cuda:1".
        concerns: what is worrying about the data, with remedies.
        checksums: of the images, as records have them.
        classes: names of the classes.
        trials: with which every loss is tuned; 0 for none.
        hint: what would be better, where something is not installed; else empty.
        notes: what was made of the options, where it is not what they say.
    """

    base: RunSpec
    losses: tuple[LossSpec, ...]
    seeds: tuple[int, ...]
    device: str
    concerns: tuple[str, ...]
    checksums: dict[str, str]
    classes: tuple[str, ...]
    trials: int = 0
    hint: str = ""
    notes: tuple[str, ...] = ()

    @property
    def frozen(self) -> bool:
        """Whether heads are trained on features that are computed once."""
        return is_frozen(self.base)

    @property
    def recipe(self) -> str:
        """The name of the recipe for a sentence, or nothing for one of the user's own."""
        name = recipe_name(self.base.recipe)
        return "" if name is None else f"recipe {name}, "

    def specs(self) -> list[RunSpec]:
        """Return the runs, seed by seed, so that an interrupted comparison has whole seeds."""
        return [self.base.replace(loss=loss, seed=seed) for seed in self.seeds for loss in self.losses]

    def summary(self) -> str:
        """Return what will be run, in a sentence."""
        base, subset = self.base, self.base.subset
        labels = "all labels" if subset.n is None else f"{subset.n} labels"
        size = f" at {base.image_size} px" if base.image_size else ""
        return (
            f"{base.data}, {labels}, {len(self.classes)} classes{size}: {len(self.losses)} losses x {len(self.seeds)} "
            f"seeds, {base.model}, {self.recipe}{base.recipe.epochs} epochs, batch {base.recipe.batch_size}, "
            f"on {self.device}" + (f", each loss tuned with {self.trials} trials" if self.trials else "")
        )


def plan_comparison(options: CompareOptions) -> ComparePlan:
    """Choose what was left to "auto", read the data once, and check everything before anything is trained."""
    seeds, losses, (data, ood) = options.numbers(), options.specs(), options.sources()
    if is_table(data):
        return _plan_table(options, data, ood)
    cache_dir, image_size = options.cache_dir, options.image_size
    if options.device != AUTO:
        resolve_device(options.device)
    if options.model != AUTO:
        check_model(options.model)  # what timm has is asked below, once the size of the images is known
    encoded = wants_encoder(options.model, options.recipe)
    if not encoded:
        options.check_tuner()
    asked = _with_weights(options) if encoded else options.model
    if image_size is None:
        input_size = _input_size(asked) if encoded else None
        image_size = choose_image_size(data, choose_device(options.device), input_size, _labels(options.n, data))
        if input_size is not None and options.tune_encoder != "none":
            image_size = input_size
    splits = load(data, image_size=image_size, cache_dir=cache_dir, progress=True)
    channels, side, _ = splits.train.image_shape
    model = choose_model(asked, side, choose_device(options.device, side), encoded)
    # Heads on frozen features train on the CPU, in seconds.
    device = (
        "cpu" if is_encoder_model(model) and options.tune_encoder == "none" else choose_device(options.device, side)
    )
    outside = {
        source: load_images(source, "test", image_size=side, channels=channels, cache_dir=cache_dir, progress=True)
        for source in ood
    }
    n, notes = _balanced(_labels(options.n, data), splits.train.num_classes)
    base = RunSpec(
        data=data,
        subset=Subset(n=n),
        model=model,
        loss=losses[0],
        recipe=_recipe(options, side, device, model, splits.train.num_classes),
        seed=seeds[0],
        ood=ood,
        image_size=image_size,
    )
    check_losses(base.replace(loss=loss) for loss in losses)
    train = splits.train
    # Built once to see that it can be: a network may be unknown to timm, or too deep for images of this size.
    encoder = pretrained_encoder(base, None)
    if encoder is None:
        options.check_tuner()
        create_model(
            base.model, num_classes=train.num_classes, in_channels=channels, image_size=side, stem=base.recipe.stem,
            init=base.recipe.init, seed=0,
        )  # fmt: skip
    counts, most = drawn_counts(base, train), most_balanced(train)
    trials = (TRIALS if is_frozen(base) else 0) if options.tune_trials is None else options.tune_trials
    if trials and is_frozen(base):
        trials = _tunable(trials, counts, options)
    elif trials:
        check_held_out(
            counts, train.classes, base.subset, most=most, tuning="--tune", larger="--n",
            otherwise=", or compare without --tune",
        )  # fmt: skip
    notes += tuple(dict.fromkeys(note for source in (data, *ood) for note in left_out_notes(source)))
    concerns = data_concerns(
        counts, train.classes, batch_size=base.recipe.batch_size, losses=losses,
        more_labels=base.subset.n is not None and base.subset.n < most,
    )  # fmt: skip
    return ComparePlan(
        base=base,
        losses=losses,
        seeds=seeds,
        device=device,
        concerns=tuple(concerns),
        checksums=data_checksums(splits, outside) | ({} if encoder is None else {"encoder": encoder.weights}),
        classes=train.classes,
        trials=trials,
        notes=notes,
        hint=_HINT if options.model == AUTO and encoder is None and side > TINY_SIDE and not encoded else "",
    )


_EPOCH_ROWS = 20_000
"""Up to so many rows a head is trained for all of the recipe's epochs; with more rows for fewer, 10 at least."""


def _plan_table(options: CompareOptions, data: str, ood: tuple[str, ...]) -> ComparePlan:
    """The plan of heads on the rows of a table."""
    for name, value in (("image_size", options.image_size), ("weights", options.weights)):
        if value is not None:
            raise SpecError(f"{name} does nothing for {data}, which is a table; remove it")
    if options.tune_encoder != "none":
        raise SpecError(f"tune_encoder is {options.tune_encoder!r}; rows are embedded once: expected 'none'")
    losses, seeds, splits = options.specs(), options.numbers(), load_rows(data)
    train = splits.train
    model = f"linear@{default_row_encoder(train.kind)}" if options.model == AUTO else options.model
    if not is_encoder_model(model):
        raise SpecError(f"model is {model!r}, and {data} is a table; expected linear@{default_row_encoder(train.kind)}")
    encoder = row_encoder(EncoderModel.parse(model).encoder, splits)
    outside = {source: load_ood_rows(source, splits.columns, splits.width) for source in ood}
    n, notes = _balanced(_labels(options.n, data), train.num_classes)
    recipe = _recipe(options, 0, "cpu", model, train.num_classes)
    rows = len(train) if n is None else n
    if options.epochs is None and options.recipe == AUTO and rows > _EPOCH_ROWS:
        recipe = recipe.replace(epochs=max(10, recipe.epochs * _EPOCH_ROWS // rows))
    base = RunSpec(data=data, subset=Subset(n=n), model=model, loss=losses[0], recipe=recipe, seed=seeds[0], ood=ood)
    check_losses(base.replace(loss=loss) for loss in losses)
    counts, most = drawn_counts(base, train), most_balanced(train)
    trials = _tunable(TRIALS if options.tune_trials is None else options.tune_trials, counts, options)
    concerns = data_concerns(
        counts, train.classes, batch_size=base.recipe.batch_size, losses=losses,
        more_labels=n is not None and n < most,
    )  # fmt: skip
    return ComparePlan(
        base=base,
        losses=losses,
        seeds=seeds,
        device="cpu",
        concerns=(*splits.concerns, *concerns),
        checksums=data_checksums(splits, outside) | {"encoder": encoder.weights},
        classes=train.classes,
        trials=trials,
        notes=notes,
        hint="; ".join((splits.in_words(), *splits.notes)),
    )


def _tunable(trials: int, counts: Sequence[int], options: CompareOptions) -> int:
    """The trials of heads: none, unless asked for, where a class has one sample and none can be held out."""
    if min(count for count in counts if count) > 1:
        return trials
    if options.tune_trials:
        raise SpecError("--tune needs two training samples of every class, to hold one out; raise --n, or use --tune 0")
    return 0


def _with_weights(options: CompareOptions) -> str:
    """The model that was asked for, with the digits of its weights where they come from a file."""
    if options.weights is None:
        return str(options.model)
    model = EncoderModel.parse(options.model)
    return str(replace(model, weights=remember_weights(model.encoder, Path(options.weights), options.cache_dir)))


def _input_size(model: str) -> int:
    """The side of the encoder's input, in pixels."""
    if model == AUTO:
        return load_encoder(DEFAULT_ENCODER).preprocessing.size
    parsed = EncoderModel.parse(model)
    if is_row_encoder(parsed.encoder):
        raise SpecError(
            f"model {model!r} reads the rows of a table; images need linear@{DEFAULT_ENCODER}, or a network"
        )
    return named_encoder(parsed.encoder, size=parsed.size, digits=parsed.weights).preprocessing.size


def _labels(n: Any, data: str) -> int | None:
    if n == AUTO:
        return DEFAULT_N.get(data)
    return None if n is None else int(n)


def _balanced(n: int | None, num_classes: int) -> tuple[int | None, tuple[str, ...]]:
    """The labels that are drawn: as many of each class, rounded down, and a note where that changes the number.

    >>> _balanced(507, 10)
    (500, ('n = 507 is not a multiple of the 10 classes: 500 labels are used, 50 per class',))
    """
    if n is None or n < num_classes or n % num_classes == 0:
        return n, ()
    each = n // num_classes
    return each * num_classes, (
        f"n = {n} is not a multiple of the {num_classes} classes: {each * num_classes} labels are used, "
        f"{each} per class",
    )


def _recipe(options: CompareOptions, side: int, device: str, model: str, num_classes: int) -> Recipe:
    """Return the recipe that was asked for, or chosen, with its own changes."""
    recipe = options.recipe
    if not isinstance(recipe, Recipe):
        recipe = named_recipe(choose_recipe(recipe, side, device, model, options.tune_encoder))
        recipe = recipe.replace(batch_size=choose_batch_size(recipe, num_classes))
    if is_encoder_model(model):
        recipe = recipe.replace(tune_encoder=options.tune_encoder)
    if options.epochs is not None:
        # Warm-up keeps its share: five epochs of warm-up in a run of five would be all of it.
        warmup = recipe.warmup_epochs * min(options.epochs / recipe.epochs, 1)
        recipe = recipe.replace(epochs=options.epochs, warmup_epochs=warmup)
    return recipe if options.batch_size is None else recipe.replace(batch_size=options.batch_size)


@dataclass(frozen=True, kw_only=True)
class FinalRuns:
    """The runs that are judged on test.

    Attributes:
        known: those that can be made.
        waiting: those of losses without a finished trial, as they were asked for. They cannot be made, nor looked for
            in the store: tuning is still to say what they will be.
        tuning: how far tuning came, where it is not complete; else None.
        stopped: why tuning ended early, or None.
        failed: keys of the trials' runs that failed, with the error.
    """

    known: tuple[RunSpec, ...]
    waiting: tuple[RunSpec, ...] = ()
    tuning: str | None = None
    stopped: str | None = None
    failed: dict[str, str] = field(default_factory=dict)

    def recorded(self, store: Store) -> list[str]:
        """Return the keys of those that the store has."""
        return [spec.key for spec in self.known if store.has(spec.key)]

    def unbegun(self, store: Store, stopped: str) -> RunReport:
        """Return the summary where no run is made in this call: how many are recorded, and how many are missing."""
        there = self.recorded(store)
        missing = (spec for spec in self.known if spec.key not in there)
        return RunReport(
            skipped=tuple(there), left=(*missing, *self.waiting), stopped=stopped, failed=dict(self.failed)
        )

    def concerns(self, recorded: Sequence[str], failed: dict[str, str]) -> list[str]:
        """Return what a reader must know of runs that are missing and of losses that are not tuned to the end."""
        return [*unfinished_concerns((*self.known, *self.waiting), recorded, failed), *tuning_concerns(self.tuning)]


def untuned_runs(plan: ComparePlan) -> FinalRuns:
    """Return the runs of a comparison in which nothing is tuned."""
    return FinalRuns(known=tuple(plan.specs()))


def tuned_runs(plan: ComparePlan, found: TuneReport) -> FinalRuns:
    """Return the runs of losses as they were tuned, as far as they were."""
    begun = {tuned.asked for tuned in found.best}
    waiting = [spec for spec in plan.specs() if spec.loss not in begun]
    return FinalRuns(
        known=tuple(tuned_grid(found, plan.seeds)),
        waiting=tuple(waiting),
        tuning=None if found.complete else _progress(plan, found),
        stopped=None if found.complete else (found.stopped or "failed trials"),
        failed=found.failed,
    )


def _progress(plan: ComparePlan, found: TuneReport) -> str:
    trials = {tuned.asked: tuned.trials for tuned in found.best}
    each = (
        f"{loss_title(str(loss))} {trials[loss]} of {found.trials} trials"
        if loss in trials
        else f"{loss_title(str(loss))} has no finished trial"
        for loss in plan.losses
    )
    return f"Tuning is not complete ({', '.join(each)})"
