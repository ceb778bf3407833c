"""Tables of the guide on sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLANNED_BYTES = 1250e12
CORES = (64, 512)
NETWORK_BITS = 25e9
STEPS = {"read_cached": "read, from memory", "inflate": "decompress zlib", "regrid": "regrid to 64 x 64"}


def jobs(found: Mapping[str, Any]) -> str:
    """Return the table of predicted and real peaks."""
    lines = ["| job | predicted | real peak | error | Hasten's loop |", "|---|---|---|---|---|"]
    for name, row in found["rows"].items():
        sizes = [f"{row[key] / 2**20:.1f} MiB" for key in ("predicted_bytes", "real_bytes")]
        loop = f"{(row['hasten_loop_bytes'] - row['data_bytes']) / 2**20:.1f} MiB"
        lines.append(f"| {name} | {' | '.join(sizes)} | {row['error_frac']:+.1%} | {loop} |")
    return "\n".join([*lines, "", f"Measured on: {found['machine']}."])


def two_ranks(found: Mapping[str, Any]) -> str:
    """Return the table of predicted and real peaks of a rank."""
    lines = ["| two ranks | predicted | real peak | error | held by the communication |", "|---|---|---|---|---|"]
    for name, row in found["two_ranks"].items():
        sizes = [f"{row[key] / 2**20:.1f} MiB" for key in ("predicted_bytes", "real_bytes")]
        lines.append(f"| {name} | {' | '.join(sizes)} | {row['error_frac']:+.1%} | {row['left_bytes'] / 2**20:.1f} MiB |")
    return "\n".join(lines)


def planned(found: Mapping[str, Any]) -> str:
    """Return the plan of 1,250 TB from rates of one core."""
    rates = found["rates"]["bytes_per_s_of_a_core"]
    heads = " | ".join(f"{cores} cores" for cores in CORES)
    lines = [f"| step | one core | 1,250 TB, core hours | {heads} |", "|---|---|---|---|---|"]
    total = 0.0
    for key, words in STEPS.items():
        hours = PLANNED_BYTES / rates[key] / 3600
        total += hours
        lines.append(f"| {words} | {rates[key] / 1e9:.2f} GB/s | {hours:,.0f} | {_days(hours)} |")
    lines.append(f"| together | | {total:,.0f} | {_days(total)} |")
    hours = PLANNED_BYTES * 8 / NETWORK_BITS / 3600
    network = f"A network of 25 Gbit/s takes {hours / 24:.1f} days to carry 1,250 TB once, whatever the number of cores."
    return "\n".join([*lines, "", network])


def _days(hours: float) -> str:
    return " | ".join(f"{hours / cores / 24:.2f} days" for cores in CORES)
