"""Run ranks on the machines of a Ray cluster: the same command on each, with torchrun's environment variables.

Ray places the ranks and reports when one has ended. The training code does not use Ray. As under torchrun, all machines must
see the job, the plan and the run's folder under the same paths.

Ray's actors are used directly, not Ray Train. Its trainer (Ray 2.60) took 26 s to start two ranks on a small machine, with
three extra actors. Without Ray's dashboard it prints a warning every few seconds, and it turns an exit status into an
exception. Hasten would still have to set each rank's environment and rendezvous.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

from hasten.core.errors import MachineError
from hasten.core.ray import load_ray
from hasten.core.seeding import hash_seeded
from hasten.train.launch import SIGNALED, STOP_S
from hasten.train.process_group import LAUNCHER, LOOPBACK
from hasten.train.signals import StopRequest

_POLL_S = 0.2
"""Seconds between two checks of the ranks."""
_PASSED_ON = ("HASTEN_", "PYTHONHASHSEED", "PYTHONPATH", "OMP_", "MKL_", "CUDA_VISIBLE_DEVICES", "PATH", "VIRTUAL_ENV")
"""Prefixes of environment variables that are passed to the ranks. All others come from the rank's machine."""


@dataclass(frozen=True)
class Place:
    """Where a rank will run.

    Attributes:
        node: Ray's id of the machine.
        address: Address of the machine for the other ranks.
        port: A free port on the machine, used for the rendezvous if this is rank 0.
        cores: Cores of the machine that this process may use.
    """

    node: str
    address: str
    port: int
    cores: int


class RankHost:
    """An actor that starts one rank, waits for it, and forwards stop signals. Its methods run in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    def place(self) -> Place:
        """Return where this actor runs."""
        ray = load_ray()
        with socket.socket() as free:
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port, cores)

    def run(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> int:
        """Run the command to its end, and return its exit status. The rank ends with this actor."""
        ours = {**os.environ, **environment, LAUNCHER: str(os.getpid())}
        with self._lock:
            self._process = subprocess.Popen(list(command), cwd=folder, env=ours)  # noqa: S603  the user's command
            if self._signal is not None:
                self._process.send_signal(self._signal)
        return self._process.wait()

    def stop(self, number: int) -> None:
        """Send a signal to the rank, now or as soon as it is started."""
        with self._lock:
            self._signal = number
            if self._process is not None:
                self._process.send_signal(number)


def launch_on_ray(world: int, command: Sequence[str]) -> int:
    """Run a command as a group of `world` ranks on a Ray cluster: that of `RAY_ADDRESS`, or a new local one.

    If a rank fails, the others are killed, because they would wait for it forever. A stop signal is sent to every rank; they
    save and exit.

    Returns:
        The exit status of the first rank that failed, or 0; 1 if its machine was lost.

    Raises:
        MachineError: Ray is not installed, or the cluster has too few cores for the ranks.
    """
    ray = load_ray()
    mine = not ray.is_initialized()
    if mine:
        room = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": max(world, os.cpu_count() or 1)}
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=True, **room)
    hosts: list[Any] = []
    with ExitStack() as stack:
        if mine:
            stack.callback(ray.shutdown)
        stack.callback(lambda: [ray.kill(host) for host in hosts])
        stop = stack.enter_context(StopRequest(raises=False))
        free = ray.cluster_resources().get("CPU", 0)
        if free < world:
            raise MachineError(
                f"The Ray cluster has {free:.0f} cores, but {world} ranks need one each. Use fewer ranks (--ranks)."
            )
        kind = ray.remote(RankHost).options(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=2)
        hosts = [kind.remote() for _ in range(world)]
        places: list[Place] = ray.get([host.place.remote() for host in hosts])
        running = {
            host.run.remote(list(command), os.getcwd(), environment): rank  # noqa: PTH109  as text, for another machine
            for rank, (host, environment) in enumerate(zip(hosts, environments(places, os.environ), strict=True))
        }
        return _outcome(ray, hosts, running, stop)


def environments(places: Sequence[Place], environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the environment variables of each rank: its rank, the rendezvous, its share of its machine.

    Args:
        places: The place of each rank.
        environ: The environment of this process. Variables with certain prefixes are passed on.
    """
    given = hash_seeded({name: value for name, value in environ.items() if name.startswith(_PASSED_ON)})
    on_node = Counter(place.node for place in places)
    alone = len(on_node) == 1
    local_ranks: Counter[str] = Counter()
    result = []
    for rank, place in enumerate(places):
        together = on_node[place.node]
        variables = {
            "OMP_NUM_THREADS": str(max(1, place.cores // together)),
            **given,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_ranks[place.node]),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_WORLD_SIZE": str(together),
            "MASTER_ADDR": LOOPBACK if alone else places[0].address,
            "MASTER_PORT": str(places[0].port),
        }
        if alone:
            variables["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        local_ranks[place.node] += 1
        result.append(variables)
    return result


def _outcome(ray: Any, hosts: Sequence[Any], running: dict[Any, int], stop: StopRequest) -> int:
    """Wait until all ranks have ended or one has failed. After a stop signal, wait at most `STOP_S` once one has ended."""
    failed, is_sent, deadline = 0, False, float("inf")
    while running and monotonic() < deadline and not stop.is_urgent:
        if stop.signal is not None and not is_sent:
            is_sent = True
            for host in hosts:
                host.stop.remote(int(stop.signal))
        ended, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
        for one in ended:
            failed = failed or _status(ray, one, running.pop(one))
            deadline = monotonic() + STOP_S if is_sent and deadline == float("inf") else deadline
        if failed and stop.signal is None:
            break
    if running and not failed and stop.signal is not None:
        return SIGNALED + stop.signal
    return failed


def _status(ray: Any, result: Any, rank: int) -> int:
    """Return the exit status of a rank that ended, as in a shell; 1 if it was lost."""
    try:
        status = int(ray.get(result))
    except ray.exceptions.RayError as error:
        sys.stderr.write(f"hasten: rank {rank} was lost: {type(error).__name__}\n")
        return 1
    return status if status >= 0 else SIGNALED - status
