"""A pretrained encoder trained on with its head: on real photographs, stopped by a kill, saved and exported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from gence.lab.features import embedded_encoder_is_installed, load_encoder
from gence.lab.spec import RECIPES, LossSpec, RunSpec
from gence.lab.train.cohort import Cohort, train_cohort
from gence.lab.train.saved.export import export_model
from gence.lab.train.saved.network import load_model
from gence.lab.train.task import ProblemLoader

pytestmark = pytest.mark.skipif(not embedded_encoder_is_installed(), reason="the extra pretrained is not installed")
FINETUNE = RECIPES["finetune"].replace(epochs=3, batch_size=20)


def spec_of(folder, loss="gence(anchor=0.1)", model="linear@efficientnet_lite0", seed=0, **recipe):
    return RunSpec(
        data=str(folder), model=model, loss=LossSpec.parse(loss), recipe=FINETUNE.replace(**recipe), seed=seed,
        image_size=32,
    )  # fmt: skip


PROGRAM = """
import os, sys, torch
from pathlib import Path
from gence.lab.spec import RunSpec
from gence.lab.train import train_cohort
torch.set_num_threads(1)
spec = RunSpec.from_json(sys.argv[1])
def said(progress):
    print(progress.epoch, flush=True)
train_cohort([spec], device="cpu", workdir=Path(sys.argv[2]), checkpoint_every_s=0, on_epoch=said)
"""


def test_it_learns_and_a_kill_changes_nothing(photographs, tmp_path):
    # With the statistics of so few images three epochs teach too little to be told from luck.
    learnt = spec_of(photographs, batch_size=10, lr=3e-3, warmup_epochs=0, freeze_norms=True)
    (taught,) = train_cohort([learnt], device="cpu")
    assert taught.metrics["accuracy"] >= 0.8
    assert taught.curves["train_loss"][2] < taught.curves["train_loss"][0]

    spec = spec_of(photographs)
    (whole,) = train_cohort([spec], device="cpu", models_dir=tmp_path)

    command = [sys.executable, "-c", PROGRAM, spec.to_json(), str(tmp_path / "work")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "1"
        deadline = time.monotonic() + 60
        while not list((tmp_path / "work").glob("cohort-*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    epochs = []
    (resumed,) = train_cohort(
        [spec], device="cpu", workdir=tmp_path / "work", on_epoch=lambda progress: epochs.append(progress.epoch)
    )
    assert epochs[0] >= 2
    assert resumed.metrics == whole.metrics

    model = load_model(tmp_path / f"{spec.key}.safetensors", device="cpu")
    images = ProblemLoader(torch.device("cpu")).load(spec).judged.images
    probabilities = model.probabilities(images)
    labels = ProblemLoader(torch.device("cpu")).load(spec).judged.labels
    assert float((probabilities.argmax(1) == labels).double().mean()) == pytest.approx(whole.metrics["accuracy"])
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(export_model(model, tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"images": images.numpy()})
    np.testing.assert_allclose(found, probabilities.numpy(), atol=1e-4)


@pytest.mark.parametrize("part", ["all", "last", "none"])
def test_what_is_trained_changes_and_the_rest_stays(photographs, part):
    spec = spec_of(photographs, model="mlp@efficientnet_lite0", tune_encoder=part, freeze_norms=True, epochs=1)
    cohort = Cohort([spec], torch.device("cpu"), loader=ProblemLoader(torch.device("cpu")))
    (trainee,) = cohort.trainees
    trainee.feed.prepare(0)
    before = {name: value.clone() for name, value in trainee.model.state_dict().items()}
    for _ in range(2):  # warm-up begins near 0
        trainee.step()
    changed = {name for name, value in trainee.model.state_dict().items() if not torch.equal(value, before[name])}
    of_encoder = {name for name in changed if name.startswith("backbone.0.")}
    assert {"head.weight", "head.bias", "backbone.1.weight"} <= changed
    assert not any("running" in name for name in changed)  # the norms' statistics are frozen
    if part == "none":
        assert of_encoder == set()
    elif part == "last":
        assert {name.split(".")[2] for name in of_encoder} <= {"blocks", "conv_head", "bn2"}
        assert not any(name.startswith("backbone.0.blocks.0") for name in of_encoder)
        assert of_encoder
    else:
        assert any(name.startswith("backbone.0.conv_stem") for name in of_encoder)
    rates = [group["lr"] for group in trainee.optimizer.param_groups]
    assert len(rates) == (1 if part == "none" else 2)
    if part != "none":
        assert rates[1] == pytest.approx(0.1 * rates[0])


def test_runs_begin_with_the_pretrained_weights_and_their_own_heads(photographs):
    specs = [spec_of(photographs, seed=seed) for seed in (0, 1)]
    cohort = Cohort(specs, torch.device("cpu"), loader=ProblemLoader(torch.device("cpu")))
    one, two = (trainee.classifier for trainee in cohort.trainees)
    pretrained = load_encoder("efficientnet_lite0", size=32).network.state_dict()
    for name, value in pretrained.items():
        torch.testing.assert_close(one.backbone[0].state_dict()[name], value, atol=0, rtol=0)
    assert not torch.equal(one.head.weight, two.head.weight)


def test_heads_and_encoders_that_cannot_be_are_named(photographs):
    with pytest.raises(ValueError, match="has the head 'line'; did you mean 'linear'"):
        train_cohort([spec_of(photographs, model="line@efficientnet_lite0")], device="cpu")
    with pytest.raises(ValueError, match="did you mean 'efficientnet_lite0'"):
        train_cohort([spec_of(photographs, model="linear@efficientnet_lite")], device="cpu")
    with pytest.raises(ValueError, match="cosine head is trained on frozen features only"):
        train_cohort([spec_of(photographs, model="cosine@efficientnet_lite0")], device="cpu")
