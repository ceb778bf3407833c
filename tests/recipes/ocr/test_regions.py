"""Labels in their usual formats, and everything that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hasten.core.errors import DataError
from hasten.recipes.findings import BadFileError, Findings
from hasten.recipes.ocr.regions import parse_rows, read_regions
from hasten.recipes.ocr.rows import RowFormat

QUAD = "10,10,50,10,50,30,10,30"
LOWER = "10,40,50,40,50,55,10,55"
LEFT = "1,10,9,10,9,30,1,30"
MIXED = RowFormat("quad", ",", has_polygons=True)


def save_image(folder: Path, name: str = "a.png", mode: str = "RGB") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    Image.new(mode, (80, 60)).save(folder / name)
    return folder / name


def read(folder: Path, text: str | bytes) -> tuple[tuple[Any, ...], Findings]:
    """Read one image and its label file."""
    save_image(folder / "images")
    (folder / "labels").mkdir()
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "labels" / "a.txt").write_bytes(content)
    findings = Findings()
    return read_regions(folder / "images", folder / "labels", findings), findings


def test_a_quad_its_transcript_and_what_is_illegible(tmp_path: Path) -> None:
    (item,), findings = read(tmp_path, f"{QUAD},Genaxis, Theatre\n{LOWER},###\n\n{LEFT}\n")
    assert not len(findings)
    assert item.size == (60, 80)
    assert item.regions.ignored.tolist() == [False, True, False]
    np.testing.assert_array_equal(item.regions.polygon(0), [(10, 10), (50, 10), (50, 30), (10, 30)])


@pytest.mark.parametrize(
    ("row", "rows", "corners"),
    [
        (f"{QUAD},55,57 & 59, ROAD", RowFormat("quad", ","), 4),
        (f"{QUAD},12", MIXED, 4),
        (f"{QUAD},1,000", MIXED, 4),
        (f"{QUAD},5000,6000,7000,8000", MIXED, 4),
        (f"{QUAD},9,31,9,11,text", MIXED, 6),
        ("1,1,9,1,9,9,text", RowFormat("polygon", ","), 3),
        ("1,1,9,1,9,9,7", RowFormat("polygon", ","), 3),
        (f"{QUAD},5,20,text", RowFormat("polygon", ","), 5),
        ("1.5,1,9e0,1,9,9", RowFormat("polygon", ","), 3),
    ],
)
def test_a_transcript_may_hold_numbers_and_commas(row: str, rows: RowFormat, corners: int) -> None:
    findings = Findings()
    (found,) = parse_rows(row, Path("a.txt"), findings, rows=rows)
    assert found.corners.shape == (corners, 2)
    assert not len(findings)


def test_polygons_of_many_corners_are_reported_from_quads(tmp_path: Path) -> None:
    many = "1{0},10,20,8,30,8,40,10,40,20,30,18,20,18,10,20,text\n"
    (item,), _ = read(tmp_path, many.format(0) + many.format(1) + many.format(2))
    assert np.diff(item.regions.offsets).tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    "row", ["text", "1,2,3,4,text", "1,2,3,4,5,6,7,x,text", f"nan{QUAD[2:]},text", f"1e300{QUAD[2:]},text"]
)
def test_a_row_that_is_none_is_reported_with_its_line(tmp_path: Path, row: str) -> None:
    (item,), findings = read(tmp_path, f"{QUAD},good\n{row}\n{LOWER},good\n{LEFT},good\n")
    assert len(item.regions) == 3
    (finding,) = findings.items
    assert finding.path.name == "a.txt"
    assert finding.line == 2
    assert finding.lost == "label"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("10,10,10,10,10,10,10,10,x", "no area"),
        ("10,10,50,10,30,10,20,10,x", "no area"),
        ("100,10,120,10,120,30,100,30,x", "outside the image"),
        ("-50,10,-20,10,-20,30,-50,30,x", "outside the image"),
    ],
)
def test_polygons_without_area_or_outside_are_left_out(tmp_path: Path, row: str, words: str) -> None:
    (item,), findings = read(tmp_path, f"{QUAD},good\n{row}\n")
    assert len(item.regions) == 1
    (finding,) = findings.items
    assert finding.line == 2
    assert words in finding.reason


def test_a_polygon_that_crosses_itself_is_repaired(tmp_path: Path) -> None:
    (item,), findings = read(tmp_path, "10,10,50,30,50,10,10,30,bow tie\n")
    assert len(item.regions) == 2
    assert np.diff(item.regions.offsets).tolist() == [3, 3]
    assert [(finding.line, finding.lost) for finding in findings.items] == [(1, "nothing")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_marks_are_understood(tmp_path: Path, encoding: str) -> None:
    (item,), findings = read(tmp_path, f"{QUAD},caffè\r\n".encode(encoding))
    assert len(item.regions) == 1
    assert not len(findings)


def test_another_encoding_costs_the_image_and_names_the_line(tmp_path: Path) -> None:
    items, findings = read(tmp_path, f"{QUAD},good\n{QUAD},caffè\n".encode("latin-1"))
    assert items == ()
    (finding,) = findings.items
    assert (finding.path.name, finding.line, finding.lost) == ("a.txt", 2, "picture")
    assert finding.about.name == "a.png"


def test_an_empty_file_is_a_image_without_text(tmp_path: Path) -> None:
    (item,), findings = read(tmp_path, "")
    assert len(item.regions) == 0
    assert item.regions.points.shape == (0, 2)
    assert not len(findings)


def test_a_file_of_which_nothing_can_be_read_costs_the_image(tmp_path: Path) -> None:
    items, findings = read(tmp_path, "<annotation>\n</annotation>\n")
    assert items == ()
    assert findings.counts() == {"picture": 1, "label": 2}


def test_csv_files_have_quads(tmp_path: Path) -> None:
    save_image(tmp_path, "000.jpg")
    (tmp_path / "000.csv").write_text(f"{QUAD},NO.53 55,57 & 59\n{LOWER},12,13,14,15,16\n")
    findings = Findings()
    (item,) = read_regions(tmp_path, tmp_path, findings)
    assert np.diff(item.regions.offsets).tolist() == [4, 4]


def test_names_of_icdar_files_are_found(tmp_path: Path) -> None:
    save_image(tmp_path / "images", "img_1.jpg")
    (tmp_path / "gt_img_1.txt").write_text(f"{QUAD},x\n")
    (item,) = read_regions(tmp_path / "images", tmp_path, Findings())
    assert len(item.regions) == 1


def test_images_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("whole.jpg", "cut.jpg", "cut.png", "empty.png", "text.jpg", "alone.png"):
        save_image(images, name.replace("cut.png", "short.png"))
        (tmp_path / f"{Path(name.replace('cut.png', 'short.png')).stem}.txt").write_text(f"{QUAD},x\n")
    (tmp_path / "alone.txt").unlink()
    for name in ("cut.jpg", "short.png"):
        noisy = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(noisy).save(images / name)
        (images / name).write_bytes((images / name).read_bytes()[:-40])
    (images / "empty.png").write_bytes(b"")
    (images / "text.jpg").write_text("not an image")
    findings = Findings()
    items = read_regions(images, tmp_path, findings)
    assert [item.path.name for item in items] == ["whole.jpg"]
    assert {item.about.name for item in findings.items} == {"cut.jpg", "short.png", "empty.png", "text.jpg", "alone.png"}
    assert all(item.lost == "picture" for item in findings.items)


@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16", "CMYK"])
def test_every_kind_of_image_has_a_size(tmp_path: Path, mode: str) -> None:
    name = "a.jpg" if mode == "CMYK" else "a.png"
    save_image(tmp_path, name, mode)
    (tmp_path / "a.txt").write_text(f"{QUAD},x\n")
    findings = Findings()
    (item,) = read_regions(tmp_path, tmp_path, findings)
    assert item.size == (60, 80)
    assert not len(findings)


def test_labels_of_no_image_are_a_remark(tmp_path: Path) -> None:
    save_image(tmp_path / "images")
    for name in ("a", "gone"):
        (tmp_path / f"{name}.txt").write_text(f"{QUAD},x\n")
    findings = Findings()
    assert len(read_regions(tmp_path / "images", tmp_path, findings)) == 1
    (finding,) = findings.items
    assert (finding.path.name, finding.lost) == ("gone.txt", "nothing")


def test_names_that_stand_twice_are_refused(tmp_path: Path) -> None:
    save_image(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text(f"{QUAD},x\n")
    (tmp_path / "gt_a.txt").write_text(f"{QUAD},x\n")
    with pytest.raises(DataError, match=r"two label files for a: a.txt and gt_a.txt"):
        read_regions(tmp_path, tmp_path, Findings())
    (tmp_path / "gt_a.txt").unlink()
    save_image(tmp_path, "a.jpg")
    with pytest.raises(DataError, match="same name"):
        read_regions(tmp_path, tmp_path, Findings())


def test_folders_without_labels_are_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "images")
    with pytest.raises(DataError, match="has no labels"):
        read_regions(tmp_path / "images", tmp_path / "images", Findings())
    with pytest.raises(DataError, match="does not exist"):
        read_regions(tmp_path / "images", tmp_path / "nowhere", Findings())
    with pytest.raises(DataError, match=r"not a \.json file"):
        read_regions(tmp_path / "images", tmp_path / "images" / "a.png", Findings())


COCO_TEXT = {
    "imgs": {"7": {"id": 7, "file_name": "train/a.png"}, "8": {"id": 8}},
    "anns": {
        "1": {"image_id": 7, "mask": [10, 10, 50, 10, 50, 30, 10, 30], "legibility": "legible"},
        "2": {"image_id": 7, "polygon": [10, 10, 50, 10, 50, 30], "legibility": "illegible"},
        "3": {"image_id": 7, "bbox": [10, 40, 40, 15]},
        "4": {"image_id": 9, "bbox": [10, 10, 40, 20]},
        "5": {"image_id": 7, "bbox": [10, 10, 40]},
        "6": {"image_id": 7, "bbox": [10, 10, float("nan"), 20]},
        "7": "text",
    },
}


def test_coco_text_is_read(tmp_path: Path) -> None:
    save_image(tmp_path / "images")
    save_image(tmp_path / "images", "unknown.png")
    labels = tmp_path / "coco.json"
    labels.write_text(json.dumps(COCO_TEXT))
    findings = Findings()
    (item,) = read_regions(tmp_path / "images", labels, findings)
    assert np.diff(item.regions.offsets).tolist() == [4, 3, 4]
    assert item.regions.ignored.tolist() == [False, True, False]
    np.testing.assert_array_equal(item.regions.polygon(2), [(10, 40), (50, 40), (50, 55), (10, 55)])
    reasons = [finding.reason for finding in findings.items]
    assert [reason.split(":")[0] for reason in reasons[:5]] == [
        "image 8 has no file_name", "annotation 4", "annotation 5", "annotation 6", "annotation 7",
    ]  # fmt: skip
    assert "does not list this image" in reasons[5]


def test_coco_files_with_lists_are_read_too(tmp_path: Path) -> None:
    labels = tmp_path / "coco.json"
    labels.write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a.png"}],
                "annotations": [{"id": 1, "image_id": 1, "segmentation": [[1, 1, 9, 1, 9, 9]], "iscrowd": 1}],
            }
        )
    )
    (item,) = read_regions(save_image(tmp_path / "images").parent, labels, Findings())
    assert np.diff(item.regions.offsets).tolist() == [3]
    assert item.regions.ignored.tolist() == [True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"imgs": {},\n "anns": ', "line 2: it is not valid JSON"),
        ("[1, 2]", "neither"),
        ('{"imgs": 1, "anns": {}}', "neither an object"),
    ],
)
def test_a_json_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    labels = tmp_path / "coco.json"
    labels.write_text(text)
    with pytest.raises(BadFileError, match=words):
        read_regions(save_image(tmp_path / "images").parent, labels, Findings())
