"""Test case of compile."""

from __future__ import annotations

from hasten.optimizations.compile import Compile
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=Compile, job=Attention, facts=facts(),
    refused=((facts(on={"cxx_compiler": None}), "needs a C.. compiler here: test says None"),),
)  # fmt: skip
