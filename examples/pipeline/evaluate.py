"""Measure weights: nats per byte, and how often the next byte is predicted, for each part of the held-out text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
from stages import ByteModel, rows
from torch.nn import functional as F  # noqa: N812  the name everybody uses

PARTS = ("general", "statements", "objects")


def main(weights: Path, corpus: Path, out: Path) -> None:
    """Write `metrics.json`."""
    model = ByteModel()
    model.load_state_dict(torch.load(weights, weights_only=True))
    predicted, total, items = {}, 0.0, 0
    for part in PARTS:
        text = torch.stack([row for (row,) in cast("Any", rows(corpus / f"{part}-held-out.txt"))])
        with torch.no_grad():
            logits, targets = model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()
        predicted[part] = {"hits": int((logits.argmax(1) == targets).sum()), "items": len(targets)}
        total += F.cross_entropy(logits, targets, reduction="sum").item()
        items += len(targets)
    metrics = {"predicted": predicted, "loss": {"value": total / items, "items": items}}
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
