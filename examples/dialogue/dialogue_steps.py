"""The steps between the stages: make and prepare conversations, make the first weights, measure weights by stage."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from hasten.recipes.dialogue.evaluation.gating import MIN_CONVERSATIONS, evaluate, perplexity
from hasten.recipes.dialogue.evaluation.of_job import held_out
from hasten.recipes.dialogue.prepare import prepare
from hasten.recipes.dialogue.synth import write
from hasten.recipes.weights import load_weights


def corpus(out: Path) -> None:
    """Write generated conversations, prepared. Use `hasten recipes new dialogue` for your own."""
    write(out / "talks", 1200, 0, lambda: None)
    prepare(out / "talks", out / "prepared", num_tokens=1024, valid_frac=0.3)


def first(prepared: Path, out: Path) -> None:
    """Write the weights that both first stages start from."""
    torch.manual_seed(0)
    torch.save(_job(prepared).model().state_dict(), out / "model.pt")


def measure(weights: Path, prepared: Path, out: Path) -> None:
    """Write the perplexity of what the assistant says in held-out conversations, for each stage, to `metrics.json`."""
    job = _job(prepared)
    model = job.model()
    load_weights(model, weights)
    rows = {stage: some for stage, some in held_out(job).items() if len(some) >= MIN_CONVERSATIONS}
    made = evaluate(model, job.tokens, [perplexity(rows, most=1e6)])  # the pipeline's gates decide
    metrics = {gate["metric"]: gate["slices"] for gate in made.gates}
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")


def _job(prepared: Path) -> Any:
    os.environ["PREPARED"] = str(prepared)
    from dialogue_stages import Stage  # noqa: PLC0415  it reads the environment

    return Stage()


if __name__ == "__main__":
    steps: dict[str, Any] = {"corpus": corpus, "first": first, "measure": measure}
    steps[sys.argv[1]](*map(Path, sys.argv[2:]))
