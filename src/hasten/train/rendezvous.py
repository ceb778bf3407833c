"""Where the ranks of one attempt meet, in a store that outlives attempts.

torchrun keeps one store over all restarts, and what gloo and NCCL left there under an earlier attempt is taken for the
present one: ranks then connect to processes that are gone (https://github.com/pytorch/pytorch/issues/135712). No count of
restarts helps, since the agents of several machines count for themselves. So each rank puts a number of its own there that
nobody had before, rank 0 says whose numbers it sees, and whoever finds its own among them meets the others under rank 0's.
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
_POLL_S = 0.02


def fresh_part(store: Any, rank: int, world: int, *, wait_s: float = _WAIT_S) -> str:
    """The name of a part of a store that is of this attempt alone, the same for all its ranks.

    Args:
        store: A `torch.distributed.Store`.
        rank: Which one this is.
        world: Ranks in all.
        wait_s: How long the others may take to come.

    Raises:
        MachineError: They did not come.
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
            seen: list[str] = json.loads(store.get("hasten/attempt"))
            if len(seen) == world and seen[rank] == mine:
                store.set(f"hasten/{seen[0]}/{rank}", "here")
                return seen[0]
        time.sleep(_POLL_S)
    raise MachineError(
        f"Rank {rank} waited {wait_s:.0f} s for {world - 1} others: look whether they started, and what they say."
    )


def meet(backend: str) -> None:
    """Join the process group of torchrun's present attempt."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    part = dist.PrefixStore(fresh_part(store, rank, world), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=part, rank=rank, world_size=world)
