"""The job of the chaos benchmark, from the weights of the stage before."""

from __future__ import annotations

import os

import torch
from torch import nn

from benchmarks.chaos_job import ChaosJob


class Stage(ChaosJob):
    """Chaos, in stages."""

    seed = int(os.environ.get("SEED", "3"))

    def model(self) -> nn.Module:
        """Create the model, and start from `$START`."""
        model = super().model()
        if start := os.environ.get("START"):
            model.load_state_dict(torch.load(start, weights_only=True))
        return model
