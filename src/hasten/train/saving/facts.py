"""What decides a run, as fingerprints that a checkpoint carries: the code of the job, its data, and the seed."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

from hasten.core.keeping import content
from hasten.core.live import LiveJob
from hasten.core.seeding import kept_random_state

_LOOKED_AT = 3


def run_facts(live: LiveJob) -> dict[str, Any]:
    """`code`, `data` and `seed` of a live job; `code` is empty where the source cannot be read."""
    return {"code": _code(live), "data": _data(live), "seed": live.seed, "batch_size": live.job.batch_size}


def _code(live: LiveJob) -> str:
    digest = hashlib.sha256()
    for kind in type(live.job).__mro__:
        if kind.__module__.partition(".")[0] in {"builtins", "abc", "typing", "torch", "hasten"}:
            continue
        try:
            digest.update(Path(inspect.getfile(kind)).read_bytes())
        except (TypeError, OSError):
            return ""
    return digest.hexdigest()[:16]


def _data(live: LiveJob) -> str:
    """Of a map-style dataset its length and a few samples; an iterable one tells nothing without being read."""
    if live.num_samples is None:
        return "iterable"
    digest = hashlib.sha256(str(live.num_samples).encode())
    if live.pipeline.load_is_random:
        return f"{live.num_samples} samples"
    with kept_random_state():
        for place in range(_LOOKED_AT):
            sample = live.pipeline.load(place * (live.num_samples - 1) // max(_LOOKED_AT - 1, 1))
            digest.update(repr(content(sample)).encode())
    return digest.hexdigest()[:16]
