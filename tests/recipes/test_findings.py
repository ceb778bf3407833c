"""Problems in data are reported as a short summary, as a complete file, or as an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError, Findings


def some(num_images: int = 20) -> Findings:
    findings = Findings()
    findings.num_images = num_images
    findings.add(Path("a.txt"), 3, "its box has no area", lost="label", about=Path("a.jpg"))
    findings.add(Path("a.txt"), 4, "its box has no area", lost="label", about=Path("a.jpg"))
    findings.add(Path("b.jpg"), None, "the file is empty", lost="picture")
    findings.add(Path("labels"), None, "a file has no image", lost="nothing")
    return findings


def test_images_are_counted_once_and_labels_each() -> None:
    assert some().counts() == {"picture": 1, "label": 2}
    assert len(some()) == 4


def test_words_name_file_line_and_reason() -> None:
    words = some().words()
    assert "1 image and 2 labels" in words
    assert "a.txt, line 3: its box has no area" in words
    assert Findings().words() == ""


def test_reasons_of_one_kind_are_counted_and_the_commonest_comes_first() -> None:
    findings = Findings()
    findings.add(Path("b.txt"), 1, "class 'cat' is unknown", lost="label")
    for line in range(100):
        findings.add(Path("a.txt"), line, f"its box has no area: ({line}, 2.5) to (1e-3, -4)", lost="label")
    for number in range(9):
        findings.add(Path("labels.json"), None, f"p{number}.jpg is cut", lost="picture", about=Path(f"p{number}.jpg"))
    _, *reasons = findings.words().splitlines()
    assert [reason.partition(" (and ")[2] for reason in reasons] == ["99 more like this)", "8 more like this)", ""]
    assert "a.txt, line 0: its box has no area" in reasons[0]


def test_words_stay_short() -> None:
    findings = Findings()
    for line in range(100):
        findings.add(Path("a.txt"), line, "wrong" + "!" * line, lost="label")
    assert len(findings.words().splitlines()) < 10
    assert "95 other reasons" in findings.words()


def test_names_that_are_not_utf_8_can_be_printed_and_written(tmp_path: Path) -> None:
    findings = Findings()
    findings.add(Path(os.fsdecode(b"caf\xe9.txt")), 1, "wrong", lost="label")
    findings.write(tmp_path / "found.jsonl")
    assert r"caf\xe9.txt, line 1" in findings.words()
    assert json.loads((tmp_path / "found.jsonl").read_text(encoding="utf-8"))["path"] == r"caf\xe9.txt"


def test_all_are_written_as_lines_of_json(tmp_path: Path) -> None:
    some().write(tmp_path / "found.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 4
    told = {"path": "a.txt", "line": 3, "reason": "its box has no area", "lost": "label", "about": "a.jpg"}
    assert lines[0] == told


def test_too_much_is_refused_and_a_little_is_not() -> None:
    some().check()
    some(3).check(max_bad_frac=0.7)
    with pytest.raises(DataError, match=r"2 of 10 images have problems, more than the allowed 10%.*\n.*1 image and 2 label"):
        some(10).check()


def test_remarks_are_not_faults() -> None:
    findings = Findings()
    findings.add(Path("labels"), None, "a file has no image", lost="nothing")
    findings.num_images = 1
    findings.check(max_bad_frac=0)


def test_one_fault_is_allowed_among_few_images_unless_none_is() -> None:
    findings = Findings()
    findings.add(Path("a.txt"), 1, "wrong", lost="label")
    findings.num_images = 3
    findings.check()
    with pytest.raises(DataError, match="1 of 3"):
        findings.check(max_bad_frac=0)


def test_nothing_left_is_refused_regardless_of_the_limit() -> None:
    findings = Findings()
    findings.add(Path("a.jpg"), None, "the file is empty", lost="picture")
    findings.num_images = 1
    with pytest.raises(DataError, match=r"None of the 1 images can be used[\s\S]*a\.jpg: the file is empty"):
        findings.check(max_bad_frac=1)


def test_an_error_about_a_file_becomes_a_finding() -> None:
    findings = Findings()
    error = BadFileError(Path("a.xml"), "it is not valid XML", line=7)
    findings.add_error(error, lost="picture", about=Path("a.jpg"))
    assert str(error) == "a.xml, line 7: it is not valid XML."
    assert str(findings.items[0]) == "a.xml, line 7: it is not valid XML"
