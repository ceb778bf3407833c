"""How huge_pages is tested."""

from __future__ import annotations

from hasten.optimizations.huge_pages import HugePages
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=HugePages, job=Attention, facts=facts(),
    refused=(
        (facts(job={"device": "cuda"}), "the model's memory is on cuda"),
        (facts(on={"c_library": ""}), "the C library is not glibc"),
        (facts(on={"c_library": "glibc 2.34"}), "is glibc 2.34: only glibc 2.35 or later"),
        (facts(on={"huge_pages": "always"}), "without being asked"),
        (facts(on={"huge_pages": "never"}), "no huge pages on request: never"),
        (facts(on={"huge_pages": ""}), "no huge pages on request: test says"),
    ),
)  # fmt: skip
