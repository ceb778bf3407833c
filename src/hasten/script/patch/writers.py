"""Which function writes which technique; the rest is left, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hasten.script.patch import forwarding, loading, optimizing, starting
from hasten.script.patch.edits import Changes

Writer = Callable[[Changes, Any], str]
"""Notes the edits of a technique and returns one line of what is changed; raises UnwritableError where it cannot."""

WRITERS: Mapping[str, Writer] = {
    "attention_backend": forwarding.attention_backend,
    "channels_last": forwarding.channels_last,
    "compile": forwarding.compile_model,
    "cpu_threads": starting.cpu_threads,
    "cudnn_benchmark": starting.cudnn_benchmark,
    "drop_last": loading.drop_last,
    "flush_denormals": starting.flush_denormals,
    "foreach_optimizer": optimizing.foreach_optimizer,
    "fused_optimizer": optimizing.fused_optimizer,
    "garbage_collection": starting.garbage_collection,
    "loader_workers": loading.loader_workers,
    "matmul_precision": starting.matmul_precision,
    "pinned_memory": loading.pinned_memory,
    "precision": forwarding.precision,
    "zero_grad_to_none": optimizing.zero_grad_to_none,
}
