"""Stratified batches: proportions, no repeats, ranks, seeds, resuming."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gence.lab.data.samplers import ClassStratifiedBatchSampler, spread_classes


def long_tail() -> torch.Tensor:
    counts = torch.tensor([200, 90, 40, 17, 7, 3])
    return torch.repeat_interleave(torch.arange(6), counts)[torch.randperm(357)]


def test_equal_classes_are_equal_in_every_batch() -> None:
    labels = torch.arange(10).repeat(30)[torch.randperm(300)]
    sampler = ClassStratifiedBatchSampler(labels, 20)
    for batch in sampler:
        assert labels[batch].bincount(minlength=10).tolist() == [2] * 10


def test_every_batch_has_the_datas_proportions_and_random_ones_have_not() -> None:
    labels = long_tail()
    share = labels.bincount() / len(labels) * 51
    worst = 0.0
    for epoch in range(20):
        sampler = ClassStratifiedBatchSampler(labels, 51)
        sampler.set_epoch(epoch)
        for batch in sampler:
            worst = max(worst, float((labels[batch].bincount(minlength=6) - share).abs().max()))
    assert worst < 2
    shuffled = labels[torch.randperm(len(labels))]
    assert max(float((part.bincount(minlength=6) - share).abs().max()) for part in shuffled.split(51)) > 2


@pytest.mark.parametrize("counts", [[1], [5, 5, 5], [50, *[1] * 50], [200, 90, 40, 17, 7, 3], [1, 2, 3, 5, 8, 13]])
def test_classes_are_never_a_whole_sample_off_their_share(counts: list[int]) -> None:
    sequence = torch.tensor(spread_classes(counts, torch.Generator().manual_seed(0)))
    seen = torch.nn.functional.one_hot(sequence, len(counts)).cumsum(0)
    share = torch.arange(1, len(sequence) + 1)[:, None] * torch.tensor(counts) / len(sequence)
    assert seen[-1].tolist() == counts
    assert (seen - share).abs().max() < 1


@pytest.mark.parametrize("batch_size", [1, 7, 51, 400])
def test_an_epoch_is_every_sample_once(batch_size: int) -> None:
    labels = long_tail()
    sampler = ClassStratifiedBatchSampler(labels, batch_size)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(labels)))


def test_drop_last() -> None:
    sampler = ClassStratifiedBatchSampler(long_tail(), 50, drop_last=True)
    assert [len(batch) for batch in sampler] == [50] * 7 == [50] * len(sampler)


@pytest.mark.parametrize(("replicas", "batch_size"), [(2, 25), (3, 10), (4, 89)])
def test_ranks_share_an_epoch_and_each_is_stratified(replicas: int, batch_size: int) -> None:
    labels = long_tail()
    ranks = [
        ClassStratifiedBatchSampler(labels, batch_size, num_replicas=replicas, rank=rank, seed=5)
        for rank in range(replicas)
    ]
    drawn = [list(rank) for rank in ranks]
    assert {len(batches) for batches in drawn} == {len(ranks[0])}
    everything = [i for batches in drawn for batch in batches for i in batch]
    assert len(everything) == len(set(everything))
    assert len(labels) - len(everything) < replicas
    for batches in drawn:
        for batch in batches:
            share = labels.bincount() / len(labels) * len(batch)
            assert (labels[batch].bincount(minlength=6) - share).abs().max() < 2
    # Together they are the batches of one process with the large batch size.
    whole = list(ClassStratifiedBatchSampler(labels, batch_size * replicas, seed=5))
    for place, parts in enumerate(zip(*drawn, strict=True)):
        assert [i for part in parts for i in part] == whole[place]


def test_an_incomplete_last_batch_is_shared_out_evenly() -> None:
    labels = torch.arange(2).repeat(12)  # 24 samples: one whole step of 20, and 4 left over
    sizes = [
        [len(batch) for batch in ClassStratifiedBatchSampler(labels, 5, num_replicas=4, rank=rank)] for rank in range(4)
    ]
    assert sizes == [[5, 1]] * 4
    labels = labels[:23]  # 3 left over for 4 ranks: nobody gets any
    sizes = [
        [len(batch) for batch in ClassStratifiedBatchSampler(labels, 5, num_replicas=4, rank=rank)] for rank in range(4)
    ]
    assert sizes == [[5]] * 4


def test_oversampling_repeats_the_small_classes_as_evenly_as_possible() -> None:
    labels = long_tail()
    sampler = ClassStratifiedBatchSampler(labels, 60, oversample=True)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 20
    for batch in batches:
        assert labels[batch].bincount(minlength=6).tolist() == [10] * 6
    times = torch.tensor([i for batch in batches for i in batch]).bincount(minlength=len(labels))
    for k in range(6):
        of_class = times[labels == k]
        assert of_class.max() - of_class.min() <= 1
        assert of_class.sum() == 200


def test_seed_and_epoch_choose_the_order() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = ClassStratifiedBatchSampler(long_tail_labels, 30, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    long_tail_labels = long_tail()
    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2) != order(2, 1), "seed and epoch are not added up"


def test_resumes_in_the_middle_of_an_epoch() -> None:
    labels = long_tail()
    sampler = ClassStratifiedBatchSampler(labels, 30)
    sampler.set_epoch(4)
    whole = list(sampler)
    iterator = iter(sampler)
    for _ in range(5):
        next(iterator)
    state = sampler.state_dict()
    resumed = ClassStratifiedBatchSampler(labels, 30)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)  # as a training loop does at the top of the epoch it resumes
    assert list(resumed) == whole[5:]
    assert list(resumed) == whole, "the next time it begins at the beginning"
    resumed.load_state_dict(state)
    resumed.set_epoch(5)
    assert len(list(resumed)) == len(whole)


def test_in_a_data_loader() -> None:
    labels = long_tail()
    loader = DataLoader(TensorDataset(torch.arange(357), labels), batch_sampler=ClassStratifiedBatchSampler(labels, 51))
    assert sum(len(y) for _, y in loader) == 357
    assert len(loader) == 7


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        ([], {}, "labels"),
        ([0.5, 1.0], {}, "labels"),
        ([[0, 1]], {}, "labels"),
        ([0, 1], {"batch_size": 0}, "batch_size"),
        ([0, 1], {"num_replicas": 2, "rank": 2}, "rank"),
    ],
)
def test_refuses(labels: list, arguments: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        ClassStratifiedBatchSampler(labels, **{"batch_size": 2, **arguments})


def test_refuses_another_seeds_state() -> None:
    state = ClassStratifiedBatchSampler([0, 1], 2, seed=1).state_dict()
    with pytest.raises(ValueError, match="saved with seed 1"):
        ClassStratifiedBatchSampler([0, 1], 2).load_state_dict(state)


@pytest.mark.parametrize(
    ("labels", "arguments", "change", "message"),
    [
        ([0, 1] * 10, {"batch_size": 2}, {}, "saved with batch_size 4, this sampler has 2"),
        ([0, 1] * 10, {"batch_size": 4, "num_replicas": 2}, {}, "saved with num_replicas 1"),
        ([1, 1] * 10, {"batch_size": 4}, {}, "saved with labels"),
        ([0, 1] * 10, {"batch_size": 4}, {"batch": -2}, "batch is -2; expected 0 to 5"),
        ([0, 1] * 10, {"batch_size": 4}, {"extra": 1}, "expected the keys of a state_dict"),
    ],
)
def test_refuses_a_state_of_other_batches(labels: list, arguments: dict, change: dict, message: str) -> None:  # type: ignore[type-arg]
    state = ClassStratifiedBatchSampler([0, 1] * 10, 4).state_dict()
    with pytest.raises(ValueError, match=message):
        ClassStratifiedBatchSampler(labels, **arguments).load_state_dict({**state, **change})
