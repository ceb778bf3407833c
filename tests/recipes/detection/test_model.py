"""The detector: maps in the order of their anchors, boxes only when needed, and parts that can be frozen."""

from __future__ import annotations

import pytest
import torch

from hasten.core.errors import JobError
from hasten.recipes.detection.model import PARTS, SHAPES, STRIDES, Detector, anchor_points, shape_named
from hasten.recipes.detection.model import _by_anchor as by_anchor

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
NUM_ANCHORS = 8 * 8 + 4 * 4 + 2 * 2


def small(*, light: bool = True) -> Detector:
    torch.manual_seed(0)
    return Detector(3, SHAPES["nano"], light=light)


@pytest.mark.parametrize("name", ["nano", pytest.param("medium", marks=pytest.mark.slow)])
def test_a_detector_gives_one_answer_per_anchor(name: str) -> None:
    shape = shape_named(name)
    output = Detector(3, shape).eval()(IMAGES)
    assert output.distances.shape == (2, NUM_ANCHORS, 4 * shape.num_bins)
    assert output.logits.shape == output.scores.shape == (2, NUM_ANCHORS, 3)
    assert output.boxes.shape == (2, NUM_ANCHORS, 4)
    assert output.anchors.shape == (NUM_ANCHORS, 3)


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(JobError, match="nano, small, medium, large"):
        shape_named("huge")


def test_anchors_stand_in_the_middle_of_their_places_row_by_row() -> None:
    points = anchor_points([(2, 3), (1, 2), (1, 1)], torch.device("cpu")).tolist()
    fine = [[4.0, 4.0, 8.0], [12.0, 4.0, 8.0], [20.0, 4.0, 8.0], [4.0, 12.0, 8.0], [12.0, 12.0, 8.0], [20.0, 12.0, 8.0]]
    assert points == [*fine, [8.0, 8.0, 16.0], [24.0, 8.0, 16.0], [16.0, 16.0, 32.0]]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_a_map_says_at_a_place_belongs_to_the_anchor_there(layout: torch.memory_format) -> None:
    sizes = [(4, 6), (2, 3), (1, 2)]
    maps = []
    for (height, width), stride in zip(sizes, STRIDES, strict=True):
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        places = torch.stack([(columns + 0.5) * stride, (rows + 0.5) * stride, torch.full_like(rows, stride)])
        maps.append(places.float()[None].to(memory_format=layout))
    assert torch.equal(by_anchor(maps)[0], anchor_points(sizes, torch.device("cpu")))


def test_a_light_detector_makes_no_boxes_in_training_and_says_the_same() -> None:
    light, full = small().train(), small(light=False).train()
    seen, made = light(IMAGES), full(IMAGES)
    assert seen.boxes is None
    assert seen.scores is None
    assert made.boxes is not None
    assert torch.equal(seen.distances, made.distances)
    assert torch.equal(seen.logits, made.logits)


def test_a_fresh_detector_expects_few_objects() -> None:
    for branch, stride in zip(small().head.classes, STRIDES, strict=True):
        expected = torch.sigmoid(branch[-1].bias.detach()).sum() * (640 / stride) ** 2  # type: ignore[index]
        assert float(expected) == pytest.approx(5.0, rel=0.02)


def test_a_fresh_detector_is_not_blind_to_the_image() -> None:
    model = small().train()
    first, second = model(IMAGES).logits.detach()
    assert float((first - second).abs().max()) > 1e-3


def test_every_parameter_of_a_fresh_detector_gets_a_gradient() -> None:
    model = small()
    output = model(IMAGES)
    (output.distances.square().sum() + output.logits.square().sum()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_a_frozen_part_keeps_its_weights_and_its_statistics() -> None:
    model = small()
    model.freeze(("backbone",))
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(IMAGES).logits.sum().backward()
    learns = {name.partition(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    changed = {name.partition(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert learns == {"neck", "head"}
    assert changed == {"neck", "head"}
    assert not model.backbone.training
    assert model.neck.training


@pytest.mark.parametrize("parts", [("tail",), PARTS])
def test_what_cannot_be_frozen_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(JobError, match="backbone, neck, head"):
        small().freeze(parts)
