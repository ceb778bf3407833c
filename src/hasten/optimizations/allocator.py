"""Choose how memory is handed out, so that freed blocks are used again instead of being returned and asked for anew.

Relieves:  compute: the operating system clears each page that it hands out, for a large tensor at every operation.
Numerics:  exact: only where tensors lie changes.
Limits:    set before the process starts; freed memory is kept, so the peak may rise; Linux; one allocator in a process.
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import MachineError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, undo_nothing
from hasten.core.system import ALLOCATORS, glibc_version, library_folders, mapping_at, read_allocators

Kind = Literal["glibc_tuned", "tcmalloc", "jemalloc", "cuda_expandable"]

TRIM_THRESHOLD_BYTES = 16 * 2**30
"""Free memory at the end of the heap that glibc keeps: more than a step frees."""
TOP_PAD_BYTES = 128 * 2**20
"""What glibc asks for beyond its need, so that it asks seldom."""
MIN_GLIBC = (2, 33)
"""The first with `mallinfo2`, by which the evidence reads the tunables back."""

_KEEP = {
    "tcmalloc": {"TCMALLOC_RELEASE_RATE": "0"},
    "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}
"""What makes them keep what is freed; by themselves they give it back little by little."""
_BLOCK_BYTES = 64 * 2**20  # glibc never raises its own threshold for mappings beyond 32 MiB (mallopt(3))
_FEW_FAULTS_FRAC = 0.01
_ROUNDS = 10  # crumbs left beside an aligned block keep the next one from its place, till glibc's cache of 7 crumbs is full


@dataclass(frozen=True, kw_only=True)
class Allocator(Optimization):
    """The memory allocator.

    Attributes:
        kind: `glibc_tuned` (the C library's, made to keep what is freed), `tcmalloc` or `jemalloc` (preloaded, where
            installed), or `cuda_expandable` (PyTorch's for CUDA, with segments that grow).
    """

    kind: Kind = "glibc_tuned"

    card: ClassVar[Card] = Card(
        name="allocator",
        summary="memory that was freed is used again, not returned to the system at every operation",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.EXACT,
        seam=Seam.ENVIRONMENT,
        source="GNU C Library manual, Memory Allocation Tunables; PyTorch performance tuning guide, CPU allocators",
        prior=0.3,
        claims=frozenset({"allocator"}),
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.kind not in ("glibc_tuned", *ALLOCATORS, "cuda_expandable"):
            raise ValueError(f"kind must be glibc_tuned, tcmalloc, jemalloc or cuda_expandable, not {self.kind!r}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit on a CPU for what this system has, the C library's own first; on CUDA for growing segments."""
        machine, device = facts.machine, facts.job.device
        if device == "cuda":
            if not machine.torch_build.value.startswith("cuda"):
                return Fit.no(f"growing segments need NVIDIA's memory calls; this PyTorch is {machine.torch_build.value}")
            return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=[cls(kind="cuda_expandable")])
        if device != "cpu":
            return Fit.no(f"no allocator to choose is known for {device}")
        settings = [cls(kind="glibc_tuned")] if glibc_version(machine.c_library.value) >= MIN_GLIBC else []
        installed = {Path(path).name for path in machine.allocators.value}
        preloads: tuple[Kind, ...] = ("tcmalloc", "jemalloc")
        settings += [cls(kind=kind) for kind in preloads if installed & set(ALLOCATORS[kind])]
        if not settings:
            least = ".".join(map(str, MIN_GLIBC))
            return Fit.no(
                f"the C library is {machine.c_library.value or 'not glibc'} (its settings need glibc {least} or later), "
                f"and neither tcmalloc nor jemalloc is installed"
            )
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=settings)

    def environment(self) -> dict[str, str]:
        """The allocator's variables. Raises MachineError where the library to preload is not installed."""
        if self.kind == "glibc_tuned":
            tunables = {"mmap_max": 0, "trim_threshold": TRIM_THRESHOLD_BYTES, "top_pad": TOP_PAD_BYTES}
            return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in tunables.items())}
        if self.kind == "cuda_expandable":
            return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        paths, looked = read_allocators(library_folders(os.environ))
        path = next((path for path in paths if Path(path).name in ALLOCATORS[self.kind]), None)
        if path is None:
            raise MachineError(f"{self.kind} is not installed ({looked}): install it, or take allocator out of the plan.")
        return {"LD_PRELOAD": path, **_KEEP[self.kind]}

    def apply(self, live: LiveJob) -> Undo:
        """Nothing: the process was started under it, and ends with it."""
        return undo_nothing

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The allocator answers for itself: who it is, and that it keeps what is freed."""
        if self.kind == "cuda_expandable":
            segments = torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else []
            growing = sum(bool(segment.get("is_expandable")) for segment in segments)
            return [Check("segments that grow", growing > 0, f"{growing} of {len(segments)} segments")]
        if self.kind == "glibc_tuned":
            return _glibc_checks()
        owner = _owner_of_malloc()
        checks = [Check(f"malloc is that of {self.kind}", Path(owner).name in _real_names(self.kind), owner)]
        if self.kind == "jemalloc":
            decay = _jemalloc_decay_ms()
            checks.append(Check("jemalloc keeps what is freed", decay == -1, f"dirty_decay_ms {decay}"))
        if self.kind == "tcmalloc":
            rate = os.environ.get("TCMALLOC_RELEASE_RATE", "not set")
            checks.append(Check("tcmalloc keeps what is freed", rate == "0", f"TCMALLOC_RELEASE_RATE {rate}"))
        return checks


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc, see mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    )


def _glibc_checks() -> list[Check]:
    """Ask for a large block time and again: it must lie in the heap, and soon on pages that are there already."""
    mapped = "a large block lies in the heap, not in a mapping of its own"
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return [Check(mapped, passed=False, seen="this C library has no mallinfo2 to ask")]
    ask.restype = _Mallinfo2
    own, fewest, pages = 0, _BLOCK_BYTES, _BLOCK_BYTES // resource.getpagesize()
    for _ in range(_ROUNDS):
        before, faults = ask().hblks, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8).fill_(1)
        own = max(own, ask().hblks - before)
        del block
        fewest = min(fewest, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    return [
        Check(mapped, own == 0, f"{own} mappings for it"),
        Check(
            "its pages are kept when it is freed", fewest < _FEW_FAULTS_FRAC * pages, f"{fewest} faults for {pages} pages"
        ),
    ]


def _owner_of_malloc() -> str:
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
    return mapping_at(address or 0) or "unknown"


def _real_names(kind: str) -> set[str]:
    """What the kernel may call the library: by the names it is looked for, and by the file these lead to."""
    paths, _ = read_allocators(library_folders(os.environ))
    own = [Path(path) for path in paths if Path(path).name in ALLOCATORS[kind]]
    return {*ALLOCATORS[kind], *(path.resolve().name for path in own)}


def _jemalloc_decay_ms() -> int | None:
    control = getattr(ctypes.CDLL(None), "mallctl", None)
    if control is None:
        return None
    value, size = ctypes.c_ssize_t(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_ssize_t))
    failed = control(b"opt.dirty_decay_ms", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value
