"""What a page says of its runs: what was compared, on which encoder and columns, and how each class fared."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gence.lab.report.frame import Predictions, Setting, SettingRecords, TunedBefore, is_frozen
from gence.lab.report.style import loss_title
from gence.lab.report.tables import Cell, Row, Table
from gence.lab.spec import RECIPES, Recipe, RunSpec, recipe_name


def class_tables(predictions: Predictions, classes: Sequence[str]) -> tuple[Table, ...]:
    """Return each loss's recall and F1 on every class, the class that is hardest for all first, in a table each.

    None where no predictions are kept, or a run has classes that the data do not have.
    """
    K = len(classes)
    if not predictions or any(int(run["label"].max(initial=0)) >= K for runs in predictions.values() for run in runs):
        return ()
    first = next(iter(predictions.values()))[0]
    support = np.bincount(first["label"].astype(int), minlength=K)
    both = {loss: np.mean([_recall_and_f1(run, K) for run in runs], axis=0) for loss, runs in predictions.items()}
    order = [k for k in np.argsort(np.mean([one[0] for one in both.values()], axis=0), kind="stable") if support[k]]
    seeds = max(len(runs) for runs in predictions.values())
    of = f"of each of {len(order)} classes, mean over {seeds} {'seed' if seeds == 1 else 'seeds'}"
    said = (
        ("classes", f"Recall in % {of}: the share of a class's test samples that is found. The classes hardest for all "
         "losses come first."),
        ("classes-f1", f"F1 in % {of}: the harmonic mean of recall and precision. In the order of recall."),
    )  # fmt: skip
    return tuple(
        Table(
            name=name,
            caption=caption,
            columns=("Class", "Test samples", *(loss_title(loss) for loss in both)),
            rows=tuple(_class_row(classes[k], int(support[k]), [one[part][k] for one in both.values()]) for k in order),
        )
        for part, (name, caption) in enumerate(said)
    )


def _class_row(name: str, support: int, shares: Sequence[float]) -> Row:
    each = (Cell(text=f"{100 * share:.1f}", value=float(100 * share)) for share in shares)
    return Row(cells=(Cell(text=name, value=name), Cell(text=str(support), value=support), *each))


def _recall_and_f1(run: Mapping[str, np.ndarray], K: int) -> np.ndarray:
    """Recall and F1 of each class, (2, K); NaN never, as those of classes without samples count as 0."""
    label, predicted = run["label"].astype(int), run["predicted"].astype(int)
    right = np.bincount(label, weights=label == predicted, minlength=K)
    there, said = np.bincount(label, minlength=K), np.bincount(predicted, minlength=K)[:K]
    return np.stack([right / np.maximum(there, 1), 2 * right / np.maximum(there + said, 1)])


def train_command(spec: RunSpec) -> str:
    """Return the `gence train` line that repeats a run, but for what saves it.

    >>> from gence.lab.spec import LossSpec, RECIPES, Subset
    >>> recipe = RECIPES["tiny"].replace(lr=0.02)
    >>> loss = LossSpec.parse("gence(anchor=0.1)")
    >>> train_command(RunSpec(data="digits", subset=Subset(n=9), model="mlp", loss=loss, recipe=recipe, seed=1))
    "gence train --data digits --n 9 --model mlp --loss 'gence(anchor=0.1)' --seed 1 --recipe tiny --set recipe.lr=0.02"
    """
    words = ["gence", "train", "--data", spec.data]
    if spec.subset.n is not None:
        words += ["--n", str(spec.subset.n)]
    words += ["--model", spec.model, "--loss", str(spec.loss), "--seed", str(spec.seed)]
    name = recipe_name(spec.recipe) or "paper"
    words += ["--recipe", name]
    own, plain = vars(spec.recipe), vars(RECIPES[name])
    if own["tune_encoder"] != plain["tune_encoder"]:
        words += ["--tune-encoder", own["tune_encoder"]]
    if spec.image_size is not None:
        words += ["--image-size", str(spec.image_size)]
    for source in spec.ood:
        words += ["--ood", source]
    changed = {
        f"recipe.{key}": own[key]
        for key in Recipe.__dataclass_fields__
        if own[key] != plain[key] and key != "tune_encoder"
    }
    subset = {f"subset.{key}": value for key, value in spec.subset.to_dict().items() if key != "n" and value}
    for key, value in {**changed, **subset}.items():
        words += ["--set", f"{key}={json.dumps(value) if not isinstance(value, str) else value}"]
    return shlex.join(words)


def facts(setting: Setting, gathered: SettingRecords, tuned: Mapping[str, TunedBefore]) -> tuple[tuple[str, str], ...]:
    """Return what was compared, in words: what a reader of the numbers asks first."""
    spec = next(record.spec for own in gathered.records.values() for record in own)
    recipe = spec.recipe
    head, _, encoder = spec.model.partition("@")
    reliability = next((t for loss in gathered.losses for t in gathered.tables(loss, "reliability")), None)
    network = f"{head} head" if encoder else spec.model
    if spec.image_size and not is_frozen(setting.frame):
        network += f", images of {spec.image_size} px"
    parts = {"none": "frozen", "last": "last stage trained", "all": "all of it trained"}
    trials = sorted({one.trials for one in tuned.values()})
    own = any(setting.frame[c].nunique(dropna=False) > 1 for c in ("recipe.lr", "recipe.weight_decay"))
    seeds = int(setting.frame["seed"].nunique())
    return (
        ("Data", spec.data),
        ("Training labels", "all" if spec.subset.n is None else str(spec.subset.n)),
        ("Test samples", "unknown" if reliability is None else str(sum(reliability["count"]))),
        ("Network", network),
        ("Encoder", f"{encoder}, {parts[recipe.tune_encoder]}" if encoder else "none, trained from scratch"),
        ("Recipe", f"{recipe_name(recipe) or 'own'}: {recipe.epochs} epochs, batch {recipe.batch_size}"),
        (
            "Tuning",
            "each loss has rates of its own"
            if own and not trials
            else f"{' to '.join(map(str, sorted({trials[0], trials[-1]})))} trials per loss"
            if trials
            else "none",
        ),
        ("Runs", f"{len(gathered.losses)} losses, {seeds} {'seed' if seeds == 1 else 'seeds'}"),
    )


def encoder_in_words(gathered: SettingRecords) -> str:
    """Return which pretrained encoder the heads stand on, or nothing for networks from scratch."""
    found = next((table for loss in gathered.losses for table in gathered.tables(loss, "encoder")), None)
    if found is None:
        return ""
    if "rows" in found:
        return rows_in_words(found)
    return (
        f"Frozen features of the pretrained encoder {found['name']}: {found['features']} per image of {found['size']} "
        f"x {found['size']} pixels (weights {found['weights']})."
    )


def rows_in_words(about: Mapping[str, Any]) -> str:
    """Return what heads on rows read, in sentences.

    >>> rows_in_words({"name": "features", "features": 16, "rows": "features", "columns": "Ready features: 16 per row"})
    'Ready features: 16 per row.'
    """
    columns = f"{about['columns']}."
    if about["rows"] == "features":
        return columns
    if about["rows"] == "columns":
        return (
            f"{columns} {about['features']} features per row: missing numbers are filled with the median and all are "
            "standardised, categories are columns of 0 and 1; fitted on the training part."
        )
    cut = about["cut"]
    longer = "No text is" if not cut else "One text is" if cut == 1 else f"{cut:,} texts are"
    return (
        f"{columns} Frozen features of the pretrained text encoder {about['name']}: {about['features']} per text "
        f"(weights {about['weights']}). {longer} longer than the {about['limit']} tokens it reads"
        f"{'.' if not cut else ', and cut off there.'}"
    )
