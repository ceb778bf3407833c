"""A conversion stores each record as it is, or quarantines it with a reason. It never changes a value."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.core.errors import DataError
from hasten.data.convert.contract import Reader
from hasten.data.convert.readers.json_array import JsonArray
from hasten.data.convert.readers.jsonl import Jsonl
from hasten.data.convert.readers.webdataset import WebDataset
from tests.data.reading import read


def write_lines(path: Path, values: Iterable[str]) -> Path:
    path.write_bytes("".join(f'{{"x": {value}}}\n' for value in values).encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize(
    ("common", "odd", "kind", "reason"),
    [
        ("1", "2.5", "int64", "field 'x' is not of type int64"),
        ("1", "true", "int64", "field 'x' is not of type int64"),
        ("1", "9223372036854775808", "int64", "field 'x' is not of type int64"),
        ("true", "1", "bool", "field 'x' is not of type bool"),
        ("0.5", "9007199254740993", "double", "field 'x' is not of type double"),
        ("0.5", "1e400", "double", "a number is too large"),
        ("0.5", "1e-400", "double", "a number is too small"),
        ("[0.5, 0.0]", "[0.5, -1E-400]", "list<item: double>", "a number is too small"),
        ("0.5", "0." + "0" * 330 + "1", "double", "a number is too small"),
        ("0.5", "12345678901234567.89", "double", "more digits than a float"),
        ("1", "9007199254740993.0", "int64", "more digits than a float"),
        ("[1]", "[1, 2.5]", "list<item: int64>", "field 'x' is not of type list"),
        ('{"a": 1}', '{"a": 1, "b": 2}', "struct<a: int64>", "field 'x' is not of type struct"),
        ('{"a": 1}', '{"a": 1, "a": 2}', "struct<a: int64>", "a key occurs twice"),
        ('"a"', '"\\ud83d"', "string", "field 'x' contains half of a surrogate pair"),
        ('"a"', "1", "string", "field 'x' is not of type string"),
        pytest.param("1", "[" * 100_000 + "]" * 100_000, "int64", "nested too deeply", id="deep"),
        pytest.param("1", "1" * 5_000, "int64", "more than 40 digits", id="digits"),
    ],
)
def test_a_late_value_of_another_type_is_quarantined(tmp_path: Path, common: str, odd: str, kind: str, reason: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*[common] * 2_500, odd, common])
    schema, rows, bad = read(Jsonl, path)
    assert str(schema.field("x").type) == kind
    assert rows == [{"x": json.loads(common)}] * 2_501
    assert reason in bad[0].reason
    assert len(bad) == 1


def test_null_is_not_a_record(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["1"] * 300)
    path.write_bytes(path.read_bytes() + b" null\r\n")
    _, rows, bad = read(Jsonl, path)
    assert rows == [{"x": 1}] * 300
    assert [one.reason for one in bad] == ["not a record {...} but a NoneType"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"x": "é"}\n'.encode("latin-1"), "invalid UTF-8.*set --encoding"),
        (b'{"x": 1},\n{"x": 2},\n', "2 x invalid JSON: Extra data"),
        (b"[1, 2]\n", "not a record {...} but a list"),
    ],
)
def test_a_file_without_records_says_why(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=words):
        read(Jsonl, tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5"], "double"),
        (["18446744073709551615", "0"], "uint64"),
        (["-9223372036854775808", "9223372036854775807"], "int64"),
        (["1152921504606846977"] * 20 + ["1.0"], "int64"),
        (["1e300", "1"], "double"),
        (["[1, 2]", "[2.5]"], "list<item: double>"),
        (['{"a": 1}', '{"b": "x"}'], "struct<a: int64, b: string>"),
        (["null", "null"], "string"),
    ],
)
def test_types_follow_from_all_values(tmp_path: Path, values: list[str], kind: str) -> None:
    schema, rows, bad = read(Jsonl, write_lines(tmp_path / "a.jsonl", values))
    assert (str(schema.field("x").type), bad) == (kind, [])
    assert all(same(row["x"], json.loads(value)) for row, value in zip(rows, values, strict=True))


def test_unknown_keys_are_not_dropped_from_a_chosen_column(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*['{"a": 1}, "y": 1'] * 2_500, '{"a": 1, "b": 2}, "y": 1'])
    _, rows, bad = read(Jsonl, path, columns=("x",))
    assert (len(rows), [one.reason for one in bad]) == (2_500, ["field 'x' is not of type struct<a: int64>"])


@pytest.mark.parametrize("chunk_bytes", [7, 2**20])
def test_an_array_is_split_between_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr("hasten.data.convert.encoding._CHUNK", chunk_bytes)
    texts = ["]", '"', "\\", '\\"', "{[", "},{", "a\nb", ""]
    records = [{"x": text, "y": {"z": [index] * index}} for index, text in enumerate(texts)]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    _, rows, bad = read(JsonArray, tmp_path / "a.json")
    assert (rows, bad) == (records, [])


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("secret", "invalid JSON: Expecting value"),
        ("", "invalid JSON: Expecting value"),
        ('{"x": 1} {"x": 2}', "invalid JSON: Extra data"),
        pytest.param('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply", id="deep"),
        ('{"x": 1e400}', "a number is too large"),
        ("[1]", "not a record {...} but a list"),
    ],
)
def test_a_bad_item_of_an_array_is_quarantined(tmp_path: Path, odd: str, reason: str) -> None:
    (tmp_path / "a.json").write_text(f'[{{"x": 1}}, {odd}, {{"x": 2}}]', encoding="utf-8")
    _, rows, bad = read(JsonArray, tmp_path / "a.json")
    assert (rows, [one.position for one in bad]) == ([{"x": 1}, {"x": 2}], ["record 1"])
    assert reason in bad[0].reason


@pytest.mark.parametrize(("encoding", "chosen"), [("utf-8-sig", ""), ("utf-16", ""), ("utf-32", ""), ("cp1252", "cp1252")])
@pytest.mark.parametrize("reader", [Jsonl, JsonArray])
def test_other_encodings_are_read(tmp_path: Path, reader: type[Reader], encoding: str, chosen: str) -> None:
    records = [{"x": f"café {number}"} for number in range(100)]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    path = tmp_path / ("a.jsonl" if reader is Jsonl else "a.json")
    path.write_text("\n".join(lines) if reader is Jsonl else f"[{','.join(lines)}]", encoding=encoding)
    _, rows, bad = read(reader, path, encoding=chosen)
    assert (rows, bad) == (records, [])


def test_text_that_is_not_utf_8_is_quarantined(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": "a"}\n' * 100 + b'{"x": "\xff"}\n')
    _, rows, bad = read(Jsonl, tmp_path / "a.jsonl")
    assert (len(rows), bad[0].reason) == (100, "invalid UTF-8: invalid start byte at byte 7 of the record")


@pytest.mark.parametrize(
    ("ending", "common", "odd", "reason"),
    [
        ("cls", b"7\n", b"1_0", "cls: not an integer"),
        ("cls", b"7", b"1.5", "cls: not an integer"),
        ("json", b'{"a": 1}', b'{"a": 1, "a": 2}', "json: invalid JSON: a key occurs twice in one object"),
        pytest.param("json", b'{"a": 1}', b"[" * 100_000, "json: invalid JSON: nested too deeply", id="deep"),
        ("json", b'{"a": 1}', b'{"a": 1.5}', "field 'json' is not of type struct<a: int64>"),
        ("txt", b"a", b"\xff", "txt: invalid UTF-8"),
    ],
)
def test_a_bad_sample_of_a_tar_file_is_quarantined(
    tmp_path: Path, ending: str, common: bytes, odd: bytes, reason: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(300):
            data = odd if number == 299 else common
            member = tarfile.TarInfo(f"{number:03d}.{ending}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    _, rows, bad = read(WebDataset, tmp_path / "a.tar")
    assert (len(rows), [(one.position, one.reason) for one in bad]) == (299, [("sample 299", reason)])


def same(stored: Any, given_value: Any) -> bool:
    """Compare a stored value with the one given, where integers and floats of equal value are the same number."""
    if isinstance(stored, dict):
        known = isinstance(given_value, dict) and given_value.keys() <= stored.keys()
        return known and all(same(item, given_value.get(name)) for name, item in stored.items())
    if isinstance(stored, list):
        equal_length = isinstance(given_value, list) and len(stored) == len(given_value)
        return equal_length and all(map(same, stored, given_value))
    numbers = (int, float)
    if type(stored) in numbers and type(given_value) in numbers:
        return stored == given_value or (math.isnan(stored) and math.isnan(given_value))
    return type(stored) is type(given_value) and stored == given_value


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats(allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)


@pytest.mark.parametrize("reader", [Jsonl, JsonArray])
@settings(max_examples=60)
@given(common=JSON, others=st.lists(JSON, max_size=3))
def test_records_come_back_equal_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, reader: type[Reader], common: Any, others: list[Any]
) -> None:
    values = [*[common] * 20, *others]
    lines = [json.dumps({"x": value}) for value in values]
    path = tmp_path_factory.mktemp("json") / ("a.jsonl" if reader is Jsonl else "a.json")
    path.write_text("\n".join(lines) if reader is Jsonl else f"[{','.join(lines)}]", encoding="utf-8")
    try:
        _, rows, bad = read(reader, path)
    except DataError:
        return
    assert len(rows) + len(bad) == len(values)
    remaining = iter(values)
    assert all(any(same(row["x"], value) for value in remaining) for row in rows)  # in the same order
