"""Test case of cuda_graphs."""

from __future__ import annotations

from hasten.optimizations.cuda_graphs import CudaGraphs
from tests.optimizations.contract import Case, Images, facts

GPU = {"device": "cuda", "zero_grad_to_none": True}
NVIDIA = {"torch_build": "cuda 12.8"}

CASE = Case(
    make=CudaGraphs, job=Images, facts=facts(job=GPU, on=NVIDIA), needs_gpu=True,
    refused=(
        (facts(), "the model runs on cpu"),
        (facts(job=GPU, on={"torch_build": "rocm 6.4"}), "this PyTorch build is rocm 6.4"),
        (facts(job={**GPU, "accumulation": 4}, on=NVIDIA), "accumulates the gradients of 4 batches"),
        (facts(job={**GPU, "zero_grad_to_none": False}, on=NVIDIA), "use zero_grad_to_none first"),
    ),
)  # fmt: skip
