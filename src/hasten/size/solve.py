"""Find transformers of a wanted size, the nearest valid ones, and what trains on given devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hasten.core.errors import JobError
from hasten.size.memory import Memory, Precision, Setup, Sharding, States, memory_of
from hasten.size.shape import HEAD_DIMS, LARGEST, Shape

WITHIN = 0.001
"""Largest relative error of a solution."""
ASPECT = 128
"""Hidden width per layer of GPT-3 and Llama models of 7 to 175 billion parameters."""
RESERVED_BYTES, RESERVED_FRAC = 1e9, 0.1
"""Device memory kept free for the CUDA context, cuBLAS workspaces and NCCL buffers, at most this fraction: an assumption."""
MAX_BATCH = 4096
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}


def number(text: str, option: str) -> float:
    """Return the number in `13.14B`, `989T` or `4096`.

    Raises:
        JobError: It is not a number greater than 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMBGTP]?)", text.strip().upper())
    if match is None or not float(match[1]):
        raise JobError(f"{option} {text!r} is not a number: write 13.14B, 350M or 1.5T.")
    return float(match[1]) * SCALES[match[2]]


def devices(text: str) -> tuple[float, int]:
    """Return bytes per device and number of devices in `80GB x 8`. GB is 10^9 bytes, GiB is 2^30.

    Raises:
        JobError: It does not say this.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GB|GIB|TB|TIB)\s*(?:[X*]\s*(\d+))?", text.strip().upper())
    if match is None or not float(match[1]) or match[3] == "0":
        raise JobError(f"--fit {text!r} does not say memory and number of devices: write '80GB x 8' or '24GiB'.")
    unit = {"GB": 1e9, "GIB": 2.0**30, "TB": 1e12, "TIB": 2.0**40}[match[2]]
    return float(match[1]) * unit, int(match[3] or 1)


def usable(num_bytes: float) -> float:
    """Return how much of a device's memory training may use."""
    return num_bytes - min(RESERVED_BYTES, RESERVED_FRAC * num_bytes)


def solve(target: float, like: Shape, *, either_form: bool, either_tied: bool) -> list[Shape]:
    """Return valid transformers within 0.1 % of a number of parameters, the most suitable first.

    Head dimensions are 64 or 128, and all widths are multiples of 128. The order prefers a hidden width of about 128 per
    layer, multiples of 512 and 256, head dimension 128, and a small error; of each number of layers, the best is kept.

    Args:
        target: Wanted number of parameters.
        like: Its vocabulary and experts are kept, and its form unless either may be used.
        either_form: Try the plain form and the gated form.
        either_tied: Try tied and untied embeddings.

    Raises:
        JobError: The target is too small or too large for the vocabulary.
    """
    found: dict[tuple[int, bool, bool], Shape] = {}
    for gated, tied in product(
        (False, True) if either_form else (like.gated,), (False, True) if either_tied else (like.tied,)
    ):
        for shape in _near(target, replace(like, gated=gated, tied=tied, ffn=None, kv_heads=None)):
            key = (shape.layers, gated, tied)
            if key not in found or _cost(shape, target) < _cost(found[key], target):
                found[key] = shape
    if not found:
        raise JobError(
            f"No transformer with a vocabulary of {like.vocab} and widths that are multiples of 128 has {target:,.0f} "
            f"parameters within 0.1 %. Set another --vocab or --target."
        )
    return sorted(found.values(), key=lambda shape: _cost(shape, target))


