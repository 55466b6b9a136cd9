"""MarginalMonitor as a forward hook: on networks, whatever they return, and on losses."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gence import GenCELoss, MarginalMonitor, two_pass_backward
from tests.losses.test_monitor import close, divergence, logits, long_tail


def test_forward_hook_watches_training_only():
    torch.manual_seed(0)
    model, monitor, x = nn.Linear(3, 4), MarginalMonitor(), torch.randn(10, 3)
    handle = model.register_forward_hook(monitor.hook)
    expected = divergence(torch.full((4,), 0.25), model(x).detach())
    model.eval()
    model(x + 100)
    handle.remove()
    close(monitor.kl(), expected)


class Returns(nn.Module):
    """A network whose output is made from its logits."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, z):
        return self.wrap(z)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: z,
        lambda z: (z, None),
        lambda z: [z],
        lambda z: (z.sum(), z, z[:3] + 1),  # a loss, the logits, and more
        lambda z: {"loss": z.sum(), "logits": z},
        lambda z: SimpleNamespace(logits=z, hidden=z + 1),
    ],
    ids=["tensor", "tuple", "list", "loss first", "mapping", "object"],
)
def test_forward_hook_finds_the_logits(wrap):
    model, monitor = Returns(wrap), MarginalMonitor()
    model.register_forward_hook(monitor.hook)
    model(logits())
    close(monitor.kl(), divergence(torch.full((4,), 0.25), logits()))


@pytest.mark.parametrize(
    ("wrap", "seen"),
    [
        (lambda z: {"out": z}, r"dict with the keys \['out'\]"),
        (lambda z: (z[0], z), r"tuple with a tensor of shape \(4,\)"),
        (lambda z: (z.argmax(1, keepdim=True),), r"tuple .* dtype torch.int64"),
        (lambda z: ("logits", z.sum()), "got tuple"),
        (lambda z: None, "got NoneType"),
        (lambda z: z.sum(), r"got Tensor of shape \(\)"),
        (lambda z: z.sum(1), r"got Tensor of shape \(40,\)"),  # one loss per row, of a loss other than cross-entropy
    ],
)
def test_forward_hook_says_what_to_do_with_other_outputs(wrap, seen):
    model = Returns(wrap)
    model.register_forward_hook(MarginalMonitor().hook)
    with pytest.raises(TypeError, match=rf"output: expected logits .*{seen}.*on the loss .*monitor\.update"):
        model(logits())


def test_hook_on_a_loss_takes_the_labels():
    prior, criterion = long_tail(), GenCELoss(anchor=0.1)
    monitor, labels = MarginalMonitor(), torch.multinomial(prior, 500, replacement=True)
    criterion.register_forward_hook(monitor.hook)
    z = prior.log().expand(500, -1)
    loss = criterion(z, labels)
    with torch.no_grad():
        criterion(torch.zeros(500, 10), labels)  # validation
    close(monitor.kl(), divergence(torch.bincount(labels, minlength=10) / 500, z))
    assert monitor.check() < 0.1
    torch.testing.assert_close(loss, GenCELoss(anchor=0.1)(z, labels), rtol=0, atol=0)


def test_hook_on_a_loss_that_is_called_with_keywords():
    criterion, monitor, labels = GenCELoss(), MarginalMonitor(), torch.arange(40) % 4
    handle = criterion.register_forward_hook(monitor.hook)
    with pytest.raises(TypeError, match="with_kwargs=True"):
        criterion(logits(), target=labels)
    handle.remove()
    criterion.register_forward_hook(monitor.hook, with_kwargs=True)
    criterion(logits(), target=labels)
    close(monitor.marginal(), logits().double().softmax(1).mean(0))


@pytest.mark.parametrize("ignore_index", [0, 255])
def test_hook_on_a_loss_leaves_out_what_the_loss_leaves_out(ignore_index):
    criterion, monitor, labels = nn.CrossEntropyLoss(ignore_index=ignore_index), MarginalMonitor(), torch.arange(40) % 4
    labels[labels == 0] = ignore_index
    criterion.register_forward_hook(monitor.hook)
    criterion(logits(), labels)
    kept = labels != ignore_index
    close(monitor.kl(), divergence(torch.bincount(labels[kept], minlength=4) / kept.sum(), logits()[kept]))


def test_hook_does_not_count_the_first_of_two_passes():
    model, criterion, monitor = nn.Linear(3, 4), GenCELoss(), MarginalMonitor()
    model.register_forward_hook(monitor.hook)
    parts = [(torch.randn(5, 3), torch.arange(5) % 4) for _ in range(2)]
    two_pass_backward(model, criterion, parts)
    assert int(monitor.state_dict()["rows"]) == 10


def test_a_call_without_rows_is_passed_over():
    monitor, criterion = MarginalMonitor(), GenCELoss(anchor=0.1)
    criterion.register_forward_hook(monitor.hook)
    parts = [torch.randn(6, 3), torch.zeros(0, 3)]
    labels = [torch.arange(6) % 3, torch.zeros(0, dtype=torch.long)]
    two_pass_backward(nn.Identity(), criterion, [(z.requires_grad_(), y) for z, y in zip(parts, labels, strict=True)])
    close(monitor.marginal(), parts[0].detach().double().softmax(1).mean(0))
    network = nn.Linear(4, 3)
    network.register_forward_hook(monitor.hook)
    monitor.reset()
    network(torch.zeros(0, 4))
    assert monitor.empty
