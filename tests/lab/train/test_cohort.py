from __future__ import annotations

import math

import pytest
import torch

from gence.lab.spec.run import Subset
from gence.lab.train import cohort
from gence.lab.train.backbone import resolve_device
from gence.lab.train.checkpoint import CohortCheckpoint
from gence.lab.train.cohort import CohortProgress, _marginal_kl, train_cohort
from gence.metrics import marginal_divergence
from tests.lab.small_runs import same_outcome, small_spec

MIXED = {"recipe.mixup_alpha": 0.2, "recipe.cutmix_alpha": 1.0, "recipe.mix_probability": 0.5}
LOSSES = ("gence(anchor=0.1)", "ce(label_smoothing=0.1)", "supcon")


def run(*specs, **options):
    return train_cohort(specs, device="cpu", **options)


def run_epochs(number, *specs, workdir, device="cpu"):
    """Stop after so many epochs; a stop within the first would keep nothing."""
    seen = []
    return train_cohort(
        specs, device=device, workdir=workdir, on_epoch=seen.append, should_stop=lambda: len(seen) == number
    )


def test_the_same_spec_gives_the_same_result_to_the_last_bit():
    spec = small_spec("gence", ood=("digits",), **MIXED)
    torch.manual_seed(1)
    (first,) = run(spec)
    torch.manual_seed(2)  # nothing may depend on the global generator
    (second,) = run(spec)
    same_outcome(first, second)
    assert first.status == "done"


def test_a_cohort_gives_the_results_of_runs_one_by_one():
    specs = [small_spec(loss, seed=seed, **MIXED) for seed in (0, 1) for loss in LOSSES]
    specs[0] = specs[0].replace(**{"recipe.lr": 0.01})
    for spec, together in zip(specs, run(*specs), strict=True):
        (alone,) = run(spec)
        same_outcome(alone, together)


@pytest.mark.parametrize("part_bytes", [1, 2 * 20 * 64 * 4])  # five parts of one batch; two batches, two, one
def test_an_epoch_in_parts_gives_the_same_result(part_bytes, tmp_path, monkeypatch):
    specs = [small_spec(loss, n=100, seed=seed, **MIXED) for seed in (0, 1) for loss in LOSSES]
    whole = run(*specs)
    monkeypatch.setattr("gence.lab.train.batches.PART_BYTES", part_bytes)
    assert run_epochs(1, *specs, workdir=tmp_path) == [None] * len(specs)
    for one, other in zip(whole, run(*specs, workdir=tmp_path), strict=True):
        same_outcome(one, other)


def test_seeds_and_losses_differ():
    specs = [small_spec("ce"), small_spec("gence"), small_spec("ce", seed=1)]
    curves = [result.curves["train_loss"] for result in run(*specs)]
    assert len({tuple(curve) for curve in curves}) == 3


@pytest.mark.parametrize("recipe", [
    {**MIXED, "recipe.ema": 0.9},
    {"recipe.optimizer": "adamw", "recipe.lr": 0.01, "recipe.anchor_warmup": 0.5},
])  # fmt: skip
def test_an_interrupted_cohort_continues_to_the_same_result(tmp_path, recipe):
    specs = [small_spec(loss, **recipe) for loss in LOSSES]
    whole = run(*specs)
    for stop_after in (1, 2):
        assert run_epochs(stop_after, *specs, workdir=tmp_path) == [None] * len(specs)
        assert len(list(tmp_path.iterdir())) == 1
        seen: list[CohortProgress] = []
        for one, other in zip(whole, run(*specs, workdir=tmp_path, on_epoch=seen.append), strict=True):
            same_outcome(one, other)
        assert [progress.epoch for progress in seen] == list(range(stop_after + 1, 4))
        assert list(tmp_path.iterdir()) == []


def test_a_killed_cohort_continues_from_its_last_checkpoint(tmp_path):
    spec = small_spec("gence(anchor=0.1)")

    def die(progress: CohortProgress) -> None:
        if progress.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, workdir=tmp_path, on_epoch=die, checkpoint_every_s=0)
    assert CohortCheckpoint(tmp_path, [spec]).load().epoch == 2
    (resumed,) = run(spec, workdir=tmp_path)
    (whole,) = run(spec)
    same_outcome(whole, resumed)


