"""List which techniques had a recorded gain, and why the others were kept or deleted.

A technique stays if a recorded tuning applied it or a benchmark made for it found it faster. Otherwise it stays if a
reference plan asks for it, or if its gain requires a GPU. Nothing is measured here: the other files of benchmarks/results
are read.

python -m benchmarks.pruning_techniques --before COMMIT     # the last commit with every technique
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, record
from benchmarks.tuning import results
from hasten.optimizations import catalogue

Row = dict[str, Any]

ASKED: Mapping[str, str] = {
    "activation_checkpointing": "dialogue: 2.4 GiB of activations, fully checkpointed, instead of 31 GiB",
    "async_logging": "detection: asynchronous progress",
    "cuda_graphs": "detection: CUDA settings",
    "cudnn_benchmark": "detection: CUDA settings",
    "device_prefetch": "detection: prefetching",
    "eight_bit_states": "dialogue: sharding or 8-bit states to fit 85 GB",
    "metric_reading": "detection: fewer progress updates",
    "microbatch": "detection: gradient accumulation",
    "pinned_memory": "detection: CUDA settings",
    "sharding": "dialogue: sharding or 8-bit states to fit 85 GB",
    "zero_grad_to_none": "detection: efficient zero_grad",
}
"""Technique without a recorded gain -> the reference plan that asks for it, and in which words."""

ON_GPU: Mapping[str, str] = {
    "activation_checkpointing": "memory of a GPU, where it decides the largest batch",
    "channels_last_3d": "3-d convolutions on tensor cores, which take channels-last input",
    "cuda_graphs": "kernels are launched as one graph",
    "cudnn_benchmark": "cuDNN chooses among kernels by timing",
    "device_prefetch": "a copy runs beside the kernels",
    "eight_bit_states": "memory of a GPU, and kernels for it",
    "matmul_precision": "products of float32 tensors run on tensor cores (tf32)",
    "metric_reading": "reading a loss waits for the device",
    "microbatch": "memory of a GPU, where it decides the largest batch",
    "pinned_memory": "page-locked memory is copied faster",
    "sharding": "each rank has a memory of its own",
}
"""Technique without a recorded gain -> why it has one on a GPU."""

ARMS: Mapping[str, str] = {
    "buckets of 1 MiB": "gradient_buckets",
    "buckets of 25 MiB": "gradient_buckets",
    "buckets of 25 MiB, looked for": "gradient_buckets",
    "bfloat16": "gradient_compression",
    "PowerSGD of rank 4": "low_rank_gradients",
}
"""Arm of the ranks benchmark -> the technique that it adds."""


def main() -> None:
    """Write benchmarks/results/pruning_techniques.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning_techniques", description=__doc__)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    before: str = parser.parse_args().before
    rows = table(results(), lines_at(before), shipped())
    path = record(
        "pruning_techniques", {"before": before, "rows": rows}, f"python -m benchmarks.pruning_techniques --before {before}"
    )
    print(f"wrote {path}")


def shipped() -> set[str]:
    """Return the current techniques, without those registered by other packages on this machine."""
    return {name for name, kind in catalogue().items() if kind.__module__.startswith("hasten.")}


def lines_at(commit: str) -> dict[str, int]:
    """Return technique -> lines of its module at a commit."""
    folder = "src/hasten/optimizations/"
    listed = _git("ls-tree", "--name-only", commit, folder).splitlines()
    modules = [Path(path) for path in listed if path.endswith(".py") and not path.endswith("__init__.py")]
    return {path.stem: len(_git("show", f"{commit}:{path}").splitlines()) for path in modules}


