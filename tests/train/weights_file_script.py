"""Save checkpoints in a loop in a child process, kill it repeatedly, and check the file each time.

Arguments: folder, "background" or "-". The weights of save number k are all k.
Writes one line per kill: the number found in the file, or the error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from hasten.core.live import AroundSettings
from hasten.train.weights_file import WeightsFile

torch.set_num_threads(1)
folder = Path(sys.argv[1])
settings = AroundSettings(checkpoint_background=sys.argv[2] == "background")
KILLS = (0.0, 0.004, 0.009, 0.017, 0.031, 0.06, 0.11, 0.4)


def state_of(number: int) -> dict[str, torch.Tensor]:
    """Return two megabytes of a number."""
    return {name: torch.full((250_000,), float(number)) for name in ("first", "second")}


def save_for_ever(number: int) -> None:
    """Save in an endless loop."""
    writer = WeightsFile(folder / "model.pt", settings)
    while True:
        number += 1
        writer.save(state_of(number))


last = 1
WeightsFile(folder / "model.pt", AroundSettings()).save(state_of(last))
for delay in KILLS:
    child = os.fork()
    if not child:
        save_for_ever(last)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = torch.load(folder / "model.pt", weights_only=True)
    values = {float(value) for tensor in found.values() for value in tensor.unique()}
    whole = list(found) == ["first", "second"] and len(values) == 1 and min(values) >= last
    last = int(min(values))
    sys.stdout.write(f"{last}\n" if whole else f"broken: {values}\n")
WeightsFile(folder / "model.pt", settings)
sys.stdout.write(f"{sorted(path.name for path in folder.iterdir())}\n")
