"""Forks, spawns and runs other interpreters in the middle of training."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import torch
from common import Rows, fingerprint, make_model
from torch import nn
from torch.utils.data import DataLoader


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return float(loss)


def elsewhere(queue: multiprocessing.Queue[str]) -> None:
    import builtins

    model = make_model()
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), list(Rows()[0:4]))
    queue.put(f"{torch.nn.Module.__call__.__name__} {builtins.print.__class__.__name__} {fingerprint(model)}")


def main() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at, batch in enumerate(DataLoader(Rows(), batch_size=8)):
        loss = step(model, optimizer, batch)
        print(at, loss, flush=True)
        if at == 2:
            child = os.fork()
            if child == 0:
                print("forked", torch.nn.Module.__call__.__name__, step(model, optimizer, batch), flush=True)
                sys.exit(5)
            print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=elsewhere, args=(queue,))
        process.start()
        print(method, queue.get(timeout=60), flush=True)
        process.join()
    code = "import os, sys; print('HASTEN_ATTACH' in os.environ, os.environ.get('PYTHONPATH'), len(sys.meta_path))"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    print(fingerprint(model))


if __name__ == "__main__":
    main()