def table(found: Mapping[str, Any], lines: Mapping[str, int], present: set[str]) -> list[Row]:
    """Return one row per technique: its lines, its best recorded number with the source file, and the decision.

    Args:
        found: All recorded results.
        lines: Technique -> lines before anything was deleted.
        present: The current techniques.

    Raises:
        ValueError: A deleted technique has a reason to stay, or a present one has none.
    """
    figures = sorted(_figures(found), key=lambda row: (row["paid"], row["ratio"]))
    best = {row["technique"]: row for row in figures}
    rows = []
    for name, count in sorted(lines.items()):
        row = best.get(name)
        paid = row is not None and row["paid"]
        asked, gpu = ("", "") if paid else (ASKED.get(name, ""), ON_GPU.get(name, ""))
        if (name in present) != bool(paid or asked or gpu):
            raise ValueError(f"{name} is {'there' if name in present else 'deleted'}, and its figures say otherwise: {row}")
        rows.append({
            "technique": name,
            "lines": count,
            "paid": paid,
            "best_ratio": row and row["ratio"],
            "best_low": row and row["low"],
            "source": row and row["source"],
            "reason": row and row["reason"],
            "asked_by": asked,
            "on_gpu": gpu,
            "kept": name in present,
        })  # fmt: skip
    return rows


def _figures(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield every recorded number of a technique: its gain, and whether that counts as paid."""
    for file, result in found.items():
        if file.startswith("pruning"):
            continue
        for candidate in _candidates(result):
            seen = candidate.get("comparison") or candidate
            if seen.get("ratio"):
                paid = candidate["outcome"] == "applied"
                yield _figure(file, candidate["name"], seen, candidate["reason"], paid=paid)
    for row in found.get("techniques", {"rows": []})["rows"]:
        if row["comparison"] and row["comparison"]["ratio"]:
            paid = row["verdict"] == "faster"
            yield _figure("techniques", row["technique"], row["comparison"], row["reason"], paid=paid)
    for arm, measured in found.get("ranks", {"arms": {}})["arms"].items():
        if arm in ARMS:
            seconds, plain = measured["seconds"], found["ranks"]["arms"]["one message"]["seconds"]
            wins = sum(mine < other for mine, other in zip(seconds, plain, strict=True))
            reason = f"faster in {wins} of {len(seconds)} turns"
            yield _figure("ranks", ARMS[arm], {"ratio": measured["speed"]}, reason, paid=wins == len(seconds))


def _figure(file: str, technique: str, seen: Mapping[str, Any], reason: str, *, paid: bool) -> Row:
    return {
        "technique": technique,
        "ratio": seen["ratio"],
        "low": seen.get("low"),
        "source": f"benchmarks/results/{file}.json",
        "reason": reason,
        "paid": paid,
    }


def _candidates(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the candidates of every tuning in a result."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from item if key == "rungs" and isinstance(item, list) else _candidates(item)
    elif isinstance(value, list):
        for item in value:
            yield from _candidates(item)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607  of any place
    return done.stdout


def section(pruned: Mapping[str, Any]) -> list[str]:
    """Return the section of the catalogue page that says why techniques without a recorded gain are kept."""
    kept = [row for row in pruned["rows"] if row["kept"]]
    open_ones = [row for row in kept if not row["paid"]]
    return [
        "## Without a recorded gain",
        "",
        f"{len(kept) - len(open_ones)} of {len(kept)} techniques were applied in a recorded tuning, or were faster on a job",
        "made for them. The others are kept because a reference plan needs them, or because they are made for GPUs:",
        "",
        "| name | best recorded | needed for | on a GPU |",
        "|---|---|---|---|",
        *(_line(row, row["asked_by"], row["on_gpu"]) for row in open_ones),
        "",
        f"Repeat it: `{pruned['command']}`.",
        "",
    ]


def removed(pruned: Mapping[str, Any]) -> str:
    """Return the techniques that were deleted, with their best recorded gain."""
    gone = [row for row in pruned["rows"] if not row["kept"]]
    lines = [
        f"{len(gone)} techniques, {sum(row['lines'] for row in gone)} lines of source. Repeat it: `{pruned['command']}`.",
        "",
        "| name | best recorded | lines | recorded outcome |",
        "|---|---|---|---|",
        *(_line(row, str(row["lines"]), row["reason"] or "-") for row in gone),
    ]
    return "\n".join(lines)


def _line(row: Row, *more: str) -> str:
    low = f" (from {row['best_low']:.2f})" if row["best_low"] is not None else ""
    best = f"{row['best_ratio']:.2f}x{low}" if row["best_ratio"] is not None else "never measured"
    cells = [f"`{row['technique']}`", best]
    return "| " + " | ".join([*cells, *(cell.replace("|", "/") or "-" for cell in more)]) + " |"


if __name__ == "__main__":
    main()
