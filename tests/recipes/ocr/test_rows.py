"""The kind of rows follows from all files, and rows that may mean two things are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hasten.core.errors import DataError
from hasten.recipes.findings import Findings
from hasten.recipes.ocr.regions import read_regions
from hasten.recipes.ocr.rows import RowFormat, decide

A = "10,20,30,20,30,30,10,30"
B = "60,20,90,20,90,30,60,30"
TABS, SPACES = A.replace(",", "\t"), A.replace(",", " ")
CURVED = "10,10,20,8,30,8,40,10,40,20,30,18,20,18,10,20"
RELATIVE = ",".join(f"{10 * k},0" for k in range(7)) + "," + ",".join(f"{60 - 10 * k},30" for k in range(7))
HERE = Path("labels")


@pytest.mark.parametrize(
    ("rows", "kind", "delimiter", "ignored"),
    [
        ([f"{A},Hello, World", f"{B},###"], "quad", ",", [False, True]),
        ([f"{A},", B], "quad", ",", [False, False]),
        ([f'{A},"###"', f'{B},"a ""b"""'], "quad", ",", [True, False]),
        ([f"{A},0.98", f"{B},0.5"], "quad", ",", [False, False]),
        ([f"{A},Latin,Hello", f"{B},None,###", f"{A},Arabic,"], "quad-script", ",", [False, True, False]),
        ([f"{A},0.98,Hello", f"{B},1,###"], "quad-score", ",", [False, True]),
        ([f"{TABS}\tHello, World", f"{TABS}\t###"], "quad", "\t", [False, True]),
        ([f"{A}\tHello, World", f"{B}\t###"], "quad", ",", [False, True]),
        ([A.replace(",", ";") + ";###"], "quad", ";", [True]),
        ([f"{SPACES} Hello World", f"{SPACES} ###"], "quad", " ", [False, True]),
        (['38 43 120 85 "Tiredness"', '130 43 200 85 "12 13"', "1 2 3 4 2013"], "box", " ", [False] * 3),
        (['38, 43, 120, 85, "a, b"', '130, 43, 200, 85, "###"'], "box", ",", [False, True]),
        ([f"{CURVED},###", f"{A},20,50,text"], "polygon", ",", [True, False]),
        ([f"{CURVED},####caf\u00e9", f"{CURVED},#######"], "polygon", ",", [False, True]),
        ([f"{A},{CURVED}"] + [f"{A},a"] * 99, "quad", ",", [False] * 100),
        ([f"{A},Latin, x"] + [f"{A},a, b"] * 19, "quad", ",", [False] * 20),
        ([], "quad", ",", []),
        (["text"], "quad", ",", None),
    ],
)
def test_the_kind_of_the_rows_follows_from_all_of_them(
    rows: list[str], kind: str, delimiter: str, ignored: list[bool] | None
) -> None:
    read = decide(rows, HERE, None)
    assert (read.kind, read.delimiter) == (kind, delimiter)
    if ignored is not None:
        assert [read.read(row)[1] for row in rows] == ignored
    if kind == "quad":
        assert {len(read.read(row)[0]) for row in rows if row != "text"} <= {8}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([f'{A},0,"Hello"', f'{B},1,"x"'], "--rows quad-difficult"),
        ([f"{A},7,Hello", f"{B},8,x"], "a ninth number before the text, such as 7"),
        ([f"{A},1,000", f"{B},2,500"], "--rows quad; if they are corners, give --rows polygon"),
        ([f"{A},Latin,x", f"{B},y,z"], "1 of 2 rows have a script such as Latin"),
        ([f"{A} Hello", f"{B} x"], "an odd count of numbers"),
        (['255 0 0 50 60 40 50 60 70 "a"'], "a ninth number"),
        (["100,100,50,20,a", "10,10,30,20,b"], "--rows box-size"),
        (["0 38 43 120 85 text"], "begin with five numbers"),
        (["0 38 43 120 85"], "begin with five numbers"),
        (["0 0.5 0.5 0.25 0.5"], "at most 0.5: are they fractions"),
        ([f"50,60,120,90,{RELATIVE}"], "CTW1500's"),
        (["x: [[206 251 386]], y: [[63 6 60]], ornt: [u'c'], transcriptions: [u'ASRAMA']"], "Total-Text's"),
    ],
)
def test_rows_that_may_mean_two_things_are_refused(rows: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        decide(rows, HERE, None)


@pytest.mark.parametrize(
    ("kind", "row", "corners", "ignored"),
    [
        ("quad", f"{A},1,000", A, False),
        ("quad-difficult", f'{A},1,"x"', A, True),
        ("quad-difficult", f'{A},0,"###"', A, True),
        ("quad-difficult", f'{A},0,"x"', A, False),
        ("quad-script", f"{A},###", A, True),
        ("quad-score", f"{A},0,###", A, True),
        ("box", "10,20,30,40,7,text", "10,20,30,20,30,40,10,40", False),
        ("box-size", "10,20,30,40,text", "10,20,40,20,40,60,10,60", False),
        ("polygon", f"{A},1,50", f"{A},1,50", False),
    ],
)
def test_the_user_may_say_what_the_rows_are(kind: str, row: str, corners: str, ignored: bool) -> None:
    numbers, is_ignored = decide([row], HERE, kind).read(row)
    assert (numbers, is_ignored) == ([float(number) for number in corners.split(",")], ignored)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(DataError, match="'pose' is not a kind of row of ICDAR text: use one of box, box-size"):
        decide([A], HERE, "pose")


def test_what_was_understood_is_said() -> None:
    assert RowFormat("quad-script", "\t").words == "Labels are ICDAR text: four corners, script and text, separated by tabs."


class Folder:
    """Three images with the same labels."""

    def __init__(self, path: Path) -> None:
        self.images, self.labels, self.findings = path / "images", path / "labels", Findings()
        self.images.mkdir()
        self.labels.mkdir()
        for name in "abc":
            Image.new("RGB", (320, 240)).save(self.images / f"{name}.png")

    def read(self, text: str | bytes | None = None, **settings: Any) -> tuple[Any, ...]:
        for name in "abc" if text is not None else "":
            content = text.encode() if isinstance(text, str) else text or b""
            (self.labels / f"gt_{name}.txt").write_bytes(content)
        return read_regions(self.images, self.labels, self.findings, **settings)

    @property
    def reasons(self) -> str:
        return self.findings.words()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_repeated_rows_count_once(folder: Folder) -> None:
    assert [len(item.regions) for item in folder.read(f"{A},a\n{A},a\n{B},b\n")] == [2, 2, 2]
    assert folder.findings.counts() == {"picture": 0, "label": 0}
    assert "3 remarks" in folder.reasons
    assert "line 2: it repeats an earlier label, and counts once (and 2 more like this)" in folder.reasons


def test_a_header_is_no_row(folder: Folder) -> None:
    assert [len(item.regions) for item in folder.read(f"\ufeffx1,y1,x2,y2,x3,y3,x4,y4,text\r\n{A},a\r\n")] == [1, 1, 1]
    assert not len(folder.findings)
    assert "The first line of 3 files is a header" in folder.findings.understood[1]


def test_corners_that_do_not_go_around_the_text_are_refused(folder: Folder) -> None:
    with pytest.raises(DataError, match="6 of 6 outlines cross themselves"):
        folder.read("10,10,50,10,10,30,50,30,a\n100,10,140,10,100,30,140,30,b\n")
    around = "10,10,10,30,50,30,50,10,anticlockwise\n-5,-3,50,10,50,30,10,30,beyond the edge\n"
    assert [len(item.regions) for item in folder.read(around)] == [2, 2, 2]


def test_other_encodings_are_read_if_they_are_given(folder: Folder) -> None:
    text = f"{A},caf\u00e9\n".encode("latin-1")
    assert folder.read(text) == ()
    assert "give its --encoding, such as latin-1 (and 2 more like this)" in folder.reasons
    assert len(folder.read(text, encoding="latin-1")) == 3


def test_images_are_told_as_they_are_checked(folder: Folder) -> None:
    told: list[tuple[int, int]] = []
    folder.read(f"{A},a\n", told=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_file_that_raises_anything_costs_its_image(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.recipes.ocr import regions

    def check(path: Path) -> tuple[int, int]:
        if path.name == "b.png":
            raise ZeroDivisionError("by nothing")
        return 240, 320

    monkeypatch.setattr(regions, "check_picture", check)
    assert [item.path.name for item in folder.read(f"{A},a\n")] == ["a.png", "c.png"]
    assert "it cannot be read (ZeroDivisionError: by nothing)" in folder.reasons


def test_art_is_read(folder: Folder) -> None:
    texts = [
        {"points": [[10, 10], [60, 10], [60, 30], [30, 35], [10, 30]], "transcription": "A", "illegibility": False},
        {"points": [[100, 100], [160, 100], [160, 130]], "transcription": "###", "illegibility": True},
        {"points": [[100, 100], 5], "transcription": "x"},
    ]
    (folder.labels / "train.json").write_text(json.dumps({"a": texts, "b": [], "gone": texts}))
    items = folder.read()
    assert [len(item.regions) for item in items] == [2, 0]
    assert np.diff(items[0].regions.offsets).tolist() == [5, 3]
    assert items[0].regions.ignored.tolist() == [False, True]
    assert "text 2 of a has no `points`" in folder.reasons
    assert "gone is listed, but has no image" in folder.reasons
    assert "does not list this image" in folder.reasons


def test_lists_of_coco_may_have_anything_twice(folder: Folder) -> None:
    box = {"id": 1, "bbox": [10, 10, 40, 20]}
    images = [
        {"id": 1, "file_name": "a.png", "width": 320, "height": 240},
        {"id": 2, "file_name": "b.png"},
        {"id": 3, "file_name": "other/b.png"},
        {"id": 4, "file_name": "c.png", "width": 100, "height": 100},
    ]
    parts = {"image_id": "1", "segmentation": [[10, 50, 50, 50, 50, 70], [100, 100, 150, 100, 150, 130]], "iscrowd": [0]}
    annotations = [{**box, "image_id": 1}, {**box, "image_id": 1.0, "bbox": [100, 10, 40, 20]}, parts]
    (folder.labels / "x.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    (item,) = folder.read()
    assert item.path.name == "a.png"
    assert np.diff(item.regions.offsets).tolist() == [4, 4, 3, 3]
    assert "b.png or its id is listed twice" in folder.reasons
    assert "c.png is listed with 100x100 pixels but has 320x240" in folder.reasons


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"images": ' + "9" * 5000 + "}", "a number that cannot be read"),
        ('[{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]', "the results of a detector"),
        ("", "the file is empty"),
    ],
)
def test_json_that_is_none_of_the_forms_is_refused(folder: Folder, text: str, words: str) -> None:
    (folder.labels / "x.json").write_text(text)
    with pytest.raises(DataError, match=words):
        folder.read()


def test_matlab_files_are_refused_by_name(folder: Folder) -> None:
    (folder.labels / "a.mat").write_bytes(b"MATLAB")
    with pytest.raises(DataError, match=r"found 1 \.mat files, which must be converted"):
        folder.read()
