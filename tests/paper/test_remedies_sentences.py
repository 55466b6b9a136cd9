"""What the documentation says in words of the remedies is so in the records."""

from __future__ import annotations

import statistics

import pytest

from gence.lab.store.store import Store
from gence.paper.exhibit import ANCHORED
from gence.paper.exhibit_registry import Asked
from gence.paper.exhibits.table1 import table1
from gence.paper.records import Reader, default_results, measure
from gence.paper.studies.evidence import Course, read_courses
from gence.paper.studies.remedies import RemediesRecords, read_remedies, remedies

DATA, MODELS, RECIPES = ("cifar100", "cifar10"), ("vgg19", "resnet50"), ("paper", "modern")
STRENGTHS = ("0.01", "0.03", "0.1", "0.3")
LARGER = ("batch-200", "batch-400")
VGG_100_PAPER = "cifar100-vgg19-paper"


def settings(data: str = "", model: str = "", recipe: str = "") -> list[str]:
    """The names of the settings, all of them or those with this data, network or recipe."""
    found = [(one, network, under) for one in DATA for network in MODELS for under in RECIPES]
    wanted = (data, model, recipe)
    return ["-".join(one) for one in found if all(given in ("", part) for given, part in zip(wanted, one, strict=True))]


@pytest.fixture(scope="module")
def courses() -> dict[str, dict[str, list[Course]]]:
    return {one.setting.name: one.by_column for one in read_courses(remedies(), Store(default_results()))}


@pytest.fixture(scope="module")
def study() -> RemediesRecords:
    return read_remedies(Asked(Store(default_results())))


@pytest.fixture(scope="module")
def accuracy(study) -> dict[str, dict[str, float]]:
    """Mean accuracy in per cent, by setting and line, of what has records."""
    return means(study.accuracy)


@pytest.fixture(scope="module")
def ece(study) -> dict[str, dict[str, float]]:
    """Likewise the calibration error."""
    return means(study.ece)


def means(measured) -> dict[str, dict[str, float]]:
    return {
        one.row.name: {name: found.summary.mean for name, found in one.cells.items() if found.summary is not None}
        for one in measured
    }


def runs(courses, name: str, of: list[str]) -> list[Course]:
    return [course for setting in of for course in courses[setting][name]]


def test_all_settings_are_recorded(courses) -> None:
    assert set(courses) == set(settings())


def test_the_drift_comes_in_the_first_epochs(courses) -> None:
    plain = runs(courses, "gence", settings())
    out = [course for course in plain if course.epochs_out]
    assert len(out) > 0.7 * len(plain)
    assert max(course.epochs_out[0] for course in out) <= 10
    # Back before the rate falls, or never.
    assert all(course.epochs_out[-1] <= 101 for course in out if not course.out_at_end)
    assert not any(course.epochs_out for course in runs(courses, "ce", settings()))


def test_a_stronger_anchor_has_the_marginal_back_sooner(courses) -> None:
    for prior in ("", "train-"):
        epochs = [
            statistics.fmean(len(course.epochs_out) for course in runs(courses, f"{prior}anchor-{a}", settings()))
            for a in STRENGTHS
        ]
        assert epochs == sorted(epochs, reverse=True)
    weak = [runs(courses, f"{prior}anchor-0.03", settings("cifar100", "resnet50")) for prior in ("", "train-")]
    assert max(course.epochs_out[0] for found in weak for course in found if course.epochs_out) > 10
    anchored = [name for name in courses[VGG_100_PAPER] if "anchor" in name or name == "annealed"]
    assert not any(course.out_at_end for name in anchored for course in runs(courses, name, settings()))


def test_a_weak_anchor_is_enough_for_vgg_and_not_for_resnet(accuracy) -> None:
    for setting in settings(model="vgg19"):
        best = max(accuracy[setting][f"{prior}anchor-{a}"] for prior in ("", "train-") for a in STRENGTHS)
        assert accuracy[setting]["anchor-0.01"] > best - 1.5
    resnets = [accuracy[setting] for setting in settings(model="resnet50")]
    assert all(one["annealed"] < one["anchor-0.1"] - 5 for one in resnets)
    assert sum(one["anchor-0.01"] < one["anchor-0.1"] - 5 for one in resnets) == 3


