"""Choose how many operators of a TorchScript model may run side by side.

Relieves:  compute: branches that a model starts with `torch.jit.fork` share one pool of threads, by default one for each
           core that the machine has, which may be more than this process may use.
Numerics:  exact: each operator computes as before.
Limits:    only TorchScript uses this pool: eager operators run one after another, and autograd has threads of its own. Its
           size is set once in a process, before its first use. PyTorch reads no variable for it: HASTEN_INTEROP_THREADS is
           Hasten's own, and says that a process was started for this plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import MachineError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, undo_nothing
from hasten.core.system import started_with

VARIABLE = "HASTEN_INTEROP_THREADS"
SCRIPTED = ("ScriptModule", "RecursiveScriptModule", "TracedModule", "TopLevelTracedModule")


@dataclass(frozen=True, kw_only=True)
class InteropThreads(Optimization):
    """Threads between operators.

    Attributes:
        num_threads: How many, at least 1.
    """

    num_threads: int = 1

    card: ClassVar[Card] = Card(
        name="interop_threads",
        summary="the number of operators that may run side by side",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.EXACT,
        seam=Seam.PROCESS,
        source="PyTorch documentation, CPU threading and TorchScript inference; torch.set_num_interop_threads",
        prior=0.05,
    )

    def __post_init__(self) -> None:
        if self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {self.num_threads}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the model holds TorchScript: nothing else hands operators to this pool."""
        scripted = sum(facts.job.module_counts.get(name, 0) for name in SCRIPTED)
        if not scripted:
            return Fit.no(
                "operators run one after another here: only TorchScript's fork runs some side by side, and the model holds "
                "no TorchScript module"
            )
        if facts.job.device != "cpu":
            return Fit.no(f"the model runs on {facts.job.device}, where operators are queued and not run by these threads")
        counts = dict.fromkeys([facts.machine.cores.value, 1])
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=[cls(num_threads=count) for count in counts])

    def environment(self) -> dict[str, str]:
        """Nothing PyTorch reads: it has a process started for this plan, since the number is set once in each."""
        return {VARIABLE: str(self.num_threads)}

    def apply(self, live: LiveJob) -> Undo:
        """Set the size of the pool; it ends with the process, and cannot be changed before."""
        if torch.get_num_interop_threads() != self.num_threads:
            try:
                torch.set_num_interop_threads(self.num_threads)
            except RuntimeError as error:
                raise MachineError(
                    f"It is too late to set the number of inter-op threads to {self.num_threads}: it is "
                    f"{torch.get_num_interop_threads()}, and something set it or used the threads already. Do neither while "
                    f"the job's module is imported, or take interop_threads out of the plan."
                ) from error
        return undo_nothing

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The process was started for it, and its pool has that size."""
        now, asked = torch.get_num_interop_threads(), started_with().get(VARIABLE, "")
        seen = f"{now}, and the process was started {f'for {asked}' if asked else 'for no number'}"
        return [Check("threads between operators", now == self.num_threads and asked == str(now), seen)]
