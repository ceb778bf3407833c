"""Test case of cudnn_benchmark."""

from __future__ import annotations

from hasten.optimizations.cudnn_benchmark import CudnnBenchmark
from tests.optimizations.contract import Case, Images, facts

GPU = {"device": "cuda"}
NVIDIA = {"torch_build": "cuda 12.8"}

CASE = Case(
    make=CudnnBenchmark, job=Images, facts=facts(job=GPU, on=NVIDIA), needs_gpu=True,
    refused=(
        (facts(), "the model runs on cpu"),
        (facts(job=GPU, on={"torch_build": "rocm 6.4"}), "which has no cuDNN"),
        (facts(job={**GPU, "module_counts": {"Linear": 2}}, on=NVIDIA), "no convolution"),
    ),
)  # fmt: skip
