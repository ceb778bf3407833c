"""Processes that train together on one machine: their environment, rendezvous, and lifetime.

The environment variables are those of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so processes
started by torchrun and by Hasten join their group in the same way. The launcher keeps the rendezvous store on a loopback
port chosen by the system, so no two groups can use the same port.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from hasten.core.errors import MachineError
from hasten.core.machine import Machine, Reading, read_cores, read_machine
from hasten.core.seeding import hash_seeded
from hasten.train.rendezvous import meet
from hasten.train.signals import STOP_SIGNALS

PR_SET_PDEATHSIG = 1
"""The `prctl` option that sends a signal to a process when its parent dies (linux/prctl.h)."""
LAUNCHER = "HASTEN_LAUNCHER"
"""Environment variable with the process id of the launcher of the ranks."""
PROGRESS = "HASTEN_PROGRESS"
"""Environment variable with the file descriptor through which ranks report their progress to the launcher."""
PROGRESS_BYTES = 8
"""Size in bytes of each rank's update number in that file."""
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""Environment variable with the number of restarts, set by torchrun or by Hasten."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable that says that the launcher, not a rank, keeps the rendezvous store."""
LOOPBACK = "127.0.0.1"


def die_with_parent() -> None:
    """Make this process end when its parent does, even while frozen, and all processes forked from it too (Linux only)."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.register_at_fork(after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


def open_store() -> Any:
    """Return a rendezvous store on a free loopback port. It exists as long as the returned object."""
    return dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def rank_environment(rank: int, world: int, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one rank on this machine: `environ`, its rank, and its share of the cores.

    Args:
        rank: Index of the rank.
        world: Number of ranks.
        port: Port of the store, see `open_store`.
        environ: The environment of this process. Thread counts set in it are kept.
    """
    return {
        **shared_environment(world, environ),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        AGENT_STORE: "True",  # the launcher opened the store; no rank does
    }


def shared_environment(world: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for one of `world` processes that share this machine: share of cores, loopback, a seed for hashes."""
    share = read_cores(environ={"LOCAL_WORLD_SIZE": str(world)}).value
    loopback = "lo" if sys.platform == "linux" else "lo0"
    ours = {"OMP_NUM_THREADS": str(share), "GLOO_SOCKET_IFNAME": loopback}
    return {**ours, **hash_seeded(environ), "LOCAL_WORLD_SIZE": str(world)}


def read_shared_machine(world: int) -> Machine:
    """Return this machine as seen by one of `world` ranks: cores and threads are the share of one rank."""
    if world == 1:
        return read_machine()
    environ = shared_environment(world, os.environ)
    named = environ["OMP_NUM_THREADS"]
    why = "set in the environment" if "OMP_NUM_THREADS" in os.environ else f"the share of each of {world} ranks"
    threads = Reading(int(named) if named.isdecimal() else torch.get_num_threads(), f"OMP_NUM_THREADS={named}, {why}")
    return replace(read_machine(environ=environ), threads=threads)


def is_member(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process was started as one of several ranks, by torchrun or by Hasten."""
    environ = os.environ if environ is None else environ
    return "RANK" in environ and int(environ.get("WORLD_SIZE", "1")) > 1


def join_group() -> None:
    """Join the process group named in the environment, with gloo for the CPU, and NCCL if there are GPUs.

    Raises:
        MachineError: There are GPUs, but fewer than ranks on this machine.
    """
    if dist.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise MachineError(
                f"Rank {local} has no GPU: this machine has {count}, and NCCL needs one per rank. Use at most {count} "
                f"ranks, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU."
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    if os.environ.get(AGENT_STORE) == "True" and "TORCHELASTIC_RUN_ID" in os.environ and not was_launched():  # torchrun did
        meet(backend)
    else:
        dist.init_process_group(backend)


def leave_group() -> None:
    """Leave the process group, if there is one, so that the other ranks do not treat the exit as a crash."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end_rank(status: int) -> NoReturn:
    """End the process of a rank as Python does at exit, except for the teardown of the interpreter.

    gloo's threads outlive the process group if DistributedDataParallel was used (torch 2.13). About one process in a hundred
    aborts when they run during the teardown of the interpreter. So this function joins threads, runs exit handlers and
    flushes output, as multiprocessing does for its children, and then exits directly.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  used by the interpreter; there is no public function
    atexit._run_exitfuncs()  # noqa: SLF001  as above
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def was_launched() -> bool:
    """Whether `launch` of this package started this process as a rank."""
    return os.environ.get(LAUNCHER) == str(os.getppid())


def restarted() -> bool:
    """Whether this rank was restarted after the group died, by torchrun or by Hasten."""
    return "RANK" in os.environ and int(os.environ.get(ATTEMPT, "0")) > 0


def progress_for_launcher() -> Callable[[int], None]:
    """Return a function that reports the last completed update to the launcher. Without a launcher, it does nothing."""
    if PROGRESS not in os.environ or not was_launched():
        return lambda _: None
    handle, offset = int(os.environ[PROGRESS]), PROGRESS_BYTES * int(os.environ["RANK"])

    def report(update: int) -> None:
        os.pwrite(handle, update.to_bytes(PROGRESS_BYTES, "little"), offset)

    return report


def stay_with_launcher(asked: int) -> None:
    """Make this rank end when its Hasten launcher does. Ranks started by torchrun are not changed.

    Args:
        asked: Number of ranks requested on the command line; 1 if not given.

    Raises:
        MachineError: A different number of ranks was started.
    """
    world = int(os.environ["WORLD_SIZE"]) if is_member() else 1
    if asked not in (1, world):
        raise MachineError(f"--ranks is {asked}, but {world} ranks were started: omit --ranks under torchrun.")
    if was_launched():
        die_with_parent()
        # Used until training handles signals: torch waits for other ranks in C++, where Python's handler would not run.
        # Ray's workers block SIGINT, and their children inherit the mask.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
