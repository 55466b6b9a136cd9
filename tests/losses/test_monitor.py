"""MarginalMonitor against the definition, its window, its one warning, and its checkpoint; ranks: distributed/."""

import warnings

import pytest
import torch

from gence import TwoHot
from gence.losses.drift.monitor import MarginalDriftWarning, MarginalMonitor


def logits(n=40, K=4, seed=0, shift=0.0):
    z = torch.randn(n, K, generator=torch.Generator().manual_seed(seed))
    z[:, 0] += shift
    return z


def divergence(prior, z):
    prior = prior.double()
    return (torch.xlogy(prior, prior) - torch.xlogy(prior, z.double().softmax(1).mean(0))).sum()


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


def test_kl_of_a_window_is_that_of_its_rows_together():
    monitor, z = MarginalMonitor(torch.tensor([0.1, 0.2, 0.3, 0.4])), logits()
    monitor.update(z[:7])
    monitor(z[7:])
    close(monitor.kl(), divergence(monitor.prior, z))
    close(monitor.marginal(), z.double().softmax(1).mean(0))


def test_prior_is_uniform_without_labels_and_theirs_with_them():
    z, target = logits(), torch.arange(40) % 3
    bare, labelled = MarginalMonitor(), MarginalMonitor()
    bare.update(z)
    labelled.update(z[:20], target[:20])
    labelled.update(z[20:], target[20:])
    close(bare.kl(), divergence(torch.full((4,), 0.25), z))
    close(labelled.kl(), divergence(torch.bincount(target, minlength=4) / 40, z))
    soft = MarginalMonitor()
    soft.update(z, torch.nn.functional.one_hot(target, 4).float())
    close(soft.kl(), labelled.kl())


