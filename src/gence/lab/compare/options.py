"""The options of a comparison, written down once: for `gence.compare`, for its plan and for the command line.

This file imports neither torch nor what reads images: the command line needs it to print its help.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gence.lab.data import plain_source
from gence.lab.spec import (
    GROUPS_HELP,
    LOSS_GROUPS,
    TUNE,
    TUNED_PARTS,
    LossSpec,
    Recipe,
    SpecError,
    check_choice,
    expand_groups,
    split_losses,
)

if TYPE_CHECKING:
    import pandas as pd

Source = str | os.PathLike[str]
"""A name, a folder or an archive."""

AUTO = "auto"
DEFAULT_LOSSES = (*LOSS_GROUPS["paper"], "gence(anchor=0.1)")
LOGS = ("tensorboard",)

Call = TypeVar("Call", bound=Callable[..., Any])
_SAME: Any = object()


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How the command line shows an option.

    Attributes:
        kind: the type of its value there.
        help: its help.
        least: the smallest value of a number.
        default: its default there, where it is not the field's own; None leaves the option out of the call.
        name: its name there, where it is not the field's own.
    """

    kind: Any
    help: str
    least: int | None = None
    default: Any = _SAME
    name: str | None = None


def _shown(kind: Any, help: str, **rest: Any) -> dict[str, Flag]:
    return {"flag": Flag(kind=kind, help=help, **rest)}


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What `gence.compare` and ``gence compare`` can be asked for; what makes no sense is an error when it is given.

    Attributes:
        data: a name, a folder or an archive of images, see `gence.lab.data.load`; or a table: a CSV, TSV, Parquet or
            Arrow file, a folder or zip with the files train and test, an .npz file with X and y, or a pandas frame.
        text: the table's column of texts, where it cannot be recognised.
        label: the table's column of labels, likewise.
        features: the table's columns of numbers and categories; by default all but the label.
        ood_label: a label that stands for no class: its rows are never trained on, and are out-of-distribution inputs.
        n: labels to train on, balanced over the classes; None for all; "auto" is 100 for digits and all otherwise. A
            list, or a text with commas between, compares with each and draws accuracy against the number of labels.
        losses: names, with parameters where needed: "gence(anchor=0.1)"; a list, or a text with commas between them;
            "paper", "calibration", "imbalance" and "all" stand for several.
        seeds: how many, or which.
        model: a name of `gence.lab.models`, HEAD@ENCODER for a pretrained encoder ("linear@efficientnet_lite0"), a
            function of your own that returns an nn.Module (see `gence.lab.models.model_name`), or "auto".
        ood: data sets or folders of out-of-distribution images, or tables with the training columns; one, or a list.
        recipe: a recipe or its name, or "auto".
        epochs: overrides the recipe's.
        batch_size: overrides the recipe's.
        image_size: pixels that images are resized to; by default they are kept if small, square and uniform.
        tune_trials: first tune every loss with this many trials. On frozen features by cross-validation on the training
            labels, with 16 trials by default; networks on a held-out part of the training labels, which needs Optuna
            (the extra "tune"), and not by default.
        tune_encoder: what of a pretrained encoder is trained: "none" (its features are computed once), "last" (its last
            stage) or "all".
        weights: a safetensors file with the encoder's weights, for model="HEAD@timm:NAME".
        out: folder of the report.
        store: folder of the records; by default "store" inside `out`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        workers: processes on a CPU; with more than one, a script needs `if __name__ == "__main__":`.
        time_limit: stop training after this many seconds; the report then shows the runs that are done.
        log: "tensorboard" to write curves to the folder "tensorboard" inside `out` while training.
        save_best: folder in which the network of the recommended loss is saved as best.safetensors: the run with the
            first seed, trained once more.
        files: also write every figure and table as a file.
        cache_dir: where data sets are cached.
    """

    data: Source | pd.DataFrame = field(
        default="digits",
        metadata=_shown(
            str,
            "Read a named data set (gence data list), a folder or archive of images (one folder per class), "
            "hf:OWNER/NAME, or a table (CSV, Parquet, .npz).",
        ),
    )
    text: str | None = field(
        default=None, metadata=_shown(str | None, "Read texts from this column of a table. Default: recognised.")
    )
    label: str | None = field(
        default=None, metadata=_shown(str | None, "Read labels from this column of a table. Default: recognised.")
    )
    features: Sequence[str] = field(
        default=(),
        metadata=_shown(
            list[str] | None, "Use this column of a table (repeatable). Default: all but the label.", default=None
        ),
    )
    ood_label: str | None = field(
        default=None,
        metadata=_shown(str | None, "Treat rows with this label as out-of-distribution; never train on them."),
    )
    n: int | str | Sequence[int] | None = field(
        default=AUTO,
        metadata=_shown(
            str | None,
            "Train on this many labels, balanced over the classes; 50,100,200 draws accuracy against labels. Default: "
            "100 for digits, else all.",
            default=None,
        ),
    )
    losses: str | Sequence[str] = field(
        default=DEFAULT_LOSSES,
        metadata=_shown(
            str | None,
            f"Use these losses, such as 'ce,gence(anchor=0.1)'; {GROUPS_HELP} Default: paper and gence(anchor=0.1).",
            default=None,
        ),
    )
    seeds: int | Sequence[int] = field(default=5, metadata=_shown(int, "Train this many seeds.", least=1))
    model: Any = field(
        default=AUTO,
        metadata=_shown(
            str,
            "Train this network, own:MODULE:FUNCTION, or HEAD@ENCODER, as linear@efficientnet_lite0. auto: a linear "
            "head on that encoder, if the extra pretrained is installed and images are over 16 px, else small_cnn "
            "(resnet18 on a GPU).",
        ),
    )
    ood: Source | Sequence[Source] = field(
        default=(),
        metadata=_shown(list[str] | None, "Out-of-distribution images or rows (repeatable).", default=None),
    )
    recipe: str | Recipe = field(
        default=AUTO,
        metadata=_shown(str, "Use this recipe: head, finetune, tiny, small, modern or paper. auto: the one that fits."),
    )
    epochs: int | None = field(default=None, metadata=_shown(int | None, "Override the recipe's epochs.", least=1))
    batch_size: int | None = field(
        default=None, metadata=_shown(int | None, "Override the recipe's batch size.", least=1)
    )
    image_size: int | None = field(
        default=None,
        metadata=_shown(
            int | None, "Resize images to this many pixels. Default: keep them if small, square and uniform.", least=4
        ),
    )
    tune_trials: int | None = field(
        default=None,
        metadata=_shown(
            int | None,
            "Tune every loss with this many trials first (the extra tune). Default: 16 on frozen features, else 0.",
            least=0,
            name="tune",
        ),
    )
    tune_encoder: str = field(
        default="none",
        metadata=_shown(
            str, "Train this of a pretrained encoder: none (frozen features), last (its last stage) or all."
        ),
    )
    weights: str | os.PathLike[str] | None = field(
        default=None,
        metadata=_shown(Path | None, "Take the encoder's weights from this safetensors file.", default=None),
    )
    out: str | os.PathLike[str] = field(
        default="gence-report", metadata=_shown(Path, "Write the report to this folder.")
    )
    store: str | os.PathLike[str] | None = field(
        default=None, metadata=_shown(Path | None, "Keep the records in this folder. Default: store inside --out.")
    )
    device: str = field(default=AUTO, metadata=_shown(str, "Compute on auto, cpu, cuda or cuda:1."))
    workers: int = field(
        default=1,
        metadata=_shown(
            int | None,
            "Train in this many processes on a CPU. Default: one per core, at most 8.",
            least=1,
            default=None,
        ),
    )
    time_limit: float | None = field(
        default=None, metadata=_shown(float | None, "Stop training after this many seconds.")
    )
    log: str | None = field(
        default=None, metadata=_shown(str | None, "Write curves while training: tensorboard, in a folder inside --out.")
    )
    save_best: str | os.PathLike[str] | None = field(
        default=None,
        metadata=_shown(Path | None, "Save the network of the recommended loss in this folder.", default=None),
    )
    files: bool = True
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        from gence.lab.sweep import check_time_limit  # here, because a page of help needs none of it

        if not isinstance(self.model, str) or self.model.startswith("own:"):
            from gence.lab.models import named_model  # here, because it imports torch

            object.__setattr__(self, "model", named_model(self.model))
        if self.log is not None:
            check_choice("log", self.log, LOGS)
        check_time_limit(self.time_limit)
        if self.workers < 1:
            raise SpecError(f"workers is {self.workers}; expected at least 1")
        self.label_counts()
        check_choice("tune_encoder", self.tune_encoder, TUNED_PARTS)
        if self.weights is not None and "@" not in str(self.model):
            raise SpecError("weights needs the encoder they belong to: model='linear@timm:NAME'")
        self._check_tuned()
        self._check_packages()
        self.numbers()
        self.sources()

    def specs(self) -> tuple[LossSpec, ...]:
        """Return the losses, each once.

        >>> [str(loss) for loss in CompareOptions(losses="gence,ce").specs()]
        ['gence', 'ce']
        """
        listed = split_losses(self.losses) if isinstance(self.losses, str) else expand_groups(self.losses)
        found = tuple(dict.fromkeys(LossSpec.from_value(loss) for loss in listed))
        if not found:
            raise SpecError("losses is empty; expected at least one, such as gence,ce")
        return found

    def label_counts(self) -> tuple[int | str | None, ...]:
        """Return the numbers of labels, the largest first.

        >>> CompareOptions(n="50,200").label_counts(), CompareOptions().label_counts()
        ((200, 50), ('auto',))
        """
        if self.n is None or self.n == AUTO:
            return (self.n,)
        listed: Any = [self.n] if isinstance(self.n, Integral) else self.n
        if isinstance(listed, str):
            listed = [int(part) if part.strip().isdecimal() else part for part in listed.split(",")]
        numbers = [int(n) for n in listed if isinstance(n, Integral)] if isinstance(listed, Sequence) else []
        if not numbers or len(numbers) < len(listed) or min(numbers) < 1:
            raise SpecError(
                f'n is {self.n!r}; expected at least 1 label, several numbers as in "50,100,200", or "auto"'
            )
        return tuple(sorted(set(numbers), reverse=True))

    def by_labels(self) -> list[CompareOptions]:
        """Return the options of each number of labels."""
        counts = self.label_counts()
        return [self] if counts == (self.n,) else [replace(self, n=n) for n in counts]

    def numbers(self) -> tuple[int, ...]:
        """Return the seeds: a number says how many, from 0.

        >>> CompareOptions(seeds=3).numbers(), CompareOptions(seeds=[7, 8]).numbers()
        ((0, 1, 2), (7, 8))
        """
        listed = range(int(self.seeds)) if isinstance(self.seeds, Integral) else self.seeds
        if not isinstance(listed, Iterable) or not all(isinstance(seed, Integral) for seed in listed):
            raise SpecError(f"seeds is {self.seeds!r}; expected how many, such as 5, or a list of whole numbers")
        found = tuple(int(seed) for seed in listed)
        if not found:
            raise SpecError(f"seeds is {self.seeds!r}; expected at least one seed")
        return found

    def sources(self) -> tuple[str, tuple[str, ...]]:
        """Return the data and the out-of-distribution images, each in its one spelling.

        >>> CompareOptions(data=Path("photos"), ood="svhn").sources()
        ('photos', ('svhn',))
        """
        from gence.lab.data import TableAddress, frame_source, with_columns  # here, because help needs none of it

        outside = [self.ood] if isinstance(self.ood, str | os.PathLike) else self.ood
        given: Any = self.data
        if hasattr(given, "to_parquet"):  # a pandas frame, which need not be imported to tell
            given = frame_source(given, self.cache_dir)
        features = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        data = with_columns(
            _plain("data", given), text=self.text, label=self.label, features=features, without=self.ood_label
        )
        ood = tuple(_plain("ood", source) for source in outside)
        if self.ood_label is not None:
            ood += (str(TableAddress(path=TableAddress.parse(data).path, only=self.ood_label)),)
        return data, ood

    def _check_tuned(self) -> None:
        """Raise `SpecError` if a loss waits for tuning that nobody asked for."""
        if self.tune_trials is not None and self.tune_trials < 0:
            raise SpecError(f"tune_trials is {self.tune_trials}; expected 0 (no tuning) or a number of trials")
        for loss in self.specs():
            waiting = [name for name, value in loss.params.items() if value == TUNE]
            if waiting and not self.tune_trials:
                raise SpecError(
                    f"loss {loss} leaves {waiting[0]} to tuning, but nothing is tuned: add --tune N (tune_trials=N), "
                    f"or give {waiting[0]} a number"
                )

    def _check_packages(self) -> None:
        """Raise `ValueError` now, and not run by run, if something needs a package that is not installed."""
        if self.log == "tensorboard":
            _need("tensorboard", "tensorboard", "--log tensorboard")

    def check_tuner(self) -> None:
        """Raise `ValueError` if networks are to be tuned without Optuna; heads on frozen features do without it."""
        if self.tune_trials:
            _need("optuna", "tune", "--tune")


def _need(package: str, extra: str, flag: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{flag} needs the package {package}; install it with: pip install 'gence[{extra}]'")


def flags() -> list[tuple[Field[Any], Flag, Any]]:
    """Return the options that the command line has: the field, how it is shown there, and its default there."""
    found = []
    for option in fields(CompareOptions):
        if "flag" in option.metadata:
            flag: Flag = option.metadata["flag"]
            found.append((option, flag, option.default if flag.default is _SAME else flag.default))
    return found


def takes_options(call: Call) -> Call:
    """Give a function with ``**options`` the signature and the help of `CompareOptions`."""
    own = inspect.signature(call).parameters
    keywords = inspect.signature(CompareOptions).parameters
    parameters = [one for one in own.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [option for name, option in keywords.items() if name not in own]
    call.__dict__["__signature__"] = inspect.Signature(
        parameters, return_annotation=inspect.signature(call).return_annotation
    )
    if call.__doc__ and CompareOptions.__doc__:  # absent with python -OO
        listed = inspect.cleandoc(CompareOptions.__doc__).partition("Attributes:\n")[2]
        call.__doc__ = inspect.cleandoc(call.__doc__).replace("    **options: those of `CompareOptions`.", listed)
    return call


def _plain(name: str, source: Source) -> str:
    """Return the one spelling of a source; `name` is the argument's, for the message."""
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "shape"):
            raise SpecError(
                f"{name} is an array of shape {tuple(source.shape)} without labels; expected a name, path or table: "
                "save features and labels with numpy.savez('data.npz', X=X, y=y) and pass 'data.npz', or pass a pandas "
                "frame with a column of labels"
            )
        raise SpecError(
            f"{name} is {source!r}; expected the name of a data set, a folder or archive of images, or a table"
        )
    return plain_source(source)
