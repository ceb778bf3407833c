"""Test alternative forms of a job, which must be the same job."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hasten
from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.optimizations.job_form import JobForm
from hasten.profile.probes import job_facts
from hasten.train.build import build
from hasten.train.validate import HeldOut
from tests.optimizations.cases.job_form import Mirrored, MirroredTogether, Offering
from tests.optimizations.contract import CPU, make_loop, run


def test_the_other_form_is_trained_from_its_data_on() -> None:
    loop = make_loop(Offering(), JobForm(form="MirroredTogether"))
    assert type(loop.live.job) is MirroredTogether
    assert type(loop.live.as_written) is Offering
    assert loop.live.zero_grad_to_none is False
    loop.run(9)
    assert loop.losses == run(MirroredTogether(), 9) == run(Offering(), 9)


def test_a_form_at_work_offers_the_others_and_not_itself() -> None:
    both: type[Job] = type("Both", (Offering,), {"forms": (Mirrored, MirroredTogether)})
    assert job_facts(build(both(), device=CPU)).forms == ("Mirrored", "MirroredTogether")
    plan = Plan.from_dict({"job_form": {"form": "Mirrored"}}, catalogue())
    assert job_facts(build(both(), plan, device=CPU)).forms == ()
    heir: type[Job] = type("Heir", (both,), {})
    both.forms = (heir,)
    plan = Plan.from_dict({"job_form": {"form": "Heir"}}, catalogue())
    assert job_facts(build(both(), plan, device=CPU)).forms == ()


def test_held_out_quality_is_measured_by_the_job_as_it_was_written() -> None:
    class Flattering(MirroredTogether):
        def metric(self, model: nn.Module, batch: Any) -> dict[str, hasten.Mean]:
            return {"accuracy": hasten.Mean(1.0, 1)}

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            return 0.0 * nn.functional.cross_entropy(model(batch[0]), batch[1])

    job: type[Job] = type("Strict", (Mirrored,), {
        "forms": (Flattering,), "metric": lambda *_: {"accuracy": hasten.Mean(0.25, 1)}
    })  # fmt: skip
    live = build(job(), Plan.from_dict({"job_form": {"form": "Flattering"}}, catalogue()), device=CPU)
    assert HeldOut(live).measure() == {"loss": 0.0, "accuracy": 1.0}
    plain = HeldOut(live, as_written=True).measure(plain=True)
    assert plain["accuracy"] == 0.25
    assert plain["loss"] == pytest.approx(HeldOut(build(job(), device=CPU)).measure()["loss"])
    assert type(live.job) is Flattering


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("Missing", "has no form 'Missing'. Its forms: MirroredTogether"),
        ("Bigger", "differ: batch_size is 4 and 8"),
    ],
)
def test_an_invalid_form_is_refused(form: str, message: str) -> None:
    bigger: type[Job] = type("Bigger", (MirroredTogether,), {"batch_size": 8})
    forms = (MirroredTogether, bigger) if form == "Bigger" else (MirroredTogether,)
    job: type[Job] = type("Asked", (Offering,), {"forms": forms})
    with pytest.raises(JobError, match=message):
        build(job(), Plan.from_dict({"job_form": {"form": form}}, catalogue()), device=CPU)


@pytest.mark.parametrize("forms", [Mirrored, [Mirrored], (3,), ("Mirrored",)])
def test_forms_are_classes_of_jobs(forms: Any) -> None:
    job: type[Job] = type("Odd", (Offering,), {"forms": forms})
    with pytest.raises(JobError, match="forms must be a tuple of job classes"):
        build(job(), device=CPU)
