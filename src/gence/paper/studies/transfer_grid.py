"""The grid of the transfer study: heads on frozen pretrained features.

A setting is a set of labels drawn from a source, and a way to train on them; a cell is a setting and a loss, with five
seeds.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gence.lab.spec import LossSpec, SpecError, check_choice
from gence.paper.exhibit import ANCHORED, SIX_LOSSES, Column

PER_CLASS = (1, 2, 5, 10, 20, 50)
BATCHES = (25, 50, 100, 200, 0)
"""Rows of a batch; 0 is the full batch, the paper's full-data equation minimised."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where labels are drawn from.

    Attributes:
        name: what settings call it.
        title: what tables call it.
        data: a named data set, or a file in the folder of data.
        classes: K.
        most: the most labels per class of a balanced subset.
        tails: training rows of the first class of its long tails; for CIFAR the last is the paper's.
        outside: what its models should refuse: sources of out-of-distribution inputs, nearest first.
        text: whether it holds texts.
    """

    name: str
    title: str
    data: str
    classes: int
    most: int
    tails: tuple[int, ...] = ()
    outside: tuple[str, ...] = ()
    text: bool = False

    @property
    def encoder(self) -> str:
        """The encoder in the extras of the package."""
        return "all_minilm_l6_v2" if self.text else "efficientnet_lite0"


SOURCES = {
    one.name: one
    for one in (
        Source(
            name="cifar10", title="CIFAR-10", data="cifar10", classes=10, most=500, tails=(500, 5000),
            outside=("cifar100", "svhn"),
        ),
        Source(name="sign-digits", title="Sign digits", data="sign-digits.zip", classes=10, most=50, tails=(100,)),
        Source(
            name="banking77", title="BANKING77", data="banking77.zip", classes=77, most=20, tails=(35,), text=True
        ),
        Source(
            name="clinc150", title="CLINC150", data="clinc150.zip", classes=150, most=50, tails=(100,),
            outside=("clinc150.zip/out-of-scope-test.csv",), text=True,
        ),
        Source(name="cifar100", title="CIFAR-100", data="cifar100", classes=100, most=50, tails=(100, 500)),
        Source(name="mini-imagenet", title="Mini-ImageNet", data="mini-imagenet", classes=100, most=50),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What heads are trained on and how.

    Attributes:
        study: the part of the study that it belongs to.
        source: name of its source.
        per_class: labels per class of a balanced subset.
        rho: imbalance of a long tail.
        largest: training rows of its first class.
        head: kind of head.
        batch: rows of a batch; 0 for the full batch.
        unlabelled: unlabelled rows in the loss's denominator.
    """

    study: str
    source: str
    per_class: int | None = None
    rho: int | None = None
    largest: int = 0
    head: str = "linear"
    batch: int = 100
    unlabelled: int | None = None

    @property
    def name(self) -> str:
        """What ``--rows`` selects."""
        size = f"{self.per_class}" if self.rho is None else f"rho{self.rho}-{self.largest}"
        batch = {100: "", 0: "-full"}.get(self.batch, f"-b{self.batch}") if self.study == "batch" else ""
        return f"{self.study}/{self.source}/{size}{batch}"

    @property
    def labels(self) -> int:
        """How many labels there are."""
        from gence.lab.data import long_tail_counts

        source = SOURCES[self.source]
        if self.rho is not None:
            return sum(long_tail_counts(source.classes, self.rho, self.largest))
        return source.classes * (self.per_class or 0)


@dataclass(frozen=True, kw_only=True)
class Line(Column):
    """A column of a setting that may be something else than a loss.

    Attributes:
        reference: a classifier of scikit-learn instead of a loss.
        resampled: whether every class is drawn as often as any other.
        head: the kind of head, where it is not the setting's.
        full_batch: whether the full-data equation is minimised instead of that of mini-batches.
        sizes: labels per class of the settings that have the line; all settings if empty.
    """

    reference: str = ""
    resampled: bool = False
    head: str = ""
    full_batch: bool = False
    sizes: tuple[int, ...] = ()

    def is_in(self, setting: Setting) -> bool:
        """Whether a setting has the line."""
        return not self.sizes or setting.per_class in self.sizes


def _line(name: str, title: str, loss: str = "ce", **more: Any) -> Line:
    return Line(name=name, title=title, loss=LossSpec.parse(loss), ours=True, **more)


MAIN = (*(Line(name=one.name, title=one.title, loss=one.loss) for one in SIX_LOSSES),
        Line(name=ANCHORED.name, title=ANCHORED.title, loss=ANCHORED.loss, ours=True))  # fmt: skip
