"""Keep each thread of an operator on a core of its own.

Relieves:  compute: threads that wander between cores lose their caches, and on large machines their near memory.
Numerics:  exact: the same threads do the same work.
Limits:    set before the process starts; Linux with OpenMP; one training process on the machine, without loader
           workers: they are made from the main thread and would all share its one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, undo_nothing
from hasten.core.system import allowed_cores

_WORK = 2**18  # elements: several times what PyTorch gives one thread at least (at::internal::GRAIN_SIZE)


@dataclass(frozen=True, kw_only=True)
class ThreadPinning(Optimization):
    """OpenMP threads bound to cores.

    Attributes:
        bind: `spread` takes cores as far apart as can be (of a core that runs two threads, one), `close` neighbours.
    """

    bind: Literal["spread", "close"] = "spread"

    card: ClassVar[Card] = Card(
        name="thread_pinning",
        summary="each thread of an operator stays on a core of its own",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.EXACT,
        seam=Seam.ENVIRONMENT,
        source="OpenMP specification 5.2, OMP_PROC_BIND and OMP_PLACES; PyTorch performance tuning guide, CPU",
        prior=0.1,
        conflicts=("loader_workers",),
    )

    def __post_init__(self) -> None:
        if self.bind not in ("spread", "close"):
            raise ValueError(f"bind must be spread or close, not {self.bind!r}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CPU of several cores that this process has for itself."""
        cores, job = facts.machine.cores, facts.job
        if job.device != "cpu":
            return Fit.no(f"the model runs on {job.device}")
        if not facts.machine.openmp.value:
            return Fit.no(f"there is no OpenMP to bind threads: {facts.machine.openmp.reason}")
        if min(cores.value, facts.operator_threads) < 2:
            return Fit.no(f"there is nothing to keep apart: {cores.value} core(s), {facts.operator_threads} thread(s)")
        if "local ranks" in cores.reason:
            return Fit.no("several ranks share this machine, and each would bind its threads to the same cores")
        if job.num_workers:
            return Fit.no(f"{job.num_workers} loader workers would all share the main thread's one core")
        settings = [cls(bind="spread"), cls(bind="close")] if cores.value > 2 else [cls(bind="spread")]
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=settings)

    def environment(self) -> dict[str, str]:
        """Standard OpenMP variables: GNU's, Intel's and LLVM's libraries read them alike."""
        return {"OMP_PROC_BIND": self.bind, "OMP_PLACES": "threads"}

    def apply(self, live: LiveJob) -> Undo:
        """Nothing: the process was started under it, and ends with it."""
        return undo_nothing

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The kernel allows as many threads as an operator uses one core each, every one another."""
        torch.ones(_WORK * torch.get_num_threads()).exp()  # so that all of them are there
        wanted = torch.get_num_threads()
        alone = {cores for cores in allowed_cores().values() if cores.isdecimal()}
        return [Check("threads with a core of their own", len(alone) >= wanted > 1, f"{len(alone)} of {wanted}")]
