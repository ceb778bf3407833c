"""Values in the names of folders become columns, as in pyarrow, or the conversion says that they are not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert.job import convert


def write(path: Path, **columns: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path)


def columns_of(path: Path) -> dict[str, list[object]]:
    store = Store(path)
    rows = store.__getitems__(range(len(store)))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_columns_of_folders_equal_those_of_pyarrow(tmp_path: Path) -> None:
    for name in ("year=2020/site=a%20b", "year=2021/site=c", "year=__HIVE_DEFAULT_PARTITION__/site=d"):
        write(tmp_path / "p" / name / "part.parquet", v=[1, 2])
    made = convert(tmp_path / "p", tmp_path / "s", processes=1)
    want = pyarrow.parquet.read_table(tmp_path / "p").to_pydict()
    assert columns_of(tmp_path / "s") == want
    assert made.remarks == (
        "column year (int64) is read from the names of folders",
        "column site (string) is read from the names of folders",
    )
    convert(tmp_path / "p", tmp_path / "t", processes=1, columns=["site", "v"])
    assert columns_of(tmp_path / "t") == {name: want[name] for name in ("v", "site")}
    write(tmp_path / "q/year=1/site=e/part.parquet", v=[9])
    convert(tmp_path / "q", tmp_path / "s", processes=1, mode="append")
    assert columns_of(tmp_path / "s")["site"] == [*want["site"], "e"]
    with pytest.raises(DataError, match=r"year: not columns of the files. Add one of v"):
        convert(tmp_path / "p", tmp_path / "u", processes=1, columns=["year"])


def test_numbers_with_leading_zeros_stay_text_in_lines_of_json_and_csv(tmp_path: Path) -> None:
    for month in ("01", "10"):
        (tmp_path / "c" / f"month={month}").mkdir(parents=True)
        (tmp_path / "c" / f"month={month}" / "a.csv").write_text("v\n1\n")
        (tmp_path / "j" / f"month={month}").mkdir(parents=True)
        (tmp_path / "j" / f"month={month}" / "a.jsonl").write_text('{"v": 1}\n')
    for name in ("c", "j"):
        convert(tmp_path / name, tmp_path / f"store-{name}", processes=1)
        assert columns_of(tmp_path / f"store-{name}") == {"v": [1, 1], "month": ["01", "10"]}


def test_what_is_not_read_from_names_is_said(tmp_path: Path) -> None:
    for year in (2020, 2021):
        write(tmp_path / f"p/year={year}/a.parquet", v=[1], year=[7])
        (tmp_path / f"n/year={year}").mkdir(parents=True)
        np.save(tmp_path / f"n/year={year}/a.npy", np.arange(3))
    made = convert(tmp_path / "p", tmp_path / "s", processes=1)
    assert columns_of(tmp_path / "s")["year"] == [7, 7]
    assert made.remarks == ("not read: the values of year in the names of folders, because the files have a column year",)
    assert convert(tmp_path / "n", tmp_path / "t", processes=1).remarks == (
        "not read: the values in the names of folders (year)",
    )
    below = convert(tmp_path / "p/year=2020", tmp_path / "u", processes=1).remarks
    assert below == ("not read: year=2020 in the path of the source; convert the folder above to get a column",)


def test_two_folders_with_values_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "p/a=1/a=2/x.parquet", v=[1])
    with pytest.raises(DataError, match="has two folders with a value of the same name"):
        convert(tmp_path / "p", tmp_path / "s", processes=1)