def test_an_anchor_of_a_tenth_is_nowhere_far_from_the_best_line(accuracy) -> None:
    behind = {
        name: max(max(lines.values()) - lines[name] for lines in accuracy.values() if name in lines)
        for name in accuracy[VGG_100_PAPER]
    }
    assert max(behind.pop(name) for name in ("anchor-0.1", "train-anchor-0.1")) < 2.5
    assert behind.pop("train-anchor-0.3") < 3.5
    assert min(behind.values()) > 5


def test_repairs_afterwards_repair_what_is_left(accuracy) -> None:
    for setting in settings("cifar10", "vgg19"):
        assert accuracy[setting]["offset"] > accuracy[setting]["anchor-0.1"] - 1
    for setting in settings(model="resnet50"):
        assert accuracy[setting]["offset"] < accuracy[setting]["anchor-0.1"] - 5
    assert accuracy[VGG_100_PAPER]["offset"] < accuracy[VGG_100_PAPER]["anchor-0.1"] - 2


def test_networks_whose_marginal_came_back_are_behind_the_anchored_of_their_seed(study) -> None:
    cells = {one.row.name: one.cells for one in study.accuracy}
    ahead: dict[bool, list[bool]] = {True: [], False: []}
    for one in read_courses(remedies(), Store(default_results())):
        plain, anchored = (cells[one.setting.name][name].by_seed for name in ("gence", "anchor-0.1"))
        for seed, course in zip(sorted(plain), one.by_column["gence"], strict=True):
            if course.epochs_out:
                ahead[course.out_at_end].append(plain[seed] > anchored[seed])
    assert not any(ahead[True])
    assert sum(ahead[False]) == 1
    assert len(ahead[False]) >= 8


def test_with_5000_labels_on_cifar10_the_marginal_is_back_soon_and_waiting_is_as_good() -> None:
    exhibit, reader = table1(), Reader(Store(default_results()))
    (row,) = exhibit.selected(["cifar10-5000-vgg19"])
    columns = {column.name: column for column in exhibit.columns if not column.prefix}
    found = {name: [reader.record(spec) for spec in row.specs(columns[name])] for name in ("gence", ANCHORED.name)}
    for record in found["gence"]:
        epochs_out = Course(tuple(record.result.curves["marginal_kl"])).epochs_out
        assert epochs_out
        assert epochs_out[-1] < 100
    plain, anchored = ([record.result.metrics["accuracy"] for record in runs] for runs in found.values())
    assert abs(statistics.fmean(plain) - statistics.fmean(anchored)) < min(map(statistics.stdev, (plain, anchored)))


def test_without_a_bias_the_marginal_leaves_as_often(courses, accuracy) -> None:
    plain, without = (
        statistics.fmean(bool(course.epochs_out) for course in runs(courses, name, settings()))
        for name in ("gence", "no-bias")
    )
    assert without >= plain - 0.1
    assert all(accuracy[one]["no-bias"] < accuracy[one]["anchor-0.1"] - 5 for one in settings(model="resnet50"))


def test_on_cifar10_larger_batches_come_back_less_often(courses, study) -> None:
    def back(name: str, model: str) -> int:
        return sum(not course.out_at_end for course in runs(courses, name, settings("cifar10", model)))

    assert back("batch-200", "vgg19") == back("batch-400", "vgg19") == 0 < back("gence", "vgg19")
    assert back("batch-400", "resnet50") == 0
    assert back("batch-200", "resnet50") <= back("gence", "resnet50")
    ends = [
        number
        for one in study.accuracy
        if one.row.name in settings("cifar10")
        for name in LARGER
        for number in one.cells[name].by_seed.values()
    ]
    assert statistics.median(ends) < 20
    # Those that came back took more steps before the rate fell than a batch of twice the size makes by then.
    vgg = [course for course in runs(courses, "gence", settings("cifar10", "vgg19")) if not course.out_at_end]
    assert len(vgg) >= 4
    assert all(2 * course.epochs_out[-1] > len(course.drift) / 2 for course in vgg)


