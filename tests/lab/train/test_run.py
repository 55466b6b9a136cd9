from __future__ import annotations

import copy

import pytest
import torch

from gence.lab.spec import average_shares
from gence.lab.train.backbone import run_backbone
from gence.lab.train.batches import EpochFeed
from gence.lab.train.contrastive import ContrastiveTrainee
from gence.lab.train.run import WARMUP_STEPS, Trainee, create_criterion
from gence.losses import GenCELoss
from tests.lab.small_runs import problem_of, small_spec


def trainee_of(spec, kind=Trainee):
    problem = problem_of(spec)
    views = 2 if kind is ContrastiveTrainee else 1
    feed = EpochFeed(problem, spec.recipe, spec.seed, torch.float32, views)
    feed.prepare(0)
    return kind(spec, problem, feed, run_backbone)


@pytest.mark.parametrize("recipe", [
    {"recipe.optimizer": "sgd", "recipe.weight_decay": 0.1, "recipe.nesterov": True},
    {"recipe.optimizer": "sgd", "recipe.momentum": 0.0},
    {"recipe.optimizer": "adamw", "recipe.weight_decay": 0.1, "recipe.lr": 0.01},
])  # fmt: skip
def test_making_the_optimisers_buffers_changes_nothing(recipe):
    plain, prepared = (trainee_of(small_spec("ce", **recipe)) for _ in range(2))
    prepared.ensure_optimizer_state()
    for _ in range(2):
        plain.step()
        prepared.step()
    for name, value in plain.tensors().items():
        torch.testing.assert_close(prepared.tensors()[name], value, atol=0, rtol=0)


