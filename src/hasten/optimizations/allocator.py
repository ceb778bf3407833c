"""Choose a memory allocator that reuses freed blocks instead of returning them to the operating system.

Relieves:  compute: the kernel zeroes each page that it hands out, and large tensors request new pages at every operation.
Numerics:  exact: only the addresses of tensors change.
Limits:    Linux only. It is set before the process starts, and a process has one allocator. Freed memory is kept, so peak
           memory may rise.
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import MachineError
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, undo_nothing
from hasten.core.source_edits import SourceEdits
from hasten.core.system import ALLOCATORS, glibc_version, library_folders, mapping_at, read_allocators
from hasten.optimizations.parts.kept_memory import TOP_PAD_BYTES, write_kept_memory

if TYPE_CHECKING:
    from hasten.core.facts import Facts
    from hasten.core.live import LiveJob

Kind = Literal["glibc_tuned", "tcmalloc", "jemalloc", "cuda_expandable"]

TRIM_THRESHOLD_BYTES = 16 * 2**30
"""Bytes of free memory that glibc keeps at the end of the heap: more than a step frees."""
LITTLE_FRAC, MUCH_FRAC = 0.015, 0.05
"""Share of processor time in the kernel below which glibc's settings are not tried, and from which a gain is likely."""
LIKELY = 0.6
"""The prior in that case."""
MIN_GLIBC = (2, 33)
"""First glibc version with `mallinfo2`, which the evidence uses to verify the tunables."""