def test_a_cohort_killed_while_it_is_judged_is_judged_again(tmp_path, monkeypatch):
    specs = [small_spec(loss) for loss in LOSSES]
    with monkeypatch.context() as patched:
        patched.setattr("gence.lab.train.cohort.evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(*specs, workdir=tmp_path, checkpoint_every_s=0)
    seen: list[CohortProgress] = []
    for one, other in zip(run(*specs), run(*specs, workdir=tmp_path, on_epoch=seen.append), strict=True):
        same_outcome(one, other)
    assert seen == []  # no epoch was trained twice


def test_a_checkpoint_that_was_cut_short_is_not_used(tmp_path):
    spec = small_spec()
    run_epochs(1, spec, workdir=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    (result,) = run(spec, workdir=tmp_path)
    (whole,) = run(spec)
    same_outcome(whole, result)


def test_time_before_an_interruption_counts(tmp_path):
    spec = small_spec()
    run_epochs(1, spec, workdir=tmp_path)
    saved = CohortCheckpoint(tmp_path, [spec]).load()
    CohortCheckpoint(tmp_path, [spec]).save(saved.epoch, 1000.0, saved.tensors, saved.sums)
    (result,) = run(spec, workdir=tmp_path)
    assert 1000 < result.wall_s < 1100


def test_a_run_that_diverges_is_recorded_and_does_not_touch_the_others():
    specs = [small_spec("ce"), small_spec("ce", **{"recipe.lr": 1e30}), small_spec("supcon", **{"recipe.lr": 1e30})]
    seen: list[CohortProgress] = []
    results = run(*specs, on_epoch=seen.append)
    assert [result.status for result in results] == ["done", "diverged", "diverged"]
    (alone,) = run(specs[0])
    same_outcome(alone, results[0])
    for result in results[1:]:
        assert set(result.metrics) == {"accuracy"}
        assert result.predictions is None
        assert math.isnan(result.curves["train_loss"][-1])
        assert len(result.curves["train_loss"]) == len(result.curves["epoch"]) == 3
    assert [math.isnan(loss) for loss in seen[-1].loss] == [False, True, True]


def test_a_network_broken_by_its_last_step_has_diverged_too():
    spec = small_spec("ce", n=20, **{"recipe.lr": 1e38, "recipe.epochs": 1})
    (result,) = run(spec)
    assert math.isfinite(result.curves["train_loss"][0])
    assert result.status == "diverged"


def test_a_diverged_run_stays_diverged_after_an_interruption(tmp_path):
    specs = [small_spec("ce"), small_spec("ce", **{"recipe.lr": 1e30})]
    whole = run(*specs)
    run_epochs(1, *specs, workdir=tmp_path)
    for one, other in zip(whole, run(*specs, workdir=tmp_path), strict=True):
        same_outcome(one, other)


def test_results_hold_what_a_record_needs():
    (result,) = run(small_spec("gence", ood=("digits",)))
    assert {"accuracy", "nll", "ece", "marginal_kl", "train_accuracy", "offset/ece", "ood/digits/auroc_entropy",
            "offset/ood/digits/auroc_entropy"} <= result.metrics.keys()  # fmt: skip
    assert all(math.isfinite(value) for value in result.metrics.values())
    assert result.metrics["ood/digits/auroc_entropy"] == pytest.approx(0.5)  # its own test set
    assert {name: len(values) for name, values in result.curves.items()} == dict.fromkeys(
        ("epoch", "train_loss", "lr", "train_accuracy", "marginal_kl", "test_accuracy", "test_accuracy_epoch"), 3
    )
    assert result.curves["epoch"] == [1, 2, 3]
    assert result.curves["lr"][0] == pytest.approx(0.05)
    assert result.wall_s > 0


def test_progress_tells_loss_accuracy_and_time_left():
    seen: list[CohortProgress] = []
    results = run(small_spec("gence"), small_spec("supcon"), on_epoch=seen.append)
    assert [(p.epoch, p.epochs) for p in seen] == [(1, 3), (2, 3), (3, 3)]
    assert [p.loss[0] for p in seen] == pytest.approx(results[0].curves["train_loss"], rel=1e-4)
    assert [p.accuracy[0] for p in seen] == pytest.approx(results[0].curves["train_accuracy"], rel=1e-4)
    assert [p.marginal_kl[0] for p in seen] == pytest.approx(results[0].curves["marginal_kl"], rel=1e-3)
    assert math.isnan(seen[0].accuracy[1])
    assert "train_accuracy" not in results[1].curves
    assert seen[0].left_s > 0
    assert seen[-1].left_s == 0


def test_the_drift_of_many_epochs_is_that_of_each():
    sums, prior = 2000 * torch.rand(5, 3 + 4, dtype=torch.float64), torch.tensor([0.5, 0.3, 0.2, 0.0]).double()
    sums[1, 3] = 0.0
    expected = [float(marginal_divergence(row[None, 3:].clamp_min(1e-300).log(), prior)) for row in sums[:3]]
    sums[3, 4], sums[4, 3:] = math.nan, math.inf
    found = _marginal_kl(sums, prior)
    assert found[:3] == pytest.approx(expected, rel=1e-12)
    assert all(math.isnan(value) for value in found[3:])


def test_tuning_is_judged_on_the_held_out_part():
    spec = small_spec(n=100, **{"subset.val_fraction": 0.2, "evaluate_on": "val"})
    (result,) = run(spec)
    assert len(result.predictions["label"]) == 20


@pytest.mark.parametrize("subset", [Subset(n=40, rho=8.0), Subset(n=10), Subset(n=30)])
def test_long_tails_and_subsets_smaller_than_a_batch(subset):
    spec = small_spec("gence(anchor=0.1,prior=train)").replace(subset=subset)
    (result,) = run(spec)
    assert result.status == "done"
    assert result.tables["prior"][0] >= result.tables["prior"][-1]


def test_incomplete_batches_can_be_kept():
    (dropped,), (kept,) = run(small_spec(n=50)), run(small_spec(n=50, **{"recipe.drop_last": False}))
    assert dropped.curves["train_loss"] != kept.curves["train_loss"]


def test_bfloat16_trains_on_a_cpu_too():
    (result,) = run(small_spec(model="mlp", **{"recipe.precision": "bf16"}))
    assert result.status == "done"


def test_runs_of_different_kinds_are_refused():
    with pytest.raises(ValueError, match="one cohort_key"):
        run(small_spec(), small_spec(n=50))
    assert run() == []


@pytest.mark.parametrize("device", ["graphics", "cuda:x", "meta"])
def test_an_unknown_device_is_named(device):
    with pytest.raises(ValueError, match=f"device is '{device}'"):
        resolve_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said():
    with pytest.raises(ValueError, match="sees no GPU"):
        resolve_device("cuda")


def test_a_gpu_beyond_the_last_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="device is 'cuda:1', but PyTorch sees 1 GPU"):
        resolve_device("cuda:1")


def test_digits_are_learned():
    from gence.lab.spec.recipe import RECIPES

    (result,) = run(small_spec("gence(anchor=0.1)", n=100).replace(recipe=RECIPES["tiny"]))
    assert result.metrics["accuracy"] > 0.88
    assert result.wall_s < 60


@pytest.mark.gpu
def test_the_same_spec_gives_the_same_result_on_a_gpu():
    specs = [small_spec(loss, **MIXED) for loss in LOSSES]
    for one, other in zip(train_cohort(specs, device="cuda"), train_cohort(specs, device="cuda"), strict=True):
        same_outcome(one, other)


@pytest.mark.gpu
def test_a_cohort_gives_the_results_of_runs_one_by_one_on_a_gpu():
    specs = [small_spec(loss, seed=seed, **MIXED) for seed in (0, 1) for loss in LOSSES]
    for spec, together in zip(specs, train_cohort(specs, device="cuda"), strict=True):
        (alone,) = train_cohort([spec], device="cuda")
        # Other kernels may be chosen beside other runs: equal within the noise of reordering.
        assert together.curves["train_loss"] == pytest.approx(alone.curves["train_loss"], rel=0.02)
        assert together.metrics["nll"] == pytest.approx(alone.metrics["nll"], rel=0.05)


@pytest.mark.gpu
def test_an_interrupted_cohort_continues_to_the_same_result_on_a_gpu(tmp_path):
    specs = [small_spec(loss, **{**MIXED, "recipe.ema": 0.9}) for loss in LOSSES]
    whole = train_cohort(specs, device="cuda")
    run_epochs(1, *specs, workdir=tmp_path, device="cuda")
    for one, other in zip(whole, train_cohort(specs, device="cuda", workdir=tmp_path), strict=True):
        same_outcome(one, other)


@pytest.mark.gpu
def test_a_gpu_agrees_with_the_cpu_in_float32():
    specs = [small_spec(loss, **{"recipe.precision": "fp32"}) for loss in ("ce", "gence(anchor=0.1)", "supcon")]
    specs += [spec.replace(**{"recipe.lr": 1e30}) for spec in specs[:1]]
    for here, there in zip(run(*specs), train_cohort(specs, device="cuda"), strict=True):
        assert here.status == there.status
        if here.status == "done":
            assert there.curves["train_loss"] == pytest.approx(here.curves["train_loss"], rel=0.02)


@pytest.mark.gpu
def test_a_run_of_one_step_is_captured_too():
    (result,) = train_cohort([small_spec("gence(anchor=0.1)", n=20, **{"recipe.epochs": 1})], device="cuda")
    assert result.status == "done"


@pytest.mark.parametrize("calls", [2, 9])
def test_a_long_epoch_ends_in_its_middle_and_is_begun_again(tmp_path, monkeypatch, calls):
    monkeypatch.setattr(cohort, "_LONG_EPOCH_S", 0.0)
    short = {"recipe.epochs": 3, "recipe.batch_size": 10}
    specs = [small_spec("ce", **short), small_spec("gence", **short)]
    whole = train_cohort(specs, device="cpu")
    asked, seen = [], []

    def should_stop():
        asked.append(1)
        return len(asked) >= calls

    stopped = train_cohort(
        specs,
        device="cpu",
        workdir=tmp_path,
        should_stop=should_stop,
        on_epoch=lambda progress: seen.append(progress.epoch),
    )
    assert stopped == [None, None]
    assert len(asked) == calls
    resumed = train_cohort(specs, device="cpu", workdir=tmp_path, on_epoch=lambda progress: seen.append(progress.epoch))
    assert seen == [1, 2, 3]
    for one, other in zip(whole, resumed, strict=True):
        assert one.metrics == other.metrics
        assert one.curves == other.curves