def test_a_step_is_what_plain_pytorch_does():
    spec = small_spec("ce", **{"recipe.weight_decay": 0.01, "recipe.nesterov": True, "recipe.schedule": "constant"})
    trainee = trainee_of(spec)
    model = copy.deepcopy(trainee.classifier)
    optimizer = torch.optim.SGD(model.parameters(), spec.recipe.lr, 0.9, weight_decay=0.01, nesterov=True)
    for step in range(2):
        images, labels = trainee.feed.batch(torch.tensor([step]))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        trainee.step()
    for value, expected in zip(trainee.classifier.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(value, expected)


def test_the_rate_of_every_step_reaches_the_optimiser():
    trainee = trainee_of(small_spec(**{"recipe.warmup_epochs": 2.0}))
    seen = []
    for _ in range(2):
        trainee.step()
        seen.append(trainee.optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx([0.05 / 4, 0.05 / 2])


def test_the_average_holds_weights_and_statistics_by_hand():
    spec = small_spec(**{"recipe.ema": 0.5})
    trainee = trainee_of(spec)
    state = trainee.classifier.state_dict(keep_vars=True)
    names = [name for name, value in state.items() if value.is_floating_point()]
    assert any("running_var" in name for name in names)
    expected = {name: state[name].detach().clone() for name in names}
    for share in average_shares(spec.recipe, trainee.feed.steps)[:2]:
        trainee.step()
        expected = {name: (1 - share) * value + share * state[name].detach() for name, value in expected.items()}
    trainee.finish()
    for name in names:
        torch.testing.assert_close(state[name].detach(), expected[name], msg=name)


def test_an_anchor_warms_up_inside_the_loss():
    trainee = trainee_of(small_spec("gence(anchor=0.4)", **{"recipe.anchor_warmup": 1.0}))
    seen = []
    for _ in range(2):
        trainee.step()
        seen.append(float(trainee.criterion.anchor))
    assert seen == pytest.approx([0.0, 0.4 / 6])  # 3 epochs of 2 steps


def test_at_anchor_zero_a_warm_up_begins_as_plain_gence():
    warm = trainee_of(small_spec("gence(anchor=0.4)", **{"recipe.anchor_warmup": 1.0}))
    plain, anchored = trainee_of(small_spec("gence")), trainee_of(small_spec("gence(anchor=0.4)"))
    for trainee in (warm, plain, anchored):
        trainee.step()
    torch.testing.assert_close(warm.sums[0], plain.sums[0], rtol=1e-5, atol=0.0)  # summed in float64, made in float32
    assert float(anchored.sums[0]) > float(plain.sums[0])


def test_sums_are_loss_hits_rows_and_predictions():
    trainee = trainee_of(small_spec())
    model = copy.deepcopy(trainee.classifier)
    images, labels = trainee.feed.batch(torch.tensor([0]))
    logits = model(images).detach()
    trainee.step()
    expected = [
        20 * float(torch.nn.functional.cross_entropy(logits, labels)),
        float((logits.argmax(1) == labels).sum()),
    ]
    assert trainee.sums[:3].tolist() == pytest.approx([*expected, 20.0])
    torch.testing.assert_close(trainee.sums[3:], logits.softmax(1).sum(0).double(), atol=1e-5, rtol=1e-5)


def test_priors_by_name_and_label_smoothing():
    prior = torch.tensor([0.7, 0.2, 0.1])
    train = create_criterion(small_spec("gence(anchor=0.1,prior=train)"), prior)
    uniform = create_criterion(small_spec("gence(anchor=0.1,prior=uniform,label_smoothing=0.1)"), prior)
    assert isinstance(train, GenCELoss)
    torch.testing.assert_close(train.prior, prior)
    torch.testing.assert_close(uniform.prior, torch.full((3,), 1 / 3))
    assert uniform.label_smoothing == 0.1
    assert create_criterion(small_spec("gence"), prior).prior is None


@pytest.mark.parametrize(("loss", "message"), [
    ("gence(anchor=0.1,prior=tran)", "prior is 'tran'; expected 'train', 'uniform'"),
    ("focal(gama=2)", "unknown parameter 'gama'; known: label_smoothing, gamma"),
    ("ce(reduction=none)", "unknown parameter 'reduction'; known: label_smoothing, weight"),
    ("focall", "did you mean 'focal'"),
])  # fmt: skip
def test_a_wrong_loss_is_refused_by_name(loss, message):
    with pytest.raises(ValueError, match=message):
        create_criterion(small_spec(loss), torch.full((10,), 0.1))


def test_a_contrastive_run_trains_the_encoder_and_not_the_head():
    trainee = trainee_of(small_spec("supcon"), ContrastiveTrainee)
    head = trainee.classifier.head.weight.detach().clone()
    encoder = [p.detach().clone() for p in trainee.classifier.backbone.parameters()]
    trainee.step()
    torch.testing.assert_close(trainee.classifier.head.weight, head, atol=0, rtol=0)
    assert all(not torch.equal(a, b) for a, b in zip(encoder, trainee.classifier.backbone.parameters(), strict=True))
    assert bool(trainee.sums[[0, 2]].isfinite().all())
    assert bool(trainee.sums[3:].isnan().all())  # there are no predictions to sum


def test_state_can_be_put_back():
    trainee = trainee_of(small_spec("supcon", **{"recipe.optimizer": "adamw"}), ContrastiveTrainee)
    trainee.step()
    saved = {name: value.detach().clone() for name, value in trainee.tensors().items()}
    trainee.step()
    again = {name: value.detach().clone() for name, value in trainee.tensors().items()}
    other = trainee_of(trainee.spec, ContrastiveTrainee)
    other.load_tensors(saved)
    assert other.steps_done == 1
    other.step()
    for name, value in other.tensors().items():
        torch.testing.assert_close(value, again[name], atol=0, rtol=0, equal_nan=True, msg=name)


def test_a_captured_steps_warm_up_stays_inside_the_tables():
    spec = small_spec("gence(anchor=0.1)", n=20, **{"recipe.epochs": 1, "recipe.anchor_warmup": 0.5})
    trainee = trainee_of(spec)
    for _ in range(WARMUP_STEPS):  # one step is the whole run
        trainee.step()
    assert bool(trainee.sums.isfinite().all())


@pytest.mark.parametrize("loss", ["ce", "gence", "gence(anchor=0.1)", "mae", "brier", "generalized_ce", "focal",
                                  "logit_adjusted(prior=train)", "cosine", "gence(label_smoothing=0.1)"])  # fmt: skip
def test_every_loss_takes_mixed_batches(loss):
    spec = small_spec(loss, **{"recipe.mixup_alpha": 0.2, "recipe.cutmix_alpha": 1.0, "recipe.mix_probability": 1.0})
    trainee = trainee_of(spec)
    trainee.step()
    trainee.step()
    assert bool(trainee.sums.isfinite().all())
