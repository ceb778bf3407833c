"""How checkpoint_storage is tested."""

from __future__ import annotations

import tempfile
from typing import Any

from hasten.optimizations.checkpoint_storage import CheckpointStorage
from tests.optimizations.contract import Case, Prepared, facts

FAST = tempfile.gettempdir()


class Allowed(Prepared):
    """A job whose user allows a folder."""

    scratch = (FAST,)


EPOCH: dict[str, Any] = {"epoch_s": 10.0, "checkpoint_s": 2.0}
CASE = Case(
    make=lambda: CheckpointStorage(folder=FAST), job=Allowed,
    facts=facts(**EPOCH, write_mb_s={"run": 100.0, "/fast": 400.0}),
    refused=(
        (facts(**EPOCH), "no other folder is allowed: name a faster one with --scratch"),
        (facts(**EPOCH, write_mb_s={"/fast": 400.0}), "was not measured"),
        (facts(**EPOCH, write_mb_s={"run": 100.0, "/b": 90.0, "/a": 140.0}), "/a is written at 140 .* 1.40 times as fast"),
    ),
)  # fmt: skip
