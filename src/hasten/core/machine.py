"""Read this machine's capabilities, each value with its reason.

A container sees all cores of its host but may be allowed few of them. A CUDA device may emulate a type it claims to support.
A node may be shared by several local ranks. A reason makes each value possible to check. Nothing here runs at import. On a
system without /proc, the reason names the source used instead.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

from hasten.core.openmp import read_openmp
from hasten.core.system import library_folders, read_allocators, read_c_library
from hasten.core.system import read_text as _read
from hasten.core.system import sysctl as _sysctl

T = TypeVar("T")

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  only its free space is read

_CPU_FLAGS = frozenset(
    {"avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_fp16", "amx_int8", "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2"}
)
_NATIVE_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
_NATIVE_FP16 = ("amx_fp16", "avx512_fp16", "asimdhp")
_FP16_CUDA_MAJOR = 7
_GIB = 1024**3


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A value and the reason for it."""

    value: T
    reason: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of this machine that one training process can use.

    Attributes:
        cores: CPU cores available to this process; at least 1.
        memory_limit_bytes: Main memory available to this process and its workers together.
        cpu_model: The processor's model name.
        cpu_flags: The processor's instruction sets that matter for training.
        accelerators: Names of the accelerators, in device order.
        bfloat16: Whether the training device supports bfloat16 natively, without emulation.
        float16: Whether the training device supports float16 natively, without emulation.
        torch_version: The value of `torch.__version__`.
        torch_build: The build of torch, e.g. `cpu`, `cuda 12.8`, `rocm 6.4`.
        threads: Threads that torch uses within an operator.
        cxx_compiler: Path of the C++ compiler that `torch.compile` would use; None if it would find none.
        shared_memory_bytes: Free shared memory, which loader workers use to pass batches.
        allocators: Paths of the memory allocators that could be preloaded.
        c_library: Version of glibc, e.g. `glibc 2.36`; empty for any other C library.
        openmp: Path of torch's OpenMP library; empty if none was found.
        python_version: Version of Python, e.g. `3.11.7`.
        system: Operating system and instruction set, e.g. `Linux x86_64`.
    """

    cores: Reading[int]
    memory_limit_bytes: Reading[int]
    cpu_model: Reading[str]
    cpu_flags: frozenset[str]
    accelerators: Reading[tuple[str, ...]]
    bfloat16: Reading[bool]
    float16: Reading[bool]
    torch_version: str
    torch_build: Reading[str]
    threads: Reading[int]
    cxx_compiler: Reading[str | None]
    shared_memory_bytes: Reading[int]
    allocators: Reading[tuple[str, ...]]
    c_library: Reading[str]
    openmp: Reading[str]
    python_version: str
    system: str

    def summary(self) -> str:
        """Return the machine in one line: cores, processor, accelerators, memory, torch."""
        cores = self.cores.value
        parts = [f"{cores} core{'' if cores == 1 else 's'}", self.cpu_model.value]
        names = self.accelerators.value
        parts += [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
        parts += [f"{self.memory_limit_bytes.value / _GIB:.1f} GiB", f"torch {self.torch_version}"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the machine as JSON-compatible data; each reading as `{"value": ..., "reason": ...}`."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    def fingerprint(self) -> str:
        """Return 12 hexadecimal digits that are equal for machines with comparable timings."""
        parts = [
            self.cpu_model.value,
            self.cores.value,
            sorted(self.cpu_flags),
            list(self.accelerators.value),
            self.torch_version,
        ]
        return hashlib.sha256(json.dumps(parts).encode("utf-8")).hexdigest()[:12]


def read_machine(
    *,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
    shared_memory: Path = SHARED_MEMORY,
    environ: Mapping[str, str] | None = None,
) -> Machine:
    """Read the capabilities of this machine. This initialises the accelerator's driver, so call it after any fork.

    Args:
        proc: Mount point of procfs.
        cgroup: Mount point of the control groups.
        shared_memory: Mount point of shared memory.
        environ: The environment; by default that of this process.
    """
    environ = os.environ if environ is None else environ
    flags = read_cpu_flags(proc)
    return Machine(
        cores=read_cores(proc=proc, cgroup=cgroup, environ=environ),
        memory_limit_bytes=read_memory_limit(proc=proc, cgroup=cgroup),
        cpu_model=_cpu_model(proc),
        cpu_flags=flags,
        accelerators=_accelerators(),
        bfloat16=_bfloat16(flags),
        float16=_float16(flags),
        torch_version=str(torch.__version__),
        torch_build=_torch_build(),
        threads=_threads(environ),
        cxx_compiler=read_cxx_compiler(environ),
        shared_memory_bytes=_shared_memory(shared_memory),
        allocators=Reading(*read_allocators(library_folders(environ))),
        c_library=Reading(*read_c_library()),
        openmp=Reading(*read_openmp()),
        python_version=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


# Cores and memory.


def read_cores(
    *,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
    environ: Mapping[str, str],
    affinity: int | None = None,
) -> Reading[int]:
    """Return the CPU cores available to this process: the minimum of affinity and quota, divided by local ranks, at least 1.

    A quota of 1.5 cores gives 1, because a second busy thread would be throttled.

    Args:
        proc: Mount point of procfs.
        cgroup: Mount point of the control groups.
        environ: Read for LOCAL_WORLD_SIZE, which torchrun sets.
        affinity: Cores the scheduler allows; by default read from the system.
    """
    allowed, reason = _affinity() if affinity is None else (affinity, f"{affinity} cores by affinity")
    cores: float = allowed
    quota = _cpu_quota(proc, cgroup)
    if quota is not None and quota[0] < cores:
        cores, reason = quota[0], f"{quota[1]}, less than {reason}"
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    ranks = int(text) if text.isdecimal() and int(text) > 0 else 1
    if ranks > 1:
        reason += f"; shared by {ranks} local ranks"
    return Reading(max(1, math.floor(cores / ranks)), reason)


def read_memory_limit(*, proc: Path = PROC, cgroup: Path = CGROUP) -> Reading[int]:
    """Return the bytes of main memory for this process: the minimum of RAM, control group limits and RLIMIT_AS."""
    limits = [_physical_memory(proc)]
    for folder in _cgroup_folders(proc, cgroup, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdecimal() and int(text) > 0:
                limits.append((int(text), f"control group limit in {folder / name}"))
    if resource is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft not in (resource.RLIM_INFINITY, -1):
            limits.append((soft, "address space limit of this process (ulimit -v)"))
    least, reason = min((limit for limit in limits if limit[0] > 0), default=(0, "unknown: this system does not report it"))
    return Reading(least, reason)


def read_memory_room(*, proc: Path = PROC, cgroup: Path = CGROUP) -> list[int]:
    """Return the bytes that each control group of this process has left under its limit. Cached files count as free."""
    rooms = []
    for folder in _cgroup_folders(proc, cgroup, "memory"):
        for most, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read(folder / most).strip(), _read(folder / used).strip()
            if limit.isdecimal() and usage.isdecimal():
                pages = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
                rooms.append(max(int(limit) - int(usage) + int(pages.get(cached, 0)), 0))
    return rooms


def _affinity() -> tuple[int, str]:
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
        return count, f"{count} cores by affinity"
    count = os.cpu_count() or 1
    return count, f"{count} cores in this machine ({platform.system()} does not report CPU affinity)"


def _cpu_quota(proc: Path, cgroup: Path) -> tuple[float, str] | None:
    """Return the lowest quota in cores, with its reason, of this process's control group and its parent groups."""
    quotas: list[tuple[float, str]] = []
    for folder in _cgroup_folders(proc, cgroup, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        source = folder / "cpu.max"
        if not quota:
            source = folder / "cpu.cfs_quota_us"
            quota, period = _read(source).strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            cores = int(quota) / int(period)
            quotas.append((cores, f"quota of {cores:g} cores in {source}"))
    return min(quotas, default=None)


def _cgroup_folders(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Yield the folders that may limit this process: its own control group first, then each parent up to the root.

    A line of /proc/self/cgroup is `0::/path` for version 2 and `4:memory:/path` for version 1. In a container, the path may
    be that of the host and not exist. Only the root folder exists then.
    """
    for line in _read(proc / "self" / "cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = [cgroup, cgroup / "unified"]
        elif controller in controllers.split(","):
            roots = [cgroup / controllers, cgroup / controller]
        else:
            continue
        inner = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for root in roots:
            for group in (inner, *inner.parents):
                if (root / group).is_dir():
                    yield root / group


def _physical_memory(proc: Path) -> tuple[int, str]:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024, "physical memory"
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), f"physical memory (no {proc / 'meminfo'}: sysconf)"
    except (AttributeError, ValueError, OSError):
        return 0, "unknown: this system does not report it"


def _shared_memory(folder: Path) -> Reading[int]:
    try:
        return Reading(shutil.disk_usage(folder).free, f"free in {folder}")
    except OSError:
        return Reading(_physical_memory(PROC)[0], f"no {folder} on this system: bounded by physical memory only")


# The processor.


def read_cpu_flags(proc: Path = PROC) -> frozenset[str]:
    """Return the instruction sets of this processor that matter for training, by their Linux names."""
    for key, value in _cpuinfo(proc):
        if key in ("flags", "Features"):
            return _CPU_FLAGS & frozenset(value.split())
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        names = {"FEAT_BF16": "bf16", "FEAT_FP16": "asimdhp", "FEAT_I8MM": "i8mm"}
        return frozenset({"asimd"} | {flag for name, flag in names.items() if _sysctl(f"hw.optional.arm.{name}") == "1"})
    return frozenset()


def _cpu_model(proc: Path) -> Reading[str]:
    entries = dict(reversed(list(_cpuinfo(proc))))
    for key in ("model name", "Model", "Hardware"):
        if entries.get(key):
            return Reading(entries[key], f"{key!r} in {proc / 'cpuinfo'}")
    missing = f"{proc / 'cpuinfo'} names none" if entries else f"no {proc / 'cpuinfo'}"
    if platform.system() == "Darwin" and (name := _sysctl("machdep.cpu.brand_string")):
        return Reading(name, f"{missing}: sysctl machdep.cpu.brand_string")
    return Reading(platform.processor() or platform.machine() or "unknown", f"{missing}: from Python's platform module")


def _cpuinfo(proc: Path) -> Iterator[tuple[str, str]]:
    for line in _read(proc / "cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


# Accelerators and torch.


def _accelerator_type() -> str:
    device = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if device is None else device.type


def _accelerators() -> Reading[tuple[str, ...]]:
    kind = _accelerator_type()
    if kind == "cpu":
        return Reading((), f"torch {torch.__version__} finds none")
    count = torch.accelerator.device_count()
    if kind == "cuda":
        return Reading(tuple(torch.cuda.get_device_name(index) for index in range(count)), "torch.cuda")
    return Reading((kind,) * count, f"torch.{kind} (it reports no device names)")


def _bfloat16(flags: frozenset[str]) -> Reading[bool]:
    kind = _accelerator_type()
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Reading(native, f"{_cuda_device()} {'supports' if native else 'does not support'} bfloat16 natively")
    return _native_on("bfloat16", kind, flags, _NATIVE_BF16)


def _float16(flags: frozenset[str]) -> Reading[bool]:
    kind = _accelerator_type()
    if kind == "cuda":
        native = bool(torch.version.hip) or torch.cuda.get_device_capability()[0] >= _FP16_CUDA_MAJOR
        return Reading(native, f"{_cuda_device()} {'has' if native else 'has no'} matrix units for float16")
    return _native_on("float16", kind, flags, _NATIVE_FP16)


def _native_on(dtype: str, kind: str, flags: frozenset[str], needed: tuple[str, ...]) -> Reading[bool]:
    if kind != "cpu":
        return Reading(False, f"not known to be native on {kind}")
    present = [flag for flag in needed if flag in flags]
    if present:
        return Reading(True, f"the processor has {', '.join(present)}")
    return Reading(False, f"the processor has none of {', '.join(needed)}: {dtype} would be emulated")


def _cuda_device() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (capability {major}.{minor})"


def _torch_build() -> Reading[str]:
    if torch.version.hip:
        return Reading(f"rocm {torch.version.hip}", "torch.version.hip")
    if torch.version.cuda:
        return Reading(f"cuda {torch.version.cuda}", "torch.version.cuda")
    return Reading("cpu", "torch was built with neither CUDA nor ROCm")


def _threads(environ: Mapping[str, str]) -> Reading[int]:
    named = [f"{name}={environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in environ]
    return Reading(torch.get_num_threads(), f"torch.get_num_threads() ({', '.join(named) or 'no variable sets it'})")


def read_cxx_compiler(environ: Mapping[str, str], *, system: str | None = None) -> Reading[str | None]:
    """Return the path of the C++ compiler that `torch.compile` would use. If None, the reason says how to fix it.

    It looks for $CXX, or else for one name only: `g++`, on macOS `clang++` (torch/_inductor/config.py, `cpp.cxx`).

    Args:
        environ: Read for CXX and PATH.
        system: A value of `platform.system()`; by default that of this machine.
    """
    path = environ.get("PATH")
    chosen = environ.get("CXX")
    if chosen:
        found = shutil.which(chosen, path=path)
        return Reading(found, f"CXX={chosen}" if found else f"CXX={chosen} was not found: unset CXX, or install it")
    first = "clang++" if (system or platform.system()) == "Darwin" else "g++"
    if found := shutil.which(first, path=path):
        return Reading(found, f"{first} on the PATH")
    for other in ("g++", "clang++", "gcc"):
        if shutil.which(other, path=path):
            return Reading(None, f"torch.compile looks for {first} only, but {other} is installed: set CXX={other}")
    return Reading(None, f"no C++ compiler on the PATH: install {first}, or set CXX")


def _plain(value: Any) -> Any:
    if isinstance(value, Reading):
        return {"value": _plain(value.value), "reason": value.reason}
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value
