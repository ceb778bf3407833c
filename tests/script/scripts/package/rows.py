"""Data that is found through a relative import."""

from __future__ import annotations

import torch

X = torch.linspace(-1, 1, 32).reshape(16, 2)
