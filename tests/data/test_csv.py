"""CSV files: the encoding, the delimiter and the types of columns are right, or the file is refused with a reason."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.core.errors import DataError
from hasten.data.convert.contract import Choices
from hasten.data.convert.job import convert
from hasten.data.convert.readers.csv import Csv
from hasten.data.convert.text_columns import MISSING, type_of_texts
from hasten.data.store.store import Store
from tests.data.reading import read


def write(path: Path, header: str, row: str, count: int = 300, encoding: str = "utf-8") -> Path:
    """Write a file whose rows contain their number in place of N."""
    text = header + "".join(row.replace("N", str(number)) for number in range(count))
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], "int64"),
        (["1", "9223372036854775808"], "uint64"),
        (["1", "2.5", ".5", "1e3", "-0", "inf"], "double"),
        (["9007199254740993", "1"], "int64"),
        (["9007199254740993", "1.5"], "string"),
        (["1" * 30, "1"], "string"),
        (["1e400", "1"], "string"),
        (["1e-400", "1"], "string"),
        (["0." + "0" * 330 + "1", "1"], "string"),
        (["12345678901234567.89", "1.5"], "string"),
        (["1.000000000000000056e-01", "1.000000000000000000e+17", "12345678901234568.000"], "double"),
        (["00123", "1"], "string"),
        (["0x10", "1"], "string"),
        (["+49", "1"], "string"),
        (["true", "False"], "bool"),
        (["2020-01-31", "NA"], "date32[day]"),
        (["2020-13-01", "2020-01-01"], "string"),
        (["2020-01-31 10:00", "2020-01-31T10:00:01"], "timestamp[s]"),
        (["2020-01-31 10:00:00.25"], "timestamp[ns]"),
        (["2020-01-31T10:00:00+02:00"], "string"),
        ([" 1", "2 "], "int64"),
        (["", "NA"], "string"),
        (["1"] * 150 + ["unknown"], "int64"),
        (["1"] * 150 + ["A1", "A2"], "string"),
    ],
)
def test_a_column_has_the_type_that_its_values_are_written_as(texts: list[str], kind: str) -> None:
    assert str(type_of_texts(pa.array(texts, pa.string()))) == kind


@pytest.mark.parametrize("odd", ["unknown", "1.5", "007", "9223372036854775808", "0x10"])
def test_a_late_value_of_another_type_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setattr("hasten.data.convert.readers.csv._ROWS", 100)
    rows = [f"{number},text\n" for number in range(300)]
    rows[200] = f"{odd},text\n"
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(rows))
    schema, good, bad = read(Csv, tmp_path / "a.csv")
    assert [str(kind) for kind in schema.types] == ["int64", "string"]
    assert [row["id"] for row in good] == [number for number in range(300) if number != 200]
    assert [(one.position, one.reason) for one in bad] == [("row 202", "field 'id' is not of type int64")]
    assert bad[0].record == f'"{odd}","text"'.encode()


@pytest.mark.parametrize(
    ("values", "kind"),
    [(("1.234", "567", "12.345.678"), "string"), (("1.234", "0.5"), "double"), (("1.234", "1.25"), "double")],
)
def test_points_that_may_separate_thousands_are_kept(tmp_path: Path, values: tuple[str, ...], kind: str) -> None:
    for delimiter, expected in ((";", kind), (",", "string" if values[-1].count(".") > 1 else "double")):
        rows = "".join(f"a{delimiter}{value}\n" for value in values)
        (tmp_path / "a.csv").write_text(f"name{delimiter}amount\n{rows}")
        schema, _, _ = read(Csv, tmp_path / "a.csv")
        assert str(schema.field("amount").type) == expected


def test_a_single_column_of_sentences_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text\n", "some words N\n")
    assert read(Csv, path)[1][7] == {"text": "some words 7"}
    path = write(tmp_path / "b.csv", "some text\n", "word N\n")
    assert read(Csv, path, delimiter=",")[1][7] == {"some text": "word 7"}


def test_unsigned_integers_and_leading_zeros_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,uid,zip\n", "N,1000000000000000N,00N\n", 1000)
    _, rows, bad = read(Csv, path)
    assert bad == []
    assert rows[999] == {"id": 999, "uid": 1000000000000000999, "zip": "00999"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_encodings_and_delimiters_are_detected(tmp_path: Path, encoding: str, delimiter: str) -> None:
    header, row = delimiter.join(["id", "naïve", "price"]) + "\n", delimiter.join(["N", "café N", "0.5"]) + "\n"
    _, rows, bad = read(Csv, write(tmp_path / "a.csv", header, row, encoding=encoding))
    assert (rows[299], bad) == ({"id": 299, "naïve": "café 299", "price": 0.5}, [])
    said = Csv.remarks(Csv.units(tmp_path / "a.csv", Choices()), Choices())
    assert len(said) == 1
    assert said[0].startswith(f"read as {encoding.removesuffix('-sig')}")


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_another_encoding_is_refused_until_it_is_named(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", "id,name\n", "N,café N\n", encoding=encoding)
    with pytest.raises(DataError, match=r"is not UTF-8 \(byte 0xe9 at offset 13\).* --encoding cp1252"):
        read(Csv, path)
    _, rows, bad = read(Csv, path, encoding=encoding)
    assert (rows[7], bad) == ({"id": 7, "name": "café 7"}, [])


def test_rows_that_are_not_utf_8_are_quarantined_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n" + b"1,a\n" * 300 + b"2,\xff\n3,\xff,\xff\n4,b\n")
    _, rows, bad = read(Csv, tmp_path / "a.csv", encoding="utf-8")
    assert (len(rows), rows[-1]) == (301, {"id": 4, "name": "b"})
    assert {one.position: one.reason for one in bad} == {
        "row 302": "field 'name' is not UTF-8",
        "row 303": "3 fields, but the header has 2",
    }
    assert [one.record for one in bad if one.position == "row 303"] == [b"3,\xff,\xff"]


@pytest.mark.parametrize(
    ("text", "chosen", "words"),
    [
        ("id,x,x\n1,2,3\n", {}, "names the column 'x' 2 times"),
        ("0,0,t0\n1,2,t1\n", {}, "names the column '0' 2 times"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", {}, "the first row looks like values"),
        ("7,3\n1,2\n", {}, "the first row looks like values"),
        ("a,,b\n1,2,3\n", {}, "has no name for column 2"),
        ("a;b,c\n1;2,3\n", {}, "can be split at ',' or ';'"),
        ("a,b\n1,2\n", {"delimiter": "::"}, "must be a single ASCII character"),
        ("a,b\n1,2\n", {"encoding": "nothing"}, "unknown encoding 'nothing'"),
        ("a,b\n1,é\n", {"encoding": "ascii"}, "is not ascii"),
        ("a,b\n1,2\n", {"columns": ("c",)}, "has no column 'c'; its columns are a, b"),
        ("", {}, "contains no records"),
        ('a,b\n1,"x"\n\n2,"never\n3,x\n', {}, "the quote that opens in line 4 does not close"),
        ('a,b\n1,"never\n2,"x"\n', {}, "text follows the closing quote of the field that begins in line 2"),
        ("a,b\n1,x\n2,x\ry\n", {}, "line 3 contains a carriage return outside of quotes"),
        ("id x y\n1 0.5 a\n2 0.5 b\n", {}, "3 columns, separated by spaces"),
        ("id  x  y\n1   0.5 a\n", {}, "3 columns, separated by spaces"),
        ("id:x\n1:2\n", {}, "2 columns, separated by colons"),
        ("id\x01x\n1\x012\n", {}, "(--delimiter '\\x01')"),
        ("sep=;\nid;x\n1;2\n", {}, "the first row is `sep=`"),
        ("# by me, today\nid,x\n" + "1,2\n" * 200, {}, "the first row looks like a comment"),
        ('a,b\n1,"x"y\n', {}, "text follows the closing quote of the field that begins in line 2"),
    ],
)
def test_a_file_that_would_be_read_wrong_is_refused(tmp_path: Path, text: str, chosen: Any, words: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError) as error:
        read(Csv, tmp_path / "a.csv", **chosen)
    assert words in str(error.value)


@pytest.mark.parametrize("first", [b"x" * 2**20, b'"' + b"x\n" * 2**19 + b'"'])
def test_long_fields_are_read(tmp_path: Path, first: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1," + first + b"\n2,y\n")
    _, rows, bad = read(Csv, tmp_path / "a.csv")
    assert ([len(row["text"]) for row in rows], bad) == ([2**20, 1], [])


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("country,2019,2020\na,1,2\n", [{"country": "a", "2019": 1, "2020": 2}]),
        ("0,1,2\n5,6,7\n", [{"0": 5, "1": 6, "2": 7}]),
        (",a\n0,x\n", [{"index": 0, "a": "x"}]),
        ("\n\na,b\n1,2\n", [{"a": 1, "b": 2}]),
        ("text\nhello; you\n", [{"text": "hello; you"}]),
        ('a,b\n1,"x ""y"" z"\n2,5" pipe\n', [{"a": 1, "b": 'x "y" z'}, {"a": 2, "b": '5" pipe'}]),
        ("a,b\r\n1,2\r\n", [{"a": 1, "b": 2}]),
        ("a,b\r1,2\r", [{"a": 1, "b": 2}]),
        ('a,b\r\n1,"x\ry"\r\n', [{"a": 1, "b": "x\ry"}]),
    ],
)
def test_unusual_files_are_read(tmp_path: Path, text: str, rows: list[dict[str, Any]]) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    _, found, bad = read(Csv, tmp_path / "a.csv")
    assert (found, bad) == (rows, [])


def test_lines_of_spaces_are_no_rows_and_rows_of_empty_fields_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n\n  \n2,b\n\t\n,\nx,y,z\n3,\n,\n")
    made = convert(tmp_path / "a.csv", tmp_path / "s", processes=1, max_bad_frac=1.0)
    store = Store(tmp_path / "s")
    assert [store[number]["id"] for number in range(len(store))] == [1, 2, None, 3, None]
    assert list(made.reasons) == ["3 fields, but the header has 2"]
    assert made.remarks[1:] == ("WARNING: rows whose fields are all empty, kept: 2",)


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(DataError, match="has a column 'c' that other files lack"):
        read(Csv, tmp_path)


def test_the_dialect_is_reported_and_recorded(tmp_path: Path) -> None:
    made = convert(write(tmp_path / "a.csv", "id;text\n", "N;x\n"), tmp_path / "s", processes=1)
    assert made.remarks == ("read as utf-8, fields separated by semicolons",)
    assert Store(tmp_path / "s").manifest.provenance["remarks"] == made.remarks[0]


TEXTS = st.text(st.sampled_from('019.-+e,;"\n\r atrueNA'), max_size=6)


@settings(max_examples=80)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6),
    common=st.tuples(st.sampled_from(["1", "-7", "0.5", "", "NA", "text", "true", "007"]), TEXTS),
    delimiter=st.sampled_from(",;"),
)
def test_tables_come_back_equal_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], common: tuple[str, str], delimiter: str
) -> None:
    rows = [*[common] * 120, *rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([("a", "b"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    try:
        schema, found, bad = read(Csv, path)
    except DataError:
        return
    assert len(found) + len(bad) == len(rows)
    remaining = iter(rows)
    for row in found:
        assert any(
            all(same(value, given_text) for value, given_text in zip(row.values(), r, strict=True)) for r in remaining
        )
    assert all(one.record for one in bad)
    assert schema.names == ["a", "b"]


def same(value: Any, text: str) -> bool:
    """Compare a value with the text it was read from."""
    if isinstance(value, str):
        return value == text
    text = text.strip()
    if value is None:
        return text in MISSING.to_pylist()
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    try:
        return type(value)(text) == value and not re.match("-?0[0-9]", text)
    except ValueError:
        return False
