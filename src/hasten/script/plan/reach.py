"""What of the catalogue can act on a script that is not ours, and what the rest would need."""

from __future__ import annotations

import shlex

from hasten.core.errors import MachineError
from hasten.core.optimization import Optimization, missing_environment
from hasten.core.plan import Plan
from hasten.core.system import started_with

REACHED = frozenset({
    "activation_checkpointing", "allocator", "attention_backend", "background_checkpoint",
    "batched_reading", "channels_last", "channels_last_3d", "compile", "cpu_threads", "cuda_graphs", "cudnn_benchmark",
    "flush_denormals", "foreach_optimizer", "fused_optimizer", "garbage_collection",
    "loader_workers", "matmul_precision", "pinned_memory", "precision", "sample_cache", "sample_store",
    "tensor_text", "trim_padding", "zero_grad_to_none",
})  # fmt: skip
"""Techniques whose seam an attached script has."""

_JOB = "write the training as a hasten.Job (README, four methods), and tune that"
_BEYOND = {
    "async_logging": "how the script reports is its own: pass logging.handlers.QueueHandler(queue) to its logger, and write "
    "its files in a logging.handlers.QueueListener",
    "converted_dataset": "which of its preparation is random cannot be seen from outside: convert the data beforehand by "
    "`hasten data convert {source} {source}.store`{need}, and let the dataset read hasten.data.Store",
    "counted_positions": "which positions the loss uses cannot be seen from outside: index the hidden states with "
    "the mask before the output layer",
    "device_prefetch": "the script moves its batches itself: move the next one on a torch.cuda.Stream meanwhile",
    "drop_last": "it would train on other samples: DataLoader(..., drop_last=True) is yours to decide",
    "eight_bit_states": "the script holds the optimizer it has made: make torchao.optim.AdamW8bit(...) instead",
    "gradient_buckets": "the script wraps its model itself: DistributedDataParallel(..., bucket_cap_mb=...)",
    "gradient_compression": "the script wraps its model itself: model.register_comm_hook(None, bf16_compress_hook)",
    "length_bucketing": "lengths cannot be seen from outside: give the DataLoader a batch_sampler that groups like lengths",
    "loader_threads": "its dataset may not be safe to read in several threads: DataLoader(..., num_workers=...) reads "
    "ahead in processes",
    "merged_microbatches": "the script cuts its batches itself: make its micro-batches larger",
    "metric_reading": "what the script does with the value of `.item()` cannot be seen: sum loss.detach() and "
    "read the sum at every tenth step",
    "microbatch": "the script writes its own loop: accumulate gradients over parts of the batch in it",
    "module_precision": "which modules may run in bfloat16 is a choice of the model: torch.autocast around those",
    "one_cycle": "it changes what is trained, and a script has no held-out quality to judge that by",
    "optimizer_batch": "it changes what is trained, and a script has no held-out quality to judge that by",
    "reused_buffers": "the script collates its batches itself: pass collate_fn= one that fills kept buffers",
    "sequence_packing": "which samples make a document cannot be seen from outside",
    "sharding": "the script wraps its model itself: torch.distributed.fsdp.fully_shard(model)",
    "validation_batch": "the script writes its own validation: give its DataLoader there a larger batch_size",
    "validation_compile": "the script writes its own validation: call torch.compile(model) in it",
    "warmup_cosine": "it changes what is trained, and a script has no held-out quality to judge that by",
}


def why_beyond(name: str, *, source: str = "SOURCE", need: str = "") -> str:
    """Why a technique cannot act on an unmodified script, and what to do instead; empty where it can.

    Args:
        name: Of the technique.
        source: The data that the script reads, as a shell takes it, where that is known.
        need: What they take on disk, in words that follow a command, where that was measured.
    """
    if name in REACHED:
        return ""
    why = _BEYOND.get(name, "it has no seam there").format(source=source, need=need)
    return f"not on an unmodified script: {why}; or {_JOB}"


def beyond(plan: Plan) -> dict[str, str]:
    """Those of a plan that cannot act on a script -> why."""
    return {name: why for name in plan.names if (why := why_beyond(name))}


def reached(plan: Plan) -> list[Optimization]:
    """Those of a plan that can act on a script."""
    return [item for item in plan.optimizations if item.card.name in REACHED]


def out_of_reach(plan: Plan) -> dict[str, str]:
    """Those of a plan that cannot act on a script that has begun -> why, and what would help."""
    found, started = beyond(plan), started_with()
    for item in plan.optimizations:
        try:
            missing = missing_environment(item.environment(), started)
        except MachineError as error:
            found[item.card.name] = str(error)
            continue
        if missing:
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
            found[item.card.name] = f"it works in a process that is started with it: {words} python ..."
    return found
