"""Test case of cpu_threads."""

from __future__ import annotations

import torch

from hasten.optimizations.cpu_threads import CPUThreads
from tests.optimizations.contract import Attention, Case, facts


def _other() -> int:
    """Return a number of threads that is not active."""
    return 2 if torch.get_num_threads() == 1 else 1


CASE = Case(
    make=lambda: CPUThreads(num_threads=_other()), job=Attention, facts=facts(),
    refused=((facts(job={"device": "cuda"}), "runs on cuda"), (facts(on={"cores": 1, "threads": 1}), "one core")),
)  # fmt: skip
