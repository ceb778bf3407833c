"""Detection in one image: boxes are returned in the image's own pixels, and drawn at their positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hasten.core.errors import DataError, JobError
from hasten.recipes.detection.model import Output
from hasten.recipes.detection.predict import find_objects, look, shown, trained
from tests.recipes.detection.shapes import CLASSES, SIDE, job_on, write_pictures


class Sure(nn.Module):
    """Return the same boxes, in pixels of the square, and class scores for every image."""

    def __init__(self, boxes: list[list[float]], scores: list[list[float]]) -> None:
        super().__init__()
        self.anything = nn.Parameter(torch.zeros(1))
        self.boxes, self.scores = torch.tensor([boxes]), torch.tensor([scores])

    def forward(self, images: torch.Tensor) -> Output:
        assert images.shape == (1, 3, SIDE, SIDE)
        assert 0 <= images.min() <= images.max() <= 1
        none = torch.zeros(0)
        return Output(none, none, none, self.boxes, self.scores)


def test_boxes_come_back_in_the_images_own_pixels_the_surest_first(tmp_path: Path) -> None:
    job = job_on(write_pictures(tmp_path, 1))
    wide = np.zeros((100, 2 * SIDE, 3), np.uint8)  # halved, with (96 - 50) / 2 = 23 rows of grey above and below
    model = Sure([[10, 33, 30, 53], [40, 20, 60, 80], [0, 30, 9, 40]], [[0.5, 0.1], [0.2, 0.9], [0.2, 0.1]])
    found = find_objects(model, wide, job)
    np.testing.assert_allclose(found, [[80, 0, 120, 100, 0.9, 1], [20, 20, 60, 60, 0.5, 0]], atol=1e-5)
    assert len(find_objects(model, wide, job, min_score=0.15)) == 4  # the second box is of both classes
    assert find_objects(model, wide, job, min_score=0.95).shape == (0, 6)

    told, drawn, num_hidden = look(model, wide, job)
    assert told[0] == {"class": CLASSES[1], "score": 0.9, "box": [80.0, 0.0, 120.0, 100.0]}
    assert (len(told), num_hidden) == (2, 4)
    told, _, num_hidden = look(model, wide, job, 0.0)
    assert (len(told), num_hidden) == (6, 0)
    told, _, num_hidden = look(model, wide, job, 0.15)
    assert (len(told), num_hidden) == (4, 2)
    assert drawn.shape == wide.shape
    assert drawn[60, 80].any()
    assert drawn[60, 120].any()
    assert not drawn[60, 100].any()
    assert not wide.any()


def test_names_that_opencv_cannot_write_are_no_error() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    assert shown(image, np.asarray([[2, 2, 40, 40, 0.5, 0]], np.float32), ("Münze",)).any()
    assert not shown(image, np.zeros((0, 6), np.float32), ("Münze",)).any()


def test_trained_weights_are_those_of_the_average(tmp_path: Path) -> None:
    job = job_on(write_pictures(tmp_path / "images", 2))
    model = job.model()
    with torch.no_grad():
        for parameter in model.get_submodule("live").parameters():
            parameter.add_(1.0)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    detector = trained(job, tmp_path / "model.pt")
    for name, tensor in model.get_submodule("average").state_dict().items():
        assert torch.equal(detector.state_dict()[name], tensor), name
    assert not detector.training
    with pytest.raises(DataError, match="there is no file"):
        trained(job, tmp_path / "none.pt")
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(JobError, match="belongs to another detector"):
        trained(job, tmp_path / "other.pt")
