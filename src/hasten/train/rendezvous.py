"""Rendezvous of the ranks of one attempt, in a store that is shared by several attempts.

torchrun keeps one store over all restarts. Entries that gloo and NCCL wrote there in an earlier attempt are mistaken for
current ones, and ranks connect to processes that no longer exist (https://github.com/pytorch/pytorch/issues/135712). A
restart count does not help, because the agents of several machines count separately. So each rank writes a unique id to the
store, and rank 0 publishes the ids it sees. A rank that finds its own id among them joins the others under rank 0's id.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

import torch.distributed as dist

from hasten.core.errors import MachineError

_WAIT_S = 300.0
"""Time limit in seconds for all ranks to arrive."""
_POLL_S = 0.02
"""Seconds between two checks of the store."""


def fresh_part(store: Any, rank: int, world: int, *, wait_s: float = _WAIT_S) -> str:
    """Return a prefix for store keys that only this attempt uses, the same for all its ranks.

    Args:
        store: A `torch.distributed.Store`.
        rank: The rank of this process.
        world: Number of ranks.
        wait_s: Time limit in seconds for the other ranks to arrive.

    Raises:
        MachineError: They did not arrive in time.
    """
    mine = uuid.uuid4().hex
    numbers = [f"hasten/number/{other}" for other in range(world)]
    store.set(numbers[rank], mine)
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if rank == 0 and store.check(numbers):
            store.set("hasten/attempt", json.dumps([store.get(number).decode() for number in numbers]))
            if store.check([f"hasten/{mine}/{other}" for other in range(1, world)]):
                return mine
        if rank != 0 and store.check(["hasten/attempt"]):
            published: list[str] = json.loads(store.get("hasten/attempt"))
            if len(published) == world and published[rank] == mine:
                store.set(f"hasten/{published[0]}/{rank}", "here")
                return published[0]
        time.sleep(_POLL_S)
    raise MachineError(
        f"Rank {rank} waited {wait_s:.0f} s, but not all {world} ranks came. Check whether they started, and their output."
    )


def meet(backend: str) -> None:
    """Join the process group of torchrun's current attempt."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    part = dist.PrefixStore(fresh_part(store, rank, world), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=part, rank=rank, world_size=world)
