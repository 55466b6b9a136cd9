"""An exhibit is one file: what is put into a folder of exhibits is there in every command and document."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper import exhibits, studies
from gence.paper.blocks import filled, renderers
from gence.paper.exhibit_registry import SHARED, entries, load_exhibit, shown
from gence.paper.exhibits_page import render_page
from tests.paper.commands import invoke

ONE_FILE = '''
"""Three seeds of two losses on the digits."""

from gence.lab.spec import RunSpec
from gence.paper.exhibit_table import panels_drawing
from gence.paper.exhibit import SIX_LOSSES, Exhibit, RunRow
from gence.paper.records import measure
from gence.paper.exhibit_registry import Entry

BASE = {"data": "digits", "model": "mlp", "recipe": "tiny", "subset": 100, "loss": "ce", "seed": 0}


def digits(recipe=None):
    """Return the exhibit."""
    base = RunSpec.from_dict(BASE)
    base = base if recipe is None else base.replace(recipe=recipe)
    return Exhibit(
        name="digits",
        title="A hundred digits",
        label_names=("Data",),
        columns=SIX_LOSSES[:2],
        rows=(RunRow(name="digits-100", labels=("digits",), base=base),),
        assumptions=("Digits are images.",),
        seeds=3,
    )


def drawings(asked):
    """Return a panel per row that has records."""
    measured = [one for one in measure(digits(), asked.store) if one.cells["ce"].summary]
    words = {"title": "Digits, drawn", "reading": "Dots are means.", "description": "See the table."}
    return panels_drawing(measured, lambda axes, one: axes.plot([0], [1], label="x"), ["x"], name="digits", **words)


ENTRIES = (Entry(name="digits", heading="A hundred digits", exhibit=digits, drawings=drawings),)
'''


@pytest.fixture(params=[exhibits, studies], ids=["exhibits", "studies"])
def one_file(request, tmp_path, monkeypatch) -> Path:
    """A file that is found like those of the package's own folder."""
    package = request.param
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "of_digits.py").write_text(ONE_FILE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield folder
    sys.modules.pop(f"{package.__name__}.of_digits", None)
    vars(package).pop("of_digits", None)


def test_a_new_exhibit_is_one_file(one_file, tmp_path) -> None:
    place = ("--store", tmp_path / "store")
    (tmp_path / "store").mkdir()
    assert list(entries())[-2:] == ["digits", "costs"]
    assert "missing (0 of 3)" in invoke("show", "digits", *place)
    assert "Assumed: Digits are images." in invoke("show", "digits", *place)
    for command in ("show", "run", "tune"):
        assert "digits" in invoke(command, "--help")
    assert "6 of 6 runs are missing" in invoke("run", "digits", "--dry-run", *place)
    both = ("run", "digits", "table1", "--rows", "digits-*,mini-*-5000-vgg19", "--seeds", 4)
    assert "36 of 36 runs are missing" in invoke(*both, "--dry-run", *place)
    assert "digits-100-mlp" in invoke("tune", "digits", "--losses", "ce", "--trials", 1, "--device", "cpu", *place)

    store = Store(tmp_path / "recorded")
    store.write(load_exhibit("digits").specs(losses=["ce"])[0], RunResult(metrics={"accuracy": 0.5}))
    html = render_page(store)
    section = html.split('<section id="digits">')[1].split("</section>")[0]
    assert "A hundred digits</h2>" in section
    assert "Digits, drawn. Dots are means." in section
    assert section.count("<svg") == 1
    page = "<!-- generated: digits -->\n<!-- end -->\n<!-- generated: digits_figure -->\n<!-- end -->\n"
    written = filled(page, renderers(store, tmp_path))
    assert "| Data | GenCE | CE |" in written
    assert "![Digits, drawn](figures/digits.svg)\n\nDots are means." in written


def test_the_site_draws_a_new_exhibit(one_file, tmp_path, monkeypatch) -> None:
    spec = importlib.util.spec_from_file_location("hooks", Path(__file__).parents[2] / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    monkeypatch.setattr("gence.paper.default_results", lambda: tmp_path / "store")
    store = Store(tmp_path / "store")
    store.write(load_exhibit("digits").specs(losses=["ce"])[0], RunResult(metrics={"accuracy": 0.5}))
    assert "digits.svg" in hooks.figures()


def test_two_entries_of_one_name_are_an_error(one_file) -> None:
    (one_file / "again.py").write_text(ONE_FILE)
    with pytest.raises(ValueError, match="two entries are called 'digits'"):
        entries()


def test_a_file_without_entries_says_what_to_do(one_file) -> None:
    (one_file / "of_digits.py").write_text('"""Nothing to show."""')
    with pytest.raises(ValueError, match=r"of_digits declares no ENTRIES; give it some, or list it in .*\.SHARED"):
        entries()


def test_what_is_shared_is_there_and_declares_nothing() -> None:
    folder = Path(studies.__file__).parent
    for name in SHARED:
        (file,) = folder.rglob(f"{name}.py")
        assert "\nENTRIES" not in file.read_text()


def test_names_are_in_the_order_of_the_page() -> None:
    assert list(entries()) == [
        *(
            "table1",
            "imbalanced",
            "ece",
            "ood",
            "smoothing",
            "reliability",
            "batch_size",
            "offset_calibration",
            "smoothing_ece",
            "epoch_time",
        ),
        *("tuned", "tuned_ece", "tuned_ood", "remedies", "remedies_ece", "remedies_drift", "remedies_course"),
        *("larger_batches", "open_choices", "both_networks", "closest_recipe"),
        *("transfer", "transfer_balanced", "transfer_balanced_nll", "transfer_balanced_ece", "transfer_balanced_auroc"),
        *("transfer_balanced_near", "transfer_balanced_far"),
        *("transfer_tail", "transfer_tail_head", "transfer_tail_middle", "transfer_tail_smallest"),
        *("transfer_batch", "transfer_mlp", "unlabelled", "end_to_end"),
        *("after_calibration", "after_calibration_detectors", "costs"),
    ]
    help_text = re.sub(r"[│\s]+", " ", invoke("show", "--help"))
    assert ", ".join(entries()) in help_text
    assert "smoothing_ece" not in invoke("run", "--help")
    with pytest.raises(ValueError, match="did you mean 'table1'"):
        shown("tabel1", Store("unused"))
