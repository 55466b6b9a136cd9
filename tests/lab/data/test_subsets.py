from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gence.lab.data import DataError, balanced_subset, holdout, long_tail_counts, long_tail_subset

LABELS = torch.arange(600) % 10


@given(st.lists(st.integers(2, 12), min_size=1, max_size=6), st.integers(0, 2**40), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=60)
def test_holdout_properties(sizes: list[int], seed: int, fraction: float) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed % 2**31))]
    train, val = holdout(labels, fraction, seed)
    assert sorted(train.tolist() + val.tolist()) == list(range(len(labels)))
    for part in (train, val):
        assert part.tolist() == sorted(part.tolist())
        assert torch.bincount(labels[part], minlength=len(sizes)).min() >= 1
    for k, size in enumerate(sizes):
        held = int((labels[val] == k).sum())
        assert abs(held - fraction * size) <= 0.5 + 1e-9 or held in (1, size - 1)


@given(st.integers(1, 20), st.integers(0, 2**40))
@settings(deadline=None, max_examples=40)
def test_balanced_properties(per_class: int, seed: int) -> None:
    index = balanced_subset(LABELS, per_class * 10, seed, 10)
    assert torch.bincount(LABELS[index]).tolist() == [per_class] * 10
    assert len(index.unique()) == len(index)
    assert index.tolist() == sorted(index.tolist())
    larger = balanced_subset(LABELS, (per_class + 5) * 10, seed, 10)
    assert set(index.tolist()) <= set(larger.tolist())


def test_the_stream_is_pinned() -> None:
    """Recomputed from the module's text: if it changes, every recorded result means other images."""
    from numpy.random import PCG64, SeedSequence

    expected = []
    for k in range(10):
        keys = PCG64(SeedSequence((0, 7, k))).random_raw(60).tolist()
        expected += [10 * position + k for position in sorted(range(60), key=keys.__getitem__)[:2]]
    assert balanced_subset(LABELS, 20, 7, 10).tolist() == sorted(expected)
    assert balanced_subset(LABELS, 10, 0).tolist() == [110, 233, 242, 288, 321, 347, 375, 436, 504, 579]


def test_seeds_differ_and_repeat() -> None:
    assert torch.equal(balanced_subset(LABELS, 100, 3, 10), balanced_subset(LABELS, 100, 3, 10))
    assert not torch.equal(balanced_subset(LABELS, 100, 3, 10), balanced_subset(LABELS, 100, 4, 10))


def test_a_draw_is_close_to_uniform() -> None:
    hits = torch.zeros(600)
    for seed in range(400):
        hits[balanced_subset(LABELS, 100, seed, 10)] += 1
    expected = 400 / 6
    # Binomial(400, 1/6): standard deviation 7.45; the largest of 600 stays within 5 of them.
    assert (hits - expected).abs().max() < 5 * 7.45
    chi2 = ((hits - expected) ** 2 / (expected * 5 / 6)).sum()
    assert 450 < chi2 < 750  # about 590 degrees of freedom


def test_holdout_is_independent_of_the_subset() -> None:
    """Another stream: the held-out images are not the ones that a subset takes first."""
    labels = torch.zeros(1000, dtype=torch.int64)
    val = set(holdout(labels, 0.5, 0)[1].tolist())
    assert 200 < len(val & set(balanced_subset(labels, 500, 0).tolist())) < 300


def test_long_tail() -> None:
    labels = torch.arange(10).repeat_interleave(500)
    index = long_tail_subset(labels, 100, seed=1)
    counts = torch.bincount(labels[index]).tolist()
    assert counts == [500, 299, 179, 107, 64, 38, 23, 13, 8, 5]
    assert counts == long_tail_counts(10, 100, 500)
    assert torch.bincount(labels[long_tail_subset(labels, 10, seed=1, n_max=100)]).tolist()[::9] == [100, 10]
    assert long_tail_counts(4, 1, 7) == [7, 7, 7, 7]
    assert long_tail_counts(3, 1000, 5) == [5, 1, 1]
    # The last class is n_max / rho exactly, whatever the rounding of the power.
    for rho in range(1, 101):
        assert long_tail_counts(10, rho, 50 * rho)[-1] == 50


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: balanced_subset(LABELS, 25, 0, 10), "20 or 30"),
        (lambda: balanced_subset(LABELS, 5, 0, 10), "such as 10"),
        (lambda: balanced_subset(LABELS, 0, 0, 10), "such as 10"),
        (lambda: balanced_subset(LABELS, 610, 0, 10), "class 0 has 60 images, but n = 610 .*; the most is n = 600"),
        (lambda: balanced_subset(LABELS, 11, 0, 11), "class 10 has no images, but each of the 11"),
        (lambda: balanced_subset(LABELS, 5, 0, 5), "expected 0 to 4"),
        (lambda: balanced_subset(LABELS, 10, -1, 10), "seed = -1"),
        (lambda: balanced_subset(LABELS.float(), 10, 0), "must be int64"),
        (lambda: long_tail_subset(LABELS, 0.5, 0), "rho = 0.5"),
        (lambda: long_tail_subset(LABELS, float("nan"), 0), "rho = nan"),
        (lambda: long_tail_subset(LABELS, 10, 0, n_max=100), "class 0 has 60 images, but 100"),
        (lambda: long_tail_subset(LABELS, 10, 0, n_max=0), "n_max = 0"),
        (lambda: holdout(LABELS, 0.0, 0), "fraction = 0.0"),
        (lambda: holdout(LABELS, 1.0, 0), "fraction = 1.0"),
        (lambda: holdout(torch.tensor([0, 0, 1]), 0.5, 0), "class 1 has 1 image"),
    ],
)
def test_errors(call, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


PETS = ["cat", "dog", "newt"]
FEW = torch.tensor([0] * 5 + [1] * 4 + [2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda names: balanced_subset(FEW, 100, 0, classes=names), "class {} has 1 image, but n = 100 asks for more"),
        (lambda names: holdout(FEW, 0.5, 0, classes=names), "class {} has 1 image, but a split needs one on each side"),
        (lambda names: long_tail_subset(FEW, 2, 0, classes=names), "class {} has 1 image, but 2 are asked for"),
        (lambda names: holdout(FEW[:9], 0.5, 0, 3, classes=names), "class {} has no images, but each of the 3 classes"),
    ],
)
def test_messages_name_the_class_where_its_name_is_known(call, message: str) -> None:
    for names, shown in ((PETS, "'newt'"), (None, "2")):
        with pytest.raises(DataError) as raised:
            call(names)
        assert str(raised.value).startswith(message.format(shown))


def test_names_change_no_draw_and_must_fit() -> None:
    for named, plain in (
        (balanced_subset(FEW, 3, 0, classes=PETS), balanced_subset(FEW, 3, 0)),
        (long_tail_subset(FEW, 5, 0, classes=PETS), long_tail_subset(FEW, 5, 0)),
        (holdout(FEW[:9], 0.5, 0, classes=PETS[:2])[1], holdout(FEW[:9], 0.5, 0)[1]),
    ):
        assert torch.equal(named, plain)
    with pytest.raises(DataError, match="classes has 2 names, but there are 3 classes"):
        balanced_subset(FEW, 3, 0, classes=PETS[:2])
