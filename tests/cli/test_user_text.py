"""Names that a user chose are text in every command, whatever they would mean to what prints them."""

from __future__ import annotations

import json

import typer
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.store.store import Store
from tests.lab.small_runs import write_images

HOSTILE = "[/b] [red]x:smile:"


def gence(*arguments: object, code: int = 0) -> str:
    """Run a command as on a wide terminal; return all that it printed."""
    result = CliRunner().invoke(
        create_app(), [str(argument) for argument in arguments], catch_exceptions=False, env={"COLUMNS": "400"}
    )
    assert result.exit_code == code, result.output
    return result.output


def commands() -> set[str]:
    """The names of all commands."""

    def below(group: typer.core.TyperGroup, prefix: str) -> set[str]:
        found = set()
        for name, command in group.commands.items():
            inner = isinstance(command, typer.core.TyperGroup)
            found |= below(command, f"{prefix}{name} ") if inner else {prefix + name}
        return found

    return below(typer.main.get_command(create_app()), "")


def test_no_command_takes_a_path_for_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))
    photos = write_images(tmp_path / f"photos {HOSTILE}", {"a[b]": 12, "[red]b": 12})
    out, store, model = tmp_path / f"out {HOSTILE}", tmp_path / f"store {HOSTILE}", tmp_path / f"{HOSTILE}.safetensors"
    ood = tmp_path / f"ood {HOSTILE}"
    write_images(ood, {"c": 5}, seed=1)
    quick = ["--device", "cpu"]
    grid = tmp_path / f"{HOSTILE}.toml"
    grid.parent.mkdir()
    grid.write_text(
        f"[base]\ndata = {json.dumps(str(photos))}\nmodel = 'mlp'\nrecipe = 'short'\n[product]\nloss = ['ce']\n"
        "seed = [0]\n[recipes.short]\nbase = 'tiny'\nepochs = 1\n"
    )
    said = {
        "data prepare": gence("data", "prepare", photos),
        "data check": gence("data", "check", photos),
        "train": gence("train", "--data", photos, "--set", "recipe.epochs=1", "--ood", ood, "--save", model, *quick),
        "evaluate": gence("evaluate", model, "--data", photos, "--ood", ood, *quick),
        "predict": gence("predict", model, photos, "--out", tmp_path / f"{HOSTILE}.csv", *quick),
        "export": gence("export", model, tmp_path / f"{HOSTILE}.pt2"),
        "compare": gence("compare", "--data", photos, "--losses", "ce,gence", "--seeds", "2", "--epochs", "1",
                         "--ood", ood, "--out", out, "--workers", "1", *quick),
        "run": gence("run", grid, "--store", store, "--dry-run") + gence("run", grid, "--store", store, *quick),
        "tune": gence("tune", grid, "--store", store, "--trials", "1", "--losses", "ce", *quick),
        "show": gence("show", store),
        "report": gence("report", store, "--out", out),
        "store check": gence("store", "check", store),
        "store merge": gence("store", "merge", tmp_path / f"merged {HOSTILE}", store),
        "store export": gence("store", "export", store, tmp_path / f"{HOSTILE}.csv"),
        "store pack": gence("store", "pack", store),
    }  # fmt: skip
    silent = {name for name, text in said.items() if "".join(HOSTILE.split()) not in "".join(text.split())}
    assert silent <= {"data prepare", "store check"}, "what is shown is shown as it is"
    without_user_text = {name for name in commands() if name.startswith("bench")} | {"data list", "verify", "version"}
    assert commands() - said.keys() == without_user_text
    assert len(Store(store).keys()) >= 1
