from __future__ import annotations

import itertools

import pytest
import torch

from gence.lab.data import DataError, load, load_images
from gence.lab.spec.run import Subset
from gence.lab.train.task import ProblemLoader, subset_index
from tests.lab.small_runs import CPU, problem_of, small_spec, write_images


def test_a_subset_depends_on_the_seed_and_not_on_the_loss():
    first, second = problem_of(small_spec("ce", n=50)), problem_of(small_spec("gence(anchor=0.1)", n=50))
    torch.testing.assert_close(first.train.index, second.train.index)
    assert torch.bincount(first.train.labels).tolist() == [5] * 10
    assert not torch.equal(first.train.index, problem_of(small_spec(n=50, seed=1)).train.index)


def test_statistics_come_from_the_training_images_alone():
    problem = problem_of(small_spec(n=50))
    pixels = problem.train.images.double() / 255
    torch.testing.assert_close(problem.mean.double(), pixels.mean((0, 2, 3)), atol=1e-6, rtol=0)
    torch.testing.assert_close(problem.std.double(), pixels.std((0, 2, 3), correction=0), atol=1e-6, rtol=0)
    torch.testing.assert_close(problem.prior, torch.full((10,), 0.1))


def test_a_validation_part_is_cut_from_the_small_training_set_and_never_from_test():
    whole = problem_of(small_spec(n=100))
    tuned = problem_of(small_spec(n=100, **{"subset.val_fraction": 0.2, "evaluate_on": "val"}))
    parts = torch.cat([tuned.train.index, tuned.judged.index])
    torch.testing.assert_close(parts.sort().values, whole.train.index.sort().values)
    assert torch.bincount(tuned.judged.labels).tolist() == [2] * 10
    train = load("digits").train
    torch.testing.assert_close(tuned.judged.images, train.images[tuned.judged.index])


def test_test_images_are_judged_where_nothing_else_is_said():
    held = problem_of(small_spec(n=100, **{"subset.val_fraction": 0.2}))
    torch.testing.assert_close(held.judged.images, load("digits").test.images)
    assert len(held.train.labels) == 80


def test_a_long_tail_has_its_counts_and_its_prior():
    spec = small_spec().replace(subset=Subset(n=64, rho=16.0))
    problem = problem_of(spec)
    counts = torch.bincount(problem.train.labels)
    assert (int(counts[0]), int(counts[-1])) == (64, 4)
    assert all(a >= b for a, b in itertools.pairwise(counts.tolist()))
    torch.testing.assert_close(problem.prior, counts / counts.sum())


def test_all_images_are_used_where_no_size_is_given():
    labels = torch.arange(3).repeat(7)
    spec = small_spec().replace(subset=Subset())
    torch.testing.assert_close(subset_index(spec, labels, 3), torch.arange(21))


def test_a_tail_of_one_image_cannot_be_split():
    spec = small_spec().replace(subset=Subset(n=10, rho=10.0, val_fraction=0.5))
    with pytest.raises(DataError, match="class '7' has 1 image"):
        problem_of(spec)


@pytest.mark.parametrize(("inside", "outside"), [("RGB", "L"), ("L", "RGB")])
def test_ood_images_get_the_channels_and_the_size_of_the_data(tmp_path, inside, outside):
    data = write_images(tmp_path / "data", {"a": 10, "b": 10}, mode=inside)
    ood = write_images(tmp_path / "ood", {"x": 3, "y": 4}, mode=outside, size=12, seed=1)
    spec = small_spec(n=8, data=str(data), ood=(str(ood),))
    problem = ProblemLoader(CPU, tmp_path / "cache").load(spec)
    (images,) = problem.ood.values()
    assert images.shape == (7, *problem.train.images.shape[1:])
    assert images.dtype == torch.uint8
    if outside == "L":
        torch.testing.assert_close(images[:, 0], images[:, 2])
    else:  # luma, not the red channel
        colour = load_images(str(ood), image_size=8, cache=False)
        torch.testing.assert_close(images, colour.with_channels(1).images)
        assert not torch.equal(images[:, 0], colour.images[:, 0])


def test_image_size_resizes_training_and_test_images():
    problem = problem_of(small_spec(image_size=6))
    assert problem.train.images.shape[2:] == problem.judged.images.shape[2:] == (6, 6)


def test_a_constant_channel_can_be_normalised(tmp_path):
    from PIL import Image

    data = tmp_path / "data"
    for name in ("a", "b"):
        (data / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (8, 8), 7).save(data / name / f"{i}.png")
    problem = ProblemLoader(CPU, tmp_path / "cache").load(small_spec(n=4, data=str(data)))
    assert float(problem.std[0]) > 0


def test_loading_is_quiet_unless_asked(tmp_path, capfd):
    data = write_images(tmp_path / "data", {"a": 5, "b": 5})
    ProblemLoader(CPU, tmp_path / "one").load(small_spec(n=4, data=str(data)))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    ProblemLoader(CPU, tmp_path / "two", progress=True).load(small_spec(n=4, data=str(data)))
    assert "data" in capfd.readouterr().err


def test_runs_share_what_is_on_the_device():
    loader = ProblemLoader(CPU)
    one, two = loader.load(small_spec(seed=0)), loader.load(small_spec(seed=1))
    assert one.judged is two.judged
