"""Labels mean what their format declares: over all rows, never by the length of one; what may mean two things is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import DataError
from hasten.recipes.detection.labels import read_labels
from hasten.recipes.detection.labels.yolo_rows import decide
from tests.recipes.detection.test_labels import VOC, Folder, annotation, coco

POSE = "0 0.75 0.75 0.1 0.1 0.72 0.72 0.78 0.72 0.75 0.78 0.72 0.79 0.78 0.79"
POLYGONS = ["0 0.1 0.1 0.5 0.1 0.6 0.3 0.4 0.5 0.2 0.4", "1 0.7 0.7 0.8 0.7 0.9 0.9"]
ROTATED = "0 0.5 0.3 0.7 0.5 0.5 0.7 0.3 0.5"
BOX = "0 0.5 0.5 0.25 0.5"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.image()
    return folder


def kind_of(rows: list[str], kind: str | None = None) -> str:
    return decide((row.split() for row in rows), Path("labels"), kind=kind, keypoints=None, source=None).kind


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([BOX], "box"),
        ([], "box"),
        ([BOX, f"{BOX} 0.9", BOX], "box"),
        (POLYGONS, "polygon"),
        (POLYGONS[:1], "polygon"),
        ([*POLYGONS, BOX], "polygon"),
        ([ROTATED] * 5, "polygon"),
        ([BOX] * 99 + POLYGONS[:1], "box"),
        (["0 nan nan nan nan"], "box"),
        (["0 50% 50% 25% 50%"], "box"),
    ],
)
def test_the_kind_of_the_rows_follows_from_all_of_them(rows: list[str], kind: str) -> None:
    assert kind_of(rows) == kind


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [POSE] * 3,
            r"15 numbers, which may be a polygon, or a box and its keypoints.*`kpt_shape`.*--rows pose or --rows pol",
        ),
        (["0 0.75 0.75 0.1 0.1 0.72 0.72 2 0.78 0.72 2 0 0 0"], r"14 numbers, which may be a box and its.*--rows pose\."),
        ([f"{BOX} 0.91"], "--rows box-score"),
        ([f"{BOX} 1.57"], "a rotated box and its angle"),
        ([f"{BOX} 0.91 3", f"{BOX} 0.8 1"], "7 numbers and end in a whole one"),
        (["0 160 120 50 40", "0 1 1 1 1", "0 99 9 9 9"], "coordinates up to 160.*pixels, or percent"),
        (["gsd:0.1", "10.0 10.0 50.0 10.0 50.0 40.0 10.0 40.0 plane 0"], "DOTA's"),
    ],
)
def test_rows_that_may_mean_two_things_are_refused(rows: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        kind_of(rows)


def test_the_user_may_say_what_the_rows_are(folder: Folder) -> None:
    for rows, row in (("pose", POSE), ("box-score", f"{BOX} 0.9"), ("polygon", POSE)):
        folder.label("a.txt", row)
        (item,) = folder.read(rows=rows).items
        assert len(item.boxes) == 1
        assert (item.boxes[0].tolist() == pytest.approx([56, 28, 64, 32], abs=1e-4)) == (rows == "pose")
    with pytest.raises(
        DataError, match="'quad' is not a kind of row of YOLO text: use one of box, box-score, polygon, pose"
    ):
        folder.read(rows="quad")


@pytest.mark.parametrize("name", ["data.yaml", "coco8-pose.yaml"])
@pytest.mark.parametrize("text", ["kpt_shape: [5, 2]\nnames:\n  0: person\n", '{names: [person], "kpt_shape": [5, 2]}'])
def test_kpt_shape_declares_a_pose(folder: Folder, name: str, text: str) -> None:
    (folder.labels.parent / name).write_text(f"\ufeff{text}", encoding="utf-8")
    folder.label("a.txt", POSE)
    labelled = folder.read()
    assert labelled.classes == ("person",)
    assert labelled.items[0].boxes[0].tolist() == pytest.approx([56, 28, 64, 32], abs=1e-4)
    assert f"5 keypoints (`kpt_shape` of {name})" in folder.findings.understood[0]
    folder.label("a.txt", f"{POSE} 0.1\n{POSE}\n")
    assert len(folder.read().items[0].boxes) == 1
    assert "16 numbers in a row; here it has 15" in folder.findings.words()


@pytest.mark.parametrize("value", ["5", "[5]", "[5, 4]", "[a, 2]", "[0, 2]"])
def test_a_wrong_kpt_shape_is_refused(folder: Folder, value: str) -> None:
    (folder.labels.parent / "data.yaml").write_text(f"names: [a]\nkpt_shape: {value}\n")
    folder.label("a.txt", BOX)
    with pytest.raises(DataError, match=r"data\.yaml, line 2: its `kpt_shape` is not"):
        folder.read()


def test_other_yaml_files_are_not_read(folder: Folder) -> None:
    (folder.labels.parent / "docker.yaml").write_text("a: [\n")
    (folder.labels.parent / "latin.yaml").write_bytes(b"names: [caf\xe9]")
    folder.label("a.txt", BOX)
    assert folder.read().classes == ("0",)


def test_the_number_of_classes_without_names_counts(folder: Folder) -> None:
    (folder.labels.parent / "data.yaml").write_text("nc: 2\ntrain: [a, b]\nval: val.txt\n")
    folder.label("a.txt", f"{BOX}\n2 0.5 0.5 0.2 0.2\n")
    assert folder.read().classes == ("0", "1")
    assert "class 2 is unknown" in folder.findings.words()


def test_repeated_rows_count_once(folder: Folder) -> None:
    folder.label("a.txt", f"{BOX}\n{BOX}\n{BOX}\n")
    assert len(folder.read(max_bad_frac=0.0).items[0].boxes) == 1
    assert folder.told == [("a.txt", 2, "nothing"), ("a.txt", 3, "nothing")]
    assert "(and 1 more like this)" in folder.findings.words()


def test_comments_tabs_and_ids_with_a_point_are_read(folder: Folder) -> None:
    folder.label("a.txt", "\ufeff# class x y w h\r\n0.0\t0.5\t0.5\t0.25\t0.5 # cat\r\n")
    assert folder.read().items[0].boxes.tolist() == [[30, 10, 50, 30]]
    assert folder.told == []


def test_an_image_of_which_no_label_can_be_read_is_not_one_without_objects(folder: Folder) -> None:
    folder.image("b.jpg")
    folder.label("a.txt", "-1 0.5 0.5 0.25 0.5\n")
    folder.label("b.txt", BOX)
    assert [item.path.name for item in folder.read().items] == ["b.jpg"]
    assert folder.findings.counts() == {"picture": 1, "label": 1}


def test_boxes_of_another_convention_are_refused(folder: Folder) -> None:
    names = [f"{number}.jpg" for number in range(12)]
    for name in names:
        folder.image(name)
        folder.label(name.replace("jpg", "txt"), "0 0.5 0.5 0.75 0.9\n0 0.6 0.2 0.9 0.5\n")
    with pytest.raises(DataError, match="12 of 24 boxes reach beyond their image"):
        folder.read()
    assert sum(len(item.boxes) for item in folder.read(rows="box").items) == 24
    for name in names:
        folder.label(name.replace("jpg", "txt"), "")
    (folder.images / "a.jpg").unlink()
    for path in folder.labels.glob("*.txt"):
        path.unlink()
    listed = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    corners = [annotation(id=number, image_id=number, bbox=[50, 20, 70, 35]) for number in range(12)]
    coco(folder, images=listed, annotations=corners)
    with pytest.raises(DataError, match="12 of 12 boxes reach beyond their image"):
        folder.read()


def test_encodings_are_given_or_declared(folder: Folder) -> None:
    folder.label("a.txt", f"{BOX} # caf\xe9".encode("latin-1"))
    with pytest.raises(DataError, match="give its --encoding, such as latin-1"):
        folder.read()
    assert len(folder.read(encoding="latin-1").items) == 1
    with pytest.raises(DataError, match="Python knows no encoding 'nonsense'"):
        folder.read(encoding="nonsense")
    (folder.labels / "a.txt").unlink()
    declared = '<?xml version="1.0" encoding="ISO-8859-1"?>\n' + VOC.replace("cat", "caf\xe9")
    folder.label("a.xml", declared.encode("latin-1"))
    assert folder.read().classes == ("caf\xe9",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<annotation>" + "<a>" * 100_000, "nested too deeply"),
        ('<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>' + VOC.replace("cat", "&b;"), "a document type or an entity"),
        (VOC.replace("<bndbox>", "<bndbox><xmin>1</xmin>"), "an object has xmin twice"),
    ],
)
def test_xml_that_is_not_vocs_costs_its_image(folder: Folder, text: str, words: str) -> None:
    folder.image("b.jpg")
    folder.label("a.xml", text)
    folder.label("b.xml", VOC.replace("cat", "big cat &amp; dog").replace("<xmin>8<", "<xmin>8.5<"))
    labelled = folder.read()
    assert labelled.classes == ("big cat & dog",)
    assert [item.path.name for item in labelled.items] == ["b.jpg"]
    assert words in folder.findings.words()


@pytest.mark.parametrize(
    "changes",
    [
        {"images": [{"id": "7", "file_name": "a.jpg"}]},
        {"images": [{"id": 7.0, "file_name": "val\\2017\\a.jpg", "width": "wide", "height": None}]},
        {"images": [{"id": 7, "file_name": "https://host/images/a.jpg?size=1"}]},
        {"images": [{"id": 7, "file_name": "images/a.jpg"}, {"id": 8, "file_name": "other/a.jpg"}]},
        {"categories": [{"id": "10", "name": "dog"}, {"id": "3", "name": "cat"}], "info": None},
        {"annotations": [annotation(keypoints=[1, 2, 2], num_keypoints=1, segmentation=[[1, 2, 3]])]},
        {"annotations": [annotation(), annotation(id=6, iscrowd=True), annotation(id=9, iscrowd="1", segmentation={})]},
        {"annotations": [annotation(), annotation(bbox=[8, 4, 32, 16.0])]},
    ],
)
def test_what_writers_of_coco_differ_in_is_understood(folder: Folder, changes: dict[str, Any]) -> None:
    coco(folder, **changes)
    labelled = folder.read(max_bad_frac=0.0)
    assert labelled.classes == ("cat", "dog")
    assert labelled.items[0].boxes.tolist() == [[8, 4, 40, 20]]


def test_escapes_of_addresses_are_resolved(folder: Folder) -> None:
    (folder.images / "a.jpg").rename(folder.images / "my photo.jpg")
    coco(folder, images=[{"id": 7, "file_name": "my%20photo.jpg"}])
    assert len(folder.read().items) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]', "the results of a detector"),
        ('{"shapes": [], "imagePath": "a.jpg"}', "LabelMe JSON"),
        ('{"images": [], "annotations": [], "categories": []}', "its `categories` are empty"),
        ('{"images": ' + "9" * 5000 + "}", "a number that cannot be read"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_not_cocos_is_refused_by_what_it_is(folder: Folder, text: str, words: str) -> None:
    folder.label("labels.json", text)
    with pytest.raises(DataError, match=words):
        folder.read()


def test_ids_that_are_there_twice_are_told(folder: Folder) -> None:
    folder.image("b.jpg")
    folder.image("c.jpg")
    images = [{"id": number, "file_name": name} for number, name in ((7, "a.jpg"), (8, "b.jpg"), (8, "c.jpg"))]
    coco(folder, images=images, annotations=[annotation(), annotation(bbox=[0, 0, 9, 9])])
    (item,) = folder.read().items
    assert len(item.boxes) == 2
    assert (
        "b.jpg or its id is listed twice under `images`: remove one entry (and 1 more like this)" in folder.findings.words()
    )
    assert "1 id of annotations used more than once, such as 5" in folder.findings.words()


def test_folders_without_labels_say_where_they_may_be(folder: Folder) -> None:
    (folder.labels / "train").mkdir()
    with pytest.raises(DataError, match=r"It has subfolders \(train\): give one of them"):
        folder.read()
    folder.image("b.jpg")
    for name in ("a.json", "b.json"):
        folder.label(name, json.dumps({"shapes": []}))
    with pytest.raises(DataError, match="one JSON file for each image, as LabelMe writes them"):
        folder.read()


def test_a_file_that_raises_anything_costs_its_image(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.recipes.detection.labels import read

    def check(path: Path) -> tuple[int, int]:
        if path.name == "a.jpg":
            raise ZeroDivisionError("by nothing")
        return 40, 80

    monkeypatch.setattr(read, "check_picture", check)
    folder.image("b.jpg")
    folder.label("b.txt", BOX)
    told: list[tuple[int, int]] = []
    labelled = read_labels(
        folder.images, folder.labels, folder.findings, max_bad_frac=1, told=lambda done, total: told.append((done, total))
    )
    assert [item.path.name for item in labelled.items] == ["b.jpg"]
    assert "it cannot be read (ZeroDivisionError: by nothing)" in folder.findings.words()
    assert told == [(1, 2), (2, 2)]
