"""Each sampler: on this machine, and with files and a library whose numbers are known."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hasten.core.errors import MachineError
from hasten.core.machine import read_memory_room
from hasten.monitor.catalogue import samplers
from hasten.monitor.metric import OWN, TRAINING
from hasten.monitor.rates import Changes
from hasten.monitor.sampler import Host, Samplers
from hasten.monitor.samplers import cpu as cpu_module
from hasten.monitor.samplers.caches import Caches
from hasten.monitor.samplers.cpu import Cpu
from hasten.monitor.samplers.disk import Disk
from hasten.monitor.samplers.gpu import Gpu
from hasten.monitor.samplers.loader import Loader
from hasten.monitor.samplers.memory import Memory
from hasten.monitor.samplers.network import Network
from hasten.monitor.samplers.pressure import Pressure
from hasten.monitor.samplers.python import Python

CARDS = [kind.card for kind in samplers().values()]
METRICS = [metric for card in (*CARDS, TRAINING, OWN) for metric in card.metrics]


def test_there_are_more_than_thirty_metrics_each_with_one_name_a_unit_and_a_sentence() -> None:
    assert len(METRICS) > 60
    assert max(Counter(metric.name for metric in METRICS).values()) == 1
    assert all(metric.unit and metric.help.endswith(".") and metric.name == metric.name.lower() for metric in METRICS)
    assert all(card.source and card.metrics for card in CARDS)


def test_here_every_sampler_gives_metrics_of_its_card_or_says_what_is_missing() -> None:
    said: list[str] = []
    reading = Samplers(samplers(), Host(folder=Path.cwd()), said.append)
    reading.read()
    gc.collect()
    values = reading.read()
    assert said == []
    assert reading.failures == 0
    assert set(values) <= {metric.name for card in CARDS for metric in card.metrics}
    assert set(reading.missing) <= {"gpu", "cuda", "pressure", "dialogue_bias"}
    if sys.platform == "linux":
        assert values["process.memory.resident"] > 2**24
        assert values["process.cpu"] > 0
        assert values["system.memory.headroom"] > 0
        assert values["python.full_collections"] > 0


def test_a_change_is_that_since_the_last_reading() -> None:
    times = iter([0.0, 1.0, 3.0])
    changes = Changes(lambda: next(times))
    assert changes.rates({"a": 10.0}) == {}
    assert changes.rates({"a": 14.0, "new": 1.0}) == {"a": 2.0}


class Files:
    """A /proc whose numbers a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    return Files(tmp_path / "proc")


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two seconds pass between any two readings."""

    def made(_clock: object = None) -> Changes:
        times = iter(range(0, 1000, 2))
        return Changes(lambda: float(next(times)))

    for name in ("cpu", "disk", "network", "pressure", "caches"):
        monkeypatch.setattr(sys.modules[f"hasten.monitor.samplers.{name}"], "Changes", made)


def stat(parent: int, *, minor: int, major: int, user: int, threads: int, pages: int) -> str:
    fields = ["S", parent, 0, 0, 0, 0, 0, minor, 0, major, 0, user, 0, 0, 0, 20, 0, threads, 0, 0, 0, pages]
    return f"1 (a (name)) {' '.join(map(str, fields))}"


@pytest.mark.usefixtures("second")
def test_cpu_is_split_into_the_tree_and_others(proc: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "_TICKS", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0}, raising=False)
    own = os.getpid()
    proc.write("loadavg", "1.25 1.0 0.5 2/99 1\n")
    sampler: Any = None
    for times in (0, 1):
        # in two seconds core 0: 150 ticks busy, 20 waiting for a disk, 10 stolen; core 1 is not ours
        first, second = f"{140 * times} 0 0 0 {20 * times} 0 0 {10 * times}", f"{900 * times} 0 0 0 0 0 0 0"
        proc.write("stat", f"cpu 0 0 0 0 0 0 0 0\ncpu0 {first}\ncpu1 {second}\n")
        proc.write(f"{own}/stat", stat(1, minor=4 * times, major=0, user=50 * times, threads=2, pages=3))
        proc.write("77/stat", stat(own, minor=0, major=2 * times, user=30 * times, threads=1, pages=1))
        proc.write("78/stat", stat(1, minor=0, major=0, user=400 * times, threads=1, pages=1))
        sampler = sampler or Cpu(Host(), proc.folder)
        values = sampler.sample()
    assert values == {
        "process.cpu": pytest.approx(0.4), "process.page_faults.minor": 2.0, "process.page_faults.major": 1.0,
        "system.cpu.others": pytest.approx(0.35), "system.cpu.io_wait": pytest.approx(0.1),
        "system.cpu.steal": pytest.approx(0.05), "system.load": 1.25, "process.processes": 2.0, "process.threads": 3.0,
        "process.memory.tree": 4.0 * cpu_module._PAGE,
    }  # fmt: skip


@pytest.mark.usefixtures("second")
def test_disks_are_added_up_without_their_partitions(proc: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler: Any = None
    for times in (0, 1):
        disk = f"{4 * times} 0 {16 * times} {20 * times} {2 * times} 0 {8 * times} {30 * times} 0 {500 * times} 0"
        lines = [f"259 0 {name} {disk}" for name in ("nvme0n1", "nvme0n1p1", "sda", "sda1", "loop0", "dm-0")]
        proc.write("diskstats", "\n".join(lines))
        own = SimpleNamespace(read_chars=1000 * times, read_bytes=600 * times, write_bytes=400 * times)
        monkeypatch.setattr(psutil, "Process", lambda own=own: SimpleNamespace(io_counters=lambda: own))
        sampler = sampler or Disk(Host(folder=tmp_path))
        values = dict(sampler.sample())
    assert values.pop("system.disk.free") > 0
    assert values == {
        "process.disk.read": 300.0, "process.disk.write": 200.0, "process.io.read": 500.0,
        "system.disk.read": 2 * 16 * 512 / 2, "system.disk.write": 2 * 8 * 512 / 2, "system.disk.operations": 6.0,
        "system.disk.busy": 0.25, "system.disk.read_latency": 0.005, "system.disk.write_latency": 0.015,
    }  # fmt: skip


@pytest.mark.usefixtures("second")
def test_the_loopback_is_no_network(proc: Files) -> None:
    sampler: Any = None
    for times in (0, 1):
        line = f"{100 * times} 9 {times} {times} 0 0 0 0 {50 * times} 9 0 0 0 0 0 0"
        proc.write("net/dev", f"heads\nheads\n    lo: {line}\n  eth0: {line}\n  eth1:{line}\n")
        sampler = sampler or Network(Host())
        values = sampler.sample()
    assert values == {"system.network.receive": 100.0, "system.network.transmit": 50.0, "system.network.errors": 2.0}


@pytest.mark.usefixtures("second")
def test_pressure_is_that_of_the_window(proc: Files) -> None:
    with pytest.raises(MachineError, match="no PSI"):
        Pressure(Host(), proc.folder)
    sampler: Any = None
    for times in (0, 1):
        for kind in ("cpu", "io"):
            proc.write(
                f"pressure/{kind}", "".join(f"{share} avg10=9.0 total={times * 500_000}\n" for share in ("some", "full"))
            )
        sampler = sampler or Pressure(Host(), proc.folder)
        values = sampler.sample()
    assert values == dict.fromkeys(
        ("system.pressure.cpu.some", "system.pressure.io.some", "system.pressure.io.full"), pytest.approx(0.25)
    )


def test_headroom_is_the_nearer_of_two_limits(proc: Files, tmp_path: Path) -> None:
    proc.write("self/status", "Name: x\nVmRSS: 40 kB\nRssAnon: 30 kB\nRssShmem: 10 kB\n")
    proc.write("self/cgroup", "0::/job\n")
    proc.write("meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    groups = Files(tmp_path / "cgroup")
    groups.write("job/memory.max", "max\n")
    groups.write("job/memory.current", "100\n")
    sampler = Memory(Host(), proc.folder, groups.folder)
    assert sampler.sample()["system.memory.headroom"] == 500 * 1024
    groups.write("job/memory.max", "4096\n")
    groups.write("job/memory.stat", "anon 50\ninactive_file 60\n")
    values = sampler.sample()
    assert values["system.memory.headroom"] == 4096 - 100 + 60
    assert read_memory_room(proc=proc.folder, cgroup=groups.folder) == [4056]
    assert (values["process.memory.resident"], values["process.memory.private"]) == (40960.0, 30720.0)


@pytest.mark.usefixtures("second")
def test_the_hit_rate_is_that_of_all_caches() -> None:
    counters = {"a_hits": 0.0, "a_misses": 0.0, "b_hits": 0.0, "other": 5.0}
    sampler = Caches(Host(counters=lambda: counters))
    assert sampler.sample() == {}
    counters.update(a_hits=4.0, a_misses=2.0, b_hits=2.0)
    assert sampler.sample() == {"cache.hit_rate": 0.75, "cache.reads": 4.0}


@pytest.mark.slow
def test_a_killed_worker_is_no_longer_alive() -> None:
    iterator: Any = iter(DataLoader(TensorDataset(torch.arange(64)), num_workers=2, batch_size=4))
    sampler = Loader(Host(loader=lambda: iterator))
    next(iterator)
    values = sampler.sample()
    assert (values["loader.workers"], values["loader.workers_alive"]) == (2.0, 2.0)
    assert 1.0 <= values["loader.requested"] <= 4.0  # batches that came before the first one are requested no more
    while sampler.sample()["loader.queue"] < 4:
        assert iterator._workers[0].is_alive()
    iterator._workers[0].kill()
    iterator._workers[0].join()
    assert sampler.sample()["loader.workers_alive"] == 1.0
    iterator._shutdown_workers()
    assert sampler.sample() == {}  # no worker is missed after the end of an epoch


def test_a_loader_without_workers_has_nothing_to_show() -> None:
    iterator = iter(DataLoader(TensorDataset(torch.arange(8))))
    assert Loader(Host(loader=lambda: iterator)).sample() == {}
    assert Loader(Host()).sample() == {}


def test_graphs_of_torch_compile_are_counted_if_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"stats": Counter(unique_graphs=3)}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert Python(Host()).sample()["python.compiled_graphs"] == 3.0


class NoGpuError(Exception):
    """Stands for pynvml.NVMLError."""


class Nvml:
    """Stands for pynvml, because there is no GPU here: one device that this process and a neighbour use.

    The names, the structures and the units are those of nvidia-ml-py, which `test_the_names_of_nvml_exist` checks.
    """

    NVMLError = NoGpuError
    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10
    NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 20, 21
    NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 61, 60
    nvmlClocksEventReasonSwPowerCap = 4  # noqa: N815 - its name, as those below
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80  # noqa: N815
    nvmlClocksEventReasonSwThermalSlowdown = 0x20  # noqa: N815
    nvmlClocksEventReasonHwThermalSlowdown = 0x40  # noqa: N815
    nvmlClocksEventReasonHwSlowdown = 8  # noqa: N815

    def __init__(self, *, gpm: bool = True, pid: int | None = None) -> None:
        self.gpm, self.pid, self.taken = gpm, os.getpid() if pid is None else pid, 0

    def nvmlInit(self) -> None: ...  # noqa: N802 - its name

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802 - as above
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(98)])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
            "nvmlDeviceGetPowerUsage": lambda _: 650_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetTemperature": lambda _, _sensor: 61,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80, used=70),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=self.pid, usedGpuMemory=50),
                SimpleNamespace(pid=-5, usedGpuMemory=15),
            ],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 4 | 0x40,
            "nvmlGpmQueryDeviceSupport": lambda _: SimpleNamespace(isSupportedDevice=int(self.gpm)),
            "nvmlGpmSampleAlloc": lambda: [0],
            "nvmlGpmSampleGet": self._take,
            "nvmlGpmMetricsGet": self._gpm,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _take(self, _handle: str, sample: list[int]) -> None:
        self.taken += 1
        sample[0] = self.taken

    def _gpm(self, query: Any) -> None:
        assert query.sample2[0] == query.sample1[0] + 1
        for metric in query.metrics[: query.numMetrics]:
            metric.value = float(metric.metricId)
            metric.nvmlReturn = 3 if metric.metricId in (60, 61) else 0  # no NVLink


def gpu(nvml: Nvml) -> Gpu:
    return Gpu(Host(device=lambda: 0), nvml, uuid=lambda device: f"GPU-{device}")


def test_a_gpu_gives_its_activity_and_tells_this_process_from_neighbours() -> None:
    sampler = gpu(Nvml())
    assert "gpu.sm_active" not in sampler.sample()  # activity is between two samples
    sampler.sample()
    assert sampler.sample() == {
        "gpu.utilization": 0.97, "gpu.sm_active": 0.02, "gpu.sm_occupancy": 0.03, "gpu.tensor_active": 0.05,
        "gpu.dram_active": 0.1, "gpu.pcie.transmit": 20 * 2**20, "gpu.pcie.receive": 21 * 2**20, "gpu.clock.sm": 1980e6,
        "gpu.clock.memory": 2619e6, "gpu.memory.used": 70, "gpu.memory.total": 80, "gpu.memory.process": 50,
        "gpu.memory.others": 20, "gpu.others": 1, "gpu.power": 650.5, "gpu.power_limit": 700, "gpu.temperature": 61,
        "gpu.throttled.power": 1, "gpu.throttled.thermal": 1, "gpu.throttled.hardware": 0,
    }  # fmt: skip


def test_an_older_gpu_in_a_container_still_gives_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(gpm=False, pid=-7)

    def forbidden(_handle: str) -> None:
        raise NoGpuError("Insufficient permissions")

    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", forbidden, raising=False)
    sampler = gpu(nvml)
    sampler.sample()
    values = sampler.sample()
    assert values["gpu.memory.used"] == 70
    assert not {"gpu.power", "gpu.sm_active", "gpu.memory.process", "gpu.others"} & set(values)


def test_a_gpu_that_the_training_does_not_use_is_not_read() -> None:
    assert Gpu(Host(), Nvml()).sample() == {}


def test_without_a_driver_the_gpu_sampler_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver here")
    with pytest.raises(MachineError, match=r"NVML does not work here|nvidia-ml-py is not installed"):
        Gpu(Host())


def test_the_names_of_nvml_exist() -> None:
    pynvml = pytest.importorskip("pynvml")
    ours = [name for name in vars(Nvml) if name.startswith(("NVML_", "nvmlClocks"))]
    assert {name: getattr(pynvml, name) for name in ours} == {name: getattr(Nvml, name) for name in ours}
    source = Path(sys.modules[Gpu.__module__].__file__ or "").read_text()
    used = {word.split("(")[0] for word in source.replace(",", " ").split() if word.startswith("nvml.nvml")}
    assert len(used) > 8
    assert all(hasattr(pynvml, name.removeprefix("nvml.")) for name in used if "{" not in name)
    fields = [name for name, _ in pynvml.c_nvmlGpmMetricsGet_t._fields_]
    assert fields == ["version", "numMetrics", "sample1", "sample2", "metrics"]