def test_ignored_rows_and_dense_inputs():
    dense = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    target = torch.randint(0, 4, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    target[0, 0] = -100
    monitor = MarginalMonitor()
    monitor.update(dense, target)
    rows, kept = dense.movedim(1, -1).reshape(-1, 4), target.flatten() != -100
    labels = torch.bincount(target.flatten()[kept], minlength=4) / kept.sum()
    close(monitor.kl(), divergence(labels, rows[kept]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_and_no_graph(dtype):
    monitor, z = MarginalMonitor(), logits().to(dtype).requires_grad_()
    monitor.update(z)
    assert not monitor.kl().requires_grad
    close(monitor.kl(), divergence(torch.full((4,), 0.25), z.detach()))


def test_check_records_warns_once_and_starts_a_new_window():
    monitor = MarginalMonitor(threshold=0.25)
    monitor.update(logits())
    assert monitor.check() < 0.25  # a warning would be an error
    monitor.update(logits(shift=10.0))
    with pytest.warns(MarginalDriftWarning, match=r"class 0 takes \d+% .*anchor=0\.1.*marginal_offset.*fold_offset"):
        assert monitor.check() > 1
    monitor.update(logits(shift=10.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.check()
    assert len(monitor.history) == 3
    with pytest.raises(RuntimeError, match="no batch since"):
        monitor.kl()


def test_a_class_that_underflows_gives_a_finite_number():
    monitor = MarginalMonitor(threshold=1e9)
    monitor.update(torch.tensor([[1e4, 0.0], [1e4, 0.0]]))
    assert 40 < monitor.check() < 88


def test_the_prior_is_the_one_it_was_given():
    given = torch.tensor([0.1, 0.2, 0.3, 0.4])
    monitor = MarginalMonitor(given)
    monitor.update(logits())
    given[:] = 0.25  # the caller may reuse the tensor
    close(monitor.kl(), divergence(torch.tensor([0.1, 0.2, 0.3, 0.4]), logits()))


def test_a_prior_that_sums_to_one_only_nearly_is_divided_by_its_sum():
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    monitor = MarginalMonitor(prior * 1.0009)
    monitor.update(prior.log().expand(5, -1))
    assert abs(float(monitor.kl())) < 1e-6


def test_check_points_at_its_caller_and_can_be_kept_quiet():
    monitor = MarginalMonitor()
    monitor.update(logits(shift=10.0))
    with pytest.warns(MarginalDriftWarning) as caught:
        monitor.check()
    assert caught[0].filename == __file__
    quiet = MarginalMonitor()
    quiet.update(logits(shift=10.0))
    assert quiet.check(warn=False) > 1  # a warning would be an error
    assert quiet.warned


def test_checkpoint_goes_on_where_it_stopped():
    whole, first, second = (MarginalMonitor(threshold=1e9) for _ in range(3))
    target = torch.arange(40) % 3
    for monitor in (whole, first):
        monitor.update(logits(seed=1))
        monitor.check()
        monitor.update(logits(seed=2), target)
    state = first.state_dict()
    first.update(logits(seed=4))
    first.check()  # the state is that of the moment it was taken
    second.load_state_dict(state)
    for monitor in (whole, second):
        monitor.update(logits(seed=3), target)
    assert second.check() == whole.check()
    assert second.history == whole.history
    with pytest.raises(KeyError, match="expected the keys"):
        second.load_state_dict({"history": []})
    with pytest.raises(ValueError, match="state: expected 2 classes, as in the prior, got 4"):
        MarginalMonitor(torch.tensor([0.5, 0.5])).load_state_dict(state)


def test_a_warning_given_before_a_checkpoint_is_not_given_again():
    monitor, resumed = MarginalMonitor(), MarginalMonitor()
    monitor.update(logits(shift=10.0))
    with pytest.warns(MarginalDriftWarning):
        monitor.check()
    resumed.load_state_dict(monitor.state_dict())
    resumed.update(logits(shift=10.0))
    assert resumed.check() > 1  # a warning would be an error


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="threshold"):
        MarginalMonitor(threshold=0.0)
    with pytest.raises(TypeError, match="ignore_index: expected an integer"):
        MarginalMonitor(ignore_index=None)
    with pytest.raises(TypeError, match=r"^logits: expected a tensor of logits, got list"):
        MarginalMonitor().update([[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"^logits: expected at least one row"):
        MarginalMonitor().update(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="prior"):
        MarginalMonitor(torch.tensor([0.5, 0.6]))
    monitor = MarginalMonitor(torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="expected 2 classes"):
        monitor.update(logits())
    with pytest.raises(ValueError, match="expected class indices of shape"):
        MarginalMonitor().update(logits(), torch.zeros(3, dtype=torch.long))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_update_does_not_wait_for_the_device():
    monitor, z, target = MarginalMonitor(), logits().cuda(), (torch.arange(40) % 3).cuda()
    monitor.update(z, target)  # the first call may allocate
    torch.cuda.set_sync_debug_mode("error")
    try:
        monitor.update(z, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    close(monitor.kl().cpu(), divergence(torch.bincount(target.cpu(), minlength=4) / 40, logits()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type_count_alike(dtype):
    logits, labels = torch.randn(20, 4), torch.randint(0, 4, (20,))
    expected, found = MarginalMonitor(), MarginalMonitor()
    expected.update(logits, labels)
    found.update(logits, labels.to(dtype))
    torch.testing.assert_close(found.kl(), expected.kl())


def test_two_hot_targets_count_as_their_probabilities():
    logits = torch.randn(20, 4)
    target = TwoHot(torch.randint(0, 4, (20,)), torch.randint(0, 4, (20,)), torch.rand(20))
    dense = torch.zeros(20, 4).scatter_add_(1, target.first[:, None], target.share[:, None])
    dense.scatter_add_(1, target.second[:, None], 1 - target.share[:, None])
    expected, found = MarginalMonitor(), MarginalMonitor()
    expected.update(logits, dense)
    found.update(logits, target)
    torch.testing.assert_close(found.kl(), expected.kl())


def test_an_ignored_row_may_hold_anything():
    z, target = logits(), torch.arange(40) % 4
    target[3] = -100
    clean, spoilt = MarginalMonitor(), MarginalMonitor()
    clean.update(z, target)
    z[3] = float("nan")
    spoilt.update(z, target)
    close(spoilt.kl(), clean.kl())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.full((40,), 9), "target: expected class indices in"),
        (torch.zeros(40), "target: expected class indices of an integer type"),
        (TwoHot(*(torch.zeros(3, dtype=torch.long),) * 2, torch.zeros(3)), "target.first: expected shape"),
        ([0] * 40, "target: expected a tensor"),
    ],
)
def test_targets_are_checked(target, message):
    with pytest.raises((TypeError, ValueError, IndexError), match=message):
        MarginalMonitor().update(logits(), target)


def long_tail(K=10, rho=100.0):
    prior = torch.logspace(0, -1, K, base=rho)
    return prior / prior.sum()


def test_without_a_prior_the_warning_says_that_a_uniform_one_was_assumed():
    """A perfect model of a long tail is as far from uniform as one that drifted."""
    prior = long_tail()
    monitor = MarginalMonitor()
    monitor.update(prior.log().expand(50, -1))
    with pytest.warns(MarginalDriftWarning, match=r"far from uniform.* uniform prior was assumed.*prior=.*the labels"):
        assert monitor.check() > 0.5
    told = MarginalMonitor(prior)
    told.update(prior.log().expand(50, -1))
    assert told.check() < 1e-6  # a warning would be an error


@pytest.mark.parametrize(
    ("prior", "target", "words"),
    [(torch.full((4,), 0.25), None, "the one given"), (None, torch.arange(40) % 4, "the distribution of the labels")],
)
def test_the_warning_names_the_prior(prior, target, words):
    monitor = MarginalMonitor(prior)
    monitor.update(logits(shift=10.0), target)
    with pytest.warns(MarginalDriftWarning, match=rf"has drifted.*The prior is {words}\. Train with"):
        monitor.check()


@pytest.mark.parametrize("labelled_first", [True, False])
def test_unlabelled_rows_take_no_part_where_the_labels_are_the_prior(labelled_first):
    labels, unlabelled = torch.arange(40) % 3, logits(seed=1, shift=10.0)
    updates = [(logits(), labels), (unlabelled, None)]
    mixed, given = MarginalMonitor(), MarginalMonitor(torch.full((4,), 0.25))
    for update in updates if labelled_first else updates[::-1]:
        mixed.update(*update)
        given.update(*update)
    close(mixed.kl(), divergence(torch.bincount(labels, minlength=4) / 40, logits()))
    close(mixed.marginal(), logits().double().softmax(1).mean(0))
    close(given.kl(), divergence(given.prior, torch.cat([logits(), unlabelled])))  # a prior is for all rows


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_predictions_that_are_nan_are_said_once(value):
    monitor, spoilt = MarginalMonitor(), logits()
    spoilt[3, 1] = value
    monitor.update(spoilt)
    with pytest.warns(RuntimeWarning, match=r"predictions since the last check give NaN.*Logits were") as caught:
        monitor.check()
    assert len(caught) == 1
    again = MarginalMonitor()
    again.load_state_dict(monitor.state_dict())
    for silent in (monitor, again):
        silent.update(spoilt)
        silent.check()  # a warning would be an error
        silent.update(logits(shift=10.0))
        with pytest.warns(MarginalDriftWarning):  # the other warning is still to come
            silent.check()


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_labels_that_are_no_distribution_are_not_blamed_on_the_predictions(value):
    monitor = MarginalMonitor()
    monitor.update(logits(), torch.full((40, 4), value))
    with pytest.warns(RuntimeWarning, match=r"labels since the last check give NaN.*probabilities that are all 0"):
        monitor.check()


def test_a_window_of_ignored_rows_is_nan_and_no_alarm():
    monitor = MarginalMonitor()
    monitor.update(logits(), torch.full((40,), -100))
    torch.testing.assert_close(monitor.check(), float("nan"), equal_nan=True)


def test_a_state_of_version_0_1_0_is_taken():
    monitor = MarginalMonitor()
    state = monitor.state_dict()
    del state["warned_of_nan"]
    monitor.load_state_dict(state)
    assert not monitor.warned_of_nan


def test_reduce_needs_ranks():
    monitor = MarginalMonitor()
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialised"):
        monitor.reduce()
