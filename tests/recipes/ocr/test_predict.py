"""Text in one image: within it, in exact decimals, and with a count of what has lower scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.predict import find_text, look


class Sure(nn.Module):
    """Return the same map of probabilities for every image."""

    def __init__(self, probability: torch.Tensor) -> None:
        super().__init__()
        self.anything = nn.Parameter(torch.zeros(1))
        self.logits = torch.logit(probability, eps=1e-6)[None, None]

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.logits


@pytest.mark.parametrize("curved", [False, True])
def test_texts_are_within_the_image_and_weak_ones_are_counted(curved: bool) -> None:
    class Small(OcrJob):
        size = 96

    Small.curved = curved
    probability = torch.zeros(96, 96)
    probability[26:36, 0:60] = 0.9  # at the left edge, and just below the upper one
    probability[50:60, 20:80] = 0.4  # below box_thresh
    probability[2:10, 20:80] = 0.8  # in the padding: the image fills rows 24 to 72
    image = np.zeros((37, 74, 3), dtype=np.uint8)
    job, model = Small(), Sure(probability)
    found, drawn, num_hidden = look(model, image, job)
    assert (len(found), num_hidden) == (1, 1)
    assert drawn.any()
    corners = np.asarray(found[0]["polygon"])
    assert (corners >= 0).all()
    assert (corners <= [74, 37]).all()
    assert all(len(number.partition(".")[2].rstrip("]} ")) <= 4 for number in json.dumps(found).split(","))
    assert look(model, image, job, 0.1)[2] == 0
    assert len(find_text(model, image, job).scores) == 1
    assert len(find_text(model, image, job, 0.95).scores) == 0
