"""Set the number of threads that an operator may use.

Relieves:  compute: for small operators, synchronising threads costs more than it saves. Busy cores need fewer threads.
Numerics:  rounding: sums are split differently.
Limits:    CPU training. It affects the whole process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits

CROWDED_FRAC = 0.75
"""Largest share of the arithmetic that fewer threads are assumed to save."""
LIKELY = 0.5
"""Prior probability of a gain from one thread per core, if a few updates were faster with them."""


@dataclass(frozen=True, kw_only=True)
class CPUThreads(Optimization):
    """Number of threads per operator.

    Attributes:
        num_threads: Number of threads, at least 1.
    """

    num_threads: int = 1

    card: ClassVar[Card] = Card(
        name="cpu_threads",
        summary="set the number of threads that an operator may use",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, CPU threading and TorchScript inference",
        hoped_gain=(
            "an update 8x faster with 1 thread than with 48, for a small network on a 96-core server "
            "(https://github.com/callummcdougall/ARENA_3.0/pull/397)"
        ),
        prior=0.1,
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {self.num_threads}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies on a CPU. The candidates are one thread per core, one per two cores, and a single thread."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}")
        cores, now = facts.machine.cores.value, facts.operator_threads
        counts = [count for count in dict.fromkeys([cores, cores // 2, 1]) if count >= 1 and count != now]
        if not counts:
            return Fit.no(f"the machine has one core, and the job uses {now} thread")
        settings = [cls(num_threads=count) for count in counts]
        if now != cores and "threads" in facts.form_gains:
            return Fit.yes(max_gain_frac=facts.form_frac("threads", 1.0), settings=settings, prior=LIKELY)
        # More threads can at best divide the work. The cost of too many, which wait for one another, has no such bound.
        share = 1.0 - now / cores if now < cores else CROWDED_FRAC
        return Fit.yes(max_gain_frac=facts.compute_frac * share, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Set the number of threads of the process."""
        old = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        return lambda: torch.set_num_threads(old)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check the number of threads of the process."""
        now = torch.get_num_threads()
        return [Check("threads per operator", now == self.num_threads, str(now))]

    def write_patch(self, script: SourceEdits) -> str:
        """Set the number of threads once."""
        return script.call_once("torch.set_num_threads", str(self.num_threads))
