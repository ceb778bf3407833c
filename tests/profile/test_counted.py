"""Measurements for a job that defines which positions count, and the installed packages."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hasten
from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.profile.measure import profile_loop
from hasten.profile.probes import counted_frac, installed_packages, job_facts
from hasten.train.build import build
from hasten.train.loop import Loop

CPU = torch.device("cpu")


class Rows(Job):
    """Rows of 10 tokens, of which the first 2, 4, 6 and 8 are real; every batch contains all four."""

    batch_size = 4
    epochs = 3
    shuffle = False

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 80), nn.Linear(80, 7))

    def train_data(self) -> Dataset[Any]:
        rows: Any = [(torch.arange(10) < 2 * (index % 4) + 2).long() for index in range(16)]
        return rows  # type: ignore[no-any-return]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=0)


class Counted(Rows):
    """Defines which positions count."""

    def counted(self, batch: Any) -> torch.Tensor:
        mask: torch.Tensor = batch != 0
        return mask


@pytest.mark.parametrize(("job", "frac"), [(Rows, 1.0), (Counted, 0.5)])
def test_a_profile_measures_the_counted_positions(job: type[Job], frac: float) -> None:
    facts = profile_loop(Loop(build(job(), device=CPU)), slice_s=0.01, quick=True).facts
    assert facts.counted_frac == frac
    assert facts.job.has_counted is (job is Counted)
    assert facts.job.largest_param == 560
    assert facts.packages == installed_packages()


def test_no_batch_says_nothing() -> None:
    assert counted_frac(build(Counted(), device=CPU), []) == 1.0


def test_the_largest_tensor_that_is_trained_counts() -> None:
    live = build(Rows(), device=CPU)
    live.model.get_submodule("0").requires_grad_(False)
    live.model.get_submodule("1").weight.data = torch.zeros(7, 80)
    assert job_facts(live).largest_param == 560
    live.model.get_submodule("1").get_parameter("weight").requires_grad_(False)
    assert job_facts(live).largest_param == 7


def test_a_mask_of_the_wrong_type_is_refused() -> None:
    kind: type[Job] = type("Wrong", (Counted,), {"counted": lambda _, batch: batch})
    with pytest.raises(JobError, match=r"Wrong\.counted returned a tensor \[4, 10\] of torch\.int64"):
        profile_loop(Loop(build(kind(), device=CPU)), slice_s=0.01, quick=True)


def test_only_installed_packages_are_named() -> None:
    assert installed_packages() == (("torchao",) if find_spec("torchao") else ())
