"""Tables: what is unmistakable is read rightly, and everything else is an error that says what to do."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gence.lab.data import DataError, RowSplits, frame_source, is_table, load, load_ood_rows, load_rows, with_columns

WORDS = ("red", "green", "blue", "grey")


def written(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


def lines(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


def texts(count: int = 20) -> list[str]:
    return [f"{WORDS[i % 4]} thing number {i},{'AB'[i % 2]}" for i in range(count)]


def both_parts(splits: RowSplits) -> list[str]:
    return [*splits.train.texts, *splits.test.texts]


def test_text_and_label_are_recognised_and_a_fifth_is_split_off(tmp_path: Path) -> None:
    splits = load_rows(written(tmp_path / "a.csv", lines("Text,LABEL", texts())))
    assert (len(splits.train), len(splits.test)) == (16, 4)
    assert splits.classes == ("A", "B")
    assert splits.test.counts().tolist() == [2, 2]
    assert splits.in_words() == "Texts from the column 'Text', labels from 'LABEL'"
    again = load_rows(str(tmp_path / "a.csv"))
    assert again.train.checksum == splits.train.checksum


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolons.csv", "text;label\n" + "".join(f"a {i};{i % 2}\n" for i in range(10))),
        ("tabs.tsv", "text\tlabel\n" + "".join(f"a {i}\t{i % 2}\n" for i in range(10))),
        ("tabs.csv", "text\tlabel\n" + "".join(f"a {i}\t{i % 2}\n" for i in range(10))),
        ("bom.csv", "\ufefftext,label\n" + "".join(f"a {i},{i % 2}\n" for i in range(10))),
        ("windows.csv", "text,label\r\n" + "".join(f"a {i},{i % 2}\r\n" for i in range(10))),
        ("spaces.csv", "text,label\n" + "".join(f" a {i} , {i % 2} \n" for i in range(10))),
    ],
)
def test_delimiters_marks_and_line_ends_do_not_matter(tmp_path: Path, name: str, text: str) -> None:
    splits = load_rows(written(tmp_path / name, text))
    assert splits.classes == ("0", "1")
    assert sorted(both_parts(splits)) == [f"a {i}" for i in range(10)]


def test_utf16_with_its_mark_is_read(tmp_path: Path) -> None:
    splits = load_rows(written(tmp_path / "a.csv", lines("text,label", texts(10)), "utf-16"))
    assert len(splits.train) + len(splits.test) == 10


def test_quoted_line_breaks_commas_and_quotes_stay_in_their_cell(tmp_path: Path) -> None:
    rows = [f'"line one\nline, two ""{i}""",{"xy"[i % 2]}' for i in range(8)]
    splits = load_rows(written(tmp_path / "a.csv", lines("text,label", rows)))
    assert sorted(both_parts(splits)) == [f'line one\nline, two "{i}"' for i in range(8)]