_KEEP = {
    "tcmalloc": {"TCMALLOC_RELEASE_RATE": "0"},
    "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}
"""Variables that make an allocator keep freed memory. By default it returns the memory gradually."""
_BLOCK_BYTES = 64 * 2**20  # glibc never raises its own mmap threshold beyond 32 MiB (mallopt(3))
_FEW_FAULTS_FRAC = 0.01
_ROUNDS = 10  # small remainders of aligned blocks can prevent reuse until glibc's cache of 7 remainders is full


@dataclass(frozen=True, kw_only=True)
class Allocator(Optimization):
    """The memory allocator.

    Attributes:
        kind: `glibc_tuned` (the C library's allocator, tuned to keep freed memory), `tcmalloc` or `jemalloc` (preloaded, if
            installed), or `cuda_expandable` (PyTorch's CUDA allocator with expandable segments).
    """

    kind: Kind = "glibc_tuned"

    card: ClassVar[Card] = Card(
        name="allocator",
        summary="reuse freed memory instead of returning it to the operating system at every operation",
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
        """Applies on a CPU to each allocator of this system, the C library's first, and on CUDA to expandable segments."""
        machine, device = facts.machine, facts.job.device
        if device == "cuda":
            if not machine.torch_build.value.startswith("cuda"):
                return Fit.no(f"expandable segments need NVIDIA CUDA; this PyTorch build is {machine.torch_build.value}")
            return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=[cls(kind="cuda_expandable")])
        if device != "cpu":
            return Fit.no(f"no other allocator is known for {device}")
        kernel = facts.kernel_frac
        tunable = glibc_version(machine.c_library.value) >= MIN_GLIBC
        settings = [cls(kind="glibc_tuned")] if tunable and (kernel is None or kernel >= LITTLE_FRAC) else []
        installed = {Path(path).name for path in machine.allocators.value}
        preloads: tuple[Kind, ...] = ("tcmalloc", "jemalloc")
        settings += [cls(kind=kind) for kind in preloads if installed & set(ALLOCATORS[kind])]
        if not settings and tunable:
            why = f"the kernel takes {kernel:.1%} of the processor time, so keeping freed memory would save nothing"
            return Fit.no(f"{why}, and neither tcmalloc nor jemalloc is installed")
        if not settings:
            least = ".".join(map(str, MIN_GLIBC))
            return Fit.no(
                f"the C library is {machine.c_library.value or 'not glibc'} (tuning it needs glibc {least} or later), "
                f"and neither tcmalloc nor jemalloc is installed"
            )
        likely = kernel is not None and kernel >= MUCH_FRAC
        return Fit.yes(max_gain_frac=facts.compute_frac * 0.5, settings=settings, prior=LIKELY if likely else None)

    def environment(self) -> dict[str, str]:
        """Return the allocator's variables. Raises MachineError if the library to preload is not installed."""
        if self.kind == "glibc_tuned":
            tunables = {"mmap_max": 0, "trim_threshold": TRIM_THRESHOLD_BYTES, "top_pad": TOP_PAD_BYTES}
            return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in tunables.items())}
        if self.kind == "cuda_expandable":
            return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        paths, searched = read_allocators(library_folders(os.environ))
        path = next((path for path in paths if Path(path).name in ALLOCATORS[self.kind]), None)
        if path is None:
            raise MachineError(f"{self.kind} is not installed ({searched}): install it, or remove allocator from the plan.")
        return {"LD_PRELOAD": path, **_KEEP[self.kind]}

    def apply(self, live: LiveJob) -> Undo:
        """Do nothing: the process was started with the allocator."""
        return undo_nothing

    def write_patch(self, script: SourceEdits) -> str:
        """Let the script tune the C library's allocator itself. Others must be loaded before Python starts."""
        if self.kind != "glibc_tuned":
            return super().write_patch(script)
        return write_kept_memory(script)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check which allocator is active, and that it keeps freed memory."""
        if self.kind == "cuda_expandable":
            import torch

            segments = torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else []
            expandable = sum(bool(segment.get("is_expandable")) for segment in segments)
            return [Check("expandable segments", expandable > 0, f"{expandable} of {len(segments)} segments")]
        if self.kind == "glibc_tuned":
            return _glibc_checks()
        owner = _owner_of_malloc()
        checks = [Check(f"malloc comes from {self.kind}", Path(owner).name in _real_names(self.kind), owner)]
        if self.kind == "jemalloc":
            decay = _jemalloc_decay_ms()
            checks.append(Check("jemalloc keeps freed memory", decay == -1, f"dirty_decay_ms {decay}"))
        if self.kind == "tcmalloc":
            rate = os.environ.get("TCMALLOC_RELEASE_RATE", "not set")
            checks.append(Check("tcmalloc keeps freed memory", rate == "0", f"TCMALLOC_RELEASE_RATE {rate}"))
        return checks


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`, see mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    )


def _glibc_checks() -> list[Check]:
    """Allocate a large block several times. It must be in the heap, and soon in pages that are already mapped."""
    import torch

    in_heap = "a large block is in the heap, not in a separate mapping"
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return [Check(in_heap, passed=False, seen="this C library has no mallinfo2")]
    mallinfo.restype = _Mallinfo2
    mappings, fewest, pages = 0, _BLOCK_BYTES, _BLOCK_BYTES // resource.getpagesize()
    for _ in range(_ROUNDS):
        before, faults = mallinfo().hblks, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8).fill_(1)
        mappings = max(mappings, mallinfo().hblks - before)
        del block
        fewest = min(fewest, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    return [
        Check(in_heap, mappings == 0, f"{mappings} mappings for it"),
        Check(
            "its pages are kept when it is freed",
            fewest < _FEW_FAULTS_FRAC * pages,
            f"{fewest} page faults for {pages} pages",
        ),
    ]


def _owner_of_malloc() -> str:
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
    return mapping_at(address or 0) or "unknown"


def _real_names(kind: str) -> set[str]:
    """Return the names under which the kernel may list the library: its known names and the files they resolve to."""
    paths, _ = read_allocators(library_folders(os.environ))
    installed = [Path(path) for path in paths if Path(path).name in ALLOCATORS[kind]]
    return {*ALLOCATORS[kind], *(path.resolve().name for path in installed)}


def _jemalloc_decay_ms() -> int | None:
    control = getattr(ctypes.CDLL(None), "mallctl", None)
    if control is None:
        return None
    value, size = ctypes.c_ssize_t(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_ssize_t))
    failed = control(b"opt.dirty_decay_ms", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value
