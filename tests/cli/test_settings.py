from __future__ import annotations

import pytest

from gence.cli.options import read_settings


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("5e-4", 5e-4), (".5", 0.5), ("true", True), ("null", None), ("adamw", "adamw"), ("[1, 2]", [1, 2]),
    ("a=b", "a=b"),
])  # fmt: skip
def test_values(text, value):
    assert read_settings([f"x.y={text}"]) == {"x.y": value}


@pytest.mark.parametrize("text", ["", "x", "x=", "=1"])
def test_what_is_no_setting(text):
    with pytest.raises(ValueError, match="expected field=value"):
        read_settings([text])


def test_the_version_is_an_option_too():
    from typer.testing import CliRunner

    from gence._version import __version__
    from gence.cli.app import create_app

    assert CliRunner().invoke(create_app(), ["--version"]).stdout.strip() == __version__
