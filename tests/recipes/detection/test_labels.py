"""Labels in three formats give the same result, and every problem is reported with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.public_data import NOT_THERE, PUBLIC_DATA
from hasten.core.errors import DataError
from hasten.recipes.detection.labels import Labelled, read_labels
from hasten.recipes.detection.labels.names import read_names
from hasten.recipes.findings import Findings

WIDTH, HEIGHT = 80, 40

VOC = """<annotation>
 <filename>a.jpg</filename>
 <size><width>80</width><height>40</height><depth>3</depth></size>
 <object>
  <name>cat</name><difficult>0</difficult>
  <bndbox><xmin>8</xmin><ymin>4</ymin><xmax>40</xmax><ymax>20</ymax></bndbox>
 </object>
</annotation>
"""


class Folder:
    """A data set under construction."""

    def __init__(self, path: Path) -> None:
        self.images, self.labels = path / "images", path / "labels"
        self.images.mkdir()
        self.labels.mkdir()
        self.findings = Findings()

    def image(self, name: str = "a.jpg", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Path:
        Image.new("RGB", size, (90, 120, 30)).save(self.images / name)
        return self.images / name

    def label(self, name: str, text: str | bytes) -> Path:
        path = self.labels / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def read(self, **settings: Any) -> Labelled:
        settings = {"max_bad_frac": 1.0, **settings}
        return read_labels(self.images, self.labels, self.findings, **settings)

    @property
    def told(self) -> list[tuple[str, int | None, str]]:
        return [(item.path.name, item.line, item.lost) for item in self.findings.items]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def coco(folder: Folder, **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [8, 4, 32, 16], "iscrowd": 0}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 9, "name": "dog"}],
    }
    content |= changes
    folder.label("labels.json", json.dumps(content))
    return content


def test_the_three_formats_say_the_same(tmp_path: Path) -> None:
    read = []
    for name in ("yolo", "voc", "coco"):
        (tmp_path / name).mkdir()
        folder = Folder(tmp_path / name)
        folder.image()
        if name == "yolo":
            folder.label("a.txt", "0 0.3 0.3 0.4 0.4\n")
            folder.label("classes.txt", "cat\n")
        elif name == "voc":
            folder.label("a.xml", VOC)
        else:
            coco(folder)
        read.append(folder.read())
        assert folder.told == []
    for labelled in read:
        (item,) = labelled.items
        assert (labelled.classes[0], item.path.name, item.classes.tolist()) == ("cat", "a.jpg", [0])
        assert item.boxes.dtype == np.float32
        assert item.classes.dtype == np.int64
        assert item.boxes[0].tolist() == pytest.approx([8, 4, 40, 20], abs=1e-5)
    assert read[2].classes == ("cat", "dog")


def test_bccd_is_read_whole() -> None:
    data = PUBLIC_DATA / "bccd"
    if not data.is_dir():
        pytest.skip(NOT_THERE)
    findings = Findings()
    labelled = read_labels(data / "images", data / "annotations", findings)
    assert labelled.classes == ("Platelets", "RBC", "WBC")
    assert len(labelled.items) == 292
    assert sum(len(item.boxes) for item in labelled.items) == 3350 + 301 + 292 - 2
    assert [item.path.name for item in findings.items] == ["BloodImage_00338.xml", "BloodImage_00343.xml"]
    assert all("no area" in item.reason and item.line for item in findings.items)
    val = (data / "splits" / "val.txt").read_text(encoding="utf-8").split()
    assert [item.path.stem for item in labelled.only(val).items] == val


def test_boxes_are_cut_at_the_edges(folder: Folder) -> None:
    folder.image()
    folder.label("a.txt", "0 0.0 0.5 0.5 2.0\n")
    (item,) = folder.read().items
    assert item.boxes.tolist() == [[0, 0, 20, HEIGHT]]
    assert folder.told == [("a.txt", 1, "nothing")]
    assert "reaches beyond the image, and is cut" in folder.findings.words()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 1.5 0.5 0.2 0.2", "outside the image"),
        ("0 0.5 0.5 0 0.2", "no area"),
        ("0 0.5 0.5 -0.2 0.2", "no area"),
        ("0 0.5 0.5 0.001 0.2", "less than a pixel"),
        ("0 40 20 16 8", "are these pixels"),
        ("0 nan 0.5 0.2 0.2", "not a valid coordinate"),
        ("0 inf 0.5 0.2 0.2", "not a valid coordinate"),
        ("0 0.5 0.5 wide 0.2", "not a valid coordinate"),
        ("0 0.5 0.5 0.2", "4 numbers in a row"),
        ("0 0.5 0.5 0.2 0.2 0.9", "6 numbers in a row"),
        ("2 0.5 0.5 0.2 0.2", "class 2 is unknown: there are 2 classes"),
        ("-1 0.5 0.5 0.2 0.2", "not a class"),
        ("0.5 0.5 0.5 0.2 0.2", "not a class"),
        ("1e400 0.5 0.5 0.2 0.2", "not a class"),
        ("cat 0.5 0.5 0.2 0.2", "'cat' is not a class"),
        ("0,0.5,0.5,0.2,0.2", "spaces separate the numbers"),
        ("0 0.5 0.5 0.2_0 0.2", "not a valid coordinate"),
    ],
)
def test_a_wrong_line_of_text_is_reported_and_the_others_are_kept(folder: Folder, line: str, words: str) -> None:
    folder.image()
    folder.label("classes.txt", "cat\ndog\n")
    folder.label("a.txt", f"1 0.3 0.3 0.4 0.4\n\n{line}\n0 0.5 0.5 0.2 0.2\n")
    (item,) = folder.read().items
    assert item.classes.tolist() == [1, 0]
    assert folder.told == [("a.txt", 3, "label")]
    assert words in folder.findings.items[0].reason
    assert folder.findings.items[0].about.name == "a.jpg"


@pytest.mark.parametrize(
    ("listed", "told"), [("[dog, cat]", [("data.yaml", None, "nothing")]), ("[cat, dog]", []), ("5", [])]
)
def test_lists_of_other_classes_are_reported(folder: Folder, listed: str, told: list[Any]) -> None:
    folder.image()
    folder.label("classes.txt", "cat\ndog\n")
    folder.label("data.yaml", f"names: {listed}\n")
    folder.label("a.txt", "1 0.5 0.5 0.2 0.2\n")
    assert folder.read().classes == ("cat", "dog")
    assert folder.told == told


def test_a_polygon_is_taken_by_its_bounding_box(folder: Folder) -> None:
    folder.image()
    folder.label("a.txt", "0 0.1 0.1 0.5 0.2 0.3 0.5\n")
    (item,) = folder.read().items
    assert item.boxes[0].tolist() == pytest.approx([8, 4, 40, 20], abs=1e-5)


def test_images_without_objects(folder: Folder) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        folder.image(name)
    folder.label("a.txt", "3 0.5 0.5 0.2 0.2")
    folder.label("b.txt", "")  # and c has none
    labelled = folder.read()
    assert [len(item.boxes) for item in labelled.items] == [1, 0, 0]
    assert labelled.items[1].boxes.shape == (0, 4)
    assert labelled.classes == ("0", "1", "2", "3")
    assert folder.told == [("labels", None, "nothing")]
    assert "an image has no label file, such as c.jpg" in folder.findings.words()


def test_no_object_at_all_is_refused(folder: Folder) -> None:
    folder.image()
    folder.label("a.txt", "")
    with pytest.raises(DataError, match="labels no object"):
        folder.read()


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_lines_end_as_they_like(folder: Folder, ending: str) -> None:
    folder.image()
    folder.label("a.txt", ending.join(["0 0.5 0.5 0.2 0.2", "wrong", "0 0.3 0.3 0.2 0.2"]))
    (item,) = folder.read().items
    assert len(item.boxes) == 2
    assert folder.told == [("a.txt", 2, "label")]


def test_a_wrong_encoding_costs_the_image_and_is_reported_with_its_line(folder: Folder) -> None:
    for name in ("a", "b"):
        folder.image(f"{name}.jpg")
        folder.label(f"{name}.txt", "0 0.5 0.5 0.2 0.2\n")
    folder.label("a.txt", b"0 0.5 0.5 0.2 0.2\n# \xfc\n")
    assert [item.path.stem for item in folder.read().items] == ["b"]
    assert folder.told == [("a.txt", 2, "picture")]


def test_utf_16_and_byte_order_marks_are_read(folder: Folder) -> None:
    folder.image()
    folder.label("a.txt", "0 0.5 0.5 0.2 0.2\n".encode("utf-16"))
    folder.label("classes.txt", "Äpfel\n".encode("utf-8-sig"))
    assert folder.read().classes == ("Äpfel",)
    assert folder.told == []


def test_broken_images_are_left_out(folder: Folder) -> None:
    for name in "abcde":
        folder.image(f"{name}.jpg", size=(640, 480))
        folder.label(f"{name}.txt", "0 0.5 0.5 0.2 0.2\n")
    (folder.images / "a.jpg").write_bytes(b"")
    (folder.images / "b.jpg").write_bytes(b"not an image")
    whole = (folder.images / "c.jpg").read_bytes()
    (folder.images / "c.jpg").write_bytes(whole[: len(whole) // 2])
    assert [item.path.stem for item in folder.read().items] == ["d", "e"]
    assert folder.told == [(f"{name}.jpg", None, "picture") for name in "abc"]


def test_labels_without_images_are_reported_and_cost_nothing(folder: Folder) -> None:
    folder.image()
    for name in ("a.txt", "b.txt", "c.txt"):
        folder.label(name, "0 0.5 0.5 0.2 0.2\n")
    assert len(folder.read(max_bad_frac=0.0).items) == 1
    assert folder.told == [("labels", None, "nothing")]
    assert "2 files have no image" in folder.findings.words()


def test_too_many_faults_are_refused(folder: Folder) -> None:
    for at in range(20):
        folder.image(f"{at}.jpg")
        folder.label(f"{at}.txt", "0 0.5 0.5 0.2 0.2\n" + "wrong\n" * (at < 3))
    with pytest.raises(DataError, match=r"3 of 20 images have problems[\s\S]*\.txt, line 2"):
        folder.read(max_bad_frac=0.1)


def test_faults_of_one_folder_do_not_count_for_another(folder: Folder) -> None:
    folder.image()
    folder.label("a.txt", "0 0.5 0.5 0.2 0.2\n")
    for line in range(5):
        folder.findings.add(Path("elsewhere.txt"), line, "wrong", lost="label", about=Path(f"{line}.jpg"))
    assert len(folder.read(max_bad_frac=0.1).items) == 1
    assert len(folder.told) == 5


def test_duplicated_names_are_refused(folder: Folder) -> None:
    folder.image("a.jpg")
    folder.image("a.png")
    folder.label("a.txt", "0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(DataError, match=r"a\.jpg and a\.png"):
        folder.read()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<xmax>40</xmax>", "<xmax>8</xmax>", "no area"),
        ("<xmax>40</xmax>", "<xmax>nan</xmax>", "not a valid coordinate"),
        ("<xmax>40</xmax>", "<xmax></xmax>", "not a valid coordinate"),
        ("<xmax>40</xmax>", "", "has no xmax"),
        ("<name>cat</name>", "", "has no name"),
        ("<xmin>8</xmin><ymin>4</ymin><xmax>40</xmax>", "<xmin>90</xmin><ymin>4</ymin><xmax>99</xmax>", "outside"),
    ],
)
def test_a_wrong_object_of_xml_is_reported_with_its_line(folder: Folder, old: str, new: str, words: str) -> None:
    folder.image()
    assert old in VOC
    whole = VOC.split(" <object>")[1].split("</object>", maxsplit=1)[0]
    folder.label("a.xml", VOC.replace(old, new).replace("</annotation>", f" <object>{whole}</object>\n</annotation>"))
    (item,) = folder.read().items
    assert len(item.boxes) == 1
    assert folder.told == [("a.xml", 4, "label")]
    assert words in folder.findings.items[0].reason


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "empty"),
        ("<annotation>\n<object>\n</annotation>", 3, "not valid XML"),
        ("<html></html>", None, "<annotation>"),
        ('<!DOCTYPE a [\n<!ENTITY b "c">\n]>\n' + VOC, 1, "document type"),
        (VOC.replace("<width>80", "<width>40").replace("<height>40", "<height>80"), None, "EXIF"),
        (VOC.replace("<width>80", "<width>800"), None, "800x40"),
        (VOC.replace("<width>80", "<width>wide"), None, "not a valid coordinate"),
    ],
)
def test_a_wrong_file_of_xml_costs_its_image(folder: Folder, text: str, line: int | None, words: str) -> None:
    for name in ("a", "b", "c"):
        folder.image(f"{name}.jpg")
    folder.label("a.xml", text)
    folder.label("b.xml", VOC)  # and c has none
    assert [item.path.stem for item in folder.read().items] == ["b"]
    assert folder.told == [("a.xml", line, "picture"), ("c.jpg", None, "picture")]
    assert words in folder.findings.items[0].reason


def test_xml_may_leave_the_size_out_and_say_another_encoding(folder: Folder) -> None:
    folder.image()
    folder.label("a.xml", '<?xml version="1.0" encoding="ISO-8859-1"?>\n' + VOC.replace("80", "0").replace("cat", "Ä"))
    assert folder.read().classes == ("Ä",)


def test_parts_of_objects_are_no_objects(folder: Folder) -> None:
    folder.image()
    part = "<part><name>ear</name><bndbox><xmin>9</xmin><ymin>5</ymin><xmax>12</xmax><ymax>9</ymax></bndbox></part>"
    folder.label("a.xml", VOC.replace(" </object>", f"{part} </object>"))
    labelled = folder.read()
    assert labelled.classes == ("cat",)
    assert labelled.items[0].boxes.tolist() == [[8, 4, 40, 20]]


def annotation(**changes: Any) -> dict[str, Any]:
    return {"id": 5, "image_id": 7, "category_id": 3, "bbox": [8, 4, 32, 16], "iscrowd": 0} | changes


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (annotation(bbox=[8, 4, 0, 16]), "no area"),
        (annotation(bbox=[8, 4, float("nan"), 16]), "not a valid coordinate"),
        (annotation(bbox=[8, 4, True, 16]), "not a valid coordinate"),
        (annotation(bbox=[8, 4, 10**400, 16]), "not a valid coordinate"),
        (annotation(bbox=[90, 4, 5, 16]), "outside"),
        (annotation(bbox=[8, 4, 32]), "four numbers"),
        (annotation(bbox="8 4 32 16"), "four numbers"),
        (annotation(category_id=4), "category_id 4 is unknown"),
        (annotation(category_id=None), "unknown"),
        (annotation(image_id=8), "no listed image"),
        ("nonsense", "no listed image"),
    ],
)
def test_a_wrong_annotation_of_json_is_reported_by_its_number(folder: Folder, wrong: Any, words: str) -> None:
    folder.image()
    coco(folder, annotations=[annotation(id=1), wrong])
    (item,) = folder.read().items
    assert item.boxes.tolist() == [[8, 4, 40, 20]]
    assert folder.told == [("labels.json", None, "label")]
    assert words in folder.findings.items[0].reason
    assert ("annotation 5" if isinstance(wrong, dict) else "entry 1") in folder.findings.items[0].reason


def test_crowds_are_not_learned_from(folder: Folder) -> None:
    folder.image()
    coco(folder, annotations=[annotation(id=1), annotation(iscrowd=1, bbox=[0, 0, 9, 9])])
    assert len(folder.read().items[0].boxes) == 1
    assert folder.told == [("labels.json", None, "nothing")]
    assert "1 crowd region not used" in folder.findings.words()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ('{"images": [],\n "annotations": [}', r"labels\.json, line 2: it is not valid JSON"),
        ("[1, 2]", "not COCO JSON"),
        ('{"images": [], "annotations": []}', "`categories`"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', "entry 0 of `categories`"),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
            "listed twice",
        ),
        ("[" * 500, "labels.json"),
    ],
)
def test_json_that_is_not_cocos_is_refused(folder: Folder, text: str, words: str) -> None:
    folder.image()
    folder.label("labels.json", text)
    with pytest.raises(DataError, match=words):
        folder.read()


def test_images_of_json_that_cannot_be_used_are_left_out(folder: Folder) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
        folder.image(name)
    size = {"width": WIDTH, "height": HEIGHT}
    images = [
        {"id": 7, "file_name": "images\\a.jpg", **size},
        {"id": 8, "file_name": "b.jpg", **size},
        {"id": 9, "file_name": "b.jpg", **size},
        {"id": 10, "file_name": "c.jpg", "width": 1, "height": 2},
        {"id": 11, "file_name": "gone.jpg", **size},
        {"id": 12},
    ]
    coco(folder, images=images)
    assert [item.path.stem for item in folder.read().items] == ["a"]
    lost = [item.about.name for item in folder.findings.items if item.lost == "picture"]
    assert lost == ["b.jpg", "c.jpg", "d.jpg"]
    remarks = [item.reason for item in folder.findings.items if item.lost == "nothing"]
    assert any("gone.jpg" in remark for remark in remarks)
    assert any("entry 5 of `images`" in remark for remark in remarks)


def test_given_classes_decide_and_others_are_reported(folder: Folder) -> None:
    folder.image()
    folder.label("a.xml", VOC)
    labelled = folder.read(classes=["dog", "cat"])
    assert labelled.classes == ("dog", "cat")
    assert labelled.items[0].classes.tolist() == [1]
    assert len(folder.read(classes=["dog"]).items[0].boxes) == 0
    assert folder.told == [("a.xml", 4, "label")]
    with pytest.raises(DataError, match="same name"):
        folder.read(classes=["dog", "dog"])


def test_the_format_is_reported_or_asked_for(folder: Folder, tmp_path: Path) -> None:
    folder.image()
    with pytest.raises(DataError, match="no labels of the images"):
        folder.read()
    with pytest.raises(DataError, match="does not exist"):
        read_labels(folder.images, tmp_path / "nowhere", folder.findings)
    with pytest.raises(DataError, match="not a COCO JSON file"):
        read_labels(folder.images, folder.images / "a.jpg", folder.findings)
    folder.label("a.txt", "0 0.5 0.5 0.2 0.2\n")
    folder.label("a.xml", VOC)
    with pytest.raises(DataError, match="YOLO text and VOC XML"):
        folder.read()


def test_labels_may_lie_beside_the_images(folder: Folder) -> None:
    folder.image()
    (folder.images / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n", encoding="utf-8")
    (folder.images / "classes.txt").write_text("cat\n", encoding="utf-8")
    assert read_labels(folder.images, folder.images, folder.findings).classes == ("cat",)
    assert folder.told == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.txt", "cat\nbig dog\ndriver's cap\n\n"),
        ("data.yaml", "nc: 3\nnames: ['cat', \"big dog\", driver's cap]  # three\n"),
        ("data.yaml", "train: ../images\nnames:\n  - cat\n  - 'big dog' # a comment\n  - driver's cap\nnc: 3\n"),
        ("data.yaml", "names:\n- cat\n- big dog\n- driver's cap\n"),
        ("data.yaml", "names:\n  0: cat\n  2: driver's cap\n  1: big dog\n"),
        ("data.yaml", "names: {0: cat, 1: 'big dog', 2: driver's cap}\n"),
        ("data.yaml", "path: &root ../images\ntrain: *root\nnames: [cat, big dog, driver's cap]\n"),
        ("data.yaml", "names: [cat,\n  'big dog',\n  driver's cap,\n]\nnc: 3\n"),
        ("classes.json", '["cat", "big dog", "driver\'s cap"]'),
        ("classes.json", '{"names": {"0": "cat", "1": "big dog", "2": "driver\'s cap"}}'),
    ],
)
def test_lists_of_classes(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_names(tmp_path / name) == ("cat", "big dog", "driver's cap")


def test_names_in_yaml_stay_text(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names: [no, 1, 2.50, null]\n", encoding="utf-8")
    assert read_names(tmp_path / "data.yaml") == ("no", "1", "2.50", "null")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("classes.txt", "cat\n\ndog\n", "line 2: a class has no name"),
        ("classes.txt", "cat\ndog\ncat\n", "line 3: the class 'cat' is listed twice"),
        ("classes.txt", "", "lists no classes"),
        ("data.yaml", "train: x\n", "no `names`"),
        ("data.yaml", "nc: 3\nnames: [cat, dog]\n", "line 1: its `nc` is 3, but it has 2 `names`"),
        ("data.yaml", "names: [cat]\nnames: [dog]\n", "line 2: the key `names` is there twice"),
        ("data.yaml", "names: cat\n", "line 1: its `names` are not a list"),
        ("data.yaml", "names: [cat, dog\n", "line 2: it is not valid YAML"),
        ("data.yaml", "names:\n  0: cat\n  2: dog\n", "count from 0"),
        ("data.yaml", "names:\n  0: cat\n  0: dog\n", "line 3: the class number 0 is used twice"),
        ("data.yaml", "names:\n  a: cat\n", "line 2: 'a' is not a class number"),
        ("data.yaml", "names:\n  - [cat]\n", "line 2: an entry of `names` is not text"),
        ("data.yaml", "names:\n  - cat\n  dog\n", "line [34]: it is not valid YAML"),
        ("data.yaml", "!!python/object/apply:os.system ['true']\n", "no `names`"),
        ("data.yaml", "names: " + "[" * 500, "nested too deeply"),
        ("data.yaml", "names: [" + "a, " * 400_000 + "]\n", "longer than"),
        ("classes.json", "{", "line 1: it is not valid JSON"),
        ("classes.json", '{"a": 1}', "not a list of names"),
    ],
)
def test_wrong_lists_of_classes_are_refused_with_their_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"{name}.*{words}"):
        read_names(tmp_path / name)


def test_the_list_of_classes_is_found_above_the_labels(tmp_path: Path) -> None:
    for place in ("train/labels", "labels/train"):
        folder = tmp_path / place.replace("/", "-")
        labels, images = folder / place, folder / "images"
        labels.mkdir(parents=True)
        images.mkdir()
        Image.new("RGB", (WIDTH, HEIGHT)).save(images / "a.png")
        (labels / "a.txt").write_text("1 0.5 0.5 0.2 0.2\n", encoding="utf-8")
        (folder / "data.yaml").write_text("names: [cat, dog]\n", encoding="utf-8")
        assert read_labels(images, labels, Findings()).classes == ("cat", "dog")
