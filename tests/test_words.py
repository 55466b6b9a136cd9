"""The words: phrases that are no ordinary English stay out, and an option has one form in every command."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

UNITS = (
    "loss|seed|metric|row|run|class|epoch|image|cell|step|sample|network|dimension|process|GPU|file|rank|line|panel|bin"
)
COUNTED = "row|line|column|number|entry|folder|process|score|vector|matrix|word|dot|panel|letter|launch|program"
FORBIDDEN = {
    # pattern: what to write
    rf"\b(?:a|an|one|two|three) (?:{COUNTED}) an? (?:{UNITS})\b(?! of)": "per: one row per loss",
    rf"\b\d+ (?:labels|images|trials|seeds|runs|rows) an? (?:{UNITS})\b": "per: 10 labels per class",
    r"\bless cross-entropy'?s?\b": "minus cross-entropy",
    r"\btold from chance\b": "significant",
    r"\btold apart\b|\bnot tell them apart\b": "no significant difference; indistinguishable",
    r"\bare others\b": "differ; have changed",
    r"\b(?:images|sets|inputs) from elsewhere\b": "out-of-distribution images",
    r"\bgo(?:es)? on (?:where|after an|in its|from its)\b|to go on\b": "resume, continue",
    r"\bleft out\b": "skipped, excluded, omitted",
    r"\bmended\b|\bmends?\b": "repair, correct, fix",
    r"\banew\b": "again",
    r"\bis what it was\b|\bis not what it was\b": "has changed",
    r"\bbrought to\b|\bto bring images to\b": "resized, converted",
    r"\bat hand\b": "available; current",
    r"\bwere there\b(?!\?)": "already there",
    r"\bpassed over\b": "skipped",
    r"(?<!there )(?<!mistakes )\b(?:is|are) none\b(?! (?:to|of|in|at|where|or|here|left)\b)(?![.,:;)])": "is not a ...",
    r"\bneed a word, so\b": "need one extra argument",
    r"\bWhat a \w+ refuses\b": "errors of ...",
    r"(?<!there )\bis no (?:image|record|number|table|label|JSON|UTF-8|loss|multiple|file|text)\b": "is not a ...",
}


GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)


def texts() -> Iterator[tuple[str, int, str]]:
    """Every line that people read: the source with its comments, the documentation, README and CONTRIBUTING."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for path in [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "src").rglob("*.html")), *sorted(pages)]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":  # what records fill has the words of the time when they were made
            text = re.sub(
                r"<!-- generated: .*?<!-- end -->", lambda block: "\n" * block[0].count("\n"), text, flags=re.S
            )
        for number, line in enumerate(text.splitlines(), 1):
            yield str(path.relative_to(ROOT)), number, line


def test_ordinary_english() -> None:
    patterns = {re.compile(pattern): better for pattern, better in FORBIDDEN.items()}
    found = [
        f"{path}:{number}: {match[0]!r}; write: {better}"
        for path, number, line in texts()
        for pattern, better in patterns.items()
        for match in pattern.finditer(line)
        if not re.search(r"there (?:is|are) none", line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "Draw a row a loss", "10 labels a class", "accuracy less cross-entropy's", "images from elsewhere",
        "the same command goes on where it stopped", "skipped: 3 left out", "an error if it is none",
        "lines that are none are skipped", "this is no image",
    ],
)  # fmt: skip
def test_the_rules_find_what_they_should(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in FORBIDDEN), line


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of ``gence``, with its full name."""
    from typer.main import get_command

    from gence.cli.app import create_app

    def below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{prefix} {name}")
            else:
                yield f"{prefix} {name}", command

    yield from below(get_command(create_app()), "gence")


# Options that mean something else in one command, and may say so; everything else begins with the same words.
OWN_WORDS = {
    ("gence show", "--seeds"),  # how many make a cell complete; nothing is trained
    ("gence bench train", "--epochs"),  # epochs of a measurement
    ("gence bench loss", "--compile"),  # the loss, and not networks
    ("gence predict", "--out"),
    ("gence show", "--store"),
    ("gence report", "--store"),
    ("gence bench train", "--out"),
    ("gence bench loss", "--out"),
}


def test_an_option_has_one_form_in_every_command() -> None:
    forms: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    words: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, one in commands():
        for option in one.params:
            if option.param_type_name != "option":
                continue
            name = option.opts[0]
            form = (tuple(option.opts), tuple(option.secondary_opts), option.multiple, option.nargs, option.is_flag)
            forms[name][form].append(command)
            if (command, name) not in OWN_WORDS:
                words[name][" ".join(re.findall(r"[\w']+", option.help)[:3])].append(command)
    assert {name: dict(found) for name, found in forms.items() if len(found) > 1} == {}
    assert {name: dict(found) for name, found in words.items() if len(found) > 1} == {}


def test_help_is_a_verb_and_its_object() -> None:
    """Options begin with a verb in the imperative: a capital, and no article or noun that explains."""
    nouns = r"^(?:The|An?|Names?|Number|Seconds|Pixels|Folder|File|Images|Such as|How many|Whether|In place)\b"
    for command, one in commands():
        assert one.help, command
        assert "Example" in one.help or command == "gence version", f"{command}: no example"
        for option in one.params:
            if option.param_type_name == "option":
                assert option.help, f"{command} {option.opts[0]}"
                assert option.help[0].isupper(), f"{command} {option.opts[0]}: {option.help}"
                assert option.help.endswith("."), f"{command} {option.opts[0]}: {option.help}"
                assert not re.search(nouns, option.help), f"{command} {option.opts[0]}: {option.help}"
