"""Choose how many threads an operator may use.

Relieves:  compute: small operators lose more to thread hand-over than they gain; busy cores want fewer threads.
Numerics:  rounding: sums are split otherwise.
Limits:    CPU training; takes effect for the whole process.
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
"""The share of the arithmetic that fewer threads are thought to save at most."""
LIKELY = 0.5
"""How likely as many threads as cores pay, where a few updates were faster with them."""


@dataclass(frozen=True, kw_only=True)
class CPUThreads(Optimization):
    """Threads within an operator.

    Attributes:
        num_threads: How many, at least 1.
    """

    num_threads: int = 1

    card: ClassVar[Card] = Card(
        name="cpu_threads",
        summary="the number of threads an operator may use",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.PROCESS,
        source="PyTorch documentation, CPU threading and TorchScript inference",
        hoped_gain=(
            "an update 8x faster with 1 thread than with 48, a small network on a server of 96 cores "
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
        """Fit on a CPU: all cores where they are not used, else half of them and one."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}")
        cores, now = facts.machine.cores.value, facts.operator_threads
        counts = [count for count in dict.fromkeys([cores, cores // 2, 1]) if count >= 1 and count != now]
        if not counts:
            return Fit.no(f"there is one core and {now} thread")
        settings = [cls(num_threads=count) for count in counts]
        if now != cores and "threads" in facts.form_gains:
            return Fit.yes(max_gain_frac=facts.form_frac("threads", 1.0), settings=settings, prior=LIKELY)
        # More threads share the work out at best; what too many of them cost by waiting for one another has no such bound.
        share = 1.0 - now / cores if now < cores else CROWDED_FRAC
        return Fit.yes(max_gain_frac=facts.compute_frac * share, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Set the process's thread count."""
        old = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        return lambda: torch.set_num_threads(old)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The process has that many threads."""
        now = torch.get_num_threads()
        return [Check("threads within an operator", now == self.num_threads, str(now))]

    def write_patch(self, script: SourceEdits) -> str:
        """Set the number of threads once."""
        return script.call_once("torch.set_num_threads", str(self.num_threads))
