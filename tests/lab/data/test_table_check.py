"""`gence data check` on tables: everything that is wrong in one go, and what is worth knowing of rows that are read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.data import CheckReport, check, with_columns


def saved(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def sentences(count: int = 24) -> list[tuple[str, ...]]:
    things = ("card", "transfer", "loan", "pin", "app", "fee", "branch", "cheque")
    doings = ("lost", "blocked", "delayed")
    return [(f"the {things[i % 8]} was {doings[i % 3]} in {2000 + 7 * i}", "AB"[i % 2]) for i in range(count)]


def said(report: CheckReport, words: str) -> bool:
    return any(words in line for line in (*report.problems, *report.notes))


def test_sound_rows_have_a_line_per_part(tmp_path: Path) -> None:
    report = check(saved(tmp_path / "a.csv", sentences(40)))
    assert report.ok
    assert [part.in_words().rpartition(",")[0] for part in report.parts] == [
        "a/train: 32 texts, 2 classes with 16 each",
        "a/test: 8 texts, 2 classes with 4 each",
    ]
    assert report.notes[0] == "Texts from the column 'text', labels from 'label'"
    assert not said(report, "cop")


def test_real_rows_of_numbers_are_sound(tmp_path: Path) -> None:
    bunch = load_breast_cancer(as_frame=True)
    bunch.frame.to_parquet(tmp_path / "cancer.parquet")
    report = check(tmp_path / "cancer.parquet")
    assert report.ok
    assert len(report.notes) == 2  # what was recognised, and that a test part is split off


def test_copies_and_contradictions_of_texts_are_counted(tmp_path: Path) -> None:
    rows = sentences()
    long = "Where is the tracking number for the card that you sent to me last week"
    saved(tmp_path / "two" / "train.csv", [*rows, rows[0], (long, "A"), ("hello", "A"), ("hello", "B")])
    saved(tmp_path / "two" / "test.csv", [rows[3], (f"{long}?", "A"), ("something else entirely", "B")])
    report = check(tmp_path / "two")
    assert report.ok
    assert said(report, "1 of 3 test rows are also in the training part: this makes every score too good")
    assert said(report, f"1 more test texts nearly equal a training text, such as '{long}?'")
    assert said(report, "2 training rows are copies of another one")
    assert said(report, "1 row equals a row with another label; at least one of the labels is wrong: 'hello' is 'A'")


def test_copies_of_rows_and_of_features(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "f.npz", X=x, y=y, X_test=np.concatenate([x[:3], x[3:5] * (1 + 1e-9), x[:2] + 9]), y_test=y[:7])
    report = check(tmp_path / "f.npz")
    assert said(report, "of 7 test rows are also in the training part")
    frame = pd.DataFrame(x, columns=list("abcd")).assign(label=y)
    frame.to_parquet(tmp_path / "train.parquet")
    near = frame.head(6).assign(a=lambda one: one["a"] * 1.0000001)
    near.to_parquet(tmp_path / "test.parquet")
    (tmp_path / "f.npz").unlink()
    assert said(check(tmp_path), "more test rows nearly equal a training row")


def test_columns_that_say_nothing_number_the_rows_or_give_the_label_away(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    label = np.arange(60) % 3
    pd.DataFrame(
        {
            "same": 1, "row": draw.permutation(60), "size": draw.normal(size=60), "code": [f"c{k}" for k in label],
            "after": label * 10 + draw.random(60), "half": [1.5] * 20 + [None] * 40, "label": label,
        }
    ).to_csv(tmp_path / "a.csv", index=False)  # fmt: skip
    report = check(tmp_path / "a.csv")
    assert report.ok
    assert said(report, "the column 'same' is constant")
    assert said(report, "the column 'row' has another whole number in every training row")
    for name in ("code", "after"):
        assert said(report, f"the column {name!r} alone tells the label of every training row")
    assert said(report, "the column 'half' is")
    assert not said(report, "'size' alone")


def test_classes_texts_and_encodings_worth_a_look(tmp_path: Path) -> None:
    rows = [
        *sentences(40),
        *((f"text number {i} here", "rare") for i in range(3)),
        ("one more here", "b"),
        ("two", "b"),
    ]
    rows += [("x" * 20_000, "A"), ("caf\u00c3\u00a9 au lait", "B"), ("bell \x07 rings", "A"), ("", "A")]
    report = check(saved(tmp_path / "a.csv", rows))
    assert report.ok
    assert said(report, "2 of 4 classes have fewer than 5 training rows: 'b' (")
    assert said(report, "the labels 'B' and 'b' differ in case, spaces or hyphens alone")
    assert said(report, "1 texts have more than 10,000 characters, the longest 20,000")
    assert said(report, "1 texts show signs of a wrong encoding, as in 'caf")
    assert said(report, "1 texts have control characters, as 'bell \\x07 rings'")
    assert said(report, "1 texts are empty")


def test_all_problems_are_listed_and_not_the_first_alone(tmp_path: Path) -> None:
    header = ("size", "label")
    numbers = [(str(i / 2), "AB"[i % 2]) for i in range(10)]
    saved(tmp_path / "two" / "train.csv", [*numbers, ("3", ""), ("inf", "A")], header)
    saved(tmp_path / "two" / "test.csv", [("1", "A"), ("-inf", "B"), ("2", "C"), ("3", "")], header)
    report = check(tmp_path / "two")
    assert not report.ok
    for words in (
        "(train): a row has no label, first row 11",
        "(test): a row has no label, first row 4",
        "1 cells of the column 'size' are infinite",
        "1 classes of the test part are not in the training part, such as 'C' (1 rows)",
    ):
        assert said(report, words), words
    alone = check(saved(tmp_path / "b.csv", [*sentences(), ("one", "C"), ("two", "D")]))
    assert [problem.count("has one row") for problem in alone.problems] == [1, 1]
    (latin,) = check(str(bad_encoding(tmp_path / "c.csv"))).problems
    assert "is not UTF-8: line 2" in latin


def bad_encoding(path: Path) -> Path:
    path.write_bytes("text,label\ncafé,x\n".encode("latin-1"))
    return path


def test_the_command_takes_columns_and_ends_in_an_error_where_something_is_wrong(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.csv", [*sentences(), ("nobody knows", "oos")], ("message", "team"))
    runner = CliRunner()

    def gence(*arguments: str) -> tuple[int, str]:
        result = runner.invoke(create_app(), ["data", "check", *arguments])
        return result.exit_code, f"{result.stdout}{result.exception}"

    code, shown = gence(source)
    assert code == 1
    assert "--label COLUMN. Columns: 'message', 'team'" in shown
    code, shown = gence(source, "--text", "message", "--label", "team", "--ood-label", "oos")
    assert code == 0, shown
    assert "2 classes with" in shown
    code, shown = gence(source, "--image-size", "32")
    assert code == 1
    assert "image_size does nothing" in shown
    result = runner.invoke(create_app(), ["data", "prepare", source])
    assert "needs no preparing" in str(result.exception)
    assert check(with_columns(source, text="message", label="team")).ok is False  # the class oos has one row
