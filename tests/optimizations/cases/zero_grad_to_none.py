"""Test case of zero_grad_to_none."""

from __future__ import annotations

from hasten.optimizations.zero_grad_to_none import ZeroGradToNone
from tests.optimizations.contract import Case, ImagesZeroed, facts

CASE = Case(
    make=ZeroGradToNone, job=ImagesZeroed, facts=facts(),
    refused=((facts(job={"zero_grad_to_none": True}), "already freed"),),
)  # fmt: skip