SMOOTHED = (
    _line("ce_smoothed", "CE, smoothing 0.1", "ce(label_smoothing=0.1)"),
    _line("gence_smoothed", "GenCE, smoothing 0.1", "gence(label_smoothing=0.1)"),
)
RIVALS = tuple(
    _line(name, title, name)
    for name, title in (
        ("dual_focal", "Dual focal"), ("mbls", "MbLS"), ("mdca", "MDCA"), ("poly1", "Poly-1"),
        ("squentropy", "Squentropy"), ("logit_norm", "LogitNorm"),
    )
)  # fmt: skip
REFERENCES = tuple(
    _line(name, title, reference=name)
    for name, title in (("logistic", "Logistic regression"), ("centroid", "Nearest centroid"), ("knn", "kNN"))
)
SUPCON = _line("supcon", "SupCon, then linear", "supcon", head="projection", sizes=(5, 20))
FULL = _line("ce_full", "CE, full batch", full_batch=True, sizes=(1, 2, 5, 10, 20))  # of more rows it takes minutes
WEIGHTED = _line("class_weights", "CE, class weights", "ce(weight=balanced)")
_TAIL = (
    *(Line(name=one.name, title=one.title, loss=one.loss) for one in SIX_LOSSES),
    _line("anchor_train", "GenCE, anchor 0.1 to the training prior", "gence(anchor=0.1,prior=train)"),
    _line("anchor_uniform", "GenCE, anchor 0.1 to the uniform prior", "gence(anchor=0.1,prior=uniform)"),
    _line("anchor_uniform_1", "GenCE, anchor 1 to the uniform prior", "gence(anchor=1,prior=uniform)"),
    _line("logit_adjusted", "Logit adjustment", "logit_adjusted(prior=train)"),
    _line("resampled", "CE, classes drawn alike", "ce", resampled=True),
)
_BATCH = (MAIN[0], MAIN[1], MAIN[6])


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the study: its settings and its lines, the most worth first.

    Attributes:
        name: what it is called.
        title: a heading.
        settings: what heads are trained on.
        lines: groups of lines that are trained together.
    """

    name: str
    title: str
    settings: tuple[Setting, ...]
    lines: tuple[tuple[Line, ...], ...]

    @property
    def all_lines(self) -> tuple[Line, ...]:
        """Every line, in order."""
        return tuple(line for group in self.lines for line in group)

    @property
    def cells(self) -> tuple[tuple[Setting, Line], ...]:
        """Every setting with each of its lines."""
        return tuple((setting, line) for setting in self.settings for line in self.all_lines if line.is_in(setting))


def _balanced() -> tuple[Setting, ...]:
    found = []
    for source in SOURCES.values():
        sizes = {*PER_CLASS, *(n // source.classes for n in (2000, 5000) if n % source.classes == 0)}
        found += [
            Setting(study="balanced", source=source.name, per_class=size)
            for size in sorted(sizes)
            if size <= source.most
        ]
    return tuple(found)


PARTS = {
    part.name: part
    for part in (
        Part(
            name="balanced",
            title="Balanced subsets, linear heads",
            settings=_balanced(),
            lines=(MAIN, (FULL, *REFERENCES[:1]), (*SMOOTHED, *RIVALS), REFERENCES[1:], (SUPCON,)),
        ),
        Part(
            name="tail",
            title="Long tails",
            settings=tuple(
                Setting(study="tail", source=one.name, rho=rho, largest=largest)
                for one in SOURCES.values()
                for largest in one.tails
                for rho in (10, 100)
            ),
            lines=(_TAIL, (WEIGHTED,)),
        ),
        Part(
            name="batch",
            title="Size of the batch",
            settings=tuple(
                Setting(study="batch", source=source, per_class=size, batch=batch)
                for source, size in (
                    ("cifar10", 50), ("cifar10", 200), ("banking77", 10), ("clinc150", 10), ("cifar100", 10),
                )
                for batch in BATCHES
            ),
            lines=(_BATCH,),
        ),
        Part(
            name="mlp",
            title="Balanced subsets, heads with a hidden layer",
            settings=tuple(
                Setting(study="mlp", source=source, per_class=size, head="mlp")
                for source in SOURCES
                for size in (5, 20)
            ),
            lines=(MAIN,),
        ),
    )
}  # fmt: skip


def selected(rows: Sequence[str] = (), losses: Sequence[str] = ()) -> list[tuple[Setting, tuple[Line, ...]]]:
    """The cells asked for: settings, and the lines that train together, those of most worth first."""
    known = [setting.name for part in PARTS.values() for setting in part.settings]
    for pattern in rows:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            raise SpecError(f"rows: {pattern} matches no setting of transfer; its settings are like {known[0]}")
    names = list(dict.fromkeys(line.name for part in PARTS.values() for line in part.all_lines))
    for loss in losses:
        check_choice("losses", loss, names)
    found = []
    for part in PARTS.values():
        for group in part.lines:
            for setting in part.settings:
                lines = tuple(line for line in group if line.is_in(setting) and (not losses or line.name in losses))
                if lines and (not rows or any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in rows)):
                    found.append((setting, lines))
    return found
