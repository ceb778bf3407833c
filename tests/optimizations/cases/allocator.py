"""Test case of allocator."""

from __future__ import annotations

from hasten.optimizations.allocator import Allocator
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=Allocator, job=Attention, facts=facts(on={"allocators": ("/usr/lib/libjemalloc.so.2",)}),
    refused=(
        (facts(job={"device": "mps"}), "no other allocator is known for mps"),
        (facts(job={"device": "cuda"}, on={"torch_build": "rocm 6.4"}), "this PyTorch build is rocm 6.4"),
        (facts(on={"c_library": ""}), "the C library is not glibc .* neither tcmalloc nor jemalloc is installed"),
        (facts(kernel_frac=0.002), "the kernel takes 0.2% of the processor time, .* neither tcmalloc nor jemalloc is"),
        (facts(on={"c_library": "glibc 2.31"}), "the C library is glibc 2.31 .tuning it needs glibc 2.33"),
    ),
)  # fmt: skip