def test_labels_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = [f"text {i},{('card arrival', '01', '1', 'none', '=1+1')[i % 5]}" for i in range(20)]
    splits = load_rows(written(tmp_path / "a.csv", lines("text,label", rows)))
    assert splits.classes == ("01", "1", "=1+1", "card arrival", "none")
    numbers = load_rows(written(tmp_path / "b.csv", lines("text,label", [f"t {i},{i % 11}" for i in range(33)])))
    assert numbers.classes == tuple(str(k) for k in range(11))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text,label\na,b\nc,d,e\n", "row 3 has 3 cells and the header 2"),
        ("text,label\na,b\nc\n", "row 3 has 1 cells and the header 2"),
        ('text,label\n"a,b\nc,d\n', "quote"),
        ("text,label\n", "no rows"),
        ("", "is empty"),
        ("text,text,label\na,b,c\n", "'text' twice"),
        ("words,team\na b,x\nc d,y\n", "--label COLUMN. Columns: 'words', 'team'"),
        ("text,message,label\na,b,x\nc,d,y\n", "--text"),
        ("text,label\na,x\nb,x\n", "one class, 'x'"),
        ("text,label\na,x\nb,y\n", "class 'x' has one row"),
        ("text,label\na,x\nb,\nc,y\n", "no label, first row 2"),
        ("label\nx\ny\n", "expected texts or features"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        load_rows(written(tmp_path / "a.csv", text))


def test_latin1_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\nplain,x\ncafé,y\n", "latin-1")
    with pytest.raises(DataError, match=r"line 3 has the byte 0xE9.*iconv"):
        load_rows(path)


def test_columns_named_like_options_and_with_spaces(tmp_path: Path) -> None:
    rows = [f"{i}.5,{i % 3},{'ab'[i % 2]}" for i in range(12)]
    path = written(tmp_path / "a.csv", lines("--text,my label & more,#without=x", rows))
    splits = load_rows(with_columns(path, label="my label & more"))
    assert splits.classes == ("0", "1", "2")
    assert splits.columns is not None
    assert splits.columns.numbers == ("--text",)
    assert splits.columns.categories == ("#without=x",)
    chosen = load_rows(with_columns(path, label="#without=x", features=("--text",)))
    assert chosen.columns is not None
    assert chosen.columns.used == ("--text",)
    with pytest.raises(DataError, match="no column 'nothing'; it has '--text'"):
        load_rows(with_columns(path, label="nothing"))
    with pytest.raises(DataError, match="is also named as a feature"):
        load_rows(with_columns(path, label="--text", features=("--text",)))


def test_train_test_and_val_files_in_a_zip_and_out_of_distribution_rows(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.csv", lines("text,label", [*texts(12), "what,oos", "why,oos"]))
        archive.writestr("val.csv", lines("text,label", texts(4)))
        archive.writestr("test.csv", lines("text,label", [*texts(6), "how,oos"]))
        archive.writestr("outside.csv", lines("text", ["who", "where"]))
    source = with_columns(str(path), without="oos")
    splits = load_rows(source)
    assert (len(splits.train), len(splits.test)) == (12, 6)
    assert splits.classes == ("A", "B")
    assert any("val" in note for note in splits.notes)
    assert sorted(load_ood_rows(f"{path}#only=oos", splits.columns, splits.width).texts) == ["how", "what", "why"]
    assert load_ood_rows(f"{path}/outside.csv", splits.columns, splits.width).texts == ["who", "where"]
    with pytest.raises(DataError, match=r"has no file nothing\.csv"):
        load_ood_rows(f"{path}/nothing.csv", splits.columns, splits.width)
    with pytest.raises(DataError, match=r"no row of .* has the label 'x'"):
        load_ood_rows(f"{path}#only=x", splits.columns, splits.width)


def test_a_class_that_is_only_tested_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder / "train.csv", lines("text,label", texts(8)))
    written(folder / "test.csv", lines("text,label", [*texts(4), "new,C"]))
    with pytest.raises(DataError, match="not in the training part, such as 'C'"):
        load_rows(str(folder))


def test_numbers_categories_and_what_is_neither(tmp_path: Path) -> None:
    rows = [f"id-{i},{i * 1.5 if i % 5 else 'NA'},{['north', 'south'][i % 2]},{i % 3}" for i in range(40)]
    path = written(tmp_path / "a.csv", lines("id,size,side,label", rows))
    splits = load_rows(path)
    columns = splits.columns
    assert columns is not None
    assert (columns.numbers, columns.categories, columns.unused) == (("size",), ("side",), ("id",))
    frame = splits.train.content
    assert isinstance(frame, pd.DataFrame)
    assert int(frame["size"].isna().sum()) + int(splits.test.content["size"].isna().sum()) == 8  # type: ignore[index]
    with pytest.raises(DataError, match="a different value in nearly every row"):
        load_rows(with_columns(path, features=("id",)))


def test_long_texts_are_not_taken_for_categories(tmp_path: Path) -> None:
    rows = [f"this is what customer {i} wrote,{i % 2}" for i in range(40)]
    with pytest.raises(DataError, match="'remark' looks like texts; read them with --text remark"):
        load_rows(written(tmp_path / "a.csv", lines("remark,label", rows)))


def test_infinite_cells_and_words_among_numbers_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2 of the column 'size' is infinite"):
        load_rows(written(tmp_path / "a.csv", lines("size,label", ["1,a", "inf,b", "3,a", "4,b"])))
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder / "train.csv", lines("size,label", ["1,a", "2,b"]))
    written(folder / "test.csv", lines("size,label", ["1,a", "two,b"]))
    with pytest.raises(DataError, match="row 2 of the column 'size' is 'two'; expected a number"):
        load_rows(str(folder))


def test_empty_texts_are_kept_and_said(tmp_path: Path) -> None:
    splits = load_rows(written(tmp_path / "a.csv", lines("text,label", ["  ,A", ",B", *texts(8)])))
    assert splits.concerns == ("2 texts are empty: what is predicted for them says nothing.",)


