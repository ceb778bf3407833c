"""Lease cores, memory and devices of this machine to stages of all pipelines, never more than there is.

A lease is a file that its process, and the processes that it starts, hold locked. The system releases the lock when the last
of them dies, also by SIGKILL, so a file without a lock counts for nothing. Earlier requests are served first; later ones may
take what remains beside everything that the earlier ones wait for.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from hasten.core.files import write_atomically
from hasten.pipeline.description import PipelineError, Stage

FOLDER = "HASTEN_LEASES"
"""Environment variable that names the folder of leases. Users who share a machine must share it."""
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What this machine has.

    Attributes:
        cores: Their numbers.
        memory_bytes: Main memory.
        devices: Number of each GPU -> its memory in bytes.
    """

    cores: tuple[int, ...]
    memory_bytes: int
    devices: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Totals:
        """Read what `save` wrote."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def save(self, path: Path) -> None:
        """Write them for processes that do not load torch."""
        write_atomically(path, json.dumps(asdict(self)))


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a stage needs.

    Attributes:
        cores: CPU cores.
        memory_bytes: Main memory.
        devices: GPUs.
        device_bytes: Memory of each; None for whole devices.
    """

    cores: int
    memory_bytes: int
    devices: int = 0
    device_bytes: int | None = None


class Lease(NamedTuple):
    """What a stage got: numbers of cores, bytes of each device, and the open file that holds them."""

    cores: tuple[int, ...]
    devices: Mapping[int, int]
    handle: int


def read_totals() -> Totals:
    """Return what this machine has for processes like this one: cores by affinity and quota, memory limits, visible GPUs."""
    from hasten.core.machine import read_cores, read_memory_limit  # noqa: PLC0415 - loads torch

    allowed = sorted(os.sched_getaffinity(0))
    count = read_cores(environ={}).value
    return Totals(cores=tuple(allowed[:count]), memory_bytes=read_memory_limit().value, devices=_devices(os.environ))


def _devices(environ: Mapping[str, str]) -> dict[int, int]:
    """Return the NVIDIA GPUs that CUDA_VISIBLE_DEVICES allows, with their memory; none without a driver."""
    command = ["nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603  fixed arguments
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1] if done.returncode == 0 else []
    found = {int(index): int(float(mib) * 2**20) for index, mib in rows if index.strip().isdecimal()}
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    return {int(word): found[int(word)] for word in visible.split(",") if word.strip().isdecimal() and int(word) in found}


def need_of(stage: Stage, totals: Totals, memory_bytes: int | None) -> Need:
    """Return what a stage needs. `memory_bytes` counts where it states no memory; None reserves all of it.

    Raises:
        PipelineError: It needs more than the machine has.
    """
    every = len(totals.cores)
    share = max(1, every * stage.devices // max(len(totals.devices), 1)) if stage.devices else every
    cores = stage.cores or min(share, every)
    memory = totals.memory_bytes if memory_bytes is None else min(memory_bytes, totals.memory_bytes)
    memory = memory if stage.memory is None else stage.memory
    need = Need(cores=cores, memory_bytes=memory, devices=stage.devices, device_bytes=stage.device_memory)
    largest = max(totals.devices.values(), default=0)
    for key, wanted, there, unit, ending in (
        ("cores", need.cores, len(totals.cores), 1, ""),
        ("memory", need.memory_bytes, totals.memory_bytes, 2**30, " GiB"),
        ("devices", need.devices, len(totals.devices), 1, ""),
        ("device_memory", need.device_bytes or 0, largest, 2**30, " GiB"),
    ):
        if wanted > there:
            words = f"it needs {wanted / unit:g}{ending}; there are {there / unit:.4g}{ending}"
            raise PipelineError(f"stages.{stage.name}.{key}: {words}. Lower it, or run the pipeline on a larger machine.")
    return need


def lease_folder() -> Path:
    """Return the folder of leases, by default one for each user of the machine."""
    return Path(os.environ.get(FOLDER) or f"{tempfile.gettempdir()}/hasten-leases-{os.getuid()}")


def take(
    need: Need, totals: Totals, name: str, *, folder: Path | None = None, waiting: Callable[[str], None] = lambda _: None
) -> Lease:
    """Wait until the machine has what a stage needs, and take it. Release it with `os.close(lease.handle)`.

    `waiting` is called while it has to wait, with words if what it waits for has changed. It may raise.
    """
    folder = folder or lease_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{time.time_ns():020d}-{os.getpid()}.lease"
    told = ""
    handle: int | None = None
    while True:
        with _alone(folder):
            if handle is None:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fcntl.flock(handle, fcntl.LOCK_EX)
                os.set_inheritable(handle, True)  # noqa: FBT003 - its only parameter
            others = list(_alive(folder, path))
            lease = fit(need, totals, others, before=path.name)
            if lease is not None:
                _write(handle, {"name": name, "need": asdict(need), "cores": lease[0], "devices": lease[1]})
                return Lease(*lease, handle)
            _write(handle, {"name": name, "need": asdict(need)})
        names = ", ".join(sorted({str(other["name"]) for _, other in others if "cores" in other}))
        waiting("" if names == told else f"waits for {names or 'earlier requests'}")
        told = names
        time.sleep(_POLL_S)


def fit(
    need: Need, totals: Totals, others: list[tuple[str, dict[str, Any]]], *, before: str
) -> tuple[tuple[int, ...], dict[int, int]] | None:
    """Return the cores and devices that a request gets; None if it has to wait.

    `others` are the other leases and requests: names of files, in the order of requests, and what they say. `before` is the
    name of its own file.
    """
    cores = set(totals.cores)
    memory = totals.memory_bytes
    devices = dict(totals.devices)
    waiting: list[Need] = []
    for name, other in others:
        asked = Need(**other["need"])
        if "cores" in other:
            cores -= set(other["cores"])
            memory -= asked.memory_bytes
            for index, size in other["devices"].items():
                devices[int(index)] = devices.get(int(index), 0) - size
        elif name < before:
            waiting.append(asked)
    free = len(cores) - sum(one.cores for one in waiting)
    memory -= sum(one.memory_bytes for one in waiting)
    if need.cores > max(free, 0) or need.memory_bytes > max(memory, 0):
        return None
    got: dict[int, int] = {}
    for index in sorted(devices, key=lambda index: devices[index]):  # fill devices that are in use first
        size = totals.devices[index] if need.device_bytes is None else need.device_bytes
        if len(got) < need.devices and size <= devices[index]:
            got[index] = size
    if len(got) < need.devices or (need.devices and any(one.devices for one in waiting)):
        return None
    return tuple(sorted(cores)[: need.cores]), got


def held(folder: Path | None = None) -> list[dict[str, Any]]:
    """Return the leases that are held at this moment, each with its `name`, `need`, `cores` and `devices`."""
    folder = folder or lease_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(folder):
        return [facts for _, facts in _alive(folder) if "cores" in facts]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)  # other users only read it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _alive(folder: Path, own: Path | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the leases and requests of living processes, and remove those of dead ones."""
    for path in sorted(folder.glob("*.lease")):
        if path == own:
            continue
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = path.read_text(encoding="utf-8")
            if text:
                yield path.name, json.loads(text)
        else:
            with suppress(PermissionError):  # that of another user: it counts for nothing, and stays
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _write(handle: int, facts: Mapping[str, object]) -> None:
    """Replace the text of a lease. Others read it under the same lock, so they never see a part of it."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(facts).encode(), 0)
