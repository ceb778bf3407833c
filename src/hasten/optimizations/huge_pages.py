"""Let the C library, or jemalloc in its place, ask for huge pages for the memory it hands out.

Relieves:  compute: one page of 2 MiB instead of 512 of 4 KiB: fewer faults, fewer misses when addresses are looked up.
Numerics:  exact: only where tensors lie changes.
Limits:    set before the process starts; glibc 2.35 or later; a Linux kernel that gives them on request (`madvise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, undo_nothing
from hasten.core.system import flags_at, glibc_version

MIN_GLIBC = (2, 35)
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class HugePages(Optimization):
    """Transparent huge pages for malloc."""

    card: ClassVar[Card] = Card(
        name="huge_pages",
        summary="large pages for the memory that tensors lie in",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.EXACT,
        seam=Seam.ENVIRONMENT,
        source="GNU C Library manual, Memory Allocation Tunables, glibc.malloc.hugetlb; jemalloc manual, opt.thp",
        pays_with=("allocator",),
        prior=0.2,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CPU where the kernel gives huge pages on request, and the C library knows how to ask."""
        if facts.job.device != "cpu":
            return Fit.no(f"the model's memory is on {facts.job.device}")
        library, mode = facts.machine.c_library.value, facts.machine.huge_pages
        if glibc_version(library) < MIN_GLIBC:
            least = ".".join(map(str, MIN_GLIBC))
            return Fit.no(f"the C library is {library or 'not glibc'}: only glibc {least} or later asks for huge pages")
        if mode.value == "always":
            return Fit.no(f"the kernel gives huge pages without being asked ({mode.reason})")
        if mode.value != "madvise":
            return Fit.no(f"the kernel gives no huge pages on request: {mode.value or mode.reason}")
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=[cls()])

    def environment(self) -> dict[str, str]:
        """The tunable of the C library, and that of jemalloc, which only a process that preloads it reads."""
        return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_CONF": "thp:always"}

    def apply(self, live: LiveJob) -> Undo:
        """Nothing: the process was started under it, and ends with it."""
        return undo_nothing

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The kernel notes that huge pages were asked for where a large tensor lies."""
        block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8).fill_(1)
        flags = flags_at(block.data_ptr() + _BLOCK_BYTES // 2)
        return [Check("huge pages were asked for", "hg" in flags, " ".join(sorted(flags)) or "the kernel shows no flags")]
