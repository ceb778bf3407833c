"""The docstring of `hasten.Job` names everything that a job can define, and its examples are jobs that train."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import pytest
import torch

import hasten
from hasten.core.job import counted_mask
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

DOCSTRING = inspect.getdoc(hasten.Job) or ""
PARTS = sorted(name for name in vars(hasten.Job) if not name.startswith("_") and name != "overrides")
TYPES = ("Gathered", "Loss", "Mean", "Packing", "Quality", "packed_attention")


def example(name: str) -> Any:
    """Run the examples in order, and return the job class of this name."""
    namespace: dict[str, Any] = {"__name__": __name__}
    for block in re.findall(r":\n\n((?:    .*\n|\n)+)", DOCSTRING):
        exec(textwrap.dedent(block), namespace)  # noqa: S102 - the text of the docstring
    return namespace[name]


def test_the_docstring_shows_every_part_of_a_job() -> None:
    attributes = re.findall(r"^    (\w+): ", DOCSTRING.partition("Attributes:\n")[2], flags=re.MULTILINE)
    assert sorted(attributes) == sorted(name for name in PARTS if name in hasten.Job.__annotations__)
    shown = set(re.findall(r"def (\w+)\(self|^ *(\w+) = |(?<!\w)hasten\.(\w+)", DOCSTRING, flags=re.MULTILINE))
    written = {name for names in shown for name in names}
    assert {name for name in PARTS if name not in attributes} <= written
    assert set(TYPES) <= written


@pytest.mark.parametrize("name", ["MyJob", "TextJob", "ThreadedTextJob"])
def test_an_example_trains(name: str) -> None:
    loop = Loop(build(example(name)(), device=torch.device("cpu")))
    loop.run(3)
    assert len(loop.losses) == 3
    metrics = HeldOut(loop.live).measure()
    assert loop.live.job.quality is not None
    assert loop.live.job.quality.metric in metrics
    if "bits" in metrics:
        assert metrics["bits"] == pytest.approx(metrics["loss"] / 0.6931, rel=1e-3)
        assert loop.live.model.get_buffer("average").abs().sum() > 0


def test_the_promises_of_an_example_hold() -> None:
    job = example("TextJob")()
    samples = [job.deterministic_transform(text) for text in ("one", "two times", "three")]
    padded, packed = (job.device_transform(collate(samples)) for collate in (job.collate, job.collate_packed))
    assert padded["inputs"].shape == (3, max(map(job.length, samples)))
    assert packed["inputs"].shape == (1, sum(map(job.length, samples)))
    model = job.model()
    one, other = job.loss(model, padded), job.loss(model, packed)
    torch.testing.assert_close(one.total, other.total)
    assert int(one.weight) == int(other.weight) == int(counted_mask(job, padded).sum())
    assert model.get_submodule(job.output_layer) is model.output
    assert [form.__name__ for form in job.forms] == ["ThreadedTextJob"]