def test_parquet_arrow_and_frames_keep_their_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(12.0), "kind": list("ab") * 6, "label": [0, 1, 2] * 4})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_feather(tmp_path / "a.arrow")
    kept = frame_source(frame, tmp_path)
    checksums = {
        load_rows(str(source)).train.checksum for source in (tmp_path / "a.parquet", tmp_path / "a.arrow", kept)
    }
    assert len(checksums) == 1
    assert load_rows(kept).classes == ("0", "1", "2")
    floats = frame_source(frame.assign(label=frame["label"].astype(float)), tmp_path)
    assert load_rows(floats).classes == ("0", "1", "2")
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"bad.parquet cannot be read"):
        load_rows(str(tmp_path / "bad.parquet"))
    frame.to_feather(tmp_path / "whole.arrow")
    # In the notes that pandas leaves in the file.
    (tmp_path / "odd.arrow").write_bytes((tmp_path / "whole.arrow").read_bytes().replace(b'"step"', b'"stxp"'))
    with pytest.raises(DataError, match=r"odd.arrow cannot be read as arrow: 'step'"):
        load_rows(str(tmp_path / "odd.arrow"))


def test_ready_features(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 5)), np.arange(30) % 3
    np.savez(tmp_path / "whole.npz", X=x, y=y)
    np.savez(tmp_path / "parts.npz", X=x[:20], y=y[:20], X_test=x[20:], y_test=y[20:])
    whole, parts = load_rows(str(tmp_path / "whole.npz")), load_rows(str(tmp_path / "parts.npz"))
    assert (len(whole.train), len(parts.train), len(parts.test)) == (24, 20, 10)
    torch.testing.assert_close(parts.test.content, torch.from_numpy(x[20:]).float())
    np.savez(tmp_path / "outside.npz", X=x[:, :4])
    with pytest.raises(DataError, match="X has 4 features; expected 5"):
        load_ood_rows(str(tmp_path / "outside.npz"), parts.columns, parts.width)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": np.array([[1.0], [np.nan]]), "y": [0, 1]}, "row 1 of X holds NaN"),
        ({"X": np.array([[1.0], [1e300]]), "y": [0, 1]}, "row 1 of X holds NaN, infinite or too large"),
        ({"X": np.zeros((4, 2)), "y": [0, 1]}, r"y has the shape \(2,\)"),
        ({"X": np.zeros(4), "y": [0, 1, 0, 1]}, r"expected numbers of shape \(rows, features\)"),
        ({"features": np.zeros((4, 2))}, "expected X and y"),
        ({"X": np.zeros((4, 2)), "y": np.array([None, 1, 2, 3], dtype=object)}, "can run code"),
    ],
)
def test_arrays_that_do_not_fit_are_errors(tmp_path: Path, arrays: dict, said: str) -> None:
    with np.errstate(over="ignore"):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DataError, match=said):
            load_rows(str(tmp_path / "a.npz"))


def test_images_are_no_tables_and_tables_no_images(tmp_path: Path) -> None:
    (tmp_path / "photos" / "train" / "cat").mkdir(parents=True)
    written(tmp_path / "photos" / "train.csv", "file,label\n")
    assert not is_table(str(tmp_path / "photos"))
    assert not is_table("digits")
    with pytest.raises(DataError, match="linear@all_minilm_l6_v2"):
        load(written(tmp_path / "a.csv", lines("text,label", texts())))
    with pytest.raises(DataError, match="--text names columns of a table, but digits is not a table"):
        with_columns("digits", text="a")
    with pytest.raises(DataError, match="there is no file"):
        load_rows(str(tmp_path / "absent.csv"))


def test_a_hundred_thousand_rows_take_seconds(tmp_path: Path) -> None:
    rows = [f"{i % 997},{i % 13},{'abcdefg'[i % 7]},{i % 10}" for i in range(100_000)]
    splits = load_rows(written(tmp_path / "a.csv", lines("x,z,side,label", rows)))
    assert len(splits.train) + len(splits.test) == 100_000


@pytest.mark.parametrize(
    "header",
    [
        "(" * 5000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10**12, 9), }",
        "{'descr': '<f4',",
        "__import__('os')",
    ],
)
def test_an_npz_whose_header_lies_is_one_error_that_names_it(tmp_path: Path, header: str) -> None:
    text = header.encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(DataError, match=r"a\.npz cannot be read as \.npz"):
        load_rows(str(tmp_path / "a.npz"))


def test_an_error_cuts_a_class_that_is_a_book(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", lines("text,label", [*texts(), f"a thing,{'y' * 300_000}"]))
    with pytest.raises(DataError, match="has one row") as found:
        load_rows(path)
    assert len(str(found.value)) < 500