def _near(target: float, like: Shape) -> Iterator[Shape]:
    middle = (ASPECT * target / 12) ** (1 / 3)
    for hidden in range(round(middle / 256) * 128 or 128, min(round(2 * middle), LARGEST), 128):
        inner = (4 * hidden,) if not like.gated else range(-(-5 * hidden // 256) * 128, 3 * hidden + 1, 128)
        for dim, ffn, group in product(HEAD_DIMS, inner, (1, 4, 8) if like.gated else (1,)):
            heads = hidden // dim
            if heads % group:
                continue
            shape = replace(like, layers=1, hidden=hidden, heads=heads, kv_heads=heads // group, ffn=ffn)
            layers = round((target - shape.ends) / shape.block)
            if layers < 1 or not 0.25 <= hidden / layers / ASPECT <= 4:
                continue
            shape = replace(shape, layers=layers)
            if abs(shape.parameters / target - 1) <= WITHIN:
                yield shape


def _cost(shape: Shape, target: float) -> float:
    """Return how unsuitable a transformer is."""
    hardware = 0.2 * (shape.hidden % 512 > 0) + 0.4 * (shape.hidden % 256 > 0) + 0.2 * (shape.inner % 256 > 0)
    dim = 0.2 * (shape.hidden // shape.heads == HEAD_DIMS[0] and shape.hidden >= 2048)
    wide = abs(math.log(shape.hidden / shape.layers / ASPECT))
    inner = abs(math.log(shape.inner * 3 / 8 / shape.hidden)) if shape.gated else 0.0
    return hardware + dim + wide + inner + 0.2 * abs(shape.parameters / target - 1) / WITHIN + 0.1 * (shape.layers % 2)


def nearest(shape: Shape, count: int = 5) -> list[Shape]:
    """Return the nearest transformers that are valid and fast: with few changes, and about as many parameters."""
    ratio, grouped = shape.inner / shape.hidden, max(shape.heads // shape.groups, 1)
    found = []
    for dim, layers in product(HEAD_DIMS, range(max(shape.layers - 6, 1), shape.layers + 7)):
        first = max(round(0.93 * shape.hidden / dim), 1)
        for heads in range(first, round(1.07 * shape.hidden / dim) + 2):
            ffn = round(ratio * heads * dim / 128) * 128 or 128
            groups = heads // grouped if heads % grouped == 0 else heads
            near = replace(shape, layers=layers, hidden=heads * dim, heads=heads, kv_heads=groups, ffn=ffn)
            if near.hidden % 128 == 0 and not list(near.problems()):
                found.append(near)

    def distance(near: Shape) -> float:
        size = abs(math.log(near.parameters / shape.parameters))
        return 4 * size + abs(math.log(near.layers / shape.layers)) + abs(math.log(near.hidden / shape.hidden))

    return sorted(found, key=lambda near: (distance(near), near.heads))[:count]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a model trains on given devices under one setup.

    Attributes:
        setup: The setup, with the largest micro-batch that fits; 1 if none does.
        shape: The model.
        memory: Its memory.
        fits: Whether it fits.
    """

    setup: Setup
    shape: Shape
    memory: Memory
    fits: bool


def setups(base: Setup, ranks: int) -> Iterator[Setup]:
    """Yield the setups to try: those that change the least in the training first."""
    shardings: Sequence[Sharding] = ("none", "offload") if ranks == 1 else ("ddp", "fsdp2", "offload")
    if ranks > base.shards and ranks % base.shards == 0:
        shardings = ("ddp", "hsdp", "fsdp2", "offload")
    kinds: Sequence[tuple[Precision, States]] = (("mixed", "adam"), ("mixed", "adam-8bit"), ("bfloat16", "adam-8bit"))
    for (precision, states), sharding, recomputed in product(kinds, shardings, (False, True)):
        yield replace(
            base, sharding=sharding, ranks=ranks, precision=precision, states=states, recomputed=recomputed, batch=1
        )


def fit(shape: Shape, base: Setup, num_bytes: float, ranks: int) -> Iterator[Fit]:
    """Yield for each setup whether a model fits, and the largest micro-batch."""
    for setup in setups(base, ranks):
        yield _largest_batch(shape, setup, num_bytes)


def _largest_batch(shape: Shape, setup: Setup, num_bytes: float) -> Fit:
    best = Fit(setup=setup, shape=shape, memory=memory_of(shape, setup), fits=False)
    if best.memory.peak > usable(num_bytes):
        return best
    low, high = 1, MAX_BATCH
    while low < high:
        batch = (low + high + 1) // 2
        if memory_of(shape, replace(setup, batch=batch)).peak <= usable(num_bytes):
            low = batch
        else:
            high = batch - 1
    setup = replace(setup, batch=low)
    return Fit(setup=setup, shape=shape, memory=memory_of(shape, setup), fits=True)


def fewest_devices(shape: Shape, setup: Setup, num_bytes: float, most: int = 4096) -> int | None:
    """Return the smallest number of devices on which a model trains under FSDP2; None if there is none up to `most`."""
    counts: list[int] = [*range(1, 17), *range(24, most + 1, 8)]  # above 16, whole machines
    for ranks in counts:
        tried = replace(setup, sharding="fsdp2", ranks=ranks, batch=1)
        if memory_of(shape, tried).peak <= usable(num_bytes):
            return ranks
    return None


def largest(like: Shape, base: Setup, num_bytes: float, ranks: int) -> Iterator[Fit]:
    """Yield for each setup with checkpointing the largest transformer of 128 hidden values per layer that fits."""
    for setup in (tried for tried in setups(base, ranks) if tried.recomputed):
        low, high = 1, 160
        while low < high:
            size = (low + high + 1) // 2
            shape = _of_size(like, size)
            low, high = (size, high) if memory_of(shape, setup).peak <= usable(num_bytes) else (low, size - 1)
        yield _largest_batch(_of_size(like, low), setup, num_bytes)


def _of_size(like: Shape, size: int) -> Shape:
    return replace(like, layers=size, hidden=128 * size, heads=size, kv_heads=size, ffn=None)


def grown(shape: Shape, setup: Setup) -> list[dict[str, float | str]]:
    """Return how many times larger parameters, operations, activations and peak memory get when a size is doubled."""
    wide: dict[str, Any] = {
        "hidden": 2 * shape.hidden,
        "heads": 2 * shape.heads,
        "kv_heads": 2 * shape.groups,
        "ffn": 2 * shape.inner,
    }
    doubled = {
        "layers": (replace(shape, layers=2 * shape.layers), setup),
        "hidden, heads and ffn": (replace(shape, **wide), setup),
        "vocabulary": (replace(shape, vocab=2 * shape.vocab), setup),
        "length": (shape, replace(setup, length=2 * setup.length)),
        "batch": (shape, replace(setup, batch=2 * setup.batch)),
    }
    if setup.sharding != "none":
        doubled["ranks"] = (shape, replace(setup, ranks=2 * setup.ranks))

    def sizes(shape: Shape, setup: Setup) -> dict[str, float]:
        memory = memory_of(shape, setup)
        tokens = setup.batch * setup.length * setup.ranks
        return {
            "parameters": shape.parameters, "flops": tokens * shape.flops_per_token(setup.length),
            "activations": max(parts["activations"] for parts in memory.moments.values()), "peak": memory.peak,
        }  # fmt: skip

    before = sizes(shape, setup)
    return [
        {"doubled": name, **{key: value / before[key] for key, value in sizes(*pair).items()}}
        for name, pair in doubled.items()
    ]
