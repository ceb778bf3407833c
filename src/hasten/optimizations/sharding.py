"""Keep parameters, gradients and optimizer states in shards, one a rank (FSDP2).

Relieves:  memory: each rank keeps its part of them, and the whole parameters of one block at a time. It costs time where
           the network is slow: parameters travel in the forward and in the backward pass.
Numerics:  rounding: gradients are summed in another order; with `param_dtype` blocks compute in bfloat16.
Limits:    several ranks, and a sample for each of them in a batch; `Job.loss` must call the model itself and not its parts;
           no gradient scaler (float16). Each pass of an accumulation window sums its gradients.
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
    """torch's `fully_shard`, of each repeated block and of the root.

    Attributes:
        param_dtype: What the blocks compute in: `same` as their parameters, or `bfloat16`; gradients are then summed in
            float32, and the optimizer keeps its own numbers.
    """

    param_dtype: Literal["same", "bfloat16"] = "same"

    card: ClassVar[Card] = Card(
        name="sharding",
        summary="parameters, gradients and optimizer states in shards over the ranks (FSDP2)",
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
        """Fit for several ranks with blocks that repeat; it never saves time by itself."""
        if refusal := why_no_sum(facts, "flat"):
            return Fit.no(refusal)
        if facts.job.repeated_blocks < 2:
            return Fit.no("the model has no list of like blocks: it would be gathered as a whole, and nothing saved")
        norms = any("BatchNorm" in name for name in facts.job.module_counts)
        half = facts.machine.bfloat16.value and not norms and facts.job.param_dtypes == ("float32",)
        return Fit.yes(max_gain_frac=0.0, settings=[cls(), cls(param_dtype="bfloat16")] if half else [cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Put the model into shards."""
        check_ranks(live, self.card.name)
        return shard_model(live, param_dtype=None if self.param_dtype == "same" else torch.bfloat16)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Passes ran in shards, and this rank holds its part of the parameters only."""
        passes = int(trace.counters.get("passes_in_shards", 0))
        held, total = local_bytes(live.model)
        return [
            Check("passes in shards", passes > 0, f"{passes} backward passes"),
            Check("this rank holds its part", held < total, f"{held} of {total} bytes"),
        ]
