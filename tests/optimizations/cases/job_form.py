"""Test case of job_form."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils.data import Dataset

import hasten
from hasten.core.job import Job
from hasten.optimizations.job_form import JobForm
from tests.optimizations.contract import Case, Images, facts


class Mirrored(Images):
    """Mirrors each image in the collate function."""

    quality = hasten.Quality(margin=0.1)

    def valid_data(self) -> Dataset[Any] | None:
        return self.train_data()

    def collate(self, samples: list[Any]) -> Any:
        images, targets = zip(*samples, strict=True)
        return torch.stack([image.flip(-1) for image in images]), torch.stack(targets)


class MirroredTogether(Mirrored):
    zero_grad_to_none = False

    def collate(self, samples: list[Any]) -> Any:
        images, targets = zip(*samples, strict=True)
        return torch.stack(images).flip(-1), torch.stack(targets)


class Dimmed(MirroredTogether):
    """Mirrored and darker. Only a quality metric can show whether it is the same job."""

    def collate(self, samples: list[Any]) -> Any:
        images, targets = super().collate(samples)
        return images * 0.9, targets


class Offering(Mirrored):
    forms: ClassVar[tuple[type[Job], ...]] = (MirroredTogether, Dimmed)


CASE = Case(
    make=lambda: JobForm(form="Dimmed"), job=Offering, facts=facts(job={"forms": ("MirroredTogether", "Other")}),
    refused=(
        (facts(), "no alternative form"),
        (facts(job={"forms": ("Other",), "has_quality": False}), "set quality"),
    ),
)  # fmt: skip
