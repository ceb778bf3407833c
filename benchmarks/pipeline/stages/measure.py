"""Measure the largest weight."""

import json
import sys
from pathlib import Path

import torch

state = torch.load(sys.argv[1], weights_only=True)
largest = max(float(tensor.abs().max()) for tensor in state.values())
Path(sys.argv[2], "metrics.json").write_text(json.dumps({"largest": largest}), encoding="utf-8")
