"""Divide parameters, gradients and optimizer state into shards, one per rank (FSDP2).

Relieves:  memory: each rank stores its own shard, and the full parameters of one block at a time. It costs time on slow
           networks, because parameters are sent in the forward and in the backward pass.
Numerics:  rounding: gradients are summed in a different order. With `param_dtype`, blocks compute in bfloat16.
Limits:    several ranks, and batches with at least one sample per rank. `Job.loss` must call the model itself, not its
           parts. No gradient scaler (float16). Each pass of an accumulation window sums its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.optimizations.parts.buckets import check_ranks, why_no_sum
from hasten.optimizations.parts.shards import local_bytes, shard_model


@dataclass(frozen=True, kw_only=True)
class Sharding(Optimization):
    """torch's `fully_shard`, applied to each repeated block and to the root module.

    Attributes:
        param_dtype: Dtype in which blocks compute: `same` as their parameters, or `bfloat16`. With `bfloat16`, gradients are
            summed in float32, and the optimizer keeps its dtype.
    """

    param_dtype: Literal["same", "bfloat16"] = "same"

    card: ClassVar[Card] = Card(
        name="sharding",
        summary="divide parameters, gradients and optimizer state into shards over the ranks (FSDP2)",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.ROUNDING,
        seam=Seam.MODEL,
        source="Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel; torch fully_shard",
        memory_technique=True,
        saves_memory=True,
        claims=frozenset({"gradient sum"}),
        conflicts=("microbatch", "cuda_graphs"),
        script_advice="the script wraps its model itself: torch.distributed.fsdp.fully_shard(model)",
        left_to={
            "lightning": 'Trainer(strategy="fsdp")',
            "transformers": "TrainingArguments(fsdp=...)",
        },
    )

    def __post_init__(self) -> None:
        if self.param_dtype not in ("same", "bfloat16"):
            raise ValueError(f"param_dtype must be same or bfloat16, not {self.param_dtype!r}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to several ranks and models with repeated blocks. On its own it never saves time."""
        if refusal := why_no_sum(facts, "flat"):
            return Fit.no(refusal)
        if facts.job.repeated_blocks < 2:
            return Fit.no("the model has no list of repeated blocks, so the whole model would be gathered at once")
        norms = any("BatchNorm" in name for name in facts.job.module_counts)
        half = facts.machine.bfloat16.value and not norms and facts.job.param_dtypes == ("float32",)
        return Fit.yes(max_gain_frac=0.0, settings=[cls(), cls(param_dtype="bfloat16")] if half else [cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Shard the model."""
        check_ranks(live, self.card.name)
        return shard_model(live, param_dtype=None if self.param_dtype == "same" else torch.bfloat16)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that passes ran with shards, and that this rank stores only its own shard of the parameters."""
        passes = int(trace.counters.get("passes_in_shards", 0))
        local, total = local_bytes(live.model)
        return [
            Check("passes with sharded parameters", passes > 0, f"{passes} backward passes"),
            Check("this rank stores only its shard", local < total, f"{local} of {total} bytes"),
        ]
