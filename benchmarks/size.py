"""Compare what `hasten size` says of jobs with the memory that training them really takes, on this machine's CPU.

The real peak is counted by PyTorch's CPU allocator, as its profiler reports each allocation: in a fresh process that
builds the job and trains a few updates in a plain loop. It contains what kernels allocate inside an operator, which
the trace cannot see. Memory that bypasses the allocator (oneDNN's scratch space, Python, decoded images) and pages
that malloc keeps are not in it: the growth of the resident memory is recorded beside it, and the peak in Hasten's own
loop, as in `hasten run`. A described transformer is measured in the same way on two ranks. What the dataset holds in
memory (`data_bytes`) is subtracted. There is no GPU here, so no GPU was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.record import ROOT, record
from hasten.core.batch import iter_tensors
from hasten.core.job import Job, Loss
from hasten.core.target import load_job
from hasten.data.cube.regrid import Grid, regridder
from hasten.profile.probes import peak_memory_bytes, reset_peak_memory
from hasten.size.job import trace_job
from hasten.size.memory import Setup, memory_of
from hasten.size.shape import Shape
from hasten.size.transformer import Transformer
from hasten.train.build import build
from hasten.train.loop import Loop

JOBS = {
    "text": "examples/text.py:TextJob",
    "detection": "hasten.recipes.detection.demo:DrawnNotes",
    "datacube": "hasten.recipes.datacube.demo:DrawnWeather",
}
SHAPE = Shape(layers=8, hidden=512, heads=8, vocab=8000)
TWO_RANKS = {
    "DDP, float32": Setup(sharding="ddp", ranks=2, precision="float32", batch=2, length=256, fragmentation=0),
    "DDP, mixed": Setup(sharding="ddp", ranks=2, batch=2, length=256, fragmentation=0),
    "FSDP2, float32": Setup(sharding="fsdp2", ranks=2, precision="float32", batch=2, length=256, fragmentation=0),
    "FSDP2, mixed": Setup(sharding="fsdp2", ranks=2, batch=2, length=256, fragmentation=0),
    "FSDP2, mixed, recomputed": Setup(
        sharding="fsdp2", ranks=2, recomputed=True, batch=2, length=256, fragmentation=0
    ),
}  # fmt: skip
"""A transformer of 33 million parameters on two ranks that talk by gloo."""
UPDATES, TURNS = 3, 7
MADE, STEPS = "the model is made", "the optimizer steps"
WITHIN = 0.05


def run_size() -> Path:
    """Measure each job, prediction and training in processes of their own."""
    rows = {name: _both(target) for name, target in JOBS.items() if _exists(target)}
    result = {
        "rows": rows,
        "within": WITHIN,
        "reached": {name: abs(row["error_frac"]) <= WITHIN for name, row in rows.items()},
    }
    result["two_ranks"] = {name: _in_a_process("two_ranks", name, ranks=2) for name in TWO_RANKS}
    result["rates"] = _in_a_process("rates", "-")
    return record("size", {**result, "left_out": {"GPU": "no GPU in this machine"}}, "python -m benchmarks size")


def _exists(target: str) -> bool:
    where = target.partition(":")[0]
    return where.endswith(".py") or find_spec(where) is not None


def _both(target: str) -> dict[str, Any]:
    row = {**_in_a_process("predicted", target), **_in_a_process("plain", target), **_in_a_process("loop", target)}
    row["error_frac"] = row["predicted_bytes"] / row["real_bytes"] - 1
    print(
        f"{target}: predicted {row['predicted_bytes']:,}, real {row['real_bytes']:,}: {row['error_frac']:+.1%}", flush=True
    )
    return row


def _in_a_process(what: str, target: str, *, ranks: int = 1) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "benchmarks.size", what, target]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _predicted(target: str) -> dict[str, Any]:
    traced = trace_job(load_job(target))
    return {
        "predicted_bytes": traced.trace.peak,
        "batch": traced.batch,
        "parameters": traced.weights.total,
        "ran": traced.ran,
    }


def _plain(target: str) -> dict[str, Any]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job = load_job(target)
        data: Any = job.train_data()
        samples = [job.random_transform(job.deterministic_transform(data[index])) for index in range(job.batch_size)]
        batch = job.collate(samples)
        del samples
        with record_function(MADE):
            model = job.model()
        model.train()
        optimizer = job.optimizer(model)
        before = _resident()
        for _ in range(UPDATES):
            _update(job, model, optimizer, batch)
        grown = peak_memory_bytes() - before
    held = _held(profiler, sum(item.nbytes for item in iter_tensors(batch)))
    return {"real_bytes": _peak(profiler) - held, "data_bytes": held, "resident_growth_bytes": grown, "updates": UPDATES}


def _update(job: Job, model: nn.Module, optimizer: Optimizer, batch: Any) -> None:
    loss = job.loss(model, job.device_transform(batch))
    (loss.total / loss.weight if isinstance(loss, Loss) else loss).backward()
    if job.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
    optimizer.step()
    with torch.no_grad():
        job.after_update(model)
    optimizer.zero_grad(set_to_none=job.zero_grad_to_none)


def _loop(target: str) -> dict[str, Any]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        Loop(build(load_job(target)), rewinds=False).run(UPDATES)
    return {"hasten_loop_bytes": _peak(profiler)}


def _resident() -> int:
    reset_peak_memory()
    return peak_memory_bytes()


def _held(profiler: Any, batch_bytes: int) -> int:
    """Return what the dataset itself holds in memory when the model is made."""
    events = profiler.profiler.kineto_results.events()
    made = next(event.start_ns() for event in events if event.name() == MADE)
    held = sum(event.nbytes() for event in events if event.name() == "[memory]" and event.start_ns() < made)
    return int(held) - batch_bytes


def _peak(profiler: Any) -> int:
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(accumulate(change for _, change in changes)))


def _two_ranks(name: str) -> dict[str, Any]:
    """Measure the peak of a rank. `left_bytes` is what is still allocated before an update beside what the rank keeps."""
    setup = TWO_RANKS[name]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = Transformer(SHAPE, recomputed=setup.recomputed)
        net: nn.Module
        if setup.sharding == "ddp":
            net = DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            dtype = torch.bfloat16 if setup.precision == "mixed" else None
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
            mesh = init_device_mesh("cpu", (setup.ranks,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            net = model
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        tokens = torch.randint(0, SHAPE.vocab, (setup.batch, setup.length + 1))
        for _ in range(UPDATES):
            with torch.autocast("cpu", torch.bfloat16, enabled=setup.sharding == "ddp" and setup.precision == "mixed"):
                loss = net(tokens)
            loss.backward()
            with record_function(STEPS):
                optimizer.step()
            optimizer.zero_grad()
    distributed.destroy_process_group()
    predicted, real = memory_of(SHAPE, setup), _peak(profiler)
    events = profiler.profiler.kineto_results.events()
    last = max(event.start_ns() for event in events if event.name() == STEPS)
    held = sum(event.nbytes() for event in events if event.name() == "[memory]" and event.start_ns() < last)
    return {
        "predicted_bytes": predicted.peak, "real_bytes": real, "error_frac": predicted.peak / real - 1,
        "left_bytes": held - sum(predicted.moments["update"].values()),
    }  # fmt: skip


def _rates(_: str) -> dict[str, Any]:
    """Measure bytes per second of one core, of what preparing gridded data takes: float32 fields of 181 x 360 to 64 x 64."""
    torch.set_num_threads(1)
    fields = torch.randn(200, 181, 360, generator=torch.Generator().manual_seed(0)) + 273
    raw = fields.numpy().round(1).tobytes()  # a tenth of a unit, as packed files have
    regrid = regridder(Grid.regular(181, 360), Grid.regular(64, 64))
    packed = zlib.compress(raw, 4)
    with TemporaryDirectory() as folder:
        path = Path(folder, "fields")
        path.write_bytes(raw)
        work: dict[str, Callable[[], object]] = {
            "read_cached": path.read_bytes, "inflate": lambda: zlib.decompress(packed), "regrid": lambda: regrid(fields),
        }  # fmt: skip
        seconds = {name: [_seconds(call) for _ in range(TURNS)] for name, call in work.items()}
    rates = {name: len(raw) / median(samples) for name, samples in seconds.items()}
    return {"bytes": len(raw), "seconds": seconds, "bytes_per_s_of_a_core": rates}


def _seconds(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started


if __name__ == "__main__":
    parts = {"predicted": _predicted, "plain": _plain, "loop": _loop, "two_ranks": _two_ranks, "rates": _rates}
    found = parts[sys.argv[1]](sys.argv[2])
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))
