"""Processes that train together on one machine: what each is told, how they find each other, and who ends with whom.

The variables are those of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so a process that torchrun
started and one that we started join their group in the same way. The one who starts the others keeps the store through
which they meet, on a port of the loopback that the system chose: no two groups can take the same.
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
from hasten.train.rendezvous import meet
from hasten.train.signals import STOP_SIGNALS

PR_SET_PDEATHSIG = 1
LAUNCHER = "HASTEN_LAUNCHER"
"""Holds the process id of who launched the ranks of `hasten run`."""
PROGRESS = "HASTEN_PROGRESS"
"""Names the open file where ranks tell their launcher how far they came."""
PROGRESS_BYTES = 8
"""Of each rank's number there."""
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""How often the ranks were started again, by torchrun or by us."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Says that whoever started the ranks keeps the store through which they meet."""
LOOPBACK = "127.0.0.1"


def die_with_parent() -> None:
    """End when the parent does, even while frozen, and let all processes forked from this one do so too (Linux)."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.register_at_fork(after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


def open_store() -> Any:
    """The store through which a group meets, on a free port of the loopback; it lives as long as it is held."""
    return dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def rank_environment(rank: int, world: int, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of one rank of a group on this machine: `environ`, who it is, and its fair share of the cores.

    Args:
        rank: Which one.
        world: Ranks in all.
        port: Where the store listens, see `open_store`.
        environ: Ours. Thread counts that it sets stay as they are.
    """
    return {
        **shared_environment(world, environ),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        AGENT_STORE: "True",  # no rank opens the store: whoever started the group did
    }


def shared_environment(world: int, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for one of `world` processes that share this machine: threads for its share of the cores, loopback only."""
    share = read_cores(environ={"LOCAL_WORLD_SIZE": str(world)}).value
    loopback = "lo" if sys.platform == "linux" else "lo0"
    ours = {"OMP_NUM_THREADS": str(share), "GLOO_SOCKET_IFNAME": loopback}
    return {**ours, **environ, "LOCAL_WORLD_SIZE": str(world)}


def read_shared_machine(world: int) -> Machine:
    """This machine as one of `world` ranks has it: cores and threads are one rank's share, and say so."""
    if world == 1:
        return read_machine()
    environ = shared_environment(world, os.environ)
    named = environ["OMP_NUM_THREADS"]
    why = "as the environment says" if "OMP_NUM_THREADS" in os.environ else f"a fair share for each of {world} ranks"
    threads = Reading(int(named) if named.isdecimal() else torch.get_num_threads(), f"OMP_NUM_THREADS={named}, {why}")
    return replace(read_machine(environ=environ), threads=threads)


def is_member(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process was started as one of several ranks, by torchrun or by us."""
    environ = os.environ if environ is None else environ
    return "RANK" in environ and int(environ.get("WORLD_SIZE", "1")) > 1


def join_group() -> None:
    """Join the process group that the environment names: gloo for the CPU, with NCCL beside it where there are GPUs.

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
                f"Rank {local} has no GPU: there are {count} here, and NCCL takes one a rank. Ask for at most {count} "
                f"ranks, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU."
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    if os.environ.get(AGENT_STORE) == "True" and "TORCHELASTIC_RUN_ID" in os.environ and not was_launched():  # torchrun did
        meet(backend)
    else:
        dist.init_process_group(backend)


def leave_group() -> None:
    """Leave the process group, where there is one: the other ranks are told that this is no crash."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end_rank(status: int) -> NoReturn:
    """End the process of a rank with all that Python does at the end of a program, but for its own teardown.

    gloo's threads outlive the process group wherever DistributedDataParallel was used (torch 2.13), and about one process
    of a hundred is aborted when they meet an interpreter that is being torn down. So threads are joined, exit handlers run
    and output is flushed, as multiprocessing does it for its children, and then the process is gone.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  the interpreter's own call; there is no public one
    atexit._run_exitfuncs()  # noqa: SLF001  as above
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def was_launched() -> bool:
    """Whether `launch` of this package started this process as a rank."""
    return os.environ.get(LAUNCHER) == str(os.getppid())


def restarted() -> bool:
    """Whether this rank was started again after the group died, by torchrun or by us."""
    return "RANK" in os.environ and int(os.environ.get(ATTEMPT, "0")) > 0


def progress_for_launcher() -> Callable[[int], None]:
    """What tells our launcher of the last update that ended; it does nothing where this process has none."""
    if PROGRESS not in os.environ or not was_launched():
        return lambda _: None
    handle, place = int(os.environ[PROGRESS]), PROGRESS_BYTES * int(os.environ["RANK"])

    def tell(update: int) -> None:
        os.pwrite(handle, update.to_bytes(PROGRESS_BYTES, "little"), place)

    return tell


def stay_with_launcher(asked: int) -> None:
    """End with the process that launched this rank; one that torchrun started stays as torchrun has it.

    Args:
        asked: Ranks that the command asks for; 1 where it says nothing.

    Raises:
        MachineError: Another number of ranks was started.
    """
    world = int(os.environ["WORLD_SIZE"]) if is_member() else 1
    if asked not in (1, world):
        raise MachineError(f"--ranks says {asked}, and {world} were started: leave --ranks out under torchrun.")
    if was_launched():
        die_with_parent()
        # Until training handles them: torch waits for other ranks in C++, where Python's own handler would not run. Ray's
        # workers block SIGINT, and their children inherit that.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
