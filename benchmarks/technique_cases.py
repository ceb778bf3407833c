"""The jobs on which techniques are measured, one line each. A job has only the bottleneck that its technique relieves.

To add a technique, add a line to `CASES`: its name, its settings, and its job as `module:Class` under benchmarks/jobs.
Tables use the first line of the job's docstring as its name. Techniques that no CPU can show go into `NOT_HERE` with the
reason. Techniques with a separate benchmark go into `ELSEWHERE`. A test fails until each technique of the catalogue is in
one of the three.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.record import ROOT
from hasten.core.job import Job
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations import catalogue

PACKAGE = "benchmarks.jobs"


@dataclass(frozen=True)
class Case:
    """A technique on a job made for it.

    Attributes:
        technique: Its name in the catalogue.
        settings: Its settings; omitted ones have their defaults.
        job: `module:Class` under benchmarks/jobs.
        bursts: The savings occur in few updates (a pause, a short batch): the total time counts instead of the typical one.
    """

    technique: str
    settings: Mapping[str, Any]
    job: str
    bursts: bool = field(default=False, kw_only=True)

    @property
    def key(self) -> str:
        """A unique key of the case."""
        chosen = ",".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return f"{self.technique}({chosen}) {self.job}"

    @property
    def target(self) -> str:
        """The job in a form that a trial process can load from any folder."""
        module, _, name = self.job.partition(":")
        return f"{ROOT / 'benchmarks' / 'jobs' / module}.py:{name}"

    def optimization(self) -> Optimization:
        """Return the technique with its settings. Raises PlanError naming the problem."""
        return Plan.from_dict({self.technique: dict(self.settings)}, catalogue(), where="the table").optimizations[0]

    def job_class(self) -> type[Job]:
        """Return the job's class."""
        module, _, name = self.job.partition(":")
        kind: type[Job] = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        return kind

    def job_words(self) -> str:
        """Describe the job in words."""
        return (inspect.getdoc(self.job_class()) or "").partition("\n")[0].rstrip(".")


CASES: tuple[Case, ...] = (
    Case("channels_last", {}, "convolutions:PicturesJob"),
    Case("precision", {"dtype": "bfloat16"}, "convolutions:PicturesJob"),
    Case("channels_last_3d", {}, "convolutions:VolumesJob"),
    Case("module_precision", {"kinds": "linear"}, "arithmetic:ProductsJob"),
    Case("matmul_precision", {"kind": "bf16"}, "arithmetic:ProductsJob"),
    Case("compile", {}, "arithmetic:PointwiseJob"),
    Case("flush_denormals", {}, "arithmetic:FadingJob"),
    Case("dropout_masks", {}, "arithmetic:DroppedJob"),
    Case("fused_optimizer", {}, "parameters:ColumnsJob"),
    Case("foreach_optimizer", {}, "parameters:ColumnsJob"),
    Case("zero_grad_to_none", {}, "parameters:ZeroedColumnsJob"),
    Case("eight_bit_states", {}, "parameters:LargeStatesJob"),
    Case("sample_cache", {}, "reading:DecodedJob"),
    Case("sample_store", {}, "reading:DecodedJob"),
    Case("converted_dataset", {}, "reading:DecodedJob"),
    Case("loader_threads", {"num_threads": 8, "ahead": 16}, "reading:DistantJob"),
    Case("loader_workers", {"num_workers": 4}, "reading:DistantJob"),
    Case("batched_reading", {}, "reading:ChunksJob"),
    Case("metric_reading", {}, "small_steps:OnlineJob"),
    Case("cpu_threads", {"num_threads": 1}, "small_steps:SmallOperatorsJob"),
    Case("garbage_collection", {"mode": "freeze"}, "small_steps:TreesJob", bursts=True),
    Case("garbage_collection", {"mode": "epoch"}, "small_steps:TreesJob", bursts=True),
    Case("drop_last", {}, "small_steps:LastBatchJob", bursts=True),
    Case("merged_microbatches", {"merge": 0}, "small_steps:AccumulatedJob"),
    Case("trim_padding", {"multiple": 32}, "ragged:PaddedToLongestJob"),
    Case("sequence_packing", {}, "ragged:PaddedToLongestJob"),
    Case("length_bucketing", {}, "ragged:PaddedInBatchJob"),
    Case("counted_positions", {}, "ragged:MaskedTokensJob"),
    Case("attention_backend", {"backend": "math"}, "ragged:ShortAttentionJob"),
    Case("attention_backend", {"backend": "flash"}, "ragged:LongAttentionJob"),
    Case("allocator", {"kind": "glibc_tuned"}, "large_tensors:WavesJob"),
    Case("allocator", {"kind": "tcmalloc"}, "large_tensors:WavesJob"),
    Case("allocator", {"kind": "jemalloc"}, "large_tensors:WavesJob"),
    Case("reused_buffers", {}, "large_tensors:RecordingsJob"),
    Case("activation_checkpointing", {}, "large_tensors:DeepJob"),
    Case("activation_checkpointing", {"save_frac": 0.5}, "large_tensors:DeepJob"),
    Case("microbatch", {"parts": 4}, "large_tensors:DeepJob"),
    Case("async_logging", {}, "small_steps:OnlineJob"),
    Case("background_checkpoint", {}, "parameters:CheckpointedJob"),
    Case("validation_batch", {"times": 16}, "small_steps:ValidatedJob"),
    Case("validation_compile", {}, "arithmetic:ValidatedPointwiseJob"),
    Case("one_cycle", {}, "learning:ConstantRateJob"),
    Case("warmup_cosine", {"peak_factor": 2.0}, "learning:ConstantRateJob"),
    Case("optimizer_batch", {"factor": 2.0, "scaling": "linear"}, "learning:ManyUpdatesJob"),
)

ELSEWHERE: Mapping[str, str] = {
    "gradient_buckets": "ranks",
    "gradient_compression": "ranks",
}
"""Technique -> name of its benchmark in `python -m benchmarks`."""

_NEEDS_GPU = "needs an NVIDIA GPU"
NOT_HERE: Mapping[str, str] = {
    "cuda_graphs": f"{_NEEDS_GPU}: CUDA graphs require one",
    "cudnn_benchmark": f"{_NEEDS_GPU}: cuDNN chooses among kernels only there",
    "device_prefetch": f"{_NEEDS_GPU}: only there a copy overlaps with kernels",
    "job_form": "depends on what a job's author wrote: the recipes' forms are measured with the recipes",
    "pinned_memory": f"{_NEEDS_GPU}: page-locked memory speeds up copies to one",
    "tensor_text": "needs a loop that prints tensors, as scripts do: measured with the scripts with a known bottleneck",
    "sharding": "needs several ranks with separate memory: on one machine they share the memory it would save",
}
"""Technique -> why no job on a CPU can show its gain."""


def words_of(row: Mapping[str, Any]) -> str:
    """Describe the job of a recorded row as it is described today; a job that no longer exists, as it was recorded."""
    module, _, name = str(row["job"]).rpartition("/")[2].partition(".py:")
    known = next((case for case in CASES if case.job == f"{module}:{name}"), None)
    return known.job_words() if known else str(row["job_words"])
