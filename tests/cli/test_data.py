from __future__ import annotations

from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.data import known_sources
from tests.lab.small_runs import write_images


def gence(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(create_app(), ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_list_names_every_source():
    shown = gence("list")
    for info in known_sources():
        assert f"{info.name}: {info.summary}" in shown
        assert info.terms in shown


def test_prepare_decodes_once_and_describes_both_parts(tmp_path):
    data = write_images(tmp_path / "photos", {"cat": 10, "dog": 15})
    shown = gence("prepare", str(data), "--cache-dir", str(tmp_path / "cache"))
    assert "photos/train: 20 images of 8 x 8 pixels, colour, 2 classes with 8 to 12 each" in shown
    assert "photos/test: 5 images" in shown
    assert list((tmp_path / "cache").rglob("*"))
    assert gence("prepare", str(data), "--cache-dir", str(tmp_path / "cache")) == shown


def test_prepare_says_what_is_left_out(tmp_path):
    data = write_images(tmp_path / "photos", {"cat": 10, "dog": 10, ".fox": 10})
    arguments = ["data", "prepare", str(data), "--cache-dir", str(tmp_path / "cache")]
    result = CliRunner().invoke(create_app(), arguments, catch_exceptions=False)
    assert f"note: {data}: skipped .fox" in result.stderr
    assert "note" not in result.stdout


def test_photographs_of_several_sizes_can_be_checked(tmp_path):
    data = write_images(tmp_path / "photos", {"cat": 5}, size=9)
    write_images(data, {"dog": 5}, size=12)
    shown = gence("check", str(data))
    assert shown.count("note:") == 1
    assert "--image-size" in shown
    assert shown.endswith(f"{data}: sound\n")


def test_check_of_sound_data():
    shown = gence("check", "digits")
    assert "digits/train: 896 images of 8 x 8 pixels, gray, 10 classes with" in shown
    assert shown.endswith("digits: sound\n")


def test_check_lists_everything_that_is_wrong(tmp_path):
    data = write_images(tmp_path / "photos", {"cat": 5, "dog": 5})
    for name in ("cat/000.png", "dog/003.png"):
        (data / name).write_bytes(b"broken")
    shown = gence("check", str(data), code=1)
    assert shown.count("problem:") == 2
    assert "cat/000.png" in shown
    assert "dog/003.png" in shown
    assert shown.endswith("2 problems\n")
