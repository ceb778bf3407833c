"""The GPU of this rank, read with NVIDIA's management library.

Activity of the SMs, the tensor cores and the memory comes from GPM, which Hopper and later devices have. Utilization, which
all devices have, is the share of the time in which any kernel runs, however small: it says little about a slow training.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import psutil
import torch

from hasten.core.errors import MachineError
from hasten.monitor.metric import Card, Metric
from hasten.monitor.sampler import Host

_SHARES = {
    "gpu.sm_active": "SM_UTIL",
    "gpu.sm_occupancy": "SM_OCCUPANCY",
    "gpu.tensor_active": "ANY_TENSOR_UTIL",
    "gpu.dram_active": "DRAM_BW_UTIL",
}
_RATES = {
    "gpu.pcie.transmit": "PCIE_TX_PER_SEC",
    "gpu.pcie.receive": "PCIE_RX_PER_SEC",
    "gpu.nvlink.transmit": "NVLINK_TOTAL_TX_PER_SEC",
    "gpu.nvlink.receive": "NVLINK_TOTAL_RX_PER_SEC",
}
_REASONS = {
    "gpu.throttled.power": ("SwPowerCap", "HwPowerBrakeSlowdown"),
    "gpu.throttled.thermal": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "gpu.throttled.hardware": ("HwSlowdown",),
}


class Gpu:
    """Reads each value on its own: a device that lacks one still gives the others."""

    card: ClassVar[Card] = Card(
        name="gpu",
        source="NVML (nvidia-ml-py); activity and links: its GPM, from Hopper on",
        needs="an NVIDIA GPU, and pip install 'hasten[gpu]'",
        metrics=(
            Metric(name="gpu.utilization", unit="1", help="Share of the time in which any kernel runs."),
            Metric(name="gpu.sm_active", unit="1", help="Share of the SMs that are busy."),
            Metric(name="gpu.sm_occupancy", unit="1", help="Share of the warps that are active."),
            Metric(name="gpu.tensor_active", unit="1", help="Share of the time in which tensor cores compute."),
            Metric(name="gpu.dram_active", unit="1", help="Share of the memory's bandwidth in use."),
            Metric(name="gpu.pcie.transmit", unit="By/s", help="Bytes sent from the GPU over PCIe."),
            Metric(name="gpu.pcie.receive", unit="By/s", help="Bytes sent to the GPU over PCIe."),
            Metric(name="gpu.nvlink.transmit", unit="By/s", help="Bytes sent over NVLink."),
            Metric(name="gpu.nvlink.receive", unit="By/s", help="Bytes received over NVLink."),
            Metric(name="gpu.clock.sm", unit="Hz", help="Clock of the SMs."),
            Metric(name="gpu.clock.memory", unit="Hz", help="Clock of the memory."),
            Metric(name="gpu.memory.used", unit="By", help="Memory in use, by all processes."),
            Metric(name="gpu.memory.total", unit="By", help="Memory of the device."),
            Metric(name="gpu.memory.process", unit="By", help="Memory in use by the training and its child processes."),
            Metric(name="gpu.memory.others", unit="By", help="Memory in use by other processes."),
            Metric(name="gpu.others", unit="{process}", help="Other processes that compute on the device."),
            Metric(name="gpu.power", unit="W", help="Power draw."),
            Metric(name="gpu.power_limit", unit="W", help="Power limit in force."),
            Metric(name="gpu.temperature", unit="Cel", help="Temperature."),
            Metric(name="gpu.throttled.power", unit="1", help="1 while the power limit lowers the clocks."),
            Metric(name="gpu.throttled.thermal", unit="1", help="1 while the temperature lowers the clocks."),
            Metric(name="gpu.throttled.hardware", unit="1", help="1 while the hardware slows the device down."),
        ),
    )

    def __init__(self, host: Host, nvml: Any = None, uuid: Callable[[int], str] | None = None) -> None:
        self._device, self._uuid = host.device, uuid or _uuid
        self._nvml, self._handle = nvml or _library(), None
        self._samples: list[Any] = []
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise MachineError(f"NVML does not work here: {error}.") from error

    def sample(self) -> Mapping[str, float]:
        """Return what the device tells; nothing before the training uses it."""
        nvml = self._nvml
        if self._handle is None:
            device = self._device()
            if device is None:
                return {}
            self._handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid(device))
        handle, values = self._handle, dict[str, float]()
        for read in (
            lambda: {"gpu.utilization": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0},
            lambda: {"gpu.clock.sm": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6},
            lambda: {"gpu.clock.memory": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6},
            lambda: {"gpu.power": nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0},
            lambda: {"gpu.power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0},
            lambda: {"gpu.temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
            self._memory,
            self._throttled,
            self._activity,
        ):
            with suppress(nvml.NVMLError):  # this device, or this user, cannot read it
                values |= read()
        return values

    def _memory(self) -> dict[str, float]:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        values = {"gpu.memory.used": float(memory.used), "gpu.memory.total": float(memory.total)}
        mine = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        own = [process for process in processes if process.pid in mine]
        if own:  # in a container, NVML may name processes by numbers of the host
            values["gpu.memory.process"] = float(sum(process.usedGpuMemory or 0 for process in own))
            values["gpu.memory.others"] = max(values["gpu.memory.used"] - values["gpu.memory.process"], 0.0)
            values["gpu.others"] = float(len(processes) - len(own))
        return values

    def _throttled(self) -> dict[str, float]:
        nvml = self._nvml
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        return {
            name: float(any(bits & getattr(nvml, f"nvmlClocksEventReason{reason}") for reason in reasons))
            for name, reasons in _REASONS.items()
        }

    def _activity(self) -> dict[str, float]:
        """Return what GPM measured since the last call; nothing at the first call or without GPM."""
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            return {}
        first = not self._samples
        self._samples = self._samples[::-1] or [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        earlier, now = self._samples
        nvml.nvmlGpmSampleGet(self._handle, now)
        if first:
            return {}
        names = [*_SHARES, *_RATES]
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(names)
        query.sample1, query.sample2 = earlier, now
        for place, metric in enumerate((*_SHARES.values(), *_RATES.values())):
            query.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{metric}")
        nvml.nvmlGpmMetricsGet(query)
        return {
            name: item.value / 100.0 if name in _SHARES else item.value * 2**20
            for name, item in zip(names, query.metrics, strict=False)
            if item.nvmlReturn == nvml.NVML_SUCCESS
        }


def _library() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        raise MachineError("nvidia-ml-py is not installed: pip install 'hasten[gpu]'.") from error


def _uuid(device: int) -> str:
    """Return the name that NVML knows a CUDA device by, whatever CUDA_VISIBLE_DEVICES says."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