def test_on_cifar100_batches_of_400_come_back_more_often_except_under_one_setting(courses, accuracy) -> None:
    of, stays_out = settings("cifar100"), "cifar100-resnet50-paper"
    back = [sum(not course.out_at_end for course in runs(courses, name, of)) for name in ("gence", "batch-400")]
    assert back[0] < back[1]
    assert all(course.out_at_end for course in courses[stays_out]["batch-400"])
    assert max(accuracy[VGG_100_PAPER], key=accuracy[VGG_100_PAPER].__getitem__) == "batch-400"
    mild = accuracy["cifar100-resnet50-modern"]
    assert mild["gence"] + 5 < mild["batch-400"] < mild["anchor-0.1"] - 5
    assert all(accuracy[setting]["batch-200"] < accuracy[setting]["gence"] + 1 for setting in of)
    stays = accuracy["cifar100-vgg19-modern"]
    assert stays["gence"] - 1 > stays["batch-200"] > stays["batch-400"]
    assert not any(course.epochs_out for name in LARGER for course in courses["cifar100-vgg19-modern"][name])


def test_where_the_marginal_stays_an_anchor_gains_nothing(courses, accuracy) -> None:
    name = "cifar100-vgg19-modern"
    assert not any(course.epochs_out for course in courses[name]["gence"])
    assert accuracy[name]["gence"] > max(accuracy[name].values()) - 0.5


def test_an_anchored_loss_is_ahead_of_cross_entropy_except_with_resnet_under_modern(courses, accuracy) -> None:
    mild = settings(model="resnet50", recipe="modern")
    for setting, lines in accuracy.items():
        ahead = lines["anchor-0.1"] - lines["ce"]
        assert abs(ahead) < 0.5 if setting in mild else ahead > 1
    assert all(course.out_at_end for course in runs(courses, "gence", mild))
    assert all(accuracy[setting]["gence"] < accuracy[setting]["ce"] - 10 for setting in mild)


def test_under_modern_half_of_the_plain_resnets_see_one_class(study) -> None:
    mild = settings(model="resnet50", recipe="modern")
    plain = [
        round(number * (100 if "cifar100" in one.row.name else 10), 6)
        for one in study.accuracy
        if one.row.name in mild
        for number in one.cells["gence"].by_seed.values()
    ]
    assert plain.count(100) == len(plain) / 2  # exactly the share of one class


def test_calibration_under_modern(ece) -> None:
    better = [ece[setting]["anchor-0.1"] < ece[setting]["ce"] - 1 for setting in settings(recipe="modern")]
    assert sum(better) == 3
    assert ece["cifar100-vgg19-modern"]["ce"] < ece["cifar100-vgg19-modern"]["anchor-0.1"]
    for setting in settings("cifar100", recipe="modern"):
        errors = [ece[setting][f"train-anchor-{a}"] for a in (*STRENGTHS, "1")]
        assert errors == sorted(errors, reverse=True)


def test_resnet_under_modern_beside_the_print(accuracy) -> None:
    print_of = {one.row.name: one.cells for one in measure(table1(), Reader(Store(default_results())))}
    for data in DATA:
        cells, mild = print_of[f"{data}-2000-resnet50"], accuracy[f"{data}-resnet50-modern"]
        assert abs(mild["ce"] - cells["ce"].printed.mean) < 2
        assert mild["gence"] < cells["gence"].summary.mean < cells["gence"].printed.mean


def test_plain_gence_falls_far_with_batches_of_200_on_cifar10(accuracy) -> None:
    for setting in settings("cifar10", recipe="paper"):
        assert accuracy[setting]["batch-200"] < accuracy[setting]["gence"] - 15
